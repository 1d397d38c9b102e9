"""A worker as the one who started it sees it: a process, two pipes, and what it said before it died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from rooflight.study.worker import News, Request

_LAST_BYTES = 4096


class Worker:
    """`python -m rooflight.study.worker`, started here."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `kill`)
        self._process = subprocess.Popen(
            # -P: a file of the user's called queue.py is none of ours.
            [sys.executable, "-P", "-m", "rooflight.study.worker", str(folder)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, env={**os.environ, **environment},
        )  # fmt: skip
        self._read = b""

    @property
    def pipe(self) -> int:
        """Readable when there are news."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, request: Request) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it died: that is noticed where it is listened to
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()

    def news(self) -> Iterator[News] | None:
        """What it has told; `None`: it is dead."""
        content = os.read(self.pipe, 1 << 16)
        if not content:
            return None
        *lines, self._read = (self._read + content).split(b"\n")
        return (msgspec.json.decode(line, type=News) for line in lines)

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
