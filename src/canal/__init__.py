"""CANAL: hospitals share what their segmentation models learned, without exposing a patient.

The whole story in functions, each the same that the command line calls: `load`, `initialise`,
`train_teacher`, `load_ensemble`, `create_release`, `Release`, `verify`, `train_student`. They are
loaded when first asked for; `import canal` waits for nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from canal.version import __version__

if TYPE_CHECKING:
    from canal.data.load import load
    from canal.distill.run import train as train_student
    from canal.models.unet import UNetArchitecture
    from canal.privacy.ledger import Ledger
    from canal.release.aggregator import create as create_release
    from canal.release.ensemble import load_ensemble
    from canal.release.plan import Plan
    from canal.release.queries import Queries
    from canal.release.store import Release
    from canal.release.verification import verify
    from canal.teachers.run import initialise
    from canal.teachers.run import train as train_teacher
    from canal.teachers.settings import DistillSettings, TrainingSettings

_HOME = {
    "DistillSettings": ("teachers.settings", "DistillSettings"),
    "Ledger": ("privacy.ledger", "Ledger"),
    "Plan": ("release.plan", "Plan"),
    "Queries": ("release.queries", "Queries"),
    "Release": ("release.store", "Release"),
    "TrainingSettings": ("teachers.settings", "TrainingSettings"),
    "UNetArchitecture": ("models.unet", "UNetArchitecture"),
    "create_release": ("release.aggregator", "create"),
    "initialise": ("teachers.run", "initialise"),
    "load": ("data.load", "load"),
    "load_ensemble": ("release.ensemble", "load_ensemble"),
    "train_student": ("distill.run", "train"),
    "train_teacher": ("teachers.run", "train"),
    "verify": ("release.verification", "verify"),
}

__all__ = [
    "DistillSettings",
    "Ledger",
    "Plan",
    "Queries",
    "Release",
    "TrainingSettings",
    "UNetArchitecture",
    "__version__",
    "create_release",
    "initialise",
    "load",
    "load_ensemble",
    "train_student",
    "train_teacher",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, thing = _HOME[name]
    return getattr(import_module(f"{__name__}.{module}"), thing)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
