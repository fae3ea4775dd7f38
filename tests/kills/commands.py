"""Every command that charges a ledger, on inputs as small as they can be.

A command is one process, or several that talk: a federation is a server and three sites, each a
process with a folder, a ledger and keys of its own. Everything that a hospital's host would do is
what `canal` does there; only the wire is ours, sockets of Unix instead of FLARE's.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Listener
from pathlib import Path

import numpy as np
from PIL import Image

from canal.errors import CanalError, FederationError
from canal.features import mechanism
from canal.features import site as at_site
from canal.federation import aggregate
from canal.federation.identity import Identity
from canal.federation.settings import Order, to_toml
from canal.federation.site import Site
from canal.federation.transport import check_known, gather
from canal.privacy import Ledger
from mutations.scenarios import SITES, SMALL, drawn, networks

QUERIES, FEW = 20, 4  # features are released of the one, gradients measured on the other
PATIENTS = 4  # of a site
BLOCK = 16  # queries a message: two messages, as a real release has many
BUDGET = {"epsilon": 1e4, "delta": 1e-5}
UNITS = ("patient", "membership", "paper")


class World:
    """Inputs that all runs have in common; nothing changes them.

    Args:
        folder: a new one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = networks(folder / "networks", SMALL)
        self.init, self.teachers = made.init, made.teachers
        self.queries = folder / "queries"
        _write(drawn(QUERIES, SMALL, seed=7), self.queries)
        self.few = folder / "few"
        _write(drawn(FEW, SMALL, seed=8), self.few)
        for number, site in enumerate(SITES):
            _write(drawn(PATIENTS, SMALL, seed=20 + number, who=site), self.data(site))
        self.ledger = folder / "ledger.sqlite"
        for unit in UNITS:
            Ledger(self.ledger).set_budget(SITES, unit, **BUDGET)
        # Who appears in the queries has a budget where they are protected, and only there.
        self.ledger_of_images = folder / "images.sqlite"
        shutil.copy(self.ledger, self.ledger_of_images)
        Ledger(self.ledger_of_images).set_budget("queries", "image", **BUDGET)
        self._hospitals()

    def data(self, site: str) -> Path:
        """Images of one site."""
        return self.folder / "data" / site

    def _hospitals(self) -> None:
        homes = {site: self.folder / "hospitals" / site for site in SITES}
        prints = {}
        for site, teacher in zip(SITES, self.teachers, strict=True):
            homes[site].mkdir(parents=True)
            prints[site] = Identity.create(homes[site], site).fingerprint
            known = {"name": site, "teacher": str(teacher), "images": str(self.data(site))}
            terms = {"trust": ["trusted", "secure-sum"], "chunk": 4}
            (homes[site] / "site.toml").write_text(to_toml(known | terms))
            shutil.copy(self.ledger, homes[site] / "ledger.sqlite")
        for home in homes.values():
            (home / "roster.json").write_text(str(prints).replace("'", '"'))


class Place:
    """Where one command runs: what it publishes, its private folder, its ledgers, its keys.

    Args:
        world: of the inputs.
        folder: a new one.
        of_images: whether whoever appears in the queries has a budget.
    """

    def __init__(self, world: World, folder: Path, *, of_images: bool = False) -> None:
        self.world, self.folder = world, folder
        self.keys = folder / "keys"  # stands for $XDG_RUNTIME_DIR, which is memory
        self.keys.mkdir(parents=True, mode=0o700)
        self.out = folder / "release"
        self.loaded = folder / "modules"  # that its processes had imported
        self.ledger = folder / "ledger.sqlite"
        shutil.copy(world.ledger_of_images if of_images else world.ledger, self.ledger)
        shutil.copytree(world.folder / "hospitals", folder / "hospitals")

    def home(self, site: str) -> Path:
        """The folder of a site of a federation."""
        return self.folder / "hospitals" / site


Work = Callable[[], None]


@dataclass(frozen=True)
class Command:
    """One that charges.

    Args:
        name: of it, as the documentation says it.
        words: what is given to `canal`.
        order: of a federation, what is asked for.
        of_images: whether it is charged to whoever appears in the queries.
        copied: whether the private folder is copied after the first kill, and both go on.
    """

    name: str
    words: Callable[[World], list[str]] | None = None
    order: Mapping[str, object] = field(default_factory=dict)
    of_images: bool = False
    copied: bool = False

    @property
    def main(self) -> str:
        """The process with which the command is over."""
        return "server" if self.order else "canal"

    @property
    def others(self) -> tuple[str, ...]:
        """Processes that have to be there before, and stay."""
        return SITES if self.order else ()

    def ledgers(self, place: Place) -> list[Path]:
        """All that it charges."""
        if self.order:
            return [place.home(site) / "ledger.sqlite" for site in SITES]
        return [place.ledger]

    def work(self, who: str, place: Place, out: Path, more: list[str], pids: list[int]) -> Work:
        """What one of its processes does.

        Args:
            who: the main process, or one of the others.
            place: of the run.
            out: where it publishes.
            more: further words.
            pids: of the others.
        """
        if who != self.main:
            return lambda: serve(place.home(who), _socket(place, who))
        if self.order:
            return lambda: self._carry_out(place, out, pids)
        assert self.words is not None
        where = ["--out", str(out), "--ledger", str(place.ledger)]
        given = [*self.words(place.world), *where, *more]
        return lambda: canal(*given)

    def _carry_out(self, place: Place, out: Path, pids: list[int]) -> None:
        mechanism.BLOCK = at_site.BLOCK = BLOCK
        world = place.world
        asked = world.queries if self.order["release"] == "features" else world.few
        known = {"queries": str(asked), "init": str(world.init), "out": str(out)}
        order = Order(folder=place.folder, train=False, chunk=4, **(known | self.order))
        transport = Lines({site: _socket(place, site) for site in SITES})
        transport.greet(pids)
        aggregate.run(order, transport)


def canal(*words: str) -> None:
    """The command line, as from a shell."""
    from canal.cli import main

    sys.argv = ["canal", *words]
    main()


class Lines:
    """A transport to processes on this machine.

    Args:
        sockets: by site.
    """

    def __init__(self, sockets: Mapping[str, Path]) -> None:
        self.sites, self._sockets = tuple(sockets), sockets

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """See `Transport.ask`."""
        check_known(requests, self.sites)
        return gather(requests, self._ask, 60.0)

    def _ask(self, name: str, message: bytes) -> bytes:
        try:
            with Client(str(self._sockets[name]), "AF_UNIX") as line:
                line.send_bytes(message)
                return line.recv_bytes()
        except (EOFError, OSError) as error:
            raise FederationError("gone") from error

    def greet(self, pids: list[int]) -> None:
        """Wait until every site listens, or is dead."""
        for (name, path), pid in zip(self._sockets.items(), pids, strict=True):
            while not path.with_suffix(f".{pid}").exists():
                try:
                    os.kill(pid, 0)
                except ProcessLookupError as error:
                    raise FederationError(f"{name} could not start") from error
                time.sleep(0.001)


def serve(home: Path, socket: Path) -> None:
    """A site's process: answers until it is killed."""
    mechanism.BLOCK = at_site.BLOCK = BLOCK
    site = Site.open(home)
    socket.unlink(missing_ok=True)
    with Listener(str(socket), "AF_UNIX") as listener:
        socket.with_suffix(f".{os.getpid()}").touch()
        while True:
            try:
                with listener.accept() as line:
                    line.send_bytes(site.answer(line.recv_bytes()))
            except (EOFError, OSError):
                continue  # the server was killed


def refusal(work: Work) -> str:
    """Do the work of a process; what it refused in a sentence, or nothing."""
    try:
        work()
    except CanalError as error:
        return str(error)
    except SystemExit as end:
        return f"exit code {end.code}" if end.code else ""
    return ""


def _socket(place: Place, site: str) -> Path:
    return place.folder / f"{site}.socket"


def _write(arrays, where: Path) -> None:
    for part, values in (("images", arrays.images), ("masks", arrays.masks * 255)):
        (where / part).mkdir(parents=True)
        for name, image in zip(arrays.ids, values, strict=True):
            Image.fromarray(np.asarray(image[0])).save(where / part / f"{name}.png")


def _create(*more: str) -> Callable[[World], list[str]]:
    def words(world: World) -> list[str]:
        teachers = [word for folder in world.teachers for word in ("--teacher", str(folder))]
        inputs = ["--queries", str(world.queries), "--init", str(world.init)]
        return ["release", "create", *teachers, *inputs, "--released", "12", *more]

    return words


def _train(*more: str) -> Callable[[World], list[str]]:
    def words(world: World) -> list[str]:
        data = [word for site in SITES for word in ("--data", str(world.data(site)))]
        inputs = ["--queries", str(world.few), "--init", str(world.init), *data]
        few = ["--part", "norms", "--part", "head", "--chunk", "4", "--rounds", "3"]
        return ["adapters", "train", *inputs, *few, "--patients", "12", *more]

    return words


_FEATURES = {"release": "features", "plan": {"epsilon": 8.0, "released": 12}}
_PRIVATE = {
    "release": "features",
    "preset": "paper",
    "plan": {"epsilon": 8.0, "released": 12, "unit": "patient"},
}
_GRADIENTS = {
    "release": "adapters",
    "plan": {"epsilon": 8.0, "patients": 12, "rounds": 3, "directions": 4},
    "adapter": {"parts": ["norms", "head"]},
}
_STATISTICS = ("--caps-source", "private", "--importance-source", "private")
COMMANDS = (
    Command("release create", _create()),
    Command("release create --preset paper", _create("--preset", "paper")),
    Command(
        "release create --unit image",
        _create("--unit", "image", "--images-per-person", "1", "--signed", *_STATISTICS),
        of_images=True,
    ),
    Command("release create, private folder copied", _create(), copied=True),
    Command("adapters train", _train("--directions", "4")),
    Command(
        "adapters train --count-patients",
        _train("--count-patients", "0.1", "--allocation", "channels", "--directions", "0"),
    ),
    Command("adapters train, private folder copied", _train("--directions", "0"), copied=True),
    Command("federation, features, trusted", order=_PRIVATE | {"trust": "trusted"}),
    Command("federation, features, secure sum", order=_FEATURES | {"trust": "secure-sum"}),
    Command("federation, gradients, trusted", order=_GRADIENTS | {"trust": "trusted"}),
    Command("federation, gradients, secure sum", order=_GRADIENTS | {"trust": "secure-sum"}),
)
