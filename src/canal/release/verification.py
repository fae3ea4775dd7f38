"""Checking a release without trusting whoever made it, and what a reader is told then.

`verify` looks at everything that can be looked at in a folder. Digests find damage. What is stated
is compared with what was derived again. The ledger holds the digest of the manifest, so that a
folder whose every digest was forged anew is found as well. What differs between mechanisms, the
kind of the release supplies (`canal.release.registry`).

A `Verdict` puts a patient's epsilon first, whatever the release says: the plan may count in another
unit, and a preset may promise a number that is nobody's. Whoever decides about patients reads no
number without being told that it cannot be relied on, where that is so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canal.errors import ReleaseError
from canal.privacy.ledger import Ledger
from canal.privacy.precision import epsilon_of_release
from canal.release.charges import QUERIES, covers
from canal.release.checks import (
    CLOSE,
    Check,
    Checks,
    check_card,
    check_files,
    check_ledger,
    check_shards,
    same,
)
from canal.release.digits import finite_or_none, short, upwards
from canal.release.manifest import Manifest
from canal.release.noise_check import ALARM, check_unlike, check_widths
from canal.release.plan import Calibrated, check_cohorts
from canal.release.recompute import PublicInputs
from canal.release.record import check_record
from canal.release.registry import kind_of
from canal.release.statement import Facts, state
from canal.release.store import Folder
from canal.release.workspace import refuse_key_left

# Lattice steps in a deviation of one share of the noise.
_LEAST_SHARE = 64.0


def verify(
    path: Path | str, ledger: Ledger | None = None, public: PublicInputs | None = None
) -> list[Check]:
    """Check everything of a release that can be checked.

    Args:
        path: the release folder.
        ledger: that was charged, where the reader has it.
        public: initialisation and recipient's images, where the reader has them: what is public
            is computed again.
    """
    path, opened = Path(path), list[Folder]()
    checks = Checks(path)
    if not checks.look("manifest", lambda: _open(path, opened)):
        return checks.found
    (release,) = opened
    manifest, kind, what = release.manifest, kind_of(release.kind), release.shards_are
    checks.look("key", lambda: _check_key(path))
    checks.look("files", lambda: check_files(release))
    beside = [checks.look(Path(name).stem, look) for name, look in release.beside.items()]
    stated = checks.look("statement", lambda: _check_statement(manifest))
    checks.look(what, lambda: check_shards(release))
    if "files" in checks.found[-1].numbers:
        for name in ("noise", "repeats"):
            checks.skip(name, f"not looked at; these are not the {what} of the manifest")
    else:
        checks.look("noise", lambda: _check_noise(release))
        checks.look("repeats", lambda: _check_repeats(release))
    if public is not None and stated and all(beside):
        kind.recompute(checks, release, public)
    elif public is not None:
        wrong = "what the folder says of them does not hold"
        wrong = wrong if stated else "the statement contradicts itself"
        checks.skip("public inputs", f"not recomputed; {wrong}")
    checks.look("record", lambda: check_record(manifest.record))
    checks.look("card", lambda: check_card(path, manifest))
    checks.look("ledger", lambda: check_ledger(manifest, ledger))
    return checks.found


def _open(path: Path, opened: list[Folder]) -> str:
    manifest = Manifest.read(path)
    release = kind_of(manifest.kind).open(path, manifest)
    opened.append(release)
    return f"{len(release)} {release.rows_are}, digest {manifest.digest[:12]}"


def _check_key(path: Path) -> str:
    """The key of the noise is gone, as far as that can be seen from here."""
    refuse_key_left(path)
    return "no key of the noise lies beside it"


def _check_statement(manifest: Manifest) -> str:
    check_statement(manifest)
    said = manifest.statement
    if not manifest.private:
        return str(said["stamp"])
    found = ", ".join(
        f"{short(upwards(promised['epsilon']))} of unit {unit}"
        for unit, promised in said["guarantee"].items()
    )
    return f"every number derived again: epsilon {found}, at delta {short(said['delta'])}"


def _check_noise(release: Folder) -> str:
    """See that the noise is as wide as stated, wherever it can be seen."""
    if release.plan.allocation == "none":
        return "none was added"
    return check_widths(*kind_of(release.kind).noise_looks(release), ALARM / 2)


def _check_repeats(release: Folder) -> str | Check:
    """See that no noise is there twice."""
    if release.plan.allocation == "none":
        return "no noise was added"
    groups = kind_of(release.kind).alike(release)
    if not groups:
        return Check("", None, "nothing here has noise enough to be compared with other noise")
    found = (f"{check_unlike(each, ALARM / 2 / len(groups))} of {each.what}" for each in groups)
    return f"none: {', '.join(found)}"


def check_contents(release: Folder) -> None:
    """Check what a reader relies on, before anything is read from it: digests and statement.

    Raises:
        ReleaseError: a file was changed, or something stated does not follow.
    """
    check_shards(release)
    for look in release.beside.values():
        look()
    check_statement(release.manifest)


@dataclass(frozen=True, eq=False)
class Derived:
    """What a kind derives from the plan and the published statistics of a manifest.

    Args:
        calibrated: the plan with its noise.
        mechanism: the numbers that readers need, as plain values.
        widths: of the noise on the sums over sites, in lattice steps.
    """

    calibrated: Calibrated
    mechanism: dict[str, Any]
    widths: NDArray[np.float64]


def check_statement(manifest: Manifest) -> Any:
    """Derive everything that a manifest promises from its plan and what it published.

    Returns:
        The calibrated plan, of the kind of the release.

    Raises:
        ReleaseError: something does not follow, or could not have been released.
    """
    try:
        return _derive(manifest)
    # Whatever a forger put where a number should be.
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ReleaseError(f"the manifest contradicts itself: {error}") from error


def _derive(manifest: Manifest) -> Calibrated:
    derived: Derived = kind_of(manifest.kind).derive(manifest)
    calibrated, plan = derived.calibrated, derived.calibrated.plan
    facts = Facts.of(plan, manifest.noise, manifest.participants["cohorts"])
    check_cohorts(facts.cohorts, plan.sites)
    if plan.trust == "secure-sum":
        _check_share_width(float(derived.widths.min()) / math.sqrt(plan.shares - plan.colluding))
    for what, stated, found in (
        ("claim to be private", manifest.private, facts.private),
        ("absence of a charge", manifest.ledger is None, not facts.private),
        ("mechanism", manifest.mechanism, derived.mechanism),
        ("statement", manifest.statement, json.loads(json.dumps(state(calibrated, facts)))),
    ):
        if not same(stated, found):
            raise ReleaseError(f"the {what} does not follow from the plan")
    if manifest.ledger is not None:
        if not covers(manifest.ledger["charges"], calibrated, facts.cohorts):
            raise ReleaseError("the charges are not everyone's, or below what the release costs")
        _check_charges(manifest)
        _check_totals(manifest.ledger, manifest.participants["cohorts"])
    return calibrated


def _check_charges(manifest: Manifest) -> None:
    """Refuse charges below what the statement says that a release costs.

    Read off the statement, for every cohort that is named: a mistake in how charges are worked out
    would be in `covers` as well.
    """
    charges = list((manifest.ledger or {})["charges"])
    charged = {(each["cohort"], each["unit"]): float(each["rho"]) for each in charges}
    for unit, promised in manifest.statement["guarantee"].items():
        cohorts = [QUERIES] if unit == "image" else manifest.participants["cohorts"]
        # What costs more than any number (images that count as public) is charged to nobody.
        for cohort in cohorts if promised["rho"] is not None else ():
            if not charged.get((cohort, unit), 0.0) >= (1 - CLOSE) * promised["rho"]:
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
        most = (1 + CLOSE) * total["epsilon_budget"]
        if not (1 - CLOSE) * least <= total["epsilon_spent"] <= most:
            raise ReleaseError(
                f"the running total of cohort {total['cohort']!r} is below what this release "
                "costs, or above its budget"
            )
    if not set(cohorts) <= {total["cohort"] for total in totals}:
        raise ReleaseError("a cohort has no running total")


def _check_share_width(steps: float) -> None:
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


def account(release: Folder, delta: float | None = None) -> dict[str, Any]:
    """Price a release again from its plan, once its statement was checked.

    Args:
        release: an opened one.
        delta: another than the plan's.
    """
    manifest = release.manifest
    calibrated = check_statement(manifest)
    plan, promise = calibrated.plan, calibrated.guarantee
    delta = float(manifest.statement["delta"]) if delta is None else delta
    units: dict[str, Any] = {}
    for unit in plan.units:
        if not manifest.private:
            units[unit] = {"epsilon": None, "epsilon_exact": None, "rho": None, "shares": {}}
            continue
        rho = promise.rho(unit)
        finite = finite_or_none(rho)
        units[unit] = {
            "epsilon": finite_or_none(promise.epsilon(delta, unit, plan.conversion)),
            "epsilon_exact": finite_or_none(promise.epsilon(delta, unit, "exact")),
            "rho": finite,
            "shares": {
                event.name: event.rho(unit) / rho if finite else None for event in promise.events
            },
        }
    return {
        "stamp": manifest.statement["stamp"],
        "unit": manifest.statement["unit"],
        "delta": delta,
        "conversion": plan.conversion,
        "units": units,
    }


# Where both neighbour relations are stated, those who are added or removed come first.
_PATIENT = {
    "membership": "where one is added or removed",
    "patient": "where one is replaced by another",
}
_ASKED = {
    "paper": "in the paper's accounting, which is a guarantee for nobody",
    "image": "for a query image and its person; for that, the teachers count as public",
}


@dataclass(frozen=True)
class Verdict:
    """A release that was checked.

    Args:
        checks: everything that was looked at.
        manifest: of the release; None if it cannot be read.
    """

    checks: Sequence[Check]
    manifest: Manifest | None

    @property
    def failed(self) -> list[str]:
        """Names of the checks that fail."""
        return [check.what for check in self.checks if check.passed is False]

    @property
    def private(self) -> bool:
        """Whether the release says that it protects somebody, and nothing contradicts that."""
        return self.manifest is not None and self.manifest.private and self.patient is not None

    @property
    def patient(self) -> dict[str, Any] | None:
        """What is promised to a patient; None where nothing can be read of it."""
        try:
            said = self._said
            unit = said["unit"] if "relation" in said else "patient"
            promised = said["guarantee"][unit]
            return {"unit": unit} | {
                name: promised[name] for name in ("epsilon", "protects", "reading")
            }
        except (LookupError, TypeError, AttributeError):  # whatever a forger put there
            return None

    @property
    def _said(self) -> dict[str, Any]:
        said = None if self.manifest is None else self.manifest.statement
        return said if isinstance(said, dict) else {}

    def lines(self) -> list[str]:
        """The headline, and what belongs to it."""
        broken = ""
        if self.failed:
            several = len(self.failed) > 1
            broken = (
                f"{len(self.failed)} check{'s' * several} FAIL{'S' * (not several)} "
                f"({', '.join(self.failed)})"
            )
        try:
            if self.patient is None:
                nothing = "A patient's epsilon: unknown"
                return [f"{nothing}. {broken}: nothing here can be relied on."]
            if self._said["stamp"]:
                first = f"A patient's epsilon: none. {self._said['stamp']}."
                return [f"{first} {broken}." if broken else first, *self._asked()]
            first = f"A patient's epsilon: {self._epsilons()}"
            if broken:
                return [f"{first}, as is stated; but {broken}: do not rely on it.", *self._asked()]
            return [f"{first}.", str(self.patient["reading"]), *self._asked()]
        except (LookupError, TypeError, ValueError, AttributeError):  # a forged statement
            return [f"A patient's epsilon: unknown. {broken}: nothing here can be relied on."]

    def _epsilons(self) -> str:
        said = self._said
        found = {
            unit: short(upwards(said["guarantee"][unit]["epsilon"]))
            for unit in _PATIENT
            if unit in said["guarantee"]
        }
        both = ", ".join(
            f"{found[unit]} {where}" for unit, where in _PATIENT.items() if "relation" in said
        )
        return f"{both or found['patient']}, at delta {short(float(said['delta']))}"

    def _asked(self) -> list[str]:
        """What the plan counts in, where that is no patient."""
        unit = self._said["unit"]
        if unit not in _ASKED:
            return []
        asked = short(upwards(float(self._said["epsilon_asked"])))
        return [f"The plan asks for another number: {asked} {_ASKED[unit]}."]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        made, said = self.manifest, self._said
        return {
            "holds": not self.failed,
            "private": self.private,
            "headline": self.lines(),
            "patient": self.patient,
            "delta": said.get("delta"),
            "asked": {"unit": said.get("unit"), "epsilon": said.get("epsilon_asked")},
            "guarantee": said.get("guarantee"),
            "kind": None if made is None else made.kind,
            "stamp": said.get("stamp"),
            "digest": None if made is None else made.digest,
            "checks": [asdict(check) for check in self.checks],
        }


def verdict(
    path: Path | str, ledger: Ledger | None = None, public: PublicInputs | None = None
) -> Verdict:
    """Check everything of a release that can be checked, and say what follows for a patient.

    Args:
        path: the release folder.
        ledger: that was charged, where the reader has it.
        public: initialisation and recipient's images, where the reader has them.
    """
    checks = verify(path, ledger, public)
    try:
        manifest = Manifest.read(Path(path))
    except ReleaseError:  # a check says so
        return Verdict(checks, None)
    if public is None:
        with suppress(ReleaseError):  # of an unknown kind; a check says so, too
            trusted = kind_of(manifest.kind).not_recomputed(manifest)
            checks.append(Check("public inputs", None, trusted))
    return Verdict(checks, manifest)
