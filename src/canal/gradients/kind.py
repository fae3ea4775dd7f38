"""Gradient releases, for `canal.release.registry`."""

from canal.lazy import Deferred
from canal.release.registry import ReleaseKind

KIND = ReleaseKind(
    name="adapters",
    wording=Deferred("canal.gradients.statement:wording"),
    open=Deferred("canal.gradients.store:AdapterRelease"),
    derive=Deferred("canal.gradients.verification:derive"),
    noise_looks=Deferred("canal.gradients.verification:noise_looks"),
    alike=Deferred("canal.gradients.verification:alike"),
    recompute=Deferred("canal.gradients.verification:recompute"),
    not_recomputed=Deferred("canal.gradients.verification:not_recomputed"),
    card=Deferred("canal.gradients.statement:card"),
    spec_from_json=Deferred("canal.gradients.mechanism:GradientSpec.from_json"),
    introduce=Deferred("canal.gradients.site:introduce"),
    claim=Deferred("canal.gradients.site:claim"),
    at_site=Deferred("canal.gradients.site:GradientSite"),
    job=Deferred("canal.gradients.job:prepare"),
    needs=("queries", "init"),
    worst_case=Deferred("canal.gradients.worst_case:worst_case"),
)
