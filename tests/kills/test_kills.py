"""A thousand kills found nothing, and would have found what is planted here."""

import os
import subprocess
import sys

import pytest

from kills import table
from kills.commands import COMMANDS
from mutations.table import SOURCE, Edit, Mutant

ROOT = SOURCE.parent


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
        "release/publication.py",
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
NO_RESERVATION = planted(
    (
        "release/aggregator.py",
        'self.ledger.reserve(key, due, note=f"release {self.workspace.out.name}")',
        "pass",
    ),
    (
        "release/publication.py",
        """        raise LedgerError(
            f"this release was not charged to {ledger.path}; give the ledger that was, with "
            "--ledger"
        )
""",
        """        ledger.reserve(key, [Charge(**each) for each in manifest.ledger["charges"]])
""",
    ),
)
ANOTHER_KEY_EACH_TIME = planted(
    (
        "release/workspace.py",
        'return secret.key(b"ledger", claim).hex()',
        'return secret.key(b"ledger", claim, str(__import__("os").getpid()).encode()).hex()',
    )
)
SITE_KEEPS_ITS_KEYS = planted(
    (
        "federation/journal.py",
        """            Secret.destroy(self.folder / name)
""",
        """            pass
""",
    )
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "only", "kind"),
    [
        pytest.param(KEY_AFTER_RENAME, "release create", "keys", id="key-after-rename"),
        pytest.param(ANY_BYTES, "release create, private", "lost", id="any-bytes"),
        pytest.param(NO_RESERVATION, "release create", "lost", id="no-reservation"),
        pytest.param(ANOTHER_KEY_EACH_TIME, "release create", "double", id="another-key"),
        pytest.param(SITE_KEEPS_ITS_KEYS, "federation, features, s", "keys", id="site-keeps-keys"),
    ],
)
def test_negative_control_what_is_planted_is_found(edits, only, kind, tmp_path):
    mutant = Mutant("planted", "ledger", "", (), (), edits)
    source = mutant.plant(tmp_path / "src")
    lines, ran = kill(tmp_path, source, "--kills", "48", "--only", only)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert total(lines, kind) or f"'{kind}'" in ran.stderr, ran.stdout + ran.stderr
