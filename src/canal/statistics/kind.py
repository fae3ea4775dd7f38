"""Statistics releases, for `canal.release.registry`."""

from canal.lazy import Deferred
from canal.release.registry import ReleaseKind

KIND = ReleaseKind(
    name="statistics",
    wording=Deferred("canal.statistics.statement:wording"),
    open=Deferred("canal.statistics.release:StatisticsRelease"),
    derive=Deferred("canal.statistics.release:derive"),
    noise_looks=Deferred("canal.statistics.release:noise_looks"),
    card=Deferred("canal.statistics.statement:card"),
    worst_case=Deferred("canal.statistics.worst_case:worst_case"),
)
