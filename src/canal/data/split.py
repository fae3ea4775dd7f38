r"""Divides a data set into test, recipient (queries) and K cohorts, without leaks.

Whole groups move: all images of patients who may be one (`canal.data.patients.joined_cases`). The
order comes from a hash of seed and group, so a split does not depend on the order of files, and
adding a case moves no other group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from canal.data.case import Case
from canal.data.patients import joined_cases
from canal.errors import DataError, InvalidValueError
from canal.files import replace_file

Partition = Literal["equal", "site", "dirichlet"]
PARTITIONS: tuple[Partition, ...] = get_args(Partition)
_FORMAT = "canal-split/1"
_RESERVED = ("test", "recipient", "pooled")


@dataclass(frozen=True)
class Split:
    """Ids of every part; a case is in at most one.

    Args:
        test: measured on, never trained on.
        recipient: the recipient's own labelled images, its queries.
        cohorts: one for each site, by name.
        seed: from which it was made.
    """

    test: tuple[str, ...]
    recipient: tuple[str, ...]
    cohorts: dict[str, tuple[str, ...]]
    seed: int

    @property
    def digest(self) -> str:
        """SHA-256 of the parts."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def part(self, name: str) -> tuple[str, ...]:
        """`test`, `recipient`, a cohort by name, or `pooled`: all of them but the test."""
        pooled = (*self.recipient, *(name for ids in self.cohorts.values() for name in ids))
        parts = {"test": self.test, "recipient": self.recipient, "pooled": pooled} | self.cohorts
        if name not in parts:
            raise DataError(f"the split has no part {name!r}; it has {', '.join(parts)}")
        return parts[name]

    def check_patients(self, cases: Iterable[Case]) -> None:
        """Refuse a patient in two parts, for whom two sites would each pay a part.

        No split is made like that, but the records may have been mended since.
        """
        parts = {"test": self.test, "recipient": self.recipient} | self.cohorts
        where = {name: part for part, ids in parts.items() for name in ids}
        seen: dict[str, str] = {}
        for case in cases:
            if case.id in where and seen.setdefault(case.patient, where[case.id]) != where[case.id]:
                raise DataError(
                    f"{case.patient} is in two parts of the split, {seen[case.patient]} and "
                    f"{where[case.id]}; make it anew with `canal data split`"
                )

    def write(self, path: Path) -> None:
        """Write as JSON, with the digest."""
        content = {"format": _FORMAT, "digest": self.digest, **asdict(self)}
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Split:
        """Read and check: the digest, and that no case is in two parts."""
        try:
            content = json.loads(path.read_text())
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}")
            split = cls(
                tuple(content["test"]),
                tuple(content["recipient"]),
                {name: tuple(ids) for name, ids in content["cohorts"].items()},
                int(content["seed"]),
            )
            stated = content["digest"]
        except OSError as error:
            raise DataError(
                f"cannot read the split {path}: {error.strerror}; make one with `canal data split`"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is no split ({error!r}); make one with `canal data split`"
            ) from error
        if stated != split.digest:
            raise DataError(f"{path} was changed after it was made; make it anew from its seed")
        ids = [*split.test, *split.recipient, *(i for c in split.cohorts.values() for i in c)]
        if len(set(ids)) < len(ids):
            raise DataError(f"{path} has a case in two parts; make it anew from its seed")
        return split


def make_split(
    cases: Sequence[Case],
    *,
    cohorts: int = 3,
    test: float = 0.2,
    recipient: int = 60,
    partition: Partition = "equal",
    alpha: float = 1.0,
    areas: Mapping[str, float] | None = None,
    duplicates: Iterable[Sequence[str]] = (),
    seed: int = 0,
) -> Split:
    r"""Divide cases into test, recipient and cohorts.

    Args:
        cases: all of them.
        cohorts: K; with `site`, one for each folder instead.
        test: share of the cases that is only measured on.
        recipient: how many images the recipient holds, at least (a group is not torn apart).
        partition: `equal` sizes; `site`, by hospital folder; `dirichlet`, sizes and mixtures of
            small and large lesions drawn from a Dirichlet distribution.
        alpha: of that distribution; small means very different cohorts.
        areas: lesion area by case id, for `dirichlet`.
        duplicates: groups of near-duplicates, by id.
        seed: of the split.
    """
    if partition not in PARTITIONS:
        raise InvalidValueError(f"partition = {partition!r} must be one of {', '.join(PARTITIONS)}")
    if not 0 <= test < 1:
        raise InvalidValueError(f"test = {test!r} must be at least 0 and below 1")
    if cohorts < 1 or recipient < 0:
        raise InvalidValueError("cohorts must be at least 1, recipient at least 0")
    if len({case.id for case in cases}) < len(cases):
        raise DataError("two cases have the same id; look with `canal data check`")
    groups = _ordered(joined_cases(cases, duplicates), seed)
    testing, groups = _take(groups, round(test * len(cases)))
    asking, groups = _take(groups, recipient)
    if partition == "site":
        parts = _by_site(groups, cases)
    elif partition == "dirichlet":
        parts = _by_dirichlet(groups, cohorts, alpha, areas, seed)
    else:
        parts = _equal(groups, cohorts)
    empty = [name for name, ids in parts.items() if not ids]
    if empty or not parts:
        raise DataError(
            f"{len(cases)} cases do not fill {len(parts)} cohorts beside {recipient} for the "
            "recipient and the test part; ask for fewer"
        )
    return Split(testing, asking, {name: tuple(sorted(ids)) for name, ids in parts.items()}, seed)


def _ordered(groups: list[tuple[str, ...]], seed: int) -> list[tuple[str, ...]]:
    return sorted(groups, key=lambda group: hashlib.sha256(f"{seed}/{group[0]}".encode()).digest())


def _take(
    groups: list[tuple[str, ...]], count: int
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The first groups that together hold at least `count` cases, and the rest."""
    taken: list[str] = []
    for position, group in enumerate(groups):
        if len(taken) >= count:
            return tuple(sorted(taken)), groups[position:]
        taken += group
    return tuple(sorted(taken)), []


def _equal(groups: list[tuple[str, ...]], cohorts: int) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {f"site-{k + 1}": [] for k in range(cohorts)}
    # Large groups first, each to the smallest part; the order within a size is the hashed one.
    for group in sorted(groups, key=len, reverse=True):
        min(parts.values(), key=len).extend(group)
    return parts


def _by_site(groups: list[tuple[str, ...]], cases: Sequence[Case]) -> dict[str, list[str]]:
    site = {case.id: case.site for case in cases}
    if not any(site.values()):
        raise DataError(
            "this layout has no folder for each hospital; use the equal or dirichlet partition"
        )
    homeless = [name for name, where in site.items() if not where]
    if homeless:
        raise DataError(
            f"{homeless[0]} is in no hospital's folder while others are; give it a site, "
            "or use the equal or dirichlet partition"
        )
    reserved = set(_RESERVED).intersection(site.values())
    if reserved:
        raise DataError(
            f"a hospital's folder is called {reserved.pop()!r}, which is a part of every split; "
            "rename the folder, or use the equal or dirichlet partition"
        )
    parts: dict[str, list[str]] = {name: [] for name in sorted(set(site.values()))}
    for group in groups:
        parts[site[group[0]]].extend(group)
    return parts


def _by_dirichlet(
    groups: list[tuple[str, ...]],
    cohorts: int,
    alpha: float,
    areas: Mapping[str, float] | None,
    seed: int,
) -> dict[str, list[str]]:
    if areas is None:
        raise InvalidValueError("a dirichlet partition needs the lesion areas of the cases")
    if not 0 < alpha < np.inf:
        raise InvalidValueError(f"alpha = {alpha!r} must be above 0 and finite")
    unknown = [name for group in groups for name in group if name not in areas]
    if unknown:
        raise DataError(f"{unknown[0]} has no lesion area; give one for every case")
    rng = np.random.default_rng(seed)
    mean = np.array([np.mean([areas[name] for name in group]) for group in groups])
    bins = np.searchsorted(np.quantile(mean, [0.25, 0.5, 0.75]), mean) if groups else mean
    parts: list[list[tuple[str, ...]]] = [[] for _ in range(cohorts)]
    for wanted in range(4):
        mine = [group for group, bin_ in zip(groups, bins, strict=True) if bin_ == wanted]
        ends = np.rint(np.cumsum(rng.dirichlet(np.full(cohorts, alpha))) * len(mine)).astype(int)
        for k, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            parts[k] += mine[start:end]
    for part in parts:  # no cohort stays empty: the one with most groups gives one
        richest = max(parts, key=len)
        if not part and len(richest) > 1:
            part.append(richest.pop())
    return {
        f"site-{k + 1}": [name for group in part for name in group] for k, part in enumerate(parts)
    }


def as_table(split: Split) -> list[dict[str, Any]]:
    """The name of every part, and how many cases it has."""
    return [
        {"part": name, "cases": len(split.part(name))}
        for name in ("test", "recipient", *split.cohorts)
    ]
