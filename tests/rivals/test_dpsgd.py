"""DP-SGD by Opacus: what is asked is what is paid, by another accountant; patients are drawn."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from canal.data.arrays import Arrays
from canal.errors import InvalidValueError
from canal.gradients.patients import Patients
from canal.learning.networks import UNetArchitecture, task_loss, to_float
from canal.rivals import dpsgd
from canal.rivals.dpsgd import PrivateSettings


@pytest.fixture
def arrays():
    """Forty bright squares on grey, of twenty people."""
    rng = np.random.default_rng(0)
    masks = np.zeros((40, 1, 32, 32), np.uint8)
    for mask in masks:
        top, left = rng.integers(2, 8, size=2)
        mask[:, top : top + 16, left : left + 16] = 1
    images = np.repeat(60 + 120 * masks, 3, axis=1) + rng.integers(40, size=(40, 3, 32, 32))
    ids = tuple(f"{number:02}" for number in range(40))
    people = {name: str(int(name) // 2) for name in ids}
    return Arrays(ids, images.astype(np.uint8), masks, "squares", patients=people)


@pytest.fixture
def network():
    return UNetArchitecture(base_channels=8).build(seed=0)


@pytest.fixture
def noise_of_two(monkeypatch):
    """Opacus searches for seconds for a noise that these tests do not ask about."""
    monkeypatch.setattr(dpsgd, "_multiplier", lambda *asked: 2.0)


def loss_of(network, arrays):
    with torch.no_grad():
        logits = network(to_float(torch.from_numpy(arrays.images)))
        return float(task_loss(logits, torch.from_numpy(arrays.masks).float()).mean())


def test_another_accountant_agrees(arrays, network, monkeypatch):
    """The noise and the steps that were really taken cost epsilon 8, by Google's accounting."""
    steps, step = [], DPOptimizer.step

    def watched(self, *args):
        found = step(self, *args)
        if not self._is_last_step_skipped:
            steps.append((self.noise_multiplier, self.max_grad_norm, self.expected_batch_size))
        return found

    monkeypatch.setattr(DPOptimizer, "step", watched)
    settings = PrivateSettings(8.0, epochs=3, rate=0.2, parts=("final_conv.*",))
    dpsgd.train(network, [Patients("here", arrays)], settings, seed=1)
    assert len(steps) == 15
    ((noise, clip, drawn),) = set(steps)
    assert (clip, drawn) == (settings.clip, 4)
    event = dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(noise))
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(event, 15)
    assert 0.97 * 8 <= accountant.get_epsilon(1e-5) <= 1.01 * 8


def test_it_learns_where_noise_is_small_and_not_where_it_is_large(arrays, network, monkeypatch):
    before, after = loss_of(network, arrays), {}
    settings = PrivateSettings(epochs=4, rate=0.5, step=0.2)
    for noise in (0.32, 10.5):  # epsilon 60 and 0.5
        monkeypatch.setattr(dpsgd, "_multiplier", lambda *asked, noise=noise: noise)
        trained = dpsgd.train(copy.deepcopy(network), [Patients("here", arrays)], settings, seed=0)
        after[noise] = loss_of(trained, arrays)
    assert after[0.32] < 0.95 * before < after[10.5]


@pytest.mark.usefixtures("noise_of_two")
@pytest.mark.parametrize("parts", [("*",), ("upcat_1.*", "final_conv.*")])
def test_gradients_are_those_of_opacus(arrays, network, parts, monkeypatch):
    """Of the first images that are drawn, as its own hooks compute them."""
    seen, gradients = [], dpsgd.Gradients.__call__

    def watched(self, images, masks):
        rows = gradients(self, images, masks)
        seen.append((self.names, images, masks, rows))
        return rows

    monkeypatch.setattr(dpsgd.Gradients, "__call__", watched)
    # Opacus 1.6 reads activations as if they were contiguous, and is silently wrong otherwise.
    theirs = copy.deepcopy(network).to(memory_format=torch.contiguous_format)
    settings = PrivateSettings(epochs=1, rate=0.5, parts=parts)
    dpsgd.train(network, [Patients("here", arrays)], settings, seed=0)
    names, images, masks, rows = seen[0]
    for name, each in theirs.named_parameters():
        each.requires_grad_(name in names)
    wrapped = GradSampleModule(theirs.train())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        task_loss(wrapped(images), masks).mean().backward()
    have = dict(theirs.named_parameters())
    want = torch.cat([have[name].grad_sample.flatten(1) for name in names], dim=1)
    assert len(rows) > 5
    assert torch.allclose(rows, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


@pytest.mark.usefixtures("noise_of_two")
def test_only_what_is_named_is_trained(arrays, network):
    before = copy.deepcopy(network.state_dict())
    settings = PrivateSettings(epochs=1, rate=0.5, parts=("final_conv.*", "upcat_1.*"))
    dpsgd.train(network, [Patients("here", arrays)], settings, seed=0)
    moved = {name for name, each in network.state_dict().items() if not each.equal(before[name])}
    assert moved
    assert all(name.startswith(("final_conv.", "upcat_1.")) for name in moved)
    assert all(each.requires_grad for each in network.parameters())


def test_patients_are_drawn_and_not_images(arrays, monkeypatch):
    """And of a patient nobody else's image, each of their own sooner or later."""
    sites = [Patients("one", arrays), Patients("two", arrays)]
    crowd = dpsgd._Crowd(sites, seed=0)
    assert len(crowd) == 40
    images, masks = crowd[0]
    assert images.shape == (3, 32, 32)
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    monkeypatch.setattr(dpsgd, "augmented", lambda images, masks, rng: (images, masks, None))
    every = dpsgd.to_float(torch.from_numpy(arrays.images.copy()))
    for number, rows in ((3, list(sites[0].rows.values())[3]), (20, sites[1].rows[first(sites)])):
        drawn = {_place(crowd[number][0], every) for _ in range(40)}
        assert drawn == set(rows)


def first(sites):
    return next(iter(sites[1].rows))


def _place(image, every):
    """Which of all images it is."""
    return next(row for row, other in enumerate(every) if torch.equal(image, other))


@pytest.mark.usefixtures("noise_of_two")
def test_nobody_may_be_drawn(arrays, network, monkeypatch):
    """Of three patients at a rate of a third, in some of nine steps; noise is added even then."""
    drawn, hand_over = [], dpsgd._hand_over
    monkeypatch.setattr(
        dpsgd, "_hand_over", lambda rows, *each: drawn.append(len(rows)) or hand_over(rows, *each)
    )
    few = Patients("here", arrays.rows(arrays.ids[:6]))
    settings = PrivateSettings(epochs=3, rate=0.3, parts=("final_conv.*",))
    trained = dpsgd.train(network, [few], settings, seed=0)
    assert len(drawn) == 9
    assert 0 in drawn
    assert any(drawn)
    assert all(each.grad_sample is None for each in trained.final_conv.parameters())
    assert all(math.isfinite(float(each.detach().sum())) for each in trained.parameters())


def test_a_name_that_is_not_there(arrays, network):
    with pytest.raises(InvalidValueError, match=r"no parameter is called 'last\.\*'"):
        dpsgd.train(network, [Patients("a", arrays)], PrivateSettings(parts=("last.*",)), seed=0)


@pytest.mark.parametrize("left_out", [1, 3])
def test_the_rate_is_the_rate_whether_or_not_it_divides(arrays, network, monkeypatch, left_out):
    asked = []
    monkeypatch.setattr(dpsgd, "_multiplier", lambda *each: asked.append(each) or 2.0)
    some = Patients("here", arrays)
    some.rows = dict(list(some.rows.items())[left_out:])
    settings = PrivateSettings(epochs=1, rate=0.2, parts=("final_conv.*",))
    dpsgd.train(network, [some], settings, seed=0)
    ((*_, batches),) = asked
    assert batches == 5


@pytest.mark.usefixtures("noise_of_two")
def test_a_clip_from_public_images(arrays, network, monkeypatch):
    """The median length of gradients of what is trained, by hand on one image after the other."""
    seen, step = [], DPOptimizer.step
    monkeypatch.setattr(
        DPOptimizer, "step", lambda self: seen.append(self.max_grad_norm) or step(self)
    )
    lengths = []
    for row in range(len(arrays.ids)):
        network.zero_grad()
        images = to_float(torch.from_numpy(arrays.images[row : row + 1]))
        masks = torch.from_numpy(arrays.masks[row : row + 1]).float()
        task_loss(network(images), masks).mean().backward()
        last = [each.grad.flatten() for each in network.final_conv.parameters()]
        lengths.append(float(torch.cat(last).norm()))
    network.zero_grad()
    settings = PrivateSettings(epochs=1, rate=0.5, clip=None, parts=("final_conv.*",))
    dpsgd.train(network, [Patients("here", arrays)], settings, seed=0, public=arrays)
    (clip,) = set(seen)
    assert clip == pytest.approx(np.median(lengths), rel=1e-5)


def test_no_clip_and_nothing_to_take_it_from(arrays, network):
    with pytest.raises(InvalidValueError, match="give one, or public images"):
        dpsgd.train(network, [Patients("a", arrays)], PrivateSettings(clip=None), seed=0)
