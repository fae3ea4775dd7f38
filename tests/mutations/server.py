"""A process that has loaded what does not change, and makes a copy of itself for every job.

A job is a line of JSON: the folder of the code under test, and scenarios to run or arguments for
pytest. Every job has a process of its own, in which nothing of `canal` is loaded yet, and a limit
of time; what it found is a line of JSON again. Loading torch and MONAI once saves twenty seconds a
job.
"""

import importlib
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIMIT = 900  # seconds; a planted bug may make code hang
LOADED = (
    *("cryptography.hazmat.primitives.asymmetric.x25519", "cryptography.x509"),
    *("monai.networks.nets", "numpy", "PIL.Image", "pytest", "safetensors.numpy"),
    *("safetensors.torch", "scipy.special", "scipy.stats", "sqlite3", "torch", "typer", "xxhash"),
)


def do(job: dict) -> dict:
    """One job, in the process that is its own."""
    sys.path[:0] = [job["src"], str(TESTS)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    signal.alarm(LIMIT)
    if "pytest" in job:
        import pytest

        os.chdir(TESTS.parent)
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *job["pytest"]])
        # 1: tests failed. Anything else is no answer: none was found, or it was not collected.
        return {"passed": {0: True, 1: False}.get(int(code)), "code": int(code)}
    scenarios = importlib.import_module("mutations.scenarios")
    found: dict = {}
    for name in job["scenarios"]:
        with tempfile.TemporaryDirectory(prefix="canal-mutant-") as place:
            try:
                found[name] = scenarios.run(name, Path(place) / name, job["kinds"])
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                found[name] = {"stopped": [f"{type(error).__name__}: {error} ({where})"]}
    canal = sys.modules["canal"].__file__
    assert canal is not None
    assert Path(canal).is_relative_to(job["src"]), f"{canal} is not the copy in {job['src']}"
    return {"alarms": found}


def in_a_copy(job: dict, answer: Path) -> None:
    """Fork, do the job, and leave the answer in a file."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 0
    try:
        begun = time.monotonic()
        found = do(job)
        used = sum(
            part.ru_utime + part.ru_stime
            for part in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        found |= {"seconds": round(time.monotonic() - begun, 1), "computed": round(used, 1)}
        answer.write_text(json.dumps(found))
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Read jobs until there are no more."""
    logging.disable(logging.WARNING)
    for name in LOADED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryDirectory() as place:
            answer = Path(place) / "answer.json"
            in_a_copy(job, answer)
            found = json.loads(answer.read_text()) if answer.is_file() else {"died": True}
        print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
