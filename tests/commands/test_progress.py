"""A long report shows on a terminal what it is doing; a file or a pipe gets the result alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rooflight


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("progress") / "study"
    rooflight.study("mnist-cnn", batch=[1, 2], folder=folder)
    return folder


def report(folder: Path, *options: str, terminal: bool) -> tuple[str, str]:
    """Return what the command writes on its output and its error output, which may be a terminal."""
    shown, end = os.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "rooflight", "report", str(folder), *options]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, env=environment, check=True, timeout=120)
    os.close(end)
    os.set_blocking(shown, False)
    told = b""
    try:
        while part := os.read(shown, 65536):
            told += part
    except (BlockingIOError, OSError):  # a terminal that its program has left gives an error where a pipe ends
        pass
    os.close(shown)
    return done.stdout.decode(), told.decode()


def test_a_report_of_a_study_tells_a_terminal_what_it_does(study: Path) -> None:
    output, told = report(study, terminal=True)
    assert "reading the study" in told
    assert "summarising 2 cells" in told
    assert report(study, terminal=False) == (output, "")
