"""A process that does units of work, one after the other, and its two ends: as the one who started it sees it, and
`python -m rooflight.study.worker FOLDER`, which it runs.

Requests go in and news come out as lines of JSON. It ends at once when whoever started it does, even in the middle of
a computation: nothing that is finished is lost by that, and nobody wants the rest.
"""

from __future__ import annotations

import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from rooflight.study.cell import Side

if TYPE_CHECKING:
    from rooflight.study.store import Store


class WorkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    side: Side
    cells: tuple[str, ...]
    threads: int | None = None
    """Of torch; `None`: as many as it likes."""
    alone: tuple[str, ...] = ()
    """What nobody else may use meanwhile, as a GPU of this machine: waited for."""


class WorkerNews(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`began` a unit, `told` the journal something, `finished` the unit; `broken`: the folder cannot be used."""

    what: Literal["began", "told", "finished", "broken"]
    why: str = ""


# --- the end of the one who started it ---

_LAST_BYTES = 4096


class WorkerProcess:
    """`python -m rooflight.study.worker`, started here."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `kill`)
        self._process = subprocess.Popen(
            # -P: a file of the user's called queue.py is none of ours.
            [sys.executable, "-P", "-m", "rooflight.study.worker", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
        )
        self._read = b""

    @property
    def pipe(self) -> int:
        """Readable when there are news."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, request: WorkRequest) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it died: that is noticed where it is listened to
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()

    def news(self) -> Iterator[WorkerNews] | None:
        """What it has told; `None`: it is dead."""
        content = os.read(self.pipe, 1 << 16)
        if not content:
            return None
        *lines, self._read = (self._read + content).split(b"\n")
        return (msgspec.json.decode(line, type=WorkerNews) for line in lines)

    def end(self) -> str:
        """How the process that has died did so."""
        code = self._process.wait()
        self._errors.seek(max(0, os.fstat(self._errors.fileno()).st_size - _LAST_BYTES))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return how_it_ended(code, next((line.strip() for line in reversed(lines) if line.strip()), ""))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


def how_it_ended(code: int, last_words: str) -> str:
    """A process that died, in words."""
    said = f" ({last_words[:200]})" if last_words else ""
    if code == -signal.SIGKILL:
        return f"its process was killed: usually the machine had no more memory{said}"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its process died of {name}{said}"
    return f"its process ended with exit code {code}{said}"


def worker_command(folder: Path) -> str:
    """As a user would type it."""
    return shlex.join(["python", "-m", "rooflight.study.worker", str(folder)])


# --- the process itself ---

Tell = Callable[[WorkerNews], None]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    ours = os.dup(1)
    os.dup2(2, 1)  # what models print is no news
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    def tell(news: WorkerNews) -> None:
        try:
            os.write(ours, msgspec.json.encode(news) + b"\n")
        except OSError:
            os._exit(0)  # nobody listens any more

    # Below the signal: a Ctrl-C during a slow import would end in a traceback.
    from rooflight.study.journal import StoreBroken
    from rooflight.study.store import open_study

    try:
        store = open_study(Path(sys.argv[1]))
        while True:
            _do(store, msgspec.json.decode(requests.get(), type=WorkRequest), tell)
            tell(WorkerNews(what="finished"))
    except StoreBroken as error:
        tell(WorkerNews(what="broken", why=str(error)))


def _listen(requests: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _do(store: Store, request: WorkRequest, tell: Tell) -> None:
    import torch

    from rooflight.study.work import run_side

    if request.threads is not None:
        torch.set_num_threads(request.threads)
    cells = [store.by_id[name] for name in request.cells]
    with ExitStack() as locks:
        for name in request.alone:
            locks.enter_context(store.locks.holding(name))
        tell(WorkerNews(what="began"))
        run_side(store, cells, request.side, wrote=lambda: tell(WorkerNews(what="told")))


if __name__ == "__main__":
    main()
