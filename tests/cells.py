"""Cells that do next to nothing; in a module of their own, so that other processes find them."""

import os
import signal
import time
from dataclasses import dataclass

from canal.errors import InvalidValueError
from canal.experiments.cell import Cell


@dataclass(frozen=True)
class Sleepy(Cell):
    """Says who made it, and how often it was begun."""

    word: str = "a"
    needs: tuple = ()
    seconds: float = 0.0

    @property
    def name(self):
        return self.word

    @property
    def after(self):
        return tuple(Sleepy(word) for word in self.needs)

    def make(self, places, report):
        import torch

        places.runs.mkdir(parents=True, exist_ok=True)
        with (places.runs / self.word).open("a") as log:
            log.write("begun\n")
        report("sleeping", 0, 1)
        time.sleep(self.seconds)
        return {"word": self.word, "pid": os.getpid(), "threads": torch.get_num_threads()}


@dataclass(frozen=True)
class Placed(Sleepy):
    """One of several in a place."""

    where: str = "here"

    @property
    def place(self):
        return self.where


@dataclass(frozen=True)
class Refused(Sleepy):
    def make(self, places, report):
        raise InvalidValueError("the way out is a door")


@dataclass(frozen=True)
class Broken(Sleepy):
    def make(self, places, report):
        raise ZeroDivisionError("by nothing")


@dataclass(frozen=True)
class Killed(Sleepy):
    def make(self, places, report):
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class NeedsRefused(Sleepy):
    @property
    def after(self):
        return (Refused(),)


@dataclass(frozen=True)
class Pid(Sleepy):
    """Says who makes it, and then nothing for long."""

    def make(self, places, report):
        places.runs.mkdir(parents=True, exist_ok=True)
        (places.runs / f"{self.word}.pid").write_text(str(os.getpid()))
        time.sleep(600)
