"""What every test process needs before torch is used, and what a test may not leave to the next."""

import gc
import logging
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures.command_line import CommandLine

# No test asks for a duration: a machine with other work makes examples slowly.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Scripts are imported by their names, from the end of the path: coverage is the package, not that script.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

# torch's profiler reads this once, at its first use in a process, and from 2.13 on tells of every start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
# Tests run side by side, one process a core: threads of one would wait for those of the other, and spin meanwhile.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the golden pages of tests/commands anew")


def pytest_configure(config: pytest.Config) -> None:
    """Hide the user's calibrations and kept traces: the run has a cache of its own, and no place for calibrations."""
    if not hasattr(config, "workerinput"):  # worker processes inherit them
        folder = tempfile.TemporaryDirectory(prefix="rooflight-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_CACHE_HOME"], os.environ["XDG_DATA_HOME"] = folder.name, os.devnull


@pytest.fixture(autouse=True)
def _process_as_it_was(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Seed torch as pytest-randomly seeds `random` and numpy, and fail a test that leaves the process changed.

    Models that the test imported from a temporary folder are forgotten: the `own.py` of the next test is another file.
    """
    if torch := sys.modules.get("torch"):
        words = f"{request.config.getoption('randomly_seed', None)} {request.node.nodeid}"
        torch.default_generator.manual_seed(zlib.crc32(words.encode()))
    before, modules, path = _state(), set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "").is_relative_to(tmp_path_factory.getbasetemp()):
            del sys.modules[name]
    if accelerate := sys.modules.get("accelerate.state"):  # one precision for the whole process
        accelerate.AcceleratorState._reset_state(reset_partial_state=True)
    assert {name: value for name, value in _state().items() ^ before.items() if name in before or name.isupper()} == {}


def _state() -> dict[str, object]:
    """Return settings of the process that code reads: the environment, and those of torch where it is loaded."""
    others = "PYTEST", "TORCHINDUCTOR", "_TORCHINDUCTOR", "TRITON", "PYTORCH_NVML"  # set by pytest, torch, Lightning
    state: dict[str, object] = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    state |= {"folder": os.getcwd(), "disabled logging": logging.root.manager.disable}
    if torch := sys.modules.get("torch"):
        state |= {
            "threads": torch.get_num_threads(),
            "default type": torch.get_default_dtype(),
            "precision of products": torch.get_float32_matmul_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "gradients": torch.is_grad_enabled(),
            "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
            "a module's call": torch.nn.Module.__call__,
        }
    return state


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
