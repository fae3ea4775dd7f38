"""Commands as a person types them: a real process, one thread, and never a traceback."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

CANAL = Path(sys.executable).parent / "canal"


def start(home, *arguments):
    """A process, and what it says."""
    return subprocess.Popen(
        [CANAL, *map(str, arguments)],
        cwd=home,
        env=os.environ | {"CANAL_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def call(home, *arguments, code=0, timeout=300):
    """What it says on standard output; where it is to fail, what it complains as well."""
    with start(home, *arguments) as process:
        try:
            said, complained = process.communicate(timeout=timeout)
        finally:
            process.kill()
    assert process.returncode == code, complained
    assert "Traceback" not in complained
    return said if code == 0 else said + complained


def call_here(home, *arguments, code=0):
    """The same in this process: a dozen interpreters would spend a minute on importing torch."""
    ended, said, complained = here(home, home / "cache", *arguments)
    assert ended == code, complained
    return said if code == 0 else said + complained


def here(home, cache, *arguments):
    """Exit code, standard output and standard error of a command in this process."""
    from canal.cli import main

    said, complained, ended = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(home),
        mock.patch.dict(os.environ, {"CANAL_CACHE": str(cache)}),
        mock.patch.object(sys, "argv", ["canal", *map(str, arguments)]),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
    ):
        try:
            main()
        except SystemExit as end:
            ended = end.code or 0
    return ended, said.getvalue(), complained.getvalue()
