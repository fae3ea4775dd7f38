"""Results of the documents; and tiny trials of every arm, made once for all tests of a process."""

import json

import pytest

from paper import rivals
from paper.__main__ import RESULTS
from paper.grids import SMOKE
from paper.scenario import Folders
from paper.trial import Results, run


@pytest.fixture(scope="session")
def published():
    return Results(RESULTS)


@pytest.fixture(scope="session")
def lines(published):
    """Every line of the results."""
    files = [path.read_text() for path in published.folder.glob("*.jsonl")]
    return [json.loads(line) for text in files for line in text.splitlines()]


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """Folders and results of `python -m paper run smoke`, but that Opacus searches for no noise."""
    home = tmp_path_factory.mktemp("smoke")
    folders = Folders(home, home / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANAL_CACHE", str(home / "cache"))
        with patch.context() as noise:
            noise.setattr(rivals, "noise_multiplier", lambda *asked: 2.0)
            assert run(SMOKE, folders, home / "results" / "smoke.jsonl") == {}
        yield folders, Results(home / "results")
