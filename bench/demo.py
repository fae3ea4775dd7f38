"""The demo: from nothing to a report, as a newcomer waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.ratio import Ratio

LIMIT_SECONDS = 180.0


def ratios() -> Iterator[Ratio]:
    """How long it takes, once, with nothing decoded yet."""
    canal = Path(sys.executable).parent / "canal"
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        subprocess.run(
            [canal, "demo"],
            cwd=name,
            env=os.environ | {"CANAL_CACHE": str(Path(name) / "cache")},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        seconds = time.perf_counter() - start
    yield Ratio("canal demo", "three minutes", seconds, LIMIT_SECONDS, target=1.0, unit="s")
