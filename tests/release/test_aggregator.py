"""The noise that really is in a stored release, and what a release is made of."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from scipy import stats

from budgets import just_enough
from canal.data.arrays import Arrays
from canal.errors import ReleaseError
from canal.features.ensemble import Ensemble, Teacher
from canal.features.mechanism import TeacherSum
from canal.features.plan import Plan
from canal.features.queries import Queries
from canal.features.release import Options, create
from canal.features.statistics import Statistics
from canal.learning.networks import Tap, weights_digest
from canal.privacy import Ledger, Participants
from canal.release.verification import check_statement, verify

# False-alarm rate of each statistical test below, over all channels or pairs that it looks at.
ALPHA = 1e-7
K, CHANNELS, RELEASED, GRID = 3, 8, 6, (8, 8)
MANY = 400  # 25 600 noise values a channel: 5 % more or less of sigma is eleven deviations


def tiny(seed):
    """A network that takes a millisecond: one layer to the bottleneck, one back."""
    network = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Conv2d(1, CHANNELS, 4, 4), torch.nn.ReLU()),
        torch.nn.ConvTranspose2d(CHANNELS, 1, 4, 4),
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return network


def tiny_ensemble(*seeds):
    networks = [tiny(seed) for seed in seeds]
    teachers = (
        Teacher(f"site {seed}", Tap(network, "0"), weights_digest(network))
        for seed, network in zip(seeds, networks, strict=True)
    )
    shared = tiny(0)
    return Ensemble(
        *(tuple(teachers), weights_digest(shared), Tap(shared, "0")), trained_initialisation=False
    )


def tiny_queries(count=MANY, change=None):
    """Random images; the second is the first again, under another name."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (count, 1, 32, 32), dtype=np.uint8)
    masks = rng.integers(0, 2, images.shape, dtype=np.uint8)
    images[1], masks[1] = images[0], masks[0]
    if change is not None:
        masks[change] = 1 - masks[change]
    return Queries.of(Arrays(tuple(f"q{row}" for row in range(count)), images, masks, "digest"))


def tiny_plan(preset="honest", queries=MANY, **choices):
    size = {"channels": CHANNELS, "released": RELEASED, "grid": GRID}
    asked = {"epsilon": 8.0, "delta": 1e-5, "participants": Participants(K, queries)}
    return Plan.preset(preset, **size | asked | choices)


def noiseless(release, ensemble, queries):
    """Integer sums over all teachers by the published mechanism, `[N, M, *grid]`."""
    statistics = Statistics.from_json(release.manifest.statistics)
    weights = statistics.weights(release.plan)
    mechanism = TeacherSum.of(release.plan.calibrate(weights), statistics)
    sums = [
        sum(
            mechanism.contribution(t.tap.features(batch.images)).integers for t in ensemble.teachers
        )
        for batch in queries.batches()
    ]
    return np.concatenate(sums)


def noise_in(release, ensemble, queries):
    """What was added to the sums, in units of its planned deviation; `[N, M, H·W]`."""
    numbers = release.manifest.mechanism
    stored = np.concatenate(list(release.shards())).astype(np.int64)
    unit = 2 ** np.array(numbers["shift"])
    axes = (-1, *[1] * len(GRID))
    noise = stored * unit.reshape(axes) - noiseless(release, ensemble, queries)
    # Rounding to the lattice and then to a unit of storage is a little variance more.
    variance = np.square(K * np.array(numbers["sigma"]) / numbers["step"]) + unit**2 / 12
    return (noise / np.sqrt(variance).reshape(axes)).reshape(*stored.shape[:2], -1)


def deviation_p(noise, factor=1.0):
    """Chi-square of every channel: p-values against the deviation `factor`, two-sided."""
    seen = np.square(noise / np.reshape(factor, (-1, 1))).sum(axis=(0, 2))
    count = noise.shape[0] * noise.shape[2]
    return 2 * np.minimum(stats.chi2.sf(seen, count), stats.chi2.cdf(seen, count))


def correlation_p(one, other):
    """p-value of no correlation between two arrays."""
    return stats.pearsonr(one.ravel(), other.ravel()).pvalue


def least_pair_p(rows):
    """The smallest p-value of no correlation among all pairs of rows, and how many there are."""
    found = np.corrcoef(rows.reshape(len(rows), -1))[np.triu_indices(len(rows), 1)]
    largest, freedom = min(np.abs(found).max(), 1 - 1e-12), rows[0].size - 2
    return 2 * stats.t.sf(largest * math.sqrt(freedom / (1 - largest**2)), freedom), found.size


@cache
def noise_of(preset):
    """Of one release of many queries; made once, and in a test, where torch has one thread."""
    teachers, queries = tiny_ensemble(1, 2, 3), tiny_queries()
    with TemporaryDirectory() as folder:
        release = create(Path(folder, "r"), teachers, queries, tiny_plan(preset), seed=5)
        return noise_in(release, teachers, queries)


@pytest.fixture(params=["honest", "paper"])
def noise(request, one_thread):
    """With public statistics, and with private ones."""
    return noise_of(request.param)


def test_noise_has_the_planned_deviation_in_every_channel(noise):
    assert deviation_p(noise).min() > ALPHA / RELEASED
    assert stats.kstest(noise.ravel(), "norm").pvalue > ALPHA
    assert stats.norm.sf(abs(noise.sum()) / math.sqrt(noise.size)) > ALPHA / 2


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_negative_control_five_percent_in_any_channel(noise, factor):
    assert deviation_p(noise, factor).max() < ALPHA / RELEASED


def test_negative_control_exchanged_channels(tmp_path):
    """Two channels whose deviations were exchanged are both found out."""
    teachers, many = tiny_ensemble(1, 2, 3), tiny_queries()
    release = create(tmp_path / "r", teachers, many, tiny_plan(), seed=6)
    sigma = np.array(release.manifest.mechanism["sigma"])
    first, last = sigma.argmin(), sigma.argmax()
    assert sigma[last] > 1.05 * sigma[first]
    exchanged = np.ones(RELEASED)
    exchanged[first], exchanged[last] = sigma[last] / sigma[first], sigma[first] / sigma[last]
    rejected = deviation_p(noise_in(release, teachers, many), exchanged) < ALPHA / RELEASED
    assert np.flatnonzero(rejected).tolist() == sorted([first, last])


def test_noise_of_every_image_and_channel_is_its_own(noise):
    contents = tiny_queries(2).contents
    assert contents[0] == contents[1]  # the same image under two names has noise of its own, too
    p, pairs = least_pair_p(noise)
    assert p > ALPHA / pairs
    p, pairs = least_pair_p(noise.swapaxes(0, 1))
    assert p > ALPHA / pairs


def test_negative_control_noise_used_twice(noise):
    again = noise.copy()
    again[300] = noise[7]
    p, pairs = least_pair_p(again)
    assert p < ALPHA / pairs
    again = noise.copy()
    again[:, 2] = 0.9 * noise[:, 2] + 0.1 * noise[:, 4]
    p, pairs = least_pair_p(again.swapaxes(0, 1))
    assert p < ALPHA / pairs


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    arguments = (tiny_ensemble(1, 2, 3), tiny_queries(20), tiny_plan("paper", 20))
    one, *others = (files(create(tmp_path / name, *arguments, seed=1).path) for name in "abcdefgh")
    assert len(one) == 3
    assert all(other == one for other in others)


@pytest.mark.parametrize("what", ["seed", "plan", "teacher", "another query"])
def test_any_other_argument_gives_other_noise(tmp_path, what):
    """A difference of two releases must never show a teacher without its noise."""
    count = 60
    ours = {"ensemble": tiny_ensemble(1, 2, 3), "queries": tiny_queries(count)}
    plan, seed = tiny_plan(queries=count), 1
    theirs = ours | {
        "teacher": {"ensemble": tiny_ensemble(1, 2, 4)},
        "another query": {"queries": tiny_queries(count, change=count - 1)},
    }.get(what, {})
    other = replace(plan, epsilon=8.5) if what == "plan" else plan
    base = create(tmp_path / "a", **ours, plan=plan, seed=seed)
    changed = create(tmp_path / "b", **theirs, plan=other, seed=seed + (what == "seed"))
    a, b = noise_in(base, **ours), noise_in(changed, **theirs)
    assert deviation_p(b).min() > ALPHA / RELEASED
    assert correlation_p(a[: count - 1], b[: count - 1]) > ALPHA
    assert correlation_p(a, 0.9 * b + 0.1 * a) < ALPHA  # negative control: a tenth of it again


def test_paired_arms_share_their_draws(tmp_path):
    """Only in a research run, and only there: the same normals under other sigmas."""
    ours = {"ensemble": tiny_ensemble(1, 2, 3), "queries": tiny_queries(60)}
    plan, paired = tiny_plan(queries=60), Options(paired=True)
    plans = {"a": plan, "b": replace(plan, epsilon=4.0), "c": replace(plan, allocation="uniform")}
    a, b, c = (
        noise_in(create(tmp_path / name, **ours, plan=each, seed=1, options=paired), **ours)
        for name, each in plans.items()
    )
    for other in (b, c):  # equal but for the rounding to 16 bits
        assert np.corrcoef(a.ravel(), other.ravel())[0, 1] > 0.999
    alone = noise_in(create(tmp_path / "d", **ours, plan=plans["b"], seed=1), **ours)
    assert correlation_p(a, alone) > ALPHA
    with pytest.raises(ReleaseError, match="never drawn twice"):
        create(tmp_path / "e", **ours, plan=plan, ledger=Ledger(tmp_path / "l"), options=paired)
    assert not (tmp_path / "e").exists()


def test_every_private_release_has_a_secret_of_its_own(tmp_path):
    """Here the operating system draws, so one run in ten million may fail by chance."""
    queries, teachers, plan = tiny_queries(60), tiny_ensemble(1, 2, 3), tiny_plan(queries=60)
    made = []
    for name in "ab":
        ledger = Ledger(tmp_path / f"{name}.sqlite")
        just_enough(ledger, plan, teachers.cohorts)
        made.append(create(tmp_path / name, teachers, queries, plan, ledger=ledger))
        assert not (tmp_path / f"{name}.private" / "secret").exists()
    a, b = (noise_in(release, teachers, queries) for release in made)
    assert min(deviation_p(a).min(), deviation_p(b).min()) > ALPHA / RELEASED
    assert correlation_p(a, b) > ALPHA


@pytest.mark.parametrize("preset", ["honest", "paper"])
def test_without_noise_the_stored_integers_are_the_sums(tmp_path, preset):
    """Every teacher counts once, in every query; only the last bits are dropped."""
    queries, teachers = tiny_queries(300), tiny_ensemble(1, 2, 3)
    plan = tiny_plan(preset, 300, allocation="none")
    release = create(tmp_path / "r", teachers, queries, plan, not_private=True)
    shift = np.array(release.manifest.mechanism["shift"]).reshape(-1, 1, 1)
    stored = np.concatenate(list(release.shards()))
    total = noiseless(release, teachers, queries)
    assert len(release.manifest.shards) == 2
    np.testing.assert_array_equal(stored, np.rint(total / 2.0**shift))
    assert (np.abs(stored.astype(np.int64) * 2**shift - total) * 2 <= 2**shift).all()


def test_a_broken_teacher_adds_zero_unless_the_plan_gives_up(tmp_path):
    """By default whether there is a release hangs on nobody; else the statement says so."""
    queries, teachers = tiny_queries(20), tiny_ensemble(1, 2, 3)
    with torch.no_grad():
        teachers.teachers[1].tap.network[0][0].weight.fill_(math.nan)
    plan = tiny_plan(queries=20, allocation="none")
    refuses = replace(plan, broken="refuse")
    with pytest.raises(ReleaseError, match=r"'site 2' returns NaN .* query 'q0'"):
        create(tmp_path / "r", teachers, queries, refuses, not_private=True)
    whole = create(tmp_path / "r2", tiny_ensemble(1, 2, 3), queries, refuses, not_private=True)
    assert whole.plan.broken == "refuse"
    assert "no epsilon covers it" in whole.statement["not_protected"][0]
    assert all(check.passed is not False for check in verify(whole.path))
    forged = replace(whole.manifest, plan=plan.to_json())
    with pytest.raises(ReleaseError, match="does not follow"):
        check_statement(forged)
    told = []
    options = Options(on_broken=lambda *what: told.append(what))
    release = create(tmp_path / "z", teachers, queries, plan, not_private=True, options=options)
    assert told == [("site 2", name) for name in queries.ids]
    others = Ensemble((teachers.teachers[0], teachers.teachers[2]), "initialisation")
    # A third of the sum of two: what is stored is that sum, in the unit of three.
    shift = np.array(release.manifest.mechanism["shift"]).reshape(-1, 1, 1)
    want = np.rint(noiseless(release, others, queries) / 2.0**shift)
    np.testing.assert_array_equal(next(release.shards()), want)
    unit = np.array(release.manifest.mechanism["step"]) * release.caps / 3
    np.testing.assert_allclose(release.scale, unit * 2.0 ** shift.ravel())


def test_caps_and_importance_have_noise_of_their_own(tmp_path, ensemble, queries, make_plan):
    """128 values of each; chi-square of each, and no correlation, in a release and across two."""
    plain = create(
        *(tmp_path / "plain", ensemble, queries, make_plan("paper", allocation="none")),
        not_private=True,
    )
    noise = {}
    for seed in (1, 2):
        made = create(tmp_path / f"{seed}", ensemble, queries, make_plan("paper"), seed=seed)
        for name, statistic in made.manifest.statistics.items():
            without = np.array(plain.manifest.statistics[name]["values"])
            noise[name, seed] = (np.array(statistic["values"]) - without) / statistic["sigma"]
    seen = [np.square(each).sum() for each in noise.values()]
    low, high = stats.chi2.isf([1 - ALPHA / 8, ALPHA / 8], 128)
    assert low < min(seen) <= max(seen) < high
    p, pairs = least_pair_p(np.stack(list(noise.values())))
    assert p > ALPHA / pairs
    again = np.stack([noise["caps", 1], 0.5 * noise["caps", 1] + 0.5 * noise["importance", 1]])
    assert least_pair_p(again)[0] < ALPHA  # negative control


def test_without_any_label_nothing_is_charged(ensemble, queries, make_plan, ledger, tmp_path):
    arrays = replace(queries.arrays, unlabelled=frozenset(queries.ids))
    before = ledger.rows()
    with pytest.raises(ReleaseError, match="no query has a label"):
        create(tmp_path / "out", ensemble, Queries.of(arrays), make_plan(), ledger=ledger)
    assert ledger.rows() == before
