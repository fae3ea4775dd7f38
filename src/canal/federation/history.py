"""What a site took part in, and what it paid: for the people of that site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from canal.federation.journal import sessions
from canal.federation.settings import SiteSettings
from canal.privacy.ledger import Ledger, balances
from canal.privacy.units import RELATIONS


def history(folder: Path) -> dict[str, Any]:
    """Every session of a site's folder, and the balances of its ledger, as plain values."""
    settings = SiteSettings.read(folder)
    told = []
    for journal in sessions(settings.sessions):
        agreed = journal.agreed
        if agreed is None:
            continue
        # An earlier version wrote `agreement`; what a site took part in stays to be seen.
        spec = agreed["spec"] if "spec" in agreed else agreed["agreement"]
        plan = spec["plan"]
        told.append(
            {
                "kind": agreed["kind"],
                "session": agreed["session"],
                "state": "under way" if journal.finished is None else "finished",
                "manifest": journal.finished,
                # How often a site is asked: once a round, about every query, or once.
                "times": plan.get("rounds") or len(spec.get("queries", [agreed])),
                "sites": spec["cohorts"],
                "trust": plan["trust"],
                "colluding": plan["colluding"],
                "epsilon": plan["epsilon"],
                "unit": RELATIONS[plan["relation"]] if "relation" in plan else plan["unit"],
            }
        )
    path = settings.path(settings.ledger)
    kept = balances(Ledger(path, must_exist=True).rows()) if path.is_file() else []
    ledger = [
        {
            "cohort": balance.cohort,
            "unit": balance.unit,
            "budget": balance.epsilon_budget,
            "spent": balance.epsilon_spent,
        }
        for balance in kept
    ]
    return {"name": settings.name, "sessions": told, "ledger": ledger}
