"""macOS and Windows can import everything: what only Linux has is looked for when something is really counted."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, importlib, os, pkgutil, signal, sys
import subprocess, tempfile, multiprocessing, torch, torch.profiler  # their own business
for name in ("fcntl", "resource", "termios", "pty", "pwd", "grp"):
    sys.modules[name] = None
for owner, names in (
    (os, ("register_at_fork", "sched_getaffinity", "tcgetpgrp", "getpgrp", "O_NOCTTY", "fork", "getuid", "geteuid")),
    (signal, ("SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "setitimer", "ITIMER_REAL")),
):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)
def no_library(*args, **kwargs):
    raise OSError("no such library")
ctypes.CDLL = no_library
import rooflight
for room in ("machine", "profiles", "measurement"):
    package = importlib.import_module(f"rooflight.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"rooflight.{room}."):
        importlib.import_module(module.name)
for verb in ("measure", "run", "doctor", "import_"):
    importlib.import_module(f"rooflight.commands.{verb}")

from rooflight.errors import CannotMeasure
from rooflight.measurement.cupti import library
sys.platform = "win32"
assert not library.has_driver()
with rooflight.region("step") as region:
    pass
assert region.executions == 1
ledger = rooflight.measure(torch.nn.Linear(2, 3), torch.ones(1, 2), repeat=1)
assert "wall_time_s" in ledger.measurements[0].quantities
print("done")
"""


def test_everything_is_imported_and_a_step_is_measured_without_what_only_linux_has() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stderr
