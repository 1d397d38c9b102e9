"""Timed works out of a ledger whose kernels have times: every op that is one task, and those of several whose kernels
tell which task they belong to.

Nothing here needs a GPU or torch. Times are those of a running model: inputs lie partly in caches, as they do there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rooflight.ledger import Kernel, Ledger, Op
from rooflight.ops.kernel_names import role_of
from rooflight.ops.kernel_task import FAMILIES, Task, convolves
from rooflight.ops.op_tasks import is_guess, tasks_of

COMPILED = "compiled steps: their kernels do the work of several ops, in layouts of their own"
SHARED = "kernels that several ops share, or none has: compiled together, or of a CUDA graph"
NO_TASK = "ops that no calibrated family is like"
UNEVEN = "convolutions whose strides, paddings or dilations differ by side"
NOT_SPLIT = "ops of several kernels that cannot be told apart"


@dataclass(frozen=True)
class TimedTask:
    """One work and how long it took, once."""

    task: Task
    """The work."""
    seconds: float
    """Of its kernels."""
    kernels: int
    """How many."""
    place: str
    """Where it stands, for messages: `run.csv, line 7`."""


@dataclass
class LeftOut:
    """What gives no point, and why: ops, and seconds of the GPU."""

    reasons: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By reason: how many, and their seconds."""

    def add(self, reason: str, seconds: float, count: int = 1) -> None:
        """So many more of a reason."""
        ops, before = self.reasons.get(reason, (0, 0.0))
        self.reasons[reason] = (ops + count, before + seconds)


@dataclass(frozen=True)
class RecordedTimes:
    """The timed works of one file."""

    name: str
    """Of the file or recording."""
    what: str
    """What it is, in words: for the source of each point."""
    device: str | None
    """As its driver names it; `None`: the file does not tell."""
    works: tuple[TimedTask, ...]
    """What was timed, each as often as it ran."""
    total_s: float
    """Of the GPU, with what is left out."""
    left_out: LeftOut
    """What gives no point."""
    torch: str = ""
    """Its version; empty: the file does not tell."""
    cuda: str | None = None
    """The same of CUDA."""
    in_steps: bool = False
    """Were the works parts of running steps?"""
    doubts: tuple[str, ...] = ()
    """What is hard to believe of them."""


def timed_tasks(ledger: Ledger, *, name: str) -> tuple[list[TimedTask], LeftOut]:
    """The works of a ledger; `name` is that of its file."""
    launches: dict[int, list[Kernel]] = defaultdict(list)
    left_out = LeftOut()
    for kernel in ledger.kernels:
        if kernel.time_s is None:
            continue
        if ledger.header.is_compiled:
            left_out.add(COMPILED, kernel.time_s)
            continue
        if len(kernel.ops) == 1:
            launches[kernel.ops[0]].append(kernel)
        else:
            left_out.add(SHARED, kernel.time_s)
    # Of an op that took part in a shared kernel, only a part of the work is in its own.
    shared = {op for kernel in ledger.kernels if len(kernel.ops) != 1 for op in kernel.ops}
    works: list[TimedTask] = []
    for op in ledger.ops:
        kernels = launches.get(op.index)
        if not kernels:
            continue
        seconds = math.fsum(kernel.time_s or 0.0 for kernel in kernels)
        reason = SHARED if op.index in shared else None
        parts = None if reason else _parts(op, kernels)
        if isinstance(parts, str) or parts is None:
            left_out.add(reason or str(parts), seconds)
            continue
        place = f"op {op.index} of {name} ({op.name})"
        works += [
            TimedTask(task, math.fsum(kernel.time_s or 0.0 for kernel in own), _launches(own), place)
            for task, own in parts
        ]
    return works, left_out


def _launches(kernels: Sequence[Kernel]) -> int:
    return max(1, sum(kernel.kind == "kernel" for kernel in kernels))


def _parts(op: Op, kernels: Sequence[Kernel]) -> list[tuple[Task, list[Kernel]]] | str:
    """The op's tasks, each with its kernels in the order they ran; or why that cannot be said."""
    if is_guess(op):
        return NO_TASK
    tasks = tasks_of(op)
    if not tasks:
        return NO_TASK
    if any(len(task.numbers) != len(FAMILIES[task.family]) for task in tasks):
        return UNEVEN
    ordered = sorted(kernels, key=lambda kernel: kernel.start_s or 0.0)
    if any(not kernel.time_s for kernel in ordered):
        return NOT_SPLIT
    if len(tasks) == 1:
        return [(tasks[0], ordered)]
    split = _split(tasks, ordered)
    return NOT_SPLIT if split is None else list(zip(tasks, split, strict=True))


def _split(tasks: Sequence[Task], kernels: list[Kernel]) -> list[list[Kernel]] | None:
    families = [task.family for task in tasks]
    if convolves(families[0]):
        return _convolution_parts(families, kernels)
    return _in_order(families, kernels)


def _in_order(families: Sequence[str], kernels: Sequence[Kernel]) -> list[list[Kernel]] | None:
    """One kernel a task, in the order in which the op makes them; zeros belong to what comes, sums to what was."""
    parts: list[list[Kernel]] = []
    zeros: list[Kernel] = []
    for kernel in kernels:
        role = role_of(kernel.name)
        if kernel.kind == "set":
            zeros.append(kernel)
        elif parts and role is not None and role.role == "sum of parts":
            parts[-1].append(kernel)
        else:
            parts.append([*zeros, kernel])
            zeros = []
    if zeros or len(parts) != len(families):
        return None
    fits = (_can_be(family, part[-1]) for family, part in zip(families, parts, strict=True))
    return parts if all(fits) else None


def _can_be(family: str, kernel: Kernel) -> bool:
    """Products and attention are known by their names; all else must be neither."""
    role = role_of(kernel.name)
    known = None if role is None else role.role
    if family == "gemm":
        return known in ("matrix", "sum of parts")
    if family.startswith("attention-"):
        return known == "attention"
    return known not in ("matrix", "attention")


_LAST = {"broadcast": "pointwise", "reduce": "reduction"}
"""What comes after a convolution, and the role of its kernel: the bias, or the gradient of it."""


def _convolution_parts(families: Sequence[str], kernels: list[Kernel]) -> list[list[Kernel]] | None:
    """torch makes the gradient of the input first, then that of the weight, then that of the bias; each changes
    layouts to what its kernel takes before it and back after it."""
    last: list[list[Kernel]] = []
    if families[-1] in _LAST:
        role = role_of(kernels[-1].name)
        if role is None or role.role != _LAST[families[-1]] or len(kernels) < 2:
            return None  # fused into the convolution, or not known
        last = [[kernels[-1]]]
        kernels, families = kernels[:-1], families[:-1]
        while len(kernels) > 1 and kernels[-1].kind == "set":  # sums in parts start from zeros
            last[0].insert(0, kernels[-1])
            kernels = kernels[:-1]
    if len(families) == 1:
        return [kernels, *last]
    if [family.rpartition("-")[2] for family in families] not in (["dgrad", "wgrad"], ["forward", "wgrad"]):
        return None
    boundary = _boundary(kernels)
    return None if boundary is None else [kernels[:boundary], kernels[boundary:], *last]


_MAIN = ("matrix", "winograd", "fft")
_AFTER = ("sum of parts",)


def _boundary(kernels: Sequence[Kernel]) -> int | None:
    """Where the second gradient begins: after the first one's product and what puts its result right."""
    main = [place for place, kernel in enumerate(kernels) if _is_main(kernel)]
    passes = [(place, role.does) for place in main if (role := role_of(kernels[place].name)) is not None]
    of_input = [place for place, does in passes if does == "input gradient"]
    of_weight = [place for place, does in passes if does == "weight gradient"]
    if of_input and of_weight:
        end, start = max(of_input), min(of_weight)
    elif of_input and (rest := [place for place in main if place > max(of_input)]):
        end, start = max(of_input), min(rest)
    elif of_weight and (rest := [place for place in main if place < min(of_weight)]):
        end, start = max(rest), min(of_weight)
    elif not of_input and not of_weight and len(main) == 2:
        end, start = main
    else:
        return None
    if end >= start:
        return None
    boundary = end + 1
    while boundary < start and _puts_right(kernels[boundary]):
        boundary += 1
    return boundary


def _is_main(kernel: Kernel) -> bool:
    role = role_of(kernel.name)
    return kernel.kind == "kernel" and role is not None and role.role in _MAIN


def _puts_right(kernel: Kernel) -> bool:
    """Does it belong to what ran before it?"""
    role = role_of(kernel.name)
    return role is not None and (role.role in _AFTER or "nhwcToNchw" in kernel.name)
