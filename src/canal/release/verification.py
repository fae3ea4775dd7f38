"""Checking a release without trusting whoever made it: digests, arithmetic, ledger.

Digests find damage. The statement is derived again from the plan and the published statistics.
The ledger holds the digest of the manifest, so that a folder whose every digest was forged anew is
found as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from canal.errors import CanalError, ReleaseError
from canal.privacy.ledger import Ledger
from canal.release.calibration import CalibratedPlan
from canal.release.card import render
from canal.release.charges import covers
from canal.release.conditions import check_noise, check_plan
from canal.release.digits import short
from canal.release.manifest import CARD, MANIFEST, SOFTWARE, Manifest
from canal.release.mechanism import Mechanism
from canal.release.plan import Plan
from canal.release.shard import TENSOR, metadata
from canal.release.statement import Facts, state
from canal.release.statistics import Statistics
from canal.release.store import Release

# Another processor may round the last bits of a logarithm otherwise.
_CLOSE = 1e-9


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        what: it was.
        passed: None if it could not be looked at.
        detail: what was found.
    """

    what: str
    passed: bool | None
    detail: str


def verify(path: Path, ledger: Ledger | None = None) -> list[Check]:
    """Check everything that can be checked; nothing is believed.

    Args:
        path: the release folder.
        ledger: that was charged, where the reader has it.
    """
    found: list[Check] = []

    def look(what: str, at: Callable[[], str]) -> bool:
        try:
            with np.errstate(all="ignore"):  # a forged number may overflow; it will not compare
                found.append(Check(what, True, at()))
        except CanalError as error:
            found.append(Check(what, False, str(error)))
        # Whatever a forger put where a number should be.
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            found.append(Check(what, False, f"the manifest contradicts itself: {error}"))
        except OSError as error:
            found.append(Check(what, False, f"{path} cannot be read: {error.strerror}"))
        return bool(found[-1].passed)

    opened: list[Release] = []

    def manifest() -> str:
        opened.append(Release.open(path))
        return f"{len(opened[0])} queries, digest {opened[0].manifest.digest[:12]}"

    if not look("manifest", manifest):
        return found
    release = opened[0]
    look("files", lambda: _files(release))
    look("shards", lambda: _shards(release))
    look("statement", lambda: _statement(release.manifest))
    look("noise", lambda: _noise(release))
    if release.manifest.software == SOFTWARE:
        look("card", lambda: _card(release))
    else:
        made = f"made by {release.manifest.software}; compare it there, this is {SOFTWARE}"
        found.append(Check("card", None, made))
    if release.manifest.ledger is None:
        found.append(Check("ledger", None, "nothing is charged for a research run"))
    elif ledger is None:
        found.append(Check("ledger", None, "not looked at; give it with --ledger"))
    else:
        look("ledger", lambda: _ledger(release.manifest, ledger))
    return found


def _files(release: Release) -> str:
    expected = {MANIFEST, CARD} | {entry["file"] for entry in release.manifest.shards}
    there = {child.name for child in release.path.iterdir()}
    if there != expected:
        odd = sorted(there ^ expected)[0]
        raise ReleaseError(f"{odd} is {'too much' if odd in there else 'missing'} in the folder")
    return f"{len(there)}, none too many"


def _shards(release: Release) -> str:
    rows = [len(stored) for stored in release.shards()]
    shape = [len(release.channels), *release.plan.grid]
    for number, entry in enumerate(release.manifest.shards):
        if _sha256(release.path / entry["file"]) != entry["sha256"]:
            raise ReleaseError(f"{entry['file']} is not what the manifest describes")
        header = _header(release.path / entry["file"])
        want = {"dtype": "I16", "shape": [rows[number], *shape]}
        if {key: header.get(key) for key in want} != want:
            raise ReleaseError(f"{entry['file']} is no tensor of {want['shape']} 16-bit integers")
        if header["words"] != metadata(release.statement["stamp"]):
            raise ReleaseError(f"{entry['file']} warns of other things than the statement")
    places = {(number, row) for number, count in enumerate(rows) for row in range(count)}
    listed = [tuple(at) for at in release.manifest.rows.values()]
    if len(listed) != len(places) or set(listed) != places:
        raise ReleaseError("the manifest does not list every row of the shards exactly once")
    if len(listed) != release.plan.participants.queries:
        raise ReleaseError(
            f"{len(listed)} queries were released, {release.plan.participants.queries} paid for"
        )
    return f"{len(rows)}, every digest holds"


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ReleaseError(f"{path} cannot be read: {error.strerror}") from error


def _header(path: Path) -> dict[str, Any]:
    """The entry of the one tensor of a safetensors file whose digest was checked, and its words."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > 1 << 20:
                raise ReleaseError(f"{path.name} has a header of {length} bytes")
            content = json.loads(file.read(length))
        words = content.pop("__metadata__", None)
        if list(content) != [TENSOR]:
            raise ReleaseError(f"{path.name} holds other tensors than {TENSOR!r}")
        return dict(content[TENSOR]) | {"words": words}
    except (OSError, struct.error, ValueError, TypeError, AttributeError) as error:
        raise ReleaseError(f"{path.name} is no safetensors file: {error}") from error


def check_statement(manifest: Manifest) -> CalibratedPlan:
    """Derive everything that a manifest promises from its plan and published statistics.

    Raises:
        ReleaseError: something does not follow, or could not have been released.
    """
    try:
        return _derived(manifest)
    # Whatever a forger put where a number should be.
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ReleaseError(f"the manifest contradicts itself: {error}") from error


def _derived(manifest: Manifest) -> CalibratedPlan:
    plan = Plan.from_json(manifest.plan)
    cohorts = tuple(str(name) for name in manifest.participants["cohorts"])
    check_plan(plan, cohorts)
    noise, sampler = str(manifest.noise["source"]), str(manifest.noise["sampler"])
    private = check_noise(plan, noise, sampler)
    statistics = Statistics.from_json(manifest.statistics)
    calibrated = plan.calibrate(statistics.weights(plan))
    statistics.check(calibrated)
    mechanism = Mechanism.of(calibrated, statistics)
    facts = Facts(
        private=private,
        noise=noise,
        sampler=sampler,
        lattice_step=mechanism.lattice.step,
        cohorts=cohorts,
    )
    for what, stated, derived in (
        ("claim to be private", manifest.private, private),
        ("absence of a charge", manifest.ledger is None, not private),
        ("mechanism", manifest.mechanism, mechanism.to_json()),
        ("statement", manifest.statement, json.loads(json.dumps(state(calibrated, facts)))),
    ):
        if not same(stated, derived):
            raise ReleaseError(f"the {what} does not follow from the plan")
    if manifest.ledger is not None and not covers(manifest.ledger["charges"], calibrated, cohorts):
        raise ReleaseError("the charges are not everyone's, or below what the release costs")
    return calibrated


def _statement(manifest: Manifest) -> str:
    plan = check_statement(manifest).plan
    if not manifest.private:
        return str(manifest.statement["stamp"])
    epsilon = manifest.statement["guarantee"][plan.unit]["epsilon"]
    return f"derived again: epsilon {epsilon:.6g} at delta {short(plan.delta)}, unit {plan.unit}"


def _noise(release: Release) -> str:
    r"""See that no channel varies less than its noise alone would.

    Signal can only add to the sum of squares, so its lower tail is that of a chi-square variable,
    whatever the features are. False-alarm rate: 1e-9 over all channels.
    """
    sigma = np.array(release.manifest.mechanism["sigma"])
    if release.plan.allocation == "none":
        return "none was added"
    squares, count = np.zeros(len(sigma)), 0
    for stored in release.shards():
        values = stored.reshape(*stored.shape[:2], -1).astype(np.float64)
        squares += np.square(values).sum(axis=(0, 2))
        count += values.shape[0] * values.shape[2]
    caps = np.array(release.manifest.mechanism["caps"])
    unit = np.divide(release.scale, caps, out=np.zeros_like(caps), where=caps > 0)
    # Wilson and Hilferty's cube root: good to a fraction of a per cent in this tail.
    quantile = NormalDist().inv_cdf(1e-9 / len(sigma))
    least = count * max(0.0, 1 - 2 / (9 * count) + quantile * math.sqrt(2 / (9 * count))) ** 3
    seen = squares * np.square(unit / sigma)
    quiet = (seen < least) & (caps > 0)
    if quiet.any():
        channel = int(release.channels[int(quiet.argmax())])
        raise ReleaseError(f"channel {channel} varies less than its noise alone would")
    return "every channel varies at least as much as its noise"


def _card(release: Release) -> str:
    try:
        there = (release.path / CARD).read_bytes()
        same = there == render(release.manifest).encode()
    except OSError as error:
        raise ReleaseError(f"{CARD} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReleaseError(f"the manifest contradicts itself: {error}") from error
    if not same:
        raise ReleaseError(f"{CARD} is not the card of this manifest")
    return "says what the manifest says"


def _ledger(manifest: Manifest, ledger: Ledger) -> str:
    rows = ledger.verify()
    stated = manifest.ledger or {}
    key, charged = str(stated["key"]), list(stated["charges"])
    due = {(c["cohort"], c["unit"], c["rho"], c["draws"]) for c in charged}
    # A site's own ledger knows of its own cohort, and of that alone.
    kept = {row.cohort for row in rows if row.key == key}
    if len(kept) == 1:
        due = {charge for charge in due if charge[0] in kept} or due
    for action in ("reserve", "commit"):
        entries = [row for row in rows if row.action == action and row.key == key]
        made = [(row.cohort, row.unit, row.rho, row.draws) for row in entries]
        if len(made) != len(due) or set(made) != due:
            raise ReleaseError(
                f"{ledger.path} has no {action} of exactly this release; it was charged "
                "elsewhere, or not at all"
            )
        if action == "commit" and {row.note for row in entries} != {manifest.digest}:
            raise ReleaseError(
                f"{ledger.path} knows this release with another manifest; the folder was changed "
                "after it was published"
            )
    others = {charge["cohort"] for charge in charged} - {cohort for cohort, *_ in due}
    return f"charged once to {', '.join(sorted({str(cohort) for cohort, *_ in due}))}" + (
        f"; of {', '.join(sorted(map(str, others)))} this ledger knows nothing" if others else ""
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
