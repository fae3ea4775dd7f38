"""What the same noise would have cost, had more been asked, or every training step again."""

from __future__ import annotations

from dataclasses import dataclass

from canal.features.statement import had_asked, query_counts
from canal.privacy.iteration import penalty, releases_per_image
from canal.release.digits import finite_or_none
from canal.report.arms import Arm
from canal.report.published import PublishedFeatures

ONCE, OFTEN, PATIENT = "once", "every step", "patient"


@dataclass(frozen=True)
class Training:
    """How a student is trained that would have asked at every step.

    Args:
        steps: T.
        batch_size: B.
    """

    steps: int
    batch_size: int

    @classmethod
    def of(cls, arm: Arm | None) -> Training | None:
        """Of a student; None if it did not write it down."""
        given = {} if arm is None else arm.network.training
        steps, batch_size = given.get("steps"), given.get("batch_size")
        if not (isinstance(steps, int) and isinstance(batch_size, int)):
            return None
        return cls(steps, batch_size) if min(steps, batch_size) > 0 else None

    def releases(self, queries: int) -> int:
        """Q = T·B/N, rounded up: how often it meets each query."""
        return releases_per_image(self.steps, self.batch_size, queries)


def epsilon_by_queries(
    published: PublishedFeatures, training: Training | None
) -> list[dict[str, float | int | None]]:
    """Epsilon against the number of queries N, with the noise of every value held fixed.

    `once` and `every step` are in the paper's accounting, `patient` is at patient level and once.

    Args:
        published: whose noise, channels, teachers, delta and conversion are held fixed.
        training: steps and batch size, held fixed too; None leaves `every step` out.
    """
    calibrated, plan = published.calibrated, published.plan
    table: list[dict[str, float | int | None]] = []
    for queries in query_counts(plan):
        promise = had_asked(calibrated, queries)
        row: dict[str, float | int | None] = {"queries": queries}
        row[ONCE] = finite_or_none(promise.epsilon(plan.delta, "paper", plan.conversion))
        if training is not None:
            often = training.releases(queries)
            found = penalty(promise, often, plan.delta, "paper", plan.conversion)
            row["releases"] = often
            row[OFTEN] = finite_or_none(found.epsilon_per_iteration)
        row[PATIENT] = finite_or_none(promise.epsilon(plan.delta, "patient", plan.conversion))
        table.append(row)
    return table
