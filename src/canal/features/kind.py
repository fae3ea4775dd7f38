"""Feature releases, for `canal.release.registry`."""

from canal.lazy import Deferred
from canal.release.registry import ReleaseKind

KIND = ReleaseKind(
    name="features",
    wording=Deferred("canal.features.statement:wording"),
    open=Deferred("canal.features.store:Release"),
    verify=Deferred("canal.features.verification:verify"),
    check_statement=Deferred("canal.features.verification:check_statement"),
    check_contents=Deferred("canal.features.verification:check_contents"),
)
