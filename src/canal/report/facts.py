"""The same facts as the page has, as plain values for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from canal.report.arms import Arm, Arms, main_features, main_release, release_order
from canal.report.attack import Attack
from canal.report.benefit import verdicts
from canal.report.costs import Training, epsilon_by_queries
from canal.report.headline import done
from canal.report.published import Published, names
from canal.report.run import Network, Run
from canal.report.scores import Difference
from canal.version import __version__


def facts(run: Run) -> dict[str, Any]:
    """Everything that the page says, without its pictures."""
    arms = Arms.of(run)
    called = names(run.releases)
    main, chosen, features = arms.main, main_release(run, arms), main_features(run, arms)
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
        if features is None or not features.noisy
        else epsilon_by_queries(features, Training.of(main)),
        "epsilon_by_rounds": {
            each.where: each.release.statement["epsilon_by_rounds"] for each in run.adapters
        },
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
    return {
        "name": name,
        "kind": published.release.manifest.kind,
        "folder": published.where,
        "digest": published.digest,
        "private": published.release.private,
        "stamp": published.stamp,
        "unit": published.plan.unit,
        "delta": published.plan.delta,
        "epsilon": {unit: published.epsilon(unit) for unit in published.units},
        "epsilon_if_secret": {
            unit: published.epsilon_if_secret(unit) if published.noisy else None
            for unit in published.units
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
