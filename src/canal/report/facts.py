"""The same facts as the page has, as plain values for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from canal.privacy.units import UNITS
from canal.report.arms import Arm, Arms, main_release, release_order
from canal.report.attack import Attack
from canal.report.benefit import verdicts
from canal.report.costs import Training, epsilon_by_queries
from canal.report.headline import done
from canal.report.run import Network, Published, Run, names
from canal.report.scores import Difference
from canal.version import __version__


def facts(run: Run) -> dict[str, Any]:
    """Everything that the page says, without its pictures."""
    arms = Arms.of(run)
    called = names(run.releases)
    main, chosen = arms.main, main_release(run, arms)
    return {
        "software": f"canal {__version__}",
        "done": done(run),
        "headline": {
            "student": None if main is None else main.network.where,
            "release": None if chosen is None else chosen.where,
        },
        "arms": [_arm(arm, arms) for arm in arms.measured],
        "verdicts": list(verdicts(arms)),
        "unmeasured": [network.where for network in arms.unmeasured],
        "releases": [
            _release(each, called[each.where]) for each in sorted(run.releases, key=release_order)
        ],
        "epsilon_by_queries": []
        if chosen is None or chosen.plan.allocation == "none"
        else epsilon_by_queries(chosen, Training.of(main)),
        "attacks": [_attack(attack) for attack in run.attacks],
        "evidence": [asdict(evidence) for evidence in run.evidence],
        "networks": [_network(network) for network in run.networks],
        "commands": run.commands.splitlines(),
    }


def _arm(arm: Arm, arms: Arms) -> dict[str, Any]:
    alone = arms.alone(arm)
    found = None if alone is None or alone.network is arm.network else arm.less(alone)
    return {
        "name": arm.name,
        "folder": arm.network.where,
        "mode": arm.mode,
        "release": None if arm.published is None else arm.published.where,
        "images": arm.images,
        "dice": arm.dice,
        "dice_interval": list(arm.interval),
        "less_alone": None if found is None else _difference(found),
    }


def _difference(found: Difference) -> dict[str, Any]:
    return {
        "dice": found.mean,
        "interval": [found.low, found.high],
        "images": found.images,
        "verdict": found.verdict,
    }


def _release(published: Published, name: str) -> dict[str, Any]:
    noisy = published.plan.allocation != "none"
    return {
        "name": name,
        "folder": published.where,
        "digest": published.digest,
        "private": published.release.private,
        "stamp": published.stamp,
        "unit": published.plan.unit,
        "delta": published.plan.delta,
        "epsilon": {unit: published.epsilon(unit) for unit in UNITS},
        "epsilon_if_secret": {
            unit: published.epsilon_if_secret(unit) if noisy else None for unit in UNITS
        },
        "split": published.release.statement["split"],
    }


def _attack(attack: Attack) -> dict[str, Any]:
    return asdict(attack) | {
        "interval": list(attack.interval),
        "roc": [list(point) for point in attack.roc],
        "tpr": {f"{rate:g}": found for rate, found in attack.tpr.items()},
        "allowed_tpr": {f"{rate:g}": attack.allowed(rate) for rate in attack.tpr},
        "allowed_auc": attack.allowed_auc,
        "words": list(attack.words),
    }


def _network(network: Network) -> dict[str, Any]:
    return {
        "folder": network.where,
        "role": network.role,
        "initialisation": network.about.initialisation,
        "training": network.training,
    }
