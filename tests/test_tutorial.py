"""The tutorial's commands, in the order of the page, on small invented folders."""

import re
from pathlib import Path

import pytest
from PIL import Image

from canal.cli import app
from canal.data.synthetic import generate

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
# What the page says, smaller: the same keys, so that a key which is no more is noticed.
SMALLER = {"size = 64": "size = 32", "steps = 600": "steps = 3"}


@pytest.fixture
def home(tmp_path):
    """A folder with `Kvasir-SEG` in its official layout, and the settings of the page."""
    drawn = generate(60, size=(32, 32), seed=3)
    for name in ("images", "masks"):
        (tmp_path / "Kvasir-SEG" / name).mkdir(parents=True)
    for row, name in enumerate(drawn.ids):
        picture = Image.fromarray(drawn.images[row].transpose(1, 2, 0).copy())
        picture.save(tmp_path / "Kvasir-SEG" / "images" / f"{name}.jpg", quality=95)
        mask = Image.fromarray(255 * drawn.masks[row, 0])
        mask.save(tmp_path / "Kvasir-SEG" / "masks" / f"{name}.jpg", quality=95)
    (settings,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    for ours, smaller in SMALLER.items():
        assert ours in settings
        settings = settings.replace(ours, smaller)
    (tmp_path / "canal.toml").write_text(settings + "batch_size = 4\n")
    return tmp_path


def test_every_command_of_the_page(home, monkeypatch, capsys):
    """In this process: thirty interpreters would spend minutes on importing torch."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("CANAL_CACHE", str(home / "cache"))
    lines = [
        line.replace("--recipient 60", "--recipient 8")
        .replace("--rounds 20", "--rounds 2")
        .replace("--patients 700", "--patients 700 --yes")
        for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    assert {line.split()[1] for line in lines} >= {
        "init",
        "teacher",
        "release",
        "student",
        "adapters",
    }
    for line in lines:
        name, *arguments = line.split()
        assert name == "canal"
        assert not app(arguments, standalone_mode=False), line
    report = (home / "run" / "report.html").read_text().replace("\xa0", " ")
    for arm in (
        "Alone",
        "Noise only",
        "CANAL, paper’s ε = 8",
        "CANAL, patient’s ε = 8",
        "CANAL adapters, ",
    ):
        assert arm in report
    assert len(list((home / "run" / "masks").iterdir())) == 60
    assert capsys.readouterr().out.endswith("run/report.html\n")


def test_a_patients_ledger_refuses_the_papers_release(home):
    """As the page says: what the paper counts as 8 costs a patient far more."""
    from canal.features.plan import Plan
    from canal.privacy import Participants

    plan = Plan.preset(
        "paper",
        epsilon=8,
        participants=Participants(teachers=3, queries=60),
        channels=256,
        grid=(4, 4),
    )
    assert plan.calibrate().guarantee.epsilon(1e-5, "patient") > 40
