"""How much workspace cuDNN takes for convolutions: each layer is run once, and the allocator says what was borrowed.

Layers are drawn at random, as networks have them, but none that a well-known network has: sides of 7, 14, 28, ...
together with multiples of eight in both channels are left out, whatever the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import date

import torch

from rooflight.calibration.case import OutOfPool, TensorPool, precision_set
from rooflight.calibration.convolution import WAYS, call_of, output_size
from rooflight.calibration.sampling import KNOWN_SIDES, choice, points, whole
from rooflight.hardware.workspaces import FORMAT_VERSION, WorkspacePoints, Workspaces
from rooflight.ops.kernel_task import Task

Numbers = tuple[int, ...]
SHARES = {("tf32", 0): 26, ("bf16", 0): 30, ("fp32", 0): 12, ("tf32", 1): 12, ("bf16", 1): 16, ("fp32", 1): 4}
"""Of the time, by precision and layout. cuDNN compiles a kernel for most layers with channels last, in a fifth of a
second."""
_KERNELS = ((38, 1), (44, 3), (7, 5), (4, 7), (3, 2), (2, 17), (2, 71))
_KINDS = ((74, 0), (13, 1), (4, 2), (9, 3))  # dense, stem, depthwise, grouped
_LARGEST = 4e8
_SEED = 900


def layers(seed: int, *, channels_last: int) -> Iterator[Numbers]:
    for u in points(10, seed):
        layer = _layer(u, channels_last)
        if layer is not None:
            yield layer


def _layer(u: list[float], channels_last: int) -> Numbers | None:
    """Large pictures have few channels, small ones many; the batch is anything."""
    kind = choice(u[5], _KINDS)
    side = choice(u[4], ((30, 3), (30, 7), (6, 4), (4, 11), (8, 16), (6, 5)) if kind == 1 else _KERNELS)
    if kind == 2:
        side = choice(u[4], ((6, 3), (4, 5), (3, 7)))
    elif kind == 3:
        side = choice(u[4], ((5, 3), (1, 1), (1, 5)))
    r, s = {17: (1, 7), 71: (7, 1)}.get(side, (side, side))
    n = whole(u[0], 1, 256)
    h = whole(u[3], 4, 256, (1, 2, 4, 8)[int(u[8] * 4)])
    aligned = choice(u[7], ((1, 1), (2, 8), (3, 16), (6, 32), (8, 64), (4, 128)))
    low, high = max(8, 700 / h), min(2304, 40000 / h)
    c, k = (max(8, whole(value, int(low), int(high), aligned)) for value in u[1:3])
    groups = 1
    if kind == 1:
        h = whole(u[3], 24, 384, (1, 2, 8)[int(u[8] * 3)])
        c = choice(u[1], ((8, 3), (2, 1), (1, 4)))
        k = whole(u[2], 16, 128, 8) if side not in (4, 16) else whole(u[2], 64, 1024, 32)
    elif kind == 2:
        k = groups = c
    elif kind == 3:
        groups = choice(u[9], ((2, 2), (1, 4), (1, 16), (3, 32), (1, 64)))
        c, k = (max(1, round(value / groups)) * groups for value in (c, k))
    stride = side if side in (2, 4, 16) else 4 if side == 11 else 2 if u[6] > (0.5 if kind == 1 else 0.8) else 1
    pad = 0 if r != s or side in (2, 4, 16) else r // 2
    known = h in KNOWN_SIDES and (kind == 1 or c % 8 == k % 8 == 0)
    if h < max(r, s) or known:
        return None
    out = output_size(h, r, stride, pad, 1) * output_size(h, s, stride, pad, 1)
    if n * max(c * h * h, k * out) > _LARGEST:
        return None
    return (n, c, h, h, k, r, s, stride, pad, 1, groups, channels_last)


def borrowed_bytes(call: Callable[[], object]) -> int:
    """What a call allocates and gives back."""
    torch.cuda.reset_peak_memory_stats()
    results = call()
    stats = torch.cuda.memory_stats()
    borrowed = int(stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"])
    del results
    return borrowed


def record(device: torch.device, seconds: float, progress: Callable[[str], None]) -> Workspaces:
    """As many layers as there is time for, on a CUDA device."""
    pool = TensorPool(device, int(min(6 << 30, torch.cuda.mem_get_info(device)[0] / 8)))
    rows: dict[str, list[list[int]]] = {}
    for number, ((precision, last), share) in enumerate(SHARES.items()):
        progress(f"workspaces {precision}{', channels last' if last else ''}")
        end = time.monotonic() + seconds * share / sum(SHARES.values())
        with precision_set(precision):
            for layer in layers(_SEED + number, channels_last=last):
                if time.monotonic() > end:
                    break
                borrowed = [_tried(Task(way, precision, layer), pool) for way in WAYS]
                if max(borrowed) >= 0:
                    rows.setdefault(precision, []).append([*layer, *borrowed])
    return Workspaces(
        format_version=FORMAT_VERSION,
        device=torch.cuda.get_device_name(device),
        torch=str(torch.__version__),
        cudnn=str(torch.backends.cudnn.version()),
        made=date.today().isoformat(),
        points=tuple(WorkspacePoints(precision, some) for precision, some in sorted(rows.items())),
    )


def _tried(task: Task, pool: TensorPool) -> int:
    """-1: it is too large for here, or cuDNN has nothing for it."""
    pool.reset()
    try:
        return borrowed_bytes(call_of(task, pool))
    except (OutOfPool, RuntimeError):
        return -1
