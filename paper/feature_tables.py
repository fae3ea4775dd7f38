"""Experiments on feature releases: their arms as data, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from canal import Plan
from canal.privacy.iteration import Penalty, penalty
from canal.privacy.units import UNITS, Participants
from canal.release.digits import upwards
from paper.arms import FeatureRelease, Networks, Outlines, PerIteration, Student, Teachers
from paper.comparison import Comparison, Row, bold, fields_of, table, trials
from paper.drawing import loglog, outline_sheet, whiskers
from paper.estimates import Estimate, holm
from paper.scenario import PAPER, Scenario
from paper.trial import Results, Trial

LOCAL, NOISE_ONLY, CENTRALISED = "local only", "noise only", "centralised"


def seeds_of(data_set: str, seeds: int, **changes: Any) -> list[Scenario]:
    """A scenario for each seed."""
    return [Scenario(data_set, seed, **changes) for seed in range(seeds)]


def decibels(values: Iterable[float | None]) -> str:
    """A mean over seeds; one without any signal makes it minus infinity."""
    found = list(values)
    if None in found:
        return "−∞ dB"
    return f"{np.mean([value for value in found if value is not None]):.1f} dB"


def largest(epsilons: Sequence[float | None]) -> str:
    """Over data sets and seeds; infinite where nothing is promised."""
    known = [value for value in epsilons if value is not None]
    return "∞" if len(known) < len(epsilons) else f"{upwards(max(known), 4):g}"


# Table 1: CANAL against uniform noise, with the controls that the paper lacks.

EPSILONS = (1.0, 2.0, 4.0, 8.0)
_CLEAR = FeatureRelease(allocation="none")
CONTROLS = {
    LOCAL: Row(Student("local-only")),
    NOISE_ONLY: Row(Student("noise-only", FeatureRelease())),
    "noiseless": Row(Student("noiseless", _CLEAR)),
    "noiseless, all channels": Row(Student("noiseless", replace(_CLEAR, share=1.0))),
    CENTRALISED: Row(Student("centralised")),
}
TABLE1 = (
    CONTROLS
    | {
        f"{label} eps {epsilon:g}": Row(Student("release", FeatureRelease("paper", epsilon, name)))
        for epsilon in EPSILONS
        for label, name in (("uniform", "uniform"), ("CANAL", "canal"))
    }
    | {"CANAL, a patient's eps 8": Row(Student("release", FeatureRelease("honest")))}
)
MEMBERS = {"initialisation": "the initialisation", "teachers": "a teacher", "ensemble": "ensemble"}
# What the paper reports, by data set and epsilon: uniform, CANAL.
REPORTED = {
    "Kvasir-SEG": {1: (69.40, 70.81), 2: (73.08, 73.56), 4: (74.20, 75.22), 8: (73.71, 74.98)},
    "BUSI": {1: (59.77, 61.42), 2: (63.00, 64.27), 4: (65.55, 66.59), 8: (66.20, 67.01)},
    "ISIC 2018": {1: (82.75, 83.14), 2: (83.75, 84.17), 4: (84.58, 84.79), 8: (83.94, 84.52)},
}


def table1_trials(seeds: int = 5) -> list[Trial]:
    """All arms on the paper's data sets."""
    return [each for name in PAPER for each in trials(seeds_of(name, seeds), TABLE1)]


def _table1(results: Results) -> list[Comparison]:
    return [Comparison(results, seeds_of(name, 5), TABLE1) for name in PAPER]


def table1(results: Results) -> str:
    """Dice of every arm, and the share of the gap that it closes."""
    data, rows = _table1(results), []
    for arm in (*MEMBERS, *TABLE1):
        row = [MEMBERS.get(arm, arm), _epsilons(data, arm)]
        for each in data:
            closed = "–" if arm in (LOCAL, *MEMBERS) else each.closed(arm, LOCAL, CENTRALISED)
            row += [str(each.dice(arm)), closed]
        rows.append(row)
    heads = ["arm", f"eps: {', '.join(UNITS)}"]
    for name in PAPER:
        heads += [f"{name}: Dice", "gap closed"]
    return table(heads, rows)


def _epsilons(data: Sequence[Comparison], arm: str) -> str:
    found = [each["epsilon"] for one in data for each in one.rows.get(arm, ()) if "epsilon" in each]
    return ", ".join(largest([each[unit] for each in found]) for unit in UNITS if found) or "–"


def table1_differences(results: Results) -> str:
    """CANAL less uniform noise at every epsilon, corrected for how many are looked at."""
    gains = {
        (each.name, int(epsilon)): each.gain(f"CANAL eps {epsilon:g}", f"uniform eps {epsilon:g}")
        for each in _table1(results)
        for epsilon in EPSILONS
    }
    corrected = holm([gain.p for gain in gains.values()])
    rows = []
    for ((name, epsilon), gain), p in zip(gains.items(), corrected, strict=True):
        uniform, ours = REPORTED[name][epsilon]
        theirs = f"{ours:.2f} − {uniform:.2f} = +{ours - uniform:.2f}"
        rows.append([name, f"{epsilon}", gain.signed, f"{gain.p:.2g}", f"{p:.2g}", theirs])
    heads = ["data", "eps", "CANAL − uniform", "p", "p, Holm", "the paper's CANAL − uniform"]
    return table(heads, rows)


def table1_gains(results: Results) -> str:
    """What each arm gains over local training, and how much signal there was to gain it from."""
    data, rows = _table1(results), []
    for arm in TABLE1:
        if arm != LOCAL:
            cells = [(each.gain(arm, LOCAL).signed, _signal(each, arm)) for each in data]
            rows.append([arm, *(cell for pair in cells for cell in pair)])
    heads = ["arm", *(f"{name}: {what}" for name in PAPER for what in ("gain", "signal"))]
    return table(heads, rows)


def _signal(data: Comparison, arm: str) -> str:
    if arm in (NOISE_ONLY, CENTRALISED):
        return "–"
    if arm.startswith("noiseless"):
        return "all"
    return decibels(each["signal_db"] for each in data.rows[arm])


# The ablation: what each of our changes to the paper's mechanism does, alone and together.

# Whose epsilon it is, by what that asks of a plan.
ACCOUNTINGS: dict[str, dict[str, Any]] = {"paper": {}, "patient": {"unit": "patient"}}
COLUMNS = tuple(product(ACCOUNTINGS, (8.0, 1.0)))
BASELINE = "the paper's mechanism"
_PUBLIC = {"caps_source": "public", "importance_source": "public"}
# Fields of student, release, scenario; all others are arguments of `canal.Plan`.
ABLATION: dict[str, dict[str, Any]] = {
    BASELINE: {},
    "exact conversion": {"conversion": "exact"},
    "non-negative sensitivity": {"nonnegative": True},
    "matched weight": {"weight": "matched"},
    "public statistics": _PUBLIC,
    "reverse water-filling": {"allocation": "reverse"},
    "cosine projection": {"frequencies": 2},
    "Wiener": {"wiener": True},
    "precision-weighted loss": {"channel_weight": "precision"},
    "M = 1 %": {"share": 0.01},
    "M = 5 %": {"share": 0.05},
    "M = 25 %": {"share": 0.25},
    "M = 100 %": {"share": 1.0},
    "K = 1": {"sites": 1},
    "K = 5": {"sites": 5},
    "K = 10": {"sites": 10},
    "all together, K = 10": {
        "conversion": "exact",
        "nonnegative": True,
        "weight": "matched",
        **_PUBLIC,
        "allocation": "reverse",
        "frequencies": 2,
        "wiener": True,
        "channel_weight": "precision",
        "sites": 10,
    },
}
ABLATED = ("BUSI", "Kvasir-SEG")


def ablated(change: str, accounting: str, epsilon: float) -> Row:
    """The paper's mechanism with this changed, and nothing else."""
    settings = ABLATION[change]
    parts = [fields_of(settings, kind) for kind in (Student, FeatureRelease, Scenario)]
    known = {name for part in parts for name in part}
    plan = ACCOUNTINGS[accounting] | {k: v for k, v in settings.items() if k not in known}
    student, release, scenario = parts
    asked = FeatureRelease(epsilon=epsilon, choices=tuple(plan.items()), **release)
    return Row(Student("release", asked, **student), changes=scenario)


def _ablation() -> dict[str, Row]:
    """By change, accounting and epsilon."""
    return {
        f"{change} {column}": ablated(change, *column) for change in ABLATION for column in COLUMNS
    }


def ablation_trials(seeds: int = 3) -> list[Trial]:
    """Every change under every accounting."""
    return [each for name in ABLATED for each in trials(seeds_of(name, seeds), _ablation())]


def ablation(results: Results) -> str:
    """One table a data set: gain over the paper's mechanism in Dice, and the signal in dB.

    Gains that chance does not explain, at 5 % over the whole table (Holm), are bold.
    """
    heads = ["change"]
    for accounting, epsilon in COLUMNS:
        heads += [f"{accounting} eps {epsilon:g}: signal", "Dice"]
    tables = []
    for name in ABLATED:
        data = Comparison(results, seeds_of(name, 3), _ablation())
        gains = {
            (change, column): data.gain(f"{change} {column}", f"{BASELINE} {column}")
            for change in ABLATION
            for column in COLUMNS
            if change != BASELINE
        }
        corrected = dict(zip(gains, holm([gain.p for gain in gains.values()]), strict=True))
        rows = []
        for change in ABLATION:
            row = [change]
            for column in COLUMNS:
                label, key = f"{change} {column}", (change, column)
                row.append(decibels(each["signal_db"] for each in data.rows[label]))
                known = key in gains
                row.append(bold(gains[key], corrected[key]) if known else str(data.dice(label)))
            rows.append(row)
        tables.append(f"{name}:\n\n{table(heads, rows)}")
    return "\n".join(tables)


# The paper's figure of ensemble sizes: ISIC 2018 in K cohorts, uniform noise at epsilon 8.

SIZES = (1, 2, 3, 5, 8)
_UNIFORM = Student("release", FeatureRelease(allocation="uniform"))
ENSEMBLES = {
    "the ensemble itself": Row(Networks(), "networks.ensemble"),
    "student, no noise": CONTROLS["noiseless"],
    "student, uniform eps 8": Row(_UNIFORM),
}


def _ensembles() -> dict[str, Row]:
    """By arm and K; a student that is trained locally knows of no teacher."""
    of_size = {
        f"{name} {size}": replace(row, changes={"sites": size})
        for size in SIZES
        for name, row in ENSEMBLES.items()
    }
    return {LOCAL: CONTROLS[LOCAL], **of_size}


def ensemble_trials(seeds: int = 3) -> list[Trial]:
    """Students of every K."""
    return trials(seeds_of("ISIC 2018", seeds), _ensembles())


def _ensemble_dice(results: Results) -> dict[str, dict[str, Estimate]]:
    """By arm and K."""
    data = Comparison(results, seeds_of("ISIC 2018", 3), _ensembles())
    found = {name: {f"{size}": data.dice(f"{name} {size}") for size in SIZES} for name in ENSEMBLES}
    return {**found, "student, local only": {f"{size}": data.dice(LOCAL) for size in SIZES}}


def ensemble_size(results: Results) -> str:
    """The numbers of the figure."""
    rows = [[arm, *map(str, line.values())] for arm, line in _ensemble_dice(results).items()]
    return table(["arm", *(f"K = {size}" for size in SIZES)], rows)


def ensemble_figure(results: Results) -> str:
    """One line for each arm."""
    title = "Dice against ensemble size on ISIC 2018"
    return whiskers(title, "K, teachers", "Dice", _ensemble_dice(results))


# The paper's qualitative figure: outlines of students at epsilon 2, of the first seed.

_OUTLINED = {
    LOCAL: Student("local-only"),
    "uniform eps 2": Student("release", FeatureRelease("paper", 2.0, "uniform")),
    "CANAL eps 2": Student("release", FeatureRelease("paper", 2.0)),
    CENTRALISED: Student("centralised"),
}
OUTLINES = Outlines(tuple(_OUTLINED.values()))


def outline_trials(seeds: int = 1) -> list[Trial]:
    """One figure a seed."""
    return [Trial(each, OUTLINES) for name in PAPER for each in seeds_of(name, seeds)]


def outlines(results: Results) -> str:
    """Dice of what is shown, so that nobody has to judge outlines by eye."""
    rows = [
        [name, *(f"{100 * dice:.0f}" for dice in case)]
        for name in PAPER
        for case in results[Trial(Scenario(name), OUTLINES)]["dice"]
    ]
    return table(["Dice of the image shown", *_OUTLINED], rows)


def outlines_figure(results: Results) -> str:
    """Outlines only: the images belong to their data sets."""
    found = {name: results[Trial(Scenario(name), OUTLINES)] for name in PAPER}
    return outline_sheet(found, ["truth", *_OUTLINED])


# The composition penalty: released once, against fresh noise at every step of the student.

COMPOSITION = {"once": Row(_UNIFORM), "often": Row(PerIteration()), LOCAL: CONTROLS[LOCAL]}
TIMES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)


def composition_trials(seeds: int = 3) -> list[Trial]:
    """The real runs: once, per iteration, local only."""
    return trials(seeds_of("BUSI", seeds), COMPOSITION)


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


def composition(results: Results) -> str:  # noqa: ARG001  # accounting needs none
    """Epsilon and noise for any number of releases of an image."""
    heads = ["Q", "eps at the same noise, exact", "noise at the same eps", "signal lost"]
    rows = []
    for each in _penalties():
        epsilon, noise = f"{each.epsilon_per_iteration:.4g}", f"× {each.sigma_factor:.3g}"
        rows.append([f"{each.releases:,}", epsilon, noise, f"{each.snr_loss_db:.1f} dB"])
    return table(heads, rows)


def composition_runs(results: Results) -> str:
    """The real runs."""
    data = Comparison(results, seeds_of("BUSI", 3), COMPOSITION)
    labels = {
        "once": "released once, uniform eps 8",
        "often": f"at every step, Q = {data.rows['often'][0]['releases']}, uniform eps 8",
    }
    rows = [
        [label, str(data.dice(arm)), data.gain(arm, LOCAL).signed] for arm, label in labels.items()
    ]
    return table([data.name, "Dice", f"gain over {LOCAL}"], rows)


def composition_figure(results: Results) -> str:  # noqa: ARG001  # accounting needs none
    """Epsilon at the same noise, once and per iteration."""
    found, title = _penalties(), "Epsilon at the same noise"
    drawn = {
        "per iteration": [(float(each.releases), each.epsilon_per_iteration) for each in found],
        "once": [(float(each.releases), each.epsilon_once) for each in found],
    }
    return loglog("composition", title, drawn, "Q, releases of an image", "eps")


# Three real hospitals with polyps: each in turn asks the others.

HOSPITALS = ("Kvasir-SEG", "CVC-ClinicDB", "ETIS-Larib")
HOSPITAL_ARMS = {
    LOCAL: CONTROLS[LOCAL],
    "noiseless": CONTROLS["noiseless"],
    "CANAL, the paper's eps 8": Row(Student("release", FeatureRelease())),
    "CANAL, a patient's eps 8": Row(Student("release", FeatureRelease("honest"))),
    CENTRALISED: CONTROLS[CENTRALISED],
}


def _hospital(recipient: str, seeds: int) -> list[Scenario]:
    """Half of the recipient's images are tested on, for some have few."""
    others = tuple(name for name in HOSPITALS if name != recipient)
    return seeds_of(recipient, seeds, others=others, test=0.5)


def hospital_trials(seeds: int = 3) -> list[Trial]:
    """All arms for every recipient."""
    return [each for name in HOSPITALS for each in trials(_hospital(name, seeds), HOSPITAL_ARMS)]


def hospitals(results: Results) -> str:
    """Dice of everyone, and gains over local training; one column a recipient."""
    columns = [_column(results, name) for name in HOSPITALS]
    names = list(dict.fromkeys(name for column in columns for name in column))
    # Whoever is a teacher for one is the recipient of another: all teachers beside each other.
    names.sort(key=lambda name: (not name.startswith("its"), not name.startswith("the teacher")))
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    return table(["", *(f"recipient {name}" for name in HOSPITALS)], rows)


def _column(results: Results, recipient: str) -> dict[str, str]:
    data = Comparison(results, _hospital(recipient, 3), HOSPITAL_ARMS)
    column = {
        "its labelled images (patients)": _counted(data, "recipient"),
        "its test images (patients)": _counted(data, "test"),
    }
    for teacher in HOSPITALS:
        if teacher != recipient:
            column[f"the teacher of {teacher}"] = str(data.dice(teacher))
    column["their ensemble"] = str(data.dice("ensemble"))
    for arm, found in data.rows.items():
        column[arm] = str(data.dice(arm))
        if arm != LOCAL:
            gain = data.gain(arm, LOCAL)
            column[f"{arm}: gain over {LOCAL}"] = f"{gain.signed}, p {gain.p:.2g}"
        if arm.startswith("CANAL"):
            patient = [each["epsilon"]["patient"] for each in found]
            column[f"{arm}: signal"] = decibels(each["signal_db"] for each in found)
            column[f"{arm}: a patient's eps"] = largest(patient)
    return column


def _counted(data: Comparison, part: str) -> str:
    """Over seeds, from the least to the most."""
    words = []
    for what in ("sizes", "patients"):
        counts = [each[what][part] for each in data.networks]
        words.append("–".join(map(str, sorted({min(counts), max(counts)}))))
    return "{} ({})".format(*words)


# Teachers on real data, and why all of them start from one initialisation.

TEACHERS = [
    Trial(
        Scenario(name, recipient=60, base_channels=16, norm="group", batch_size=16),
        Teachers(random=name == "BUSI"),
    )
    for name in PAPER
]


def teacher_trials(seeds: int = 1) -> list[Trial]:
    """One for each data set and seed."""
    return [each.at({"seed": seed}) for seed in range(seeds) for each in TEACHERS]


def teachers(results: Results) -> str:
    """Scores of every network."""
    rows = []
    for trial in TEACHERS:
        found = results[trial]
        networks = {"recipient only (the initialisation)": found["recipient"], **found["networks"]}
        rows += [[trial.scenario.data_set, name, *_scores(each)] for name, each in networks.items()]
    heads = ["data", "network", "trained on", "test images", "Dice", "95 % interval", "IoU", "HD95"]
    return table(heads, rows)


def _scores(found: Mapping[str, Any]) -> list[str]:
    low, high = (f"{100 * end:.1f}" for end in found["dice_interval"])
    return [
        str(found["trained_on"]),
        str(found["images"]),
        f"{100 * found['dice']:.1f}",
        f"{low} to {high}",
        f"{100 * found['iou']:.1f}",
        f"{found['hd95']:.1f} px",
    ]


def teacher_alignment(results: Results) -> str:
    """Whether channels of two teachers agree."""
    rows = [
        [trial.scenario.data_set, name, f"{found['cosine']:.2f}", f"{found['correlation']:.2f}"]
        for trial in TEACHERS
        for name, found in results[trial]["alignment"].items()
    ]
    heads = ["data", "initialisation of two teachers", "cosine", "channel correlation"]
    return table(heads, rows)
