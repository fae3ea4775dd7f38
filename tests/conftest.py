"""Settings that every test shares."""

import pytest
from hypothesis import settings

# Deterministic: a commit that passes once passes again. No deadline: machines differ.
settings.register_profile("canal", deadline=None, derandomize=True)
settings.load_profile("canal")


@pytest.fixture
def one_thread():
    """Small tensors are slower on two threads, and the tests run in two processes already."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items):
    """Give every test that trains or runs a network a single thread."""
    for item in items:
        if item.path.parent.name in ("models", "teachers"):
            item.fixturenames.insert(0, "one_thread")
