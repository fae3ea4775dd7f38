"""`canal federation`: hospitals on hosts of their own, from startup kits to a release."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from canal.cli import plan_options as options
from canal.cli.card import print_json, print_made
from canal.cli.flags import with_flags
from canal.cli.network import Accept, KeepHealthy

federation_app = typer.Typer(no_args_is_help=True)
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]
_Kit = Annotated[Path, typer.Option(help="The admin's kit, as `provision` made it.")]
_Trust = Annotated[
    Literal["secure-sum", "trusted"],
    typer.Option(help="secure-sum: noise in shares, only the sum is seen. trusted: it is added."),
]
_Colluding = Annotated[
    int, typer.Option(help="t: sites that may tell their shares; of a secure sum.")
]


@federation_app.command()
def provision(
    *,
    out: Annotated[Path, typer.Argument(help="A new folder, for the kits.")],
    server: Annotated[str, typer.Option(help="Host name that all sites reach the server by.")],
    site: Annotated[list[str], typer.Option(help="Name of a site; once for each.")],
    admin: Annotated[str, typer.Option(help="E-mail address of whoever submits.")],
    port: Annotated[int, typer.Option(help="The server's one port; sites open none.")] = 8002,
    as_json: _Json = False,
) -> None:
    """Make a startup kit for every party, and the fingerprints to compare."""
    from canal.federation.provision import provision as make
    from canal.federation.provision import spoken

    kits = make(out, server, site, admin, port)
    if as_json:
        places = {"server": kits.server, "admin": kits.admin} | dict(kits.sites)
        print_json(
            {
                "kits": {name: str(path) for name, path in places.items()},
                "roster": dict(kits.roster),
                "expires": kits.expires,
            }
        )
        return
    typer.echo(f"One kit for each party in {kits.folder / 'kits'}; each goes to its owner alone.")
    typer.echo("Fingerprints of the sites, to be compared by phone with those in each kit:\n")
    for name, digits in kits.roster.items():
        typer.echo(f"  {name}\n    {spoken(digits)}")
    typer.echo(
        f"\nCertificates end on {kits.expires[:10]}. Keep {kits.folder / 'authority'} away from "
        "everyone, or destroy it: whoever has it can pass for any party.\n"
        "Each site fills in canal/site.toml, gives its ledger a budget, and runs ./start."
    )


@federation_app.command()
def identity(
    folder: Annotated[Path, typer.Argument(help="The site's own folder, with its site.toml.")],
    as_json: _Json = False,
) -> None:
    """Show a site's fingerprint; make an identity where site.toml names none that is there.

    The kit's certificate serves, but whoever provisioned could pass for the site. One that is made
    here is known to nobody: leave `certificate` and `key` out of site.toml, and have every other
    site put its fingerprint into its roster.json.
    """
    from canal.federation.identity import CERTIFICATE, KEY, Identity
    from canal.federation.provision import spoken
    from canal.federation.settings import SiteSettings

    site = SiteSettings.read(folder)
    if (site.certificate, site.key) == (CERTIFICATE, KEY):
        Identity.create(folder, site.name)
    found = Identity.load(site.path(site.certificate), site.path(site.key)).fingerprint
    if as_json:
        print_json({"site": site.name, "fingerprint": found})
    else:
        typer.echo(f"{site.name}\n  {spoken(found)}")


@federation_app.command("overlap-key")
def overlap_key(
    out: Annotated[Path, typer.Argument(help="A new file.")],
) -> None:
    """Draw a key for `overlap-digests`: one hospital does, and sends it to the others alone."""
    from canal.federation.keyed_digests import make_key

    make_key(out)
    typer.echo(
        f"{out}: for all hospitals, and for nobody else. Whoever has it and somebody's digests can "
        "ask of any image whether it is there."
    )


@federation_app.command("overlap-digests")
def overlap_digests(
    *,
    data: Annotated[Path, typer.Option(help="The folder of the hospital's images.")],
    init: Annotated[Path, typer.Option(help="Folder of the shared initialisation.")],
    key: Annotated[Path, typer.Option(help="That the hospitals share, of `overlap-key`.")],
    name: Annotated[str, typer.Option(help="Of the hospital.")],
    size: Annotated[
        int, typer.Option(help="To fill up to, more than anybody has; public, the same at all.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write, for whoever compares.")],
    split: Annotated[Path | None, typer.Option(help="A split; without it, all cases.")] = None,
    keep_healthy: KeepHealthy = True,
    accept: Accept = None,
) -> None:
    """Write keyed digests of a hospital's images, to see whether anybody is at two hospitals."""
    from canal.cli.images import Images
    from canal.data.overlap import digests
    from canal.federation.keyed_digests import KeyedDigests, read_key

    shared = read_key(key)
    images = Images(init, keep_healthy=keep_healthy, accept=accept or ())
    found = digests(images.load(data, split, name))
    KeyedDigests.of(name, images.made.initialisation, found, shared, size).write(out)
    typer.echo(f"{out}: {size} keyed digests, filled up; for whoever compares, without the key")


@federation_app.command("overlap-compare")
def overlap_compare(
    digests: Annotated[list[Path], typer.Argument(help="A file of each hospital.")],
    as_json: _Json = False,
) -> None:
    """Compare hospitals' keyed digests; exit code 1 if any two have an image in common."""
    from canal.federation.keyed_digests import KeyedDigests, compare

    found = compare([KeyedDigests.read(path) for path in digests])
    if as_json:
        print_json([{"sites": list(pair), "images": count} for pair, count in found.items()])
    else:
        for (one, other), count in found.items():
            typer.echo(f"{one} and {other}: {count or 'no'} image{'' if count == 1 else 's'}")
        typer.echo("This is exact, and tells of patients: for the hospitals, not for a card.")
    if any(found.values()):
        raise typer.Exit(1)


@federation_app.command()
@with_flags(wanted=options.feature_plan())
def simulate(
    *,
    teacher: Annotated[list[Path], typer.Option(help="A teacher's folder; once for each site.")],
    queries: Annotated[Path, typer.Option(help="The folder of the recipient's images.")],
    init: Annotated[Path, typer.Option(help="Folder of the shared initialisation.")],
    out: Annotated[Path, typer.Option(help="Where to publish; a stopped run goes on there.")],
    split: Annotated[Path | None, typer.Option(help="A split; without it, all cases.")] = None,
    part: Annotated[str, typer.Option(help="Part of the split to ask about.")] = "recipient",
    work: Annotated[
        Path | None, typer.Option(help="Folder of the rehearsal; OUT.rehearsal if not given.")
    ] = None,
    trust: _Trust = "secure-sum",
    colluding: _Colluding = 1,
    epsilon: options.Epsilon = 8,
    delta: options.Delta = 1e-5,
    preset: options.Preset = "honest",
    images_per_person: Annotated[
        int, typer.Option(help="Most query images of one person; 0: as their records say.")
    ] = 0,
    accept: Accept = None,
    seed: Annotated[int, typer.Option(help="Of the noise; a rehearsal protects nobody.")] = 0,
    as_json: _Json = False,
    wanted: dict[str, Any],
) -> None:
    """Rehearse a federation on this machine, one process a site, in FLARE's simulator."""
    import shutil

    from canal.features.store import Release
    from canal.federation.job import simulate as run
    from canal.federation.rehearsal import prepare

    order = {
        "queries": str(queries.resolve()),
        "init": str(init.resolve()),
        "out": str(out.resolve()),
        "split": "" if split is None else str(split.resolve()),
        "part": part,
        "trust": trust,
        "colluding": colluding,
        "preset": preset,
        "train": False,
        "seed": seed,
        "images_per_person": images_per_person,
        "accept": list(accept or ()),
        "plan": {"epsilon": epsilon, "delta": delta} | wanted,
    }
    place = out.with_name(f"{out.name}.rehearsal") if work is None else work
    made = prepare(place.resolve(), teacher, order)
    # FLARE's own folder; what the sites remember is in theirs.
    shutil.rmtree(place / "flare", ignore_errors=True)
    _watch(out, lambda: run(place / "flare", made.sites, made.order))
    print_made(Release.open(out), out, as_json=as_json)


@federation_app.command()
def submit(
    order: Annotated[Path, typer.Argument(help="The order, order.toml, on the server's host.")],
    *,
    kit: _Kit,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is over.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait for one answer.")] = 600.0,
    as_json: _Json = False,
) -> None:
    """Send an order to a federation that is up. Submitted again, a stopped one goes on."""
    from canal.errors import FederationError
    from canal.federation.job import submit as send
    from canal.federation.job import wait as until_over
    from canal.federation.settings import Order
    from canal.release.store import open_release

    asked = Order.read(order)
    out = asked.path(asked.out)
    job = send(kit, str(order.resolve()), seconds=patience)
    if not wait:
        if as_json:
            print_json({"job": job})
        else:
            typer.echo(f"{job}\n`canal federation status --kit {kit} {job}` says how it stands.")
        return
    found = _watch(out, lambda: until_over(kit, job))
    if not found.complete:
        raise FederationError(
            f"the order was not carried out ({found.state}): {found.reason or 'no reason given'}; "
            "submit it again and it goes on, nobody pays twice"
        )
    print_made(open_release(out), out, as_json=as_json)


@federation_app.command()
def status(
    job: Annotated[str, typer.Argument(help="A job; without it, who is connected.")] = "",
    *,
    kit: Annotated[Path | None, typer.Option(help="The admin's kit.")] = None,
    site: Annotated[
        Path | None, typer.Option(help="A site's own folder: what it took part in, and paid.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Say who is connected, how a job stands, or what a site took part in."""
    from dataclasses import asdict

    from canal.errors import FederationError

    if site is not None:
        _site_status(site, as_json=as_json)
        return
    if kit is None:
        raise FederationError("say whose: --kit for the admin's, or --site for a site's own folder")
    from canal.federation.job import connected
    from canal.federation.job import status as ask

    if not job:
        sites = connected(kit)
        if as_json:
            print_json({"connected": list(sites)})
        else:
            typer.echo(f"connected: {', '.join(sites) or 'nobody'}")
        return
    found = ask(kit, job)
    if as_json:
        print_json(asdict(found))
        return
    came_of = "done" if found.complete else found.reason
    typer.echo(f"{found.state}{f': {came_of}' if came_of else ''}")
    typer.echo(f"connected: {', '.join(found.sites) or 'nobody'}")


def _site_status(folder: Path, *, as_json: bool) -> None:
    from canal.federation.history import history

    told = history(folder)
    if as_json:
        print_json(told)
        return
    for entry in told["sessions"]:
        what = {"adapters": "rounds", "features": "queries"}.get(entry["kind"], "times")
        typer.echo(
            f"{entry['session'][:12]}  {entry['state']:<9} {entry['times']:>6} {what}  "
            f"{entry['trust']}, epsilon {entry['epsilon']:g} ({entry['unit']})"
        )
    if not told["sessions"]:
        typer.echo("This site took part in nothing yet.")
    for balance in told["ledger"]:
        typer.echo(
            f"{balance['cohort']}: epsilon {balance['spent']:.3g} of {balance['budget']:g} spent "
            f"({balance['unit']})"
        )


def _watch(out: Path, work: Callable[[], Any]) -> Any:
    """Do something long, with a bar over what the aggregator notes of it, if it is on this host."""
    from canal.cli.progress import counting
    from canal.federation.aggregate import how_far

    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    seen = 0
    with counting("releasing", None) as progress:
        thread.start()
        while thread.is_alive():
            thread.join(timeout=0.5)
            done, _ = how_far(out)
            progress(max(0, done - seen))
            seen = max(seen, done)
    if failure:
        raise failure[0]
    return result[0]
