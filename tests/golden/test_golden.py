"""Golden releases: what was published before a change of the code is published after it.

`pinned/*.json` hold one release each: of features, gradients and statistics, by a trusted
aggregator and by secure sum across sites; with paid statistics, with replaced patients, with a
counted number of them. Pinned are the integers of every tensor (their digest), manifest with
statement, the text of the card, the checks of `verify`, what each ledger was charged, and every
message between server and sites. All of it is made by commands and orders, as users make it, so
that it survives what changes within. Write it again with
`OMP_NUM_THREADS=1 PYTHONPATH=src:tests python -m golden --write`, which lists every field that
changed, old → new; a deliberate change of names is a row in `golden.compare.RENAMED`.

What varies: releases that protect draw secrets. Whatever differs between two runs of the same code
is `(varies)` in the file, and only its presence is compared. Releases with a seed have the same
bytes each time; those without are charged. Digests of code, and those that follow from them, are
replaced by names.

Other machines: networks run for real, and their last bits decide over integers. They depend on the
instructions that a CPU offers, so all libraries are told to use those that every x86-64 has
(`golden.__main__.BASELINE`). Should a machine compute otherwise all the same, as other processors
or versions of torch do, then `golden.machine.probe`, which asks nothing of canal, differs as well:
digests and last digits are not compared then, and the test of bytes is skipped and says so.
"""

import pytest

from golden.__main__ import observe, pinned
from golden.compare import differences, merged

BEFORE = pinned()
RELEASES = [name for name in BEFORE if name != "machine"]


@pytest.fixture(scope="module")
def now():
    return observe()


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_promises_costs_and_says_the_same(now, name):
    found = differences(BEFORE[name], now[name], exactly=False)
    assert not found, "\n".join(["old → new:", *found])


@pytest.mark.parametrize("name", [name for name in RELEASES if "paid" not in name])
def test_a_release_has_the_same_bytes(now, name):
    other = differences(BEFORE["machine"], now["machine"])
    found = differences(BEFORE[name], now[name])
    if found and other:
        pytest.skip(f"this machine computes other last bits: {other[0]}")
    assert not found, "\n".join(["old → new:", *found])


def test_no_release_is_forgotten(now):
    assert sorted(now) == sorted(BEFORE)


def test_what_differs_is_seen_and_what_was_renamed_is_not(monkeypatch):
    old = {"plan": {"unit": "membership", "rounds": 3}, "rows": [1.0, 2.0], "key": "(varies)"}
    new = {"plan": {"unit": "patient", "rounds": 3}, "rows": [1.0, 2.0], "key": "abc"}
    assert differences(old, new) == ["plan.unit: 'membership' → 'patient'"]
    monkeypatch.setattr("golden.compare.RENAMED", {"membership": "patient", "plan.rounds": "T"})
    new["plan"]["T"] = new["plan"].pop("rounds")
    assert differences(old, new) == []
    assert differences(old, {**new, "rows": [1.0]}) == ["rows.[1]: 2.0 → 'nothing'"]
    near = {**new, "rows": [1.0, 2.000001]}
    assert differences(old, near)
    assert not differences(old, near, exactly=False)
    assert merged([1, {"a": 2}], [1, {"a": 3}]) == [1, {"a": "(varies)"}]
