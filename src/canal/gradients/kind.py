"""Gradient releases, for `canal.release.registry`."""

from canal.lazy import Deferred
from canal.release.registry import ReleaseKind

KIND = ReleaseKind(
    name="adapters",
    wording=Deferred("canal.gradients.statement:wording"),
    open=Deferred("canal.gradients.store:AdapterRelease"),
    verify=Deferred("canal.gradients.verification:verify"),
    check_statement=Deferred("canal.gradients.verification:check_statement"),
    check_contents=Deferred("canal.gradients.verification:check_contents"),
)
