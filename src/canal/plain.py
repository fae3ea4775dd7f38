"""Dataclasses as plain values, under which results are filed."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


def later(**metadata: Any) -> dict[str, Any]:
    """Metadata of a field that came when there were results already."""
    return {**metadata, "later": True}


def plain(value: Any) -> Any:
    """What determines a result: all fields, but for those that came later and are at their default.

    So a setting that nobody had when a result was made does not change what it is filed under.

    >>> from dataclasses import dataclass, field
    >>> @dataclass
    ... class Settings:
    ...     steps: int = 10
    ...     deform: float = field(default=0.0, metadata=later())
    >>> plain(Settings()), plain(Settings(deform=1.0))
    ({'steps': 10}, {'steps': 10, 'deform': 1.0})
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: plain(getattr(value, each.name))
            for each in fields(value)
            if not (each.metadata.get("later") and getattr(value, each.name) == _default(each))
        }
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()
