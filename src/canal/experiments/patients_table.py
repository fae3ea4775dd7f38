"""The table of patients in `docs/attacks.md`, from what the cells say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from canal.attacks.roc import Roc, allowed_auc, allowed_by, allowed_tpr
from canal.experiments.markdown import row, table
from canal.release.digits import upwards

WHO = {"canaries": "canaries", "ordinary": "ordinary patients"}


def markdown(cells: Sequence[dict[str, Any]]) -> str:
    """One row for each release and kind of patient, over all data sets.

    Args:
        cells: results of `FeaturesCell` and `RoundsCell`.
    """
    parts = []
    for title, chosen in (
        ("Features", [cell for cell in cells if "networks" in cell["cell"]]),
        ("Gradient rounds", [cell for cell in cells if "lesson" in cell["cell"]]),
    ):
        if chosen:
            parts.append(_table(title, chosen))
    return "\n".join(parts)


def _table(title: str, cells: Sequence[dict[str, Any]]) -> str:
    arms: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        arms.setdefault(cell["cell"]["arm"]["name"], []).append(cell)
    data_sets = [_data_set(cell) for cell in next(iter(arms.values()))]
    rounds = "played" in cells[0]["canaries"]
    heads = [title, "a patient's eps", "looked for", *(f"{name}: AUC" for name in data_sets)]
    heads += ["found at 1 %", "at 0.1 %", "(eps, delta) allows", "the noise allows", "its AUC"]
    if rounds:
        heads[3 + len(data_sets) : 3 + len(data_sets)] = ["who knows all others"]
    lines = []
    for name, made in arms.items():
        for who, said in WHO.items():
            found = [cell[who] for cell in made]
            cells_of = [name, _epsilon(made), said]
            cells_of += [_area(each) for each in found]
            if rounds:
                cells_of.append(f"{np.mean([each['known'] for each in found]):.3f}")
            cells_of += [_found(found, rate) for rate in (0.01, 0.001)]
            lines.append(row([*cells_of, *_allowed(made)]))
    return table(heads, lines)


def _data_set(cell: dict[str, Any]) -> str:
    inner = cell["cell"]
    scene = inner["networks"]["scene"] if "networks" in inner else inner["scene"]
    return str(scene["data_set"])


def _area(found: dict[str, Any]) -> str:
    low, high = found["auc_interval"]
    return f"{found['auc']:.3f} ({low:.2f} to {high:.2f})"


def _found(found: Sequence[dict[str, Any]], rate: float) -> str:
    """Of all data sets together: scores are logarithms of ratios, which can be compared.

    Of rounds, what was found in plays: a few releases cannot show so small a rate.
    """
    if all("played" in each for each in found):
        shares = np.mean([each["played"]["tpr"][f"{rate:g}"] for each in found], axis=0)
        return _share(*shares)
    roc = Roc.of(
        *(
            np.concatenate([each["scores"][side] for each in found])
            for side in ("members", "others")
        )
    )
    if rate * len(roc.others) < 1:
        return "–"
    return _share(roc.tpr(rate), *roc.tpr_interval(rate))


def _share(found: float, low: float, high: float) -> str:
    return f"{100 * found:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _epsilon(cells: Sequence[dict[str, Any]]) -> str:
    """The largest over data sets; infinite without noise."""
    found = [cell["epsilon"] for cell in cells]
    return "∞" if None in found else f"{upwards(max(found), 4):g}"


def _allowed(cells: Sequence[dict[str, Any]]) -> list[str]:
    """What (eps, delta) and the noise let anybody find at 1 % and 0.1 %, and the largest area."""
    cell = max(cells, key=lambda each: each["epsilon"] or np.inf)
    epsilon, mu, delta = cell["epsilon"], cell["mu"], cell["delta"]
    if epsilon is None:
        return ["anything", "anything", "1"]
    by_dp = [allowed_by(rate, epsilon, delta) for rate in (0.01, 0.001)]
    by_noise = [allowed_tpr(rate, mu) for rate in (0.01, 0.001)]
    shown = [" / ".join(f"{upwards(100 * v, 3):g}" for v in pair) for pair in (by_dp, by_noise)]
    return [*(f"{each} %" for each in shown), f"{upwards(allowed_auc(mu), 3):g}"]
