"""rooflight is imported, and estimates, where there is nothing of POSIX: as on Windows, whose lacks are pretended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# What Windows has not, taken away after the libraries of others are loaded.
_LACKS = """
import multiprocessing, os, signal, subprocess, sys, tempfile
import click, jinja2, msgspec, rich.console, torch

MISSING = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
for name in ("fork", "getuid", "geteuid", "getgid", "getloadavg", "killpg", "mkfifo", "sched_getaffinity", "setsid",
             "statvfs", "sysconf", "uname", "wait4", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "alarm", "pause", "setitimer"):
    delattr(signal, name)
"""

_IMPORT_ALL = """
import importlib, pkgutil, rooflight

for module in pkgutil.walk_packages(rooflight.__path__, "rooflight."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert len(rooflight.estimate("mnist-cnn", step="train").ops) > 20
"""

_COMMAND_LINE = """
from rooflight.commands.main import main

sys.argv = ["rooflight", *sys.argv[1:]]
main()
"""


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _LACKS + script, *arguments], capture_output=True, text=True)


def test_every_module_is_imported_and_a_model_estimated() -> None:
    done = _run(_IMPORT_ALL)
    assert done.returncode == 0, done.stderr


def test_the_command_line_estimates() -> None:
    done = _run(_COMMAND_LINE, "estimate", "mnist-cnn", "--depth", "0")
    assert done.returncode == 0, done.stderr
    assert "1,199,882 parameters" in done.stdout


def test_a_study_says_that_it_cannot_be_run_there(tmp_path: Path) -> None:
    done = _run(_COMMAND_LINE, "study", "mnist-cnn", "-o", str(tmp_path / "study"))
    assert done.returncode == 2, done.stderr
    assert "run it there, or in WSL" in done.stderr
