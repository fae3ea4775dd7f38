"""Does it help? Dice of every arm, and what can be told of their differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from canal.release.digits import number
from canal.release.page import bullets, code, note, section, table, text
from canal.report.arms import Arm, Arms
from canal.report.forest import Scale, whiskers
from canal.report.protection import relations
from canal.report.scores import DRAWS, Difference

TITLE = "Does it help?"


def render(arms: Arms) -> str:
    """The section."""
    if not arms.measured:
        return section(
            TITLE,
            "<p>No network of this run was measured; "
            + code("canal student evaluate --student FOLDER --data DIR --split FILE")
            + " measures one.</p>",
        )
    return section(TITLE, *_content(arms), style="wide long")


def points(share: float, *, signed: bool = False) -> str:
    """Dice as people write it: in hundredths, to one decimal.

    >>> points(0.71234), points(-0.0004, signed=True), points(-0.012, signed=True)
    ('71.2', '0.0', '−1.2')
    """
    written = f"{100 * share:+.1f}" if signed else f"{100 * share:.1f}"
    return written.lstrip("+-") if float(written) == 0 else written.replace("-", "−")


def between(found: Difference) -> str:
    """Its interval."""
    return f"{points(found.low)} to {points(found.high)}"


def verdicts(arms: Arms) -> Iterator[str]:
    """One sentence for every student of a release, against each that it must beat."""
    for arm in arms.students:
        yield from verdicts_of(arm, arms)


def verdicts_of(arm: Arm, arms: Arms) -> Iterator[str]:
    """Against the student alone, that of mere noise, and that of an even spread."""
    if not arm.listened:
        return
    rivals = [(arms.alone(arm), "alone"), (arms.noise_only(arm), "noise only")]
    if arm.learned:
        rivals.append((arms.uniform(arm), "uniform"))
    for rival, called in rivals:
        found = None if rival is None else arm.less(rival)
        if found is not None:
            yield verdict(arm.name, called, found)


def verdict(name: str, rival: str, found: Difference) -> str:
    """What these images tell, and no more."""
    images = f"these {number(found.images)} images" if found.images > 1 else "this one image"
    told = {
        "better": f"better on {images}.",
        "worse": f"worse on {images}.",
        "open": f"no difference can be told from {images}.",
    }
    return (
        f"{name} − {rival}: {points(found.mean, signed=True)} points "
        f"({between(found)}): {told[found.verdict]}"
    )


def _content(arms: Arms) -> Iterable[str]:
    # Teachers and the initialisation may be far below; the axis is for what is compared.
    compared = arms.students or arms.measured
    scale = Scale.around([end for arm in compared for end in (*arm.interval, arm.dice)])
    baseline = next((arm for arm in arms.students if arm.mode == "alone"), None)
    rows, styles = [], []
    for index, arm in enumerate(arms.measured):
        alone = None if baseline is None else arms.alone(arm)
        title = f"Dice of {arm.name}"
        drawing = whiskers(
            *(f"arm-{index}", title, arm.dice, arm.interval, scale),
            None if alone is None else alone.dice,
        )
        low, high = arm.interval
        dice = f"{points(arm.dice)}<small>{points(low)} to {points(high)}</small>"
        rows.append((_named(arm), drawing, dice, _against(arm, alone)))
        styles.append("" if arm.is_student else "lighter")
    rows.append(("", scale.axis(), "", ""))
    head = ("Network", "Dice, with 95 % interval", "Dice", "Minus alone")
    yield table(
        *(head, rows),
        numbers=(2, 3),
        plots=(1,),
        rows_style=(*styles, "last"),
        style="reflow forest",
    )
    told = [found for arm in arms.students if (found := list(verdicts_of(arm, arms)))]
    if told:
        yield '<div class="told">' + bullets(_said(*each) for each in told) + "</div>"
    if baseline is None:
        missing = code("canal student train --mode alone")
        yield f"<p>No student learned alone, to be compared with; {missing} makes one.</p>"
    yield note(_small_print(arms))
    for network in arms.unmeasured:
        if network.role == "student":
            yield (
                f'<p class="note">{code(network.where)} was not measured; '
                + code(f"canal student evaluate --student {network.where} --data DIR --split FILE")
                + " does.</p>"
            )


def _said(first: str, *rest: str) -> str:
    return text(first) + "".join(f"<small>{text(sentence)}</small>" for sentence in rest)


def _named(arm: Arm) -> str:
    published = arm.published if arm.learned else None
    if published is None:
        return escape(arm.name)
    if published.stamp:
        small = '<small class="mark">not private: seeded noise</small>'
    else:
        small = f"<small>{escape(relations(published))}</small>" if relations(published) else ""
    return escape(arm.name) + small


def _against(arm: Arm, alone: Arm | None) -> str:
    if alone is None or alone.network is arm.network:
        return "–"
    found = arm.less(alone)
    return (
        "–"
        if found is None
        else f"{points(found.mean, signed=True)}<small>{between(found)}</small>"
    )


def _small_print(arms: Arms) -> str:
    counts = sorted({arm.images for arm in arms.measured})
    images = " or ".join(number(count) for count in counts)
    seeds = {arm.network.training.get("seed") for arm in arms.students}
    seeds.discard(None)
    once = (
        "Every student was trained once, from one seed: the intervals are over test cases only, "
        "and how far another seed would move a mean was not measured."
        if len(seeds) <= 1
        else "Students have several seeds, each with a row of its own; intervals are over test "
        "images only."
    )
    return (
        f"Mean Dice of {images} test images, in hundredths; 95 % bootstrap intervals over "
        "the people on them. "
        "The dashed line is the student alone; an arrow is beyond the axis. Differences are "
        "paired: both networks on the same images, which are drawn "
        f"{number(DRAWS)} times with replacement. {once}"
    )
