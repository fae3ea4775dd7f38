"""Golden releases: `OMP_NUM_THREADS=1 PYTHONPATH=src:tests python -m golden --write` pins them.

See `test_golden.py`. Without `--write` all differences are listed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from golden.compare import differences, merged

PINNED = Path(__file__).parent / "pinned"
# The same arithmetic on every x86-64 machine: kernels that its first members had already. Some of
# these libraries read it when they are loaded, so all is made in a process of its own.
BASELINE = {
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F,-AVX512VL",
    "SOURCE_DATE_EPOCH": "1767225600",  # 2026-01-01
    "CANAL_KEYS": "disk",
    "CANAL_LEDGER": "",
}


def observe():
    """Make all releases in another process; their records by name, with that of the machine."""
    with tempfile.TemporaryDirectory(prefix="canal-golden-") as folder:
        out = Path(folder) / "records.json"
        paths = [str(Path(__file__).parents[1]), *sys.path]
        environment = os.environ | BASELINE | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        environment.pop("CANAL_LEDGER")
        child = subprocess.run(
            [sys.executable, "-m", "golden", "--records", out],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stdout + child.stderr
        return json.loads(out.read_text())


def pinned():
    """What was written last, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(PINNED.glob("*.json"))}


def write():
    """Twice: what differs between the two varies, and is not compared."""
    PINNED.mkdir(exist_ok=True)
    found = merged(observe(), observe())
    for name, record in found.items():
        (PINNED / f"{name}.json").write_text(written(record) + "\n")


def written(value, indent=""):
    """JSON that a person compares: one line an entry, and what is short on one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) < 80 or not isinstance(value, dict | list):
        return line
    inner = f"{indent} "
    if isinstance(value, dict):
        lines = [f"{json.dumps(name)}: {written(each, inner)}" for name, each in value.items()]
    else:
        lines = [written(each, inner) for each in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    return left + "".join(f"\n{inner}{line}," for line in lines)[:-1] + f"\n{indent}{right}"


def records(out):
    """In the process of its own."""
    from golden.machine import probe
    from golden.record import record
    from golden.releases import make_all

    root = out.parent / "root"
    root.mkdir()
    found = {made.name: record(root, made) for made in make_all(root)}
    out.write_text(json.dumps(found | {"machine": probe()}))


def main():
    """See the docstring of the module."""
    parser = argparse.ArgumentParser(prog="python -m golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="pin what is made now")
    parser.add_argument("--records", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.records:
        records(asked.records)
        return
    before = pinned()
    if asked.write:
        write()
    after = pinned() if asked.write else observe()
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, {}), after.get(name, {})
        found = differences(old, new, exactly="paid" not in name)
        sys.stdout.write("".join(f"{name}.{line}\n" for line in found))


if __name__ == "__main__":
    main()
