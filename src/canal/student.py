"""Trains a student from a release of either kind, or from none.

The loop reads the release and the recipient's images; there is no teacher in it, and no fresh
noise. Controls are modes of the same run, so that arms differ in one thing only:

=============  ==================================================================
mode           what the student has beside its own labels
=============  ==================================================================
`release`      the features that were released, to match
`noiseless`    the features of a release that was made with allocation none
`noise-only`   noise of the same sigma as the features, and nothing else
`adapters`     the network that a gradient release leads to, to start from
`predictions`  the predictions of that network for any images, to match
`alone`        nothing
`pooled`       nothing; the images are everybody's
=============  ==================================================================
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from canal.errors import InvalidValueError
from canal.features.distillation import FeatureMatching, feature_target
from canal.features.per_iteration import PerIterationRelease
from canal.features.store import FEATURES, Release
from canal.gradients.plan import ADAPTERS
from canal.gradients.store import AdapterRelease, load_taught
from canal.learning import checkpoint
from canal.learning.checkpoint import Checkpoint
from canal.learning.distillation import Predictions, Target, mean_prediction, train_student
from canal.learning.networks import UNetArchitecture, weights_digest
from canal.learning.runs import Report
from canal.learning.settings import DistillSettings, TrainingSettings
from canal.learning.teacher import check_fit
from canal.release.store import Folder
from canal.release.verification import check_contents

if TYPE_CHECKING:
    from torch import nn

    from canal.data.arrays import Arrays

Mode = Literal["release", "noiseless", "noise-only", "adapters", "predictions", "alone", "pooled"]
WITHOUT_RELEASE: tuple[Mode, ...] = ("alone", "pooled")
OF_ADAPTERS: tuple[Mode, ...] = ("adapters", "predictions")
Published = Release | PerIterationRelease | AdapterRelease


def train(
    folder: Path | str,
    init: Path | str,
    arrays: Arrays,
    training: TrainingSettings | None = None,
    distill: DistillSettings | None = None,
    *,
    release: Published | None = None,
    mode: Mode = "release",
    report: Report = lambda progress: None,
) -> Checkpoint:
    """Train a student from the shared initialisation.

    A release is checked before anything is read from it: the digest of every file, and the
    statement. The student starts from the network that the release started from.

    Args:
        folder: of the run.
        init: folder of the initialisation, public.
        arrays: the recipient's images; one without a label has the loss of the release alone.
        training: how long and how fast.
        distill: how features are matched.
        release: of features or gradients, or the baseline that answers with fresh noise; not
            needed in modes alone and pooled.
        mode: see above.
        report: of progress.
    """
    folder, init = Path(folder), Path(init)
    training = TrainingSettings() if training is None else training
    distill = DistillSettings() if distill is None else distill
    network, start = checkpoint.load(init)
    check_fit(UNetArchitecture.from_json(start.architecture), start.size, arrays, str(init))
    release = _fitting(release, mode)
    if release is not None:
        _check(release, network, init)
    target: Target | None = None
    if mode == "adapters":
        cast(AdapterRelease, release).teach(network)
    elif mode == "predictions":
        taught, _ = load_taught(init, cast(AdapterRelease, release))
        target = Predictions(mean_prediction([taught]))
    elif release is not None:
        noise_seed = training.seed if mode == "noise-only" else None
        answers = cast(Release | PerIterationRelease, release)
        target = feature_target(answers, arrays, start, training, distill, noise_seed)
    if target is None and not arrays.labelled.any():
        raise InvalidValueError(
            f"no image has a label, and mode {mode} learns from nothing else; label some of them"
        )
    source = None if release is None else release.digest
    origin = {
        "init": start.initialisation,
        "mode": mode,
        "release": source,
        "distill": asdict(distill) if isinstance(target, FeatureMatching) else None,
    }
    notes = {
        "role": "student",
        "mode": mode,
        "images": len(arrays.ids),
        "labelled": int(arrays.labelled.sum()),
        "release": source,
        **(release.stamp if isinstance(release, Folder) and mode != "noise-only" else {}),
    }
    return train_student(
        *(folder, network, start, arrays, training, target),
        origin=origin,
        notes=notes,
        report=report,
    )


def _fitting(release: Published | None, mode: Mode) -> Published | None:
    """The release, if a mode uses one; refuses a release of the other kind."""
    if mode in WITHOUT_RELEASE:
        return None
    if release is None:
        raise InvalidValueError(f"mode {mode} needs a release; give one, or take mode alone")
    wanted, got = ADAPTERS if mode in OF_ADAPTERS else FEATURES, release.kind
    if wanted != got:
        other = " or ".join(OF_ADAPTERS) if got == ADAPTERS else "release"
        raise InvalidValueError(
            f"mode {mode} learns from a release of {wanted}, and this is one of {got}; give such a "
            f"one, or take mode {other}"
        )
    if mode == "noiseless" and release.plan.allocation != "none":
        raise InvalidValueError(
            "mode noiseless wants a release that was made with --allocation none --not-private"
        )
    return release


def _check(release: Published, network: nn.Module, init: Path) -> None:
    """Refuse a folder that was changed, and a release that started from another network."""
    if isinstance(release, Folder):
        check_contents(release)
    digest = weights_digest(network)
    if digest != release.initialisation:
        raise InvalidValueError(
            f"{init} holds the network {digest[:12]}, and the release started from the "
            f"initialisation {release.initialisation[:12]}; what was released says nothing about "
            "another network; give that initialisation with --init, or take --mode alone"
        )
