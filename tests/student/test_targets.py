"""Targets: what was released in its own units, and knobs that do what they say."""

import numpy as np
import pytest
import torch
from scipy.fft import dctn, idctn

from canal.errors import InvalidValueError
from canal.features.distillation import Targets
from canal.learning.settings import DistillSettings


def test_targets_are_the_release_in_the_unit_ball(make_release):
    release = make_release("none")
    found = Targets(release, DistillSettings()).batch(release.ids)
    caps = torch.from_numpy(release.caps).float().reshape(-1, 1, 1)
    torch.testing.assert_close(found * caps, release.batch(release.ids))
    # No noise: every channel of every image has at most length one.
    assert float(found.flatten(2).norm(dim=2).max()) <= 1.0001


def test_frequencies_are_those_of_the_cosine_transform(make_release):
    release = make_release()
    full = Targets(release, DistillSettings()).batch(release.ids).numpy().astype(float)
    for low in (1, 2, 3, 4):
        kept = dctn(full, axes=(2, 3), norm="ortho")
        kept[:, :, low:], kept[:, :, :, low:] = 0, 0
        want = idctn(kept, axes=(2, 3), norm="ortho")
        found = Targets(release, DistillSettings(frequencies=low)).batch(release.ids)
        np.testing.assert_allclose(found.numpy(), want, atol=1e-4 * np.abs(want).max())
    with pytest.raises(InvalidValueError, match="frequencies = 5"):
        Targets(release, DistillSettings(frequencies=5))


def test_wiener_is_the_best_linear_guess(make_release):
    """Against the least mean square over many scalings, for signal and noise of known power."""
    release = make_release()
    plain = Targets(release, DistillSettings())
    shrunk = Targets(release, DistillSettings(wiener=True))
    ratio = (shrunk.batch(release.ids[:1]) / plain.batch(release.ids[:1]))[0, :, 0, 0].double()
    for factor, noise in zip(ratio.tolist(), plain.noise.tolist(), strict=True):
        losses = {
            scale: (scale - 1) ** 2 * plain.signal + scale**2 * noise**2
            for scale in (factor, factor * 1.01, factor * 0.99)
        }
        assert min(losses, key=losses.get) == factor


def test_precision_weighs_a_channel_by_its_noise(make_release):
    release = make_release()
    targets = Targets(release, DistillSettings(channel_weight="precision"))
    zeros = torch.zeros(1, targets.channels, 4, 4)
    costs = []
    for channel in range(targets.channels):
        one = zeros.clone()
        one[0, channel] = 1.0
        costs.append(float(targets.distance(one, zeros)))
    want = 1 / (targets.noise.square() + targets.signal)
    np.testing.assert_allclose(np.array(costs) / costs[0], (want / want[0]).numpy(), rtol=1e-5)
    even = Targets(release, DistillSettings())
    one = torch.zeros(1, even.channels, 4, 4)
    one[0, 3] = 1.0
    other = one.roll(1, dims=1)
    assert float(even.distance(one, zeros)) == pytest.approx(float(even.distance(other, zeros)))


@pytest.mark.parametrize("choices", [{}, {"channel_weight": "precision"}, {"wiener": True}])
def test_a_student_that_says_nothing_pays_about_one(make_release, choices):
    """Whatever the knobs and the noise, so that one feature weight fits all."""
    for epsilon in (1.0, 8.0):
        release = make_release(epsilon=epsilon)
        targets = Targets(release, DistillSettings(**choices))
        found = targets.batch(release.ids)
        assert float(targets.distance(torch.zeros_like(found), found).mean()) == pytest.approx(
            1, rel=0.2
        )


def test_pure_noise_has_the_sigma_of_the_release_and_nothing_of_its_signal(make_release):
    release = make_release()
    settings = DistillSettings()
    noise = Targets(release, settings, noise_seed=5).batch(release.ids).double()
    scaled = (noise / Targets(release, settings).noise.reshape(-1, 1, 1)).flatten()
    # 12 · 12 · 16 values: the mean square is one to 5.5 deviations, false alarms 4e-8.
    assert abs(float(scaled.square().mean()) - 1) < 5.5 * np.sqrt(2 / scaled.numel())
    again = Targets(release, settings, noise_seed=5).batch(release.ids[::-1]).flip(0)
    torch.testing.assert_close(noise.float(), again)
    other = Targets(release, settings, noise_seed=6).batch(release.ids).double()
    found = np.corrcoef(noise.flatten(), other.flatten())[0, 1]
    assert abs(found) < 5.5 / np.sqrt(scaled.numel())
