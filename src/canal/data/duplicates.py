r"""Near-duplicates: the same lesion photographed twice, or one file under two names.

Two images are near-duplicates when their 32×32 grey thumbnails correlate above 0.975. They must
stay on one side of every split and in one cohort: a member of a training cohort that has a twin
among the non-members makes every membership attack, and every test score, a lie.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from canal.data.case import Case
from canal.data.decode import decode_image, is_volume

THUMBNAIL = 32
THRESHOLD = 0.975
_BLOCK = 1024

Key = TypeVar("Key", bound=Hashable)


def thumbnail(case: Case) -> NDArray[np.float32]:
    """A small grey picture of a case, flat, of mean zero and norm one."""
    dims = 3 if is_volume(case.image[0]) else 2
    side = THUMBNAIL if dims == 2 else THUMBNAIL // 2
    picture = decode_image(case, size=(side,) * dims, channels=1)[0]
    grey: NDArray[np.float32] = picture.astype(np.float32).ravel()
    grey -= grey.mean()
    grey /= max(float(np.linalg.norm(grey)), 1e-6)
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
    """What hangs together by these pairs; singles are left out."""
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
