"""What a site is and allows, and what an aggregator asks for: one TOML file each.

```toml
# site.toml, in the site's folder; paths are relative to it
name = "north"
images = "/data/north"        # to train on; nothing of it leaves
trust = ["secure-sum"]        # trust models that this site takes part in
colluding = 1                 # the fewest sites that must be allowed for as telling their shares
```

```toml
# order.toml, at the aggregator
queries = "/data/queries"
init = "init"
out = "release"
trust = "secure-sum"
colluding = 1

[plan]
epsilon = 8.0
```
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from canal.data.case import check_accepted
from canal.errors import ConfigurationError
from canal.features.store import FEATURES
from canal.gradients.patients import CHUNK
from canal.release.plan import TRUSTS, Trust
from canal.release.record import About
from canal.release.registry import kinds

SITE = "site.toml"


@dataclass(frozen=True)
class SiteSettings:
    """What a site is and allows; only the site itself can change it.

    Args:
        folder: of the site; private.
        name: of the site and of its cohort.
        images: folder to train on; empty where the teacher is there already.
        split: file of a split; empty for all images of the folder.
        cohort: part of that split; the site's name if not given.
        settings: a TOML file with training settings; empty for ours.
        teacher: folder of the teacher.
        ledger: file of the site's ledger.
        certificate: of the site's identity, PEM.
        key: behind it, PEM.
        roster: fingerprints of all sites that were agreed on out of band.
        trust: models of trust that the site takes part in.
        colluding: t, the fewest that a secure sum must allow for.
        research: answer runs whose noise is seeded and protects nobody. For public data only.
        again: answer about an image that was answered about before, charged anew.
        chunk: images a pass, where patients teach adapters.
    """

    folder: Path
    name: str
    images: str = ""
    split: str = ""
    cohort: str = ""
    settings: str = ""
    teacher: str = "teacher"
    ledger: str = "ledger.sqlite"
    certificate: str = "identity.crt"
    key: str = "identity.key"
    roster: str = "roster.json"
    trust: tuple[Trust, ...] = ("secure-sum",)
    colluding: int = 1
    research: bool = False
    again: bool = False
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        for model in self.trust:
            _check_trust(model, self.folder / SITE)

    def path(self, name: str) -> Path:
        """Of one of the files or folders above."""
        return self.folder / name

    @property
    def sessions(self) -> Path:
        """Folder of the journals."""
        return self.folder / "sessions"

    @classmethod
    def read(cls, folder: Path) -> SiteSettings:
        """From `site.toml` in the site's folder."""
        values = _read(folder / SITE, cls)
        return cls(folder=folder, **values)


@dataclass(frozen=True)
class Order:
    """What an aggregator asks for.

    Args:
        folder: of the file; paths are relative to it.
        out: where to publish.
        queries: folder of the recipient's images, where the kind of release needs them.
        init: folder of the shared initialisation; likewise.
        split: file of a split; empty for all images of the folder.
        part: part of that split to ask about.
        images_per_person: the most queries that show one person; 0 for what their records say.
        compared: the hospitals say that they compared keyed digests (`canal federation
            overlap-compare`), and that nobody's image is at two of them; the record repeats it.
        accept: what `canal data check` finds in the queries and is taken as it is, by its name.
        trust: the model of trust.
        colluding: t of a secure sum.
        release: what is asked for: `features` of the queries, `adapters`, taught by patients, or
            `statistics` of the cohorts.
        preset: of the plan of features.
        purpose: what the release is for; it is published.
        contact: who answers questions about it; it is published.
        plan: choices of the plan that win over the preset, such as epsilon.
        adapter: which parameters patients teach, as `canal.gradients.target_modules.Adapter`.
        update: how fast, as `canal.gradients.update.UpdateSettings`.
        quantile: of gradient norms on the queries, at which patients are clipped.
        views: of an image in a round, each varied another way; 0 for the image as it is.
        chunk: of these images a pass; sites choose their own.
        train: have the sites train their teachers first, where they have none.
        seed: of the noise of a research run; below 0 for a release that protects.
        wait: seconds between two questions whether teachers are trained.
    """

    folder: Path
    out: str
    queries: str = ""
    init: str = ""
    split: str = ""
    part: str = "recipient"
    images_per_person: int = 0
    compared: bool = False
    accept: tuple[str, ...] = ()
    trust: Trust = "secure-sum"
    colluding: int = 1
    release: str = FEATURES
    preset: str = "honest"
    purpose: str = ""
    contact: str = ""
    plan: dict[str, Any] = field(default_factory=dict)
    adapter: dict[str, Any] = field(default_factory=dict)
    update: dict[str, Any] = field(default_factory=dict)
    quantile: float = 0.5
    views: int = 1
    chunk: int = CHUNK
    train: bool = True
    seed: int = -1
    wait: float = 10.0

    def __post_init__(self) -> None:
        _ = self.about
        check_accepted(self.accept)
        _check_trust(self.trust, self.folder)
        if self.release not in kinds():
            raise ConfigurationError(
                f"release = {self.release!r} is unknown; choose one of {', '.join(kinds())}"
            )

    def path(self, name: str) -> Path:
        """Of one of the files or folders above."""
        return self.folder / name

    @property
    def about(self) -> About:
        """What the aggregator says about the release; it is published."""
        return About(self.purpose, self.contact)

    def recorded(self, overlap: Mapping[str, str]) -> dict[str, str]:
        """What was compared here, with what the hospitals say that they compared.

        Args:
            overlap: of `canal.data.overlap.compare`.
        """
        if not self.compared:
            return dict(overlap)
        said = "the hospitals say that they compared keyed digests and that none is in two"
        return {**overlap, "cohorts": f"{overlap['cohorts']}; {said}"}

    @classmethod
    def read(cls, path: Path) -> Order:
        """From a TOML file."""
        return cls(folder=path.resolve().parent, **_read(path, cls))


def to_toml(values: Mapping[str, Any]) -> str:
    """Such a file; a mapping becomes a table at its end."""
    # Plain values are written alike in JSON and TOML.
    lines = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    for name, table in values.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def _check_trust(model: str, where: Path) -> None:
    if model not in TRUSTS:
        raise ConfigurationError(
            f"{where}: trust = {model!r} is unknown; choose one of {', '.join(TRUSTS)}"
        )


def _read(path: Path, kind: type) -> dict[str, Any]:
    try:
        given: Mapping[str, Any] = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    entries = {entry.name: entry for entry in fields(kind) if entry.name != "folder"}
    hints, values = get_type_hints(kind), {}
    for name, value in given.items():
        if name not in entries:
            close = get_close_matches(name, entries, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(entries)}"
            raise ConfigurationError(f"{path}: unknown key {name!r}; {hint}")
        values[name] = _typed(value, hints[name], f"{path}: {name}")
    wanted = kinds().get(values.get("release", FEATURES))
    for name in ("name", *(() if wanted is None else wanted.needs), "out"):
        if name in entries and not values.get(name):
            raise ConfigurationError(f"{path}: {name} is missing")
    return values


def _typed(value: Any, hint: Any, where: str) -> Any:
    plain = {bool: bool, int: int, float: float, str: str}.get(hint)
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if plain is not None and type(value) is not plain:
        raise ConfigurationError(f"{where} = {value!r} must be {plain.__name__}")
    return tuple(value) if isinstance(value, list) else value
