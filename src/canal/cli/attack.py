"""`canal attack`: what an adversary gets from a release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from canal.cli.individual import show
from canal.cli.network import load_part
from canal.data.case import ACCEPTABLE
from canal.learning.settings import DataSettings

if TYPE_CHECKING:
    from canal.attacks.lira import Kind
    from canal.attacks.roc import Finding
    from canal.data.arrays import Arrays
    from canal.features.ensemble import Ensemble
    from canal.features.store import Release
    from canal.gradients.store import AdapterRelease

attack_app = typer.Typer(no_args_is_help=True)
_Release = Annotated[Path, typer.Argument(help="The release folder.")]
_Teacher = Annotated[list[Path], typer.Option(help="A teacher's folder; once for each site.")]
_Queries = Annotated[Path, typer.Option(help="The folder of the images it was asked about.")]
_PATIENTS = "patient level"
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
    release: Annotated[
        Path, typer.Argument(help="The release folder, of features or of gradient rounds.")
    ],
    *,
    teacher: Annotated[
        list[Path] | None,
        typer.Option(
            help="A teacher's folder; once for each site. Of features only.", show_default=False
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the images it was asked about; with --split, of all images."
        ),
    ] = None,
    split: _Split = None,
    part: _Part = "recipient",
    others: _Others = None,
    level: Annotated[
        Literal["image", "patient"],
        typer.Option(help="Of an image among the queries, or of a patient in a site's cohort."),
    ] = "image",
    site: Annotated[
        str, typer.Option(help="Whose cohort; of features only.", rich_help_panel=_PATIENTS)
    ] = "site-1",
    cohort: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of that site's images; of gradient rounds, one for each site, in the "
            "order of the release. Or the parts of the split.",
            rich_help_panel=_PATIENTS,
            show_default=False,
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="The shared initialisation.", rich_help_panel=_PATIENTS),
    ] = None,
    shadows: Annotated[
        int,
        typer.Option(
            help="Teachers to train; even. With about 4 for each canary the attack has power; with "
            "fewer than there are canaries it has little. Of ordinary patients and teachers that "
            "see each of them a few times, hundreds may not be enough: the control without noise, "
            "which is printed, says so. Gradient rounds need none.",
            rich_help_panel=_PATIENTS,
        ),
    ] = 64,
    canaries: Annotated[
        int,
        typer.Option(
            help="Patients unlike all others who are put into the cohort, each into half of the "
            "runs, and looked for; made of --others. 0 looks for the patients who are there.",
            rich_help_panel=_PATIENTS,
        ),
    ] = 0,
    canary: Annotated[
        Literal["scrambled", "inverted", "negative", "ordinary"],
        typer.Option(help="What makes them unlike others.", rich_help_panel=_PATIENTS),
    ] = "scrambled",
    runs: Annotated[
        Path,
        typer.Option(
            help="Where shadows are kept; a stopped attack goes on there.",
            rich_help_panel=_PATIENTS,
        ),
    ] = Path("shadows"),
    seed: Annotated[
        int,
        typer.Option(
            help="Of canaries, of who is in which run, and of noise that is played.",
            rich_help_panel=_PATIENTS,
        ),
    ] = 0,
    private: Annotated[
        Path | None,
        typer.Option(
            help="A JSON file for the hospital alone, outside of the run: what an attack on its "
            "own patients, without --canaries, found.",
            rich_help_panel=_PATIENTS,
            show_default=False,
        ),
    ] = None,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Who is in it? The best guess of one who knows the mechanism and the other teachers.

    At patient level the attack is also made where there is no noise, on the same evidence: if it
    finds nobody there either, that it fails on the release shows nothing. What it finds of a
    hospital's own patients has no noise; it is shown at a terminal, and kept with --private.
    """
    from canal.attacks import individual
    from canal.errors import InvalidValueError
    from canal.release.registry import of_kind
    from canal.release.store import open_release

    if level == "patient" and not canaries and (out is not None or as_json):
        raise InvalidValueError(
            f"{'--json' if out is None else f'--out {out}'} is for the public, and what is found "
            "of a hospital's own patients has no noise, their number included; keep it with "
            "--private FILE, or look for --canaries instead"
        )
    if private is not None:
        if level == "image" or canaries:
            raise InvalidValueError(
                f"--private {private} would be empty: only --level patient without --canaries "
                "looks for a hospital's own patients; say --out"
            )
        individual.check_place(private, release, out)
    people = _People(site, tuple(cohort or ()), init, shadows, canaries, canary, runs, seed)
    given = _Given(level, teacher, queries, split, part, others)
    opened = open_release(release)
    found = of_kind(_MEMBERSHIP, opened, "membership attack")(opened, given, people)
    if not found.individual:
        _tell(found.to_json(), out, as_json=as_json)
        return
    if private is not None:
        individual.write(private, {"found": found.to_json()})
    show(found.words(), private)
    if private is not None:
        typer.echo(private)


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
        from canal.features.ensemble import load_ensemble
        from canal.features.store import Release

        if others is None and split is None:
            raise InvalidValueError(
                "an attack compares with other images; give --others or --split"
            )
        self.release: Release = Release.open(release)
        self.ensemble: Ensemble = load_ensemble(teacher)
        self.teachers = dict(zip(self.ensemble.cohorts, teacher, strict=True))
        channels, side = self.ensemble.images[:2]
        # Whoever made the release decided what to accept.
        self.settings = DataSettings(side, channels, accept=tuple(ACCEPTABLE))
        self.queries, self.split = queries, split
        self.asked: Arrays = load_part(queries, split, part, self.settings, unlabelled=True)
        self.others: Arrays = (
            load_part(queries, split, "test", self.settings)
            if others is None
            else load_part(others, None, "", self.settings, unlabelled=True)
        )


def _match(scene: _Scene) -> Finding:
    from canal.attacks.membership import match
    from canal.attacks.roc import Finding, features_mu
    from canal.cli.progress import counting

    images = len(scene.teachers) * (len(scene.asked.ids) + len(scene.others.ids))
    with counting("attacking", images) as progress:
        roc = match(scene.release, scene.ensemble, scene.asked, scene.others, progress)
    mu = features_mu(scene.release, "image")
    return Finding("membership of images", scene.release.manifest.digest, roc, "image", mu)


@dataclass(frozen=True)
class _People:
    """Whose membership is asked about, and how."""

    site: str
    cohorts: tuple[Path, ...]
    init: Path | None
    shadows: int
    canaries: int
    canary: Kind
    runs: Path
    seed: int

    @property
    def given(self) -> list[str]:
        """Flags that were given, and mean nothing where images are asked about."""
        flags = {"--canaries": self.canaries, "--cohort": self.cohorts, "--init": self.init}
        return [flag for flag, value in flags.items() if value]

    @property
    def start(self) -> Path:
        """The initialisation."""
        from canal.errors import InvalidValueError

        if self.init is None:
            raise InvalidValueError("shadows and rounds start where the release did; give --init")
        return self.init

    def planted(self, others: Arrays) -> Arrays:
        """Canaries, of images of others."""
        from canal.attacks.lira import plant

        return plant(others, self.canary, self.canaries, seed=self.seed)


@dataclass(frozen=True)
class _Given:
    """What was given beside the release; each kind takes some of it."""

    level: str
    teacher: list[Path] | None
    queries: Path | None
    split: Path | None
    part: str
    others: Path | None


def _of_features(release: Release, given: _Given, people: _People) -> Finding:
    from canal.errors import InvalidValueError

    if not given.teacher or given.queries is None:
        raise InvalidValueError(
            "a release of features is attacked by one who knows all teachers and all queries; "
            "give --teacher for every site, and --queries"
        )
    if given.level == "image" and (mine := people.given):
        raise InvalidValueError(
            f"{' and '.join(mine)} {'is' if len(mine) == 1 else 'are'} of an attack on "
            "patients; say --level patient, or leave "
            f"{'it' if len(mine) == 1 else 'them'} out"
        )
    scene = _Scene(
        release.path, given.teacher, given.queries, given.split, given.part, given.others
    )
    return _match(scene) if given.level == "image" else _ask_shadows(scene, people)


def _of_rounds(release: AdapterRelease, given: _Given, people: _People) -> Finding:
    from canal.errors import InvalidValueError

    if given.level != "patient" or given.teacher:
        raise InvalidValueError(
            f"{release.path} is a release of gradient rounds: nobody's images are asked about, and "
            "there are no teachers; say --level patient, and leave --teacher out"
        )
    return _look_at_sums(release, people, given.queries, given.split, given.others)


# Who finds out whose membership, by the kind of a release.
_MEMBERSHIP: dict[str, Callable[..., Finding]] = {
    "features": _of_features,
    "adapters": _of_rounds,
}


def _ask_shadows(scene: _Scene, people: _People) -> Finding:
    from canal.attacks.lira import FEWEST, Pool, Shadows, train_shadows
    from canal.attacks.membership import Target, attack_canaries, attack_patients
    from canal.cli.progress import counting, training
    from canal.errors import InvalidValueError
    from canal.learning.runs import read_training

    count, site = people.shadows, people.site
    # Every patient is in one shadow of each pair, and out of the other.
    if count % 2 or count < 2 * FEWEST:
        raise InvalidValueError(
            f"--shadows {count} must be even and at least {2 * FEWEST}, so that each patient is in "
            f"{FEWEST} of them and out of {FEWEST}; nothing was trained"
        )
    if site not in scene.teachers:
        raise InvalidValueError(f"--site must be one of {', '.join(scene.teachers)}, not {site!r}")
    init = people.start
    if len(people.cohorts) > 1 or (not people.cohorts and scene.split is None):
        raise InvalidValueError("whose patients? Give --cohort once, or --split")
    split = None if people.cohorts else scene.split
    members = load_part((*people.cohorts, scene.queries)[0], split, site, scene.settings)
    pool = (
        Pool.of_canaries(members, people.planted(scene.others))
        if people.canaries
        else Pool.of_both(members, scene.others)
    )
    halves = pool.halves(count, people.seed)
    settings = read_training(scene.teachers[site])
    with training(f"{count} shadows", count * settings.steps) as report:
        networks = train_shadows(
            people.runs,
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
        if people.canaries:
            return attack_canaries(target, shadows, people.seed)
        return attack_patients(
            target, scene.ensemble, site, pool, shadows, progress, seed=people.seed
        )


def _look_at_sums(
    release: AdapterRelease,
    people: _People,
    data: Path | None,
    split: Path | None,
    others: Path | None,
) -> Finding:
    import numpy as np

    from canal.attacks.membership import attack_rounds, gather
    from canal.cli.images import Images
    from canal.cli.progress import counting
    from canal.errors import InvalidValueError
    from canal.gradients.patients import Patients
    from canal.learning.teacher import load_initialisation

    images = Images(people.start, accept=ACCEPTABLE)
    names = release.manifest.participants["cohorts"]
    split = None if people.cohorts else split
    folders = people.cohorts if split is None or data is None else (data,) * len(names)
    if len(folders) != len(names):
        raise InvalidValueError(
            f"the patients of {', '.join(names)} took part; give --cohort for each of them, in "
            "this order, or --queries and --split"
        )
    if others is None and (split is None or data is None):
        raise InvalidValueError("an attack compares with other images; give --others or --split")
    outside = (
        images.load(others, None, "")
        if others is not None
        else images.load(folders[0], split, "test")
    )
    if people.canaries:
        outside = people.planted(outside)
    views = int(release.manifest.participants["views"])
    sites = [
        Patients(name, images.load(folder, split, name), views=views)
        for name, folder in zip(names, folders, strict=True)
    ]
    everybody = [*sites, Patients("others", outside, views=views)]
    inside = np.repeat([True] * len(sites) + [False], [len(each) for each in everybody])
    network, _ = load_initialisation(people.start)
    passes = len(release) * sum(each.passes for each in everybody)
    with counting("attacking", passes) as progress:
        evidence = gather(release, network, everybody, progress)
    canaries = ~inside if people.canaries else None
    return attack_rounds(release, evidence, inside, canaries, people.seed)


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
