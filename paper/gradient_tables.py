"""Experiments on gradient releases: their arms as data, and the tables made of them.

Every arm pays one epsilon of a patient who is added or removed, and starts from one initialisation.
Settings of the rounds, and steps of DP-SGD, are chosen on synthetic hospitals (`choices`); nothing
by looking at real data sets (`gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import mean
from typing import Any

from paper.arms import FeatureRelease, LongCentralised, Networks, Student
from paper.drawing import whiskers
from paper.estimates import Comparison, holm
from paper.feature_tables import CENTRALISED, LOCAL, table
from paper.rivals import DPSGD, CentralisedDPSGD, DPSGDTeachers, SelfTraining, Votes
from paper.rounds import ALL, NORMS_AND_HEAD, Agreement, GradientRelease, NoiseHarm, Rounds
from paper.scenario import PAPER, SYNTHETIC, Scenario
from paper.trial import Results, Trial

EPSILONS = (8.0, 1.0)
START, LONGER = "the initialisation", f"{CENTRALISED}, as long as the initialisation"
SELF = "self-training"
ROUNDS, TUNED, DISTILLED = (
    "gradient rounds",
    "gradient rounds, fine-tuned",
    "gradient rounds, student",
)
OURS = (ROUNDS, TUNED, DISTILLED)
# Share of the gap between local only and centralised, in percent, to be closed at each epsilon;
# and the network that synthetic hospitals chose for it.
GOALS = {8.0: (75, TUNED), 1.0: (40, ROUNDS)}
FINE_TUNE = 200
CENTRAL, TEACHERS = "centralised DP-SGD", "DP-SGD teachers"
# What DP-SGD trains. Clips are chosen as those of rounds are, on the recipient's images.
TRAINED = {"all weights": ALL, "last layers": ("upcat_1.*", "final_conv.*")}
# Steps of DP-SGD that are tried: over the union, and by sites on their own, who hear more noise.
STEPS = {
    (CENTRAL, "all weights"): (0.001, 0.004, 0.02, 0.1),
    (CENTRAL, "last layers"): (0.004, 0.02, 0.1, 0.5),
    (TEACHERS, "all weights"): (0.001, 0.004, 0.02),
    (TEACHERS, "last layers"): (0.004, 0.02, 0.1),
}
# The best of these at each epsilon; of teachers, in the mean of their ensemble and its student.
BEST = {
    (CENTRAL, "all weights"): {8.0: 0.02, 1.0: 0.004},
    (CENTRAL, "last layers"): {8.0: 0.1, 1.0: 0.02},
    (TEACHERS, "all weights"): {8.0: 0.02, 1.0: 0.001},
    (TEACHERS, "last layers"): {8.0: 0.02, 1.0: 0.02},
}
_RIVALS: dict[str, type[CentralisedDPSGD]] = {CENTRAL: CentralisedDPSGD, TEACHERS: DPSGDTeachers}


@dataclass(frozen=True)
class Row:
    """Where the Dice of an arm is.

    Args:
        trial: that measures it.
        part: of its result; all of it if empty.
    """

    trial: Trial
    part: str = ""

    def result(self, results: Results) -> Mapping[str, Any]:
        """Dice, image by image."""
        found: Mapping[str, Any] = results[self.trial]
        for name in filter(None, self.part.split(".")):
            found = found[name]
        return found


def start(data_set: str, seed: int, synthetic: int = 0) -> Scenario:
    """A scenario whose initialisation is trained longer, on deformed images, and settles."""
    return Scenario(data_set, seed, synthetic=synthetic, init_length=6, deform=1.0, settle=0.5)


def dp_sgd(rival: str, what: str, epsilon: float, step: float, **more: Any) -> CentralisedDPSGD:
    """A rival with one step."""
    return _RIVALS[rival](
        settings=DPSGD(epsilon=epsilon, step=step, target_modules=TRAINED[what], **more)
    )


def _rows(label: str, trial: Trial) -> dict[str, Row]:
    """One row, or the ensemble of teachers and its student."""
    if isinstance(trial.arm, DPSGDTeachers):
        return {label.format(f", {part}"): Row(trial, part) for part in DPSGDTeachers.parts}
    return {label.format(""): Row(trial)}


# On real data: everybody at the same epsilon.


def everybody(data_set: str, seed: int) -> dict[str, Row]:
    """All rows of one split, by label."""
    scenario = start(data_set, seed)
    private = replace(scenario, match_people=True)
    found = {
        START: Row(Trial(scenario, Networks()), "networks.initialisation"),
        SELF: Row(Trial(scenario, SelfTraining())),
        LOCAL: Row(Trial(scenario, Student("local-only"))),
        CENTRALISED: Row(Trial(scenario, Student("centralised"))),
        LONGER: Row(Trial(scenario, LongCentralised())),
    }
    for epsilon in EPSILONS:
        at, rounds = f" eps {epsilon:g}", Rounds(epsilon)
        found |= {
            ROUNDS + at: Row(Trial(private, GradientRelease(rounds))),
            TUNED + at: Row(Trial(private, GradientRelease(rounds, fine_tune=FINE_TUNE))),
            DISTILLED + at: Row(Trial(private, GradientRelease(rounds, unlabelled=0))),
        }
        for (rival, what), steps in BEST.items():
            arm = dp_sgd(rival, what, epsilon, steps[epsilon])
            found |= _rows(f"{rival}, {what}{{}}{at}", Trial(private, arm))
        features = Student("release", FeatureRelease("honest", epsilon))
        found["CANAL features" + at] = Row(Trial(scenario, features))
        found["noisy votes" + at] = Row(Trial(scenario, Votes(epsilon)))
    return found


def gradient_trials(seeds: int = 5) -> list[Trial]:
    """Everybody on the paper's data sets."""
    return [
        row.trial
        for name in PAPER
        for seed in range(seeds)
        for row in everybody(name, seed).values()
    ]


@lru_cache(maxsize=1)
def comparisons(results: Results) -> list[Comparison]:
    """Everybody on every data set."""
    found = []
    for name in PAPER:
        seeds = [everybody(name, seed) for seed in range(5)]
        networks = [results[rows[START].trial] for rows in seeds]
        arms = {arm: [rows[arm].result(results) for rows in seeds] for arm in seeds[0]}
        found.append(Comparison(name, networks, arms))
    return found


def rivals(data: Comparison, epsilon: float) -> list[str]:
    """Arms that are not ours and pay this epsilon."""
    at = f" eps {epsilon:g}"
    return [arm for arm in data.arms if arm.endswith(at) and arm.removesuffix(at) not in OURS]


def goals(results: Results) -> str:
    """What was to be closed of the gap, what is, and by the rival that closes most."""
    data, rows = comparisons(results), []
    for epsilon in EPSILONS:
        at, (goal, chosen) = f" eps {epsilon:g}", GOALS[epsilon]
        for arm in OURS:
            closed = [each.closed(arm + at, LOCAL, CENTRALISED) for each in data]
            rows.append([f"{epsilon:g}", f"{goal} %" if arm == chosen else "", arm, *closed])
        best = []
        for each in data:
            rival = max(rivals(each, epsilon), key=lambda arm: each.dice(arm).means.mean())
            best.append(f"{each.closed(rival, LOCAL, CENTRALISED)}: {rival.removesuffix(at)}")
        rows.append([f"{epsilon:g}", "", "the rival that closes most", *best])
    return table(["eps", "goal", "gap closed by", *PAPER], rows)


def gradients(results: Results) -> str:
    """Dice of everybody."""
    data, heads, rows = comparisons(results), ["arm"], []
    for name in PAPER:
        heads += [f"{name}: Dice", "gap closed"]
    for arm in data[0].arms:
        row = [arm]
        for each in data:
            closed = "–" if arm == LOCAL else each.closed(arm, LOCAL, CENTRALISED)
            row += [str(each.dice(arm).estimate()), closed]
        rows.append(row)
    return table(heads, rows)


def differences(results: Results) -> str:
    """Ours less every rival at the same epsilon; bold where chance does not explain it (Holm).

    What is held against rivals, and rounds as they are: no rival was fine-tuned.
    """
    data = comparisons(results)
    pairs = [
        (epsilon, ours, rival)
        for epsilon in EPSILONS
        for ours in dict.fromkeys((GOALS[epsilon][1], ROUNDS))
        for rival in (LOCAL, SELF, *rivals(data[0], epsilon))
    ]
    gains = [
        [each.gain(f"{ours} eps {epsilon:g}", rival) for each in data]
        for epsilon, ours, rival in pairs
    ]
    corrected = iter(holm([gain.p for row in gains for gain in row]))
    rows = []
    for (epsilon, ours, rival), row in zip(pairs, gains, strict=True):
        cells = [f"**{gain.signed}**" if next(corrected) < 0.05 else gain.signed for gain in row]
        rows.append([f"{epsilon:g}", ours, rival.removesuffix(f" eps {epsilon:g}"), *cells])
    return table(["eps", "arm", "less", *PAPER], rows)


def students(results: Results) -> str:
    """What the recipient's own images do to gradient rounds: two ways to a student."""
    rows = []
    for epsilon in EPSILONS:
        at = f" eps {epsilon:g}"
        for arm in (TUNED, DISTILLED):
            gains = [each.gain(arm + at, ROUNDS + at).signed for each in comparisons(results)]
            rows.append([f"{epsilon:g}", arm, *gains])
    return table(["eps", f"less {ROUNDS} as they are", *PAPER], rows)


def other_gaps(results: Results) -> str:
    """What rounds close of other gaps: from the initialisation, and to longer training."""
    data, rows = comparisons(results), []
    for epsilon in EPSILONS:
        for name in OURS:
            arm = f"{name} eps {epsilon:g}"
            for below, above in ((START, CENTRALISED), (LOCAL, LONGER)):
                closed = [each.closed(arm, below, above) for each in data]
                rows.append([arm, f"{below} to {above}", *closed])
    return table(["arm", "gap", *PAPER], rows)


def gradient_figure(epsilon: float) -> Callable[[Results], str]:
    """What centralised training, rounds and DP-SGD gain over local training."""
    at = f" eps {epsilon:g}"
    drawn = {
        "centralised, not private": CENTRALISED,
        "gradient rounds as they are": ROUNDS + at,
        CENTRAL: f"{CENTRAL}, all weights{at}",
        "a student of DP-SGD teachers": f"{TEACHERS}, all weights, student{at}",
    }

    def figure(results: Results) -> str:
        data = comparisons(results)
        lines = {
            name: {each.name: each.gain(arm, LOCAL) for each in data} for name, arm in drawn.items()
        }
        title = f"Gain over local training at a patient's epsilon of {epsilon:g}"
        y_name = f"Dice over {LOCAL}, points, epsilon {epsilon:g}"
        return whiskers(title, "", y_name, lines, joined=False)

    return figure


# On synthetic hospitals: each choice changed alone, and the steps of rivals.

CHOSEN = "as chosen"
MODULES_ONLY = "norms and head only"
FLIPPED = "half of it, images only flipped and turned, not settled"
STUDENT = "a student of it, on the recipient's images"
FINE_TUNED = "fine-tuned on the recipient's images"
# Images of each synthetic hospital.
_IMAGES = 800


@dataclass(frozen=True)
class Choice:
    """A choice that is made otherwise.

    Args:
        rounds: fields of `Rounds` that are set.
        scenario: fields of the scenario that are set.
        after: fields of `GradientRelease` that are set.
        less: label of the row that this one is compared with.
        everywhere: tried at every synthetic hospital: where something follows from it, or more was
            to be known. Others are tried at the first two: at the third nothing is to be gained
            from patients, since centralised training is no better there than the initialisation.
    """

    rounds: Mapping[str, Any] | None = None
    scenario: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    less: str = CHOSEN
    everywhere: bool = False

    @property
    def hospitals(self) -> tuple[str, ...]:
        """Where it was tried."""
        return SYNTHETIC if self.everywhere else SYNTHETIC[:2]

    def start(self, hospital: str) -> Scenario:
        """Where rounds start."""
        return replace(start(hospital, 0, _IMAGES), **(self.scenario or {}))

    def row(self, hospital: str, epsilon: float) -> Row:
        """With this changed, and nothing else."""
        rounds = replace(Rounds(epsilon), **(self.rounds or {}))
        return Row(Trial(self.start(hospital), GradientRelease(rounds, **(self.after or {}))))


_FEW = {"target_modules": NORMS_AND_HEAD}
CHOICES = {
    CHOSEN: Choice(everywhere=True),
    "no noise, all else equal": Choice({"noise": False}),
    "half the displacement": Choice({"displacement_factor": 0.5}, everywhere=True),
    "twice the displacement": Choice({"displacement_factor": 2.0}),
    "a step of 0.1, whatever the noise": Choice({"step": 0.1}),
    "no momentum": Choice({"momentum": 0.0}),
    "no averaging": Choice({"polyak_fraction": 0.0}),
    "half the rounds": Choice({"rounds": 10}),
    "twice the rounds": Choice({"rounds": 40}),
    "a third of the subspace": Choice({"subspace_factor": 1 / 3}),
    "three times the subspace": Choice({"subspace_factor": 3.0}),
    "no preconditioning, p = 0": Choice({"precondition_power": 0.0}),
    "full preconditioning, p = 1": Choice({"precondition_power": 1.0}),
    "no subspace, all weights": Choice({"subspace_dim": 0}),
    MODULES_ONLY: Choice(_FEW, everywhere=True),
    "ellipsoid": Choice({**_FEW, "allocation": "ellipsoid"}, less=MODULES_ONLY, everywhere=True),
    "channels": Choice({**_FEW, "allocation": "channels"}, less=MODULES_ONLY, everywhere=True),
    "norms, head and LoRA of rank 2": Choice({**_FEW, "rank": 2}),
    "clipped at a tenth of the norms": Choice({"clip_quantile": 0.1}),
    "clipped at nine tenths": Choice({"clip_quantile": 0.9}),
    "two augmented views of every image": Choice({"augmult": 2}),
    "half of the initialisation's training": Choice(scenario={"init_length": 3}),
    FLIPPED: Choice(scenario={"init_length": 3, "deform": 0.0, "settle": 0.0}),
    "an initialisation that did not settle": Choice(scenario={"settle": 0.0}, everywhere=True),
    "half as many steps again, on 400 images that the initialisation labelled itself": Choice(
        scenario={"self_labelled": 400}
    ),
    FINE_TUNED: Choice(after={"fine_tune": FINE_TUNE}, everywhere=True),
    STUDENT: Choice(after={"unlabelled": 0}, everywhere=True),
    "a student of it, on 400 unlabelled images more": Choice(
        after={"unlabelled": 400}, everywhere=True
    ),
}
# What DP-SGD is tried with beside steps, at one hospital: as many passes as rounds make.
_TRIED_AT = "endoscopy"
_LONGER = {
    "as chosen": {},
    "twice the epochs, half of the patients a step": {"epochs": 20, "rate": 0.5},
}
# Parameters that are trained where noise could be allocated over channels.
_ALLOCATED = {"norms and head": NORMS_AND_HEAD, "all weights": ALL}


def controls(hospital: str) -> dict[str, Row]:
    """What a synthetic hospital reaches with no privacy to pay."""
    scenario = start(hospital, 0, _IMAGES)
    return {
        START: Row(Trial(scenario, Networks()), "networks.initialisation"),
        LOCAL: Row(Trial(scenario, Student("local-only"))),
        CENTRALISED: Row(Trial(scenario, Student("centralised"))),
    }


def dp_sgd_steps(hospital: str, epsilon: float) -> dict[str, Row]:
    """Every step of DP-SGD that was tried, by label."""
    scenario, found = start(hospital, 0, _IMAGES), dict[str, Row]()
    for (rival, what), steps in STEPS.items():
        for step in steps:
            label = f"{rival}, {what}{{}}, step {step:g}"
            found |= _rows(label, Trial(scenario, dp_sgd(rival, what, epsilon, step)))
    if hospital == _TRIED_AT:
        what = "all weights"
        for label, more in _LONGER.items():
            arm = dp_sgd(CENTRAL, what, epsilon, BEST[CENTRAL, what][epsilon], **more)
            found |= _rows(f"{CENTRAL}, {what}, at {hospital} only, {label}", Trial(scenario, arm))
    return found


def _agreements() -> list[Trial]:
    """How much patients agree, at the initialisation of flipped images and at ours."""
    return [
        Trial(CHOICES[name].start(hospital), Agreement())
        for hospital in SYNTHETIC
        for name in (FLIPPED, CHOSEN)
    ]


def _harms() -> dict[str, Trial]:
    return {
        f"{hospital}, {label}": Trial(start(hospital, 0, _IMAGES), NoiseHarm(modules))
        for label, modules in _ALLOCATED.items()
        for hospital in SYNTHETIC
    }


def choice_trials(seeds: int = 1) -> list[Trial]:
    """Everything that the tables are made of."""
    rows = [
        choice.row(hospital, epsilon)
        for choice in CHOICES.values()
        for hospital in choice.hospitals
        for epsilon in EPSILONS
    ]
    for hospital in SYNTHETIC:
        rows += controls(hospital).values()
        for epsilon in EPSILONS:
            rows += dp_sgd_steps(hospital, epsilon).values()
    once = [*(row.trial for row in rows), *_agreements(), *_harms().values()]
    return [each.at({"seed": seed}) for seed in range(seeds) for each in once]


def tried(
    results: Results, hospitals: Sequence[str], rows: Mapping[str, Callable[[str], Row]]
) -> Comparison:
    """Some rows over hospitals in place of seeds.

    Args:
        results: of all trials.
        hospitals: where they were tried.
        rows: at a hospital, by label.
    """
    known = {hospital: controls(hospital) for hospital in hospitals}
    networks = [results[known[hospital][START].trial] for hospital in hospitals]
    arms = {
        **{
            name: [known[each][name].result(results) for each in hospitals]
            for name in known[hospitals[0]]
        },
        **{name: [row(each).result(results) for each in hospitals] for name, row in rows.items()},
    }
    return Comparison("synthetic hospitals", networks, arms)


def choice_gain(results: Results, label: str, less: str, epsilon: float) -> Any:
    """What a choice is worth, where it and the other one were tried."""
    hospitals = [each for each in CHOICES[label].hospitals if each in CHOICES[less].hospitals]
    rows = {name: lambda at, name=name: CHOICES[name].row(at, epsilon) for name in (label, less)}
    return tried(results, hospitals, rows).gain(label, less)


def choices(results: Results) -> str:
    """Dice of what was chosen, and what every other choice is worth."""
    data, rows = tried(results, SYNTHETIC, {}), []
    for arm in data.arms:
        cells = [str(data.dice(arm).estimate())] * len(EPSILONS)
        rows.append([arm, f"{len(SYNTHETIC)}", *cells])
    for label, choice in CHOICES.items():
        row = [label if choice.less == CHOSEN else f"{label}, less {choice.less}"]
        row.append(f"{len(choice.hospitals)}")
        for epsilon in EPSILONS:
            if label == CHOSEN:
                chosen = {CHOSEN: lambda at, epsilon=epsilon: CHOICES[CHOSEN].row(at, epsilon)}
                data = tried(results, SYNTHETIC, chosen)
                closed = data.closed(CHOSEN, LOCAL, CENTRALISED)
                row.append(f"{data.dice(CHOSEN).estimate()}; gap closed: {closed}")
            else:
                row.append(choice_gain(results, label, choice.less, epsilon).signed)
        rows.append(row)
    return table(["", "hospitals", *(f"eps {each:g}" for each in EPSILONS)], rows)


def choice_steps(results: Results) -> str:
    """The mean Dice over hospitals of every step of DP-SGD."""
    by_hospital = [
        [dp_sgd_steps(hospital, epsilon) for epsilon in EPSILONS] for hospital in SYNTHETIC
    ]
    labels = dict.fromkeys(label for each in by_hospital for label in each[0])
    rows = []
    for label in labels:
        dice = [
            mean(each[n][label].result(results)["dice"] for each in by_hospital if label in each[n])
            for n in range(len(EPSILONS))
        ]
        rows.append([label, *(f"{100 * value:.1f}" for value in dice)])
    return table(["DP-SGD", *(f"eps {epsilon:g}" for epsilon in EPSILONS)], rows)


def choice_agreement(results: Results) -> str:
    """How long the mean of patients' unit gradients is."""
    rows = []
    for trial in _agreements():
        found, scenario = results[trial], trial.scenario
        how = "deformed, then settled" if scenario.settle else "flipped and turned"
        steps = round(scenario.init_length * scenario.steps)
        rows.append(
            [
                f"{scenario.data_set}, {steps:,} steps, images {how}",
                f"{found['agreement']:.3f}",
                f"{found['patients'] / found['recipient']:.1f} ×",
            ]
        )
    return table(["initialisation", "agreement", "patients' gradients, over the recipient's"], rows)


def choice_harm(results: Results) -> str:
    """What allocation over channels leaves of the harm of flat noise."""
    names = ("theory", "ellipsoid", "channels")
    rows = [
        [label, *(f"{100 * results[trial][name]:.0f} %" for name in names)]
        for label, trial in _harms().items()
    ]
    return table(["harm of noise left", "in theory", *names[1:]], rows)
