"""`rooflight calibrate`, really run on the CPU: the file it writes, being cut off, going on, and bad input."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from rooflight.hardware.calibration import read
from rooflight.hardware.workspaces import WorkspacePoints

# The parts that come on top of --seconds are made small: less of the same.
SMALLER = """
from rooflight.calibration import host, run
from rooflight.calibration.clock import CpuClock
from rooflight.commands import calibrate
run._SIDE, run._MEGABYTES, run._CEILING_S = {"cpu": 128}, {"cpu": 10}, {"cpu": 0.02}
run.clock_for = lambda bench: CpuClock(1 << 20, 32 << 20)
host._ENOUGH, host._LEAST_ROUNDS, calibrate._LEAST_S = ("random30", "random40"), 1, 1
"""
COMMAND = SMALLER + "from rooflight.commands.main import main; main()"


@pytest.fixture
def small(monkeypatch, one_thread):
    from rooflight.calibration import host, run
    from rooflight.calibration.clock import CpuClock

    monkeypatch.setattr(run, "_SIDE", {"cpu": 128})
    monkeypatch.setattr(run, "_MEGABYTES", {"cpu": 10})
    monkeypatch.setattr(run, "_CEILING_S", {"cpu": 0.02})
    monkeypatch.setattr(run, "_HOST_S", 0.1)
    monkeypatch.setattr(run, "clock_for", lambda bench: CpuClock(1 << 20, 32 << 20))
    monkeypatch.setattr(host, "_ENOUGH", ("random30", "random40"))
    monkeypatch.setattr(host, "_LEAST_ROUNDS", 1)


@pytest.fixture
def rooflight(run, monkeypatch, tmp_path):
    """Run `rooflight ARGUMENTS` in this process: exit code, output, error output."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return run


def sections(journal: Path) -> list[str]:
    return [json.loads(line)["section"] for line in journal.read_text().splitlines()[1:]]


def test_a_cpu_is_calibrated_and_its_file_found_by_predictions(rooflight, small, tmp_path):
    code, out, err = rooflight("calibrate", "--on", "cpu", "--seconds", "5")
    assert code == 0, err
    (path,) = (tmp_path / "share" / "rooflight" / "calibrations").iterdir()  # and no journal
    calibration = read(path)
    assert calibration.seconds > 4
    assert calibration.cudnn is calibration.driver is None
    assert {"gemm.fp32", "copy", "triad", "copy.cache"} <= calibration.ceilings.keys()
    assert {
        "view.infer",
        "gemm.forward",
        "conv.backward",
        "optimizer.adamw.tensor",
        "step.train",
    } <= calibration.host.keys()
    families = {points.family for points in calibration.points}
    assert {"gemm", "conv-forward", "conv-dgrad", "conv-wgrad", "attention-flash-forward", "reduce", "cat"} <= families
    assert not any("cudnn" in family or "fused" in family for family in families)
    name = path.name.removesuffix(".json.gz")
    assert f"{sum(len(points.rows) for points in calibration.points):,} points" in out
    assert str(path) in out
    assert f"rooflight predict resnet50 --on {name}" in out
    # What it says to do next can be done.
    from rooflight.prediction.api import predict

    (found,) = predict("resnet18", on=name, batch=2, step="train")
    assert found.tier == "calibrated"
    assert 0 < found.gpu_time_s < 100
    assert not any("graph" in one.change or "fused" in one.change or "bf16" in one.change for one in found.advice)


def test_a_file_in_a_place_of_its_own_is_to_be_given(capfd, monkeypatch, tmp_path):
    from rooflight.commands.calibrate import _default_path, _summary
    from rooflight.hardware.calibration import shipped

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    mine = tmp_path / "my own.json.gz"
    for path, given in ((_default_path("h200"), ""), (mine, f" --calibration '{mine}'")):
        _summary(shipped("h200"), path, "h200")
        assert capfd.readouterr().out.endswith(f" rooflight predict resnet50 --on h200{given}\n")


def test_the_summary_tells_how_many_workspaces_were_recorded(capfd, tmp_path):
    from rooflight.commands.calibrate import _summary
    from rooflight.hardware.calibration import shipped

    found = shipped("h200")
    _summary(found, tmp_path / "mine.json.gz", "h200")
    assert "1,400" not in capfd.readouterr().out
    rows = [[16, 64, 30, 30, 64, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0]] * 700
    points = tuple(WorkspacePoints(precision, rows) for precision in ("bf16", "tf32"))
    _summary(msgspec.structs.replace(found, workspaces=points), tmp_path / "mine.json.gz", "h200")
    assert " 1,400 " in capfd.readouterr().out.splitlines()[0]


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_one_clear_line(rooflight, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    code, _, err = rooflight("calibrate", "--on", "cpu", "-o", closed / "x.json.gz")
    assert (code, rooflight.code) == (2, "no-permission")
    assert str(closed) in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_one_clear_line(rooflight, small, tmp_path):
    path = tmp_path / "x.json.gz"
    (tmp_path / "x.json.gz.partial.new").symlink_to("/dev/full")
    code, _, err = rooflight("calibrate", "--on", "cpu", "-o", path, "--seconds", "5")
    assert (code, rooflight.code) == (2, "write-failed")
    assert f"{path}.partial" in err and os.strerror(errno.ENOSPC) in err


def started(path: Path, *more: str) -> subprocess.Popen[str]:
    arguments = ["calibrate", "--on", "cpu", "--seconds", "1", "-o", str(path), *more]
    # One thread: several wait for one another wherever other tests run at the same time.
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def wait_for_chapters(process: subprocess.Popen[str], journal: Path, count: int) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until and process.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) > count:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {count} chapters: {process.communicate()}")


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_one_that_was_interrupted_says_so(tmp_path):
    path = tmp_path / "x.json.gz"
    journal = tmp_path / "x.json.gz.partial"
    process = started(path)
    wait_for_chapters(process, journal, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = sections(journal)
    assert done[:2] == ["host", "ceilings"]
    assert not path.exists()

    process = started(path)
    wait_for_chapters(process, journal, len(done) + 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.count(str(journal)) == 2  # it goes on with it, and it keeps it
    assert "Traceback" not in err
    more = sections(journal)
    assert more[: len(done)] == done
    assert len(set(more)) == len(more) > len(done)
    kept = [json.loads(line) for line in journal.read_text().splitlines()]

    process = started(path)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "points" in out
    assert not journal.exists()
    calibration = read(path)
    rows = {(some.family, some.precision): some.rows for some in calibration.points}
    for entry in kept[3:]:  # what was timed before is in the file as it was
        for key, found in entry["found"].items():
            family, _, precision = key.partition(" ")
            assert all(row in rows[family, precision] for row in found)
    assert calibration.host["view.infer"].value == kept[1]["found"]["view.infer"]["value"]
