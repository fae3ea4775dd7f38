"""Checks of a release folder: a list of them, and those on files, card and ledger."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from canal.errors import CanalError, MismatchError, ReleaseError
from canal.privacy.chain import GENESIS, Row
from canal.privacy.ledger import Ledger, is_head, receipt
from canal.release.card import render
from canal.release.manifest import CARD, MANIFEST, SOFTWARE, Manifest
from canal.release.shard import metadata

if TYPE_CHECKING:
    from canal.release.store import Folder

# Of a digest in a sentence; nobody finds two files that agree in these.
DIGEST = 16
# Another processor may round the last bits of a logarithm otherwise.
CLOSE = 1e-9


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        what: it was.
        passed: None if it could not be looked at.
        detail: what was found.
        numbers: the same for programs, where there is more to say: digests in full, differences.
    """

    what: str
    passed: bool | None
    detail: str
    numbers: dict[str, Any] = field(default_factory=dict)


class Checks:
    """What was looked at in one release folder; nothing is believed.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[Check] = []

    def look(self, what: str, at: Callable[[], str | Check]) -> bool:
        """Look at one thing, and note what was found; say if it is as it should be."""
        try:
            with np.errstate(all="ignore"):  # a forged number may overflow; it will not compare
                seen = at()
                whole = Check(what, True, seen) if isinstance(seen, str) else seen
                self.found.append(replace(whole, what=what))
        except MismatchError as error:
            self.found.append(Check(what, False, str(error), error.numbers))
        except CanalError as error:
            self.found.append(Check(what, False, str(error)))
        # Whatever a forger put where a number should be.
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            self.found.append(Check(what, False, f"the manifest contradicts itself: {error}"))
        except OSError as error:
            self.found.append(Check(what, False, f"{self.path} cannot be read: {error.strerror}"))
        return bool(self.found[-1].passed)

    def skip(self, what: str, why: str) -> None:
        """Note that one thing could not be looked at."""
        self.found.append(Check(what, None, why))


def check_files(release: Folder) -> str:
    """The folder holds what the manifest lists, and nothing else."""
    shards = {entry["file"] for entry in release.manifest.shards}
    expected = {MANIFEST, CARD, *release.beside} | shards
    there = {child.name for child in release.path.iterdir()}
    if there != expected:
        odd = sorted(there ^ expected)[0]
        raise ReleaseError(f"{odd} is {'too much' if odd in there else 'missing'} in the folder")
    return f"{len(there)}, none too many"


def check_shards(release: Folder) -> str:
    """Every shard is the tensor that the manifest describes, every row listed once and paid for."""
    path, manifest = release.path, release.manifest
    check_digests(path, manifest)
    rows = [len(stored) for stored in release.shards()]
    kind = f"I{8 * np.dtype(release.dtype).itemsize}"
    for count, entry in zip(rows, manifest.shards, strict=True):
        header = _header(path / entry["file"], release.tensor)
        want = {"dtype": kind, "shape": [count, *release.shape]}
        if {key: header.get(key) for key in want} != want:
            raise ReleaseError(f"{entry['file']} is no tensor of {want['shape']} integers ({kind})")
        if header["words"] != metadata(manifest.statement["stamp"]):
            raise ReleaseError(f"{entry['file']} warns of other things than the statement")
    places = {(number, row) for number, count in enumerate(rows) for row in range(count)}
    listed = [tuple(at) for at in manifest.rows.values()]
    if len(listed) != len(places) or set(listed) != places:
        raise ReleaseError("the manifest does not list every row of the shards exactly once")
    if len(listed) != release.paid_for:
        raise ReleaseError(
            f"{len(listed)} {release.rows_are} were released, {release.paid_for} paid for"
        )
    return f"{len(rows)}, every digest holds"


def check_digests(path: Path, manifest: Manifest) -> None:
    """Every shard has the SHA-256 that the manifest says.

    Raises:
        MismatchError: names every file that has another one.
    """
    other = {}
    for entry in manifest.shards:
        found = _sha256(path / entry["file"])
        if found != entry["sha256"]:
            other[entry["file"]] = {"expected": entry["sha256"], "found": found}
    if not other:
        return
    first, *more = other
    raise MismatchError(
        f"{first} {not_the_digest('SHA-256', **other[first])}"
        + (f", and so are {len(more)} more: {some_of(more)}" if more else ""),
        files=other,
    )


def not_the_digest(kind: str, expected: object, found: object) -> str:
    """What is to be said of a file whose digest is another one; programs get both in full.

    Args:
        kind: of the digests.
        expected: what was stated.
        found: what was computed.
    """
    return (
        f"is not what the manifest describes: {kind} {str(expected)[:DIGEST]}… expected, "
        f"{str(found)[:DIGEST]}… found"
    )


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first of some names."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ReleaseError(f"{path} cannot be read: {error.strerror}") from error


def _header(path: Path, tensor: str) -> dict[str, Any]:
    """The entry of the one tensor of a safetensors file whose digest was checked, and its words."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > 1 << 20:
                raise ReleaseError(f"{path.name} has a header of {length} bytes")
            content = json.loads(file.read(length))
        words = content.pop("__metadata__", None)
        if list(content) != [tensor]:
            raise ReleaseError(f"{path.name} holds other tensors than {tensor!r}")
        return dict(content[tensor]) | {"words": words}
    except (OSError, struct.error, ValueError, TypeError, AttributeError) as error:
        raise ReleaseError(f"{path.name} is no safetensors file: {error}") from error


def check_card(path: Path, manifest: Manifest) -> str | Check:
    """The card is the one of this manifest."""
    if manifest.software != SOFTWARE:
        made = f"made by {manifest.software}; compare it there, this is {SOFTWARE}"
        return Check("", None, made)
    try:
        there = (path / CARD).read_bytes()
        card = render(manifest).encode()
    except OSError as error:
        raise ReleaseError(f"{CARD} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReleaseError(f"the manifest contradicts itself: {error}") from error
    if there != card:
        expected, found = (hashlib.sha256(content).hexdigest() for content in (card, there))
        raise MismatchError(
            f"{CARD} is not the card of this manifest: SHA-256 {expected[:DIGEST]}… expected, "
            f"{found[:DIGEST]}… found",
            files={CARD: {"expected": expected, "found": found}},
        )
    return "says what the manifest says"


def check_ledger(manifest: Manifest, ledger: Ledger | None) -> str | Check:
    """Everyone was charged, once, for this very manifest."""
    if manifest.ledger is None:
        return Check("", None, "nothing is charged for a research run")
    if ledger is None:
        return Check("", None, "not looked at; give it with --ledger")
    rows = ledger.verify()
    stated = manifest.ledger
    key, charged = str(stated["key"]), list(stated["charges"])
    due = {(c["cohort"], c["unit"]): [c["rho"], c["draws"]] for c in charged}
    head = stated["head"]
    if head is not None:  # of sites elsewhere there is none
        _check_head(head, rows, ledger.path)
    # A site's own ledger knows of its own cohort, and of that alone.
    kept = {row.cohort for row in rows if row.key == key}
    if len(kept) == 1:
        due = {who: cost for who, cost in due.items() if who[0] in kept} or due
    for action in ("reserve", "commit"):
        entries = [row for row in rows if row.action == action and row.key == key]
        made = {(row.cohort, row.unit): [row.rho, row.draws] for row in entries}
        if len(entries) != len(due) or not same(made, due):
            raise ReleaseError(
                f"{ledger.path} has no {action} of exactly this release; it was charged "
                "elsewhere, or not at all"
            )
        if action == "commit" and {row.note for row in entries} != {manifest.digest}:
            paid = sorted({row.note for row in entries})
            raise MismatchError(
                f"{ledger.path} knows this release with another manifest, of digest "
                f"{some_of([note[:DIGEST] for note in paid])}…, and that of {MANIFEST} is "
                f"{manifest.digest[:DIGEST]}…; the folder was changed after it was published",
                files={MANIFEST: {"expected": paid, "found": manifest.digest}},
            )
    if head is not None and not same(
        {name: stated[name] for name in ("head", "totals")}, receipt(rows, key)
    ):
        raise ReleaseError(
            f"{ledger.path} had other heads or totals at this charge than the card says"
        )
    others = {charge["cohort"] for charge in charged} - {cohort for cohort, *_ in due}
    return f"charged once to {', '.join(sorted({str(cohort) for cohort, *_ in due}))}" + (
        f"; of {', '.join(sorted(map(str, others)))} this ledger knows nothing" if others else ""
    )


def _check_head(head: dict[str, Any], rows: Sequence[Row], path: Path) -> None:
    """The ledger at hand is the one that was charged, not a copy from before."""
    before, after = str(head["before"]), str(head["after"])
    if is_head(rows, after):
        return
    copied = before != GENESIS and is_head(rows, before)
    raise ReleaseError(
        f"the head on the card, {after[:DIGEST]}…, is not in {path}: "
        + (
            "another copy of this ledger was charged, so more was spent than this copy knows of; "
            "find the other, and use that one alone"
            if copied
            else "this is another ledger, or rows of it are gone; give the one that was charged"
        )
    )


def same(stated: Any, derived: Any) -> bool:
    """Equal, up to the last bits of a float."""
    if isinstance(stated, bool) or isinstance(derived, bool):
        return stated is derived
    if isinstance(stated, dict) and isinstance(derived, dict):
        return stated.keys() == derived.keys() and all(
            same(stated[key], derived[key]) for key in stated
        )
    if isinstance(stated, list) and isinstance(derived, list):
        return len(stated) == len(derived) and all(map(same, stated, derived))
    if isinstance(stated, int | float) and isinstance(derived, int | float):
        return math.isclose(stated, derived, rel_tol=CLOSE)
    return bool(stated == derived)
