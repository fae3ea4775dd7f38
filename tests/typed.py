"""Commands as a person types them: a real process, one thread, and never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

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
