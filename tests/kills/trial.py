"""One trial: a command is started, killed at a random time, started again, until it is done.

After every kill, and in the end, whatever may never be is looked for: see `findings`.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import random
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from canal.errors import CanalError
from canal.privacy import Ledger
from canal.release.manifest import MANIFEST, Manifest
from canal.release.workspace import Workspace
from canal.version import code_digest
from kills.commands import COMMANDS, Command, Place, World, canal, refusal
from release.place import holds

# A kill comes some time after one of these, uniformly up to the end of the command.
AIMS = ("start", "opened", "sealed", "published")
# How far a command had come when it was killed.
STAGES = ("before", "charged", "sealed", "committed", "published", "over")
KINDS = ("double", "lost", "keys", "alive")
SYNC = 0.002  # seconds; folders of trials are in memory, where a sync takes no time
PATIENCE = 120.0
REFUSED = 2  # the exit code of whatever a person can mend
# What one of two copies of a private folder may hear, for the other was committed or destroyed the
# key of both; that one is published.
OTHER_COPY = ("released before with other content", "is gone", "this secret was destroyed")
USUAL_RUNS = 2
LOOKS = 20
AGAIN = 1 / 2  # of being killed once more
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Be the parent of every process below this one whose own parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the process that made this one ends: it may be killed as well."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass
class Kill:
    """When to kill, and what.

    Args:
        aim: what is waited for first.
        after: seconds from then on.
        whom: all processes, or one.
    """

    aim: str
    after: float
    whom: str


class Run:
    """Processes of one command, in one place; each is a copy of this one, forked.

    Args:
        command: that is run.
        place: in which.
        log: what they print.
    """

    def __init__(self, command: Command, place: Place, log: Path) -> None:
        self.command, self.place, self.log = command, place, log
        self.pids: dict[str, int] = {}
        self.secrets: set[bytes] = set()

    def once(self, out: Path, more: list[str], kill: Kill | None) -> tuple[str, dict[str, float]]:
        """Run the command until it ends or is killed.

        Returns:
            `killed`, `done` or `refused`; and when each aim was seen.
        """
        begun = time.monotonic()
        seen: dict[str, float] = {}
        workspace = Workspace(out)
        for who in (*self.command.others, self.command.main):
            if who not in self.pids:
                others = [self.pids[name] for name in self.command.others if name in self.pids]
                self._start(who, out, more, others)
        said = None
        while said is None:
            said = self._reap()
            now = time.monotonic()
            for aim, path in (
                ("opened", workspace.private / "lock"),
                ("sealed", workspace.staging / MANIFEST),
                ("published", out / MANIFEST),
                ("finished", workspace.private / "finished"),
            ):
                if aim not in seen and path.exists():
                    seen[aim] = now
            seen.setdefault("start", begun)
            if said is None and kill is not None and kill.aim in seen:
                if now >= seen[kill.aim] + kill.after:
                    return ("killed" if self._kill(kill.whom) else "done"), seen
                continue  # the moment is near: look again at once
            if now > begun + PATIENCE:
                self.end()
                raise TimeoutError(f"{self.command.name} hangs; {self.log} says where")
            time.sleep(0.0002)
        seen["end"] = now
        return said, {aim: seen.get(aim, now) for aim in (*AIMS, "finished", "end")}

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids.clear()

    def _start(self, who: str, out: Path, more: list[str], others: list[int]) -> None:
        group = os.getpgid(next(iter(self.pids.values()))) if self.pids else 0
        pid = os.fork()
        if pid == 0:
            work = self.command.work(who, self.place, out, more, others)
            child(work, self.place, self.log, group)
        with contextlib.suppress(OSError):
            os.setpgid(pid, group or pid)
        self.pids[who] = pid

    def _reap(self) -> str | None:
        for who, pid in list(self.pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self.pids[who]
                code = os.waitstatus_to_exitcode(status)
                if who != self.command.main or code not in (0, REFUSED):
                    said = self.log.read_text()[-2000:]
                    raise ChildProcessError(f"{self.command.name}: {who} broke ({code}): {said}")
                return "refused" if code else "done"
        return None

    def _kill(self, whom: str) -> bool:
        """Without mercy; gives whether the command was still there."""
        if whom == "all":
            os.killpg(os.getpgid(next(iter(self.pids.values()))), signal.SIGKILL)
        else:
            os.kill(self.pids[whom], signal.SIGKILL)
        hit = False
        for who in list(self.pids) if whom == "all" else [whom]:
            _, status = os.waitpid(self.pids.pop(who), 0)
            hit |= who in (self.command.main, whom) and os.WIFSIGNALED(status)
        if whom in self.command.others:
            # The server hears that a site is gone, and ends by itself.
            while self.command.main in self.pids and self._reap() is None:
                time.sleep(0.001)
        return hit


def child(work, place: Place, log: Path, group: int) -> None:
    """In the process that was forked: become the command, and never come back."""
    code = 1
    try:
        die_with_parent()
        os.setpgid(0, group)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(place.folder)
        for name in ("CANAL_KEYS", "CANAL_LEDGER"):
            os.environ.pop(name, None)
        os.environ["XDG_RUNTIME_DIR"] = str(place.keys)
        os.environ["CANAL_CACHE"] = str(place.world.folder / "cache")
        fsync = os.fsync

        def synced(handle: int) -> None:
            time.sleep(SYNC)
            fsync(handle)

        os.fsync = synced
        said = refusal(work)
        sys.stderr.write(f"{said}\n")
        code = REFUSED if said else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with place.loaded.open("a") as loaded:
            loaded.write(" ".join(sys.modules) + "\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Trials:
    """Makes trials, one after the other.

    Args:
        folder: for all of them; memory, if possible.
        seed: of what is random.
        commands: to choose from.
    """

    def __init__(self, folder: Path, seed: int, commands=COMMANDS) -> None:
        self.folder, self.seed, self.commands = folder, seed, commands
        self.world = World(folder / "world")
        self._usual: dict[str, dict[str, float]] = {}

    def make(self, number: int) -> list[dict]:
        """One trial; gives a line for every kill in it, with what was found after it.

        Args:
            number: of the trial; with the seed it says what is tried, up to the time that it takes.
        """
        command = self.commands[number % len(self.commands)]
        rng = random.Random(f"{self.seed} {number}")
        usual = self._usual.setdefault(command.name, {}) or self._measure(command)
        self._usual[command.name] = usual
        with self._place(command) as (place, run):
            return Trial(number, command, place, run, rng, usual).lines()

    def undisturbed(self, command: Command) -> tuple[dict[str, float], Counter]:
        """Run a command that nobody kills; when it came how far, and what was found."""
        with self._place(command) as (place, run):
            said, seen = run.once(place.out, [], None)
            if said != "done":
                raise CanalError(f"{command.name} fails without a kill: {run.log.read_text()}")
            found = findings(command, run, [place.out], 1, over=True)
            for name in set(place.loaded.read_text().split()) - set(sys.modules):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            gc.freeze()  # else every process that is forked copies it all to look for garbage
            return seen, found

    def _measure(self, command: Command) -> dict[str, float]:
        """Seconds that are usually left from each aim to the end."""
        left: dict[str, list[float]] = {aim: [] for aim in AIMS}
        for number in range(1 + USUAL_RUNS):
            seen, found = self.undisturbed(command)
            if found:
                raise CanalError(f"{command.name} without a kill: {dict(found)}")
            if number == 0:
                continue  # what it had to import, the next one finds imported
            for aim in AIMS:
                end = seen["end"] if aim in ("start", "opened") else seen["finished"]
                left[aim].append(end - seen[aim])
        return {aim: statistics.median(each) for aim, each in left.items()}

    @contextlib.contextmanager
    def _place(self, command: Command):
        folder = self.folder / "trial"
        place = Place(self.world, folder, of_images=command.of_images)
        run = Run(command, place, folder / "log")
        try:
            yield place, run
        finally:
            run.end()
            shutil.rmtree(folder)


@dataclass
class Trial:
    """One command, killed once or more often."""

    number: int
    command: Command
    place: Place
    run: Run
    rng: random.Random
    usual: dict[str, float]

    def lines(self) -> list[dict]:
        """Kill, look, go on, look."""
        made: list[dict] = []
        more: dict[Path, list[str]] = {self.place.out: []}
        allowed = 1
        # Two copies differ where the first kill came while the release was drawn.
        self._disturb(made, more, allowed, self.place.out, "opened" if self.command.copied else "")
        if self.command.copied and made:
            copy, allowed = self._copy()
            more[copy] = ["--purpose", "a copy"]  # so that it comes to other bytes
            for out in self._shuffled(more):
                self._disturb(made, more, allowed, out)
        for out in self._shuffled(more):
            if made:
                self._complete(made, more, out)
        if made:
            found = findings(self.command, self.run, list(more), allowed, over=True)
            made[-1] |= {kind: made[-1][kind] + found[kind] for kind in KINDS}
        return made

    def _shuffled(self, outs: Iterable[Path]) -> list[Path]:
        return self.rng.sample(list(outs), k=len(list(outs)))

    def _disturb(self, made, more, allowed, out, first="") -> None:
        """Kill once, and perhaps again and again."""
        aim, again = first or self.rng.choice(AIMS), True
        while again:
            whom = self.rng.choice(("all", self.command.main, *self.command.others))
            kill = Kill(aim, self.rng.uniform(0, self.usual[aim]), whom)
            aim, again = self.rng.choice(AIMS), self.rng.random() < AGAIN
            said, _ = self.run.once(out, more[out], kill)
            if said != "killed":
                return
            found = findings(self.command, self.run, list(more), allowed)
            made.append(
                {
                    "trial": self.number,
                    "command": self.command.name,
                    "killed": whom,
                    "at": stage(self.command, self.place, out),
                    "aim": f"{kill.aim} + {kill.after:.4f}",
                    **dict.fromkeys(KINDS, 0),
                    **found,
                    "code": code_digest()[:8],
                }
            )

    def _complete(self, made, more, out) -> None:
        """Once more, and nobody kills it."""
        said, _ = self.run.once(out, more[out], None)
        if said == "done":
            return
        why = " ".join(self.run.log.read_text().strip().splitlines()[-2:])
        if len(more) == 1 or not any(words in why for words in OTHER_COPY):
            made[-1]["lost"] += 1
            made[-1]["why"] = why

    def _copy(self) -> tuple[Path, int]:
        """A second copy of the private folder, as it is now; and how many releases there may be."""
        private = Workspace(self.place.out).private
        copy = self.place.folder / "copy" / "release"
        copy.parent.mkdir()
        if not private.exists():
            return copy, 2
        # As a link both keys are one, and the first that publishes destroys it.
        links = self.rng.random() < 0.3
        shutil.copytree(private, copy.with_name(private.name), symlinks=links)
        # What it began with is not there any more: it may begin with another purpose.
        (copy.with_name(private.name) / "record.json").unlink(missing_ok=True)
        return copy, 1 if Workspace(copy).is_begun else 2


def is_published(out: Path) -> bool:
    """Whether a release is in its place."""
    return (out / MANIFEST).is_file()


def stage(command: Command, place: Place, out: Path) -> str:
    """How far a command had come."""
    rows = [row for path in command.ledgers(place) for row in Ledger(path).rows()]
    actions = {row.action for row in rows}
    workspace = Workspace(out)
    if (workspace.private / "finished").exists():
        return "over"
    if workspace.is_published():
        return "published"
    if "commit" in actions:
        return "committed"
    if workspace.is_sealed:
        return "sealed"
    return "charged" if "reserve" in actions else "before"


def findings(command: Command, run: Run, outs: list[Path], allowed: int, *, over=False) -> Counter:
    """What may never be, at any time; and in the end.

    ==========  ===============================================================================
    `double`    a release charged twice to one cohort, or more releases charged than were asked
                for
    `lost`      something drawn, sent by a site or published that is not charged: no reservation,
                no commitment to the digest of what is in its place, two contents for one charge;
                in the end, nothing published for a charge, a refusal that no copy explains, or
                a release that fails `canal release verify`
    `keys`      in the end or beside a published release, a key anywhere: in memory, in a private
                folder, in a journal of a site, or its bytes in any file; in the end, what a copy
                that was refused had drawn
    `alive`     a process that survived
    ==========  ===============================================================================

    Args:
        command: that ran.
        run: its processes, all that may be there.
        outs: where it publishes; two, if the private folder was copied.
        allowed: releases that may be charged.
        over: whether the command came to its end.
    """
    for _ in range(LOOKS - 1):
        # Sites whose server was killed may still be clearing away what they have to.
        with contextlib.suppress(FileNotFoundError):
            return _look(command, run, outs, allowed, over)
    return _look(command, run, outs, allowed, over)


def _look(command: Command, run: Run, outs: list[Path], allowed: int, over: bool) -> Counter:
    found: Counter = Counter()
    place = run.place
    published = [out for out in outs if is_published(out)]
    manifests = [Manifest.read(out) for out in published]
    for path in command.ledgers(place):
        rows = Ledger(path).verify()
        reserved = Counter((r.key, r.cohort, r.unit) for r in rows if r.action == "reserve")
        keys = {key for key, *_ in reserved}
        found["double"] += sum(count - 1 for count in reserved.values())
        found["double"] += max(0, len(keys) - allowed)
        committed = {(r.key, r.note) for r in rows if r.action == "commit"}
        for manifest in manifests:
            key = (manifest.ledger or {}).get("key", "")
            mine = {note for other, note in committed if other == key}
            found["lost"] += key not in keys or mine != {manifest.digest}
        drawn = [path for out in outs for path in _drawn(Workspace(out))]
        answered = list(path.parent.glob("sessions/*/answer-*"))
        found["lost"] += bool(drawn or answered) and not keys
    kept = _kept(place)
    run.secrets |= set(kept.values())
    if over and not published:
        found["lost"] += 1
    # Of two copies the other may not be done yet; it destroys its own key when it is.
    if published and (over or not command.copied):
        files = [each for each in place.folder.rglob("*") if each.is_file()]
        leaking = {each for secret in run.secrets for each in files if holds(each, secret)}
        found["keys"] += len(leaking | set(kept))
        found["keys"] += over and any(place.keys.iterdir())
        # Of a copy that was refused: other bytes under the same noise are as good as the key.
        found["keys"] += over and any(Workspace(out).is_sealed for out in outs)
    if over:
        for out in published:
            found["lost"] += not all(_verifies(out, path, run) for path in command.ledgers(place))
    found["alive"] += len(_children() - set(run.pids.values()))
    return +found


def _drawn(workspace: Workspace) -> list[Path]:
    """What depends on patients, with noise, in a private folder."""
    shards = workspace.staging.glob("*.safetensors")
    return [*shards, *workspace.private.glob(workspace.statistics.name)]


def _kept(place: Place) -> dict[Path, bytes]:
    """Every key that is kept anywhere, whole or in part, and not zeros."""
    named = [each for each in place.folder.rglob("*") if each.name in _NAMES]
    files = [each for each in (*named, *place.keys.rglob("*")) if each.is_file()]
    there = {each.resolve(): each.read_bytes() for each in files}
    return {path: value for path, value in there.items() if any(value)}


_NAMES = {"secret", ".secret", "keys", ".keys"}


def _verifies(out: Path, ledger: Path, run: Run) -> bool:
    """What `canal release verify --ledger` says, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        words = ("release", "verify", str(out), "--ledger", str(ledger))
        child(lambda: canal(*words), run.place, run.log, 0)
    _, status = os.waitpid(pid, 0)
    return status == 0


def _children() -> set[int]:
    """Processes below this one; those whose parents are gone were given to us."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}
