"""`canal attack`: what an adversary gets from a release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from canal.cli.network import load_part
from canal.teachers.settings import DataSettings

if TYPE_CHECKING:
    from canal.attacks.finding import Finding
    from canal.data.cache import Arrays
    from canal.release.ensemble import Ensemble
    from canal.release.store import Release

attack_app = typer.Typer(no_args_is_help=True, help="Attack a release, to see what it gives away.")
_Release = Annotated[Path, typer.Argument(help="The release folder.")]
_Teacher = Annotated[list[Path], typer.Option(help="A teacher's folder; once for each site.")]
_Queries = Annotated[Path, typer.Option(help="The folder of the images it was asked about.")]
_Split = Annotated[Path | None, typer.Option(help="A split; without it, all cases.")]
_Part = Annotated[str, typer.Option(help="Part of the split that was asked about.")]
_Others = Annotated[
    Path | None,
    typer.Option(help="A folder of such images that nobody trained on; or the test part."),
]
_Out = Annotated[Path | None, typer.Option(help="A JSON file, for the report.")]
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@attack_app.command()
def membership(
    release: _Release,
    *,
    teacher: _Teacher,
    queries: _Queries,
    split: _Split = None,
    part: _Part = "recipient",
    others: _Others = None,
    level: Annotated[
        Literal["image", "patient"],
        typer.Option(help="Of an image among the queries, or of a patient in a site's cohort."),
    ] = "image",
    site: Annotated[
        str, typer.Option(help="Whose cohort.", rich_help_panel="patient level")
    ] = "site-1",
    cohort: Annotated[
        Path | None,
        typer.Option(
            help="Folder of that site's images; or its part of the split.",
            rich_help_panel="patient level",
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="The shared initialisation.", rich_help_panel="patient level"),
    ] = None,
    shadows: Annotated[
        int, typer.Option(help="Teachers to train; even.", rich_help_panel="patient level")
    ] = 16,
    runs: Annotated[
        Path,
        typer.Option(
            help="Where they are kept; a stopped attack goes on there.",
            rich_help_panel="patient level",
        ),
    ] = Path("shadows"),
    seed: Annotated[
        int, typer.Option(help="Of who is in which shadow.", rich_help_panel="patient level")
    ] = 0,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Who is in it? The best guess of one who knows the mechanism and the other teachers."""
    scene = _Scene(release, teacher, queries, split, part, others)
    found = (
        _match(scene)
        if level == "image"
        else _ask_shadows(scene, site, cohort, init, shadows, runs, seed)
    )
    _tell(found.to_json(), out, as_json=as_json)


@attack_app.command()
def inversion(
    release: _Release,
    *,
    teacher: _Teacher,
    queries: _Queries,
    split: _Split = None,
    part: _Part = "recipient",
    others: _Others = None,
    steps: Annotated[int, typer.Option(help="Of the decoder's training.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the decoder and its noise.")] = 0,
    out: _Out = None,
    pictures: Annotated[
        Path | None, typer.Option(help="A PNG: victims, and what the decoder made of them.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """What does the image look like? A decoder that was trained against this very noise."""
    from canal.attacks.inversion import invert
    from canal.cli.progress import counting

    scene = _Scene(release, teacher, queries, split, part, others)
    with counting("training the decoder", steps) as progress:
        found = invert(
            *(scene.release, scene.ensemble, scene.asked, scene.others),
            steps=steps,
            seed=seed,
            progress=progress,
        )
    if pictures is not None:
        found.write_pictures(pictures, scene.asked)
    _tell(found.to_json(), out, as_json=as_json)


class _Scene:
    """What every attack looks at."""

    def __init__(
        self,
        release: Path,
        teacher: list[Path],
        queries: Path,
        split: Path | None,
        part: str,
        others: Path | None,
    ) -> None:
        from canal.errors import InvalidValueError
        from canal.release.ensemble import load_ensemble
        from canal.release.store import Release

        if others is None and split is None:
            raise InvalidValueError(
                "an attack compares with other images; give --others or --split"
            )
        self.release: Release = Release.open(release)
        self.ensemble: Ensemble = load_ensemble(teacher)
        self.teachers = dict(zip(self.ensemble.cohorts, teacher, strict=True))
        self.settings = DataSettings(size=self.ensemble.images[1], channels=self.ensemble.images[0])
        self.queries, self.split = queries, split
        self.asked: Arrays = load_part(queries, split, part, self.settings, unlabelled=True)
        self.others: Arrays = (
            load_part(queries, split, "test", self.settings)
            if others is None
            else load_part(others, None, "", self.settings, unlabelled=True)
        )


def _match(scene: _Scene) -> Finding:
    from canal.attacks.finding import Finding, features_mu
    from canal.attacks.matching import match
    from canal.cli.progress import counting

    images = len(scene.teachers) * (len(scene.asked.ids) + len(scene.others.ids))
    with counting("attacking", images) as progress:
        roc = match(scene.release, scene.ensemble, scene.asked, scene.others, progress)
    mu = features_mu(scene.release, "image")
    return Finding("membership of images", scene.release.manifest.digest, roc, "image", mu)


def _ask_shadows(
    scene: _Scene,
    site: str,
    cohort: Path | None,
    init: Path | None,
    count: int,
    runs: Path,
    seed: int,
) -> Finding:
    from canal.attacks.lira import FEWEST, Shadows
    from canal.attacks.patients import Target, attack_patients
    from canal.attacks.shadows import Pool, train_shadows
    from canal.cli.progress import counting, training
    from canal.errors import InvalidValueError
    from canal.teachers.folder import read_training

    # Every patient is in one shadow of each pair, and out of the other.
    if count % 2 or count < 2 * FEWEST:
        raise InvalidValueError(
            f"--shadows {count} must be even and at least {2 * FEWEST}, so that each patient is in "
            f"{FEWEST} of them and out of {FEWEST}; nothing was trained"
        )
    if site not in scene.teachers:
        raise InvalidValueError(f"--site must be one of {', '.join(scene.teachers)}, not {site!r}")
    if init is None:
        raise InvalidValueError("shadows start where the teachers did; give --init")
    if cohort is None and scene.split is None:
        raise InvalidValueError("whose patients? Give --cohort, or --split")
    split = scene.split if cohort is None else None
    members = load_part(cohort or scene.queries, split, site, scene.settings)
    pool = Pool.of_both(members, scene.others)
    halves = pool.halves(count, seed)
    settings = read_training(scene.teachers[site])
    with training(f"{count} shadows", count * settings.steps) as report:
        networks = train_shadows(
            runs,
            init,
            pool,
            halves,
            settings,
            lambda number, progress: report(progress.among(number, count)),
        )
    target = Target.of(scene.release, scene.asked)
    images = (len(networks) + len(scene.teachers) - 1) * len(scene.asked.ids)
    with counting("attacking", images) as progress:
        shadows = Shadows(target.features(networks, progress), halves)
        return attack_patients(target, scene.ensemble, site, pool, shadows, progress)


def _tell(found: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    import json

    from canal.files import replace_file

    text = json.dumps(found, indent=1)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, f"{text}\n".encode())
    if as_json:
        typer.echo(text)
        return
    for sentence in found["words"]:
        typer.echo(sentence)
    if out is not None:
        typer.echo(out)
