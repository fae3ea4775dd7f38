"""Startup kits: what each party gets to join a federation, with FLARE's settings made safe.

====================  ===========================================================================
`project.yml`         what the kits were made from
`roster.json`         by site, SHA-256 of its certificate; to be compared by phone
`kits/NAME/`          one for the server, for every site and for the admin; each goes to its owner
`authority/`          the key that signs certificates: whoever has it can pass for anyone
====================  ===========================================================================
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from canal.errors import FederationError
from canal.federation.console import require_flare
from canal.federation.identity import fingerprint, read
from canal.federation.kit import close, harden

# Ten years. The certificates of the parties last 360 days, which FLARE does not let one change.
AUTHORITY_DAYS = 3650


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
    if folder.exists() and any(folder.iterdir()):
        raise FederationError(
            f"{folder} is not empty, and kits are made once; choose another folder"
        )
    require_flare()
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
    roster = {
        name: fingerprint((kit / "startup" / "client.crt").read_bytes())
        for name, kit in by_site.items()
    }
    written = json.dumps(roster, indent=1) + "\n"
    (folder / "roster.json").write_text(written)
    harden(kits, by_site, written)
    close(folder)
    return Kits(folder, kits / "server", by_site, kits / admin, roster, _first_expiry(kits))


def spoken(digits: str) -> str:
    """A fingerprint in groups of four, to be read out over the phone.

    >>> spoken("00ff12ab")
    '00ff 12ab'
    """
    return " ".join(re.findall(".{1,4}", digits))


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


def _first_expiry(kits: Path) -> str:
    """When the first certificate of a party ends."""
    parties = kits.glob("*/startup/*.crt")
    ends = [read(path.read_bytes()).not_valid_after_utc for path in parties]
    return min(ends).isoformat(timespec="seconds")
