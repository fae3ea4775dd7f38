r"""Feature inversion: what does the image look like? A decoder trained against this very noise.

The adversary knows the mechanism: it has images of the same kind (auxiliary, none of the victims),
puts them through the teachers, clips them, adds noise of the *same* sigma, fresh at every step, and
trains a decoder to give the images back. What it makes of the released rows is compared with the
victims by SSIM (scikit-image with Wang's settings) and PSNR. A decoder that learned nothing paints
the mean of its images, which is a fair likeness of any: so the *mean image* is scored too, and an
SSIM means something only above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from canal.attacks.membership import check_scene
from canal.attacks.roc import NOTHING
from canal.attacks.view import Floats, noiseless_rows, released_rows, spreads
from canal.errors import InvalidValueError
from canal.features.ensemble import Ensemble
from canal.features.store import Release

if TYPE_CHECKING:
    from torch import nn

    from canal.data.arrays import Arrays

# Channels of the decoder: half as many at twice the size.
WIDTH, NARROWEST = 128, 16
FORMAT = "canal-inversion/1"


@dataclass(frozen=True)
class Likeness:
    """How like the victims some pictures are, image by image.

    Args:
        ssim: structural similarity, up to 1.
        psnr: in decibels.
    """

    ssim: Floats
    psnr: Floats


@dataclass(frozen=True)
class Inversion:
    """What came out.

    Args:
        release: digest of the manifest.
        pictures: uint8 `[n, C, *size]`, as the decoder painted the victims.
        decoded: how like them.
        mean_image: how like them the mean of the auxiliary images is.
    """

    release: str
    pictures: NDArray[np.uint8]
    decoded: Likeness
    mean_image: Likeness

    def gain(self, measure: Literal["ssim", "psnr"] = "ssim") -> tuple[float, float, float]:
        """Above the mean image's: mean, and its 95 % interval (bootstrap over victims)."""
        pairs = getattr(self.decoded, measure) - getattr(self.mean_image, measure)
        draws = np.random.default_rng(0).integers(len(pairs), size=(10_000, len(pairs)))
        low, high = np.quantile(pairs[draws].mean(axis=1), [0.025, 0.975])
        return float(pairs.mean()), float(low), float(high)

    def words(self) -> list[str]:
        """What it means, in sentences."""
        gain, low, high = self.gain()
        said = [
            f"The decoder's pictures of {len(self.pictures)} victims have an SSIM of "
            f"{self.decoded.ssim.mean():.3f} and a PSNR of {self.decoded.psnr.mean():.1f} dB; the "
            f"mean image, which knows nothing of them, has {self.mean_image.ssim.mean():.3f} and "
            f"{self.mean_image.psnr.mean():.1f} dB.",
            f"That is {gain:+.3f} in SSIM (95 % interval {low:+.3f} to {high:+.3f}).",
        ]
        return [*said, NOTHING] if low <= 0 and self.gain("psnr")[1] <= 0 else said

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        gain, low, high = self.gain()
        return {
            "format": FORMAT,
            "attack": "feature inversion",
            "release": self.release,
            "victims": len(self.pictures),
            **{
                name: {"ssim": float(like.ssim.mean()), "psnr": float(like.psnr.mean())}
                for name, like in (("decoder", self.decoded), ("mean_image", self.mean_image))
            },
            "ssim_gain": gain,
            "ssim_gain_interval": [low, high],
            "words": self.words(),
        }

    def write_pictures(self, path: Path, victims: Arrays, count: int = 8) -> None:
        """A picture: some victims above what the decoder made of them, from least to most like."""
        from canal.learning.evaluation import from_worst_to_best
        from canal.learning.pictures import sheet, shown

        chosen = from_worst_to_best(self.decoded.ssim.tolist(), count)
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = [(shown(victims.images[row]), shown(self.pictures[row])) for row in chosen]
        sheet(columns, [f"SSIM {self.decoded.ssim[row]:.2f}" for row in chosen]).save(path)


def invert(
    release: Release,
    ensemble: Ensemble,
    victims: Arrays,
    auxiliary: Arrays,
    *,
    steps: int = 1000,
    batch_size: int = 32,
    seed: int = 0,
    progress: Callable[[int], None] = lambda count: None,
) -> Inversion:
    """Train a decoder and turn it on the released rows.

    Args:
        release: any, with noise or without.
        ensemble: its teachers; the adversary holds them.
        victims: images that were asked about.
        auxiliary: images of the same kind, none of them a victim.
        steps: of the decoder's training.
        batch_size: images a step.
        seed: of decoder, order and the adversary's own noise.
        progress: called with 1 after every step.
    """
    import torch

    if victims.images.ndim != 4:
        raise InvalidValueError("inversion paints pictures; volumes are not attacked yet")
    if steps < 1:
        raise InvalidValueError(f"steps = {steps!r} must be at least 1")
    check_scene(release, ensemble, victims, auxiliary)
    spread = spreads(release).astype(np.float32)
    shape = (len(release.channels), *release.plan.grid)
    known = noiseless_rows(release, ensemble, auxiliary).astype(np.float32)
    images = torch.from_numpy(np.array(auxiliary.images)).float() / 255
    mean = images.mean(0)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = _decoder(shape, tuple(images.shape[1:]), mean)
    # Every value is brought to mean 0 and variance 1, its noise included.
    middle, size = known.mean(axis=0), np.sqrt(known.var(axis=0) + np.square(spread) + 1e-12)
    rows, noise = torch.from_numpy((known - middle) / size), torch.from_numpy(spread / size)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    decoder.train()
    for _ in range(steps):
        chosen = torch.randint(len(rows), (min(batch_size, len(rows)),), generator=generator)
        drawn = torch.randn((len(chosen), rows.shape[1]), generator=generator)
        painted = decoder((rows[chosen] + noise * drawn).reshape(-1, *shape))
        loss = (painted - images[chosen]).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        progress(1)
    decoder.eval()
    where = {name: row for row, name in enumerate(release.ids)}
    released = ((released_rows(release) - middle) / size).astype(np.float32)
    mine = torch.from_numpy(released[[where[name] for name in victims.ids]])
    with torch.no_grad():
        painted = torch.cat(
            [decoder(some.reshape(-1, *shape)).clamp(0, 1) for some in mine.split(batch_size)]
        )
    truth = np.array(victims.images, dtype=np.float64) / 255
    same = np.broadcast_to(mean.numpy(), truth.shape)
    pictures = (255 * painted).round().to(torch.uint8).numpy()
    return Inversion(
        release.manifest.digest, pictures, likeness(painted.numpy(), truth), likeness(same, truth)
    )


def likeness(pictures: NDArray[Any], truth: NDArray[Any]) -> Likeness:
    """SSIM and PSNR of every picture, both `[n, C, H, W]` between 0 and 1."""
    try:
        from skimage.metrics import peak_signal_noise_ratio, structural_similarity
    except ImportError as error:
        raise InvalidValueError(
            "SSIM is scikit-image's; install it with `pip install 'canal[attacks]'`"
        ) from error

    pairs = [
        (np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64))
        for ours, theirs in zip(pictures, truth, strict=True)
    ]
    # Wang et al. 2004: Gaussian window of sigma 1.5, weights that do not estimate a covariance.
    wang: dict[str, Any] = {
        "data_range": 1.0,
        "channel_axis": 0,
        "gaussian_weights": True,
        "sigma": 1.5,
        "use_sample_covariance": False,
    }
    return Likeness(
        np.array([structural_similarity(theirs, ours, **wang) for ours, theirs in pairs]),
        np.array([peak_signal_noise_ratio(theirs, ours, data_range=1.0) for ours, theirs in pairs]),
    )


def _decoder(features: tuple[int, ...], image: tuple[int, ...], mean: Any) -> nn.Module:
    """Upsample by two until the size of the image is reached; starts from the mean image."""
    import torch
    from torch import nn

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # No normalisation: how bright an image is, is part of it.
            first = nn.Conv2d(features[0], WIDTH, 3, padding=1)
            layers: list[nn.Module] = [first, nn.LeakyReLU(0.1)]
            side, width = features[1], WIDTH
            while side < image[1]:
                wide, width = width, max(width // 2, NARROWEST)
                layers += [
                    nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
                    nn.Conv2d(wide, width, 3, padding=1),
                    nn.LeakyReLU(0.1),
                ]
                side *= 2
            self.body = nn.Sequential(*layers)
            self.last = nn.Conv2d(width, image[0], 3, padding=1)
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]
            self.register_buffer("mean", mean.clone())

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            painted = self.last(self.body(rows))
            if painted.shape[2:] != image[1:]:
                painted = nn.functional.interpolate(painted, size=image[1:], mode="bilinear")
            result: torch.Tensor = painted + self.mean
            return result

    return Decoder()
