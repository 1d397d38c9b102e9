"""The oneDNN primitives that a step ran on the CPU: oneDNN prints one line for each, which is read back here.

oneDNN writes to the process's standard output and cannot be told otherwise, so that is redirected to a file while
primitives are collected; whatever else was printed goes to the real one afterwards. Ops that torch computes itself or
hands to MKL (fp32 matrix products, on most builds) run no primitive.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from rooflight.errors import CannotMeasure
from rooflight.ledger import Kernel

_STDOUT = 1
_EXEC_FIELDS = 9
"""engine, primitive, implementation, prop_kind, memory descriptors, attributes, auxiliary, problem, time (oneDNN's
own `template:` line names them)."""
_FORMAT = re.compile(r":blocked:(?P<format>[A-Za-z0-9]+):")
_TYPE = re.compile(r"(?P<what>[a-z_]+?)[:_](?P<type>undef|boolean|e8m0|[a-z]+\d+(?:_e\d+m\d+)?)(?::|$)")


def split(output: bytes, mark: bytes) -> tuple[list[tuple[int | None, str]], bytes]:
    """Verbose lines, each with the op that was marked before it, and everything that is neither line nor mark."""
    lines: list[tuple[int | None, str]] = []
    others: list[bytes] = []
    op: int | None = None
    end = 0
    # A line may follow text that had no line end of its own.
    for line in re.finditer(rb"(?:" + re.escape(mark) + rb",(\d*)|(onednn_verbose,[^\n]*))(?:\n|\Z)", output):
        others.append(output[end : line.start()])
        end = line.end()
        if line[2] is None:
            op = int(line[1]) if line[1] else None
        else:
            lines.append((op, line[2].decode(errors="replace").rstrip("\r")))
    return lines, b"".join((*others, output[end:]))


def kernels_of(lines: Iterable[tuple[int | None, str]]) -> tuple[Kernel, ...]:
    """Lines on anything but the execution of a primitive are passed over."""
    return tuple(kernel for op, line in lines if (kernel := parse_line(line, op)) is not None)


def parse_line(line: str, op: int | None) -> Kernel | None:
    """`onednn_verbose,v1,[timestamp,]primitive,exec,...,time in ms`; `None` for a line on something else."""
    head, *fields = line.split(",")
    if head != "onednn_verbose" or "exec" not in fields[:4]:
        return None
    version, *fields = fields
    if version != "v1":
        raise CannotMeasure(
            "unknown-format", f"oneDNN reports in a form that is not known: {line[:60]!r}; use torch 2.8 or newer"
        )
    if fields and _number(fields[0]) is not None:
        fields = fields[1:]  # ONEDNN_VERBOSE_TIMESTAMP=1
    if fields[:2] != ["primitive", "exec"]:
        return None  # a oneDNN graph: its primitives have lines of their own
    fields = fields[2:]
    time_ms = _number(fields[-1]) if len(fields) == _EXEC_FIELDS else None
    if time_ms is None or time_ms < 0:
        raise CannotMeasure(
            "unknown-format", f"oneDNN's line on a primitive is broken or in an unknown form: {line[:60]!r}"
        )
    _, primitive, implementation, direction, memory = fields[:5]
    words = (primitive, implementation, "" if direction == "undef" else direction, _types(memory), _formats(memory))
    return Kernel(
        name=" ".join(filter(None, words)),
        ops=() if op is None else (op,),
        kind="primitive",
        time_s=time_ms / 1e3,
        label=fields[7],
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _types(memory: str) -> str:
    """The type that goes in, and the one that comes out where it is another: `f32`, `f32>bf16`."""
    types = [(match["what"], match["type"]) for part in memory.split() if (match := _TYPE.match(part))]
    defined = [(what, kind) for what, kind in types if kind != "undef"]
    if not defined:
        return ""
    first, last = defined[0][1], dict(defined).get("dst", defined[0][1])
    return first if first == last else f"{first}>{last}"


def _formats(memory: str) -> str:
    """The order in memory that operands have, and the one of the result: `aBcd16b+ABcd16b16a>aBcd16b`. Biases have
    but one."""
    formats = {
        re.split("[:_]", part, maxsplit=1)[0]: match["format"]
        for part in memory.split()
        if (match := _FORMAT.search(part)) is not None
    }
    came = [formats[what] for what in ("src", "wei") if what in formats]
    return f"{'+'.join(came)}>{formats['dst']}" if came and "dst" in formats else ""


def shortest(runs: Sequence[Sequence[Kernel]]) -> list[Kernel]:
    """The primitives of several runs of one step, each with its shortest time: on a machine with other programs a
    thread that has to wait for its core makes all others of a primitive wait. Those of the first run where the runs
    differ."""
    first = runs[0]
    if any([(k.name, k.ops, k.label) for k in run] != [(k.name, k.ops, k.label) for k in first] for run in runs):
        return list(first)
    times = zip(*([kernel.time_s or 0.0 for kernel in run] for run in runs), strict=True)
    return [msgspec.structs.replace(kernel, time_s=min(of_runs)) for kernel, of_runs in zip(first, times, strict=True)]


class PrimitiveCollector:
    """Collects the primitives run while it is entered; `reason` says why there are none to be had, or is `None`.

    What the step prints appears when it is left, not before. Whoever runs the ops calls `before` and `after`.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._kernels: tuple[Kernel, ...] = ()
        self._mark = b"rooflight_mark_" + secrets.token_hex(8).encode()
        self._undo = ExitStack()
        self._active = False
        self._libc: Any = None
        with suppress(OSError, TypeError):  # Windows has no library of the process itself
            self._libc = ctypes.CDLL(None)

    def __enter__(self) -> PrimitiveCollector:
        self._kernels = ()
        self.reason = _unavailable()
        if self.reason is None:
            with ExitStack() as undo:
                self.reason = self._redirect(undo)
                if self.reason is None:
                    self._undo = undo.pop_all()
                    self._active = True
        return self

    def _redirect(self, undo: ExitStack) -> str | None:
        """Send standard output to a file and turn oneDNN's lines on. What `undo` does runs from the last up."""
        import torch

        self._flush()
        try:
            real = os.dup(_STDOUT)
        except OSError:
            return "standard output is closed, and oneDNN reports its primitives there: open it (`> /dev/null` will do)"
        undo.callback(os.close, real)
        file = undo.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - `undo` closes it
        undo.callback(self._take, file)
        undo.callback(os.dup2, real, _STDOUT)
        undo.callback(self._flush)
        os.dup2(file.fileno(), _STDOUT)
        try:
            undo.enter_context(torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON))
        except (AssertionError, RuntimeError):
            return "torch's oneDNN was built without verbose output: use an official build of torch"
        return None

    def __exit__(self, *_: object) -> None:
        self._active = False
        self._undo.close()

    def mark(self, index: int | None) -> None:
        """Primitives from here on belong to op `index`; `None`: to no op."""
        if not self._active:
            return
        # oneDNN flushes after every line; a C library that does not must not push one past the mark.
        if self._libc is not None:
            self._libc.fflush(None)
        os.write(_STDOUT, self._mark + b"," + (b"" if index is None else str(index).encode()) + b"\n")

    def before(self, index: int) -> None:
        self.mark(index)

    def after(self, index: int) -> None:
        self.mark(None)

    def kernels(self) -> list[Kernel]:
        """One for every primitive, in the order in which they ran; empty where `reason` is given."""
        return list(self._kernels)

    def _take(self, file: Any) -> None:
        """Read the file once standard output is the real one again, and pass on what is not ours."""
        file.seek(0)
        lines, others = split(file.read(), self._mark)
        if self.reason is None:
            try:
                self._kernels = kernels_of(lines)
            except CannotMeasure as error:
                self.reason = str(error)
        while others:
            others = others[os.write(_STDOUT, others) :]

    def _flush(self) -> None:
        with suppress(AttributeError, ValueError):  # no stdout, or a closed one
            sys.stdout.flush()
        if self._libc is not None:
            self._libc.fflush(None)


def _unavailable() -> str | None:
    import torch

    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN: its CPU ops run no primitives that could be listed"
    if not torch.backends.mkldnn.enabled:
        return "torch.backends.mkldnn.enabled is False: set it to True to run and list oneDNN primitives"
    return None
