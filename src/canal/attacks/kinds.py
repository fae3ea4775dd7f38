"""Audits of releases of either kind, features or adapters: the release says which auditor it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from canal.attacks.audit import Audit
from canal.attacks.auditor import Auditor
from canal.attacks.feature_auditor import FeatureAuditor
from canal.attacks.game import Progress
from canal.attacks.rounds_auditor import RoundsAuditor
from canal.features.store import Release
from canal.gradients.store import AdapterRelease
from canal.release.registry import of_kind
from canal.release.store import Folder

AUDITORS: dict[str, Callable[..., Auditor]] = {
    Release.kind: FeatureAuditor,
    AdapterRelease.kind: RoundsAuditor,
}


def auditor_of(release: Folder, **choices: Any) -> Auditor:
    """The auditor of a release; the choices are those of `Auditor`."""
    return of_kind(AUDITORS, release, "audit")(release, **choices)


def audit(release: Folder, progress: Progress = lambda count: None, **choices: Any) -> Audit:
    """Audit a release; the choices are those of `Auditor`."""
    return auditor_of(release, **choices).run(progress)
