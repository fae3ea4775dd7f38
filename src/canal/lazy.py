"""Names that are there at once, and loaded when they are first asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its `__name__`.
        homes: by name, the module below it that has it; `module:other` where it is called otherwise
            there.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, other = homes[name].partition(":")
        return getattr(import_module(f"{package}.{module}"), other or name)

    return find


@dataclass(frozen=True)
class Deferred:
    """A function that is imported by its first call.

    Args:
        home: `module:function`, or `module:Class.method`.
    """

    home: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Import the function, and call it."""
        return self.function(*arguments, **named)

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        module, _, name = self.home.partition(":")
        found: Callable[..., Any] = attrgetter(name)(import_module(module))
        return found
