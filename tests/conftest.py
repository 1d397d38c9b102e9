"""What every test process needs before torch is used."""

import os

import pytest

# torch's profiler reads this once, at its first use in a process, and from 2.13 on tells of every start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")


@pytest.fixture(scope="module")
def one_thread():
    """For tests that compare what torch does, call by call; imported here only if a test asks for it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
