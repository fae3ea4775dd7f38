r"""What a user would pick instead, at the same epsilon of the same patients; and self-training.

*DP-SGD* by Opacus, at a site or over the union of all. One patient is one unit: a step draws
patients with equal probability, and one image of each (gradient rounds take the mean over all), so
Opacus's accountant counts patients, who are added or removed. Opacus draws, clips, adds noise and
accounts; per-image gradients are `canal.gradients`', since its own hooks take 1.6 to 2.5 times as
long for the same numbers (`python -m bench adapters`).

*Noisy votes* (PATE, Papernot et al. 2018): each of K teachers votes on every pixel; sums get
Gaussian noise and the majority is the label. One patient may change all votes of one teacher, so
with P pixels of N queries the sums move by $\sqrt{NP}$ at most, and $\sigma = \sqrt{NP}/\mu$: with
three teachers, hundreds of times as large as any majority.

*Self-training*: a student of the initialisation, the control of all students; it pays nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from canal.errors import InvalidValueError
from canal.gradients.gradients import Gradients
from canal.gradients.patients import Patients
from canal.gradients.target_modules import Adapter
from canal.learning import checkpoint
from canal.learning.augmentation import augmented
from canal.learning.distillation import Predictions, StudentLoss, mean_prediction
from canal.learning.networks import evaluating, lay_out, to_float
from canal.learning.runs import RunFolder, provenance
from canal.privacy.gaussian import mu_from_rho, rho_from_epsilon
from paper.arms import scored
from paper.scenario import Study, changed
from paper.trial import Arm

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canal.data.arrays import Arrays
    from canal.learning.training import Batch

# Images that are in memory at a time.
_BATCH = 32
# Between the seeds of sites: no two of them draw the same noise, in whatever scenario.
_APART = 1000


@dataclass(frozen=True)
class DPSGD:
    """How a network is trained.

    Args:
        epsilon: of a patient who is added or removed.
        delta: of the same.
        epochs: how often each patient is drawn, on average.
        rate: with which probability a step draws a patient, or a little more often if they are few.
        step: of SGD with momentum.
        momentum: of the same.
        clip: of a patient's gradient; None for the median length of those of public images.
        target_modules: parameters that are trained, as `Adapter` names them.
    """

    epsilon: float = 8.0
    delta: float = 1e-5
    epochs: int = 10
    rate: float = 0.2
    step: float = 0.5
    momentum: float = 0.9
    clip: float | None = None
    target_modules: tuple[str, ...] = ("*",)


def train_privately(
    network: nn.Module,
    sites: Sequence[Patients],
    settings: DPSGD,
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
            "DP-SGD is Opacus's; install it with `pip install opacus`"
        ) from error
    import torch
    from torch.utils.data import DataLoader

    coordinates = Adapter(settings.target_modules).install(network)
    gradients = Gradients(network, coordinates.names)
    have = dict(network.named_parameters())
    trained = [have[name] for name in coordinates.names]
    clip = settings.clip
    if clip is None:
        if public is None:
            raise InvalidValueError("no clip; give one, or public images to take it from")
        clip = median_length(gradients, public)
    patients: Any = _OneImageEach(sites, seed)
    loader: DataLoader[Any] = DataLoader(
        patients,
        batch_size=math.ceil(len(patients) / round(1 / settings.rate)),
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
            noise_multiplier=noise_multiplier(
                settings.epsilon, settings.delta, settings.epochs, len(loader)
            ),
            max_grad_norm=clip,
            grad_sample_mode="no_op",  # gradients are ours
            noise_generator=torch.Generator().manual_seed(seed + 1),
        )
        done, total = 0, settings.epochs * len(drawn)
        for _ in range(settings.epochs):
            with BatchMemoryManager(
                data_loader=drawn, max_physical_batch_size=_BATCH, optimizer=private
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
    for start in range(0, len(arrays.ids), _BATCH):
        some = slice(start, start + _BATCH)
        images = to_float(torch.from_numpy(arrays.images[some].copy()))
        masks = torch.from_numpy(arrays.masks[some].copy()).float()
        lengths += gradients(images, masks).double().norm(dim=1).tolist()
    return float(np.median(lengths))


@cache
def noise_multiplier(epsilon: float, delta: float, epochs: int, batches: int) -> float:
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


class _OneImageEach:
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


def train_on_predictions(
    study: Study, folder: Path, say: Callable[[Batch], Tensor], source: dict[str, Any]
) -> nn.Module:
    """Train from the initialisation on the recipient's labels and on what a rival says of them.

    Args:
        study: initialisation, images and settings.
        folder: of the run.
        say: probabilities of every pixel of a batch.
        source: what determines these.
    """
    arrays, (network, start) = study.part("recipient"), checkpoint.load(study.init)
    run, origin = RunFolder(folder), {"init": start.initialisation, "said": source}
    with run.claim({**origin, **provenance(arrays, study.training)}):
        if run.is_finished:
            return checkpoint.load(folder)[0]
        objective = StudentLoss(arrays, Predictions(say))
        run.train(network, arrays, study.training, study.told("student"), objective)
        run.finish(network, replace(start, data=arrays.digest, notes={"role": "student"}))
        return network


def _trained(study: Study, sites: tuple[str, ...], settings: DPSGD, seed: int) -> nn.Module:
    """The initialisation, trained with DP-SGD on the patients of some sites."""
    return train_privately(
        checkpoint.load(study.init)[0],
        [Patients(site, study.part(site)) for site in sites],
        settings,
        seed=seed,
        public=study.part("recipient"),
        report=lambda done, total: study.report(f"DP-SGD at {' and '.join(sites)}", done, total),
    )


@dataclass(frozen=True)
class CentralisedDPSGD(Arm):
    """One network, trained on the patients of all sites together."""

    kind: ClassVar[str] = "centralised-dp-sgd"

    settings: DPSGD = DPSGD()

    def run(self, study: Study, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        """Train, and measure on the test part."""
        network = _trained(study, study.sites, self.settings, study.scenario.seed)
        return scored([network], study.part("test"))


@dataclass(frozen=True)
class DPSGDTeachers(CentralisedDPSGD):
    """A network at each site, with noise of its own; their ensemble, and a student of it."""

    kind: ClassVar[str] = "dp-sgd-teachers"
    parts: ClassVar[tuple[str, ...]] = ("ensemble", "student")

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Train them all, and measure on the test part."""
        teachers = [
            _trained(study, (site,), self.settings, study.scenario.seed + _APART * number)
            for number, site in enumerate(study.sites, start=1)
        ]
        source = {"teachers": changed(self.settings)}
        say = mean_prediction(teachers)
        student = train_on_predictions(study, folder / "student", say, source)
        test = study.part("test")
        return {"ensemble": scored(teachers, test), "student": scored([student], test)}


@dataclass(frozen=True)
class Votes(Arm):
    """A student of noisy votes of teachers that are not private themselves.

    Args:
        epsilon: of a patient.
        delta: of the same.
    """

    kind: ClassVar[str] = "votes"

    epsilon: float = 8.0
    delta: float = 1e-5

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Vote, train, and measure on the test part."""
        asked, seed = study.part("recipient"), study.scenario.seed
        teachers = [each.tap.network for each in study.ensemble.teachers]
        labels = majority(teachers, asked, self.epsilon, self.delta, seed=seed)

        def say(batch: Batch) -> Tensor:
            return batch.turn(labels[batch.rows])

        source = {"votes": [self.epsilon, self.delta, seed]}
        student = train_on_predictions(study, folder / "student", say, source)
        return scored([student], study.part("test")) | {
            "agreement": float((labels.numpy() == asked.masks).mean()),
            "sigma": votes_sigma(labels.numel(), self.epsilon, self.delta),
        }


def votes_sigma(pixels: int, epsilon: float, delta: float) -> float:
    """Sigma of every vote, for so many pixels of all queries together."""
    return math.sqrt(pixels) / mu_from_rho(rho_from_epsilon(epsilon, delta))


def majority(
    teachers: Sequence[nn.Module], queries: Arrays, epsilon: float, delta: float, *, seed: int
) -> Tensor:
    """Noisy labels of all queries, zeros and ones, `[N, 1, *size]`.

    Args:
        teachers: K networks; private.
        queries: that are voted on; public.
        epsilon: of a patient, who is added, removed or replaced.
        delta: of the same.
        seed: of the noise: a research run, which protects nobody.
    """
    import torch

    votes = torch.zeros(queries.masks.shape)
    for teacher in teachers:
        with evaluating(teacher), torch.no_grad():
            pixels = torch.from_numpy(queries.images.copy()).split(_BATCH)
            votes += torch.cat([(teacher(to_float(each)) > 0).float() for each in pixels])
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(votes.shape, generator=generator)
    sigma = votes_sigma(votes.numel(), epsilon, delta)
    return (votes + sigma * noise > len(teachers) / 2).float()


@dataclass(frozen=True)
class SelfTraining(Arm):
    """A student of what the initialisation predicts: what distillation gives with no patient."""

    kind: ClassVar[str] = "self-training"

    def run(self, study: Study, folder: Path) -> dict[str, Any]:
        """Train, and measure on the test part."""
        network, start = checkpoint.load(study.init)
        source = {"networks": [start.initialisation]}
        say = mean_prediction([network])
        student = train_on_predictions(study, folder / "student", say, source)
        return scored([student], study.part("test"))
