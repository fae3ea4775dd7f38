"""The per-iteration baseline: sqrt(Q) times the noise at the same epsilon, and never twice."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from canal.errors import ReleaseError
from canal.features.ensemble import Ensemble
from canal.features.mechanism import TeacherSum
from canal.features.per_iteration import PerIterationRelease
from canal.features.release import create
from canal.features.statistics import Statistics
from canal.privacy import UNITS, GaussianEvent, Guarantee, Participants, Secret, penalty

# False-alarm rate of each statistical test below.
ALPHA = 1e-7
Q = 9
ALL = {"released": 128}  # of 128 channels, 2 x 2 positions and 40 queries: 20 480 noise values


@pytest.fixture
def baseline(tmp_path, ensemble, queries, make_plan):
    """A release made once, and the baseline of the same plan with Q answers for each query."""

    def make(preset="honest", seed=1, **choices):
        choices = ALL | choices
        once = create(tmp_path / preset, ensemble, queries, make_plan(preset, **choices), seed=seed)
        statistics = Statistics.from_json(once.manifest.statistics)
        plan = make_plan(preset, releases=Q, **choices)
        mechanism = TeacherSum.of(plan.calibrate(statistics.weights(plan)), statistics)
        return once, PerIterationRelease(mechanism, ensemble, queries, Secret.seeded(seed))

    return make


def noiseless(baseline):
    """The mean of the clipped teachers, `[N, M, *grid]`, as features."""
    mechanism = baseline.mechanism
    sums = [
        sum(
            mechanism.contribution(teacher.tap.features(batch.images)).integers
            for teacher in baseline.ensemble.teachers
        )
        for batch in baseline.queries.batches()
    ]
    unit = mechanism.lattice.step * mechanism.caps / mechanism.teachers
    return np.concatenate(sums) * unit[:, None, None]


def noise_of(features, baseline):
    """What was added, in units of the baseline's planned deviation of each channel."""
    deviation = baseline.mechanism.caps * baseline.mechanism.sigma
    return (features.double().numpy() - noiseless(baseline)) / deviation[:, None, None]


def variance_ratio_p(one, other, expected):
    """F-test: p-value of var(one) = expected · var(other)."""
    ratio = np.square(one).mean() / np.square(other).mean() / expected
    freedom = (one.size, other.size)
    return 2 * min(stats.f.sf(ratio, *freedom), stats.f.cdf(ratio, *freedom))


def test_at_the_same_epsilon_noise_is_sqrt_q_times_that_of_one_release(baseline, queries):
    once, often = baseline()
    sigma = np.array(once.manifest.mechanism["sigma"])
    np.testing.assert_allclose(often.mechanism.sigma, math.sqrt(Q) * sigma, rtol=1e-6)
    assert once.channels.tolist() == often.mechanism.channels.tolist()
    published = noise_of(once.batch(queries.ids), often)
    answers = np.concatenate([noise_of(often.batch(queries.ids), often) for _ in range(3)])
    assert variance_ratio_p(answers, published, Q) > ALPHA
    for wrong in (1.05**2 * Q, Q / 1.05**2, Q - 1):  # negative controls
        assert variance_ratio_p(answers, published, wrong) < ALPHA


def test_every_answer_has_fresh_noise(baseline, queries):
    _, often = baseline()
    answers = np.stack([noise_of(often.batch(queries.ids), often).ravel() for _ in range(4)])
    pairs = np.corrcoef(answers)[np.triu_indices(4, 1)]
    deviations = np.abs(pairs) * math.sqrt(answers.shape[1])
    assert deviations.max() < stats.norm.isf(ALPHA / 2 / pairs.size)
    # Twice in one batch is asked twice, too; 0.5 is eleven deviations of some 500 values.
    twice = often.batch([queries.ids[0]] * 2).numpy()
    assert abs(stats.pearsonr(twice[0].ravel(), twice[1].ravel()).statistic) < 0.5
    assert often.asked[queries.ids[0]] == 6


@pytest.mark.parametrize("what", ["nothing", "plan", "teacher"])
def test_under_one_secret_only_the_very_same_question_has_the_same_noise(
    baseline, queries, ensemble, what
):
    """Else the difference of two baselines would show a teacher without its noise."""
    _, often = baseline()
    mechanism = often.mechanism
    if what == "plan":
        mechanism = replace(mechanism, sigma=1.001 * mechanism.sigma)
    others = Ensemble(ensemble.teachers[: 2 if what == "teacher" else 3], ensemble.initialisation)
    other = PerIterationRelease(mechanism, others, queries, often.secret)
    one, another = (noise_of(each.batch(queries.ids), each) for each in (often, other))
    found = stats.pearsonr(one.ravel(), another.ravel())
    if what == "nothing":
        assert found.statistic == pytest.approx(1)
    else:
        assert found.pvalue > ALPHA


def test_the_order_of_a_batch_is_the_order_of_the_names(baseline, queries):
    """With next to no noise, so that it can be seen."""
    _, often = baseline(epsilon=1e12)
    names = [queries.ids[row] for row in (7, 2, 30)]
    got = often.batch(names).double().numpy() / often.mechanism.caps[:, None, None]
    want = noiseless(often)[[7, 2, 30]] / often.mechanism.caps[:, None, None]
    np.testing.assert_allclose(got, want, atol=0.02)
    assert np.abs(want - want[::-1]).max() > 0.1


def by_hand(often, unit, answers):
    """rho of this many answers to one unit: Eq. rho-rel, composed; statistics are paid once."""
    plan, sigma = often.mechanism.calibrated.plan, often.mechanism.sigma
    weight = 1 if unit == "image" else 1 / 3
    features = answers * (np.square(2 * weight / sigma) / 2).sum()  # paper: D = 2
    statistics = 0.0
    for name, bound in (("caps", math.sqrt(128 * 4)), ("importance", 1.0)):
        share = 1 / 3 if unit == "patient" else plan.participants.images_per_person / 40
        reach = math.sqrt(2) * bound * share
        statistics += (reach / often.mechanism.calibrated.sigma(name)[0]) ** 2 / 2
    return features + statistics


@pytest.mark.parametrize("images_per_person", [1, 3])
def test_what_was_spent_is_what_was_asked(baseline, queries, images_per_person):
    people = Participants(3, 40, images_per_person)
    _, often = baseline("paper", participants=people)
    for unit in UNITS:
        assert often.spent().rho(unit) == pytest.approx(by_hand(often, unit, 0))
    often.batch(queries.ids[:5])
    often.batch([*queries.ids[3:8], queries.ids[4]])
    # Eleven answers in all; the fifth query had three of them.
    answers = {"patient": 11, "image": 3 * images_per_person, "paper": 3 * images_per_person}
    for unit in UNITS:
        spent = often.spent()
        assert spent.rho(unit) == pytest.approx(by_hand(often, unit, answers[unit]))
        assert spent.draws(unit) == 2 * 128 + answers[unit] * 128 * 4


def test_all_that_is_allowed_costs_what_was_asked_for(baseline, queries):
    """And that is what `canal.privacy.penalty` foretells at this noise."""
    _, often = baseline("paper")
    for _ in range(Q):
        often.batch(queries.ids)
    calibrated = often.mechanism.calibrated
    plan, promised = calibrated.plan, calibrated.guarantee
    spent = often.spent()
    once = Guarantee(
        tuple(
            GaussianEvent(e.name, e.sigma, plan.participants.features(plan.diameter), e.draws)
            if e.name == "features"
            else e
            for e in promised.events
        )
    )
    for unit in UNITS:
        assert spent.rho(unit) == promised.rho(unit)
        foretold = penalty(once, Q, plan.delta, unit, plan.conversion)
        said = spent.epsilon(plan.delta, unit, plan.conversion)
        assert said == pytest.approx(foretold.epsilon_per_iteration, rel=1e-12)
        assert said > foretold.epsilon_once
    assert 8.0 * (1 - 1e-9) < spent.epsilon(plan.delta, plan.unit, plan.conversion) <= 8.0


def test_asking_once_more_is_refused_and_draws_nothing(baseline, queries):
    _, often = baseline()
    name = queries.ids[0]
    for _ in range(Q - 1):
        often.batch([name])
    before = often.asked.copy()
    with pytest.raises(ReleaseError, match="all that the plan pays for"):
        often.batch([queries.ids[1], name, name])
    assert often.asked == before
    often.batch([name])
    with pytest.raises(ReleaseError):
        often.batch([name])
    often.batch([queries.ids[1]])
    with pytest.raises(ReleaseError, match="'nobody' is not among the 40"):
        often.batch(["nobody"])
