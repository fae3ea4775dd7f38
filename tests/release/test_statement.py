"""The statement: every number of a release that was really made, computed again by hand.

Nothing here calls the plan's own calibration: the formulas are those of the paper and the design.
"""

import math
import re
from dataclasses import replace
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy import optimize, stats

from budgets import just_enough
from canal.features.release import create
from canal.privacy import UNITS, Ledger, Participants

K, N, C, M, GRID = 3, 40, 128, 12, 4
DELTA = 1e-5
# The sampler's finite precision is charged on top: 2 · 2^-44 for each of some thousand draws.
CLOSE = 1e-8
# A channel with so many times the noise of an even spread is paid for and left out.
TOO_NOISY = 32.0


def exact_delta(epsilon, mu):
    """Balle & Wang 2018, Theorem 8, in forty digits."""
    with mpmath.workdps(40):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        tails = [mpmath.ncdf(-epsilon / mu + sign * mu / 2) for sign in (1, -1)]
        return tails[0] - mpmath.exp(epsilon) * tails[1]


def bisect(is_enough, high):
    """The smallest number that is enough."""
    low = 0.0
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def epsilon_of(rho, conversion, delta=DELTA):
    if rho in (0, math.inf):
        return rho
    paper = rho + 2 * math.sqrt(rho * math.log(1 / delta))  # Bun & Steinke, Prop. 1.3
    if conversion == "paper":
        return paper
    return bisect(lambda epsilon: exact_delta(epsilon, math.sqrt(2 * rho)) <= delta, paper)


def rho_of(epsilon, conversion, delta=DELTA):
    log = math.log(1 / delta)
    paper = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2  # Eq. eps-to-rho
    if conversion == "paper":
        return paper
    return bisect(lambda rho: exact_delta(epsilon, math.sqrt(2 * rho)) >= delta, 4 * paper)


def positive(statistic):
    """What a noisy statistic is taken for: the mean of the normal cut off at zero."""
    values, sigma = np.array(statistic["values"]), statistic["sigma"]
    return values if sigma == 0 else stats.truncnorm(-values / sigma, np.inf, values, sigma).mean()


def spread(allocation, scores, sensitivity, rho):
    """Sigma of every channel from the formulas of the paper; `reverse` from its KKT conditions."""
    if allocation == "uniform":
        return np.full(M, math.sqrt(M * sensitivity**2 / (2 * rho)))
    if allocation == "canal":
        kappa = math.sqrt((sensitivity * np.sqrt(scores)).sum() / (2 * rho))
        return kappa * math.sqrt(sensitivity) * scores**-0.25

    def precision(log_theta):
        level = np.sqrt(2 * scores / (math.exp(log_theta) * sensitivity**2))
        return np.maximum(0, level - GRID)  # 1/lambda = H·W: a clipped channel has norm one

    def excess(log_theta):
        return math.log(precision(log_theta).sum() * sensitivity**2 / 2) - math.log(rho)

    highest = math.log(2 * scores.max() / (GRID * sensitivity) ** 2)
    root = optimize.brentq(excess, highest - 80, highest - 1e-9, xtol=1e-14, rtol=1e-15)
    with np.errstate(divide="ignore"):
        return 1 / np.sqrt(precision(root))


class ByHand:
    """All that a release of this plan says, from its plan and published statistics."""

    def __init__(self, plan, statistics):
        self.plan, self.m = plan, plan.participants.images_per_person
        reach = math.sqrt(2) if plan.nonnegative else 2.0
        self.features = {  # sensitivity and count: the table of the design
            "patient": (reach / K, N),
            "image": (reach, self.m),
            "paper": (reach / K, self.m),
        }
        self.private = [name for name, source in plan.sources.items() if source == "private"]
        share = {"caps": 0.10, "importance": 0.05}
        self.share = {name: share[name] if name in self.private else 0.0 for name in share}
        self.share["features"] = 1 - sum(self.share.values())
        total = rho_of(plan.epsilon, plan.conversion)
        self.sigma = {
            name: self.statistic(name)[plan.unit] / math.sqrt(2 * self.share[name] * total)
            for name in self.private
        }
        caps, importance = positive(statistics["caps"]), positive(statistics["importance"])
        weights = importance * caps**2 if plan.weight == "matched" else importance
        order = np.argsort(-weights, kind="stable")[:M]
        sensitivity, count = self.features[plan.unit]
        once = self.share["features"] * total / count
        sigma = spread(plan.allocation, weights[order], sensitivity, once)
        kept = sigma <= TOO_NOISY * spread("uniform", weights[order], sensitivity, once)
        self.channels, self.caps, self.published = order[kept], caps[order[kept]], sigma[kept]
        self.sigma["features"] = sigma

    def statistic(self, name, queries=N):
        """Sensitivity of the mean of vectors of norm at most B: sqrt(C·H·W), or 1."""
        bound = math.sqrt(2) * (math.sqrt(C * GRID) if name == "caps" else 1.0)
        image = bound * min(self.m, queries) / queries
        return {"patient": bound / K, "image": image, "paper": image}

    def rho(self, name, unit, queries=N):
        if name == "features":
            sensitivity, count = self.features[unit]
            count = queries if unit == "patient" else min(count, queries)
            return count * (sensitivity**2 / (2 * self.sigma[name] ** 2)).sum()
        if name in self.private:
            return self.statistic(name, queries)[unit] ** 2 / (2 * self.sigma[name] ** 2)
        # Public: read from the query images in the clear, and no patient has a part in it.
        return math.inf if unit == "image" else 0.0

    def total(self, unit, queries=N):
        return sum(self.rho(name, unit, queries) for name in ("caps", "importance", "features"))


def near(value):
    """None where there is no guarantee: JSON has no infinity."""
    return None if math.isinf(value) else pytest.approx(value, rel=CLOSE)


@pytest.fixture
def release(tmp_path, ensemble, queries):
    """Make a private release, and give its manifest."""

    def make(plan):
        ledger = Ledger(tmp_path / "ledger")
        just_enough(ledger, plan, ensemble.cohorts)
        return create(tmp_path / "release", ensemble, queries, plan, ledger=ledger).manifest

    return make


CHOICES = [
    ("honest", {}),
    ("honest", {"caps_source": "private", "importance_source": "private"}),
    ("honest", {"conversion": "paper", "importance_source": "private"}),
    ("paper", {}),
    ("paper", {"conversion": "exact", "weight": "matched", "participants": Participants(K, N, 4)}),
]


@pytest.mark.parametrize(
    ("preset", "choices", "allocation", "unit"),
    [
        (*choice, allocation, unit)
        for choice, allocation, unit in product(CHOICES, ("canal", "uniform", "reverse"), UNITS)
        # What is read in the clear from the images cannot protect the images.
        if unit != "image" or choice[0] == "paper" or "caps_source" in choice[1]
    ],
)
def test_every_number_follows_by_hand(release, make_plan, preset, choices, allocation, unit):
    plan = make_plan(preset, **choices, allocation=allocation, unit=unit)
    manifest = release(plan)
    statement, hand = manifest.statement, ByHand(plan, manifest.statistics)

    assert manifest.mechanism["channels"] == hand.channels.tolist()
    assert manifest.mechanism["caps"] == pytest.approx(hand.caps.tolist(), rel=CLOSE)
    assert manifest.mechanism["sigma"] == pytest.approx(hand.published.tolist(), rel=CLOSE)
    for name, statistic in manifest.statistics.items():
        assert statistic["source"] == ("private" if name in hand.private else "public")
        assert statistic["sigma"] == near(hand.sigma.get(name, 0.0))
    assert statement["split"] == pytest.approx(hand.share)
    assert (statement["epsilon_asked"], statement["delta"]) == (plan.epsilon, DELTA)
    assert (statement["unit"], statement["conversion"]) == (unit, plan.conversion)

    for each in UNITS:
        said, rho = statement["guarantee"][each], hand.total(each)
        assert said["rho"] == near(rho)
        assert said["mu"] == near(math.sqrt(2 * rho))
        assert said["epsilon"] == near(epsilon_of(rho, plan.conversion))
        assert said["epsilon_exact"] == near(epsilon_of(rho, "exact"))
        for name, part in said["parts"].items():
            own = hand.rho(name, each)
            assert part["rho"] == near(own)
            assert part["share"] == (near(own / rho) if rho < math.inf else None)
    # On the safe side, and no further from what was asked for than rounding.
    assert plan.epsilon * (1 - 1e-9) < statement["guarantee"][unit]["epsilon"] <= plan.epsilon

    rows = {row.pop("queries"): row for row in statement["epsilon_by_queries"]}
    assert list(rows) == [1, 10, 40, 100]
    for count in (1, 100):
        for each, said in rows[count].items():
            assert said == near(epsilon_of(hand.total(each, count), plan.conversion))
    assert rows[N] == {each: said["epsilon"] for each, said in statement["guarantee"].items()}


def test_the_finite_precision_of_the_sampler_is_part_of_epsilon(release, make_plan):
    """2 · 2^-44 a draw, and a little for delta, above what the ideal Gaussian would cost."""
    manifest = release(make_plan(released=C, allocation="uniform"))
    ratio = math.sqrt(2) / K / np.array(manifest.mechanism["sigma"])
    ideal = epsilon_of(N * math.fsum(ratio**2) / 2, "exact")
    draws = N * C * GRID
    added = manifest.statement["guarantee"]["patient"]["epsilon"] - ideal
    assert 1 <= added / (2 * 2.0**-44 * draws) < 2
    charged = {entry["unit"]: entry["draws"] for entry in manifest.ledger["charges"]}
    assert charged == {"patient": draws, "membership": draws, "paper": C * GRID}


@pytest.mark.parametrize("preset", ["paper", "honest"])
def test_numbers_in_sentences_are_those_of_the_guarantee(release, make_plan, preset):
    said = release(make_plan(preset)).statement
    patient = said["guarantee"]["patient"]
    caught = 100 * stats.norm.cdf(stats.norm.ppf(0.01) + patient["mu"])
    if preset == "honest":
        (named,) = re.findall(r"at most ([\d.]+) in 100 patients", patient["reading"])
        assert float(named) == pytest.approx(caught, rel=5e-3)
    else:
        assert caught > 99.5
        assert "nearly all patients" in patient["reading"]
    assert ("no protection" in patient["reading"]) == (caught > 90) == (not patient["protects"])
    (epsilon,) = re.findall(r"with epsilon ([\d.]+) at delta 1e-5", said["protected"][0])
    assert patient["epsilon"] * (1 - 1e-9) <= float(epsilon) <= patient["epsilon"] * 1.001
    assert said["protected"][0].startswith("In name only") == (caught > 90)
    reach = {"paper": "2/3", "honest": "√2/3"}[preset]
    assert f"one teacher moves it by at most {reach}." in said["mechanism"][0]
    assert said["mechanism"][1].startswith("12 of 128 channels")


@pytest.mark.parametrize("how", [{"seed": 1}, {"allocation": "none"}])
def test_what_protects_nobody_promises_nothing(tmp_path, ensemble, queries, make_plan, how):
    plan = replace(make_plan("paper"), allocation=how.get("allocation", "canal"))
    release = create(
        tmp_path / "r", ensemble, queries, plan, seed=how.get("seed"), not_private="seed" not in how
    )
    assert not release.private
    assert release.statement["stamp"].startswith("NOT PRIVATE")
    assert release.statement["epsilon_by_queries"] == []
    assert release.manifest.ledger is None
    for promise in release.statement["guarantee"].values():
        assert {promise[name] for name in ("epsilon", "epsilon_exact", "rho", "mu")} == {None}
        assert (promise["reading"], promise["parts"]) == ("Nothing is promised.", {})


def test_a_channel_at_the_edge_is_paid_for_and_left_out(make_plan):
    plan = make_plan("paper", allocation="reverse", unit="paper")

    def weights(last):
        return np.array([1.0] * (M - 1) + [last] + [0.0] * (C - M))

    def is_published(last):
        return len(plan.calibrate(weights(last)).published) == M

    edge = weights(bisect(is_published, 1.0) * (1 - 1e-5))
    calibrated = plan.calibrate(edge)
    exact = {"sigma": 0.0}
    hand = ByHand(
        plan,
        {"caps": {"values": [1.0] * C} | exact, "importance": {"values": edge.tolist()} | exact},
    )

    assert np.isfinite(calibrated.sigma("features")).all()
    assert calibrated.published == tuple(hand.channels) == tuple(range(M - 1))
    assert calibrated.guarantee.rho(plan.unit) == pytest.approx(hand.total(plan.unit), rel=CLOSE)
