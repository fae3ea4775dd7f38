r"""Matches a student to released features, at no further cost.

A release is public once it is made, so everything here is free post-processing. The student's own
bottleneck goes through a convolution of kernel 1 (paper, ssec:exp-setup) into the release's
channels, and is matched there. Each knob is off unless asked for, as in the paper:

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
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from canal.errors import InvalidValueError
from canal.features.per_iteration import PerIterationRelease
from canal.features.store import Release
from canal.learning.networks import UNetArchitecture
from canal.learning.settings import DistillSettings, TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor

    from canal.data.arrays import Arrays
    from canal.learning.checkpoint import Checkpoint
    from canal.learning.training import Batch


class Projected(nn.Module):
    """A network whose tap is seen in the channels of a release; for training alone.

    Args:
        network: any that gives logits.
        layer: whose output is matched.
        channels: of that layer.
        released: M, channels of the targets.
        dims: 2 or 3.
    """

    def __init__(
        self, network: nn.Module, layer: str, channels: int, released: int, dims: int
    ) -> None:
        super().__init__()
        self.network = network
        self.adapter = (nn.Conv2d if dims == 2 else nn.Conv3d)(channels, released, 1)
        modules = dict(network.named_modules())
        if layer not in modules:
            raise InvalidValueError(f"the network has no layer {layer!r}")
        self._features: Tensor | None = None
        modules[layer].register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        self._features = output

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.network(images)
        return logits

    def matched(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the bottleneck in the release's channels; one pass."""
        logits = self.network(images)
        assert self._features is not None  # noqa: S101  # the hook ran
        features, self._features = self._features, None
        return logits, self.adapter(features)


class Targets:
    """The features of one release as targets.

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
        return self.filtered(found)

    def filtered(self, found: Tensor) -> Tensor:
        """Apply the knobs to features `[B, M, *grid]` in the unit ball."""
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


class FeatureMatching:
    """The squared distance to released features, as a student's target.

    Args:
        targets: of some of the images; the others have no feature loss.
        arrays: the recipient's images, whose rows the batches are of.
        start: the description of the network that is trained.
        training: how long, and the seed of the projection.
    """

    def __init__(
        self, targets: Targets, arrays: Arrays, start: Checkpoint, training: TrainingSettings
    ) -> None:
        self.targets = targets
        self.arrays = arrays
        self.start = start
        self.training = training

    def attach(self, network: nn.Module) -> Projected:
        """The network with a projection of its tap, drawn from the seed of the training."""
        import torch

        shape = UNetArchitecture.from_json(self.start.architecture)
        channels, dims = shape.channels, shape.spatial_dims
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.training.seed)
            return Projected(network, self.start.tap, channels, self.targets.channels, dims)

    def forward(self, learner: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the tap in the release's channels."""
        assert isinstance(learner, Projected)  # noqa: S101
        return learner.matched(images)

    def loss(self, matched: Tensor, batch: Batch) -> Tensor:
        """The weighted distance of a batch to the targets, turned as the images are."""
        import torch

        names = [self.arrays.ids[row] for row in batch.rows.tolist()]
        asked = [place for place, name in enumerate(names) if name in self.targets.release]
        if not asked:
            return matched.sum() * 0
        found = self.targets.batch([names[place] for place in asked])
        turned = batch.turn(found, asked).to(matched.device)
        ours = matched[torch.tensor(asked, device=matched.device)]
        return self.weight(batch.step) * self.targets.distance(ours, turned).mean()

    def weight(self, step: int) -> float:
        """The weight of the feature loss at a step of the training."""
        settings = self.targets.settings
        if settings.schedule == "decay":
            share = 0.5 * (1 + math.cos(math.pi * step / self.training.steps))
            return settings.feature_weight * share
        return settings.feature_weight


def feature_target(
    release: Release | PerIterationRelease,
    arrays: Arrays,
    start: Checkpoint,
    training: TrainingSettings,
    settings: DistillSettings,
    noise_seed: int | None = None,
) -> FeatureMatching:
    """Match a release that says something of some of the images.

    Args:
        release: what was published; or the baseline that answers with fresh noise.
        arrays: the recipient's images.
        start: the description of the network that is trained.
        training: how long and how fast.
        settings: which knobs are turned.
        noise_seed: see `Targets`.
    """
    if training.deform:
        raise InvalidValueError(
            f"deform = {training.deform:g}: features are of images as they are, and cannot be "
            "bent with them; leave it at 0"
        )
    if not any(name in release for name in arrays.ids):
        raise InvalidValueError(
            f"none of the {len(arrays.ids)} images is in the release; give the images that it was "
            "asked about"
        )
    return FeatureMatching(Targets(release, settings, noise_seed), arrays, start, training)


def _low_pass(side: int, low: int) -> Tensor:
    """The projection on the lowest frequencies of an orthonormal cosine transform, `[n, n]`."""
    import torch

    place, frequency = torch.arange(side) + 0.5, torch.arange(low)
    waves = torch.cos(math.pi / side * frequency[:, None] * place) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    return waves.T @ waves
