"""The feature release: clipped teacher features on public queries, summed, noised once, stored."""

from typing import TYPE_CHECKING

from canal.lazy import lazily

if TYPE_CHECKING:
    from canal.features.ensemble import Ensemble, Teacher, load_ensemble
    from canal.features.per_iteration import PerIterationRelease
    from canal.features.plan import Plan
    from canal.features.queries import Queries
    from canal.features.release import create
    from canal.features.store import Release

# Loaded when first asked for: a plan does not wait for torch.
_HOME = {
    "Ensemble": "ensemble",
    "PerIterationRelease": "per_iteration",
    "Plan": "plan",
    "Queries": "queries",
    "Release": "store",
    "Teacher": "ensemble",
    "create": "release",
    "load_ensemble": "ensemble",
}

__all__ = [
    "Ensemble",
    "PerIterationRelease",
    "Plan",
    "Queries",
    "Release",
    "Teacher",
    "create",
    "load_ensemble",
]

__getattr__ = lazily(__name__, _HOME)
