"""Recurrent layers: all layers, steps and directions of a stack are one call of a library.

Forward is timed as in training, which writes what backward reads; inference writes less."""

from __future__ import annotations

from functools import partial

import torch

from rooflight.calibration.case import DTYPES, Call, Cases, TensorPool, case
from rooflight.calibration.sampling import choice, points, unusual, whole
from rooflight.ops.kernel_task import Task

_MOST_STEPS = 2500
"""Of all layers: each is a kernel or two, and nothing else is done beside them."""


def recurrent_cases(precision: str, peak: float, seed: int, longest_s: float) -> Cases:
    for u in points(7, seed):
        gates = choice(u[0], ((1, 1), (3, 3), (4, 4)))
        steps, samples = unusual(whole(u[1], 8, 600)), whole(u[2], 1, 256)
        even = 1 if u[6] * 10 % 1 < 0.15 else 8
        inputs, hidden = whole(u[3], 8, 1500, even), whole(u[4], 24, 2000, even)
        layers, directions = whole(u[5], 1, 8), 2 if u[6] < 0.3 else 1
        numbers = (gates, steps, samples, inputs, hidden, layers, directions)
        weights = directions * gates * hidden * (inputs + (layers - 1) * hidden * directions + layers * hidden)
        if steps * layers * directions > _MOST_STEPS or 2 * steps * samples * weights / peak > longest_s:
            continue
        for way in ("forward", "backward"):
            yield case(_call, Task(f"recurrent-{way}", precision, numbers))


def _call(task: Task, pool: TensorPool) -> Call:
    gates, steps, samples, inputs, hidden, layers, directions = task.numbers
    kind = {1: torch.nn.RNN, 3: torch.nn.GRU, 4: torch.nn.LSTM}[gates]
    dtype = DTYPES[task.precision]
    net = kind(inputs, hidden, layers, bidirectional=directions == 2, device=pool.device, dtype=dtype)
    net.flatten_parameters()  # else every call lays them out anew
    x = pool.take(steps, samples, inputs, dtype=dtype)
    if task.family.endswith("forward"):
        return partial(_without_gradients, net, x)
    with torch.enable_grad():
        out, _ = net(x)
    leaves, grad = list(net.parameters()), torch.ones_like(out)
    return partial(torch.autograd.grad, out, leaves, grad, retain_graph=True)


@torch.no_grad()
def _without_gradients(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = net(x)[0]
    return out
