"""A thousand kills found nothing, and would have found what is planted here."""

import os
import subprocess
import sys

import pytest

from kills import table
from kills.commands import COMMANDS
from kills.trial import KINDS, STAGES
from mutations.table import SOURCE, Edit, Mutant

ROOT = SOURCE.parent
RESULTS = ROOT / "results" / "kills.jsonl"
PAGE = ROOT / "docs" / "privacy.md"
# In all, and of a command; and of those, as many while it publishes.
KILLS, EACH, PUBLISHING = 1000, 40, 10


def kill(folder, source, *words):
    """Run the harness against some source; gives its lines and what it printed."""
    results = folder / "kills.jsonl"
    path = os.pathsep.join(map(str, (source, ROOT / "tests")))
    ran = subprocess.run(
        [sys.executable, "-m", "kills", "--results", results, *words],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    return table.read(results), ran


def total(lines, kind):
    return sum(line[kind] for line in lines)


@pytest.mark.slow
def test_a_few_kills_of_every_command(tmp_path):
    lines, ran = kill(tmp_path, SOURCE, "--kills", "24", "--seed", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(lines) >= 24
    tried = {line["command"] for line in lines}
    assert tried <= {command.name for command in COMMANDS}
    assert len(tried) >= 8
    assert table.table(lines) in ran.stdout


@pytest.mark.slow
def test_called_again_it_goes_on_where_it_stopped(tmp_path):
    asked = ("--kills", "6", "--only", "release create --preset")
    few, ran = kill(tmp_path, SOURCE, *asked, "--batch", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    more, ran = kill(tmp_path, SOURCE, *asked)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert more[: len(few)] == few
    assert len(more) >= 6 > len(few) >= 1
    trials = [line["trial"] for line in more]
    assert trials == sorted(trials)


def planted(*edits):
    return tuple(Edit(*edit) for edit in edits)


KEY_AFTER_RENAME = planted(
    (
        "release/publish.py",
        """    workspace.destroy()
    tell(manifest)
    if not published:
        workspace.publish()
""",
        """    tell(manifest)
    if not published:
        workspace.publish()
    workspace.destroy()
""",
    )
)
ANY_BYTES = planted(("privacy/ledger.py", "if committed - {str(note)}:", "if False:"))
NO_RESERVATION = planted(  # it is charged when all is drawn
    ("release/publish.py", "charged = run.pay()", "charged = None"),
    (
        "release/publish.py",
        "self._manifest(published, shards, charged, record)",
        "self._manifest(published, shards, self.pay(), record)",
    ),
)
ANOTHER_KEY_EACH_TIME = planted(
    (
        "release/workspace.py",
        'return secret.key(b"ledger", claim).hex()',
        'return secret.key(b"ledger", claim, str(__import__("os").getpid()).encode()).hex()',
    )
)
SITE_KEEPS_KEYS = planted(
    (
        "federation/journal.py",
        """            Secret.destroy(self.folder / name)
""",
        """            pass
""",
    )
)


PLANTED = (KEY_AFTER_RENAME, ANY_BYTES, NO_RESERVATION, ANOTHER_KEY_EACH_TIME, SITE_KEEPS_KEYS)


def test_what_is_planted_fits_the_code():
    for edit in (edit for edits in PLANTED for edit in edits):
        text = (SOURCE / "canal" / edit.file).read_text()
        assert text.count(edit.old) == 1, f"{edit.file} moved"
        compile(text.replace(edit.old, edit.new), edit.file, "exec")


# A bug shows in every trial, or in one kill of ten or trial of three: one in a hundred is missed.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "only", "kind", "kills"),
    [
        pytest.param(KEY_AFTER_RENAME, "release create", "keys", 48, id="key-after-rename"),
        pytest.param(ANY_BYTES, "release create, private", "lost", 96, id="any-bytes"),
        pytest.param(NO_RESERVATION, "release create", "lost", 24, id="no-reservation"),
        pytest.param(ANOTHER_KEY_EACH_TIME, "release create", "double", 24, id="another-key"),
        pytest.param(SITE_KEEPS_KEYS, "federation, features, s", "keys", 6, id="site-keeps-keys"),
    ],
)
def test_negative_control_what_is_planted_is_found(edits, only, kind, kills, tmp_path):
    mutant = Mutant("planted", "ledger", "", (), (), edits)
    source = mutant.plant(tmp_path / "src")
    lines, ran = kill(tmp_path, source, "--kills", str(kills), "--only", only)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    # Some show without a kill.
    assert total(lines, kind) or f"'{kind}'" in ran.stderr, ran.stdout + ran.stderr


def test_the_page_says_what_a_thousand_kills_found():
    lines = table.read(RESULTS)
    assert len(lines) >= KILLS
    assert {line["command"] for line in lines} == {command.name for command in COMMANDS}
    assert {line["at"] for line in lines} == set(STAGES)
    for command in COMMANDS:
        mine = [line for line in lines if line["command"] == command.name]
        assert len(mine) >= EACH
        assert sum(line["at"] in table.PUBLICATION for line in mine) >= PUBLISHING
    assert not any(total(lines, kind) for kind in KINDS)
    assert table.table(lines) in PAGE.read_text()
    assert f"{len(lines):,} kills" in PAGE.read_text()
