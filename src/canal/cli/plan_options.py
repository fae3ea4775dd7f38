"""Options that ask for a plan, the same wherever one is asked for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from canal.privacy.budget import Source
from canal.privacy.gaussian import Conversion

_PANEL, _CARD = "plan", "card"


def _option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=_PANEL)


Epsilon = Annotated[float, _option("What the release may cost the chosen unit.")]
Delta = Annotated[float, _option("Delta of the same guarantee.")]
Preset = Annotated[
    Literal["honest", "paper"],
    _option("honest: protects a patient. paper: the paper's accounting."),
]
Released = Annotated[int | None, _option("M: channels to publish; a tenth of them if not given.")]
ChosenUnit = Annotated[
    Literal["patient", "image", "paper"] | None,
    _option("Whose epsilon it is; the preset's if not given."),
]
ChosenConversion = Annotated[
    Conversion | None, _option("Between epsilon and rho; the preset's if not given.")
]
Nonnegative = Annotated[
    bool | None,
    _option("Clamp features to be non-negative, or not.", "--nonnegative/--signed"),
]
CapsSource = Annotated[Source | None, _option("Caps from private or public data.")]
ImportanceSource = Annotated[Source | None, _option("Importance from private or public data.")]
Shares = Annotated[
    tuple[float, float, float], _option("Budget shares of caps, importance and release.")
]
CapsBound = Annotated[
    float | None, _option("B: bound on the norm of one image's channel norms; sqrt(C*H*W).")
]
Relation = Annotated[
    Literal["add-remove", "replace"],
    _option("Whose epsilon: of a patient who is added or removed, or who is replaced."),
]
Purpose = Annotated[
    str, typer.Option(help="What the release is for; the card says it.", rich_help_panel=_CARD)
]
Contact = Annotated[
    str, typer.Option(help="Who answers questions; the card says it.", rich_help_panel=_CARD)
]
SHARES = (0.10, 0.05, 0.85)
