"""Experiments on feature releases: their arms as data, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from canal import Plan
from canal.privacy.iteration import Penalty, penalty
from canal.privacy.units import UNITS, Participants
from canal.release.digits import upwards
from paper.arms import FeatureRelease, Networks, Outlines, PerIteration, Student, Teachers
from paper.drawing import loglog, outline_sheet, whiskers
from paper.estimates import Comparison, Estimate, holm
from paper.scenario import PAPER, Scenario
from paper.trial import Arm, Results, Trial

LOCAL, NOISE_ONLY, CENTRALISED = "local only", "noise only", "centralised"
EPSILONS = (1.0, 2.0, 4.0, 8.0)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = (heads, ["---"] * len(heads), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def scenarios(data_set: str, seeds: int, **changes: Any) -> list[Scenario]:
    """One for each seed."""
    return [Scenario(data_set, seed, **changes) for seed in range(seeds)]


def trials(chosen: Sequence[Scenario], arms: Mapping[str, Arm]) -> list[Trial]:
    """All arms, and the networks that they are compared with."""
    return [Trial(scenario, arm) for scenario in chosen for arm in (Networks(), *arms.values())]


def compare(results: Results, chosen: Sequence[Scenario], arms: Mapping[str, Arm]) -> Comparison:
    """All arms over the same seeds."""
    return Comparison(
        chosen[0].data_set,
        [results[Trial(scenario, Networks())] for scenario in chosen],
        {name: [results[Trial(each, arm)] for each in chosen] for name, arm in arms.items()},
        chosen[0].test,
    )


# Table 1: CANAL against uniform noise, with the controls that the paper lacks.

MEMBERS = {"initialisation": "the initialisation", "teachers": "a teacher", "ensemble": "ensemble"}
CONTROLS: dict[str, Arm] = {
    LOCAL: Student("local-only"),
    NOISE_ONLY: Student("noise-only", FeatureRelease(epsilon=8.0)),
    "noiseless": Student("noiseless", FeatureRelease(allocation="none")),
    "noiseless, all channels": Student("noiseless", FeatureRelease(allocation="none", share=1.0)),
    CENTRALISED: Student("centralised"),
}
TABLE1 = (
    CONTROLS
    | {
        f"{label} eps {epsilon:g}": Student("release", FeatureRelease("paper", epsilon, allocation))
        for epsilon in EPSILONS
        for label, allocation in (("uniform", "uniform"), ("CANAL", "canal"))
    }
    | {"CANAL, a patient's eps 8": Student("release", FeatureRelease("honest", 8.0))}
)
# What the paper reports, by data set and epsilon: uniform, CANAL.
REPORTED = {
    "Kvasir-SEG": {1: (69.40, 70.81), 2: (73.08, 73.56), 4: (74.20, 75.22), 8: (73.71, 74.98)},
    "BUSI": {1: (59.77, 61.42), 2: (63.00, 64.27), 4: (65.55, 66.59), 8: (66.20, 67.01)},
    "ISIC 2018": {1: (82.75, 83.14), 2: (83.75, 84.17), 4: (84.58, 84.79), 8: (83.94, 84.52)},
}


def table1_trials(seeds: int = 5) -> list[Trial]:
    """All arms on the paper's data sets."""
    return [each for name in PAPER for each in trials(scenarios(name, seeds), TABLE1)]


def _table1(results: Results) -> list[Comparison]:
    return [compare(results, scenarios(name, 5), TABLE1) for name in PAPER]


def table1(results: Results) -> str:
    """Dice of every arm, and the share of the gap that it closes."""
    data = _table1(results)
    heads = ["arm", f"eps: {', '.join(UNITS)}"]
    heads += [
        f"{each.name}: {what}" if what == "Dice" else what
        for each in data
        for what in ("Dice", "gap closed")
    ]
    rows = []
    for arm in (*MEMBERS, *TABLE1):
        row = [MEMBERS.get(arm, arm), _epsilons(data, arm)]
        for each in data:
            closed = "–" if arm in (LOCAL, *MEMBERS) else each.closed(arm, LOCAL, CENTRALISED)
            row += [str(each.dice(arm).estimate()), closed]
        rows.append(row)
    return table(heads, rows)


def _epsilons(data: Sequence[Comparison], arm: str) -> str:
    """The largest over data sets and seeds; infinite where nothing is promised."""
    found = [each["epsilon"] for one in data for each in one.arms.get(arm, ()) if "epsilon" in each]
    largest = [_largest([each[unit] for each in found]) for unit in UNITS if found]
    return ", ".join(largest) or "–"


def _largest(epsilons: Sequence[float | None]) -> str:
    known = [value for value in epsilons if value is not None]
    return "∞" if len(known) < len(epsilons) else f"{upwards(max(known), 4):g}"


def table1_differences(results: Results) -> str:
    """CANAL less uniform noise at every epsilon, corrected for how many are looked at."""
    pairs = [
        (each.name, epsilon, each.gain(f"CANAL eps {epsilon:g}", f"uniform eps {epsilon:g}"))
        for each in _table1(results)
        for epsilon in EPSILONS
    ]
    heads = ["data", "eps", "CANAL − uniform", "p", "p, Holm", "the paper's CANAL − uniform"]
    rows = []
    for (name, epsilon, gain), p in zip(pairs, holm([gain.p for *_, gain in pairs]), strict=True):
        uniform, ours = REPORTED[name][int(epsilon)]
        theirs = f"{ours:.2f} − {uniform:.2f} = +{ours - uniform:.2f}"
        rows.append([name, f"{epsilon:g}", gain.signed, f"{gain.p:.2g}", f"{p:.2g}", theirs])
    return table(heads, rows)


def table1_gains(results: Results) -> str:
    """What each arm gains over local training, and how much signal there was to gain it from."""
    data = _table1(results)
    heads = ["arm", *(f"{each.name}: {what}" for each in data for what in ("gain", "signal"))]
    rows = []
    for arm in TABLE1:
        if arm != LOCAL:
            cells = [(each.gain(arm, LOCAL).signed, _signal(each, arm)) for each in data]
            rows.append([arm, *(cell for pair in cells for cell in pair)])
    return table(heads, rows)


def _signal(data: Comparison, arm: str) -> str:
    if arm in (NOISE_ONLY, CENTRALISED):
        return "–"
    if arm.startswith("noiseless"):
        return "all"
    return decibels(each["signal_db"] for each in data.arms[arm])


def decibels(values: Iterable[float | None]) -> str:
    """A mean over seeds; one without any signal makes it minus infinity."""
    found = list(values)
    if None in found:
        return "−∞ dB"
    return f"{np.mean([value for value in found if value is not None]):.1f} dB"


# The ablation: what each of our changes to the paper's mechanism does, alone and together.


@dataclass(frozen=True)
class Change:
    """What is changed.

    Args:
        choices: arguments of `canal.Plan`.
        release: other fields of the release.
        student: fields of the student.
        sites: K.
    """

    choices: tuple[tuple[str, Any], ...] = ()
    release: tuple[tuple[str, Any], ...] = ()
    student: tuple[tuple[str, Any], ...] = ()
    sites: int = 3

    def arm(self, accounting: str, epsilon: float) -> Student:
        """With this changed, and nothing else."""
        choices = ACCOUNTINGS[accounting] + self.choices
        asked = replace(FeatureRelease(epsilon=epsilon, choices=choices), **dict(self.release))
        return Student("release", asked, **dict(self.student))


# Whose epsilon it is, by what that asks of a plan.
ACCOUNTINGS: dict[str, tuple[tuple[str, Any], ...]] = {
    "paper": (),
    "patient": (("unit", "patient"),),
}
BASELINE = "the paper's mechanism"
_EXACT, _NONNEGATIVE = ("conversion", "exact"), ("nonnegative", True)
_MATCHED, _REVERSE = ("weight", "matched"), ("allocation", "reverse")
_PUBLIC = (("caps_source", "public"), ("importance_source", "public"))
_COSINE, _WIENER = ("frequencies", 2), ("wiener", True)
_PRECISION = ("channel_weight", "precision")
ABLATION = {
    BASELINE: Change(),
    "exact conversion": Change((_EXACT,)),
    "non-negative sensitivity": Change((_NONNEGATIVE,)),
    "matched weight": Change((_MATCHED,)),
    "public statistics": Change(_PUBLIC),
    "reverse water-filling": Change(release=(_REVERSE,)),
    "cosine projection": Change(student=(_COSINE,)),
    "Wiener": Change(student=(_WIENER,)),
    "precision-weighted loss": Change(student=(_PRECISION,)),
    "M = 1 %": Change(release=(("share", 0.01),)),
    "M = 5 %": Change(release=(("share", 0.05),)),
    "M = 25 %": Change(release=(("share", 0.25),)),
    "M = 100 %": Change(release=(("share", 1.0),)),
    "K = 1": Change(sites=1),
    "K = 5": Change(sites=5),
    "K = 10": Change(sites=10),
    "all together, K = 10": Change(
        (_EXACT, _NONNEGATIVE, _MATCHED, *_PUBLIC),
        (_REVERSE,),
        (_COSINE, _WIENER, _PRECISION),
        sites=10,
    ),
}
ABLATED = ("BUSI", "Kvasir-SEG")
COLUMNS = tuple(product(ACCOUNTINGS, (8.0, 1.0)))


def ablation_trials(seeds: int = 3) -> list[Trial]:
    """Every change under every accounting."""
    return [
        each
        for name in ABLATED
        for change in ABLATION.values()
        for each in trials(
            scenarios(name, seeds, sites=change.sites),
            {f"{column}": change.arm(*column) for column in COLUMNS},
        )
    ]


def ablation(results: Results) -> str:
    """One table a data set: gain over the paper's mechanism in Dice, and the signal in dB.

    Gains that chance does not explain, at 5 % over the whole table (Holm), are bold.
    """
    heads = ["change"]
    for accounting, epsilon in COLUMNS:
        heads += [f"{accounting} eps {epsilon:g}: signal", "Dice"]
    tables = []
    for name in ABLATED:
        found = {
            (label, column): _ablated(results, name, label, column)
            for label in ABLATION
            for column in COLUMNS
        }
        changes = [key for key in found if key[0] != BASELINE]
        p_values = dict(zip(changes, holm([found[key][0].p for key in changes]), strict=True))
        rows = []
        for label in ABLATION:
            row = [label]
            for column in COLUMNS:
                gain, signal = found[label, column]
                text = str(gain) if label == BASELINE else gain.signed
                bold = p_values.get((label, column), 1.0) < 0.05
                row += [signal, f"**{text}**" if bold else text]
            rows.append(row)
        tables.append(f"{name}:\n\n{table(heads, rows)}")
    return "\n".join(tables)


def _ablated(
    results: Results, name: str, label: str, column: tuple[str, float]
) -> tuple[Estimate, str]:
    """Dice of the paper's mechanism, or what a change gains over it; and the mean signal."""
    change, base = ABLATION[label], scenarios(name, 3)
    chosen = [replace(each, sites=change.sites) for each in base]
    data = compare(results, chosen, {label: change.arm(*column)})
    signal = decibels(each["signal_db"] for each in data.arms[label])
    if label == BASELINE:
        return data.dice(label).estimate(), signal
    data.arms = {
        **data.arms,
        BASELINE: [results[Trial(each, ABLATION[BASELINE].arm(*column))] for each in base],
    }
    return data.gain(label, BASELINE), signal


# The paper's figure of ensemble sizes: ISIC 2018 in K cohorts, uniform noise at epsilon 8.

SIZES = (1, 2, 3, 5, 8)
STUDENTS: dict[str, Arm] = {
    "student, no noise": Student("noiseless", FeatureRelease(allocation="none")),
    "student, uniform eps 8": Student("release", FeatureRelease(allocation="uniform")),
}


def ensemble_trials(seeds: int = 3) -> list[Trial]:
    """Students of every K; one that trains locally knows of no teacher."""
    found = trials(scenarios("ISIC 2018", seeds), {LOCAL: CONTROLS[LOCAL]})
    for size in SIZES:
        found += trials(scenarios("ISIC 2018", seeds, sites=size), STUDENTS)
    return found


def _ensembles(results: Results) -> dict[str, dict[str, Estimate]]:
    """By arm and K."""
    by_size = {
        str(size): compare(results, scenarios("ISIC 2018", 3, sites=size), STUDENTS)
        for size in SIZES
    }
    local = compare(results, scenarios("ISIC 2018", 3), {LOCAL: CONTROLS[LOCAL]})
    alone = local.dice(LOCAL).estimate()
    lines = {"the ensemble itself": "ensemble", **{name: name for name in STUDENTS}}
    found = {
        name: {size: data.dice(arm).estimate() for size, data in by_size.items()}
        for name, arm in lines.items()
    }
    return {**found, "student, local only": dict.fromkeys(by_size, alone)}


def ensemble_size(results: Results) -> str:
    """The numbers of the figure."""
    rows = [[arm, *map(str, line.values())] for arm, line in _ensembles(results).items()]
    return table(["arm", *(f"K = {size}" for size in SIZES)], rows)


def ensemble_figure(results: Results) -> str:
    """One line for each arm."""
    title = "Dice against ensemble size on ISIC 2018"
    return whiskers(title, "K, teachers", "Dice", _ensembles(results))


# The paper's qualitative figure: outlines of students at epsilon 2, of the first seed.

OUTLINED = (LOCAL, "uniform eps 2", "CANAL eps 2", CENTRALISED)
_OUTLINES = Outlines(tuple(TABLE1[name] for name in OUTLINED))  # type: ignore[misc]


def outline_trials(seeds: int = 1) -> list[Trial]:
    """One figure a seed."""
    return [Trial(each, _OUTLINES) for name in PAPER for each in scenarios(name, seeds)]


def outlines(results: Results) -> str:
    """Dice of what is shown, so that nobody has to judge outlines by eye."""
    rows = [
        [name, *(f"{100 * dice:.0f}" for dice in case)]
        for name in PAPER
        for case in results[Trial(Scenario(name), _OUTLINES)]["dice"]
    ]
    return table(["Dice of the image shown", *OUTLINED], rows)


def outlines_figure(results: Results) -> str:
    """Outlines alone: the images belong to their data sets."""
    found = {name: results[Trial(Scenario(name), _OUTLINES)] for name in PAPER}
    return outline_sheet(found, ["truth", *OUTLINED])


# The composition penalty: released once, against fresh noise at every step of the student.

ONCE, OFTEN = Student("release", FeatureRelease(allocation="uniform")), PerIteration()
TIMES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)


def composition_trials(seeds: int = 3) -> list[Trial]:
    """The real runs: once, per iteration, local only."""
    arms = {"once": ONCE, "often": OFTEN, LOCAL: CONTROLS[LOCAL]}
    return trials(scenarios("BUSI", seeds), arms)


def _penalties() -> list[Penalty]:
    scenario = Scenario("BUSI")
    plan = Plan.preset(
        "paper",
        epsilon=8.0,
        allocation="uniform",
        participants=Participants(scenario.sites, scenario.recipient),
        channels=16 * scenario.base_channels,
        grid=(scenario.size // 16,) * 2,
    )
    promise = plan.calibrate().guarantee
    return [penalty(promise, times, plan.delta, "paper", "exact") for times in TIMES]


def composition(results: Results) -> str:  # noqa: ARG001  # accounting alone
    """Epsilon and noise for any number of releases of an image."""
    heads = ["Q", "eps at the same noise, exact", "noise at the same eps", "signal lost"]
    rows = [
        [
            f"{each.releases:,}",
            f"{each.epsilon_per_iteration:.4g}",
            f"× {each.sigma_factor:.3g}",
            f"{each.snr_loss_db:.1f} dB",
        ]
        for each in _penalties()
    ]
    return table(heads, rows)


def composition_runs(results: Results) -> str:
    """The real runs."""
    arms = {"once": ONCE, "often": OFTEN, LOCAL: CONTROLS[LOCAL]}
    data = compare(results, scenarios("BUSI", 3), arms)
    labels = {
        "once": "released once, uniform eps 8",
        "often": f"at every step, Q = {data.arms['often'][0]['releases']}, uniform eps 8",
    }
    rows = [
        [label, str(data.dice(arm).estimate()), data.gain(arm, LOCAL).signed]
        for arm, label in labels.items()
    ]
    return table([data.name, "Dice", f"gain over {LOCAL}"], rows)


def composition_figure(results: Results) -> str:  # noqa: ARG001  # accounting alone
    """Epsilon at the same noise, once and per iteration."""
    found = _penalties()
    drawn = {
        "per iteration": [(float(each.releases), each.epsilon_per_iteration) for each in found],
        "once": [(float(each.releases), each.epsilon_once) for each in found],
    }
    return loglog(
        "composition", "Epsilon at the same noise", drawn, "Q, releases of an image", "eps"
    )


# Three real hospitals with polyps: each in turn asks the others.

HOSPITALS = ("Kvasir-SEG", "CVC-ClinicDB", "ETIS-Larib")
HOSPITAL_ARMS: dict[str, Arm] = {
    LOCAL: CONTROLS[LOCAL],
    "noiseless": CONTROLS["noiseless"],
    "CANAL, the paper's eps 8": Student("release", FeatureRelease()),
    "CANAL, a patient's eps 8": Student("release", FeatureRelease("honest")),
    CENTRALISED: CONTROLS[CENTRALISED],
}


def _hospital(recipient: str, seeds: int) -> list[Scenario]:
    """Half of the recipient's images are tested on, for some have few."""
    others = tuple(name for name in HOSPITALS if name != recipient)
    return scenarios(recipient, seeds, others=others, test=0.5)


def hospital_trials(seeds: int = 3) -> list[Trial]:
    """All arms for every recipient."""
    return [each for name in HOSPITALS for each in trials(_hospital(name, seeds), HOSPITAL_ARMS)]


def hospitals(results: Results) -> str:
    """Dice of everyone, and gains over local training; one column a recipient."""
    columns = {name: _column(results, name) for name in HOSPITALS}
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    # Whoever is a teacher for one is the recipient of another: all teachers beside each other.
    names.sort(key=lambda name: (not name.startswith("its"), not name.startswith("the teacher")))
    rows = [[name, *(column.get(name, "–") for column in columns.values())] for name in names]
    return table(["", *(f"recipient {name}" for name in columns)], rows)


def _column(results: Results, recipient: str) -> dict[str, str]:
    data = compare(results, _hospital(recipient, 3), HOSPITAL_ARMS)
    column = {
        "its labelled images (patients)": _counted(data, "recipient"),
        "its test images (patients)": _counted(data, "test"),
    }
    for teacher in HOSPITALS:
        if teacher != recipient:
            column[f"the teacher of {teacher}"] = str(data.dice(teacher).estimate())
    column["their ensemble"] = str(data.dice("ensemble").estimate())
    for arm, found in data.arms.items():
        column[arm] = str(data.dice(arm).estimate())
        if arm != LOCAL:
            gain = data.gain(arm, LOCAL)
            column[f"{arm}: gain over {LOCAL}"] = f"{gain.signed}, p {gain.p:.2g}"
        if arm.startswith("CANAL"):
            patient = [each["epsilon"]["patient"] for each in found]
            column[f"{arm}: signal"] = decibels(each["signal_db"] for each in found)
            column[f"{arm}: a patient's eps"] = _largest(patient)
    return column


def _counted(data: Comparison, part: str) -> str:
    """Over seeds, from the least to the most."""
    words = []
    for what in ("sizes", "patients"):
        counts = [each[what][part] for each in data.networks]
        words.append("–".join(map(str, sorted({min(counts), max(counts)}))))
    return "{} ({})".format(*words)


# Teachers on real data, and why all of them start from one initialisation.

_TEACHERS = {
    Scenario(name, recipient=60, base_channels=16, norm="group", batch_size=16): Teachers(
        random=name == "BUSI"
    )
    for name in PAPER
}


def teacher_trials(seeds: int = 1) -> list[Trial]:
    """One for each data set and seed."""
    return [
        Trial(replace(scenario, seed=seed), arm)
        for seed in range(seeds)
        for scenario, arm in _TEACHERS.items()
    ]


def teachers(results: Results) -> str:
    """Scores of every network."""
    heads = ["data", "network", "trained on", "test images", "Dice", "95 % interval", "IoU", "HD95"]
    rows = []
    for scenario, arm in _TEACHERS.items():
        result = results[Trial(scenario, arm)]
        networks = {
            "recipient only (the initialisation)": result["recipient"],
            **result["networks"],
        }
        for name, found in networks.items():
            low, high = (f"{100 * end:.1f}" for end in found["dice_interval"])
            rows.append(
                [
                    *(scenario.data_set, name, str(found["trained_on"]), str(found["images"])),
                    *(f"{100 * found['dice']:.1f}", f"{low} to {high}"),
                    *(f"{100 * found['iou']:.1f}", f"{found['hd95']:.1f} px"),
                ]
            )
    return table(heads, rows)


def teacher_alignment(results: Results) -> str:
    """Whether channels of two teachers agree."""
    rows = [
        [scenario.data_set, name, f"{found['cosine']:.2f}", f"{found['correlation']:.2f}"]
        for scenario, arm in _TEACHERS.items()
        for name, found in results[Trial(scenario, arm)]["alignment"].items()
    ]
    heads = ["data", "initialisation of two teachers", "cosine", "channel correlation"]
    return table(heads, rows)
