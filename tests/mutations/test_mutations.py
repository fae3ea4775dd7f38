"""Every bug of the table is planted, one at a time, and noticed by what is meant to notice it.

The bug is in all code, that which makes a release and that which checks it. `pytest tests/mutations
-m slow -k NAME` tries one; `python tests/mutations/page.py` writes `docs/mutations.md`.
"""

import collections

import pytest

from mutations import page
from mutations.driver import driving
from mutations.scenarios import SCENARIOS
from mutations.table import CHECKS, KINDS, MUTANTS, SOURCE

# Of all bugs in the table, those that audit, verify and residue notice, with no help of a test.
BY_CHECKS = 60
SEEDS = 3


@pytest.fixture(scope="module")
def driver():
    with driving() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_noticed_by_what_is_meant_for_it(mutant, driver):
    found = driver.try_(mutant)
    assert set(mutant.by) <= set(found.by), found


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_negative_control_nothing_is_noticed_where_nothing_is_wrong(name, driver):
    """Three times, under secrets of their own: a false alarm is below one in a million."""
    for _ in range(SEEDS):
        found = driver.look(SOURCE, [name])
        assert not found.by, found


def test_the_table_fits_the_code(tmp_path):
    """Every bug can be planted, changes something, and is still Python."""
    for number, mutant in enumerate(MUTANTS):
        for edit in mutant.edits:
            text = (SOURCE / "canal" / edit.file).read_text()
            assert text.count(edit.old) == 1, f"{mutant.name}: {edit.file} moved"
            assert edit.new != edit.old
            compile(text.replace(edit.old, edit.new), f"{number}-{edit.file}", "exec")


def test_the_table_is_whole():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 45
    assert {mutant.kind for mutant in MUTANTS} == set(KINDS)
    by_checks = 0
    for mutant in MUTANTS:
        assert mutant.by, f"{mutant.name} is noticed by nothing"
        assert mutant.harm.endswith(".")
        assert set(mutant.scenarios) <= set(SCENARIOS)
        assert mutant.scenarios or not mutant.checks, f"{mutant.name} touches no release"
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert f"def {name}" in (SOURCE.parent / path).read_text()
        by_checks += bool(mutant.checks)
    assert by_checks >= BY_CHECKS
    kinds = collections.Counter(check for mutant in MUTANTS for check in mutant.checks)
    assert set(kinds) == set(CHECKS)


def test_the_page_says_what_the_table_says():
    assert page.PAGE.read_text() == page.written(), "run python tests/mutations/page.py"
