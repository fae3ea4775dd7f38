"""Where noise came from, as a statement says it, and whether that protects anybody."""

from __future__ import annotations

from canal.errors import ReleaseError
from canal.privacy.randomness import SAMPLER, Secret
from canal.release.registry import AnyPlan

NO_NOISE = "none"


def noise_source(plan: AnyPlan, *, private: bool) -> str:
    """What a statement says about where the noise came from."""
    if plan.allocation == "none":
        return NO_NOISE
    source = Secret(b"x" * 32, private=private).source
    return f"a share of every site, each: {source}" if plan.trust == "secure-sum" else source


def check_noise(plan: AnyPlan, source: str, sampler: str) -> bool:
    """Refuse noise of unknown origin; say whether what is known of it protects anybody."""
    known = {noise_source(plan, private=private): private for private in (False, True)}
    if source not in known or sampler != SAMPLER.decode():
        raise ReleaseError(f"noise of the source {source!r}, sampler {sampler!r}, is not ours")
    return known[source] and plan.allocation != "none"
