"""Startup kits: what each party gets to join a federation, with FLARE's settings made safe.

====================  ===========================================================================
`project.yml`         what the kits were made from
`roster.json`         by site, SHA-256 of its certificate; to be compared by phone
`kits/NAME/`          one for the server, for every site and for the admin; each goes to its owner
`authority/`          the key that signs certificates: whoever has it can pass for anyone
====================  ===========================================================================

In a kit, `startup/` is FLARE's and holds the private key; `local/` belongs to the one who runs it:

====================  ===========================================================================
`start`               runs the server or the site in the foreground, with its files in the kit
`local/canal.json`    where the site's own canal folder is
`local/roster.json`   the roster as it was when the kit was made
`resources.json`      which classes a job may name here (one, ours), where jobs are kept
`authorization.json`  what the admin may do here: submit, see and stop jobs, and nothing else
`comm_config.json`    how messages travel
====================  ===========================================================================
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from canal.errors import FederationError
from canal.federation.console import require_flare

AGGREGATION = "canal.federation.flare.Aggregation"
HOSPITAL = "canal.federation.flare.Hospital"

# Ten years. The certificates of the parties last 360 days, which FLARE does not let one change.
AUTHORITY_DAYS = 3650

COMMUNICATION: dict[str, Any] = {"allow_adhoc_conns": False, "backbone_conn_gen": 2}

# Roles other than `lead`, and rights that are not named, have nothing. FLARE lets a site's files be
# read with `shell_commands`, and its environment with `operate`.
AT_A_SITE = {
    "submit_job": "any",
    "view": "any",
    "manage_job": "n:submitter",
    "download_job": "none",
    "clone_job": "none",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}
AT_THE_SERVER = AT_A_SITE | {"download_job": "n:submitter"}

# FLARE's own scripts put the folder that they are started from onto Python's path, and start again
# for ever. This one does neither.
START = """#!/usr/bin/env bash
# Runs this kit in the foreground, with the python3 that has canal installed; stop it with Ctrl-C.
umask 077
cd "$(dirname "${{BASH_SOURCE[0]}}")" || exit 1
export CANAL_KIT="$PWD" PYTHONSAFEPATH=1
mkdir -p transfer
exec python3 -u -m {module} -m "$CANAL_KIT" -s {settings} \\
  --set secure_train=true {identity}org=canal config_folder=config
"""


@dataclass(frozen=True)
class Kits:
    """What was provisioned.

    Args:
        folder: where it all is.
        server: the kit of the server.
        sites: by site, its kit.
        admin: the kit of the one who submits.
        roster: by site, SHA-256 of its certificate in DER, as hexadecimal digits.
        expires: when the first certificate of a party ends, ISO 8601.
    """

    folder: Path
    server: Path
    sites: Mapping[str, Path]
    admin: Path
    roster: Mapping[str, str]
    expires: str


def provision(
    folder: Path, server: str, sites: Sequence[str], admin: str, port: int, *, scheme: str = "tcp"
) -> Kits:
    """Make a startup kit for every party of a new federation.

    Args:
        folder: made; must be empty if it is there.
        server: the host name that all sites reach the server by.
        sites: their names; they become the names in the roster.
        admin: who submits, as an e-mail address.
        port: the one port of the server; sites open none.
        scheme: FLARE's driver, `tcp`, `http` or `grpc`; always under mutual TLS.

    Raises:
        FederationError: a name that FLARE does not take, a folder in use, or FLARE is absent.
    """
    folder = folder.resolve()
    _check(server, sites, admin, port)
    require_flare()
    if folder.exists() and any(folder.iterdir()):
        raise FederationError(
            f"{folder} is not empty, and kits are made once; choose another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    project = _project(server, sites, admin, port, scheme)
    made = _run_flare(folder, project)
    kits = folder / "kits"
    made.rename(kits)
    _keep_authority(folder)
    # The certificate names the server; its kit is named after what it is.
    (kits / server).rename(kits / "server")
    by_site = {name: kits / name for name in sites}
    roster = {name: fingerprint(kit / "startup" / "client.crt") for name, kit in by_site.items()}
    written = json.dumps(roster, indent=1) + "\n"
    (folder / "roster.json").write_text(written)
    for kit in kits.iterdir():
        _remove_samples(kit)
        (kit / "local").mkdir(exist_ok=True)
        (kit / "local" / "roster.json").write_text(written)
    for kit in by_site.values():
        _harden_site(kit)
    _harden_server(kits / "server")
    _close(folder)
    return Kits(folder, kits / "server", by_site, kits / admin, roster, _first_expiry(kits))


def fingerprint(certificate: Path) -> str:
    """SHA-256 of a certificate in DER, as hexadecimal digits."""
    return hashlib.sha256(_load(certificate).public_bytes(Encoding.DER)).hexdigest()


def spoken(digits: str) -> str:
    """A fingerprint in groups of four, to be read out over the phone.

    >>> spoken("00ff12ab")
    '00ff 12ab'
    """
    return " ".join(re.findall(".{1,4}", digits))


def _load(certificate: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.read_bytes())


def _check(server: str, sites: Sequence[str], admin: str, port: int) -> None:
    """Refuse what FLARE would refuse later, or take and choke on."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?", server):
        raise FederationError(f"{server!r} is no host name of at most 63 characters")
    for name in sites:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", name):
            raise FederationError(
                f"site {name!r}: a name has letters, digits and hyphens, 63 at most"
            )
    if len(sites) < 2 or len(set(sites)) < len(sites):
        raise FederationError(f"a federation has at least two sites, each once; got {list(sites)}")
    if taken := {"server", "admin", server} & set(sites):
        raise FederationError(f"no site can be called {', '.join(sorted(taken))}; choose another")
    if not re.fullmatch(r"[A-Za-z0-9._-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", admin):
        raise FederationError(f"the admin {admin!r} must be an e-mail address")
    if not 0 < port < 65536:
        raise FederationError(f"port {port} must be between 1 and 65535")


def _project(
    server: str, sites: Sequence[str], admin: str, port: int, scheme: str
) -> dict[str, Any]:
    """FLARE's `project.yml`: one port for everything, and a root that lasts."""
    people = [
        {"name": server, "type": "server", "org": "canal", "fed_learn_port": port},
        *(
            {"name": name, "type": "client", "org": "canal", "allow_log_streaming": False}
            for name in sites
        ),
        {"name": admin, "type": "admin", "org": "canal", "role": "lead"},
    ]
    lighter = "nvflare.lighter.impl"
    builders = [
        {"path": f"{lighter}.workspace.WorkspaceBuilder"},
        {
            "path": f"{lighter}.static_file.StaticFileBuilder",
            # Signed by the admin: a site takes the word of the server for nothing.
            "args": {"config_folder": "config", "scheme": scheme, "require_signed_jobs": True},
        },
        {
            "path": f"{lighter}.cert.CertBuilder",
            "args": {"root_valid_days": AUTHORITY_DAYS},
        },
        {"path": f"{lighter}.signature.SignatureBuilder"},
    ]
    return {
        "api_version": 3,
        "name": "canal",
        "description": "a release across hospitals",
        "participants": people,
        "builders": builders,
    }


class _Told:
    """Collects what FLARE's provisioner would print."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def debug(self, message: str) -> None: ...

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None: ...

    def error(self, message: str) -> None:
        self.errors.append(str(message))


def _run_flare(folder: Path, project: dict[str, Any]) -> Path:
    """Let FLARE make the kits; gives the folder that has them."""
    import yaml
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    (folder / "project.yml").write_text(yaml.safe_dump(project, sort_keys=False))
    told = _Told()
    Provisioner(str(folder / "work"), prepare_builders(project)).provision(
        prepare_project(project), logger=told
    )
    made: Path = folder / "work" / project["name"] / "prod_00"
    if told.errors or not made.is_dir():
        shutil.rmtree(folder / "work", ignore_errors=True)
        raise FederationError(f"FLARE made no kits: {'; '.join(told.errors) or 'no reason given'}")
    return made


def _keep_authority(folder: Path) -> None:
    """Keep the root's key, and forget the private keys of the parties: each is in one kit only."""
    (state,) = (folder / "work").rglob("cert.json")
    everything = json.loads(state.read_text())
    (folder / "authority").mkdir(mode=0o700)
    (folder / "authority" / "root.pem").write_text(everything["root_cert"])
    (folder / "authority" / "root.key").write_text(everything["root_pri_key"])
    shutil.rmtree(folder / "work")


def _remove_samples(kit: Path) -> None:
    """Take out what does harm: the sample of filters stops every job that meets it."""
    for name in ("local/privacy.json.sample", "startup/system_info.ipynb"):
        (kit / name).unlink(missing_ok=True)
    for name in ("start.sh", "sub_start.sh", "stop_fl.sh"):
        (kit / "startup" / name).unlink(missing_ok=True)
    (kit / "readme.txt").unlink(missing_ok=True)


def _harden_site(kit: Path) -> None:
    """Let jobs name our one class; send no logs; let the admin read nothing."""
    resources = _take(kit, "resources.json")
    resources["class_allow_list"] = [HOSPITAL]
    resources["class_list_enforcement_mode"] = "enforce"
    resources["allow_log_streaming"] = False
    resources["components"] = [
        one for one in resources["components"] if one["id"] != "site_log_streamer"
    ]
    _write(kit, "resources.json", resources)
    _allow(kit, AT_A_SITE)
    _write(kit, "comm_config.json", COMMUNICATION)
    _write(kit, "canal.json", {"folder": ""})
    name = f"uid={kit.name} "
    _write_start(
        kit, module="canal.federation.doorkeeper", settings="fed_client.json", identity=name
    )


def _harden_server(kit: Path) -> None:
    """Let jobs name our one class; keep jobs and snapshots in the kit; take in no logs."""
    resources = _take(kit, "resources.json")
    resources["class_allow_list"] = [AGGREGATION]
    resources["class_list_enforcement_mode"] = "enforce"
    snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]
    snapshots["root_dir"] = "{$CANAL_KIT}/snapshots"
    components = {one["id"]: one for one in resources["components"]}
    del components["log_receiver"]
    components["job_manager"]["args"]["uri_root"] = "{$CANAL_KIT}/jobs"
    # One release at a time: two would share the teachers and the ledger of every site.
    components["job_scheduler"]["args"]["max_jobs"] = 1
    resources["components"] = list(components.values())
    _write(kit, "resources.json", resources)
    _allow(kit, AT_THE_SERVER)
    _write(kit, "comm_config.json", COMMUNICATION)
    _write_start(
        kit,
        module="nvflare.private.fed.app.server.server_train",
        settings="fed_server.json",
        identity="",
    )


def _take(kit: Path, name: str) -> dict[str, Any]:
    """FLARE's default for a file of `local/`, which goes: what is meant is in the file itself."""
    default = kit / "local" / f"{name}.default"
    content: dict[str, Any] = json.loads(default.read_text())
    default.unlink()
    return content


def _allow(kit: Path, rights: Mapping[str, str]) -> None:
    policy = _take(kit, "authorization.json")
    _write(kit, "authorization.json", policy | {"permissions": {"lead": dict(rights)}})


def _write(kit: Path, name: str, content: Mapping[str, Any]) -> None:
    (kit / "local" / name).write_text(json.dumps(content, indent=1) + "\n")


def _write_start(kit: Path, module: str, settings: str, identity: str) -> None:
    script = START.format(module=module, settings=settings, identity=identity)
    (kit / "start").write_text(script)
    (kit / "start").chmod(0o700)


def _close(folder: Path) -> None:
    """Let the owner alone read what is here, and run what is meant to be run."""
    for path in folder.rglob("*"):
        runs = path.is_dir() or path.name in ("start", "fl_admin.sh")
        path.chmod(0o700 if runs else 0o600)


def _first_expiry(kits: Path) -> str:
    """When the first certificate of a party ends."""
    ends = [_load(path).not_valid_after_utc for path in kits.glob("*/startup/*.crt")]
    return min(ends).isoformat(timespec="seconds")
