"""The regions of a process as a ledger, and how it reaches `rooflight run`, whatever end the process takes.

Under `rooflight run` every process writes its ledger into one folder: when it ends, when it is told to end (SIGTERM),
and now and then before, so that something is there even if it is killed. Nothing is written otherwise.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from rooflight._version import __version__
from rooflight.files import save
from rooflight.ledger import FORMAT_VERSION, Header, Ledger, MathModes, Measurement, Note, Value
from rooflight.machine import installed_gpus
from rooflight.machine.conditions import Conditions, conditions
from rooflight.measurement.regions.plain import own_work

if TYPE_CHECKING:
    from rooflight.measurement.regions.scheduler import RegionProcess
    from rooflight.measurement.regions.store import Region

_BETWEEN_WRITES_S = 5.0
_END_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What tells a program to end; Windows has no SIGHUP."""
_CUT_OFF = Note(
    "cut-off",
    "the program ended at once (killed, or os._exit): this was written while it ran, what came later is missing",
)


def ledger_of(process: RegionProcess, *, seen: dict[str, str] | None = None) -> Ledger:
    """One measurement for each region; notes say what is missing. `seen`: the conditions, where they were watched."""
    regions, settings = process.all_regions(), process.settings
    torch: Any = sys.modules.get("torch")
    on_gpu = any(region.pieces.warm_on_gpu for region in regions)
    device = "cuda" if on_gpu else "cpu"
    header = Header(
        rooflight=__version__,
        torch=str(torch.__version__) if torch is not None else None,
        model=Path(sys.argv[0]).name or "python",
        step=None,
        target=device,
        batch=None,
        dtype=None,
        math=_math_modes(torch) if on_gpu else None,
        traced_on=device,
        rank=settings.rank,
        world=settings.world,
        device=installed_gpus.device_name(device),
        cuda=installed_gpus.cuda_version() if on_gpu else None,
        driver=installed_gpus.driver_version() if on_gpu else None,
        conditions=conditions(device) if seen is None else seen,
        command=shlex.join(sys.orig_argv),
        notes=_notes(regions),
    )
    # On a GPU the host's clock does not tell in which region the time was spent.
    program = () if on_gpu else _program(process)
    rows = (*(region.measurement for region in regions), *program)
    return Ledger(format_version=FORMAT_VERSION, header=header, measurements=rows)


def _program(process: RegionProcess) -> tuple[Measurement, ...]:
    parts = process.program.parts
    if not parts.time_s:
        return ()
    time = Value(parts.time_s, "host clock: from the first region to the end of the last")
    return (Measurement(scope="program", quantities={"wall_time_s": time}, parts=parts.shares),)


def of_process(rows: Sequence[Measurement], whose: str) -> list[Measurement]:
    """The rows of one of several processes, under names that say so: `step (rank 1)`."""
    return [
        msgspec.structs.replace(
            row,
            name=f"{row.name} ({whose})".lstrip(),
            parts={f"{name} ({whose})": share for name, share in row.parts.items()},
        )
        for row in rows
    ]


def _notes(regions: Sequence[Region]) -> tuple[Note, ...]:
    """What is missing, and of which regions: the same thing is said once."""
    names: dict[str, list[str]] = {}
    for region in regions:
        for line in region.missing:
            names.setdefault(line, []).append(region.name)
    return tuple(Note("not-measured", line).of(_together(of, len(regions))) for line, of in names.items())


def _together(names: Sequence[str], count: int) -> str:
    if len(names) == count > 1:
        return "all regions"
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _math_modes(torch: Any) -> MathModes | None:
    try:
        return MathModes(
            tf32_conv=bool(torch.backends.cudnn.allow_tf32), tf32_matmul=bool(torch.backends.cuda.matmul.allow_tf32)
        )
    except RuntimeError:  # the program has set torch's newer switches, which these no longer speak for
        return None


class _LedgerKeeper:
    """Writes the ledger of one process into the folder of `rooflight run`."""

    def __init__(self, process: RegionProcess, folder: Path) -> None:
        self._process = process
        self._pid = os.getpid()
        # A program that replaces itself (exec) keeps its number, and must not replace what was written before.
        self._path = folder / f"rank{process.settings.rank}-pid{self._pid}-{secrets.token_hex(4)}.json"
        self._conditions: Conditions | None = None
        self._written_s: float | None = None

    def watch(self) -> None:
        """The conditions from here on, once the GPU is in use."""
        if self._conditions is None and installed_gpus.cuda_is_running():
            self._conditions = Conditions("cuda")
            self._conditions.before()

    def write(self, *, notes: tuple[Note, ...] = ()) -> None:
        if self._process.all_regions() and self._pid == os.getpid():
            seen = self._conditions.after() if self._conditions is not None else None
            ledger = ledger_of(self._process, seen=seen)
            header = msgspec.structs.replace(ledger.header, notes=(*notes, *ledger.header.notes))
            save(msgspec.structs.replace(ledger, header=header), self._path, force=True)

    def write_in_between(self) -> bool:
        """Whether it was time to write."""
        if self._written_s is not None and time.monotonic() - self._written_s < _BETWEEN_WRITES_S:
            return False
        with own_work():
            self.watch()
            self.write(notes=(_CUT_OFF,))
        self._written_s = time.monotonic()
        return True


_keepers: dict[int, _LedgerKeeper] = {}
"""By process: a forked child has its own."""


def keep_until_exit(process: RegionProcess) -> None:
    """Called once in a process, when its first region is met."""
    atexit.register(_let_counters_go, process)
    if process.settings.folder is None:
        atexit.register(_warn, process)
        return
    keeper = _keepers[os.getpid()] = _LedgerKeeper(process, process.settings.folder)
    atexit.register(_last_write, keeper)
    _at_end_of_worker(keeper)
    for number in _END_SIGNALS:
        with suppress(ValueError):  # not the main thread: others answer signals there
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _on_signal)


def _let_counters_go(process: RegionProcess) -> None:
    """A region that was not finished may still hold the GPU's counters."""
    for region in process.all_regions():
        with suppress(Exception):
            if region.pieces.plan is not None:
                region.pieces.plan.close()


def _at_end_of_worker(keeper: _LedgerKeeper) -> None:
    """Workers of `multiprocessing`, those of a data loader too, end without `atexit`."""
    if "multiprocessing.util" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            util.Finalize(None, _last_write, args=(keeper,), exitpriority=0)


def save_in_between() -> bool:
    """Called after an execution that brought something; writes only now and then, and says whether it did."""
    keeper = _keepers.get(os.getpid())
    if keeper is not None:
        with suppress(Exception):
            return keeper.write_in_between()
    return False


def _last_write(keeper: _LedgerKeeper) -> None:
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program is over: a second Ctrl-C can wait for this
    with suppress(Exception):  # and its exit code is its own
        keeper.write()


def _no_signals_of_the_parent() -> None:
    """A forked worker must die at once when it is told to."""
    for number in _END_SIGNALS:
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):  # Windows forks no processes
    os.register_at_fork(after_in_child=_no_signals_of_the_parent)


def _on_signal(number: int, frame: FrameType | None) -> None:
    keeper = _keepers.get(os.getpid())
    if keeper is not None:
        _last_write(keeper)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _warn(process: RegionProcess) -> None:
    """Where nobody shows the result, one line says that counters failed."""
    if process.failure is not None:
        logging.getLogger("rooflight").warning("rooflight: regions have no FLOPs and bytes: %s", process.failure)
