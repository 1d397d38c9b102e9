"""Where the machine does not let V8 start, as under `ulimit -v` on login nodes: one line, and all else is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rooflight.reporting.charts import pictures

resource = pytest.importorskip("resource")
LITTLE_KB = 6_000_000
"""Enough for torch, far less than the addresses that V8 reserves."""


def limited(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = " ".join([sys.executable, "-m", "rooflight", *arguments])
    script = f"ulimit -v {LITTLE_KB}; export XDG_CACHE_HOME={tmp_path}/cache; exec {command}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)


def test_a_picture_is_refused_in_one_line(tmp_path: Path) -> None:
    done = limited(tmp_path, "report", "recorded:h200/mnist-cnn-infer-tf32", "-o", "a.png", "--chart", "roofline")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("rooflight: pictures cannot be drawn under a limit of 6.14 GB of virtual memory")
    assert not (tmp_path / "a.png").exists()


def test_a_page_has_tables_in_place_of_charts(tmp_path: Path) -> None:
    done = limited(tmp_path, "report", "recorded:h200/mnist-cnn-infer-tf32", "-o", "a.html")
    assert (done.returncode, done.stderr) == (0, "wrote a.html\n")
    page = (tmp_path / "a.html").read_text()
    assert "Charts are shown as tables: pictures cannot be drawn" in page
    assert 'class="chart"' not in page and "Roofline of mnist-cnn" in page


def test_the_limit_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fails(line: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(line)
        return subprocess.CompletedProcess(line, 133)

    monkeypatch.setattr(pictures, "_address_limit", lambda: 4_000_000_000_123)
    monkeypatch.setattr(subprocess, "run", fails)
    for _ in range(2):
        with pytest.raises(pictures.NoPictures, match=r"4\.00 TB"):
            pictures.check_drawing()
    (line,) = asked
    assert 0 < int(line[-1]) < 4_000_000_000_123  # what this process has taken is not left to the other


def test_without_a_limit_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("this process has a limit")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("tried"))
    pictures.check_drawing()
