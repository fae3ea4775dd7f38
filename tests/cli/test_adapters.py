"""Adapters on the command line: the lines of their page, from a budget to masks, and refusals."""

import json
import re
import shlex
from io import StringIO
from pathlib import Path

import pytest
import torch

from canal.gradients.store import AdapterRelease
from canal.learning import checkpoint
from canal.privacy import Ledger
from canal.release import publish
from typed import call_here, here

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
SITES = ("dermoscopy", "endoscopy", "ultrasound")
SOURCE = ("--init", "init", "--data", "data", "--split", "split.json")
TRAIN = ("adapters", "train", *SOURCE)
FEW = (*TRAIN, "--part", "norms", "--part", "head")
ADAPTERS = ("--mode", "adapters", "--release", "adapters")
SHORT = ("--size", "32", "--steps", "4", "--save-every", "2", "--batch-size", "4")


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A folder in which every command of the page was typed; what each of them said."""
    home, said = tmp_path_factory.mktemp("adapters"), {}
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            name, *arguments = shlex.split(line)
            assert name == "canal"
            if arguments[0] == "audit":
                arguments += ["--draws", "2000"]  # fewer than the page's, and as good here
            said[" ".join(arguments[:2])] = call_here(home, *arguments)
    return home, said


@pytest.fixture(scope="module")
def home(story):
    return story[0]


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_page_tells_what_is_said(story):
    _, said = story
    first, _, *checks = said["release verify"].splitlines()
    assert first.startswith("A patient's epsilon: ")
    assert {line.split()[0] for line in checks if line} == {"holds"}
    assert "charged once to dermoscopy, endoscopy, ultrasound" in said["release verify"]
    shown = " ".join(said["release show"].split())
    assert re.search(
        r"488385 parameters taught in \d+ directions, in 5 rounds by 20 patients \(as stated\)",
        shown,
    )
    assert "where a patient is added or removed (what DP-SGD reports), 19.13 where one is" in shown
    rows = {line.split()[0]: line.split()[1] for line in said["account adapters"].splitlines()[4:6]}
    stated = re.findall(r"^\| `([\w-]+)`.*\| `(\w+)` \|.* ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert {unit: epsilon for _, unit, epsilon in stated} == rows
    assert "20 masks" in said["student predict"]
    card = (story[0] / "adapters" / "card.html").read_text()
    assert "all weights" in card
    assert "The directions, <code>basis.safetensors</code>" in card
    assert "&lt;" not in card
    assert "One patient added or removed, on all 5 rounds of this folder" in said["audit adapters"]
    assert (
        "What real patients lost was looked at, and the accounting covers it"
        in (said["audit adapters"])
    )
    assert "Nothing that was stated is refuted" in said["audit adapters"]
    # The last line of the page that trains adapters is the rehearsal.
    assert said["adapters train"].startswith("NOT PRIVATE: the noise is seeded")


def test_a_second_run_changes_nothing(home):
    before, rows = contents(home / "adapters"), Ledger(home / "ledger.sqlite").rows()
    asked = ("--patients", "20", "--rounds", "5", "--out", "adapters", "--json")
    found = json.loads(call_here(home, *TRAIN, *asked))
    assert contents(home / "adapters") == before
    assert Ledger(home / "ledger.sqlite").rows() == rows
    assert {row.action for row in rows} == {"budget", "reserve", "bind", "commit"}
    assert found["kind"] == "adapters"
    assert found["private"]
    assert (found["rounds"], found["patients"], found["relation"]) == (5, 20, "add-remove")
    assert {(each["cohort"], each["unit"]) for each in found["ledger"]["charges"]} == {
        (site, unit) for site in SITES for unit in ("membership", "patient")
    }
    shown = json.loads(call_here(home, "release", "show", "adapters", "--json"))
    assert shown.pop("statement")["relation"] == "add-remove"
    assert shown | {"path": ""} == found | {"path": ""}


def test_priced_for_programs_at_another_delta(home):
    found = json.loads(call_here(home, "account", "adapters", "--delta", "1e-6", "--json"))
    units = found["units"]
    assert list(units) == ["membership", "patient"]
    assert 8 < units["membership"]["epsilon"] < units["patient"]["epsilon"]
    assert units["patient"]["rho"] == pytest.approx(4 * units["membership"]["rho"])


def test_what_was_taught_is_a_network_like_the_one_before(home):
    before, after = (checkpoint.load(home / name)[0] for name in ("init", "taught"))
    moved = {
        name
        for (name, one), other in zip(before.named_parameters(), after.parameters(), strict=True)
        if not torch.equal(one, other)
    }
    assert moved
    made = checkpoint.describe(home / "taught")
    assert (made.notes["role"], made.notes["mode"]) == ("student", "applied")
    again = contents(home / "taught")
    call_here(
        home, "adapters", "apply", "--release", "adapters", "--init", "init", "--out", "taught"
    )
    assert contents(home / "taught") == again


def test_students_of_either_way(home):
    learned = {name: checkpoint.describe(home / name).notes for name in ("tuned", "pupil")}
    assert [notes["mode"] for notes in learned.values()] == ["adapters", "predictions"]
    assert learned["pupil"]["images"] == learned["tuned"]["images"] + 20
    assert learned["pupil"]["labelled"] == learned["tuned"]["labelled"]
    assert learned["pupil"]["release"] == learned["tuned"]["release"]
    chosen = ("--data", "data", "--split", "split.json", "--json")
    for name in ("taught", "pupil"):
        found = json.loads(call_here(home, "student", "evaluate", "--student", name, *chosen))
        assert found["images"] == len(json.loads((home / "split.json").read_text())["test"])


def test_a_count_costs_its_share(home):
    budget = ("--cohort", "ultrasound", "--unit", "membership", "--epsilon", "2")
    call_here(home, "ledger", "budget", "counted.sqlite", *budget)
    asked = ("--patients", "50", "--count-patients", "0.2", "--epsilon", "2", "--rounds", "2")
    taught = ("--part", "norms", "--rank", "1", "--directions", "3")
    more = ("--cohort", "ultrasound", "--allocation", "channels", *taught)
    where = ("--ledger", "counted.sqlite", "--out", "counted")
    said = call_here(home, *FEW, *asked, *more, *where)
    assert "patients (counted with noise) of 1 site;" in " ".join(said.split())
    assert "counted is to be handed out" in said
    said = call_here(home, "account", "counted").splitlines()
    assert said[2].split() == ["unit", "epsilon", "exact", "rho", "rounds", "count"]
    assert said[4].split()[-2:] == ["80.0%", "20.0%"]
    assert said[5].split()[-2:] == ["94.1%", "5.9%"]  # the rounds cost four times as much
    checked = json.loads(
        call_here(home, "release", "verify", "counted", "--ledger", "counted.sqlite", "--json")
    )
    assert checked["holds"]
    assert checked["private"]


def test_what_is_public_is_measured_again_by_who_holds_it(story):
    home, said = story
    checks = {line[6:].split("  ")[0].strip(): line for line in said["release verify"].splitlines()}
    for name in ("subspace", "clip norms", "allocation"):
        assert "to the last bit" in checks[name]
    words = ("release", "verify", "adapters")
    alone = json.loads(call_here(home, *words, "--json"))["checks"]
    (line,) = (check for check in alone if check["what"] == "public inputs")
    assert line["passed"] is None
    assert "--init and --queries" in line["detail"]
    where = ("--init", "init", "--queries", "data", "--split", "split.json")
    for only, missing in ((where[:2], "--queries"), (where[2:4], "--init"), (where[4:], "--init")):
        assert f"{missing} is missing" in call_here(home, *words, *only, code=2)
    # The folder that it is, without the split: other images than those that were measured.
    said = call_here(home, *words, *where[:4], code=2)
    assert "1 check FAILS (queries)" in said.splitlines()[0]


def test_without_noise_only_if_that_is_said(home):
    asked = ("--patients", "30", "--rounds", "2", "--allocation", "none", "--out", "clear")
    assert "say --not-private" in call_here(home, *FEW, *asked, code=2)
    more = ("--not-private", "--views", "0", "--decay", "cosine")
    assert "NOT PRIVATE" in call_here(home, *FEW, *asked, *more)
    assert AdapterRelease.open(home / "clear").settings.decay == "cosine"
    said = call_here(home, "release", "verify", "clear", "--allow-not-private")
    assert "FAILS" not in said
    assert "NOT PRIVATE" in said.splitlines()[0]
    assert "NOT PRIVATE" in call_here(home, "account", "clear")
    words = ("adapters", "apply", "--release", "clear", *SOURCE[:2], "--out", "told")
    _, _, complained = here(home, home / "cache", *words)
    assert complained.startswith("clear: NOT PRIVATE")
    stamp = AdapterRelease.open(home / "clear").statement["stamp"]
    assert checkpoint.describe(home / "told").notes["stamp"] == stamp


def test_what_a_budget_refuses_is_refused_before_anything_is_measured(home, monkeypatch):
    from canal.gradients import start as shared

    monkeypatch.setattr(shared, "look", lambda *_, **__: pytest.fail("it was measured"))
    asked = ("--patients", "9", "--epsilon", "20", "--out", "nothing")
    said = call_here(home, *TRAIN, *asked, code=2)
    assert "epsilon 20 of this unit requested" in said


def test_another_number_is_named(home):
    asked = ("--patients", "20", "--rounds", "5", "--seed", "1", "--out")
    call_here(home, *FEW, *asked, "numbers")
    said = call_here(home, *FEW, *asked, "numbers", "--epsilon", "7", code=2)
    assert "epsilon = 8.0 there, 7.0 asked" in said


def test_a_number_that_is_far_off_is_asked_about_at_the_terminal_alone(home, monkeypatch):
    """What is here is shown to who sits there; no file has it, and no refusal."""
    words = (*FEW, "--patients", "99", "--rounds", "1", "--seed", "1", "--out", "far")
    with monkeypatch.context() as patched:
        patched.setattr("canal.cli.adapters._is_attended", lambda: True)
        patched.setattr("sys.stdin", StringIO("n\n"))
        said = call_here(home, *words, code=2)
        assert "nothing was charged" in said
        here_are = re.search(r"--patients 99, and (\d+) are here", said)[1]
        assert not (home / "far").exists()
        patched.setattr("sys.stdin", StringIO("y\n"))
        code, said, complained = here(home, home / "cache", *words)
        assert (code, f"and {here_are} are here" in complained) == (0, True)
        assert here_are not in said.replace("99", "").split()
    refused = call_here(home, *words[:-1], "far-again", code=2)
    assert here_are not in refused.split()
    call_here(home, *words[:-1], "far-yes", "--yes")
    for folder in ("far", "far-yes", "far.private", "far-yes.private"):
        for path in (home / folder).rglob("*.json"):
            assert "are here" not in path.read_text()
    assert contents(home / "far-yes") == contents(home / "far")


def test_stopped_it_goes_on_and_pays_once(home, monkeypatch):
    budget = [word for site in SITES for word in ("--cohort", site)]
    unit = ("--unit", "patient", "--epsilon", "8")
    call_here(home, "ledger", "budget", "stopped.sqlite", *budget, *unit)
    asked = ("--patients", "30", "--rounds", "3", "--relation", "replace", "--out", "stopped")
    words = (*FEW, *asked, "--ledger", "stopped.sqlite")

    write, full = publish.write_shard, [False, True]

    def write_once(*arguments):
        if full.pop(0):
            raise OSError(28, "No space left on device", "a disk")
        return write(*arguments)

    monkeypatch.setattr(publish, "write_shard", write_once)
    said = call_here(home, *words, code=2)
    assert "No space left on device" in said
    assert "it goes on where it stopped" in said
    monkeypatch.undo()
    assert not (home / "stopped").exists()
    (there,) = contents(home / "stopped.private" / "release").values()
    call_here(home, *words)
    assert (home / "stopped" / "rounds-00000.safetensors").read_bytes() == there
    rows = Ledger(home / "stopped.sqlite").rows()
    assert sum(row.action == "reserve" for row in rows) == 2 * len(SITES)
    said = call_here(home, *words[:-3], "elsewhere", "--ledger", "stopped.sqlite", code=2)
    assert "does not cover this release" in said


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "--patients is missing"),
        (("--count-patients", "0.01"), "--patients is missing"),
        (("--patients", "0"), "patients = 0"),
        (("--patients", "99"), "say --yes if it is meant, or give a number that anybody may know"),
        (("--patients", "2"), "is far from how many are here"),
        (("--patients", "2", "--count-patients", "0.01"), "is far from how many are here"),
        (("--patients", "9", "--count-patients", "1"), "count = 1.0"),
        (
            ("--patients", "9", "--count-patients", "0.1", "--relation", "replace"),
            "does not change how many",
        ),
        (("--patients", "9", "--relation", "other"), "--relation"),
        (("--patients", "9", "--epsilon", "-1"), "epsilon = -1"),
        (("--patients", "9", "--delta", "2"), "delta = 2"),
        (("--patients", "9", "--rounds", "0"), "rounds = 0"),
        (("--patients", "9", "--step", "0"), "step = 0"),
        (("--patients", "9", "--momentum", "1"), "momentum = 1"),
        (("--patients", "9", "--averaged", "2"), "averaged = 2"),
        (("--patients", "9", "--rank", "-1"), "rank = -1"),
        (("--patients", "9", "--rank", "2", "--part", "*"), "add nothing; name other parts"),
        (("--patients", "9", "--seed", "1", "--quantile", "2"), "quantile = 2"),
        (("--patients", "9", "--seed", "1", "--chunk", "0"), "chunk = 0"),
        (("--patients", "9", "--directions", "9999999"), "directions = 9999999"),
        (("--patients", "9", "--part", "nothing.*"), "no parameter is called 'nothing.*'"),
        (("--patients", "9", "--cohort", "recipient"), "'recipient' is no cohort of split.json"),
        (("--patients", "9", "--recipient", "pooled"), "that a hospital trains on"),
        (("--patients", "9", "--data", "more"), "one --data"),
        (("--patients", "9", "--ledger", "none.sqlite"), "--cohort ultrasound --unit membership"),
        (("--patients", "9", "--init", "tuned"), "tuned is no initialisation"),
        (("--patients", "9", "--epsilon", "20"), "does not cover this release"),
    ],
)
def test_refused_in_one_sentence(home, arguments, word):
    said = call_here(home, *TRAIN, *arguments, "--out", "nothing", code=2)
    assert word in said
    if not said.startswith("Usage"):
        assert len(said.strip().splitlines()) == 1
    assert not (home / "nothing").exists()


@pytest.mark.parametrize(
    ("sites", "word"),
    [
        (("--data", "data/endoscopy"), "give their folder with --queries"),
        (("--data", "more", "--queries", "more"), "give their folder with --queries"),
        (("--data", "more", "--data", "more", "--queries", "data"), "a folder and a name"),
        (("--data", "more", "--cohort", "a", "--cohort", "b", "--queries", "data"), "a folder and"),
        (("--data", "data", "--data", "data/endoscopy", "--queries", "more"), "at two sites"),
        (("--data", "data/endoscopy", "--queries", "data"), "images in common"),
        (("--data", "data", "--queries", "data/endoscopy"), "images in common"),
        (("--data", "data", "--split", "split.json", "--queries", "data/endoscopy"), "in common"),
        (("--data", "data", "--split", "split.json", "--queries", "."), "in common"),
    ],
)
def test_sites_without_a_split_have_their_own_folders(home, sites, word):
    asked = ("--init", "init", "--patients", "9", "--seed", "1", "--out", "nothing")
    assert word in call_here(home, "adapters", "train", *asked, *sites, code=2)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("student", "train", *SOURCE, *SHORT, "--release", "adapters"), "take mode adapters"),
        (("student", "train", *SOURCE, *SHORT, "--mode", "predictions"), "needs a release"),
        (
            ("student", "train", *SOURCE, *SHORT, "--mode", "alone", "--unlabelled", "more"),
            "mode alone has no use for --unlabelled",
        ),
        (
            ("student", "train", *SOURCE, *SHORT, "--init", "tuned", *ADAPTERS),
            "what was released says nothing about another network",
        ),
        (("adapters", "apply", "--release", "init", "--init", "init"), "holds no release"),
        (
            ("adapters", "apply", "--release", "adapters", "--init", "tuned"),
            "not the initialisation that the release started from",
        ),
    ],
)
def test_readers_are_told_what_fits(home, arguments, word):
    said = call_here(home, *arguments, "--out", "nothing", code=2)
    assert word in said
    assert len(said.strip().splitlines()) == 1
    assert not (home / "nothing").exists()


def test_a_forged_folder_is_found(home, tmp_path):
    from canal.release.manifest import Manifest

    for name, content in contents(home / "adapters").items():
        (tmp_path / name).write_bytes(content)
    text = (tmp_path / "manifest.json").read_text()
    content = json.loads(text)
    del content["digest"], content["format"]
    content["statement"]["guarantee"]["membership"]["epsilon"] = 1.0
    (tmp_path / "manifest.json").write_bytes(Manifest(**content).to_bytes())
    for words in (("release", "show", tmp_path), ("account", tmp_path)):
        assert "does not follow from the plan" in call_here(home, *words, code=2)
    call_here(home, "release", "verify", tmp_path, code=2)
