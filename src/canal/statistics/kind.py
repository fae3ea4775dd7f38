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
    spec_from_json=Deferred("canal.statistics.mechanism:StatisticsSpec.from_json"),
    introduce=Deferred("canal.statistics.federated:introduce"),
    claim=Deferred("canal.statistics.federated:claim"),
    at_site=Deferred("canal.statistics.federated:StatisticsSite"),
    job=Deferred("canal.statistics.federated:prepare"),
    worst_case=Deferred("canal.statistics.worst_case:worst_case"),
)
