"""`canal federation` as people type it."""

import json

import pytest

from tiny import SITES
from typed import call

pytest.importorskip("nvflare", reason="NVIDIA FLARE is absent; pip install 'canal[federation]'")

KITS = ("--server", "localhost", "--admin", "pi@canal.org")
NAMES = [word for name in SITES for word in ("--site", name)]


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    home = tmp_path_factory.mktemp("kits")
    made = call(home, "federation", "provision", "kits", *KITS, *NAMES, "--json")
    return home / "kits", json.loads(made)


def test_kits_for_everyone_and_fingerprints_to_compare(kits, tmp_path):
    folder, told = kits
    assert set(told["kits"]) == {"server", "admin", *SITES}
    assert set(told["roster"]) == set(SITES)
    for name in SITES:
        home = folder / "kits" / name / "canal"
        assert json.loads((home / "roster.json").read_text()) == told["roster"]
        shown = json.loads(call(tmp_path, "federation", "identity", home, "--json"))
        assert shown == {"site": name, "fingerprint": told["roster"][name]}
    again = call(tmp_path, "federation", "provision", folder, *KITS, *NAMES, code=2)
    assert "is not empty, and kits are made once" in again
    printed = call(tmp_path, "federation", "provision", "others", *KITS, *NAMES)
    assert "to be compared by phone" in printed
    assert all(name in printed for name in SITES)


def test_an_identity_that_nobody_else_ever_had(kits, tmp_path):
    (tmp_path / "site.toml").write_text('name = "north"\n')
    first = call(tmp_path, "federation", "identity", ".", "--json")
    assert first == call(tmp_path, "federation", "identity", ".", "--json")
    assert json.loads(first)["fingerprint"] != kits[1]["roster"]["north"]
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600


def test_what_is_said_when_nothing_is_up(kits, tmp_path):
    folder, told = kits
    admin = told["kits"]["admin"]
    (tmp_path / "order.toml").write_text('queries = "q"\ninit = "i"\nouts = "o"\n')
    for words, said in (
        (("status", "--kit", admin), "localhost:8002 does not answer"),
        (("status",), "say whose"),
        (("status", "--kit", "."), "not an admin's kit"),
        (("submit", "order.toml", "--kit", admin), "did you mean out?"),
        (("status", "--site", "."), "cannot read site.toml"),
    ):
        assert said in call(tmp_path, "federation", *words, code=2)
    told = call(tmp_path, "federation", "status", "--site", folder / "kits" / "north" / "canal")
    assert told == "This site took part in nothing yet.\n"


@pytest.mark.slow
def test_a_rehearsal(checkpoints, arrays, tmp_path):
    from PIL import Image

    for part, values in (("images", arrays.images), ("masks", arrays.masks * 255)):
        (tmp_path / "asked" / part).mkdir(parents=True)
        for name, image in zip(arrays.ids, values, strict=True):
            Image.fromarray(image[0]).save(tmp_path / "asked" / part / f"{name}.png")
    options = ["--init", checkpoints.init, "--queries", "asked", "--out", "release"]
    for teacher in checkpoints.teachers:
        options += ["--teacher", teacher]
    call(tmp_path, "federation", "simulate", *options, "--json")
    shown = " ".join(call(tmp_path, "release", "show", "release").split())
    assert "Secure sum of 3 sites" in shown
    assert "NOT PRIVATE" in shown
    home = tmp_path / "release.rehearsal" / "sites" / "north"
    told = json.loads(call(tmp_path, "federation", "status", "--site", home, "--json"))
    assert [(entry["state"], entry["kind"]) for entry in told["sessions"]] == [
        ("finished", "features")
    ]
    # Asked for again, it is found.
    assert "protects nobody" in call(tmp_path, "federation", "simulate", *options)
