"""The tables of patients in `docs/attacks.md`, from what the cells say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from canal.attacks.roc import Roc, allowed_auc, allowed_tpr
from canal.experiments.markdown import row, table
from canal.release.digits import upwards

WHO = {"canaries": "canaries", "ordinary": "ordinary patients"}
Cells = Sequence[dict[str, Any]]


def markdown(cells: Cells) -> str:
    """A table for each kind of release: one row for each arm and kind of patient.

    Args:
        cells: results of `FeaturesCell` and `RoundsCell`, of any data sets and seeds.
    """
    kinds = ("networks", "lesson")
    chosen = [[cell for cell in cells if kind in cell["cell"]] for kind in kinds]
    return "\n".join(_table(made) for made in chosen if made)


def _table(cells: Cells) -> str:
    arms: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        arms.setdefault(cell["cell"]["arm"]["name"], []).append(cell)
    columns: list[tuple[str, Callable[[Cells, str], str]]] = [
        ("release", lambda arm, who: str(arm[0]["cell"]["arm"]["name"])),
        ("patient's eps", lambda arm, who: _epsilon(arm)),
        ("who", lambda arm, who: WHO[who]),
    ]
    data_sets = dict.fromkeys(map(_data_set, cells))
    columns += [(f"{name}: AUC", partial(_area, name)) for name in data_sets]
    if "played" in cells[0]["canaries"]:
        columns.append(("all, replayed", lambda arm, who: _areas([c[who]["played"] for c in arm])))
        columns.append(("others known", _others_known))
    columns += [
        ("AUC allowed", lambda arm, who: _allowed_auc(arm)),
        ("TPR at 1 % FPR", lambda arm, who: _found(arm, who, 0.01)),
        ("allowed", lambda arm, who: _allowed(arm, 0.01)),
        ("TPR at 0.1 % FPR", lambda arm, who: _found(arm, who, 0.001)),
        ("allowed", lambda arm, who: _allowed(arm, 0.001)),
    ]
    lines = [row([show(arm, who) for _, show in columns]) for arm in arms.values() for who in WHO]
    return table([head for head, _ in columns], lines)


def _data_set(cell: dict[str, Any]) -> str:
    inner = cell["cell"]
    scene = inner["networks"]["scene"] if "networks" in inner else inner["scene"]
    return str(scene["data_set"])


def _area(name: str, arm: Cells, who: str) -> str:
    return _areas([cell[who] for cell in arm if _data_set(cell) == name])


def _areas(found: Cells) -> str:
    """Their mean, with the interval of that mean: seeds and data sets are independent."""
    if not found:
        return "–"
    mean = float(np.mean([each["auc"] for each in found]))
    low, high = (
        math.hypot(*(each["auc_interval"][end] - each["auc"] for each in found)) / len(found)
        for end in (0, 1)
    )
    return f"{mean:.3f} ({max(0.0, mean - low):.3f} to {min(1.0, mean + high):.3f})"


def _others_known(arm: Cells, who: str) -> str:
    return f"{np.mean([cell[who]['known'] for cell in arm]):.3f}"


def _found(arm: Cells, who: str, rate: float) -> str:
    """Of all data sets and seeds together: scores are logarithms of ratios, which can be compared.

    Of rounds, what was found in plays: a few releases cannot show so small a rate.
    """
    found = [cell[who] for cell in arm]
    if all("played" in each for each in found):
        shares = [each["played"]["tpr"].get(f"{rate:g}") for each in found]
        return "–" if None in shares else _share(*np.mean(shares, axis=0).tolist())
    roc = Roc.of(
        *(
            np.concatenate([each["scores"][side] for each in found])
            for side in ("members", "others")
        )
    )
    return _share(roc.tpr(rate), *roc.tpr_interval(rate)) if rate * len(roc.others) >= 1 else "–"


def _share(found: float, low: float, high: float) -> str:
    return f"{100 * found:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _epsilon(arm: Cells) -> str:
    """The largest over data sets and seeds; infinite without noise."""
    found = [cell["epsilon"] for cell in arm]
    return "∞" if None in found else f"{upwards(max(found), 4):g}"


def _allowed_auc(arm: Cells) -> str:
    """By the noise, for the data set and seed with the least of it."""
    found = [cell["mu"] for cell in arm]
    return "anything" if None in found else f"{upwards(allowed_auc(max(found)), 3):g}"


def _allowed(arm: Cells, rate: float) -> str:
    found = [cell["mu"] for cell in arm]
    if None in found:
        return "anything"
    return f"{upwards(100 * allowed_tpr(rate, max(found)), 3):g} %"
