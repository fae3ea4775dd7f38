"""Arms that do next to nothing; in a module of their own, so that other processes find them."""

import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

from canal.errors import InvalidValueError
from paper.trial import Arm


@dataclass(frozen=True)
class Sleepy(Arm):
    """Says who made it, and how often it was begun."""

    kind: ClassVar[str] = "sleepy"

    word: str = "a"
    seconds: float = 0.0

    @property
    def name(self):
        return self.word

    def run(self, study, folder):
        import torch

        study.folders.runs.mkdir(parents=True, exist_ok=True)
        with (study.folders.runs / self.word).open("a") as log:
            log.write(f"{os.getpid()}\n")
        time.sleep(self.seconds)
        return {"word": self.word, "pid": os.getpid(), "threads": torch.get_num_threads()}


@dataclass(frozen=True)
class Refused(Sleepy):
    kind: ClassVar[str] = "refused"

    def run(self, study, folder):
        raise InvalidValueError("the way out is a door")


@dataclass(frozen=True)
class Broken(Sleepy):
    kind: ClassVar[str] = "broken"

    def run(self, study, folder):
        raise ZeroDivisionError("by nothing")


@dataclass(frozen=True)
class Killed(Sleepy):
    kind: ClassVar[str] = "killed"

    def run(self, study, folder):
        os.kill(os.getpid(), signal.SIGKILL)
