"""The statement: what a release promises, to whom, against whom, and what it does not promise.

Everything follows from the calibrated plan and a few public facts, so whoever holds a manifest can
derive it again and compare. The questions are those of NIST SP 800-226: unit of privacy, privacy
parameters, trust model, mechanism and its implementation, and what lies outside. `state` answers
them for any release; what only one mechanism can say is its `Wording`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from canal.errors import ReleaseError
from canal.privacy.events import Guarantee
from canal.privacy.randomness import SAMPLER, Secret
from canal.privacy.units import NEIGHBOURS, Unit
from canal.release.digits import finite_or_none, short, upwards
from canal.release.plan import Calibrated, ReleasePlan
from canal.release.registry import kind_of

FALSE_ALARMS = 0.01
# Found out of a hundred members, at one false alarm in a hundred, from which on we say so.
NO_PROTECTION = 0.9
NO_NOISE = "none"
# Sentences that a mechanism puts among its own.
IN_GENERAL = (
    "What is true of patients in general: a good model shows it whether or not a given patient "
    "took part."
)
RANDOMNESS = "ChaCha20 under keys from HKDF-SHA256 cannot be told from true randomness."
# Where one who is added or removed and one who is replaced have numbers of their own.
_RELATIONS: dict[Unit, str] = {"membership": " (added or removed)", "patient": " (replaced)"}


@dataclass(frozen=True)
class Facts:
    """What a statement says beside its plan; all of it public.

    Args:
        private: whether the noise came from a secret and there was noise at all.
        noise: where it came from.
        sampler: how bits become noise.
        cohorts: names of the sites' training cohorts.
    """

    private: bool
    noise: str
    sampler: str
    cohorts: tuple[str, ...]

    @classmethod
    def of(cls, plan: ReleasePlan, noise: Mapping[str, str], cohorts: Sequence[str]) -> Facts:
        """The facts of a manifest.

        Args:
            plan: what was asked for.
            noise: source and sampler.
            cohorts: who took part.

        Raises:
            ReleaseError: noise of unknown origin.
        """
        source, sampler = str(noise["source"]), str(noise["sampler"])
        known = {noise_source(plan, private=private): private for private in (False, True)}
        if source not in known or sampler != SAMPLER.decode():
            raise ReleaseError(f"noise of the source {source!r}, sampler {sampler!r}, is not ours")
        private = known[source] and plan.allocation != "none"
        return cls(private, source, sampler, tuple(map(str, cohorts)))


@dataclass(frozen=True, kw_only=True)
class Wording:
    """What only one mechanism can say in a statement.

    Args:
        entries: of its own, behind the unit.
        neighbours: what may differ, where that is not the usual for a unit.
        split: shares of the budget, by what they are spent on.
        steps: what the release makes steps of, in plural.
        after: what would be promised after so many of them.
        protected: who is, against what; not read where nobody is.
        not_protected: what is not, first of all.
        named: what is published as it is, beside the plan.
        sees: what a trusted aggregator sees before noise is added.
        mechanism: what is computed.
        one_cohort: the assumption on who is in more than one place.
        most: places where anybody can be, as far as this is said.
        assumptions: the others, but for who ran the software.
    """

    entries: Mapping[str, Any] = field(default_factory=dict)
    neighbours: Mapping[Unit, str] = field(default_factory=lambda: NEIGHBOURS)
    split: Mapping[str, float]
    steps: str
    after: Mapping[float, Guarantee]
    protected: Sequence[str]
    not_protected: Sequence[str]
    named: str
    sees: str
    mechanism: Sequence[str]
    one_cohort: str
    most: int
    assumptions: Sequence[str]


def state(calibrated: Calibrated, facts: Facts) -> dict[str, Any]:
    """Everything a privacy officer signs, as plain values."""
    plan, warning = calibrated.plan, stamp(calibrated.plan.allocation, private=facts.private)
    said: Wording = kind_of(plan.kind).wording(calibrated, facts)
    return {
        "stamp": warning,
        "unit": plan.unit,
        **said.entries,
        "epsilon_asked": plan.epsilon,
        "delta": plan.delta,
        "conversion": plan.conversion,
        "guarantee": {
            unit: promise(calibrated, unit, said.neighbours[unit], private=facts.private)
            for unit in plan.units
        },
        "split": dict(said.split),
        f"epsilon_by_{said.steps}": _after(plan, said) if facts.private else [],
        "protected": [f"{warning}."] if warning else list(said.protected),
        "not_protected": [
            *said.not_protected,
            f"{said.named}, and every number of the plan: they are published as they are.",
            "Other releases about the same patients. Their costs add up; the ledger of each site "
            "keeps the sum.",
            "How long the computation took, and anything a site publishes by other ways.",
        ],
        "trust": _trust(plan, facts, said.sees),
        "mechanism": [*said.mechanism, *_conversion(plan)],
        "assumptions": [
            said.one_cohort + (_several_times(calibrated, said.most) if facts.private else ""),
            *said.assumptions,
            *_software(plan),
        ],
    }


def stamp(allocation: str, *, private: bool) -> str:
    """The warning on everything that protects nobody; empty otherwise."""
    if allocation == "none":
        return "NOT PRIVATE: no noise was added; for research on public data only"
    if not private:
        return "NOT PRIVATE: the noise is seeded and anyone can make it again; for research only"
    return ""


def noise_source(plan: ReleasePlan, *, private: bool) -> str:
    """What a statement says about where the noise came from."""
    if plan.allocation == "none":
        return NO_NOISE
    source = Secret(b"x" * 32, private=private).source
    return f"a share of every site, each: {source}" if plan.trust == "secure-sum" else source


def promise(
    calibrated: Calibrated, unit: Unit, neighbours: str, *, private: bool
) -> dict[str, Any]:
    """What is promised to one unit, in numbers and in words.

    Args:
        calibrated: the plan with its noise.
        unit: of privacy.
        neighbours: what may differ.
        private: whether anything is promised.
    """
    if not private:
        nothing = dict.fromkeys(("epsilon", "epsilon_exact", "rho", "mu"))
        return nothing | {
            "neighbours": neighbours,
            "protects": False,
            "reading": "Nothing is promised.",
            "parts": {},
        }
    plan, guarantee = calibrated.plan, calibrated.guarantee
    epsilon = guarantee.epsilon(plan.delta, unit, plan.conversion)
    rho, mu = guarantee.rho(unit), guarantee.mu(unit)
    return {
        "epsilon": finite_or_none(epsilon),
        "epsilon_exact": finite_or_none(guarantee.epsilon(plan.delta, unit, "exact")),
        "rho": finite_or_none(rho),
        "mu": finite_or_none(mu),
        "neighbours": neighbours,
        "protects": unit != "paper" and detected(mu) <= NO_PROTECTION,
        "reading": _reading(unit, epsilon, mu, replaced=unit == "patient" and _told_apart(plan)),
        "parts": {
            event.name: {
                "rho": finite_or_none(event.rho(unit)),
                "share": event.rho(unit) / rho if 0 < rho < math.inf else None,
            }
            for event in guarantee.events
        },
    }


def _reading(unit: Unit, epsilon: float, mu: float, *, replaced: bool) -> str:
    if math.isinf(epsilon):
        return (
            "No guarantee. Query images count as public here: what was learned or read from them "
            "with public weights is published as it is."
        )
    if unit == "paper":
        return "The paper's accounting, to be compared with its tables; a guarantee for nobody."
    caught = detected(mu)
    whom = "query images" if unit == "image" else "patients of a training cohort"
    share = "nearly all" if caught > 0.995 else f"at most {short(upwards(100 * caught, 3))} in 100"
    sentence = (
        "Someone who reads this release and wrongly names 1 in 100 outsiders can rightly name "
        f"{share} {whom}."
    )
    if replaced:
        sentence = (
            "Someone who knows that one of two people was a patient here, and wrongly names the "
            f"one in 1 of 100 such cases, can rightly name the other in {share}."
        )
    return sentence + (" That is no protection." if caught > NO_PROTECTION else "")


def detected(mu: float) -> float:
    """Most true positives at 1 % false ones that Gaussian DP with this mu leaves."""
    normal = NormalDist()
    return normal.cdf(normal.inv_cdf(FALSE_ALARMS) + mu)


def every_patient(mu: float, facts: Facts) -> str:
    """The beginning of the sentence that says who is protected.

    Args:
        mu: of a patient.
        facts: of the release.
    """
    in_name = detected(mu) > NO_PROTECTION
    who = f"very patient of the training cohorts {', '.join(facts.cohorts)}"
    return f"{'In name only: e' if in_name else 'E'}{who}"


def on_a_lattice(what: str, calibrated: Calibrated, facts: Facts) -> str:
    """That sums and noise are integers.

    Args:
        what: is summed.
        calibrated: the plan, whose lattice it is.
        facts: of the release.
    """
    return (
        f"{what} are summed as integers on a lattice of step {step_of(calibrated)}, the noise is "
        f"an integer too ({facts.sampler}); its finite precision is part of every epsilon here."
    )


def step_of(calibrated: Calibrated) -> str:
    """The step of the lattice, a power of two."""
    return f"2^{math.log2(calibrated.lattice.step):.0f}"


def _told_apart(plan: ReleasePlan) -> bool:
    """Whether patients who are added or removed and those who are replaced have numbers each."""
    return _RELATIONS.keys() <= set(plan.units)


def _after(plan: ReleasePlan, said: Wording) -> list[dict[str, float | None]]:
    """Epsilon of every unit after some counts of steps, all with the same noise."""
    table: list[dict[str, float | None]] = []
    for count, guarantee in said.after.items():
        row: dict[str, float | None] = {said.steps: count}
        for unit in plan.units:
            row[unit] = finite_or_none(guarantee.epsilon(plan.delta, unit, plan.conversion))
        table.append(row)
    return table


def _trust(plan: ReleasePlan, facts: Facts, sees: str) -> list[str]:
    """Who is trusted with what."""
    if plan.trust == "trusted":
        fate = (
            " The secret was never in this folder and is destroyed when the release is finished; "
            "whoever kept a copy could take the noise off."
        )
        return [
            f"Central model: the aggregator sees {sees} before noise is added (and all images, "
            "where it reads the folders of the sites itself), and all sites trust it with that. "
            "The readers of this folder need not be trusted.",
            f"Noise: {facts.noise}." + fate * facts.private,
        ]
    told = plan.colluding
    whoever = f"whoever learns the shares of {told} of them" if told else "anyone who learns none"
    fate = " Each secret stays at its site and is destroyed when the release is finished."
    return [
        f"Secure sum of {plan.sites} sites (secure-sum): every site adds a share of the noise "
        "before it sends anything, under masks that cancel only in the sum over all. The "
        "aggregator learns that noisy sum, and nothing of a single site.",
        f"Colluding sites: t = {told}. Each share has a variance of 1/{plan.sites - told} of the "
        f"noise that is accounted for, so every epsilon here holds against {whoever}, the "
        f"aggregator among them. Readers face {short(plan.excess)} times that noise.",
        f"Noise: {facts.noise}." + fate * facts.private,
    ]


def _conversion(plan: ReleasePlan) -> list[str]:
    if plan.allocation == "none":
        return []
    how = {
        "exact": "the exact curve of the Gaussian mechanism",
        "paper": "the paper's formula, which is never below the exact one",
    }
    return [f"Epsilon follows from rho by {how[plan.conversion]}."]


def _several_times(calibrated: Calibrated, most: int) -> str:
    """What a patient pays who is in the data more often than is assumed.

    Args:
        calibrated: the plan with its noise.
        most: how often anybody can be there, as far as this is said.
    """
    if most < 2:
        return ""
    plan, said = calibrated.plan, []
    units: dict[Unit, str] = _RELATIONS if _told_apart(plan) else {"patient": ""}
    for times in range(2, min(most, 3) + 1):
        group = calibrated.guarantee.farther(times)
        each = (
            short(upwards(group.epsilon(plan.delta, unit, plan.conversion))) + name
            for unit, name in units.items()
        )
        said.append(f"{' and '.join(each)} for one who is in {times}")
    return (
        f" If that is wrong, epsilon at delta {short(plan.delta)} is {', '.join(said)}: mu grows "
        "with their number, rho with its square."
    )


def _software(plan: ReleasePlan) -> list[str]:
    """Who must have run the software as it was published."""
    if plan.trust == "trusted":
        return ["The software ran as published, on a machine that only the aggregator controls."]
    return [
        "X25519 keys that two sites agree on are known to nobody else; every site knew the "
        "identity of every other beforehand.",
        f"At all but {plan.colluding} of the sites the software ran as published, on a machine "
        "that only the site controls.",
    ]
