"""What every test process needs before torch is used."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures.command_line import CommandLine

# No test asks for a duration: a machine with other work makes examples slowly.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# torch's profiler reads this once, at its first use in a process, and from 2.13 on tells of every start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
# Tests run side by side, one process a core: threads of one would wait for those of the other, and spin meanwhile.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden pages of tests/commands anew")


@pytest.fixture(scope="module", autouse=True)
def _lasting_objects_are_left_to_themselves() -> None:
    """What is loaded by now, torch, ten thousand tests and shared recordings, stays to the end: the collector, which
    every measurement calls, need not walk it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def one_thread():
    """For tests that compare what torch does, call by call; imported here only if a test asks for it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_worker() -> Iterator[None]:
    """For tests of small studies: a second process would load torch for one more cell, which takes longer than it."""
    from rooflight.study import local

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_cores", lambda: 1)
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Run `rooflight ARGUMENTS` in this process."""
    return CommandLine(monkeypatch, capfd)
