"""Flags of a command, generated from the dataclasses that its choices are of.

The help of a flag is what the dataclass says of the field: its `help` metadata, or its entry under
`Args:` in the docstring. A flag that is not given leaves the field to its default.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from canal.learning.settings import SECTIONS, read_settings

Command = Callable[..., None]


@dataclass(frozen=True)
class Flags:
    """Flags for some fields of a dataclass.

    Args:
        of: the dataclass.
        names: its fields; all of them, if none is named.
        panel: heading under which the flags are listed.
        named: by field, the flag, where it is not the field's own name.
        defaults: by field, what holds where the flag is not given, and the field's default does
            not; empty: said elsewhere.
    """

    of: type
    names: tuple[str, ...] = ()
    panel: str | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """An annotation for every flag, by the name of the field."""
        hints, said = get_type_hints(self.of), documented(self.of)
        made = {}
        for each in fields(self.of):
            if self.names and each.name not in self.names:
                continue
            words = str(each.metadata.get("help") or said.get(each.name, ""))
            default = self.defaults.get(each.name, _shown(each.default))
            option = typer.Option(
                *([self.named[each.name]] if each.name in self.named else ()),
                help=f"{words.rstrip('.')}. Default: {default}." if default else words,
                rich_help_panel=self.panel,
            )
            made[each.name] = Annotated[_kind(hints[each.name]) | None, option]
        return made


def documented(cls: type) -> dict[str, str]:
    """What the docstring of a dataclass says of its fields, under `Args:`, as plain text."""
    _, _, text = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")
    entries = re.split(r"^ {4}(?=\w+: )", text, flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        name, _, words = entry.partition(": ")
        plain = " ".join(words.split("\n\n")[0].split()).replace("`", "")
        found[name] = plain[:1].upper() + plain[1:]
    return found


def with_flags(**groups: Flags) -> Callable[[Command], Command]:
    """Give a command the flags of some dataclasses.

    Args:
        groups: by a parameter of the command, which gets the fields that were given.
    """

    def decorate(command: Command) -> Command:
        options = {name: flags.options() for name, flags in groups.items()}
        every = [(name, kind) for found in options.values() for name, kind in found.items()]

        def run(**given: Any) -> None:
            chosen = {
                group: {name: given.pop(name) for name in found} for group, found in options.items()
            }
            command(
                **given,
                **{
                    group: {name: value for name, value in found.items() if _given(value)}
                    for group, found in chosen.items()
                },
            )

        return _like(run, command, set(groups), every)

    return decorate


def with_settings(*sections: str) -> Callable[[Command], Command]:
    """Give a command that takes `settings` one flag for every key of these sections.

    The flags win over the file of `--config`, which wins over the defaults.
    """

    def decorate(command: Command) -> Command:
        config = Annotated[
            Path | None, typer.Option(help="A TOML file with any of these settings.")
        ]
        options: dict[str, Any] = {"config": config}
        for section in sections:
            options |= Flags(SECTIONS[section], panel=section).options()

        def run(**given: Any) -> None:
            flags = {name: given.pop(name) for name in options}
            command(**given, settings=read_settings(flags.pop("config"), flags))

        return _like(run, command, {"settings"}, list(options.items()))

    return decorate


def _like(
    run: Callable[..., None],
    command: Command,
    without: set[str],
    options: list[tuple[str, Any]],
) -> Command:
    """Show typer the signature of a command, with options in place of some parameters."""
    own = inspect.signature(command, eval_str=True)
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in own.parameters.values()
        if each.name not in without
    ]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in options
    ]
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _kind(hint: Any) -> Any:
    """The type of a flag: of a tuple of words, one flag for each."""
    if get_origin(hint) is tuple and get_args(hint)[-1] is ...:
        return list[get_args(hint)[0]]  # type: ignore[misc]
    left = [kind for kind in get_args(hint) if kind is not type(None)]
    return left[0] if type(None) in get_args(hint) and len(left) == 1 else hint


def _shown(default: Any) -> str:
    return str(default) if isinstance(default, str | int | float) else ""


def _given(value: Any) -> bool:
    return value is not None and value != []
