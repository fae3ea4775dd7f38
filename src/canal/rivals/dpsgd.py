"""DP-SGD by Opacus: a network that is private itself, so that anything may be done with it.

One patient is one unit: a step draws patients by chance, each with the same probability, and one
image of each of them (adapters take the mean over all). So Opacus's accountant, which counts what
it samples, counts patients. They are added or removed, as with adapters. Opacus draws, clips, adds
noise and accounts; the gradients are ours (`canal.gradients.gradients`), since its own hooks take
1.6 to 2.5 times as long for the same numbers (`python -m bench adapters`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.errors import InvalidValueError
from canal.gradients.adapter import Adapter
from canal.gradients.gradients import Gradients
from canal.gradients.patients import Patients
from canal.learning.augmentation import augmented
from canal.learning.networks import lay_out, to_float

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.data.arrays import Arrays

# Gradients of so many images are in memory at a time.
_PHYSICAL = 32


@dataclass(frozen=True)
class PrivateSettings:
    """How a network is trained.

    Args:
        epsilon: of a patient who is added or removed.
        delta: of the same.
        epochs: how often each patient is drawn, on average.
        rate: with which probability a step draws a patient, or a little more often if they are few.
        step: of SGD with momentum.
        momentum: of the same.
        clip: of a patient's gradient; None for the median length of those of public images.
        parts: of the network that are trained, as an `Adapter` names them.
    """

    epsilon: float = 8.0
    delta: float = 1e-5
    epochs: int = 10
    rate: float = 0.2
    step: float = 0.5
    momentum: float = 0.9
    clip: float | None = 1.0
    parts: tuple[str, ...] = ("*",)


def train(
    network: nn.Module,
    sites: Sequence[Patients],
    settings: PrivateSettings,
    *,
    seed: int,
    public: Arrays | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> nn.Module:
    """Train in place, in epsilon of every patient.

    Args:
        network: where it starts; public.
        sites: whose patients are drawn, all of them together; private.
        settings: how.
        seed: of draws, noise and augmentation: a research run, which protects nobody.
        public: images that a clip is taken from.
        report: told how many steps are done, and of how many.
    """
    try:
        from opacus import PrivacyEngine
        from opacus.utils.batch_memory_manager import BatchMemoryManager
    except ImportError as error:
        raise InvalidValueError(
            "DP-SGD is Opacus's; install it with `pip install 'canal[dpsgd]'`"
        ) from error
    import torch
    from torch.utils.data import DataLoader

    coordinates = Adapter(settings.parts).install(network)
    gradients = Gradients(network, coordinates.names)
    have = dict(network.named_parameters())
    trained = [have[name] for name in coordinates.names]
    clip = settings.clip
    if clip is None:
        if public is None:
            raise InvalidValueError("no clip; give one, or public images to take it from")
        clip = median_length(gradients, public)
    crowd: Any = _Crowd(sites, seed)
    loader: DataLoader[Any] = DataLoader(
        crowd,
        batch_size=math.ceil(len(crowd) / round(1 / settings.rate)),
        generator=torch.Generator().manual_seed(seed),
    )
    optimizer = torch.optim.SGD(trained, settings.step, momentum=settings.momentum)
    with warnings.catch_warnings():
        # A research run has no use for a secure generator, and orders of Renyi only give its
        # accountant a place to start from.
        warnings.filterwarnings("ignore", "Secure RNG turned off")
        warnings.filterwarnings("ignore", "Optimal order is the")
        _, private, drawn = PrivacyEngine(accountant="prv").make_private(
            module=network.train(),
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=_multiplier(
                settings.epsilon, settings.delta, settings.epochs, len(loader)
            ),
            max_grad_norm=clip,
            grad_sample_mode="no_op",  # gradients are ours
            noise_generator=torch.Generator().manual_seed(seed + 1),
        )
        done, total = 0, settings.epochs * len(drawn)
        for _ in range(settings.epochs):
            with BatchMemoryManager(
                data_loader=drawn, max_physical_batch_size=_PHYSICAL, optimizer=private
            ) as batches:
                for images, masks in batches:
                    private.zero_grad()
                    # Chance may draw nobody; noise is added all the same.
                    nothing = torch.zeros(0, len(coordinates))
                    _hand_over(gradients(images, masks) if len(images) else nothing, trained)
                    private.step()
            done += len(drawn)
            report(done, total)
    private.zero_grad()  # gradients of patients do not stay with the network
    return lay_out(network).eval()


def _hand_over(rows: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Put every image's gradient where Opacus's optimizer looks for it."""
    sizes = [each.numel() for each in parameters]
    for each, part in zip(parameters, rows.split(sizes, dim=1), strict=True):
        each.grad_sample = part.reshape(-1, *each.shape)  # type: ignore[attr-defined]


def median_length(gradients: Gradients, arrays: Arrays) -> float:
    """Of the gradients of single images, with respect to what is trained of a network."""
    import torch

    lengths = []
    for start in range(0, len(arrays.ids), _PHYSICAL):
        some = slice(start, start + _PHYSICAL)
        images = to_float(torch.from_numpy(arrays.images[some].copy()))
        masks = torch.from_numpy(arrays.masks[some].copy()).float()
        lengths += gradients(images, masks).double().norm(dim=1).tolist()
    return float(np.median(lengths))


@cache
def _multiplier(epsilon: float, delta: float, epochs: int, batches: int) -> float:
    """Of the noise, over the clip, so that all epochs of so many batches cost epsilon.

    Opacus searches for seconds, and all sites of a federation ask for the same.
    """
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=1 / batches,
            epochs=epochs,
            accountant="prv",
        )
    )


class _Crowd:
    """Patients of all sites, one image of each, another one each time; as `DataLoader` wants it."""

    def __init__(self, sites: Sequence[Patients], seed: int) -> None:
        self._members = [(site.arrays, rows) for site in sites for rows in site.rows.values()]
        self._rng = np.random.default_rng([seed, 2])

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        import torch

        arrays, rows = self._members[number]
        row = int(self._rng.choice(rows))
        images: Any = to_float(torch.from_numpy(arrays.images[row][None].copy()))
        masks = torch.from_numpy(arrays.masks[row][None].copy()).float()
        images, masks, _ = augmented(images, masks, self._rng)
        return images[0], masks[0]
