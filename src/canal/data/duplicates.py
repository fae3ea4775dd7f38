r"""Near-duplicates: the same lesion photographed twice, or one file under two names.

Two images are near-duplicates when their 32×32 grey thumbnails correlate above 0.975. They must
stay on one side of every split and in one cohort: a member of a training cohort that has a twin
among the non-members makes every membership attack, and every test score, a lie.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from canal.data.case import Case, is_volume
from canal.data.decode import decode_image

if TYPE_CHECKING:
    pass

THUMBNAIL = 32
THRESHOLD = 0.975
_BLOCK = 1024
_PART = 64

Key = TypeVar("Key", bound=Hashable)


def thumbnail(case: Case) -> NDArray[np.float32]:
    """A small grey picture of a case, flat, of mean zero and norm one."""
    dims = 3 if is_volume(case.image[0]) else 2
    side = THUMBNAIL if dims == 2 else THUMBNAIL // 2
    grey: NDArray[np.float32] = _normed(decode_image(case, size=(side,) * dims, channels=1))[0]
    return grey


def thumbnails(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Small grey pictures of decoded images `[N, C, *size]`, by means over blocks."""
    if not len(images):
        return np.zeros((0, 0), dtype=np.float32)
    # Some at a time: as numbers, mapped images take four times their memory.
    parts = [_small(images[at : at + _PART]) for at in range(0, len(images), _PART)]
    return np.concatenate(parts)


def _small(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    grey = images.mean(axis=1, dtype=np.float32)
    side = THUMBNAIL if grey.ndim == 3 else THUMBNAIL // 2
    for axis, length in enumerate(grey.shape[1:], start=1):
        edges = np.linspace(0, length, min(side, length) + 1).astype(int)
        sums = np.add.reduceat(grey, edges[:-1], axis=axis)
        grey = sums / np.diff(edges).reshape((-1,) + (1,) * (grey.ndim - axis - 1))
    return _normed(grey)


def _normed(pictures: NDArray[Any]) -> NDArray[np.float32]:
    grey = pictures.reshape(len(pictures), -1).astype(np.float32)
    grey -= grey.mean(axis=1, keepdims=True)
    grey /= np.maximum(np.linalg.norm(grey, axis=1, keepdims=True), 1e-6)
    return grey


def near_duplicates(
    cases: Sequence[Case],
    *,
    threshold: float = THRESHOLD,
    progress: Callable[[int], None] = lambda _: None,
) -> list[tuple[str, ...]]:
    """Groups of near-identical cases, by id; each sorted, and so is the list.

    Args:
        cases: whose images are compared, each with each.
        threshold: correlation above which two are the same.
        progress: called with 1 for every image that was read.
    """
    rows = []
    for case in cases:
        rows.append(thumbnail(case))
        progress(1)
    return groups_of(similar_pairs(np.array(rows), threshold), [case.id for case in cases])


def similar_pairs(thumbnails: NDArray[np.float32], threshold: float) -> list[tuple[int, int]]:
    """Index pairs whose correlation is above the threshold, in blocks of bounded memory."""
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(thumbnails), _BLOCK):
        block = thumbnails[start : start + _BLOCK]
        rows, columns = np.nonzero(block @ thumbnails[start:].T > threshold)
        above = rows < columns
        pairs += zip((rows[above] + start).tolist(), (columns[above] + start).tolist(), strict=True)
    return pairs


def groups_of(pairs: Iterable[tuple[int, int]], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of names that are connected by these pairs; singles are left out."""
    joined = connected(((names[a], names[b]) for a, b in pairs), names)
    return sorted(tuple(sorted(group)) for group in joined if len(group) > 1)


def connected(pairs: Iterable[tuple[Key, Key]], members: Iterable[Key]) -> list[list[Key]]:
    """Connected components of a graph; every member is in exactly one."""
    parent = {member: member for member in members}

    def find(member: Key) -> Key:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for a, b in pairs:
        parent[find(a)] = find(b)
    components: dict[Key, list[Key]] = {}
    for member in parent:
        components.setdefault(find(member), []).append(member)
    return list(components.values())
