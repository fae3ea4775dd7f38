"""A file where a folder is wanted, and the other way round: one sentence, nothing left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from canal.files import replace_file

CANAL = Path(sys.executable).parent / "canal"


def test_a_demo_into_a_file(tmp_path):
    (tmp_path / "taken").write_text("x")
    done = subprocess.run(
        [CANAL, "demo", "--out", "taken"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("canal: ")
    assert "give another" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_onto_a_folder_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "taken", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
