"""Public inputs, computed again from the public network and the public images.

What is published without noise must not come from a patient. A reader who has the initialisation
and the recipient's images need not believe that: each kind of release computes its public numbers
again, with the code that publishes them, and holds them against the manifest.

The same machine gives the same bits. Another one, or another number of threads, adds up floats in
another order; so numbers that are not equal may differ by a tolerance. What is within it is not
excluded: low digits may hold anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from canal.data.arrays import Arrays
from canal.errors import MismatchError, ReleaseError
from canal.release.checks import Check, Checks
from canal.release.manifest import Manifest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import nn

    from canal.learning.checkpoint import Checkpoint


@dataclass(frozen=True)
class PublicInputs:
    """What a reader holds, and everybody may.

    Args:
        init: folder of the shared initialisation.
        arrays: the recipient's images, as large as the initialisation wants them.
        progress: called with the number of images that passed through the network.
    """

    init: Path
    arrays: Arrays
    progress: Callable[[int], None] = field(default=lambda count: None, compare=False)


def initialisation(
    checks: Checks,
    manifest: Manifest,
    init: Path,
    more: Callable[[Manifest, nn.Module, Checkpoint], str],
) -> tuple[nn.Module, bool]:
    """Load an initialisation, and see that it is the one that a release names.

    Args:
        checks: to which the comparison is added.
        manifest: of the release.
        init: folder of the initialisation.
        more: refuses what else does not fit; says what does.

    Returns:
        The network, and whether it is the right one.
    """
    from canal.learning.teacher import is_random, load_initialisation

    network, start = load_initialisation(init)

    def compare() -> str:
        stated = str(manifest.participants["initialisation"])
        if start.initialisation != stated:
            raise MismatchError(
                f"{init} is not the initialisation that the release names: digest "
                f"{stated[:16]}… expected, {start.initialisation[:16]}… found; give that one",
                expected=stated,
                found=start.initialisation,
            )
        if not start.notes.get("trained", True) and not is_random(start):
            raise ReleaseError(
                f"{init} says that it was never trained, and its weights are not those of its "
                "seed: what is read from it may be patients'"
            )
        return f"digest {stated[:16]}…{more(manifest, network, start)}"

    return network, checks.look("initialisation", compare)


def word_of_makers(what: str) -> str:
    """What is to be said where the reader gave no public inputs: what is taken on trust.

    Args:
        what: is published without noise.
    """
    return (
        f"not recomputed, so that {what} come from public data is the makers' word; give the "
        "public initialisation and the recipient's images with --init and --queries"
    )


def compared(stated: ArrayLike, found: ArrayLike, tolerance: float, of: str) -> Check:
    """Hold numbers as published against numbers as computed again.

    Args:
        stated: in the manifest.
        found: from public inputs.
        tolerance: of the largest difference, over the root mean square of what was found.
        of: whose numbers they should be, in words.

    Raises:
        MismatchError: they differ by more.
    """
    theirs, ours = np.asarray(stated, np.float64), np.asarray(found, np.float64)
    if theirs.shape != ours.shape:
        raise MismatchError(
            f"{theirs.size} numbers are published, {ours.size} are those {of}",
            expected=ours.size,
            found=theirs.size,
        )
    size = float(np.sqrt(np.square(ours).mean()))
    difference = float(np.abs(theirs - ours).max()) / size if size else np.inf
    numbers = {"difference": difference, "tolerance": tolerance}
    if np.array_equal(theirs, ours):
        return seen(f"those {of}, to the last bit", numbers | {"difference": 0.0})
    if difference <= tolerance:
        return seen(
            f"those {of}, up to {difference:.1e} (another machine may differ by {tolerance:g})",
            numbers,
        )
    raise MismatchError(
        f"are not those {of}: they differ by up to {difference:.3g} of their root mean square, and "
        f"another machine by {tolerance:g} at most; they were computed from something else, which "
        "may be patients, and nobody was charged for that",
        **numbers,
    )


def seen(detail: str, numbers: dict[str, float]) -> Check:
    """Something that is as it should be, with numbers for programs; `Checks.look` names it."""
    return Check("", True, detail, dict(numbers))
