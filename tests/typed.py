"""Commands as a person types them: a real process, one thread, and never a traceback."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

CANAL = Path(sys.executable).parent / "canal"


def call(home, *arguments, code=0, timeout=300):
    """What it says on standard output, or, where it is to fail, what it complains."""
    done = subprocess.run(
        [CANAL, *map(str, arguments)],
        cwd=home,
        env=os.environ | {"CANAL_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def call_here(home, *arguments, code=0):
    """The same in this process: a dozen interpreters would spend a minute on importing torch."""
    from canal.cli import main

    said, complained, ended = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(home),
        mock.patch.dict(os.environ, {"CANAL_CACHE": str(home / "cache")}),
        mock.patch.object(sys, "argv", ["canal", *map(str, arguments)]),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
    ):
        try:
            main()
        except SystemExit as end:
            ended = end.code or 0
    assert ended == code, complained.getvalue()
    return said.getvalue() if code == 0 else complained.getvalue()
