"""Caps and importance: plain means where public, with the planned noise where private."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from canal.data.arrays import Arrays
from canal.errors import ReleaseError
from canal.features.ensemble import Teacher
from canal.features.mechanism import FeatureMechanism, FeatureSpec
from canal.features.plan import Plan
from canal.features.queries import Queries
from canal.features.statistics import Statistic, Statistics
from canal.learning.networks import BOTTLENECK, task_loss
from canal.privacy import Guarantee, Participants, Secret
from canal.release.mechanism import LocalFederation, Noise, Published, perturbed

# False-alarm rate of each statistical test below.
ALPHA = 1e-7
STEP = 2.0**-16
NASTY = [0.0, 1.0, 5e-324, 1e-30, 1e30, 1e38, math.nan, math.inf, -math.inf]


class Table:
    """A tap that looks up its answers; the row of a query is painted on it."""

    def __init__(self, norms, energies):
        self.norms, self.energies = (torch.as_tensor(each) for each in (norms, energies))

    def features(self, images):
        return self.norms[self._rows(images)][..., None, None]

    def features_and_energy(self, images, masks):
        return self.features(images), self.energies[self._rows(images)]

    def _rows(self, images):
        return ((images[:, 0, 0, 0] + 1) * 127.5).round().long()


def painted(count):
    images = np.broadcast_to(
        np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 1, 2, 2)
    )
    names = tuple(f"q{row}" for row in range(count))
    return Queries.of(Arrays(names, images, np.zeros_like(images), "digest"))


def make_plan(channels, queries, teachers=3, preset="paper", **choices):
    people = Participants(teachers, queries)
    size = {"channels": channels, "released": 1, "grid": (1, 1), "participants": people}
    return Plan.preset(preset, **{"epsilon": 8.0, "delta": 1e-5} | size | choices)


def run(plan, tables, shared=None, seed=0, check=lambda cohort, query: None):
    """Both statistics as a release publishes them."""
    teachers = [
        Teacher(f"site {number}", table, str(number)) for number, table in enumerate(tables)
    ]
    return publish_statistics(
        plan, painted(plan.participants.queries), teachers, shared, seed, check
    )


def publish_statistics(plan, queries, teachers=(), shared=None, seed=0, check=lambda *_: None):
    cohorts = tuple(teacher.cohort for teacher in teachers)
    asked = tuple(zip(queries.ids, queries.contents, strict=True))
    spec = FeatureSpec(plan, cohorts, "initialisation", "layer", asked, f"seed {seed}")
    mechanism = FeatureMechanism(spec, queries, shared, on_broken=check)
    noise, found = Noise(Secret.seeded(seed)), {}
    for step in mechanism.preliminaries():
        federation = LocalFederation(teachers)
        federation.prepare(mechanism, None)
        (sums,) = federation.sums([step], Published())
        found |= perturbed(mechanism, step, sums, Published(), noise)
    return Statistics.from_json(mechanism.settle(found))


def clipped(vectors, bound):
    """Non-negative vectors of at most this length, each as it is or made shorter."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors * np.minimum(1, bound / np.maximum(norms, 1e-300))


def by_hand(network, images, masks):
    """Channel norms and gradient energies of single images, by a plain loop."""
    caught = {}
    layer = dict(network.named_modules())[BOTTLENECK]
    handle = layer.register_forward_hook(lambda *what: caught.update(kept=what[2]))
    norms, energies = [], []
    for row in range(len(images)):
        # In single precision from the start: the last bit may decide on which side of a ReLU.
        image = torch.tensor(images[row : row + 1], dtype=torch.float32) / 127.5 - 1
        logits = network(image)
        loss = task_loss(logits, torch.tensor(masks[row : row + 1], dtype=torch.float32)).sum()
        (gradient,) = torch.autograd.grad(loss, caught["kept"])
        norms.append(caught["kept"].detach().double().flatten(2).norm(dim=2)[0].numpy())
        energies.append(gradient.double().square().flatten(2).mean(2)[0].numpy())
    handle.remove()
    return np.array(norms), np.array(energies)


def test_public_ones_are_the_means_of_the_initialisation(ensemble, queries, arrays, make_plan):
    norms, energies = by_hand(ensemble.shared.network.eval(), arrays.images, arrays.masks)
    for bound in (1e3, 8.0):  # in the second case most vectors are clipped
        plan = make_plan(caps_bound=bound)
        made = publish_statistics(plan, queries, shared=ensemble.shared)
        assert (made.caps.source, made.caps.sigma) == ("public", 0.0)
        want = clipped(norms, bound).mean(axis=0)
        np.testing.assert_allclose(made.caps.values, want, atol=bound * STEP * 1.01)
        assert (np.linalg.norm(norms, axis=1) > bound).any() == (bound == 8.0)
        scaled = energies / np.linalg.norm(energies, axis=1, keepdims=True)
        np.testing.assert_allclose(made.importance.values, scaled.mean(axis=0), atol=STEP * 1.01)
        np.testing.assert_array_equal(made.caps.estimate(), made.caps.values)


@pytest.mark.parametrize("unit", ["patient", "image", "paper"])
def test_private_ones_are_the_mean_with_the_planned_noise(unit):
    """Chi-square over 2000 channels and ten seeds; sigma by hand; 5 % either way is found."""
    channels, queries, bound = 2000, 5, 3.0
    rng = np.random.default_rng(1)
    tables = [Table(*np.abs(rng.normal(0, 0.1, (2, queries, channels)))) for _ in range(3)]
    plan = make_plan(channels, queries, unit=unit, caps_bound=bound)
    total = (math.sqrt(math.log(1e5) + 8) - math.sqrt(math.log(1e5))) ** 2
    weight = 1 / 3 if unit == "patient" else 1 / queries
    for name, b, share in (("caps", bound, 0.10), ("importance", 1.0, 0.05)):
        sigma = math.sqrt(2) * b * weight / math.sqrt(2 * share * total)
        vectors = [table.norms if name == "caps" else table.energies for table in tables]
        vectors = np.concatenate([each.numpy() for each in vectors])
        unit_length = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        plain = (clipped(vectors, b) if name == "caps" else unit_length).mean(axis=0)
        noise = []
        for seed in range(10):
            made = getattr(run(plan, tables, seed=seed), name)
            assert made.sigma == pytest.approx(sigma, rel=1e-6)
            assert (made.estimate() > 0).all()
            noise.append((np.array(made.values) - plain) / sigma)
        squares, freedom = np.square(noise).sum(), np.size(noise)
        low, high = stats.chi2.isf([1 - ALPHA / 2, ALPHA / 2], freedom)
        assert low < squares < high
        assert not low < squares / 1.05**2 < high  # negative controls
        assert not low < squares / 0.95**2 < high
        # No seed repeats another's noise.
        assert np.abs(np.corrcoef(noise) - np.eye(10)).max() < 0.2


def test_caps_and_importance_have_noise_of_their_own():
    plan = make_plan(2000, 5)
    nothing = Table(np.zeros((5, 2000)), np.zeros((5, 2000)))
    made = run(plan, [nothing] * 3)
    caps = np.array(made.caps.values) / made.caps.sigma
    scores = np.array(made.importance.values) / made.importance.sigma
    assert stats.pearsonr(caps, scores).pvalue > ALPHA
    assert stats.pearsonr(caps, 0.8 * scores + 0.2 * caps).pvalue < ALPHA  # negative control


def sums(plan, tables, name):
    """The noiseless integers, in units of B, given back by a plan without noise."""
    made, people = getattr(run(plan, tables), name), plan.participants
    bound = plan.bound if name == "caps" else 1.0
    unit = STEP * bound / (people.teachers * people.queries)
    found = np.rint(np.array(made.values) / unit)
    np.testing.assert_array_equal(found * unit, made.values)
    return [int(n) for n in found]


answers = hnp.arrays(
    np.float32, (2, 4, 3), elements=st.sampled_from(NASTY) | st.floats(0, 100, width=32)
)


@settings(max_examples=60)
@given(st.lists(answers, min_size=4, max_size=4), st.sampled_from(["caps", "importance"]))
def test_a_patient_moves_a_sum_by_at_most_the_sensitivity(drawn, name):
    """One of K = 3 teachers says something else on all N = 4 queries: √2 · B · N / step."""
    *tables, other = (Table(*each) for each in drawn)
    plan = make_plan(3, 4, allocation="none", caps_bound=7.0)
    before, after = (sums(plan, [*tables[:2], last], name) for last in (tables[2], other))
    apart = sum((a - b) ** 2 for a, b in zip(before, after, strict=True))
    assert apart <= 2 * (4 * 2**16) ** 2


@settings(max_examples=60)
@given(st.lists(answers, min_size=3, max_size=3), st.sampled_from(["caps", "importance"]))
def test_an_image_moves_a_sum_by_at_most_the_sensitivity(drawn, name):
    """All K = 3 teachers say something else on one of the queries: √2 · B · K / step."""
    plan = make_plan(3, 2, allocation="none", caps_bound=7.0)
    before, after = (
        sums(plan, [Table(*each[:, rows]) for each in drawn], name) for rows in ([0, 1], [0, 2])
    )
    apart = sum((a - b) ** 2 for a, b in zip(before, after, strict=True))
    assert apart <= 2 * (3 * 2**16) ** 2


def test_the_sensitivity_of_a_sum_is_reached():
    plan = make_plan(3, 4, allocation="none", caps_bound=7.0)
    far = [Table(*[np.tile(np.eye(3)[axis] * 1e6, (4, 1))] * 2) for axis in (0, 1)]
    for name in ("caps", "importance"):
        before, after = (sums(plan, [far[0], far[0], last], name) for last in far)
        assert sum((a - b) ** 2 for a, b in zip(before, after, strict=True)) == 2 * (4 * 2**16) ** 2


def test_the_size_of_a_gradient_does_not_matter():
    """Energies are scaled to length one: image by image, so a loud one counts like a faint one."""
    rng = np.random.default_rng(2)
    energies, norms = rng.uniform(0, 1, (4, 3)).astype(np.float32), np.ones((4, 3))
    plan = make_plan(3, 4, teachers=1, allocation="none")
    loudness = np.array([[1.0], [2.0**-100], [2.0**90], [1.0]], dtype=np.float32)
    plain, loud = (run(plan, [Table(norms, e)]) for e in (energies, energies * loudness))
    assert plain.importance == loud.importance
    scores = np.array(plain.importance.values)
    unit = energies / np.linalg.norm(energies, axis=1, keepdims=True)
    np.testing.assert_allclose(scores, unit.mean(axis=0), atol=STEP)


def test_a_broken_answer_counts_as_zero_and_is_told():
    norms = np.ones((4, 3), dtype=np.float32)
    broken = norms.copy()
    broken[2, 1] = math.nan
    plan = make_plan(3, 4, teachers=2, allocation="none", caps_bound=10.0)
    told = []
    tables = [Table(norms, norms), Table(broken, norms)]
    made = run(plan, tables, check=lambda *what: told.append(what))
    assert told == [("site 1", "q2")]
    np.testing.assert_allclose(made.caps.values, 7 / 8, atol=10 * STEP)  # of 8 terms, still


def test_an_estimate_is_positive_and_the_mean_of_what_is_left_above_zero():
    values, sigma = (-30.0, -1.0, 0.0, 2.0, 50.0), 0.7
    got = Statistic("private", values, sigma).estimate()
    want = [stats.truncnorm(-value / sigma, np.inf, value, sigma).mean() for value in values]
    assert (got > 0).all()
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_weights_are_the_papers_or_matched():
    made = Statistics(Statistic("public", (2.0, 3.0, 0.0)), Statistic("public", (5.0, 7.0, 9.0)))
    for weight, want in (("importance", [5.0, 7.0, 0.0]), ("matched", [20.0, 63.0, 0.0])):
        assert made.weights(make_plan(3, 4, weight=weight)).tolist() == want
    assert Statistics.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_private_ones_without_noise_are_refused_whatever_a_plan_says():
    """The plan's own noise is compared with that of a plan whose price of one was forgotten."""
    calibrated = make_plan(3, 4).calibrate()
    kept = tuple(event for event in calibrated.guarantee.events if event.name != "importance")
    wrong = dataclasses.replace(calibrated, guarantee=Guarantee(kept))
    caps = Statistic("private", (1.0, 2.0, 3.0), float(calibrated.sigma("caps")[0]))
    bare = Statistic("private", (1.0, 2.0, 3.0))
    with pytest.raises(ReleaseError, match="importance is read from the teachers and has no noise"):
        Statistics(caps, bare).check(wrong)
    with pytest.raises(ReleaseError, match="did not get the noise"):
        Statistics(caps, bare).check(calibrated)


def test_public_ones_need_the_initialisation():
    with pytest.raises(ReleaseError, match="--init"):
        run(make_plan(3, 4, preset="honest"), [])


def test_a_query_without_a_label_adds_nothing_to_the_importance(ensemble, queries, make_plan):
    """And all that it should to the caps."""
    arrays = queries.arrays
    plan = make_plan(caps_bound=1e3)

    def made(unlabelled):
        asked = Queries.of(dataclasses.replace(arrays, unlabelled=frozenset(unlabelled)))
        return publish_statistics(plan, asked, shared=ensemble.shared)

    everyone, some = made(()), made(arrays.ids[10:])
    assert some.caps == everyone.caps
    _, energies = by_hand(ensemble.shared.network.eval(), arrays.images[:10], arrays.masks[:10])
    scaled = energies / np.linalg.norm(energies, axis=1, keepdims=True)
    want = scaled.sum(axis=0) / len(arrays.ids)
    np.testing.assert_allclose(some.importance.values, want, atol=STEP * 1.01)
