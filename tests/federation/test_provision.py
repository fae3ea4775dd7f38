from __future__ import annotations

import hashlib
import json
import os
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from canal.errors import FederationError
from canal.federation.identity import fingerprint
from canal.federation.job import connected, status, submit
from canal.federation.kit import AGGREGATION, HOSPITAL
from canal.federation.provision import Kits, provision

FLARE = "NVIDIA FLARE is absent; pip install 'canal[federation]'"
SITES = ["north", "south", "west"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    pytest.importorskip("nvflare", reason=FLARE)
    place = tmp_path_factory.mktemp("fed") / "federation"
    return provision(place, "canal.example.org", SITES, "admin@example.org", 8002)


def local(kit: Path, name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((kit / "local" / name).read_text())
    return content


def test_there_is_a_kit_for_each_and_nothing_else(kits: Kits) -> None:
    assert sorted(path.name for path in kits.folder.iterdir()) == [
        "authority",
        "kits",
        "project.yml",
        "roster.json",
    ]
    names = {path.name for path in (kits.folder / "kits").iterdir()}
    assert names == {"server", *SITES, "admin@example.org"}
    assert sorted(path.name for path in (kits.folder / "authority").iterdir()) == [
        "root.key",
        "root.pem",
    ]


def test_only_the_owner_can_read_anything(kits: Kits) -> None:
    for path in (kits.folder, *kits.folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, path
        assert path.is_dir() or path.suffix != ".key" or mode == 0o600


def test_a_private_key_is_in_its_own_kit_and_nowhere_else(kits: Kits) -> None:
    keys = {
        path: path.read_bytes()
        for path in kits.folder.rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    }
    assert len(keys) == len(set(keys.values())) == len(SITES) + 3
    assert {path.suffix for path in keys} == {".key"}


def test_the_roster_has_the_fingerprint_of_every_certificate(kits: Kits) -> None:
    for name, kit in kits.sites.items():
        pem = (kit / "startup" / "client.crt").read_text()
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
        assert (
            kits.roster[name]
            == digest
            == fingerprint((kit / "startup" / "client.crt").read_bytes())
        )
        certificate = x509.load_pem_x509_certificate(pem.encode())
        key = load_pem_private_key((kit / "startup" / "client.key").read_bytes(), None)
        assert certificate.public_key() == key.public_key()
    for kit in (kits.server, kits.admin, *kits.sites.values()):
        assert local(kit, "roster.json") == dict(kits.roster)


def test_the_root_outlasts_the_parties(kits: Kits) -> None:
    root = x509.load_pem_x509_certificate((kits.folder / "authority" / "root.pem").read_bytes())
    assert (root.not_valid_after_utc - root.not_valid_before_utc).days == 3650
    assert kits.expires < root.not_valid_after_utc.isoformat()


def test_a_job_may_name_one_class_and_bring_none(kits: Kits) -> None:
    for kit, name in (
        (kits.server, AGGREGATION),
        *((one, HOSPITAL) for one in kits.sites.values()),
    ):
        resources = local(kit, "resources.json")
        assert resources["class_allow_list"] == [name]
        assert resources["class_list_enforcement_mode"] == "enforce"
        permissions = local(kit, "authorization.json")["permissions"]
        assert isinstance(permissions, dict)
        assert list(permissions) == ["lead"]
        for right in ("byoc", "shell_commands", "operate", "clone_job"):
            assert permissions["lead"][right] == "none"
        left = {path.name for path in (kit / "local").iterdir()}
        assert not {"resources.json.default", "authorization.json.default"} & left
        assert not {name for name in left if name.startswith("privacy")}


def test_a_site_sends_no_logs_and_the_server_takes_none(kits: Kits) -> None:
    for kit in kits.sites.values():
        assert local(kit, "resources.json")["allow_log_streaming"] is False
    for kit in (kits.server, *kits.sites.values()):
        assert "nvflare.app_common.logging" not in (kit / "local" / "resources.json").read_text()


def test_a_site_starts_behind_its_door_and_takes_signed_jobs_only(kits: Kits) -> None:
    for name, kit in kits.sites.items():
        started = (kit / "start").read_text()
        assert '-m canal.federation.doorkeeper -m "$CANAL_KIT"' in started
        assert f"uid={name} " in started
        settings = json.loads((kit / "startup" / "fed_client.json").read_text())
        assert settings["require_signed_jobs"] is True


def test_what_no_job_needs_is_shut() -> None:
    pytest.importorskip("nvflare", reason=FLARE)
    # In another process: FLARE's list is one for all.
    ask = "from canal.federation import doorkeeper as d; print(d.shut_doors() == sorted(d.NEEDED))"
    ran = subprocess.run([sys.executable, "-c", ask], capture_output=True, check=True)
    assert ran.stdout.strip() == b"True"


def test_one_port_and_nothing_in_a_temporary_folder(kits: Kits) -> None:
    for kit in (kits.server, kits.admin, *kits.sites.values()):
        for path in (*(kit / "local").iterdir(), *(kit / "startup").iterdir()):
            assert "/tmp" not in path.read_text()  # noqa: S108
    server = json.loads((kits.server / "startup" / "fed_server.json").read_text())["servers"][0]
    assert server["service"]["target"] == "canal.example.org:8002"
    assert server["admin_port"] == 8002
    assert server["connection_security"] == "mtls"


def test_only_what_is_to_be_run_runs(kits: Kits) -> None:
    runs = {
        str(path.relative_to(kits.folder / "kits"))
        for path in (kits.folder / "kits").rglob("*")
        if path.is_file() and os.access(path, os.X_OK) and path.stat().st_mode & 0o100
    }
    expected = {f"{name}/start" for name in ("server", *SITES)}
    assert runs == expected | {"admin@example.org/startup/fl_admin.sh"}


@pytest.mark.parametrize(
    ("server", "sites", "admin", "port", "why"),
    [
        ("a b", SITES, "a@b.org", 8002, "host name"),
        ("x" * 64, SITES, "a@b.org", 8002, "host name"),
        ("host", ["one"], "a@b.org", 8002, "at least two sites"),
        ("host", ["one", "one"], "a@b.org", 8002, "at least two sites"),
        ("host", ["one", "../two"], "a@b.org", 8002, "letters, digits and hyphens"),
        ("host", ["one", "two.three"], "a@b.org", 8002, "letters, digits and hyphens"),
        ("host", ["one", "server"], "a@b.org", 8002, "no site can be called server"),
        ("host", ["one", "host"], "a@b.org", 8002, "no site can be called host"),
        ("host", SITES, "admin", 8002, "e-mail address"),
        ("host", SITES, "a@b.org", 0, "between 1 and 65535"),
    ],
)
def test_names_that_flare_would_choke_on_are_refused(
    tmp_path: Path, server: str, sites: list[str], admin: str, port: int, why: str
) -> None:
    with pytest.raises(FederationError, match=why):
        provision(tmp_path / "new", server, sites, admin, port)
    assert not (tmp_path / "new").exists()


def test_kits_are_made_once(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("")
    with pytest.raises(FederationError, match="is not empty, and kits are made once"):
        provision(tmp_path, "host", SITES, "a@b.org", 8002)


def test_without_flare_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.split(".")[0] == "nvflare"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nvflare", None)
    with pytest.raises(FederationError, match=r"pip install 'canal\[federation\]'"):
        provision(tmp_path / "new", "host", SITES, "a@b.org", 8002)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_no_kit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"no local/roster\.json"):
        submit(tmp_path, "order.json")
    with pytest.raises(FederationError, match="is not an admin's kit"):
        status(tmp_path, "job")


def test_a_kit_of_a_site_is_not_one_of_an_admin(kits: Kits) -> None:
    with pytest.raises(FederationError, match="is not an admin's kit"):
        connected(kits.sites["north"])
