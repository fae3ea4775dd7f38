"""Feature releases, for `canal.release.registry`."""

from canal.lazy import Deferred
from canal.release.registry import ReleaseKind

KIND = ReleaseKind(
    name="features",
    wording=Deferred("canal.features.statement:wording"),
    open=Deferred("canal.features.store:Release"),
    derive=Deferred("canal.features.verification:derive"),
    noise_looks=Deferred("canal.features.verification:noise_looks"),
    alike=Deferred("canal.features.verification:alike"),
    recompute=Deferred("canal.features.verification:recompute"),
    not_recomputed=Deferred("canal.features.verification:not_recomputed"),
    card=Deferred("canal.features.statement:card"),
    spec_from_json=Deferred("canal.features.mechanism:FeatureSpec.from_json"),
    introduce=Deferred("canal.features.site:introduce"),
    claim=Deferred("canal.features.site:claim"),
    at_site=Deferred("canal.features.site:FeatureSite"),
    job=Deferred("canal.features.job:prepare"),
    needs=("queries", "init"),
    worst_case=Deferred("canal.features.worst_case:worst_case"),
)
