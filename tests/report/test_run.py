"""What a run folder holds: found at any depth, named by facts, and refused in one sentence."""

import copy
import json
import math
import os
import shutil
from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace

import pytest

from canal.errors import CanalError, DataError, InvalidValueError, ReleaseError
from canal.release.manifest import Manifest
from canal.report.arms import Arms, _order, main_features, main_release
from canal.report.published import names
from canal.report.run import Run

NAMES = [
    "Alone",
    "Noise only",
    "Uniform, paper’s ε = 8",
    "CANAL, paper’s ε = 8",
    "CANAL, patient’s ε = 8",
    "CANAL adapters, ε = 8",
    "CANAL adapters, ε = 8, predictions",
    "CANAL adapters, ε = 8, not tuned",
    "Without noise",
    "Everybody’s images pooled",
    "Teacher of north",
    "Teacher of south",
]


def test_everything_is_found(made_run):
    run = Run.read(made_run)
    assert len(run.networks) == 13
    assert [each.where for each in run.releases] == [
        f"releases/{name}" for name in ("adapters", "canal", "honest", "none", "uniform")
    ]
    assert [attack.where for attack in run.attacks] == ["attack.json"]
    assert run.commands.startswith("canal init")
    assert {network.where for network in run.having("teacher")} == {
        "hospitals/north",
        "hospitals/south",
    }


def test_arms_are_named_by_facts_and_in_the_order_of_the_story(made_run):
    arms = Arms.of(Run.read(made_run))
    assert [arm.name for arm in arms.measured] == NAMES
    assert [network.role for network in arms.unmeasured] == ["initialisation"]
    assert arms.main.network.where == "s-canal"
    assert arms.uniform(arms.main).network.where == "s-uniform"
    assert arms.noise_only(arms.main).network.where == "s-noise"


def test_names_do_not_depend_on_folders(run_folder):
    (run_folder / "s-canal").rename(run_folder / "s-alone-2")
    assert [arm.name for arm in Arms.of(Run.read(run_folder)).measured] == NAMES


def test_two_of_a_kind_are_told_apart_by_their_folder(run_folder):
    shutil.copytree(run_folder / "s-canal", run_folder / "again")
    shutil.copytree(run_folder / "releases" / "canal", run_folder / "copy")
    run = Run.read(run_folder)
    assert [arm.name for arm in Arms.of(run).students if "paper" in arm.name] == [
        "Uniform, paper’s ε = 8",
        "CANAL, paper’s ε = 8 (again)",
        "CANAL, paper’s ε = 8 (s-canal)",
    ]
    assert names(run.releases)["copy"] == "CANAL, paper’s ε = 8 (copy)"


def test_a_release_that_is_elsewhere_is_said_to_be(run_folder):
    shutil.rmtree(run_folder / "releases" / "canal")
    shutil.rmtree(run_folder / "releases" / "adapters")
    arms = Arms.of(Run.read(run_folder))
    pupil = next(arm for arm in arms.students if arm.network.where == "s-pupil")
    assert pupil.name.endswith("…, not in this run, predictions")
    elsewhere = next(arm for arm in arms.students if arm.network.where == "s-canal")
    assert elsewhere.name.endswith("…, not in this run")
    # The next best CANAL student takes the headline.
    assert arms.main.name == "CANAL, patient’s ε = 8"


def test_a_release_without_students_is_still_the_headline(run_folder):
    for folder in run_folder.glob("s-*"):
        shutil.rmtree(folder)
    run = Run.read(run_folder)
    assert main_release(run, Arms.of(run)).where == "releases/canal"


def test_adapters_take_the_headline_where_there_is_nothing_else(run_folder):
    for name in ("canal", "honest", "none", "uniform"):
        shutil.rmtree(run_folder / "releases" / name)
    for name in ("canal", "honest", "uniform", "none", "noise"):
        shutil.rmtree(run_folder / f"s-{name}")
    run = Run.read(run_folder)
    arms = Arms.of(run)
    assert arms.main.network.where == "s-adapters"
    assert main_release(run, arms).where == "releases/adapters"
    assert main_features(run, arms) is None


def test_adapters_without_noise_are_a_control(run_folder):
    """Ordered with the others that protect nobody, whatever they are used for."""
    arms = Arms.of(Run.read(run_folder))
    kept = next(arm for arm in arms.measured if arm.mode == "adapters")
    plan = replace(kept.published.plan, allocation="none")
    release = SimpleNamespace(plan=plan, manifest=kept.published.release.manifest)
    bare = replace(kept, published=replace(kept.published, release=release))
    assert bare.published.name == "CANAL adapters, no noise"
    assert not bare.learned
    ordered = sorted((*arms.measured, bare), key=_order)
    at = [arm.mode for arm in ordered].index("noiseless")
    assert bare in ordered[at : at + 2]


def test_nothing_to_report(tmp_path):
    with pytest.raises(InvalidValueError, match="canal init"):
        Run.read(tmp_path)
    with pytest.raises(InvalidValueError, match="no folder"):
        Run.read(tmp_path / "nowhere")


GOOD = "id,dice,iou,hd95\na,0.5,0.4,nan\n"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "id,dice,iou,hd95\n",
        "id,dice\na,0.5\n",
        GOOD.replace("0.5", "half"),
        GOOD.replace("0.5", "nan"),
        GOOD.replace("0.5", "1.5"),
        GOOD.replace("nan", "-1"),
        GOOD + "a,0.5,0.4,nan\n",
        "\x00\x00",
    ],
)
def test_broken_scores(run_folder, content):
    path = run_folder / "s-canal" / "scores.csv"
    path.write_text(content)
    with pytest.raises(DataError) as raised:
        Run.read(run_folder)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def change(content, **other):
    return json.dumps(json.loads(content) | other)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-9],
        lambda content: content.replace("attack/2", "attack/1"),
        lambda content: content.replace('"members"', '"member"'),
        lambda content: change(content, auc=1.2),
        lambda content: change(content, auc=math.nan),
        lambda content: change(content, auc="high"),
        lambda content: change(content, auc_interval=[0.5]),
        lambda content: change(content, roc=[[0.1]]),
        lambda content: change(content, tpr=[0.1]),
        lambda content: change(content, allowed={"unit": "image", "mu": -1}),
        lambda content: change(content, words=3),
    ],
)
def test_broken_attacks(run_folder, damage):
    path = run_folder / "attack.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(DataError) as raised:
        Run.read(run_folder)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("s-canal/checkpoint.json", CanalError),
        ("s-canal/settings.json", DataError),
        ("releases/canal/manifest.json", ReleaseError),
    ],
)
def test_other_broken_files(run_folder, file, error):
    (run_folder / file).write_text("{")
    with pytest.raises(error, match=file.split("/")[0]):
        Run.read(run_folder)


def test_files_of_others_are_left_alone(run_folder):
    before = Run.read(run_folder)
    (run_folder / "data").mkdir()
    (run_folder / "data" / "manifest.json").write_text('{"format": "web"}')
    (run_folder / "data" / "list.json").write_text("[broken")
    (run_folder / "data" / "about.json").write_text('["canal-attack/1"]')
    after = Run.read(run_folder)
    assert len(after.releases) == len(before.releases)
    assert len(after.attacks) == 1


def test_what_an_attack_is_held_against(made_run):
    (attack,) = Run.read(made_run).attacks
    normal = NormalDist()
    assert attack.allowed(0.01) == pytest.approx(normal.cdf(normal.inv_cdf(0.01) + 0.8))
    assert attack.allowed_auc == pytest.approx(normal.cdf(0.8 / math.sqrt(2)))
    assert attack.like_chance


@pytest.mark.parametrize("name", ["none", "adapters"])
def test_a_forged_promise_is_no_headline(run_folder, name):
    """A release that promises more than it can, its digest made anew."""
    place = run_folder / "releases" / name / "manifest.json"
    manifest = Manifest.read(place.parent)
    statement = copy.deepcopy(manifest.statement)
    statement["stamp"] = ""
    statement["guarantee"]["patient"] |= {"epsilon": 0.1, "reading": "You are safe."}
    place.write_bytes(replace(manifest, statement=statement).to_bytes())
    with pytest.raises(ReleaseError, match="canal release verify"):
        Run.read(run_folder)


def test_what_is_no_file_is_left_alone(run_folder):
    (run_folder / "nowhere.json").symlink_to(run_folder / "gone.json")
    os.mkfifo(run_folder / "pipe.json")
    assert len(Run.read(run_folder).attacks) == 1
