"""Figures of patients stay at the hospital: every page, file and word of a whole run is searched.

Names, the number of patients and the losses are such as occur nowhere else, and noise is seeded.
"""

import contextlib
import csv
import html
import io
import json
import re
import shlex
import stat
import sys
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from canal.attacks.individual import STAYS
from typed import call_here

# Patients of the hospital whose audit it is; one image each.
MANY = 131
QUICK = ("--no-simulate", "--draws", "1000")


def write_hospital(folder, count, name):
    """Lesions that are squares, of patients whose names cannot be overlooked."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    rng = np.random.default_rng([count, len(name)])
    ids = [f"{name}-{n:03d}-scan" for n in range(count)]
    for each in ids:
        mask = np.zeros((32, 32), np.uint8)
        row, column = rng.integers(0, 16, 2)
        mask[row : row + 12, column : column + 12] = 255
        pixels = rng.integers(0, 100, (32, 32, 3)) + mask[..., None] // 2
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / f"{each}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{each}.png")
    with (folder / "metadata.csv").open("w", newline="") as file:
        rows = [(each, each.removesuffix("-scan")) for each in ids]
        csv.writer(file).writerows([("image_id", "patient_id"), *rows])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Both kinds of release, audited by a hospital with all that it has, and the run's report."""
    home = tmp_path_factory.mktemp("individual")
    write_hospital(home / "hospital" / "north", MANY, "Quisling")
    write_hospital(home / "hospital" / "south", 6, "Zebulon")
    write_hospital(home / "queries", 8, "query")
    (home / "hospital" / "kept").mkdir()
    teachers = "--teacher run/teachers/north --teacher run/teachers/south --queries queries"
    train = "teacher train --size 32 --steps 2 --batch-size 4"
    own = "--init run/init --data hospital/north"
    kept = "--private hospital/kept"
    lines = (
        "init --data queries --out run/init --size 32 --base-channels 8 --steps 2",
        f"{train} --data hospital/north --init run/init --out run/teachers/north",
        f"{train} --data hospital/south --init run/init --out run/teachers/south",
        f"{train} --data hospital/north --without 'patient Quisling-007' --init run/init --out"
        " hospital/less/north",
        f"release create {teachers} --init run/init --seed 1 --preset paper --epsilon 8 --out"
        " run/features",
        "adapters train --data hospital/north --data hospital/south --queries queries --init"
        " run/init --part head --rounds 2 --patients 140 --seed 1 --out run/rounds",
        f"audit run/features {teachers} --without hospital/less/north --out run/features.json"
        f" {kept}/f.json",
        f"audit run/rounds {own} --out run/rounds.json {kept}/r.json",
        f"audit run/rounds {own} --json",
        f"audit run/rounds {own}",
        "report run",
        "report run --json",
    )
    said = []
    for line in lines:
        quick = QUICK if line.startswith("audit") else ()
        said.append(call_here(home, *shlex.split(line), *quick))
    (home / "run" / "log.txt").write_text("\n".join(said))
    return home


def seen_by_others(home):
    """What is in every file of the run, in the words of a reader; without weights and images."""
    for path in sorted((home / "run").rglob("*")):
        private = "teachers" in path.parts or path.suffix in (".safetensors", ".private")
        if path.is_dir() or private or any(part.endswith(".private") for part in path.parts):
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".html":
            assert "<html" in text
            text = re.sub(r"<(style|svg)\b.*?</\1>", " ", text, flags=re.DOTALL)
            text = html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("\xa0", " ")
        yield path, text


def figures(home):
    """Every number that was computed with patients' images."""
    rounds = json.loads((home / "hospital" / "kept" / "r.json").read_text())["canary"]
    features = json.loads((home / "hospital" / "kept" / "f.json").read_text())
    yield from (rounds["longest"], features["canary"]["mu"], features["canary"]["epsilon"])
    for pair in (rounds, rounds["median"], *rounds["each"].values()):
        yield from (pair["mu"], pair["epsilon"])


def kept_sentences(home):
    """What a hospital reads of them."""
    for name in ("r.json", "f.json"):
        kept = json.loads((home / "hospital" / "kept" / name).read_text())
        yield from kept["words"]
        yield from (check["detail"] for check in kept.get("checks", ()))


def test_no_page_file_or_word_tells_them(home):
    private = sorted(set(figures(home)))
    assert len(private) > 2 * MANY
    sentences = [sentence for sentence in kept_sentences(home) if re.search(r"\d\.\d", sentence)]
    assert len(sentences) > 4
    looked_at = dict(seen_by_others(home))
    assert {"report.html", "card.html", "rounds.json", "features.json", "log.txt"} <= {
        path.name for path in looked_at
    }
    for path, text in looked_at.items():
        assert "Quisling" not in text, path
        assert "Zebulon" not in text, path
        assert not re.search(rf"(?<![\w.-]){MANY}(?![\w.])", text), path
        said = {float(each) for each in re.findall(r"\d+\.\d+(?:e-?\d+)?", text)}
        assert not said & set(private), path
        # Nor any sentence that has them, rounded: of so many numbers some agree by chance.
        assert not [sentence for sentence in sentences if sentence in text], path


def test_the_file_is_for_its_owner_alone(home):
    for name in ("f.json", "r.json"):
        path = home / "hospital" / "kept" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found = json.loads(path.read_text())
        assert found["format"] == "canal-individual/1"
        assert found["stays"] == STAYS
    found = json.loads((home / "hospital" / "kept" / "r.json").read_text())
    assert "patient Quisling-007" in found["canary"]["each"]
    assert f"Of {MANY} patients of north" in found["words"][0]
    found = json.loads((home / "hospital" / "kept" / "f.json").read_text())
    assert "Trained with and without one patient, the teacher of north" in found["words"][0]
    assert "of the stated deviation" in str(found["checks"])


def test_they_are_shown_at_a_terminal_alone(home):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    asked = ["canal", "audit", "run/rounds", "--init", "run/init", "--data", "hospital/north"]
    with (
        contextlib.chdir(home),
        mock.patch.object(sys, "argv", [*asked, "--unit", "patient", *QUICK]),
        contextlib.redirect_stdout(Terminal()) as said,
    ):
        from canal.cli import app

        app(standalone_mode=False)
    assert f"Of {MANY} patients of north" in said.getvalue()
    assert said.getvalue().splitlines()[-1] == STAYS


@pytest.mark.parametrize("older", ["canary", "words"])
def test_a_report_refuses_them(home, tmp_path, older):
    """The hospital's own file, and audits of versions that put the figures into words."""
    kept = json.loads((home / "hospital" / "kept" / "r.json").read_text())
    path = home / "run" / "somewhere.json"
    audit = json.loads((home / "run" / "rounds.json").read_text())
    more = kept["canary"] if older == "canary" else [*audit["words"], *kept["words"]]
    for content, way_out in (
        (kept, "move it out of the run"),
        (audit | {older: more}, "is an audit of an older version"),
    ):
        path.write_text(json.dumps(content))
        try:
            said = call_here(home, "report", "run", "--out", tmp_path / "page.html", code=2)
        finally:
            path.unlink()
        assert "somewhere.json" in said
        assert way_out in said
        assert len(said.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()
