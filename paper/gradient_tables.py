"""Experiments on gradient releases: their arms as data, and the tables made of them.

Every arm pays one epsilon of a patient who is added or removed, and starts from one initialisation.
Settings of the rounds, and steps of DP-SGD, are chosen on synthetic hospitals (`CHOICES`, `STEPS`);
nothing by looking at real data sets (`EVERYBODY`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from statistics import mean
from typing import Any

from paper.arms import FeatureRelease, LongCentralised, Networks, Student
from paper.comparison import Comparison, Row, bold, fields_of, table, trials
from paper.drawing import whiskers
from paper.estimates import Estimate, holm
from paper.feature_tables import CENTRALISED, LOCAL
from paper.rivals import DPSGD, CentralisedDPSGD, DPSGDTeachers, SelfTraining, Votes
from paper.rounds import ALL, NORMS_AND_HEAD, Agreement, GradientRelease, NoiseHarm, Rounds
from paper.scenario import PAPER, SYNTHETIC, Scenario
from paper.trial import Results, Trial

EPSILONS = (8.0, 1.0)
START, SELF = "the initialisation", "self-training"
LONGER = f"{CENTRALISED}, as long as the initialisation"
ROUNDS = "gradient rounds"
TUNED, DISTILLED = f"{ROUNDS}, fine-tuned", f"{ROUNDS}, student"
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
_CONTROLS = {
    START: Row(Networks(), "networks.initialisation"),
    LOCAL: Row(Student("local-only")),
    CENTRALISED: Row(Student("centralised")),
}


def start(data_set: str, seed: int = 0, synthetic: int = 0) -> Scenario:
    """A scenario whose initialisation is trained longer, on deformed images, and settles."""
    return Scenario(data_set, seed, synthetic=synthetic, init_length=6, deform=1.0, settle=0.5)


def at(epsilon: float) -> str:
    """Ends the label of whoever pays it."""
    return f" eps {epsilon:g}"


def dp_sgd(
    rival: str, what: str, epsilon: float, step: float, ending: str, **more: Any
) -> dict[str, Row]:
    """A rival with one step, by label; of teachers, their ensemble and a student of it.

    Args:
        rival: who trains.
        what: is trained.
        epsilon: of a patient.
        step: of SGD.
        ending: of the labels.
        more: other settings of `DPSGD`, or `changes` of the scenario.
    """
    changes = more.pop("changes", {})
    settings = DPSGD(epsilon=epsilon, step=step, target_modules=TRAINED[what], **more)
    if rival == CENTRAL:
        return {f"{rival}, {what}{ending}": Row(CentralisedDPSGD(settings), changes=changes)}
    return {
        f"{rival}, {what}, {part}{ending}": Row(DPSGDTeachers(settings), part, changes)
        for part in DPSGDTeachers.parts
    }


# On real data: everybody at the same epsilon.


def _everybody() -> dict[str, Row]:
    changes = {"match_people": True}
    found = {
        START: _CONTROLS[START],
        SELF: Row(SelfTraining()),
        LOCAL: _CONTROLS[LOCAL],
        CENTRALISED: _CONTROLS[CENTRALISED],
        LONGER: Row(LongCentralised()),
    }
    for epsilon in EPSILONS:
        ending, rounds = at(epsilon), Rounds(epsilon)
        found |= {
            ROUNDS + ending: Row(GradientRelease(rounds), changes=changes),
            TUNED + ending: Row(GradientRelease(rounds, FINE_TUNE), changes=changes),
            DISTILLED + ending: Row(GradientRelease(rounds, unlabelled=0), changes=changes),
        }
        for (rival, what), steps in BEST.items():
            found |= dp_sgd(rival, what, epsilon, steps[epsilon], ending, changes=changes)
        features = FeatureRelease("honest", epsilon)
        found["CANAL features" + ending] = Row(Student("release", features))
        found["noisy votes" + ending] = Row(Votes(epsilon))
    return found


EVERYBODY = _everybody()


def gradient_trials(seeds: int = 5) -> list[Trial]:
    """Everybody on the paper's data sets."""
    return trials([start(name, seed) for name in PAPER for seed in range(seeds)], EVERYBODY)


@lru_cache(maxsize=1)
def comparisons(results: Results) -> list[Comparison]:
    """Everybody on every data set."""
    seeds = range(5)
    return [Comparison(results, [start(name, n) for n in seeds], EVERYBODY) for name in PAPER]


def rivals(epsilon: float) -> list[str]:
    """Rows that are not ours and pay this epsilon."""
    paying = [label for label in EVERYBODY if label.endswith(at(epsilon))]
    return [label for label in paying if label.removesuffix(at(epsilon)) not in OURS]


def goals(results: Results) -> str:
    """What was to be closed of the gap, what is, and by the rival that closes most."""
    data, rows = comparisons(results), []
    for epsilon in EPSILONS:
        goal, chosen = GOALS[epsilon]
        for arm in OURS:
            closed = [each.closed(arm + at(epsilon), LOCAL, CENTRALISED) for each in data]
            rows.append([f"{epsilon:g}", f"{goal} %" if arm == chosen else "", arm, *closed])
        rows.append([f"{epsilon:g}", "", "the rival that closes most"])
        for each in data:
            dice = {rival: each.sample(rival).means.mean() for rival in rivals(epsilon)}
            best = max(dice, key=lambda rival: dice[rival])
            share = each.closed(best, LOCAL, CENTRALISED)
            rows[-1].append(f"{share}: {best.removesuffix(at(epsilon))}")
    return table(["eps", "goal", "gap closed by", *PAPER], rows)


def gradients(results: Results) -> str:
    """Dice of everybody."""
    data, heads, rows = comparisons(results), ["arm"], []
    for name in PAPER:
        heads += [f"{name}: Dice", "gap closed"]
    for arm in EVERYBODY:
        row = [arm]
        for each in data:
            closed = "–" if arm == LOCAL else each.closed(arm, LOCAL, CENTRALISED)
            row += [str(each.dice(arm)), closed]
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
        for rival in (LOCAL, SELF, *rivals(epsilon))
    ]
    gains = [[each.gain(ours + at(eps), rival) for each in data] for eps, ours, rival in pairs]
    corrected = iter(holm([gain.p for row in gains for gain in row]))
    rows = []
    for (epsilon, ours, rival), row in zip(pairs, gains, strict=True):
        cells = [bold(gain, next(corrected)) for gain in row]
        rows.append([f"{epsilon:g}", ours, rival.removesuffix(at(epsilon)), *cells])
    return table(["eps", "arm", "less", *PAPER], rows)


def students(results: Results) -> str:
    """What the recipient's own images do to gradient rounds: two ways to a student."""
    rows = []
    for epsilon, arm in product(EPSILONS, (TUNED, DISTILLED)):
        pair = arm + at(epsilon), ROUNDS + at(epsilon)
        gains = [each.gain(*pair).signed for each in comparisons(results)]
        rows.append([f"{epsilon:g}", arm, *gains])
    return table(["eps", f"less {ROUNDS} as they are", *PAPER], rows)


def other_gaps(results: Results) -> str:
    """What rounds close of other gaps: from the initialisation, and to longer training."""
    gaps, rows = ((START, CENTRALISED), (LOCAL, LONGER)), []
    for epsilon, name, (below, above) in product(EPSILONS, OURS, gaps):
        arm = name + at(epsilon)
        closed = [each.closed(arm, below, above) for each in comparisons(results)]
        rows.append([arm, f"{below} to {above}", *closed])
    return table(["arm", "gap", *PAPER], rows)


def gradient_figure(epsilon: float) -> Callable[[Results], str]:
    """What centralised training, rounds and DP-SGD gain over local training."""
    drawn = {
        "centralised, not private": CENTRALISED,
        "gradient rounds as they are": ROUNDS + at(epsilon),
        CENTRAL: f"{CENTRAL}, all weights{at(epsilon)}",
        "a student of DP-SGD teachers": f"{TEACHERS}, all weights, student{at(epsilon)}",
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


# On synthetic hospitals: each choice changed by itself, and the steps of rivals.

CHOSEN = "as chosen"
MODULES_ONLY = "norms and head only"
FLIPPED = "half of it, images only flipped and turned, not settled"
UNSETTLED = "an initialisation that did not settle"
FINE_TUNED = "fine-tuned on the recipient's images"
STUDENT = "a student of it, on the recipient's images"
LARGER_STUDENT = "a student of it, on 400 unlabelled images more"
_FEW = {"target_modules": NORMS_AND_HEAD}
# Fields of rounds, of what comes after them, and of the scenario.
CHOICES: dict[str, dict[str, Any]] = {
    CHOSEN: {},
    "no noise, all else equal": {"noise": False},
    "half the displacement": {"displacement_factor": 0.5},
    "twice the displacement": {"displacement_factor": 2.0},
    "a step of 0.1, whatever the noise": {"step": 0.1},
    "no momentum": {"momentum": 0.0},
    "no averaging": {"polyak_fraction": 0.0},
    "half the rounds": {"rounds": 10},
    "twice the rounds": {"rounds": 40},
    "a third of the subspace": {"subspace_factor": 1 / 3},
    "three times the subspace": {"subspace_factor": 3.0},
    "no preconditioning, p = 0": {"precondition_power": 0.0},
    "full preconditioning, p = 1": {"precondition_power": 1.0},
    "no subspace, all weights": {"subspace_dim": 0},
    MODULES_ONLY: _FEW,
    "ellipsoid": {**_FEW, "allocation": "ellipsoid"},
    "channels": {**_FEW, "allocation": "channels"},
    "norms, head and LoRA of rank 2": {**_FEW, "rank": 2},
    "clipped at a tenth of the norms": {"clip_quantile": 0.1},
    "clipped at nine tenths": {"clip_quantile": 0.9},
    "two augmented views of every image": {"augmult": 2},
    "half of the initialisation's training": {"init_length": 3},
    FLIPPED: {"init_length": 3, "deform": 0.0, "settle": 0.0},
    UNSETTLED: {"settle": 0.0},
    "half as many steps again, on 400 images that the initialisation labelled itself": {
        "self_labelled": 400
    },
    FINE_TUNED: {"fine_tune": FINE_TUNE},
    STUDENT: {"unlabelled": 0},
    LARGER_STUDENT: {"unlabelled": 400},
}
# What a choice is compared with, where that is not what was chosen.
LESS = {"ellipsoid": MODULES_ONLY, "channels": MODULES_ONLY}
# Tried at every synthetic hospital: where something follows from it, or more was to be known.
# Others are tried at the first two: at the third nothing is to be gained from patients, since
# centralised training is no better there than the initialisation.
EVERYWHERE = (
    *(CHOSEN, "half the displacement", MODULES_ONLY, "ellipsoid", "channels", UNSETTLED),
    *(FINE_TUNED, STUDENT, LARGER_STUDENT),
)
_HOSPITALS = [start(name, synthetic=800) for name in SYNTHETIC]
# What DP-SGD is tried with beside steps, at one hospital: as many passes as rounds make.
_TRIED_AT = start("endoscopy", synthetic=800)
_LONGER: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "twice the epochs, half of the patients a step": {"epochs": 20, "rate": 0.5},
}
# Parameters that are trained where noise could be allocated over channels.
_ALLOCATED = {"norms and head": NORMS_AND_HEAD, "all weights": ALL}


def tried_at(*choices: str) -> list[Scenario]:
    """Hospitals where all of these were tried."""
    return _HOSPITALS if all(each in EVERYWHERE for each in choices) else _HOSPITALS[:2]


def choice(label: str, epsilon: float) -> Row:
    """What was chosen with this changed, and nothing else."""
    settings = CHOICES[label]
    rounds = Rounds(epsilon, **fields_of(settings, Rounds))
    arm = GradientRelease(**fields_of(settings, GradientRelease) | {"rounds": rounds})
    return Row(arm, changes=fields_of(settings, Scenario))


def tried_steps(epsilon: float) -> dict[str, Row]:
    """Every step of DP-SGD that was tried, by label."""
    found: dict[str, Row] = {}
    for (rival, what), steps in STEPS.items():
        for step in steps:
            found |= dp_sgd(rival, what, epsilon, step, f", step {step:g}")
    return found


def _tried_longer(epsilon: float) -> dict[str, Row]:
    """The best step of all weights, and what else it was tried with."""
    what, found = "all weights", dict[str, Row]()
    for label, more in _LONGER.items():
        ending = f", at {_TRIED_AT.data_set} only, {label}"
        found |= dp_sgd(CENTRAL, what, epsilon, BEST[CENTRAL, what][epsilon], ending, **more)
    return found


def _agreements() -> list[Trial]:
    """How much patients agree, at the initialisation of flipped images and at ours."""
    starts = [fields_of(CHOICES[label], Scenario) for label in (FLIPPED, CHOSEN)]
    return [Row(Agreement(), changes=each).trial(at) for at in _HOSPITALS for each in starts]


def _harms() -> dict[str, Trial]:
    return {
        f"{scenario.data_set}, {label}": Trial(scenario, NoiseHarm(modules))
        for label, modules in _ALLOCATED.items()
        for scenario in _HOSPITALS
    }


def choice_trials(seeds: int = 1) -> list[Trial]:
    """Everything that the tables are made of."""
    found = [
        row.trial(scenario)
        for label, epsilon in product(CHOICES, EPSILONS)
        for row in (choice(label, epsilon),)
        for scenario in tried_at(label)
    ]
    for epsilon in EPSILONS:
        found += trials(_HOSPITALS, _CONTROLS | tried_steps(epsilon))
        found += trials([_TRIED_AT], _tried_longer(epsilon))
    found += [*_agreements(), *_harms().values()]
    return [each.at({"seed": seed}) for seed in range(seeds) for each in found]


def choice_gain(results: Results, label: str, less: str, epsilon: float) -> Estimate:
    """What a choice is worth, where it and the other one were tried."""
    rows = {name: choice(name, epsilon) for name in (label, less)}
    return Comparison(results, tried_at(label, less), rows).gain(label, less)


def choices(results: Results) -> str:
    """Dice of what was chosen, and what every other choice is worth."""
    chosen = {f"{CHOSEN}{at(epsilon)}": choice(CHOSEN, epsilon) for epsilon in EPSILONS}
    data = Comparison(results, _HOSPITALS, _CONTROLS | chosen)
    many = f"{len(_HOSPITALS)}"
    rows = [[name, many, *[str(data.dice(name))] * len(EPSILONS)] for name in _CONTROLS]
    closed = [
        f"{data.dice(name)}; gap closed: {data.closed(name, LOCAL, CENTRALISED)}" for name in chosen
    ]
    rows.append([CHOSEN, many, *closed])
    for label in list(CHOICES)[1:]:
        less = LESS.get(label, CHOSEN)
        said = label if less == CHOSEN else f"{label}, less {less}"
        gains = [choice_gain(results, label, less, epsilon).signed for epsilon in EPSILONS]
        rows.append([said, f"{len(tried_at(label))}", *gains])
    return table(["", "hospitals", *(f"eps {each:g}" for each in EPSILONS)], rows)


def choice_steps(results: Results) -> str:
    """The mean Dice over hospitals of every step of DP-SGD."""
    rows = [
        *_mean_dice(results, _HOSPITALS, [tried_steps(epsilon) for epsilon in EPSILONS]),
        *_mean_dice(results, [_TRIED_AT], [_tried_longer(epsilon) for epsilon in EPSILONS]),
    ]
    return table(["DP-SGD", *(f"eps {epsilon:g}" for epsilon in EPSILONS)], rows)


def _mean_dice(
    results: Results, hospitals: Sequence[Scenario], columns: Sequence[Mapping[str, Row]]
) -> list[list[str]]:
    rows = []
    for label in columns[0]:
        dice = [mean(c[label].result(results, each)["dice"] for each in hospitals) for c in columns]
        rows.append([label, *(f"{100 * value:.1f}" for value in dice)])
    return rows


def choice_agreement(results: Results) -> str:
    """How long the mean of patients' unit gradients is."""
    rows = []
    for trial in _agreements():
        found, scenario = results[trial], trial.scenario
        how = "deformed, then settled" if scenario.settle else "flipped and turned"
        steps = round(scenario.init_length * scenario.steps)
        label = f"{scenario.data_set}, {steps:,} steps, images {how}"
        ratio = found["patients"] / found["recipient"]
        rows.append([label, f"{found['agreement']:.3f}", f"{ratio:.1f} ×"])
    return table(["initialisation", "agreement", "patients' gradients, over the recipient's"], rows)


def choice_harm(results: Results) -> str:
    """What allocation over channels leaves of the harm of flat noise."""
    names = ("theory", "ellipsoid", "channels")
    rows = [
        [label, *(f"{100 * results[trial][name]:.0f} %" for name in names)]
        for label, trial in _harms().items()
    ]
    return table(["harm of noise left", "in theory", *names[1:]], rows)
