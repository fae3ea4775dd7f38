"""What tests of statistics share."""

import itertools

import pytest

from canal.statistics.plan import StatisticsPlan
from canal.statistics.release import create
from voters import Place, cohorts


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Places for releases, each with a ledger that has a budget."""
    numbers = itertools.count()

    def make():
        place = Place(tmp_path / f"place {next(numbers)}")
        monkeypatch.setenv("CANAL_KEYS", str(place.memory))
        return place

    return make


@pytest.fixture
def make_release():
    """Publish statistics of three small cohorts."""

    def make(place, *, seed=None, sites=None, **choices):
        sites = cohorts() if sites is None else sites
        plan = StatisticsPlan(**{"epsilon": 1.0, "sites": len(sites)} | choices)
        ledger = place.ledger if seed is None and plan.allocation != "none" else None
        not_private = plan.allocation == "none"
        return create(place.out, sites, plan, ledger=ledger, seed=seed, not_private=not_private)

    return make
