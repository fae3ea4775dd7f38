"""The driver: plants one bug in a copy of the source, and has another process make and check."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutations.table import CHECKS, HERE, Mutant


@dataclass(frozen=True)
class Found:
    """What was noticed of one bug.

    Args:
        alarms: of every kind of check, what it said in any scenario; `stopped` where a release
            could not be made, or a check could not be run to its end.
        tests: of those that are meant for it, whether they failed; None if one was not run.
        seconds: of computing.
    """

    alarms: dict[str, list[str]]
    tests: dict[str, bool | None]
    seconds: float

    @property
    def by(self) -> list[str]:
        """Everything that noticed it."""
        noticed = [kind for kind, said in self.alarms.items() if said]
        return noticed + [name for name, failed in self.tests.items() if failed]


class Driver:
    """Runs jobs, one after the other, in a server that has loaded what does not change.

    Args:
        folder: for copies of the source and logs; they are removed again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = subprocess.Popen(
            [sys.executable, HERE / "server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()

    def try_(self, mutant: Mutant, kinds: Sequence[str] | None = None) -> Found:
        """Plant a bug and see what notices it.

        Args:
            mutant: which.
            kinds: of checks to run; those that are to notice it, if not given.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            source = mutant.plant(Path(place) / "src")
            wanted = mutant.checks if kinds is None else kinds
            scenarios = mutant.scenarios if wanted else ()
            return self.look(source, scenarios, wanted, mutant.tests)

    def look(
        self,
        source: Path,
        scenarios: Sequence[str],
        kinds: Sequence[str] = CHECKS,
        tests: Sequence[str] = (),
    ) -> Found:
        """Make and check releases with some source, and run tests with it.

        Args:
            source: folder that holds `canal`.
            scenarios: releases to be made.
            kinds: of checks to run.
            tests: each on its own.
        """
        alarms: dict[str, list[str]] = {}
        seconds, failed = 0.0, {}
        if scenarios:
            answer = self._ask(source, scenarios=list(scenarios), kinds=list(kinds))
            seconds += answer["computed"]
            for name, found in answer["alarms"].items():
                for kind, said in found.items():
                    alarms.setdefault(kind, []).extend(f"{name}: {each}" for each in said)
        for test in tests:
            answer = self._ask(source, pytest=[test, "-m", "slow or not slow"])
            seconds += answer["computed"]
            failed[test] = None if answer["passed"] is None else not answer["passed"]
        return Found(alarms, failed, seconds)

    def _ask(self, source: Path, **job: list[str]) -> dict:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        log = self.folder / "log"
        self._server.stdin.write(json.dumps({"src": str(source), "log": str(log)} | job) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        if "died" in answer or answer.get("passed", True) is None:
            raise RuntimeError(f"{job} came to no end:\n{log.read_text()[-3000:]}")
        return answer


@contextlib.contextmanager
def driving() -> Iterator[Driver]:
    """A driver in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="canal-mutants-") as folder:
        driver = Driver(Path(folder))
        try:
            yield driver
        finally:
            driver.close()
