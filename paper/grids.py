"""Grids: every table and figure of the documents, and the trials that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paper import attack_tables, feature_tables, gradient_tables
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
        trials: of so many seeds.
        seeds: that the documents have.
        document: that has the tables and shows the figures.
        tables: by name, as the document marks them.
        figures: as SVG, by file name.
    """

    trials: Callable[[int], Sequence[Trial]]
    seeds: int
    document: str
    tables: Mapping[str, Made]
    figures: Mapping[str, Made] = field(default_factory=dict)


RESULTS, TEACHERS = "docs/results.md", "docs/teachers.md"
ROUNDS, METHOD = "docs/adapters.md", "docs/adapters-method.md"
ATTACKS = "docs/attacks.md"
GRIDS = {
    "table1": Grid(
        feature_tables.table1_trials,
        5,
        RESULTS,
        {
            "table1": feature_tables.table1,
            "table1-differences": feature_tables.table1_differences,
            "table1-gains": feature_tables.table1_gains,
        },
    ),
    "ablation": Grid(
        feature_tables.ablation_trials, 3, RESULTS, {"ablation": feature_tables.ablation}
    ),
    "outlines": Grid(
        feature_tables.outline_trials,
        1,
        RESULTS,
        {"outlines": feature_tables.outlines},
        {"outlines.svg": feature_tables.outlines_figure},
    ),
    "composition": Grid(
        feature_tables.composition_trials,
        3,
        RESULTS,
        {
            "composition": feature_tables.composition,
            "composition-runs": feature_tables.composition_runs,
        },
        {"composition.svg": feature_tables.composition_figure},
    ),
    "ensemble-size": Grid(
        feature_tables.ensemble_trials,
        3,
        RESULTS,
        {"ensemble-size": feature_tables.ensemble_size},
        {"ensemble-size.svg": feature_tables.ensemble_figure},
    ),
    "hospitals": Grid(
        feature_tables.hospital_trials, 3, RESULTS, {"hospitals": feature_tables.hospitals}
    ),
    "teachers": Grid(
        feature_tables.teacher_trials,
        1,
        TEACHERS,
        {
            "teachers": feature_tables.teachers,
            "teacher-alignment": feature_tables.teacher_alignment,
        },
    ),
    "choices": Grid(
        gradient_tables.choice_trials,
        1,
        METHOD,
        {
            "choices": gradient_tables.choices,
            "choice-steps": gradient_tables.choice_steps,
            "choice-agreement": gradient_tables.choice_agreement,
            "choice-harm": gradient_tables.choice_harm,
        },
    ),
    "gradients": Grid(
        gradient_tables.gradient_trials,
        5,
        ROUNDS,
        {
            "goals": gradient_tables.goals,
            "gradients": gradient_tables.gradients,
            "differences": gradient_tables.differences,
            "students": gradient_tables.students,
            "other-gaps": gradient_tables.other_gaps,
        },
        {
            f"gradients-{epsilon:g}.svg": gradient_tables.gradient_figure(epsilon)
            for epsilon in gradient_tables.EPSILONS
        },
    ),
    "images": Grid(
        attack_tables.image_trials,
        5,
        ATTACKS,
        {"images": attack_tables.images, "one-patient": attack_tables.one_patient},
        {"images.svg": attack_tables.images_figure},
    ),
    "membership": Grid(
        attack_tables.membership_trials,
        2,
        ATTACKS,
        {
            "feature-membership": attack_tables.feature_membership,
            "rounds-membership": attack_tables.rounds_membership,
        },
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
        *feature_tables.CONTROLS.values(),
        Networks(),
        Student("release", _FEATURES),
        feature_tables.ABLATION["all together, K = 10"].arm("patient", 8.0),
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
