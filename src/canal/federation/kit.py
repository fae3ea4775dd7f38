"""One party's startup kit: what is in it, and how FLARE's settings in it are made safe.

`startup/` is FLARE's and holds the private key; `local/` belongs to the one who runs it:

====================  ===========================================================================
`start`               runs the server or the site in the foreground, with its files in the kit
`canal/`              the site's own folder: its terms (`site.toml`), the roster, its ledger
`local/canal.json`    where that folder is, if it is moved
`local/roster.json`   the roster as it was when the kit was made
`resources.json`      which classes a job may name here (one, ours), where jobs are kept
`authorization.json`  what the admin may do here: submit, see and stop jobs, and nothing else
`comm_config.json`    how messages travel
====================  ===========================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from canal.errors import FederationError
from canal.federation.settings import SITE

AGGREGATION = "canal.federation.flare.Aggregation"
HOSPITAL = "canal.federation.flare.Hospital"

# Between the processes of one party too, which FLARE leaves in the clear, and open to every
# account of the host. It costs a tenth of the speed.
COMMUNICATION: dict[str, Any] = {
    "allow_adhoc_conns": False,
    "internal": {
        "scheme": "tcp",
        "resources": {"host": "localhost", "connection_security": "mtls"},
    },
}

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

TERMS = """# What this hospital is and allows; nobody else can change it. Paths begin here.
name = "{name}"
images = ""                  # folder to train on, or put a trained teacher into teacher/
trust = ["secure-sum"]       # with "trusted" the aggregator would see this teacher's features
colluding = 1                # how many other sites may tell their shares, at least
research = false             # answer runs that protect nobody: for public data only
again = false                # answer a second time about the same image, charged anew
certificate = "../startup/client.crt"
key = "../startup/client.key"
"""

# FLARE's own scripts put the folder that they are started from onto Python's path, and start again
# for ever. This one does neither.
START = """#!/usr/bin/env bash
# Runs this kit in the foreground, with the python3 that has canal installed; SIGTERM ends it.
umask 077
cd "$(dirname "${{BASH_SOURCE[0]}}")" || exit 1
export CANAL_KIT="$PWD" PYTHONSAFEPATH=1
mkdir -p transfer
exec python3 -u -m {module} -m "$CANAL_KIT" -s {settings} \\
  --set secure_train=true {identity}org=canal config_folder=config
"""


def harden(kits: Path, sites: Mapping[str, Path], roster: str) -> None:
    """Make every kit safe, and put the roster into it.

    Args:
        kits: the folder of all; the server's is called `server`.
        sites: by name, the kits of sites.
        roster: as it is written.
    """
    for kit in kits.iterdir():
        _remove_samples(kit)
        (kit / "local").mkdir(exist_ok=True)
        (kit / "local" / "roster.json").write_text(roster)
    for kit in sites.values():
        _harden_site(kit, roster)
    _harden_server(kits / "server")


def own_folder(local: Path, name: str) -> Path:
    """The canal folder of a site, as `local/canal.json` has it.

    Args:
        local: the kit's folder of local settings.
        name: of the site; in a simulation one file is for all of them.

    Raises:
        FederationError: the file is not there, or names no folder that is.
    """
    path = local / "canal.json"
    try:
        settings = json.loads(path.read_text())
        folder = settings.get("folder") or settings["folders"][name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FederationError(
            f'{path} must say where this site\'s canal folder is: {{"folder": "/srv/canal"}}'
        ) from error
    found = local.parent / str(folder)  # as it is, where it is absolute
    if not found.is_dir():
        raise FederationError(f"{path} names {folder}, which is not a folder; correct it")
    return found


def _remove_samples(kit: Path) -> None:
    """Take out what does harm: the sample of filters stops every job that meets it."""
    for name in ("local/privacy.json.sample", "startup/system_info.ipynb"):
        (kit / name).unlink(missing_ok=True)
    for name in ("start.sh", "sub_start.sh", "stop_fl.sh"):
        (kit / "startup" / name).unlink(missing_ok=True)
    (kit / "readme.txt").unlink(missing_ok=True)


def _harden_site(kit: Path, roster: str) -> None:
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
    _write(kit, "canal.json", {"folder": "canal"})
    home = kit / "canal"
    home.mkdir()
    (home / SITE).write_text(TERMS.format(name=kit.name))
    (home / "roster.json").write_text(roster)
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


def close(folder: Path) -> None:
    """Let the owner alone read what is here, and run what is meant to be run."""
    for path in folder.rglob("*"):
        runs = path.is_dir() or path.name in ("start", "fl_admin.sh")
        path.chmod(0o700 if runs else 0o600)
