"""CANAL: hospitals share what their segmentation models learned, without exposing a patient.

The whole story in functions, each the same that the command line calls: `load`, `initialise`,
`train_teacher`, `load_ensemble`, `create_release`, `Release`, `verify`, `train_student`. They are
loaded when first asked for; `import canal` waits for nothing.
"""

from typing import TYPE_CHECKING

from canal.lazy import lazily
from canal.version import __version__

if TYPE_CHECKING:
    from canal.data.load import load
    from canal.features.ensemble import load_ensemble
    from canal.features.plan import Plan
    from canal.features.queries import Queries
    from canal.features.release import create as create_release
    from canal.features.store import Release
    from canal.learning.networks import UNetArchitecture
    from canal.learning.settings import DistillSettings, TrainingSettings
    from canal.learning.teacher import initialise
    from canal.learning.teacher import train as train_teacher
    from canal.privacy.ledger import Ledger
    from canal.release.record import About
    from canal.release.verification import verify
    from canal.student import train as train_student

_HOME = {
    "About": "release.record",
    "DistillSettings": "learning.settings",
    "Ledger": "privacy.ledger",
    "Plan": "features.plan",
    "Queries": "features.queries",
    "Release": "features.store",
    "TrainingSettings": "learning.settings",
    "UNetArchitecture": "learning.networks",
    "create_release": "features.release:create",
    "initialise": "learning.teacher",
    "load": "data.load",
    "load_ensemble": "features.ensemble",
    "train_student": "student:train",
    "train_teacher": "learning.teacher:train",
    "verify": "release.verification",
}

__all__ = [
    "About",
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


__getattr__ = lazily(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
