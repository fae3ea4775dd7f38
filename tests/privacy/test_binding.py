"""Cohorts are people, not names: bound by keyed digests, compared whenever a release is charged."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from canal.errors import LedgerError, LedgerTamperedError
from canal.privacy import Charge, Ledger
from canal.privacy.ledger import balances, head_of, receipt

COHORTS = ("a", "b", "c", "d")
OLD = Path(__file__).parent / "before_bindings.sqlite"
# Of that file, as the code that made it said.
OLD_HEAD = "fa023e415a661baab6f7d1272d5994106520651aea4260d4f310836e2629756e"


def digest(image):
    return hashlib.sha256(str(image).encode()).hexdigest()


def crowd(*numbers):
    """Patients with two images each."""
    return tuple(frozenset({digest(2 * n), digest(2 * n + 1)}) for n in numbers)


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.sqlite")
    made.set_budget(COHORTS, "patient", epsilon=8.0, delta=1e-5)
    return made


def charge(ledger, key, /, **people):
    public = people.pop("public", ())
    due = [Charge(cohort, "patient", 0.1) for cohort in people]
    return ledger.reserve(key, due, people=people, public=public)


def spent(ledger):
    return {each.cohort: each.spent for each in balances(ledger.rows())}


def test_a_renamed_cohort_does_not_spend_twice(ledger):
    """The reviewed failure: the same patients under a second name had a second budget."""
    charge(ledger, "first", a=crowd(*range(10)))
    rows = ledger.rows()
    again = r"8 of the 9 patients of cohort 'b' are bound to cohort 'a' too, which has 10.*second"
    with pytest.raises(LedgerError, match=again):
        charge(ledger, "second", b=crowd(*range(8), 99))
    # A cohort within a larger one, and one that is made of two others.
    with pytest.raises(LedgerError, match="10 of the 40 patients of cohort 'b'"):
        charge(ledger, "second", b=crowd(*range(40)))
    charge(ledger, "third", c=crowd(*range(50, 60)))
    with pytest.raises(LedgerError, match=r"3 of the 10 .*'a'.*; 3 of the 10 .*'c'"):
        charge(ledger, "second", b=crowd(0, 1, 2, 50, 51, 52, 70, 71, 72, 73))
    with pytest.raises(LedgerError, match="cohort 'b' are bound to cohort 'd'"):
        charge(ledger, "second", b=crowd(80, 81), d=crowd(80, 81))
    assert ledger.rows()[: len(rows)] == rows
    assert spent(ledger) == {"a": 0.1, "b": 0.0, "c": 0.1, "d": 0.0}
    # One image is enough to know a patient by, and strangers are no matter.
    with pytest.raises(LedgerError, match="second budget"):
        charge(ledger, "second", b=[frozenset({digest(2 * n)}) for n in range(10)])
    assert charge(ledger, "second", b=crowd(*range(100, 110))) == "new"


def test_a_few_patients_in_two_cohorts_are_told_with_numbers(ledger, caplog):
    charge(ledger, "first", a=crowd(*range(10)))
    assert not caplog.messages
    assert charge(ledger, "second", b=crowd(0, 1, *range(20, 30))) == "new"
    (said,) = caplog.messages
    assert said.startswith("2 of the 12 patients of cohort 'b' are bound to cohort 'a' too, ")


def test_a_cohort_that_grows_is_bound_to_all_who_were_ever_in_it(ledger, caplog):
    charge(ledger, "first", a=crowd(*range(10)))
    charge(ledger, "again", a=crowd(*range(10)))
    assert not caplog.messages
    charge(ledger, "second", a=crowd(*range(5, 25)))
    assert caplog.messages[0].startswith("15 patients are new in cohort 'a', and 5 were in it bef")
    for left in (range(5), range(20, 25)):
        with pytest.raises(LedgerError, match="which has 25"):
            charge(ledger, "third", b=crowd(*left))
    assert spent(ledger)["a"] == pytest.approx(0.3)


def test_the_rows_do_not_tell_whether_somebody_is_new(tmp_path):
    """Heads are published: with a row for new patients alone, one could compute that they are."""
    shapes, seals = [], set()
    for name, people in (("same", crowd(1, 2, 3)), ("one more", crowd(1, 2, 3, 4))):
        ledger = Ledger(tmp_path / name)
        ledger.set_budget("a", "patient", epsilon=8.0, delta=1e-5)
        for key, there in (("first", crowd(1, 2, 3)), ("second", people), ("third", people)):
            charge(ledger, key, a=there)
        rows = ledger.rows()
        shapes.append([(r.seq, r.at, r.action, r.cohort, r.rho, len(r.note)) for r in rows])
        seals |= {row.note for row in rows if row.action == "bind"}
    assert shapes[0] == shapes[1]
    assert len(seals) == 6


def test_the_recipients_images_show_nobody_whom_the_ledger_protects(ledger):
    charge(ledger, "first", a=crowd(*range(10)))
    for cohort, people in (("b", crowd(50, 51)), ("a", crowd(*range(10)))):
        with pytest.raises(LedgerError, match="3 of cohort 'a'; leave them out of the queries"):
            charge(ledger, "second", **{cohort: people}, public=[digest(n) for n in (0, 4, 9, 60)])
    with pytest.raises(LedgerError, match="1 of cohort 'b'"):
        charge(ledger, "second", b=crowd(50, 51), public=[digest(100)])
    assert charge(ledger, "second", b=crowd(50, 51), public=[digest(60)]) == "new"


def test_cohorts_whose_patients_nobody_knows(ledger, caplog):
    due = [Charge("a", "patient", 0.1), Charge("queries", "image", 0.1, needs_budget=False)]
    ledger.reserve("first", due, people={})
    (said,) = caplog.messages
    assert said.startswith("it is not known whose patients cohort 'a' has")


def test_what_is_kept_is_for_the_owner_and_tells_nothing_without_the_key(tmp_path):
    seals = set()
    for name in ("one", "two"):
        ledger = Ledger(tmp_path / name)
        ledger.set_budget("a", "patient", epsilon=8.0, delta=1e-5)
        charge(ledger, "first", a=crowd(1, 2))
        path = tmp_path / f"{name}.patients"
        assert path.stat().st_mode & 0o777 == 0o600
        kept = json.loads(path.read_text())
        assert [list(map(len, batch)) for batch in kept["cohorts"]["a"]] == [[2, 2]]
        for content in (path.read_text(), json.dumps([row.note for row in ledger.rows()])):
            assert not any(digest(n) in content for n in range(6))
        assert kept["key"] not in ledger.path.read_bytes().decode("latin-1")
        (seal,) = (row.note for row in ledger.rows() if row.action == "bind")
        assert len(seal) == 64
        seals.add(seal)
    assert len(seals) == 2  # the same patients, under the keys of two ledgers


def test_a_file_that_was_edited_or_taken_away_is_noticed(ledger):
    charge(ledger, "first", a=crowd(1, 2, 3), b=crowd(4, 5, 6))
    path = ledger.path.with_name("ledger.sqlite.patients")
    whole, rows = path.read_text(), ledger.rows()
    kept = json.loads(whole)

    def refused(match):
        for act in (lambda: charge(ledger, "second", c=crowd(1, 2, 3)), lambda: ledger.check(())):
            with pytest.raises(LedgerError, match=match):
                act()
        assert ledger.rows() == rows

    for cohorts in (
        {"b": kept["cohorts"]["b"]},
        {"a": kept["cohorts"]["b"], "b": kept["cohorts"]["a"]},
        kept["cohorts"] | {"a": [kept["cohorts"]["a"][0][:2]]},
    ):
        path.write_text(json.dumps(kept | {"cohorts": cohorts}))
        refused("does not hold the patients that cohort")
    path.write_text(json.dumps(kept | {"key": "00" * 32}))
    refused("does not hold the patients that cohort")
    for damaged in ("{}", whole[:-9], json.dumps(kept | {"key": "00"})):
        path.write_text(damaged)
        refused("is damaged")
    path.unlink()
    refused("is gone, which says whose patients")
    path.write_text(whole)
    with pytest.raises(LedgerError, match="second budget"):
        charge(ledger, "second", c=crowd(1, 2, 3))


def test_a_run_that_is_killed_in_between_binds_nobody(ledger, monkeypatch):
    """The file is written first; what the chain does not know of does not count."""
    from canal.privacy import chain

    charge(ledger, "first", a=crowd(1, 2))
    append = chain.Writer.append

    def killed(self, action, *arguments, **more):
        if action == "bind":
            raise KeyboardInterrupt
        append(self, action, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(chain.Writer, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            charge(ledger, "second", a=crowd(1, 2, 3, 4), b=crowd(5, 6))
    ledger.check(())
    assert spent(ledger)["b"] == 0
    charge(ledger, "third", c=crowd(3, 4, 5, 6))
    with pytest.raises(LedgerError, match="second budget"):
        charge(ledger, "fourth", b=crowd(5, 6))
    with pytest.raises(LedgerError, match="second budget"):
        charge(ledger, "fourth", b=crowd(1, 2))


def test_a_ledger_from_before_goes_on(tmp_path, caplog):
    """Made before cohorts were bound: nothing is charged twice, and nothing forgotten."""
    ledger = Ledger(shutil.copy(OLD, tmp_path / "ledger.sqlite"), must_exist=True)
    before = ledger.verify(head=OLD_HEAD)
    assert (len(before), head_of(before)) == (14, OLD_HEAD)
    assert spent(ledger) == {"north": 0.75, "queries": 0.001, "south": 0.75}
    north = ledger.balance("north", "patient")
    assert (north.epsilon_budget, north.uncommitted, north.draws) == (9.0, 0.25, 1500)
    assert north.epsilon_spent == pytest.approx(5.54483092285068, rel=1e-12)
    people = {"north": crowd(*range(5)), "south": crowd(*range(5, 9))}
    due = [Charge(name, "patient", 0.25, 500) for name in people]
    assert ledger.reserve("second", due, people=people) == "reserved"
    ledger.commit("second", note="b" * 64)
    assert spent(ledger)["north"] == 0.75
    assert ledger.reserve("third", due, people=people) == "new"
    assert spent(ledger) == {"north": 1.0, "queries": 0.001, "south": 1.0}
    assert ledger.verify(head=OLD_HEAD)[:14] == before
    assert not caplog.messages
    with pytest.raises(LedgerError, match="second budget"):
        ledger.reserve(
            "fourth",
            [Charge("west", "patient", 0.1, needs_budget=False)],
            people={"west": people["north"]},
        )


def test_what_is_published_of_a_ledger(ledger):
    """Heads and totals as they were at the charge, whenever it is asked; of the payers alone."""
    before = head_of(ledger.rows())
    charge(ledger, "first", a=crowd(1), b=crowd(2))
    first = receipt(ledger.rows(), "first")
    ledger.commit("first")
    charge(ledger, "second", a=crowd(1), c=crowd(3))
    ledger.set_budget("a", "patient", epsilon=99.0, delta=1e-5)
    assert receipt(ledger.rows(), "first") == first
    assert first["head"]["before"] == before
    second = receipt(ledger.rows(), "second")
    ledger.verify(head=[*first["head"].values(), *second["head"].values()])
    totals = {each["cohort"]: each["epsilon_spent"] for each in second["totals"]}
    assert totals.keys() == {"a", "c"}
    assert totals["a"] == ledger.balance("a", "patient").epsilon_spent > totals["c"]
    assert {each["epsilon_budget"] for each in second["totals"]} == {8.0}
    with pytest.raises(LedgerError, match="never reserved"):
        receipt(ledger.rows(), "third")


def test_a_copy_that_was_charged_is_known_by_its_head(ledger, tmp_path):
    """Both copies are whole; each lacks the head of what was charged to the other."""
    charge(ledger, "first", a=crowd(1))
    for suffix in ("", ".patients"):
        shutil.copy(f"{ledger.path}{suffix}", tmp_path / f"copy.sqlite{suffix}")
    copy = Ledger(tmp_path / "copy.sqlite")
    charge(copy, "second", a=crowd(1))
    head = receipt(copy.rows(), "second")["head"]
    copy.verify(head=list(head.values()))
    ledger.verify(head=head["before"])
    with pytest.raises(LedgerTamperedError, match="another copy of this ledger was charged"):
        ledger.verify(head=head["after"])
