"""What a plan will cost and carry, in numbers and in plain words, before any data is touched."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from canal.errors import InvalidValueError
from canal.features.calibration import CalibratedPlan
from canal.features.plan import Plan
from canal.privacy.iteration import Penalty, penalty, releases_per_image
from canal.privacy.units import NEIGHBOURS, UNITS
from canal.release.digits import finite_or_none

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray


PENALTY_STEPS = (1, 10, 100, 1_000, 10_000)
# Signal over noise of one whole query, below which nothing can be learned from it, or easily.
_NOTHING, _FAINT = 0.1, 10.0


@dataclass(frozen=True)
class Forecast:
    """A plan under both allocations, and the price of releasing at every iteration instead.

    Args:
        canal: the plan with CANAL's water-filling.
        uniform: the same plan with the same noise on every channel.
        iterations: T, student steps of the per-iteration rival.
        batch_size: B of the same.
        penalties: sample-once against per-iteration; the rival's own Q first.
    """

    canal: CalibratedPlan
    uniform: CalibratedPlan
    iterations: int
    batch_size: int
    penalties: tuple[Penalty, ...]

    @property
    def plan(self) -> Plan:
        """What was asked for."""
        return self.canal.plan

    def guarantee(self) -> dict[str, dict[str, Any]]:
        """What the release promises to each unit, whichever of the two allocations is used.

        An epsilon of None is no guarantee: query images whose public statistics are read from
        them in the clear.
        """
        plan, promise = self.plan, self.canal.guarantee
        return {
            unit: {
                "epsilon": finite_or_none(promise.epsilon(plan.delta, unit, plan.conversion)),
                "delta": plan.delta,
                "rho": finite_or_none(promise.rho(unit)),
                "mu": finite_or_none(promise.mu(unit)),
                "neighbours": NEIGHBOURS[unit],
            }
            for unit in UNITS
        }

    def _noise(self, statistic: Literal["caps", "importance"]) -> float | None:
        """The one noise level of a statistic, or None where it is public and has none."""
        paid = self.plan.sources[statistic] == "private"
        return float(self.canal.sigma(statistic)[0]) if paid else None

    def words(self) -> list[str]:
        """What it means, in sentences for a person who has to decide."""
        return [_verdict(self), _other_units(self), _knobs(self), _per_iteration(self)]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values; an infinite sigma (channel not released) is null."""
        plan = self.plan
        rho = plan.rho()
        return {
            "plan": plan.to_json(),
            "rho": math.fsum(rho.values()),
            "split": asdict(plan.paid_split),
            "rho_split": rho,
            "sigma": {
                "caps": self._noise("caps"),
                "importance": self._noise("importance"),
                "uniform": float(self.uniform.sigma("features")[0]),
                "water_filling": _listed(self.canal.sigma("features")),
            },
            "guarantee": self.guarantee(),
            "snr_db": {
                "uniform": float(decibels(self.uniform.snr())[0]),
                "water_filling": _listed(decibels(self.canal.snr())),
                "whole_release": decibels(self.canal.total_snr()).item(),
            },
            "per_iteration": {
                "iterations": self.iterations,
                "batch_size": self.batch_size,
                **asdict(self.penalties[0]),
                "table": [asdict(entry) for entry in self.penalties[1:]],
            },
            "words": self.words(),
        }


def forecast(
    plan: Plan,
    importance: ArrayLike | None = None,
    *,
    iterations: int = 10_000,
    batch_size: int = 8,
) -> Forecast:
    """Look ahead: calibrate the plan under both allocations and price the per-iteration rival.

    Args:
        plan: what is asked for.
        importance: public scores of the channels; None for flat ones.
        iterations: T of the per-iteration rival.
        batch_size: B of the same.
    """
    canal = replace(plan, allocation="canal").calibrate(importance)
    own = releases_per_image(iterations, batch_size, plan.participants.queries)
    return Forecast(
        canal=canal,
        uniform=replace(plan, allocation="uniform").calibrate(importance),
        iterations=iterations,
        batch_size=batch_size,
        penalties=tuple(
            penalty(canal.guarantee, releases, plan.delta, plan.unit, plan.conversion)
            for releases in (own, *PENALTY_STEPS)
        ),
    )


def decibels(ratio: ArrayLike) -> NDArray[np.float64]:
    """Ten times the logarithm; minus infinity where nothing is carried."""
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(ratio))


def _verdict(seen: Forecast) -> str:
    plan = seen.plan
    best = float(decibels(seen.canal.snr().max()))
    per_query = seen.canal.total_snr() / plan.participants.queries
    if per_query < _NOTHING:
        verdict = "the release carries no signal"
    elif per_query < _FAINT:
        verdict = "the signal is faint, and shows only in averages over many queries"
    else:
        verdict = "the release carries a signal that a student can learn from"
    unit = {
        "patient": "a patient-level",
        "image": "an image-level",
        "paper": "a paper-accounted",
    }[plan.unit]
    return (
        f"At K = {plan.participants.teachers} and N = {plan.participants.queries} {unit} epsilon "
        f"of {plan.epsilon:g} leaves about {best:.0f} dB in the best channel: {verdict}. "
        f"All {plan.participants.queries} queries together have a signal-to-noise ratio of at "
        f"most {seen.canal.total_snr():.3g}."
    )


def _other_units(seen: Forecast) -> str:
    epsilon = {unit: promise["epsilon"] for unit, promise in seen.guarantee().items()}
    if seen.plan.unit == "patient":
        return (
            f"Read in the paper's accounting this release has epsilon {epsilon['paper']:.3g}, "
            "which is a guarantee for nobody; the patient's is the one to sign."
        )
    return (
        f"A patient of a training cohort gets epsilon {epsilon['patient']:.4g} from this release, "
        f"not {seen.plan.epsilon:g}: that patient's teacher is heard on every query."
    )


def _knobs(seen: Forecast) -> str:
    plan, people = seen.plan, seen.plan.participants
    changes: list[tuple[str, Plan]] = [
        (
            f"{10 * people.teachers} teachers",
            replace(plan, participants=replace(people, teachers=10 * people.teachers)),
        )
    ]
    fewer = max(people.images_per_person, people.queries // 10)
    if plan.unit == "patient" and fewer < people.queries:
        changes.append(
            (f"{fewer} queries", replace(plan, participants=replace(people, queries=fewer)))
        )
    if plan.released >= 10:
        changes.append(
            (f"{plan.released // 10} channels", replace(plan, released=plan.released // 10))
        )
    if min(plan.grid) >= 8:
        smaller = tuple(side // 4 for side in plan.grid)
        changes.append(
            (f"a {' x '.join(map(str, smaller))} bottleneck", replace(plan, grid=smaller))
        )
    if not plan.nonnegative:
        changes.append(("features clamped to be non-negative", replace(plan, nonnegative=True)))
    if plan.conversion == "paper":
        changes.append(("the exact conversion", replace(plan, conversion="exact")))
    if "private" in (plan.caps_source, plan.importance_source):
        public = replace(plan, caps_source="public", importance_source="public")
        changes.append(("public caps and importance", public))
    before, scores = seen.canal.snr().max(), seen.canal.scores
    gains = {
        name: float(decibels(other.calibrate(scores[: other.released]).snr().max() / before))
        for name, other in changes
    }
    helping = [f"{name} (+{gain:.1f} dB)" for name, gain in gains.items() if gain >= 0.05]
    return f"The knobs that help: {', '.join(helping) or 'none of ours'}."


def _per_iteration(seen: Forecast) -> str:
    own = seen.penalties[0]
    return (
        f"Fresh noise at every student step ({seen.iterations} steps of {seen.batch_size}) would "
        f"release each image {own.releases} times: epsilon {own.epsilon_per_iteration:.4g} "
        f"at this noise, or {own.snr_loss_db:.1f} dB less signal at this epsilon."
    )


def _listed(values: NDArray[np.float64]) -> list[float | None]:
    """One value for each channel; JSON has no infinity, so a channel not released is null."""
    return [finite_or_none(value) for value in values.tolist()]


def read_importance(path: Path) -> NDArray[np.float64]:
    """Read one score a channel.

    Args:
        path: `.json` (a list), `.npy`, or any text of numbers divided by commas or white space.
    """
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            values = np.array(json.loads(path.read_text()))
        else:
            values = np.array(path.read_text().replace(",", " ").split())
        return np.asarray(values, dtype=np.float64).ravel()
    except OSError as error:
        raise InvalidValueError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise InvalidValueError(
            f"{path} holds no list of numbers ({error}); write one score for each channel"
        ) from error
