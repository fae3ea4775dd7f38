"""What a statistics release shows on its privacy card (`canal.release.card`)."""

from __future__ import annotations

from canal.release.card import CardParts
from canal.release.chart import histogram
from canal.release.digits import number
from canal.release.manifest import Manifest
from canal.release.page import figure, note, section
from canal.statistics.plan import COUNT, StatisticsPlan
from canal.statistics.release import estimates


def card(manifest: Manifest) -> CardParts:
    """What only a statistics release shows."""
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
