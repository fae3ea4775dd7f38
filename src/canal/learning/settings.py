"""Settings: one typed TOML file, every key also a flag, unknown keys refused with a suggestion.

```toml
[data]
size = 64

[model]
base_channels = 16

[training]
steps = 1500
```
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from canal.data.case import ACCEPTABLE, check_accepted
from canal.errors import ConfigurationError, InvalidValueError
from canal.plain import later

# There an image of 64 px in seven is folded over somewhere (of 800); at 1, one in four hundred.
MOST_DEFORM = 1.5


def _setting(default: Any, help: str, *, recent: bool = False) -> Any:  # noqa: A002  # as typer says
    about = {"help": help}
    return field(default=default, metadata=later(**about) if recent else about)


@dataclass(frozen=True)
class DataSettings:
    """The reading of images."""

    size: int = _setting(64, "Pixels a side; images are resized to squares (or cubes).")
    channels: int = _setting(0, "3 for colour, 1 for grey; 0 finds out.")
    keep_healthy: bool = _setting(True, "Keep cases that are known to show no lesion.")
    accept: tuple[str, ...] = _setting(
        (), f"Take what `canal data check` finds under this name: {', '.join(ACCEPTABLE)}."
    )

    def __post_init__(self) -> None:
        check_accepted(self.accept)
        if self.size < 1 or self.channels < 0:
            raise InvalidValueError(
                f"size = {self.size!r} must be at least 1, channels = {self.channels!r} at least 0"
            )


@dataclass(frozen=True)
class ModelSettings:
    """The network."""

    base_channels: int = _setting(16, "Channels of the first level; the bottleneck has 16 x them.")
    norm: Literal["instance", "group"] = _setting("instance", "Normalisation; never over a batch.")


@dataclass(frozen=True)
class TrainingSettings:
    """The length and the speed of a training."""

    steps: int = _setting(1500, "Optimisation steps.")
    batch_size: int = _setting(16, "Images a step.")
    learning_rate: float = _setting(2e-3, "Peak of the one-cycle schedule.")
    weight_decay: float = _setting(1e-2, "Of AdamW.")
    augment: bool = _setting(True, "Flips, quarter turns and changes of intensity.")
    save_every: int = _setting(100, "Steps between states to resume from, and between metrics.")
    seed: int = _setting(0, "Of the order of images and their augmentation.")
    deform: float = _setting(
        0.0,
        "Strength of turns, stretches, bends and noise beside that; 1 suits few images.",
        recent=True,
    )

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "save_every"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} = {getattr(self, name)!r} must be at least 1")
        if not 0 < self.learning_rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise InvalidValueError("learning_rate must be above 0 and weight_decay at least 0")
        if not 0 <= self.deform <= MOST_DEFORM:
            raise InvalidValueError(
                f"deform = {self.deform!r} must lie between 0 and {MOST_DEFORM:g}"
            )


@dataclass(frozen=True)
class DistillSettings:
    """A student's loss beside its labels. All knobs are free; the paper uses none of the last."""

    feature_weight: float = _setting(0.1, "Weight of the feature loss beside the supervised one.")
    schedule: Literal["constant", "decay"] = _setting(
        "constant", "Of the feature weight over training."
    )
    channel_weight: Literal["equal", "precision"] = _setting(
        "equal", "precision: by 1/(sigma² + signal) of each channel."
    )
    wiener: bool = _setting(False, "Shrink targets by what is known of signal and noise.")
    frequencies: int = _setting(0, "Lowest spatial frequencies to keep along each axis; 0: all.")

    def __post_init__(self) -> None:
        if not 0 <= self.feature_weight < math.inf:
            raise InvalidValueError(
                f"feature_weight = {self.feature_weight!r} must be at least 0 and finite"
            )


@dataclass(frozen=True)
class Settings:
    """Everything that `canal.toml` may say."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    distill: DistillSettings = field(default_factory=DistillSettings)

    def to_toml(self) -> str:
        """The resolved settings, to be read again by `read_settings`."""
        lines = []
        for section, values in asdict(self).items():
            lines += [f"[{section}]", *(f"{name} = {_toml(v)}" for name, v in values.items()), ""]
        return "\n".join(lines)


SECTIONS: dict[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "distill": DistillSettings,
}


def read_settings(path: Path | None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Defaults, then the file, then what was said on the command line.

    Args:
        path: of a TOML file; None for none.
        flags: by key, without their section; None and empty lists were not given.
    """
    settings = Settings()
    for section, values in _tables(path).items():
        _check_keys(f"{path}: [{section}]", values, [f.name for f in fields(SECTIONS[section])])
        settings = _with(settings, section, values, f"{path}: [{section}]")
    for section, kind in SECTIONS.items():
        names = [f.name for f in fields(kind)]
        said = {n: v for n, v in (flags or {}).items() if n in names and v not in (None, [])}
        settings = _with(settings, section, said, "the command line")
    return settings


def _tables(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    _check_keys(f"{path}:", tables, list(SECTIONS))
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(f"{path}: {name} must be a section, [{name}]")
    return tables


def _check_keys(where: str, given: Mapping[str, Any], known: list[str]) -> None:
    for key in given:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise ConfigurationError(f"{where} unknown key {key!r}; {hint}")


def _with(settings: Settings, section: str, values: Mapping[str, Any], where: str) -> Settings:
    hints = get_type_hints(SECTIONS[section])
    typed = {}
    for name, value in values.items():
        kind = hints[name]
        if get_origin(kind) is tuple:
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                raise ConfigurationError(f"{where} {name} = {value!r} must be a list of names")
            typed[name] = tuple(value)
            continue
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        allowed = get_args(kind)
        fits = value in allowed if allowed else type(value) is kind
        if not fits:
            wanted = " or ".join(map(str, allowed)) if allowed else kind.__name__
            raise ConfigurationError(f"{where} {name} = {value!r} must be {wanted}")
        typed[name] = value
    return replace(settings, **{section: replace(getattr(settings, section), **typed)})


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
