"""A real `rooflight study`, killed again and again at random moments, and what must be left of it in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import rooflight
from rooflight.study.cell import Row
from rooflight.study.store import read

LONGEST_S = 600.0


@dataclass
class Soak:
    """What was done to studies."""

    studies: int = 0
    starts: int = 0
    kills: Counter = field(default_factory=Counter)
    """Of the coordinator, of a worker, of all of them at once."""

    @property
    def count(self) -> int:
        return sum(self.kills.values())


def killed_study(folder: Path, asked: Sequence[str], soak: Soak, *, kills: int, chance: random.Random) -> None:
    """Start the study, kill some of it at a random moment, start it again, until it ends by itself; after so many kills
    it is left alone. Moments are random in time and in how far the journal has come."""
    line, before = [sys.executable, "-m", "rooflight", "study"], soak.count
    soak.studies += 1
    ended = False
    while not ended:
        again = (folder / "study.toml").exists()
        rest = [str(folder), "--retry"] if again else [*asked, "-o", str(folder)]
        process = subprocess.Popen([*line, *rest, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   start_new_session=True)  # fmt: skip
        soak.starts += 1
        if soak.count - before < kills:
            ended = not _disturbed(process, folder, chance, soak)
        else:
            _, errors = process.communicate(timeout=LONGEST_S)
            assert process.returncode == 0, errors.decode()
            ended = True


def _disturbed(process: subprocess.Popen, folder: Path, chance: random.Random, soak: Soak) -> bool:
    """Kill once or several times, for a study survives the death of a worker. Did it not end by itself?"""
    while True:
        if chance.random() < 0.5:
            _wait(process, lambda: False, chance.uniform(0, 2))
        else:
            _wait(process, _has_grown(folder, chance.randrange(1, 3000)), 20)
            time.sleep(chance.uniform(0, 0.02))
        if process.poll() is not None:
            _, errors = process.communicate()
            assert process.returncode == 0, errors.decode()
            return False
        what = chance.choice(["coordinator", "worker", "all"])
        workers = workers_of(process.pid)
        if what == "worker" and workers:
            _kill(chance.choice(workers))
            soak.kills[what] += 1
            continue
        soak.kills["coordinator" if what == "worker" else what] += 1
        if what == "all":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.communicate()
        if chance.random() < 0.5:  # else the next one starts while the workers are still dying
            wait_until_gone(workers)
        return True


def _has_grown(folder: Path, more: int) -> Callable[[], bool]:
    goal = _journal_bytes(folder) + more
    return lambda: _journal_bytes(folder) >= goal


def _wait(process: subprocess.Popen, ready: Callable[[], bool], longest_s: float) -> None:
    end = time.monotonic() + longest_s
    while time.monotonic() < end and process.poll() is None and not ready():
        time.sleep(0.005)


def _journal_bytes(folder: Path) -> int:
    journal = folder / "journal"
    return sum(path.stat().st_size for path in journal.iterdir()) if journal.is_dir() else 0


def workers_of(parent: int) -> list[int]:
    """Its children, from /proc."""
    try:
        return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_until_gone(pids: list[int], longest_s: float = 30) -> None:
    """Processes whose parent is dead end by themselves."""
    end = time.monotonic() + longest_s
    while any(_is_alive(pid) for pid in pids):
        assert time.monotonic() < end, f"{pids} outlive the study that started them"
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def entries(folder: Path) -> list[dict]:
    """Every whole line of the journal."""
    found = []
    for segment in sorted((folder / "journal").iterdir()):
        content = segment.read_bytes()
        found += [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
    return found


def check_nothing_lost_nothing_doubled(folder: Path, undisturbed: list[Row]) -> None:
    """Every side of every cell is done exactly once, and what was found is what an undisturbed study finds."""
    done = Counter((entry["key"], entry["side"]) for entry in entries(folder) if entry["state"] == "done")
    assert set(done.values()) == {1}
    rows = read(folder)
    assert [row.cell for row in rows] == [row.cell for row in undisturbed]
    for row, other in zip(rows, undisturbed, strict=True):
        assert row.state == other.state == "done"
        # What is computed together with other batches may differ from what is computed alone by a rounding.
        assert row.values == pytest.approx(other.values, rel=1e-9)
        assert (row.facts, row.notes, row.ledgers) == (other.facts, other.notes, other.ledgers)
        for name in row.ledgers.values():
            rooflight.load(folder / name)
    kept = {name for row in rows for name in row.ledgers.values()}
    assert {f"ledgers/{path.name}" for path in (folder / "ledgers").iterdir()} == kept
    assert sorted(path.name for path in folder.iterdir()) == ["index.json", "journal", "ledgers", "lock", "study.toml"]
    assert len(done) == len(kept) + sum(row.cell.on is not None for row in rows)
