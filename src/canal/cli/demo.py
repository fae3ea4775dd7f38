"""`canal demo`: the whole story on three invented hospitals, as commands that anyone can type.

The demo has no code of its own for any of it: it runs the commands that it writes to
`commands.txt`, in this process. Stopped, it goes on where it was.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = "commands.txt"
LOG = "log.txt"
SPLIT = "split.json"
HOSPITALS = ("endoscopy", "dermoscopy", "ultrasound")
# What is released: the preset, the allocation; each as if it were the only one.
RELEASES = {
    "uniform": ("paper", "uniform"),
    "canal": ("paper", "canal"),
    "honest": ("honest", "canal"),
}
NOISELESS = "noiseless"
ADAPTERS = "adapters"
TEST = 0.3
# Images that a patient has, on average, as they are invented.
VIEWS = 2


@dataclass(frozen=True)
class Chapter:
    """Some commands with one purpose.

    Args:
        title: that purpose.
        commands: as typed, without `canal` in front.
    """

    title: str
    commands: tuple[str, ...]


def demo(
    out: Annotated[Path, typer.Option(help="The folder for all of it.")] = Path("canal-demo"),
    images: Annotated[int, typer.Option(help="Images of the three hospitals.")] = 480,
    queries: Annotated[int, typer.Option(help="Images of the recipient.")] = 30,
    size: Annotated[int, typer.Option(help="Pixels a side.")] = 64,
    steps: Annotated[int, typer.Option(help="Of every training.")] = 220,
    rounds: Annotated[int, typer.Option(help="In which patients teach adapters.")] = 12,
    epsilon: Annotated[float, typer.Option(help="Asked of every release.")] = 8,
    seed: Annotated[int, typer.Option(help="Of images and trainings; noise has none.")] = 0,
) -> None:
    """Three hospitals, their teachers, five releases, eight students, an attack, a report."""
    from rich.console import Console

    story = chapters(
        images=images,
        queries=queries,
        size=size,
        steps=steps,
        rounds=rounds,
        epsilon=epsilon,
        seed=seed,
    )
    _claim(out, story)
    console = Console(highlight=False)
    started = time.monotonic()
    with contextlib.chdir(out):
        for number, chapter in enumerate(story, start=1):
            console.print(f"[bold]{number}/{len(story)}[/bold] {chapter.title}")
            for command in chapter.commands:
                _run(command)
        _print_summary(console)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    typer.echo(f"\n{minutes} min {seconds} s. What was typed is in {out / COMMANDS}; the report:")
    typer.echo(out / "report.html")


def chapters(
    *, images: int, queries: int, size: int, steps: int, rounds: int, epsilon: float, seed: int
) -> list[Chapter]:
    """The story, command by command."""
    source = f"--data data --split {SPLIT}"
    # A short training at the usual rate leaves a bottleneck that is the same for all images.
    pace = "--batch-size 8 --learning-rate 1.5e-3"
    training = f"--size {size} --steps {steps} {pace} --seed {seed}"
    teachers = " ".join(f"--teacher teachers/{site}" for site in HOSPITALS)
    asked = f"{teachers} --queries data --split {SPLIT}"
    cohorts = " ".join(f"--cohort {site}" for site in HOSPITALS)
    releases, students = [], {"alone": "--mode alone"}
    for name, (preset, allocation) in RELEASES.items():
        ledger = f"ledger-{name}.sqlite"
        budgets = {"patient": epsilon}
        if preset == "paper":
            budgets = {"paper": epsilon, "patient": patients_cost(epsilon, queries)}
        releases += [
            *(
                f"ledger budget {ledger} {cohorts} --unit {unit} --epsilon {budget:g}"
                for unit, budget in budgets.items()
            ),
            f"release create {asked} --init init --preset {preset} --allocation {allocation} "
            f"--epsilon {epsilon:g} --ledger {ledger} --out releases/{name}",
        ]
        students[name] = f"--release releases/{name}"
    releases.append(
        f"release create {asked} --init init --preset paper --allocation none --not-private "
        f"--out releases/{NOISELESS}"
    )
    stated = stated_patients(images, queries)
    taught = (
        f"ledger budget ledger-{ADAPTERS}.sqlite {cohorts} --unit membership --epsilon {epsilon:g}",
        f"adapters train {source} --init init --patients {stated} --rounds {rounds} "
        f"--epsilon {epsilon:g} --ledger ledger-{ADAPTERS}.sqlite --out releases/{ADAPTERS}",
    )
    students[ADAPTERS] = f"--release releases/{ADAPTERS} --mode adapters"
    students["noise-only"] = "--release releases/canal --mode noise-only"
    students[NOISELESS] = f"--release releases/{NOISELESS} --mode noiseless"
    students["pooled"] = "--mode pooled"
    attacked = ("canal", NOISELESS)
    return [
        Chapter(
            "Three hospitals, invented; a recipient with a few images of its own",
            (
                f"data synthetic data --count {images} --size {size} --seed {seed}",
                f"data synthetic others --count {images} --size {size} --seed {seed + 1}",
                f"data split data --partition site --test {TEST:g} --recipient {queries} "
                f"--seed {seed} --out {SPLIT}",
            ),
        ),
        Chapter(
            "One initialisation for all, trained on the recipient's images",
            (f"init {source} --base-channels 8 --out init {training}",),
        ),
        Chapter(
            "Each hospital trains its teacher; no image leaves it",
            tuple(
                f"teacher train {source} --cohort {site} --init init --out teachers/{site} "
                f"{training}"
                for site in HOSPITALS
            ),
        ),
        Chapter("The releases: clipped, averaged, noised once, charged", tuple(releases)),
        Chapter(
            f"Patients teach the shared network; about {stated} of them, as is stated",
            taught,
        ),
        Chapter(
            "The recipient's students, and the controls to compare with",
            tuple(
                f"student train {source} --init init {how} --out students/{name} {training}"
                for name, how in students.items()
            ),
        ),
        Chapter(
            "Everything is measured on images that nobody trained on",
            (
                f"teacher evaluate --teacher init {source} --json",
                *(f"teacher evaluate --teacher teachers/{name} {source}" for name in HOSPITALS),
                *(f"student evaluate --student students/{name} {source}" for name in students),
            ),
        ),
        Chapter(
            "An attack: is this image among the queries?",
            tuple(
                f"attack membership releases/{name} {asked} --others others "
                f"--out attacks/{name}.json"
                for name in attacked
            ),
        ),
        Chapter("The report", (f"report . {source}",)),
    ]


def patients_cost(epsilon: float, queries: int) -> int:
    """An epsilon that covers what the paper's release costs a patient: invented ones can have it.

    >>> patients_cost(8, 30)
    90
    """
    from canal.features.plan import Plan
    from canal.privacy.units import Participants

    people = Participants(len(HOSPITALS), queries)
    plan = Plan.preset("paper", epsilon=epsilon, participants=people, channels=128, grid=(4, 4))
    return 10 * math.ceil(plan.calibrate().guarantee.epsilon(plan.delta, "patient") / 10)


def stated_patients(images: int, queries: int) -> int:
    """How many patients the hospitals say that they have: a round number, of public ones alone.

    >>> stated_patients(480, 30)
    150
    """
    teaching = (1 - TEST) * images - queries
    return 10 * max(1, round(teaching / VIEWS / 10))


def _claim(out: Path, story: list[Chapter]) -> None:
    """Write down what will be typed, or see that this folder is for the same."""
    from canal.errors import InvalidValueError
    from canal.files import replace_file

    lines = []
    for chapter in story:
        lines += [f"# {chapter.title}", *(f"canal {command}" for command in chapter.commands), ""]
    content = "\n".join(lines)
    path = out / COMMANDS
    if path.is_file():
        if path.read_text() != content:
            raise InvalidValueError(f"{out} holds another demo; give another --out, or remove it")
    elif out.exists() and any(out.iterdir()):
        raise InvalidValueError(f"{out} is not empty; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    replace_file(path, content.encode())


def _run(command: str) -> None:
    """One command, as the command line would; what it says goes to the log."""
    from canal.cli import app

    words = shlex.split(command)
    if words[0] == "data" and Path(SPLIT).is_file():  # the last of those; all are made
        return
    with _logged(command):
        code = app(words, standalone_mode=False)
    if code:
        typer.echo(f"stopped at `canal {command}`; type the demo again, and it goes on", err=True)
        raise typer.Exit(code)


@contextlib.contextmanager
def _logged(command: str) -> Iterator[None]:
    with Path(LOG).open("a") as log:
        log.write(f"$ canal {command}\n")
        with contextlib.redirect_stdout(log):
            yield


def _print_summary(console: Console) -> None:
    """How good every student is, what its release costs a patient, and what an attacker got."""
    from rich.table import Table

    from canal.features.forecast import forecast
    from canal.release.digits import short, upwards
    from canal.report.arms import Arms
    from canal.report.benefit import between, points, verdicts_of
    from canal.report.protection import relations
    from canal.report.published import PublishedFeatures
    from canal.report.run import Run

    run = Run.read(Path())
    arms = Arms.of(run)
    auc = {attack.release: f"{attack.auc:.2f}" for attack in run.attacks}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("student", no_wrap=True)
    for name in ("Dice", "less alone", "patient ε", "paper ε", "AUC"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in arms.students:
        alone = arms.alone(arm)
        found = None if alone in (None, arm) else arm.less(alone)
        release = arm.published if arm.listened else None
        promised = release.units if release else ()
        table.add_row(
            arm.name,
            points(arm.dice),
            f"{points(found.mean, signed=True)} ({between(found)})" if found else "",
            *(
                short(upwards(release.epsilon(unit))) if release and unit in promised else ""
                for unit in (release.patient if release else "patient", "paper")
            ),
            auc.get(release.digest, "") if release else "",
        )
    console.print()
    console.print(table)
    console.print()
    if arms.main is not None and isinstance(arms.main.published, PublishedFeatures):
        for sentence in verdicts_of(arms.main, arms):
            console.print(sentence)
        console.print(forecast(arms.main.published.plan).words()[0])
    console.print()
    console.print(
        "Dice in hundredths, with the 95 % interval of the difference over test cases.\n"
        "ε, smaller is safer: what the release costs a patient of a hospital, and what the paper "
        "counts."
    )
    for each in run.adapters:
        console.print(f"{each.name}: {relations(each)}.")
    console.print("AUC of the attack: 0.5 is a coin, 1 finds every query image.")
