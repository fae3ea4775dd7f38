"""Flags that ask for a plan or describe a release, the same wherever they are asked for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from canal.cli.flags import Flags
from canal.features.plan import Plan

_PANEL, _CARD = "plan", "card"


def _option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_PANEL)


Epsilon = Annotated[float, _option("What the release may cost the chosen unit.")]
Delta = Annotated[float, _option("Delta of the same guarantee.")]
Preset = Annotated[
    Literal["honest", "paper"],
    _option("honest: protects a patient. paper: the paper's accounting."),
]
Shares = Annotated[
    tuple[float, float, float], _option("Budget shares of caps, importance and release.")
]
Purpose = Annotated[
    str, typer.Option(help="What the release is for; the card says it.", rich_help_panel=_CARD)
]
Contact = Annotated[
    str, typer.Option(help="Who answers questions; the card says it.", rich_help_panel=_CARD)
]
SHARES = (0.10, 0.05, 0.85)
_PRESETS = "the preset's"


def feature_plan(*more: str, **named: str) -> Flags:
    """Flags for the choices of a feature release.

    Args:
        more: fields of a `Plan` beside those that are always asked for.
        named: by field, the flag, where it is not the field's own name.
    """
    always = ("released", "unit", "conversion", "nonnegative", "caps_source", "importance_source")
    chosen = dict.fromkeys((*always[1:], "weight"), _PRESETS)
    return Flags(
        Plan,
        (*always, "caps_bound", *more),
        panel=_PANEL,
        named={"nonnegative": "--nonnegative/--signed"} | named,
        defaults=chosen | {"released": "a tenth of them", "caps_bound": "sqrt(C*H*W)"},
    )
