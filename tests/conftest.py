"""Settings that every test shares."""

import os
import sys
import tempfile

import pytest
from hypothesis import settings

from tiny import (  # noqa: F401  # fixtures, for whoever asks
    architecture,
    arrays,
    checkpoints,
    ensemble,
    initialisation,
    make_plan,
    queries,
    teachers,
)

# The day of every release, here and in every process that a test starts: none depends on midnight.
os.environ["SOURCE_DATE_EPOCH"] = "1767225600"  # 2026-01-01

# Deterministic: a commit that passes once passes again. No deadline: machines differ.
settings.register_profile("canal", deadline=None, derandomize=True)
settings.load_profile("canal")


@pytest.fixture(scope="session", autouse=True)
def keys():
    """Keys of all tests go where they are gone afterwards, though many runs here are killed."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="canal-tests-", dir=memory) as folder:
        os.environ["CANAL_KEYS"] = folder
        yield folder
        del os.environ["CANAL_KEYS"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors are slower on two threads, and the tests run in two processes already."""
    torch = sys.modules.get("torch")  # a test that needs no torch does not wait for it
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
