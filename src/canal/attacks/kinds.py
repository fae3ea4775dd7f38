"""Audits of releases of either kind, features or adapters: the release says which auditor it is."""

from __future__ import annotations

from typing import Any

from canal.attacks.audit import Audit
from canal.attacks.auditor import Auditor
from canal.attacks.feature_auditor import FeatureAuditor
from canal.attacks.game import Progress
from canal.attacks.rounds_auditor import RoundsAuditor
from canal.gradients.kinds import AnyRelease
from canal.gradients.store import AdapterRelease


def auditor_of(release: AnyRelease, **choices: Any) -> Auditor:
    """The auditor of a release; the choices are those of `Auditor`."""
    if isinstance(release, AdapterRelease):
        return RoundsAuditor(release, **choices)
    return FeatureAuditor(release, **choices)


def audit(release: AnyRelease, progress: Progress = lambda count: None, **choices: Any) -> Audit:
    """Audit a release; the choices are those of `Auditor`."""
    return auditor_of(release, **choices).run(progress)
