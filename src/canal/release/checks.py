"""What can be checked of a release folder of any kind: digests, arithmetic, card, ledger.

Digests find damage. What is stated is compared with what was derived again. The ledger holds the
digest of the manifest, so that a folder whose every digest was forged anew is found as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from canal.errors import CanalError, MismatchError, ReleaseError
from canal.privacy.chain import GENESIS, Row
from canal.privacy.ledger import Ledger, is_head, receipt
from canal.privacy.precision import epsilon_of_release
from canal.release.charges import QUERIES
from canal.release.digits import short, upwards
from canal.release.manifest import CARD, MANIFEST, SOFTWARE, Manifest
from canal.release.record import check_record
from canal.release.shard import metadata
from canal.release.workspace import refuse_key_left

# Of a digest in a sentence; nobody finds two files that agree in these.
DIGEST = 16
# Lattice steps in a deviation of one share of the noise.
_LEAST_SHARE = 64.0
# Another processor may round the last bits of a logarithm otherwise.
_CLOSE = 1e-9


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

    def contents(
        self, what: str, at: Callable[[], str], noise: Callable[[], str], repeats: Callable[[], str]
    ) -> None:
        """Every shard is what the manifest says; then its noise is looked at.

        Args:
            what: the shards are called.
            at: looks at them.
            noise: looks for their noise.
            repeats: looks for noise that is there twice.
        """
        self.look(what, at)
        digests = "files" in self.found[-1].numbers
        for name, look in (("noise", noise), ("repeats", repeats)):
            if digests:
                self.skip(name, f"not looked at; these are not the {what} of the manifest")
            else:
                self.look(name, look)

    def key(self) -> None:
        """The key of the noise is gone, as far as that can be seen from here."""

        def gone() -> str:
            refuse_key_left(self.path)
            return "no key of the noise lies beside it"

        self.look("key", gone)

    def files(self, manifest: Manifest, more: Sequence[str] = ()) -> None:
        """The folder holds what the manifest lists, and nothing else."""
        self.look("files", lambda: _files(self.path, manifest, more))

    def card(self, manifest: Manifest, render: Callable[[Manifest], str]) -> None:
        """The card is the one of this manifest."""
        if manifest.software == SOFTWARE:
            self.look("card", lambda: _card(self.path, manifest, render))
        else:
            made = f"made by {manifest.software}; compare it there, this is {SOFTWARE}"
            self.skip("card", made)

    def record(self, manifest: Manifest) -> None:
        """What its makers say is readable; whether it is true, nobody can derive."""
        self.look("record", lambda: check_record(manifest.record))

    def ledger(self, manifest: Manifest, ledger: Ledger | None) -> None:
        """Everyone was charged, once, for this very manifest."""
        if manifest.ledger is None:
            self.skip("ledger", "nothing is charged for a research run")
        elif ledger is None:
            self.skip("ledger", "not looked at; give it with --ledger")
        else:
            self.look("ledger", lambda: _ledger(manifest, ledger))


def _files(path: Path, manifest: Manifest, more: Sequence[str]) -> str:
    expected = {MANIFEST, CARD, *more} | {entry["file"] for entry in manifest.shards}
    there = {child.name for child in path.iterdir()}
    if there != expected:
        odd = sorted(there ^ expected)[0]
        raise ReleaseError(f"{odd} is {'too much' if odd in there else 'missing'} in the folder")
    return f"{len(there)}, none too many"


def check_shards(
    path: Path, manifest: Manifest, rows: Sequence[int], shape: list[int], tensor: str, kind: str
) -> int:
    """Every shard is the tensor that the manifest describes, every row listed once; how many.

    Digests are compared by `check_digests`, before a row is counted.

    Args:
        path: the folder.
        manifest: of the same.
        rows: of every shard.
        shape: of a row.
        tensor: what a shard calls its integers.
        kind: of the integers, as safetensors calls it.
    """
    for number, entry in enumerate(manifest.shards):
        header = _header(path / entry["file"], tensor)
        want = {"dtype": kind, "shape": [rows[number], *shape]}
        if {key: header.get(key) for key in want} != want:
            raise ReleaseError(f"{entry['file']} is no tensor of {want['shape']} integers ({kind})")
        if header["words"] != metadata(manifest.statement["stamp"]):
            raise ReleaseError(f"{entry['file']} warns of other things than the statement")
    places = {(number, row) for number, count in enumerate(rows) for row in range(count)}
    listed = [tuple(at) for at in manifest.rows.values()]
    if len(listed) != len(places) or set(listed) != places:
        raise ReleaseError("the manifest does not list every row of the shards exactly once")
    return len(listed)


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


def check_derived(
    manifest: Manifest,
    *,
    private: bool,
    mechanism: dict[str, Any],
    statement: dict[str, Any],
    is_covered: Callable[[list[dict[str, Any]]], bool],
) -> None:
    """Refuse a manifest that states anything else than what was derived from its plan.

    Args:
        manifest: of a release of any kind.
        private: whether its noise protects anybody.
        mechanism: that follows from plan and statistics.
        statement: that follows from those.
        is_covered: whether charges pay for it.

    Raises:
        ReleaseError: something does not follow.
    """
    for what, stated, derived in (
        ("claim to be private", manifest.private, private),
        ("absence of a charge", manifest.ledger is None, not private),
        ("mechanism", manifest.mechanism, mechanism),
        ("statement", manifest.statement, json.loads(json.dumps(statement))),
    ):
        if not same(stated, derived):
            raise ReleaseError(f"the {what} does not follow from the plan")
    if manifest.ledger is not None and not is_covered(manifest.ledger["charges"]):
        raise ReleaseError("the charges are not everyone's, or below what the release costs")
    if manifest.ledger is not None:
        _check_charges(manifest)
        _check_totals(manifest.ledger, manifest.participants["cohorts"])


def _check_charges(manifest: Manifest) -> None:
    """Refuse charges below what the statement says that a release costs.

    Read off the statement, for every cohort that is named: a mistake in how charges are worked out
    would be in `is_covered` as well.
    """
    charges = list((manifest.ledger or {})["charges"])
    charged = {(each["cohort"], each["unit"]): float(each["rho"]) for each in charges}
    for unit, promised in manifest.statement["guarantee"].items():
        cohorts = [QUERIES] if unit == "image" else manifest.participants["cohorts"]
        # What costs more than any number (images that count as public) is charged to nobody.
        for cohort in cohorts if promised["rho"] is not None else ():
            if not charged.get((cohort, unit), 0.0) >= (1 - _CLOSE) * promised["rho"]:
                raise ReleaseError(
                    f"cohort {cohort!r} was charged less for unit {unit} than the statement says "
                    "that the release costs"
                )


def _check_totals(paid: dict[str, Any], cohorts: Sequence[str]) -> None:
    """Refuse running totals that no ledger can have had behind these charges.

    Args:
        paid: what the manifest says of its charges.
        cohorts: that took part.
    """
    head, totals = paid["head"], paid["totals"]
    if head is None and totals == []:  # charged at sites elsewhere, which keep theirs
        return
    for name in ("before", "after"):
        if len(bytes.fromhex(head[name])) != 32:
            raise ReleaseError(f"the head {name} the charge is no SHA-256")
    charged = {(each["cohort"], each["unit"]): each for each in paid["charges"]}
    for total in totals:
        mine = charged[total["cohort"], total["unit"]]
        least = epsilon_of_release(mine["rho"], total["delta"], mine["draws"], total["conversion"])
        most = (1 + _CLOSE) * total["epsilon_budget"]
        if not (1 - _CLOSE) * least <= total["epsilon_spent"] <= most:
            raise ReleaseError(
                f"the running total of cohort {total['cohort']!r} is below what this release "
                "costs, or above its budget"
            )
    if not set(cohorts) <= {total["cohort"] for total in totals}:
        raise ReleaseError("a cohort has no running total")


def check_share_width(steps: float) -> None:
    """Refuse shares of the noise whose sum is no rounded Gaussian.

    The least width is that of `canal.privacy.shares`, written down once more: where it was lowered
    there, releases are made and checked with the same mistake.

    Args:
        steps: of the lattice, in one deviation of the narrowest share.
    """
    if not steps >= _LEAST_SHARE:
        raise ReleaseError(
            f"a share of the noise is {steps:.3g} lattice steps wide, and below {_LEAST_SHARE:g} "
            "the sum of shares is not the noise that is stated"
        )


def derived_again(manifest: Manifest) -> str:
    """What a checked statement says, in a line; the stamp where nobody is protected."""
    said = manifest.statement
    if not manifest.private:
        return str(said["stamp"])
    found = ", ".join(
        f"{short(upwards(promised['epsilon']))} of unit {unit}"
        for unit, promised in said["guarantee"].items()
    )
    return f"every number derived again: epsilon {found}, at delta {short(said['delta'])}"


def _card(path: Path, manifest: Manifest, render: Callable[[Manifest], str]) -> str:
    try:
        there, card = (path / CARD).read_bytes(), render(manifest).encode()
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


def _ledger(manifest: Manifest, ledger: Ledger) -> str:
    rows = ledger.verify()
    stated = manifest.ledger or {}
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
        return math.isclose(stated, derived, rel_tol=_CLOSE)
    return bool(stated == derived)
