"""Noise: how it is spread over channels, and what more queries with it would cost."""

from __future__ import annotations

from collections.abc import Iterator

from canal.features.statement import WEIGHTS
from canal.release.chart import Point, lines, scatter
from canal.release.digits import number
from canal.release.page import figure, note, section
from canal.report.arms import Arms, main_features
from canal.report.costs import OFTEN, ONCE, PATIENT, Training, epsilon_by_queries
from canal.report.published import PublishedFeatures
from canal.report.run import Run
from canal.report.style import CROSS, DOT, legend

TITLE = "Noise, importance and queries"


def render(run: Run, arms: Arms) -> str:
    """The section; nothing without noise."""
    chosen = main_features(run, arms)
    if chosen is None or not chosen.noisy:
        return ""
    charts = ("".join(_spread(run, chosen)), "".join(_queries(chosen, arms)))
    if not any(charts):
        return ""
    content = "".join(f"<div>{each}</div>" for each in charts if each)
    return section(TITLE, f'<div class="charts">{content}</div>', style="wide")


def _spread(run: Run, chosen: PublishedFeatures) -> Iterator[str]:
    compared = {chosen.name: chosen}
    even = chosen.evenly(run.releases)
    if even is not None:
        compared[even.name] = even
    groups = {name: _points(each) for name, each in compared.items()}
    groups = {name: points for name, points in groups.items() if points}
    if not groups:
        return
    filled = chosen.plan.allocation == "canal"
    title = "More important channels get less noise" if filled else "Noise on each channel"
    x_name = f"weight of the channel ({WEIGHTS[chosen.plan.weight]})"
    yield figure(title, scatter("noise", title, groups, x_name, "σ, noise on the mean"))
    marks = (("dots", DOT), ("crosses", CROSS))
    if len(groups) > 1:
        yield legend((*mark, name) for mark, name in zip(marks, groups, strict=True))
    lost = sum(
        len(each.release.manifest.mechanism["weights"]) - len(_points(each))
        for each in compared.values()
    )
    yield note(
        "One mark for each published channel; both axes are logarithmic."
        + (f" {number(lost)} channels of weight 0 are not drawn." if lost else "")
    )


def _points(published: PublishedFeatures) -> list[Point]:
    mechanism = published.release.manifest.mechanism
    pairs = zip(mechanism["weights"], mechanism["sigma"], strict=True)
    return [(weight, sigma) for weight, sigma in pairs if weight > 0 and sigma > 0]


def _queries(chosen: PublishedFeatures, arms: Arms) -> Iterator[str]:
    training = Training.of(arms.main)
    found = epsilon_by_queries(chosen, training)
    drawn: dict[str, list[Point]] = {}
    for name in (OFTEN, ONCE, PATIENT):
        line = [(row["queries"], row.get(name)) for row in found]
        whole = [(float(x), y) for x, y in line if x is not None and y is not None]
        if len(whole) == len(found) > 1:
            drawn[name] = whole
    if not drawn:
        return
    title = f"What queries cost with this noise: {chosen.name}"
    queries = chosen.plan.participants.queries
    chart = lines(
        *("queries", title, drawn, "queries answered, N", "ε, smaller is safer"),
        (queries, f"this release: {number(queries)}"),
        styles={OFTEN: "often", ONCE: "once", PATIENT: "patient"},
    )
    yield figure(title, chart)
    yield note(_caption(chosen, training))


def _caption(chosen: PublishedFeatures, training: Training | None) -> str:
    plan = chosen.plan
    fixed = (
        f"Only N varies. Held fixed are the noise of every channel and statistic, the "
        f"{number(len(chosen.release.channels))} channels, {number(plan.participants.teachers)} "
        f"teachers, δ = {number(plan.delta)} and the {plan.conversion} conversion. “once” is this "
        "release as the paper counts it, “patient” the same for a patient. “once” is no larger for "
        "more queries since each has one release, and smaller where caps and importance were paid "
        "for: they are means over N, in which one image counts 1/N."
    )
    if training is not None:
        often = training.releases(plan.participants.queries)
        fixed += (
            " “every step” is the paper’s accounting had the features been released with fresh "
            f"noise at each of the student’s T = {number(training.steps)} steps of "
            f"B = {number(training.batch_size)} images: each query TB/N times, rounded up, here "
            f"{number(often)}; it falls because more queries share as many steps."
        )
    return fixed + (" A release that is not private promises none of this." if chosen.stamp else "")
