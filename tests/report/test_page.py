"""The page says what was found, to everyone."""

import base64
import csv
import io
import json
import re
import shutil
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from PIL import Image

from canal.features.store import Release
from canal.gradients.store import AdapterRelease
from canal.learning import checkpoint
from canal.learning.prediction import predict
from canal.privacy import Participants
from canal.privacy.events import Guarantee
from canal.release.digits import number, upwards
from canal.report.adversary import _visible
from canal.report.arms import Arms
from canal.report.costs import Training, epsilon_by_queries
from canal.report.facts import facts
from canal.report.run import Run
from report.pages import page

SVG = "{http://www.w3.org/2000/svg}"
SECTIONS = ["help", "protect", "budget", "Noise", "rounds", "attacker", "looks like", "reproduce"]


@pytest.fixture(scope="module")
def made(made_run, arrays):
    return page(made_run, arrays)


def dice(folder):
    with (folder / "scores.csv").open() as file:
        return {row["id"]: float(row["dice"]) for row in csv.DictReader(file)}


def test_sections_come_by_importance(made):
    assert len(made.headings) == len(SECTIONS)
    assert all(w in heading for w, heading in zip(SECTIONS, made.headings, strict=True))


def test_the_page_is_alone(made):
    assert not made.tags & {"script", "link", "iframe", "object", "embed", "a", "base"}
    rest = re.sub(
        r'xmlns="http://www.w3.org/2000/svg"|data:image/png;base64,[\w+/=]+', "", made.html
    )
    assert not re.search(r"https?:|//|url\(|@import", rest)
    sources = [value for name, value in made.attributes if name in ("src", "href", "srcset")]
    assert all(value.startswith("data:image/png;base64,") for value in sources)
    ids = [value for name, value in made.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in made.html


def test_drawings_are_said_in_words(made):
    assert len(made.drawings) > 10
    for svg in made.drawings:
        prefix = SVG if svg.tag.startswith(SVG) else ""
        assert svg.get("role") == "img"
        assert svg.find(f"{prefix}title").text
        assert svg.find(f"{prefix}desc").text


def test_nothing_reads_like_a_program(made):
    words = re.sub(r"\b[0-9a-f]{12,}\b", "", "\n".join(made.text))
    assert not re.search(r"\b(None|nan|inf|True|False|Infinity)\b", words)
    assert not re.search(r"\de[+-]?\d", words)
    assert not re.search(r"\d\.\d{5}", words)


def test_dice_and_differences(made, made_run):
    alone = dice(made_run / "s-alone")
    for folder, name in (
        ("s-canal", "CANAL, paper’s"),
        ("s-honest", "CANAL, patient’s"),
        ("s-pooled", "Everybody"),
        ("hospitals/north", "Teacher of north"),
    ):
        found = dice(made_run / folder)
        row = made.starting(name)[0]
        mean = np.mean(list(found.values()))
        assert row[2].startswith(f"{100 * mean:.1f}")
        low, high = map(float, re.fullmatch(r"[\d.]{4}([\d.]+) to ([\d.]+)", row[2]).groups())
        assert low < 100 * mean < high
        less = 100 * np.mean([found[image] - alone[image] for image in found])
        assert row[3].replace("−", "-").startswith(f"{less:+.1f}")
    assert made.starting("Alone")[0][3] == "–"


def test_verdicts_are_plain(made):
    assert re.search(
        r"CANAL, paper’s ε = 8 − alone: \+\d+\.\d points .* better on these 10", made.words
    )
    assert "CANAL, patient’s ε = 8 − alone: −" in made.words
    assert "Uniform, paper’s ε = 8 − alone" in made.words
    assert "from one seed" in made.words
    assert "intervals are over test cases only" in made.words


def test_whiskers_are_where_the_numbers_say(made, made_run):
    labels = re.findall(r'<span style="left:([\d.]+)%">(\d+)</span>', made.html)
    slope, offset = np.polyfit(*np.array(labels, dtype=float).T, 1)
    drawn = {svg.find("title").text: svg for svg in made.drawings if svg.get("class") == "whiskers"}
    for folder, name in (("s-canal", "CANAL, paper’s ε = 8"), ("s-alone", "Alone")):
        dot = float(drawn[f"Dice of {name}"].find("circle").get("cx")[:-1])
        assert slope * dot + offset == pytest.approx(
            100 * np.mean(list(dice(made_run / folder).values())), abs=0.05
        )
    # Beyond the axis, which is for the students.
    assert drawn["Dice of Teacher of north"].find("circle") is None
    assert drawn["Dice of Teacher of north"].find("text").text == "◂"


def test_the_headline(made, made_run):
    before, after = (
        f"{100 * np.mean(list(dice(made_run / name).values())):.1f}"
        for name in ("s-alone", "s-canal")
    )
    headline = re.search(r"<h1>(.*?)</h1>", made.html, re.DOTALL)[1]
    assert f"<b>{before} → {after}</b>" in headline
    promise = Release.open(made_run / "releases" / "canal").statement["guarantee"]["patient"]
    assert f"<b>ε = {number(upwards(promise['epsilon']))}</b>" in headline
    assert "Two hospitals (north and south) trained teachers." in made.words
    assert "asked about 12 query images and has labels of 12" in made.words
    assert "Five releases were made: Uniform, paper’s ε = 8; CANAL, paper’s ε = 8; " in made.words


def test_who_is_protected(made, made_run):
    for name, start in (("canal", "CANAL, paper’s"), ("uniform", "Uniform, paper’s")):
        statement = Release.open(made_run / "releases" / name).statement
        row = made.starting(start)[1]
        for cell, unit in zip(row[1:4], ("patient", "image", "paper"), strict=True):
            epsilon = number(upwards(statement["guarantee"][unit]["epsilon"]))
            assert cell == epsilon + ("asked for" if unit == "paper" else "")
        assert row[4] == statement["guarantee"]["patient"]["reading"]
    seeded = made.starting("CANAL, patient’s")[1]
    assert "NOT PRIVATE" in seeded[0]
    # Made with a seed: nothing is promised, and what a secret would have given is said to be that.
    assert seeded[1].startswith("noneasked forif secret: ")
    assert 7.99 <= float(seeded[1].partition(": ")[2]) <= 8
    assert "NOT PRIVATE" in made.starting("No noise")[0][0]
    assert made.starting("No noise")[0][1:4] == ["none"] * 3


def test_adapters_stand_beside_features(made, made_run):
    """Whose epsilon it is, is said wherever the number is."""
    statement = AdapterRelease.open(made_run / "releases" / "adapters").statement
    added, replaced = (
        number(upwards(statement["guarantee"][unit]["epsilon"]))
        for unit in ("membership", "patient")
    )
    assert float(added) < float(replaced)
    tuned, promised = made.starting("CANAL adapters, ε = 8ε")[0], made.starting("CANAL adapters")[3]
    assert tuned[0].endswith(f"ε of a patient added or removed; {replaced} if replaced")
    assert promised[1:4] == [f"{added}asked forif replaced: {replaced}", "–", "–"]
    assert promised[4] == statement["guarantee"]["membership"]["reading"]
    assert "small print; no query image has a part in adapters" in made.words
    assert "CANAL adapters, ε = 8: all of it went to 2 rounds, in equal parts." in made.words
    assert "Patients of two hospitals, 8 as stated, taught " in made.words
    for used in ("", ", predictions", ", not tuned"):
        assert f"CANAL adapters, ε = 8{used} − alone: " in made.words
    svg = next(svg for svg in made.drawings if svg[0].get("id") == "rounds-0-title")
    assert {p.get("class") for p in svg.iter(f"{SVG}path") if "line" in p.get("class")} == {
        "line patient",
        "line often",
    }


def test_budgets(made, made_run):
    split = Release.open(made_run / "releases" / "canal").statement["split"]
    row = made.starting("CANAL, paper’s")[2]
    assert row[2:] == [f"{100 * split[part]:g} %" for part in ("caps", "importance", "features")]


def test_noise_is_drawn_for_canal_and_uniform(made, made_run):
    svg = next(svg for svg in made.drawings if svg[0].get("id") == "noise-title")
    paths = {path.get("class"): path.get("d") for path in svg.iter(f"{SVG}path")}
    channels = len(Release.open(made_run / "releases" / "canal").channels)
    assert paths["dots"].count("M") == channels
    assert paths["crosses"].count("M") == channels
    heights = set(re.findall(r"M[\d.]+ ([\d.]+)m", paths["crosses"]))
    assert len(heights) == 1  # evenly spread


def test_epsilon_against_queries(made_run):
    """Held against the accounting of a plan that was asked for so."""
    run = Run.read(made_run)
    chosen = next(each for each in run.releases if each.where == "releases/canal")
    table = epsilon_by_queries(chosen, Training(steps=3, batch_size=4))
    asked = chosen.plan.participants.queries
    here = next(row for row in table if row["queries"] == asked)
    assert here["once"] == pytest.approx(chosen.epsilon("paper"))
    assert here["patient"] == pytest.approx(chosen.epsilon("patient"))
    assert here["releases"] == 1
    assert here["every step"] == pytest.approx(here["once"])
    fewer = next(row for row in table if row["queries"] == 1)
    assert fewer["releases"] == 12
    people = Participants(2, 1)
    calibrated, plan = chosen.calibrated, chosen.plan
    events = {event.name: event for event in calibrated.guarantee.events}
    again = Guarantee(
        (
            replace(events["caps"], exposures=people.statistic(plan.bound)),
            replace(events["importance"], exposures=people.statistic(1.0)),
            replace(events["features"], exposures=people.features(plan.diameter)).times(12),
        )
    )
    assert fewer["every step"] == pytest.approx(again.epsilon(1e-5, "paper", "paper"))


def test_attacks(made):
    assert made.starting("AUC")[0][1] == "0.5300.400 to 0.660"
    normal = NormalDist()
    allowed = 100 * normal.cdf(normal.inv_cdf(0.01) + 0.8)
    found, most = made.starting("Found at 1 %")[0][1:]
    assert found == "2 %"
    assert allowed <= float(re.fullmatch(r"at most ([\d.]+) %", most)[1]) < allowed + 0.001
    assert made.starting("Found at 0.1 %")[0][1] == "0 %"
    assert made.words.count("This attack got nothing; the guarantee, not the attack,") == 1
    assert "Noise of 10⁻⁵ was guessed." in made.words
    svg = next(svg for svg in made.drawings if svg[0].get("id") == "roc-0-title")
    assert {p.get("class") for p in svg.iter(f"{SVG}path") if "line" in p.get("class")} == {
        "line ours",
        "line allowed",
        "line chance",
    }


def test_a_curve_is_a_staircase():
    """Nothing was found below 2 % false alarms, so nothing is drawn there."""
    assert _visible([(0, 0.0), (0.02, 0.05), (1, 1)], 1e-3) == [
        (1e-3, 1e-3),
        (0.02, 1e-3),
        (0.02, 0.05),
        (1, 0.05),
        (1, 1),
    ]


def test_an_attack_that_got_something(run_folder):
    path = run_folder / "attack.json"
    found = json.loads(path.read_text())
    found |= {
        "auc": 0.9,
        "auc_interval": [0.8, 0.95],
        "like_chance": False,
        "allowed": None,
        "release": "f" * 64,
    }
    path.write_text(json.dumps(found))
    read = page(run_folder)
    assert "This attack got nothing" not in read.words
    assert "There is no noise to hold it against." in read.words
    assert "release ffffffffffff…, which is not in this run" in read.words
    assert read.starting("AUC")[0][2] == "anything"


def test_pictures_show_what_the_networks_say(made, made_run, arrays):
    shown = [value for name, value in made.attributes if name == "alt"]
    assert len(shown) == 5 * 6
    scores = dice(made_run / "s-canal")
    worst = min(scores, key=scores.get)
    assert shown[:2] == [f"Image {worst}", f"Truth of {worst}, outlined"]
    order = [alt.split(" on ")[0] for alt in shown[2:6]]
    assert order == [
        "Uniform, paper’s ε = 8",
        "CANAL, paper’s ε = 8",
        "Alone",
        "CANAL adapters, ε = 8",
    ]
    best = max(scores, key=scores.get)
    assert shown[-6] == f"Image {best}"
    sources = [value for name, value in made.attributes if name == "src"]
    with Image.open(io.BytesIO(base64.b64decode(sources[3].partition(",")[2]))) as picture:
        drawn = (np.asarray(picture) == (255, 170, 40)).all(axis=2)
    network, _ = checkpoint.load(made_run / "s-canal")
    mask = predict(network, arrays.rows([worst]))[0, 0]
    # Of the mask that is drawn, not of a table that may be about other images.
    truth = arrays.rows([worst]).masks[0, 0]
    overlap = 2 * (mask & truth).sum() / (mask.sum() + truth.sum())
    assert shown[3].endswith(f"Dice {100 * overlap:.0f}")
    inside = np.kron(mask, np.ones((6, 6))).astype(bool)
    assert drawn.shape == inside.shape
    assert drawn.any() == inside.any()
    assert not drawn[~inside].any()


def test_no_patient_is_shown_unless_asked_for(made_run):
    read = page(made_run)
    assert "img" not in read.tags
    assert "img-src" not in read.html
    assert "shows no patient’s image unless it is asked to" in read.words
    assert "--data DIR" in read.words


def test_how_to_reproduce(made, made_run):
    assert "canal teacher train --cohort <north>" in made.words
    for release in Run.read(made_run).releases:
        assert release.digest[:12] in made.words
    assert made.starting("s-canal")[0][1:] == ["12", "3", "4", "0"]
    assert "another run differs by that noise" in made.words


def test_the_same_run_has_the_same_page(made_run, made, arrays):
    again = page(made_run, arrays)
    assert again.html == made.html


def test_facts_are_those_of_the_page(made_run, made):
    run = Run.read(made_run)
    found = json.loads(json.dumps(facts(run), allow_nan=False))
    assert [arm["name"] for arm in found["arms"]] == [arm.name for arm in Arms.of(run).measured]
    for arm in found["arms"]:
        assert made.starting(arm["name"])[0][2].startswith(f"{100 * arm['dice']:.1f}")
    for sentence in (*found["verdicts"], found["done"]):
        assert sentence in made.words
    assert found["attacks"][0]["tpr"] == {"0.01": 0.02, "0.001": 0.0}
    assert found["headline"] == {"student": "s-canal", "release": "releases/canal"}


def test_an_even_spread_is_not_said_to_favour_channels(run_folder):
    """Two uniform releases alone: neither is compared with itself."""
    for name in ("canal", "honest", "none"):
        shutil.rmtree(run_folder / "releases" / name)
    shutil.copytree(run_folder / "releases" / "uniform", run_folder / "releases" / "again")
    read = page(run_folder)
    assert "Noise on each channel" in read.words
    assert "More important channels" not in read.words
    svg = next(svg for svg in read.drawings if svg[0].get("id") == "noise-title")
    assert "crosses" not in {path.get("class") for path in svg.iter(f"{SVG}path")}
