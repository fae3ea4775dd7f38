"""`canal attack`: three attacks on one small release, their files, and what they refuse."""

import json
import shlex

import pytest

from canal.cli import app
from canal.errors import DataError, InvalidValueError
from canal.report.run import Run

SITES = ("dermoscopy", "endoscopy", "ultrasound")
SHORT = "--steps 2 --batch-size 4 --size 32"
SOURCE = "--data data --split split.json"
TEACHERS = " ".join(f"--teacher {site}" for site in SITES)
ASKED = f"{TEACHERS} --queries data --split split.json"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("attacked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("CANAL_CACHE", str(home / "cache"))
        for line in (
            "data synthetic data --count 60 --size 32",
            "data split data --partition site --recipient 8 --out split.json",
            f"init --out init --base-channels 8 {SOURCE} {SHORT}",
            *(f"teacher train {SOURCE} --cohort {s} --init init --out {s} {SHORT}" for s in SITES),
            f"release create {ASKED} --init init --seed 1 --out release",
        ):
            assert not app(line.split(), standalone_mode=False)
    return home


@pytest.fixture
def call(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    monkeypatch.setenv("CANAL_CACHE", str(home / "cache"))

    def typed(line):
        assert not app(shlex.split(line), standalone_mode=False), line
        return capsys.readouterr().out

    return typed


def test_all_attacks_end_in_one_report(home, call, tmp_path):
    said = call(f"attack membership release {ASKED} --out found/images.json")
    assert said.startswith("The attack tells")
    assert said.endswith("found/images.json\n")
    patients = f"--level patient --site {SITES[0]} --init init --shadows 8 --runs shadows"
    own = tmp_path / "own.json"
    said = call(f"attack membership release {ASKED} {patients} --private {own}")
    # What was found of the hospital's own patients, their number included, is in its file alone.
    assert said == f"{own}\n"
    assert own.stat().st_mode & 0o777 == 0o600
    found = json.loads(own.read_text())["found"]
    assert found["allowed"]["unit"] == "patient"
    assert 0 <= found["control"]["auc"] <= 1
    assert len(list((home / "shadows").iterdir())) == 8
    assert "This is no terminal" in call(f"attack membership release {ASKED} {patients}")
    (home / "own.json").write_bytes(own.read_bytes())
    with pytest.raises(DataError, match="must not leave the hospital"):
        call("report .")
    (home / "own.json").unlink()
    call(f"attack membership release {ASKED} {patients} --canaries 4 --out found/patients.json")
    said = call(
        f"attack inversion release {ASKED} --steps 2 --out found/pictures.json --pictures sheet.png"
    )
    assert "the mean image, which knows nothing of them" in said
    assert (home / "sheet.png").stat().st_size > 1000
    call("audit release --draws 1000 --out found/audit.json")
    run = Run.read(home)
    assert {attack.unit for attack in run.attacks} == {"image", "patient"}
    assert {each.name for each in run.evidence} == {"Feature inversion", "Audit"}
    call("report .")
    page = (home / "report.html").read_text()
    assert "Membership of 4 canaries" in page
    assert "of dermoscopy" not in page


def test_one_patient_less_is_a_canary(home, call, tmp_path):
    """Trained with the same seed but for one patient; the exact mu is within what is claimed."""
    from canal.data.load import load

    person = load(home / "data", size=32, split=home / "split.json", part=SITES[0]).patients
    name = next(iter(person.values()))
    trained = f"teacher train {SOURCE} --cohort {SITES[0]} --init init {SHORT}"
    call(f"{trained} --out less --without {shlex.quote(name)}")
    ask = f"{TEACHERS} --queries data --split split.json --without less"
    own = tmp_path / "own.json"
    call(f"audit release {ask} --draws 1000 --private {own}")
    canary = json.loads(own.read_text())["canary"]
    assert 0 < canary["mu"] <= canary["allowed"]["mu"]
    assert canary["holds"]


def test_canaries_who_left_no_trace_show_nothing(home, call):
    """Two steps of training: without noise there is no more to see, and it is said."""
    asked = f"{ASKED} --level patient --site {SITES[0]} --init init --shadows 8 --canaries 4"
    said = call(f"attack membership release {asked} --runs planted --out found/canaries.json")
    found = json.loads((home / "found/canaries.json").read_text())
    assert found["attack"] == "membership of 4 canaries (LiRA, 8 shadows)"
    assert found["members"] == found["others"] == 16
    low, high = found["control"]["auc_interval"]
    assert ("The attack shows nothing: even without noise its AUC is" in said) == (low <= 0.5)
    assert low < found["control"]["auc"] <= high


def test_patients_of_gradient_rounds(home, call, tmp_path):
    rounds = "--rounds 2 --part norms --part head --directions 0"
    call(f"adapters train {SOURCE} --init init --out rounds {rounds} --patients 30 --seed 1")
    ask = "attack membership rounds --level patient --init init --queries data --split split.json"
    call(f"{ask} --private {tmp_path / 'own.json'}")
    found = json.loads((tmp_path / "own.json").read_text())["found"]
    assert found["control"]["auc"] == 1
    assert found["allowed"]["unit"] == "membership"
    said = call(f"{ask} --canaries 4 --out found/rounds.json")
    assert "Without noise the same attack has an AUC of" in said
    call("report .")
    assert "canaries in the sums of all rounds" in (home / "report.html").read_text()
    for words, reason in (
        (ASKED, "say --level patient, and leave --teacher out"),
        ("--level patient", "shadows and rounds start where the release did; give --init"),
        ("--level patient --init init --cohort data", "give --cohort for each of them"),
        (f"--level patient --init init{3 * ' --cohort data'}", "give --others or --split"),
        (f"{ask[25:]} --canaries 1", "canaries = 1 must be at least 2"),
        (f"{ask[25:]} --canaries 99", "canaries = 99 are made of as many people, and there are"),
    ):
        with pytest.raises(InvalidValueError, match=reason):
            call(f"attack membership rounds {words}")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("membership release --queries data", "give --teacher for every site, and --queries"),
        (f"membership release {TEACHERS} --queries data", "give --others or --split"),
        (f"membership release {ASKED} --level patient --init init --site moon", "--site must be"),
        (f"membership release {ASKED} --level patient --site {SITES[0]}", "give --init"),
        (f"membership release {ASKED} --others data", "not members"),
        (f"membership release {ASKED} --canaries 4", "--canaries is of an attack on patients; say"),
        ("membership release --level patient --out x.json", "keep it with --private FILE, or look"),
        (
            "membership release --level patient --json",
            "--json is for the public, and what is",
        ),
        ("membership release --private x.json", "only --level patient without --canaries"),
        ("membership release --level patient --private x.json", "which holds what others may read"),
        (
            f"membership release {ASKED} --canaries 4 --init init",
            "--canaries and --init are of an attack on patients; say --level patient, or leave",
        ),
    ],
)
def test_what_is_missing_is_said(call, words, reason):
    with pytest.raises(InvalidValueError, match=reason):
        call(f"attack {words}")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        *((f"--shadows {n}", f"--shadows {n} must be even and at least 6") for n in (2, 4, 7)),
        ("--shadows 4 --canaries 4", "--shadows 4 must be even and at least 6"),
        ("--canaries 1", "canaries = 1 must be at least 2"),
        ("--canaries -3", "canaries = -3 must be at least 2"),
        ("--canaries 99", "canaries = 99 are made of as many people, and there are"),
    ],
)
def test_what_cannot_work_is_refused_before_a_shadow_is_trained(
    home, call, monkeypatch, flags, reason
):
    def refuse(*given, **more):
        raise AssertionError("a shadow was trained")

    monkeypatch.setattr("canal.attacks.lira.train", refuse)
    asked = f"{ASKED} --level patient --site {SITES[0]} --init init --runs few {flags}"
    with pytest.raises(InvalidValueError, match=reason):
        call(f"attack membership release {asked}")
    assert not (home / "few").exists()


def test_the_fewest_shadows_are_enough(call, tmp_path):
    """The bound is where the attack itself begins to work, not above it."""
    asked = f"{ASKED} --level patient --site {SITES[0]} --init init --runs fewest --shadows 6"
    call(f"attack membership release {asked} --private {tmp_path / 'own.json'}")
    assert "6 shadows" in json.loads((tmp_path / "own.json").read_text())["found"]["attack"]


def test_nobody_of_that_name(call):
    with pytest.raises(DataError, match="nobody called 'Nemo'"):
        call(
            f"teacher train {SOURCE} --cohort {SITES[0]} --init init --out x --without Nemo {SHORT}"
        )
