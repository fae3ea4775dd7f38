"""Checking a release without trusting whoever made it, and what a reader is told then.

`verify` looks at everything that can be looked at in a folder; what differs between mechanisms, the
kind of the release supplies (`canal.release.registry`). A `Verdict` puts a patient's epsilon first:
the plan may count in another unit, and a preset may promise a number that is nobody's. Whoever
decides about patients reads no number without being told that it cannot be relied on, where that is
so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from canal.errors import ReleaseError
from canal.privacy.ledger import Ledger
from canal.release.checks import Check, Checks
from canal.release.digits import finite_or_none, short, upwards
from canal.release.manifest import Manifest
from canal.release.recompute import PublicInputs, not_recomputed
from canal.release.registry import ReleaseKind, kind_of
from canal.release.store import Folder

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
    path, checks = Path(path), Checks(Path(path))
    found: list[ReleaseKind] = []

    def manifest() -> str:
        found.append(kind_of(Manifest.read(path).kind))
        return ""

    if not checks.look("manifest", manifest):
        return checks.found
    return found[0].verify(path, ledger, public)


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
        checks.append(not_recomputed(manifest))
    return Verdict(checks, manifest)


def check_statement(manifest: Manifest) -> Any:
    """Derive everything that a manifest promises from its plan and what it published.

    Returns:
        The calibrated plan, of the kind of the release.

    Raises:
        ReleaseError: something does not follow, or could not have been released.
    """
    return kind_of(manifest.kind).check_statement(manifest)


def check_contents(release: Folder) -> None:
    """Check what a reader relies on, before anything is read from it: digests and statement.

    Raises:
        ReleaseError: a file was changed, or something stated does not follow.
    """
    kind_of(release.kind).check_contents(release)


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
