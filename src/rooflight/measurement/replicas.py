"""Processes that work on one step together: started, watched and ended as one. No torch here.

If one fails, the others are ended at once, for they would wait for it; if whoever started them is gone, they end by
themselves. What a process has to say of its failure, it leaves in a file of the folder that they share.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from rooflight.errors import CannotMeasure

_LOOK_S = 0.05
_END = b"."
"""What a process is told that is to end."""
_PATIENCE_S = 5.0
"""So long a process may take to end when it is told to."""


def run_replicas(
    command: Sequence[str],
    count: int,
    folder: Path,
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    look: Callable[[], None] = lambda: None,
) -> None:
    """The command as so many ranks, until all have ended well; raises `CannotMeasure` with the first one's reason.

    `look` is called again and again meanwhile.
    """
    processes: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + timeout_s
    with ExitStack() as files:
        try:
            for rank in range(count):
                said = files.enter_context((folder / f"rank{rank}.log").open("wb"))
                processes.append(_started(command, rank, count, environment or {}, said))
            while any(process.poll() is None for process in processes):
                look()
                _refuse_failed(processes, folder)
                if time.monotonic() > deadline:
                    raise CannotMeasure(
                        "ranks-timed-out",
                        f"the {count} processes have not come to an end within {timeout_s:g} s, and were "
                        "ended: take a smaller batch, or time fewer steps (--repeat)",
                    )
                time.sleep(_LOOK_S)
            _refuse_failed(processes, folder)
        finally:
            _end(processes)


def _started(
    command: Sequence[str], rank: int, count: int, environment: Mapping[str, str], said: IO[bytes]
) -> subprocess.Popen[bytes]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return subprocess.Popen(
        command,
        env={**os.environ, **environment, **own},
        stdin=subprocess.PIPE,  # closed when we are gone: see `end_with_parent`
        stdout=subprocess.DEVNULL,
        stderr=said,
        start_new_session=True,  # Ctrl-C is ours to hear
    )


def _refuse_failed(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    failed = {rank: process.returncode for rank, process in enumerate(processes) if process.poll()}
    if not failed:
        return
    # One that says why comes before one that was only left alone.
    rank = next((rank for rank in failed if error_file(folder, rank).exists()), next(iter(failed)))
    why = _reason(folder, rank, failed[rank])
    raise CannotMeasure("rank-failed", f"rank {rank} of {len(processes)} failed, and the others were ended: {why}")


def _reason(folder: Path, rank: int, code: int) -> str:
    if error_file(folder, rank).exists():
        return error_file(folder, rank).read_text(errors="replace").strip()
    lines = (folder / f"rank{rank}.log").read_text(errors="replace").splitlines()
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    how = f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"
    return f"{how}: {said[:200]}" if said else how


def error_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves one line that says what went wrong."""
    return folder / f"rank{rank}.error"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """All of them, in good order if they can."""
    for process in processes:
        if process.stdin is not None:
            with suppress(OSError):  # it has ended already
                process.stdin.write(_END)
                process.stdin.close()  # it ends by itself
    deadline = time.monotonic() + _PATIENCE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_with_parent(folder: Path | None = None) -> None:
    """In a process that `run_replicas` started: end at once when nobody waits for it any more. Where whoever started it
    was killed, the folder that they share goes too, since nobody else removes it."""

    def watch() -> None:
        if os.read(0, 1) != _END and folder is not None:  # closed, without a word
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
