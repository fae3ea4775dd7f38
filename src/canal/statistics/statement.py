"""What only a statistics release says of itself: in its statement, and on its privacy card."""

from __future__ import annotations

from canal.privacy.events import Guarantee
from canal.privacy.units import Unit
from canal.release.card import CardParts
from canal.release.chart import histogram
from canal.release.digits import number, short, upwards
from canal.release.manifest import Manifest
from canal.release.page import figure, note, section
from canal.release.statement import (
    RANDOMNESS,
    Facts,
    Wording,
    every_patient,
    on_a_lattice,
)
from canal.statistics.plan import COUNT, CalibratedStatisticsPlan, StatisticsPlan
from canal.statistics.release import estimates

NEIGHBOURS: dict[Unit, str] = {
    "membership": "one patient, with all of their images, is added to one site's cohort, or "
    "removed from it; all other votes stay as they are",
    "patient": "one patient of one site's cohort, with all of their images, is replaced by "
    "another; all other votes stay as they are",
}
# What it would cost to publish the same statistics again, with new noise.
_TIMES = (1, 2, 5, 10)


def wording(calibrated: CalibratedStatisticsPlan, facts: Facts) -> Wording:
    """What only this mechanism says in a statement."""
    plan = calibrated.plan
    again = {
        float(times): Guarantee(tuple(event.times(times) for event in calibrated.guarantee.events))
        for times in _TIMES
    }
    return Wording(
        entries={"relation": plan.relation},
        neighbours=NEIGHBOURS,
        split=dict(zip(plan.widths, plan.split, strict=True)),
        steps="releases",
        after=again,
        protected=_protected(calibrated, facts) if facts.private else (),
        not_protected=[
            "What is true of patients in general, such as how large most lesions are: statistics "
            "show it whether or not a given patient took part.",
        ],
        named="Names of cohorts, how many there are, bins",
        sees="every site's sums of votes",
        mechanism=_mechanism(calibrated, facts),
        one_cohort="No patient is in more than one cohort, or under two names in one.",
        most=3,
        assumptions=[
            "A patient is whom the records of a site name. Where they name lesions, sequences or "
            "cases instead, it is each of these that is protected, and a person with several pays "
            "more.",
            "The bins were chosen without a look at the cohorts.",
            "Nothing is wrong with the files of a cohort that its site did not accept; one of "
            "which this is not true is refused, and that shows.",
            RANDOMNESS,
        ],
    )


def _protected(calibrated: CalibratedStatisticsPlan, facts: Facts) -> list[str]:
    plan, guarantee = calibrated.plan, calibrated.guarantee
    joined, replaced = (
        short(upwards(guarantee.epsilon(plan.delta, unit, plan.conversion))) for unit in plan.units
    )
    return [
        f"{every_patient(guarantee.mu(plan.unit), facts)}, with all of their images, against "
        "anyone who reads this folder, whatever else they know or will know: with epsilon "
        f"{joined} at delta {short(plan.delta)} where a patient is added or removed, {replaced} "
        "where one is replaced by another.",
        "Noise was added once. Reading the statistics again, or computing anything from them, "
        "reveals nothing more.",
    ]


def _mechanism(calibrated: CalibratedStatisticsPlan, facts: Facts) -> list[str]:
    plan = calibrated.plan
    votes = (
        f"The number of patients, and histograms of {', '.join(plan.histograms)} over public "
        "bins. In each histogram a patient has one vote in total, spread evenly over their "
        "images; it moves the histogram by at most 1 (added or removed) or √2 (replaced)."
    )
    if plan.allocation == "none":
        return [votes, "No noise was added."]
    noise = ", ".join(
        f"{short(sigma * plan.excess)} ({name})" for name, sigma in calibrated.sigma.items()
    )
    return [
        f"Gaussian mechanism. {votes}",
        f"Standard deviation of the noise on every number, in patients: {noise}. "
        f"{on_a_lattice('Votes', calibrated, facts)}",
    ]


def card(manifest: Manifest) -> CardParts:
    """What only this mechanism shows on a card."""
    plan, found = StatisticsPlan.from_json(manifest.plan), estimates(manifest)
    count = found[COUNT]
    figures = []
    for name, each in plan.histograms.items():
        counts = dict(zip(each.bins, found[name].patients.tolist(), strict=True))
        title = each.what[0].upper() + each.what[1:]
        figures.append(figure(title, histogram(name, title, counts, found[name].error, "patients")))
    return CardParts(
        title="release of statistics",
        facts={
            "Sites": number(plan.sites),
            "Patients": f"{number(count.patients[0])} ± {number(count.error)}",
            "Histograms": ", ".join(plan.histograms),
        },
        sections=[
            section(
                "What the cohorts are like",
                f'<div class="charts">{"".join(figures)}</div>',
                note(
                    "Numbers of patients; whose images fall into several bins is spread over "
                    "these. Lines are 95 % intervals of the noise; what is below 0 is drawn as 0."
                ),
                style="wide",
            )
        ],
        holds=[
            f"The number of patients, and histograms of {', '.join(plan.histograms)} over "
            f"{number(sum(plan.widths.values()) - 1)} bins."
        ],
    )
