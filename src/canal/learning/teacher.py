"""The shared initialisation, and the teacher that a site makes from it.

`initialise` makes the weights that all teachers start from, random from a public seed or trained on
the recipient's own, non-private images; `train_further` goes on from there, on other images or in
another way; `train` makes a teacher of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from canal.data import overlap
from canal.errors import CanalError, CheckpointError
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.networks import UNetArchitecture, weights_digest
from canal.learning.prediction import predict
from canal.learning.runs import Report, RunFolder, provenance
from canal.learning.settings import TrainingSettings

if TYPE_CHECKING:
    from torch import nn

    from canal.data.arrays import Arrays


def initialise(
    folder: Path,
    architecture: UNetArchitecture,
    *,
    seed: int,
    size: tuple[int, ...],
    arrays: Arrays | None = None,
    settings: TrainingSettings | None = None,
    report: Report = lambda progress: None,
) -> Checkpoint:
    """Make the shared initialisation, public by construction.

    Args:
        folder: of the run.
        architecture: of the network.
        seed: public.
        size: of the images.
        arrays: the recipient's non-private images, to train on; None leaves the random weights.
        settings: of that training.
        report: of progress.
    """
    architecture.check_size(size)
    network = architecture.build(seed)
    settings = TrainingSettings() if settings is None else settings
    origin = {"seed": seed, "size": list(size), "architecture": architecture.to_json()}
    if arrays is not None:
        check_fit(architecture, size, arrays, "the initialisation")
        origin |= provenance(arrays, settings)
    run = RunFolder(folder)
    with run.claim(origin):
        if arrays is not None:
            _keep_digests(folder, arrays, private=False)
        if run.is_finished:
            return checkpoint.describe(folder)
        if arrays is not None:
            run.train(network, arrays, settings, report)
        description = Checkpoint(
            architecture=architecture.to_json(),
            initialisation=weights_digest(network),
            data=arrays.digest if arrays is not None else "",
            size=size,
            notes={"role": "initialisation", "seed": seed, "trained": arrays is not None},
        )
        run.finish(network, description)
        return description


def train_further(
    folder: Path,
    init: Path,
    arrays: Arrays,
    settings: TrainingSettings | None = None,
    *,
    unlabelled: Arrays | None = None,
    report: Report = lambda progress: None,
) -> Checkpoint:
    """Train a shared initialisation further; the result is another one, and public too.

    Args:
        folder: of the run.
        init: folder of the initialisation before.
        arrays: non-private images.
        settings: of the training.
        unlabelled: more non-private images, which the initialisation labels itself.
        report: of progress.
    """
    if unlabelled is not None:
        arrays = arrays.beside(labelled_by(init, unlabelled))

    def describe(network: nn.Module, start: Checkpoint) -> Checkpoint:
        notes = {**start.notes, "trained": True, "after": start.initialisation}
        return replace(
            start, initialisation=weights_digest(network), data=arrays.digest, notes=notes
        )

    return _train("after", folder, init, arrays, settings, describe, report)


def trained_on(init: Path) -> tuple[frozenset[str], ...] | None:
    """The digests of each person's images that an initialisation was trained on.

    Args:
        init: folder of the initialisation.

    Returns:
        None if it is not known; nothing for random weights.
    """
    return () if is_random(checkpoint.describe(init)) else overlap.read(init)


def is_random(about: Checkpoint) -> bool:
    """Whether an initialisation has the weights that its seed gives, so that nobody is in them.

    A note that it was never trained is anybody's word; the weights of a seed can be made again.
    """
    if about.notes.get("trained", True):
        return False
    try:
        made = UNetArchitecture.from_json(about.architecture).build(seed=int(about.notes["seed"]))
    except (CanalError, LookupError, TypeError, ValueError):
        return False
    return weights_digest(made) == about.initialisation


def labelled_by(init: Path, arrays: Arrays) -> Arrays:
    """Label images with the predictions of a shared initialisation."""
    network, start = load_initialisation(init)
    check_fit(UNetArchitecture.from_json(start.architecture), start.size, arrays, str(init))
    named = f"{arrays.digest}, labelled by {start.initialisation}"
    return replace(
        arrays,
        masks=predict(network, arrays),
        digest=hashlib.sha256(named.encode()).hexdigest(),
        unlabelled=frozenset(),
    )


def train(
    folder: Path | str,
    init: Path | str,
    arrays: Arrays,
    settings: TrainingSettings | None = None,
    *,
    name: str = "",
    report: Report = lambda progress: None,
) -> Checkpoint:
    """Train a teacher from a shared initialisation on one site's cohort.

    Args:
        folder: of the run.
        init: folder of the initialisation.
        arrays: the site's private images.
        settings: of the training.
        name: of the site.
        report: of progress.
    """

    def describe(_: nn.Module, start: Checkpoint) -> Checkpoint:
        notes = {
            "role": "teacher",
            "site": name,
            "images": len(arrays.ids),
            "trained_initialisation": bool(start.notes.get("trained", True)),
        }
        return replace(start, data=arrays.digest, notes=notes)

    return _train("init", Path(folder), Path(init), arrays, settings, describe, report)


def _train(
    origin: str,
    folder: Path,
    init: Path,
    arrays: Arrays,
    settings: TrainingSettings | None,
    describe: Callable[[nn.Module, Checkpoint], Checkpoint],
    report: Report,
) -> Checkpoint:
    """Train a network from a shared initialisation, unless the folder has it already.

    Args:
        origin: what the initialisation is to it; a folder of one kind is not taken for the other.
        folder: of the run.
        init: folder of the initialisation.
        arrays: images to train on.
        settings: of the training.
        describe: the network that came of it, from what it started from.
        report: of progress.
    """
    settings = TrainingSettings() if settings is None else settings
    network, start = load_initialisation(init)
    architecture = UNetArchitecture.from_json(start.architecture)
    check_fit(architecture, start.size, arrays, str(init))
    run = RunFolder(folder)
    with run.claim({origin: start.initialisation, **provenance(arrays, settings)}):
        if origin == "init":
            _keep_digests(folder, arrays, private=True)
        elif (before := trained_on(init)) is not None:
            _keep_digests(folder, arrays, before, private=False)
        if run.is_finished:
            return checkpoint.describe(folder)
        run.train(network, arrays, settings, report)
        description = describe(network, start)
        run.finish(network, description)
        return description


def _keep_digests(
    folder: Path, arrays: Arrays, before: Iterable[frozenset[str]] = (), *, private: bool
) -> None:
    """Write down which images a network depends on, unless that is done.

    Args:
        folder: of the network.
        arrays: that it is trained on.
        before: the digests of what the network that it starts from was trained on.
        private: whether the images are a cohort's.
    """
    if overlap.read(folder) is None:
        overlap.write(
            folder, [*before, *overlap.digests_by_patient(arrays).values()], private=private
        )


def load_initialisation(folder: Path) -> tuple[nn.Module, Checkpoint]:
    """Load the shared initialisation; refuse what was itself trained from one."""
    network, start = checkpoint.load(folder)
    if start.initialisation != weights_digest(network):
        raise CheckpointError(f"{folder} is no initialisation; give the one that `canal init` made")
    return network, start


def check_fit(
    architecture: UNetArchitecture, size: tuple[int, ...], arrays: Arrays, what: str
) -> None:
    """Refuse images that a network is not made for."""
    if size != arrays.images.shape[2:]:
        raise CheckpointError(
            f"{what} is for images of size {size}, the data have {arrays.images.shape[2:]}; "
            "give the same --size"
        )
    if architecture.in_channels != arrays.images.shape[1]:
        raise CheckpointError(
            f"{what} is for images of {architecture.in_channels} channels, the data have "
            f"{arrays.images.shape[1]}; give the same --channels"
        )
