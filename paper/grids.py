"""Grids: every table and figure of the documents, and the trials that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paper import attack_tables as attacks
from paper import feature_tables as features
from paper import gradient_tables as rounds
from paper.arms import (
    FeatureRelease,
    LongCentralised,
    Networks,
    Outlines,
    PerIteration,
    Student,
    Teachers,
)
from paper.attacks import (
    Cohort,
    FeatureMembership,
    ImageAttacks,
    RoundsMembership,
    ShadowNetworks,
    Variation,
)
from paper.rivals import DPSGD, CentralisedDPSGD, DPSGDTeachers, SelfTraining, Votes
from paper.rounds import NORMS_AND_HEAD, Agreement, GradientRelease, NoiseHarm, Rounds
from paper.scenario import Scenario
from paper.trial import Arm, Results, Trial

Made = Callable[[Results], str]


@dataclass(frozen=True)
class Grid:
    """Trials, and what is made of them.

    Args:
        document: that has the tables and shows the figures.
        seeds: that it has.
        trials: of so many seeds.
        made: its tables, each marked there by the name of its function.
        figures: as SVG, by file name.
    """

    document: str
    seeds: int
    trials: Callable[[int], Sequence[Trial]]
    made: tuple[Made, ...]
    figures: Mapping[str, Made] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Made]:
        """By name, as the document marks them."""
        return {make.__name__.replace("_", "-"): make for make in self.made}


RESULTS, TEACHERS, ATTACKS = "docs/results.md", "docs/teachers.md", "docs/attacks.md"
ROUNDS, METHOD = "docs/adapters.md", "docs/adapters-method.md"
GRIDS = {
    "table1": Grid(
        RESULTS,
        5,
        features.table1_trials,
        (features.table1, features.table1_differences, features.table1_gains),
    ),
    "ablation": Grid(RESULTS, 3, features.ablation_trials, (features.ablation,)),
    "outlines": Grid(
        RESULTS,
        1,
        features.outline_trials,
        (features.outlines,),
        {"outlines.svg": features.outlines_figure},
    ),
    "composition": Grid(
        RESULTS,
        3,
        features.composition_trials,
        (features.composition, features.composition_runs),
        {"composition.svg": features.composition_figure},
    ),
    "ensemble-size": Grid(
        RESULTS,
        3,
        features.ensemble_trials,
        (features.ensemble_size,),
        {"ensemble-size.svg": features.ensemble_figure},
    ),
    "hospitals": Grid(RESULTS, 3, features.hospital_trials, (features.hospitals,)),
    "teachers": Grid(
        TEACHERS, 1, features.teacher_trials, (features.teachers, features.teacher_alignment)
    ),
    "choices": Grid(
        METHOD,
        1,
        rounds.choice_trials,
        (rounds.choices, rounds.choice_steps, rounds.choice_agreement, rounds.choice_harm),
    ),
    "gradients": Grid(
        ROUNDS,
        5,
        rounds.gradient_trials,
        (rounds.goals, rounds.gradients, rounds.differences, rounds.students, rounds.other_gaps),
        {f"gradients-{each:g}.svg": rounds.gradient_figure(each) for each in rounds.EPSILONS},
    ),
    "images": Grid(
        ATTACKS,
        5,
        attacks.image_trials,
        (attacks.images, attacks.one_patient),
        {"images.svg": attacks.images_figure},
    ),
    "membership": Grid(
        ATTACKS,
        2,
        attacks.membership_trials,
        (attacks.feature_membership, attacks.rounds_membership),
    ),
}

# The paper's size, for a GPU: fields of all scenarios.
PAPER_SIZE: dict[str, Any] = {"size": 256, "base_channels": 64, "steps": 10_000}

# Tiny trials on synthetic images, of every arm: seconds that show that all of it runs.
_TINY = Scenario(
    *("endoscopy",), size=32, sites=2, recipient=6, steps=2, batch_size=4, synthetic=24
)
_START = replace(_TINY, init_length=2, deform=1.0, settle=1.0, match_people=True)
_ROUNDS = Rounds(rounds=2, target_modules=NORMS_AND_HEAD, subspace_dim=8)
_DP_SGD = DPSGD(epochs=1, rate=0.5, step=0.02, target_modules=("final_conv.*",))
_FEATURES = FeatureRelease()
_CLEAR = FeatureRelease(allocation="none")
_FEW = Cohort(canaries=4, ordinary=4, always=2)
_ARMS: dict[Scenario, tuple[Arm, ...]] = {
    _TINY: (
        *(row.arm for row in features.CONTROLS.values()),
        Networks(),
        Student("release", _FEATURES),
        features.ablated("all together, K = 10", "patient", 8.0).arm,
        PerIteration(),
        Outlines((Student("local-only"), Student("release", _FEATURES))),
        Teachers(random=True),
        Variation(),
        ImageAttacks(_FEATURES, left_out=1, decoder_steps=2),
        ImageAttacks(_CLEAR, left_out=1, decoder_steps=2),
        FeatureMembership(_FEATURES, ShadowNetworks(_FEW, 8, steps=1)),
    ),
    replace(_TINY, self_labelled=6): (Agreement(),),
    _START: (
        GradientRelease(_ROUNDS),
        GradientRelease(_ROUNDS, fine_tune=2),
        GradientRelease(_ROUNDS, unlabelled=6),
        GradientRelease(replace(_ROUNDS, rank=2, augmult=2, subspace_dim=None)),
        LongCentralised(),
        NoiseHarm(NORMS_AND_HEAD),
        CentralisedDPSGD(settings=_DP_SGD),
        DPSGDTeachers(settings=_DP_SGD),
        Votes(),
        SelfTraining(),
        RoundsMembership(_ROUNDS, replace(_FEW, always=0), 2),
        RoundsMembership(replace(_ROUNDS, noise=False), replace(_FEW, always=0), 2),
    ),
}
SMOKE = [Trial(scenario, arm) for scenario, arms in _ARMS.items() for arm in arms]
