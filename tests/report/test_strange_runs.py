"""Runs that lack something or mean harm: the page says what is missing, and no more than that."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from canal.learning import checkpoint
from canal.report.facts import facts
from canal.report.run import Run
from report.pages import page

HOSTILE = '<script>alert("1")</script>&"'


@pytest.mark.parametrize(
    ("removed", "said", "gone"),
    [
        ("attack.json", "canal attack", None),
        ("releases", "canal release create", "budget went"),
        ("*/scores.csv", "canal student evaluate", "Minus alone"),
        ("s-alone", "canal student train --mode alone", "− alone:"),
        ("commands.txt", "Nobody wrote down", "canal init --out"),
        ("s-canal/scores.csv", "canal student evaluate --student s-canal", None),
    ],
)
def test_what_is_missing_is_said(run_folder, removed, said, gone):
    (run_folder / "hospitals/north/scores.csv").unlink()
    (run_folder / "hospitals/south/scores.csv").unlink()
    for path in list(run_folder.glob(removed)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    read = page(run_folder)
    assert said in read.words
    assert gone is None or gone not in read.words
    json.dumps(facts(Run.read(run_folder)), allow_nan=False)


@pytest.mark.parametrize("kept", ["init", "releases", "attack.json", "hospitals", "s-alone"])
def test_any_part_is_a_run(run_folder, kept):
    for path in list(run_folder.iterdir()):
        if path.name != kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert len(page(run_folder).headings) >= 4


def test_hostile_names_stay_names(made_run, run_folder):
    folder = run_folder / "hospitals" / "north"
    network, about = checkpoint.load(made_run / "hospitals" / "north")
    notes = about.notes | {"site": HOSTILE}
    checkpoint.save(folder, network, replace(about, notes=notes))
    path = run_folder / "attack.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"attack": HOSTILE, "words": [HOSTILE]}))
    (run_folder / "commands.txt").write_text(HOSTILE)
    (run_folder / "s-alone").rename(run_folder / "<i>&")
    read = page(run_folder)
    assert not read.tags & {"script", "i"}
    assert read.words.count(HOSTILE) >= 4
    assert "<i>&" in read.words


def test_hostile_images_stay_names(made_run, tmp_path, arrays):
    folder = shutil.copytree(made_run, tmp_path / "run")
    for path in folder.rglob("scores.csv"):
        path.write_text(path.read_text().replace("case-12", '"<b>""><"'))
    strange = replace(arrays, ids=tuple('<b>"><' if n == "case-12" else n for n in arrays.ids))
    alts = [value for name, value in page(folder, strange).attributes if name == "alt"]
    assert len(alts) == 30


def test_images_of_another_size_are_refused_or_left_out(made_run, arrays):
    small = replace(arrays, images=arrays.images[..., :16, :16], masks=arrays.masks[..., :16, :16])
    read = page(made_run, small)
    assert len([1 for name, _ in read.attributes if name == "alt"]) == 10  # image and truth alone


def test_a_run_of_adapters_alone_is_whole(run_folder):
    """Sections about features are left out; the headline says which relation its number is of."""
    for name in ("releases/canal", "releases/honest", "releases/none", "releases/uniform"):
        shutil.rmtree(run_folder / name)
    for name in ("canal", "honest", "uniform", "none", "noise"):
        shutil.rmtree(run_folder / f"s-{name}")
    read = page(run_folder)
    assert not any("Noise" in heading for heading in read.headings)
    headline = re.search(r"<h1>(.*?)</h1>", read.html, re.DOTALL)[1].replace("\xa0", " ")
    assert "<b>ε = 8</b> for a patient who is added or removed" in headline
    assert re.search(r"; [\d.]+ if replaced</span>", headline)
    found = json.loads(json.dumps(facts(Run.read(run_folder)), allow_nan=False))
    assert found["epsilon_by_queries"] == []
    assert found["epsilon_by_rounds"]["releases/adapters"][-1]["rounds"] == 2
    (release,) = found["releases"]
    assert release["kind"] == "adapters"
    assert release["epsilon"].keys() == {"membership", "patient"}
