"""The tables of `docs/attacks.md`, from what the cells say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from canal.attacks.roc import allowed_auc
from canal.experiments.markdown import row, table
from canal.release.digits import upwards


def markdown(cells: list[dict[str, Any]]) -> str:
    """The tables of `docs/attacks.md`: means over seeds, with 95 % intervals (Student's t).

    Args:
        cells: results of `AttackCell`, of all arms and any number of seeds.
    """
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        by_arm.setdefault(cell["cell"]["arm"]["name"], []).append(cell)
    images = [
        ("release", lambda arm: arm[0]["cell"]["arm"]["name"]),
        ("two queries apart", lambda arm: f"{_over((cell['apart'] for cell in arm), 2)} σ"),
        ("AUC", lambda arm: _over(cell["images"]["auc"] for cell in arm)),
        ("found at 1 %", lambda arm: _found(arm, "images", "0.01")),
        ("AUC allowed", lambda arm: _allowed([cell["images"] for cell in arm])),
        ("SSIM", lambda arm: _over(cell["inversion"]["decoder"]["ssim"] for cell in arm)),
        ("above the mean image", lambda arm: _over(_gains(arm), signed=True)),
        ("PSNR", lambda arm: f"{_over(_psnr(arm, 'decoder'), 1)} dB"),
        ("the mean image's", lambda arm: f"{_over(_psnr(arm, 'mean_image'), 1)} dB"),
    ]
    patients = [
        ("release", lambda arm: arm[0]["cell"]["arm"]["name"]),
        ("a patient's eps", lambda arm: _short([cell["epsilon_patient"] for cell in arm])),
        ("best attack on a canary", lambda arm: _over(_best(arm))),
        ("AUC allowed", lambda arm: _allowed([cell["patients"] for cell in arm])),
    ]
    return "\n".join(
        table(
            [head for head, _ in columns],
            [row([show(arm) for _, show in columns]) for arm in by_arm.values()],
        )
        for columns in (images, patients)
    )


def _gains(arm: list[dict[str, Any]]) -> list[float]:
    return [cell["inversion"]["ssim_gain"] for cell in arm]


def _psnr(arm: list[dict[str, Any]], whose: str) -> list[float]:
    return [cell["inversion"][whose]["psnr"] for cell in arm]


def _best(arm: list[dict[str, Any]]) -> list[float]:
    """Of every seed, what no attack on its most visible canary can beat."""
    return [
        max(allowed_auc(math.inf if one["mu"] is None else one["mu"]) for one in cell["canaries"])
        for cell in arm
    ]


def _found(arm: list[dict[str, Any]], attack: str, rate: str) -> str:
    """Members found, in hundredths; nothing where there are too few others to tell."""
    found = [cell[attack]["tpr"].get(rate) for cell in arm]
    return "–" if None in found else f"{_over((100 * share for share in found), 1)} %"


def _over(values: Iterable[float], digits: int = 3, *, signed: bool = False) -> str:
    """The mean over seeds and, where they differ, its 95 % interval."""
    found = np.array(list(values))
    if found.mean() >= 1000:
        return f"{found.mean():,.0f}"
    shown = f"{found.mean():{'+' if signed else ''}.{digits}f}"
    if np.ptp(found) < 10.0**-digits / 2:
        return shown
    from scipy.stats import t  # type: ignore[import-untyped]

    wide = float(t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found)))
    return f"{shown} ± {wide:.{digits}f}"


def _short(epsilons: Sequence[float | None]) -> str:
    """The largest over seeds; infinite without noise."""
    known = [value for value in epsilons if value is not None]
    return f"{upwards(max(known), 4):g}" if len(known) == len(epsilons) else "∞"


def _allowed(attacks: Sequence[dict[str, Any]]) -> str:
    """The most that any seed's noise lets an attack have."""
    found = [attack["allowed"] for attack in attacks]
    if None in found:
        return "anything"
    return f"{upwards(max(allowed_auc(each['mu']) for each in found), 3):g}"
