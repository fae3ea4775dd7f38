r"""What a student is matched to: released features, made the most of at no further cost.

A release is public once it is made, so everything here is free post-processing. Each knob is off
unless asked for, as in the paper:

* *precision* weighs channel c by $1/(\sigma_c^2 + \lambda_c)$, noise and signal together;
* *Wiener* shrinks it by $\lambda_c/(\lambda_c + \sigma_c^2)$, the best linear guess at the signal;
* *frequencies* keeps the lowest k along every axis of an orthonormal cosine transform: noise is
  the same at all frequencies, features are not.

Features are taken as they were noised: divided by their caps, in the unit ball.
$\lambda_c = 1/(HW)$ is the most that the mean square of a clipped channel can be; public.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from canal.errors import InvalidValueError
from canal.features.per_iteration import PerIterationRelease
from canal.features.store import Release
from canal.learning.settings import DistillSettings

if TYPE_CHECKING:
    from torch import Tensor


class Targets:
    """The targets of one release.

    Args:
        release: what was published; or the baseline that answers with fresh noise.
        settings: which knobs are turned.
        noise_seed: of a control whose targets are pure noise of the same sigma; None for the
            release itself.
    """

    def __init__(
        self,
        release: Release | PerIterationRelease,
        settings: DistillSettings,
        noise_seed: int | None = None,
    ) -> None:
        import torch

        self.release = release
        self.settings = settings
        self.noise_seed = noise_seed
        grid = release.plan.grid
        if not 0 <= settings.frequencies <= min(grid):
            raise InvalidValueError(
                f"frequencies = {settings.frequencies!r} must lie between 0 (all) and "
                f"{min(grid)}, the sides of the bottleneck"
            )
        self._ones = (1,) * len(grid)
        # A dead channel has a cap of 0 and features of 0.
        caps = np.where(release.caps > 0, release.caps, 1.0)
        self._unit = torch.from_numpy((1 / caps).astype(np.float32)).reshape(-1, *self._ones)
        self.noise = torch.from_numpy(release.sigma / caps)
        self.signal = 1 / math.prod(grid)
        low = settings.frequencies
        # A projection keeps its share of the noise; of the signal it may keep all.
        kept = math.prod(low / side if low else 1.0 for side in grid)
        power = kept * self.noise.square() + self.signal
        self._shrink = (self.signal / power).float().reshape(-1, *self._ones)
        weight = 1 / power if settings.channel_weight == "precision" else torch.ones_like(power)
        # So that a target alone costs about one or less, whatever the noise and the knobs.
        if settings.wiener:
            power = power * (self.signal / power).square()
        self.weight = (weight / (weight * power).mean()).float()
        self._low = [_low_pass(side, low) if low else None for side in grid]

    @property
    def channels(self) -> int:
        """M, of every target."""
        return len(self.release.channels)

    def batch(self, names: Sequence[str]) -> Tensor:
        """Targets of some queries, `[B, M, *grid]`."""
        if self.noise_seed is None:
            found = self.release.batch(names) * self._unit
        else:
            found = self._pure_noise(names)
        return self.heard(found)

    def heard(self, found: Tensor) -> Tensor:
        """What the knobs make of features `[B, M, *grid]` in the unit ball."""
        for axis, matrix in enumerate(self._low):
            if matrix is not None:
                found = (found.movedim(2 + axis, -1) @ matrix).movedim(-1, 2 + axis)
        return found * self._shrink if self.settings.wiener else found

    def distance(self, ours: Tensor, targets: Tensor) -> Tensor:
        """The weighted squared distance of each image, `[B]`; a mean over channels and places."""
        error = (ours - targets).square().flatten(2).mean(2)
        return (error * self.weight.to(error.device)).mean(1)

    def _pure_noise(self, names: Sequence[str]) -> Tensor:
        import torch

        drawn = []
        for name in names:
            text = f"{self.noise_seed} {name}".encode(errors="surrogatepass")
            seed = np.frombuffer(hashlib.sha256(text).digest(), dtype=np.uint32)
            shape = (self.channels, *self.release.plan.grid)
            drawn.append(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))
        return torch.from_numpy(np.stack(drawn)) * self.noise.float().reshape(-1, *self._ones)


def _low_pass(side: int, low: int) -> Tensor:
    """The projection on the lowest frequencies of an orthonormal cosine transform, `[n, n]`."""
    import torch

    place, frequency = torch.arange(side) + 0.5, torch.arange(low)
    waves = torch.cos(math.pi / side * frequency[:, None] * place) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    return waves.T @ waves
