"""Experiments on attacks: their arms as data, and the tables and the figure made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from canal.attacks.roc import Roc, allowed_auc, allowed_tpr
from canal.release.digits import upwards
from paper.arms import FeatureRelease
from paper.attacks import FeatureMembership, ImageAttacks, RoundsMembership, Variation
from paper.comparison import table
from paper.drawing import roc
from paper.feature_tables import largest, seeds_of
from paper.rounds import Rounds
from paper.scenario import Scenario
from paper.trial import Arm, Results, Trial

Found = Sequence[Mapping[str, Any]]

# Images, and one patient less, on ISIC 2018.

CLEAR, LITTLE, PAPERS = "no noise", "CANAL, the paper's eps 1,000", "CANAL, the paper's eps 8"
RELEASES = {
    CLEAR: FeatureRelease("paper", 8.0, "none"),
    LITTLE: FeatureRelease("paper", 1000.0),
    "uniform, the paper's eps 8": FeatureRelease("paper", 8.0, "uniform"),
    PAPERS: FeatureRelease("paper", 8.0),
    "uniform, the paper's eps 2": FeatureRelease("paper", 2.0, "uniform"),
    "CANAL, the paper's eps 2": FeatureRelease("paper", 2.0),
    "CANAL, a patient's eps 8": FeatureRelease("honest", 8.0),
}


def _isic(seeds: int) -> list[Scenario]:
    return seeds_of("ISIC 2018", seeds, recipient=200, steps=400)


def image_trials(seeds: int = 5) -> list[Trial]:
    """Every release of every seed."""
    arms: list[Arm] = [Variation(), *(ImageAttacks(release) for release in RELEASES.values())]
    return [Trial(scenario, arm) for scenario in _isic(seeds) for arm in arms]


def _attacked(results: Results) -> dict[str, Found]:
    return {
        name: [results[Trial(scenario, ImageAttacks(release))] for scenario in _isic(5)]
        for name, release in RELEASES.items()
    }


def images(results: Results) -> str:
    """Is this image among the queries, and what does it look like? Means over seeds."""
    heads = ["release", "two queries apart", "AUC", "found at 1 %", "AUC allowed", "SSIM"]
    heads += ["above the mean image", "PSNR", "the mean image's"]
    rows = [
        [
            name,
            f"{_over((each['apart'] for each in found), 2)} σ",
            _over(each["images"]["auc"] for each in found),
            f"{_over((100 * each['images']['tpr']['0.01'] for each in found), 1)} %",
            _allowed_auc([each["images"]["mu"] for each in found]),
            _over(each["inversion"]["decoder"]["ssim"] for each in found),
            _over((each["inversion"]["ssim_gain"] for each in found), signed=True),
            f"{_over((each['inversion']['decoder']['psnr'] for each in found), 1)} dB",
            f"{_over((each['inversion']['mean_image']['psnr'] for each in found), 1)} dB",
        ]
        for name, found in _attacked(results).items()
    ]
    return table(heads, rows)


def one_patient(results: Results) -> str:
    """Was this one patient in the first site's cohort?"""
    rows = []
    for name, found in _attacked(results).items():
        # Of every seed, what no attack on its most visible patient can beat.
        best = [max(_auc(one["mu"]) for one in each["left_out"]) for each in found]
        epsilon = largest([each["epsilon"] for each in found])
        rows.append([name, epsilon, _over(best), _allowed_auc([each["mu"] for each in found])])
    heads = ["release", "a patient's eps", "best attack on a left-out patient", "AUC allowed"]
    return table(heads, rows)


def images_figure(results: Results) -> str:
    """ROC of the attack on images of the first seed, with the curve that the guarantee allows."""
    found = {name: each[0]["images"] for name, each in _attacked(results).items()}
    curves = {name: found[name]["roc"] for name in (CLEAR, LITTLE, PAPERS)}
    return roc(curves, "most that eps 8 allows", found[PAPERS]["mu"])


def _over(values: Iterable[float], digits: int = 3, *, signed: bool = False) -> str:
    """The mean over seeds and, where they differ, its 95 % interval (Student's t)."""
    found = np.array(list(values))
    if found.mean() >= 1000:
        return f"{found.mean():,.0f}"
    shown = f"{found.mean():{'+' if signed else ''}.{digits}f}"
    if np.ptp(found) < 10.0**-digits / 2:
        return shown
    from scipy.stats import t  # type: ignore[import-untyped]

    wide = float(t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found)))
    return f"{shown} ± {wide:.{digits}f}"


def _auc(mu: float | None) -> float:
    return allowed_auc(math.inf if mu is None else mu)


def _allowed_auc(mus: Sequence[float | None]) -> str:
    """By the noise, for the data set and seed with the least of it."""
    known = [mu for mu in mus if mu is not None]
    return f"{upwards(allowed_auc(max(known)), 3):g}" if len(known) == len(mus) else "anything"


# Membership of patients, on Kvasir-SEG and BUSI.

FEATURES = {
    CLEAR: FeatureRelease("honest", 8.0, "none"),
    "the paper's eps 100": FeatureRelease("paper", 100.0),
    "the paper's eps 8": FeatureRelease("paper", 8.0),
    "the paper's eps 1": FeatureRelease("paper", 1.0),
    "a patient's eps 8": FeatureRelease("honest", 8.0),
    "a patient's eps 1": FeatureRelease("honest", 1.0),
}
GRADIENTS = {
    CLEAR: Rounds(8.0, rounds=10, subspace_dim=256, noise=False),
    "a patient's eps 8": Rounds(8.0, rounds=10, subspace_dim=256),
    "a patient's eps 1": Rounds(1.0, rounds=10, subspace_dim=256),
}
BY_FEATURES = {name: FeatureMembership(release) for name, release in FEATURES.items()}
BY_ROUNDS = {name: RoundsMembership(rounds) for name, rounds in GRADIENTS.items()}
MEMBERSHIP_ON = ("Kvasir-SEG", "BUSI")
WHO = {"canaries": "canaries", "ordinary": "ordinary patients"}
RATES = {"1 %": 0.01, "0.1 %": 0.001}


def _small(data_set: str, seed: int) -> Scenario:
    return Scenario(data_set, seed, size=32, recipient=40, steps=200, init_length=5)


def membership_trials(seeds: int = 2) -> list[Trial]:
    """All releases of both kinds."""
    return [
        Trial(_small(name, seed), arm)
        for seed, name in product(range(seeds), MEMBERSHIP_ON)
        for arm in (*BY_FEATURES.values(), *BY_ROUNDS.values())
    ]


def membership_found(
    results: Results, arms: Mapping[str, Arm]
) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    """By arm and data set, one result a seed."""
    return {
        name: {
            data: [results[Trial(_small(data, seed), arm)] for seed in range(2)]
            for data in MEMBERSHIP_ON
        }
        for name, arm in arms.items()
    }


def feature_membership(results: Results) -> str:
    """LiRA on patients, with shadow teachers."""
    return _membership(results, BY_FEATURES, {})


def rounds_membership(results: Results) -> str:
    """LiRA on patients, in the sums that rounds publish."""
    more: dict[str, Callable[[Found, str], str]] = {
        "all, replayed": lambda found, who: _areas([each[who]["played"] for each in found]),
        "others known": lambda found, who: f"{np.mean([each[who]['known'] for each in found]):.3f}",
    }
    return _membership(results, BY_ROUNDS, more)


def _membership(
    results: Results, arms: Mapping[str, Arm], more: Mapping[str, Callable[[Found, str], str]]
) -> str:
    """One row for each arm and kind of patient."""
    heads = ["release", "patient's eps", "who", *(f"{name}: AUC" for name in MEMBERSHIP_ON)]
    heads += [*more, "AUC allowed"]
    for rate in RATES:
        heads += [f"TPR at {rate} FPR", "allowed"]
    rows = []
    for name, by_data in membership_found(results, arms).items():
        found = [each for some in by_data.values() for each in some]
        mus = [each["mu"] for each in found]
        for who, label in WHO.items():
            row = [name, largest([each["epsilon"] for each in found]), label]
            row += [_areas([each[who] for each in some]) for some in by_data.values()]
            row += [*(show(found, who) for show in more.values()), _allowed_auc(mus)]
            for at in RATES.values():
                row += [_rate([each[who] for each in found], at), _allowed_tpr(mus, at)]
            rows.append(row)
    return table(heads, rows)


def _areas(found: Found) -> str:
    """Their mean, with the interval of that mean: seeds and data sets are independent."""
    mean = float(np.mean([each["auc"] for each in found]))
    low, high = (
        math.hypot(*(each["auc_interval"][end] - each["auc"] for each in found)) / len(found)
        for end in (0, 1)
    )
    return f"{mean:.3f} ({max(0.0, mean - low):.3f} to {min(1.0, mean + high):.3f})"


def _rate(found: Found, rate: float) -> str:
    """Of all data sets and seeds together: scores are logarithms of ratios, which can be compared.

    Of rounds, what was found in plays: a few releases cannot show so small a rate.
    """
    if all("played" in each for each in found):
        shares = [each["played"]["tpr"][f"{rate:g}"] for each in found]
        return _share(*np.mean(shares, axis=0).tolist())
    members, others = (
        np.concatenate([each["scores"][side] for each in found]) for side in ("members", "others")
    )
    curve = Roc.of(members, others)
    return _share(curve.tpr(rate), *curve.tpr_interval(rate))


def _share(found: float, low: float, high: float) -> str:
    return f"{100 * found:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _allowed_tpr(mus: Sequence[float | None], rate: float) -> str:
    known = [mu for mu in mus if mu is not None]
    if len(known) < len(mus):
        return "anything"
    return f"{upwards(100 * allowed_tpr(rate, max(known)), 3):g} %"
