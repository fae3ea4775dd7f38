"""Every setting also a flag: typed dataclasses become options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from canal.learning.settings import SECTIONS, read_settings


def with_settings(*sections: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes `settings` one option for every key of these sections.

    The flags win over the file of `--config`, which wins over the defaults.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        parameters = [p for p in own.parameters.values() if p.name != "settings"]
        config = Annotated[
            Path | None, typer.Option(help="A TOML file with any of these settings.")
        ]
        options: dict[str, Any] = {"config": config}
        for section in sections:
            hints = get_type_hints(SECTIONS[section])
            for field in fields(SECTIONS[section]):
                kind, text = hints[field.name], str(field.metadata["help"])
                if get_origin(kind) is tuple:  # once for each
                    kind = list[str]
                else:
                    text += f" Default: {field.default}."
                options[field.name] = Annotated[
                    kind | None, typer.Option(help=text, rich_help_panel=section)
                ]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in options.items()
        ]

        def run(**given: Any) -> None:
            flags = {name: given.pop(name) for name in options}
            command(**given, settings=read_settings(flags.pop("config"), flags))

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate
