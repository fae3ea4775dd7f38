"""`import canal` is light, and everything that it offers is there."""

import subprocess
import sys

import canal


def test_importing_waits_for_nothing():
    heavy = ("torch", "monai", "numpy", "scipy", "rich", "typer")
    program = f"import canal, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_name_leads_somewhere():
    assert set(canal.__all__) <= set(dir(canal))
    for name in canal.__all__:
        assert getattr(canal, name) is not None
    assert canal._HOME.keys() == set(canal.__all__) - {"__version__"}
