"""Evidence that is no curve: inversions and audits, read back as tables with their words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canal.attacks import audit, individual, inversion
from canal.errors import DataError
from canal.release.digits import downwards, number, prose, upwards

CHECKS = ("Check", "Of", "Verdict", "False alarms", "Found")
REFUTED, FAILED = "refuted", "failed"
_VERDICTS = {True: "passed", False: FAILED, None: "cannot be told"}


@dataclass(frozen=True)
class Evidence:
    """What was found about one release.

    Args:
        where: its file, within the run.
        name: what was done.
        release: digest of the manifest.
        head: names of the columns.
        rows: of the table.
        words: what it means.
        checks: what was looked at, by `CHECKS`; those that failed come first.
    """

    where: str
    name: str
    release: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]
    checks: tuple[tuple[str, ...], ...] = ()


def read_evidence(path: Path, where: str) -> Evidence | None:
    """Read a file; None if it is neither an inversion nor an audit.

    Raises:
        DataError: it says that it is one, and is not; or it has figures of patients in it, which
            no page may show.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # somebody's file; an attack of ours is read, and refused, elsewhere
    stated = content.get("format") if isinstance(content, dict) else None
    if str(stated).startswith(individual.FAMILY):
        raise DataError(
            f"{path} has figures of patients without noise, which must not leave the hospital, and "
            "a report does; move it out of the run"
        )
    if str(stated).startswith(_AUDITS) and _tells_of_patients(content):
        raise DataError(
            f"{path} is an audit of an older version, with privacy losses of patients that have no "
            "noise and must not leave the hospital; delete it, or move it out of the run, and "
            "audit again"
        )
    if str(stated).startswith(_AUDITS) and stated != audit.FORMAT:
        raise DataError(
            f"{path} is an audit of another version ({stated}); what is stated in a folder was not "
            "tested there as it is now: audit again"
        )
    if stated not in _TABLES:
        return None
    name, head, rows = _TABLES[stated]
    try:
        return Evidence(
            where=where,
            name=name,
            release=str(content["release"]),
            head=head,
            rows=tuple(rows(content)),
            words=tuple(str(sentence) for sentence in content["words"]),
            checks=tuple(_checks(content["checks"])) if stated == audit.FORMAT else (),
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read ({error!r}); make it again") from error


def _tells_of_patients(content: dict[str, Any]) -> bool:
    """Whether it has more of real patients than whether the accounting covers them.

    Its words are what a page copies, so they are looked at as well.
    """
    canary = content.get("canary")
    return (canary is not None and not (isinstance(canary, dict) and canary.keys() <= _PUBLIC)) or (
        any(phrase in str(content.get("words")) for phrase in _FIGURES)
    )


def _pictures(content: dict[str, Any]) -> list[tuple[str, ...]]:
    low, high = (float(end) for end in content["ssim_gain_interval"])
    rows = [
        (words, f"{float(content[key]['ssim']):.3f}", f"{float(content[key]['psnr']):.1f} dB")
        for words, key in (
            ("Decoder", "decoder"),
            ("Mean image, which knows nothing", "mean_image"),
        )
    ]
    gain = f"{float(content['ssim_gain']):+.3f}"
    return [*rows, ("Decoder less mean image", f"{gain} ({low:+.3f} to {high:+.3f})", "")]


def _games(content: dict[str, Any]) -> list[tuple[str, ...]]:
    stated: list[tuple[str, ...]] = [
        (
            f"{each['unit']}, all {each['among']} {each['times']} of the folder",
            number(upwards(min(_promises(each), default=None))),
            _least(each["proven"]["epsilon"]),
            "",
            (REFUTED if each["refuted"] else "holds") if _promises(each) else "nothing promised",
        )
        for each in content["verdicts"]
    ]
    return stated + [
        (
            f"{game['unit']}, {game['what']}: as drawn",
            number(upwards(game["claimed"]["epsilon"])),
            _least(game["gaussian"]["epsilon"]),
            _least(game["clopper_pearson"]["epsilon"]),
            _verdict(game),
        )
        for game in content["games"]
    ]


def _promises(verdict: dict[str, Any]) -> list[float]:
    return [float(value) for value in verdict["stated"].values() if value is not None]


def _least(bound: float | None) -> str:
    """A lower bound, rounded down; nothing varied where there is no number."""
    return "unbounded" if bound is None else number(downwards(bound))


def _verdict(game: dict[str, Any]) -> str:
    if game["claimed"]["epsilon"] is None:
        return "nothing claimed"
    return REFUTED if game["refuted"] else "holds"


def _checks(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            str(check["what"]),
            "the folder" if check.get("folder") else "the code",
            _VERDICTS[check["passed"]],
            number(upwards(check["false_alarm"])) if check["false_alarm"] else "none",
            prose(str(check["detail"])),
        )
        for check in sorted(found, key=lambda check: check["passed"] is not False)
    ]


# What an audit says of real patients, and how older ones began to tell their figures.
_AUDITS = audit.FORMAT.partition("/")[0]
_PUBLIC = {"allowed", "holds", "words"}
_FIGURES = ("the one that moved this release most", "Trained with and without one patient")
Rows = Callable[[dict[str, Any]], list[tuple[str, ...]]]
_TABLES: dict[str, tuple[str, tuple[str, ...], Rows]] = {
    inversion.FORMAT: ("Feature inversion", ("Picture", "SSIM", "PSNR"), _pictures),
    audit.FORMAT: (
        "Audit",
        ("Whom it is about", "ε stated", "proven, at least", "by counting alone", "Verdict"),
        _games,
    ),
}
