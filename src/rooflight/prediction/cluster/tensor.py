"""Tensor parallelism after Megatron-LM: matmuls and attention divided between ranks that share every layer.

Each branch of a block (attention, MLP) ends with the sum of what the ranks made of it: an all-reduce of the block's
output in forward, another of its input's gradient in backward. Forward waits for them; in backward Megatron-LM runs
the weight's gradient meanwhile. With sequence parallelism (Korthikanti et al. 2022) the sum is a reduce-scatter and an
all-gather, as much to move, and what lies between the branches is divided too.

A matmul that is cut has fewer tiles, and the last round of tiles over the SMs is as long as a full one: cut by 8, a
matmul of 8.1 rounds takes 2 of its 9, not 1.1. That, with the best of a few tiles, is the loss of efficiency here,
unless `retime` knows better.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from rooflight import formatting
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import PASSES
from rooflight.parallel.blocks import Model, is_attention
from rooflight.parallel.fabric import Fabric, RankGroup
from rooflight.parallel.layout import ParallelOptions
from rooflight.parallel.tensor_split import SHORTEST_KERNEL_S, TensorCut, cut_gemm, cut_op, gemm_of, tensor_cut_of
from rooflight.prediction.cluster.communication import Transfer, all_gather, all_reduce, reduce_scatter
from rooflight.prediction.cluster.step import Retime, TimedStep, exchange
from rooflight.prediction.result import Traffic


class SumMessage(NamedTuple):
    """A sum over the ranks, and the op after which it is made."""

    op: int
    nbytes: float
    transfer: Transfer


@dataclass(frozen=True)
class DividedStep:
    """One rank's step: shorter ops, and communication that the GPU waits for."""

    step: TimedStep
    messages: tuple[SumMessage, ...]
    assumptions: tuple[str, ...]
    weight_share: float
    """The part of the model's weights that one rank holds."""


def check(model: Model, ranks: int) -> None:
    """One line for a model that cannot be divided so."""
    if ranks == 1:
        return
    if not model.blocks:
        raise BadInput(
            "no-transformer-blocks",
            "tensor parallelism needs repeated transformer blocks, and this model has none: use ddp or fsdp",
        )
    if model.heads is not None and model.heads % ranks:
        fitting = [n for n in range(2, model.heads + 1) if model.heads % n == 0]
        raise BadInput(
            "not-divisible",
            f"{model.heads} attention heads cannot be shared by {ranks} tensor parallel ranks: "
            f"use {', '.join(map(str, fitting)) or '1'}",
        )


def divide(
    step: TimedStep,
    model: Model,
    group: RankGroup,
    fabric: Fabric,
    device: Device,
    options: ParallelOptions,
    retime: Retime | None = None,
) -> DividedStep:
    """The step of one of `group.ranks` ranks."""
    ranks, ledger, sequence, sms = group.ranks, step.ledger, options.sequence_parallel, int(device.sms.value)
    if ranks == 1:
        return DividedStep(step, (), (), 1.0)
    check(model, ranks)
    parts = tensor_cut_of(ledger, model)
    share = parts.held_share(ranks)
    gpu_s = [
        _seconds(step, parts, index, ranks, sms=sms, sequence=sequence, retime=retime)
        if op.phase in PASSES
        else step.gpu_s[index] * share
        for index, op in enumerate(ledger.ops)
    ]
    messages = _messages(model, parts, group, fabric, sequence=sequence)
    wait_s = [0.0] * len(ledger.ops)
    hiding = dict(parts.sums_backward) if options.overlap else {}
    for index, _, transfer in messages:
        wait_s[index] += max(transfer.time_s - sum(gpu_s[i] for i in hiding.get(index, ())), 0.0)
    words = _words(parts, group, options, retime)
    return DividedStep(replace(step, gpu_s=tuple(gpu_s), wait_s=tuple(wait_s)), messages, words, share)


def exchanges(divided: DividedStep, ops: Collection[int], *, again: Collection[int], times: int) -> tuple[Traffic, ...]:
    """Return the sums of a step of `times` micro-batches of a GPU that runs `ops`; those in `again` happen twice."""
    made = [message for message in divided.messages if message.op in ops]
    sent = [message for message in made for _ in range(2 if message.op in again else 1)] * times
    return exchange("activations, summed over tensor ranks", [(nbytes, transfer) for _, nbytes, transfer in sent])


def _seconds(
    step: TimedStep, parts: TensorCut, index: int, ranks: int, *, sms: int, sequence: bool, retime: Retime | None
) -> float:
    """What becomes of one op of forward or backward."""
    undivided_s = step.gpu_s[index]
    divided = index in parts.inside or (sequence and index in parts.outside)
    if not divided or undivided_s <= 0:
        return undivided_s
    op, axis = step.ledger.ops[index], parts.axis.get(index)
    if index in parts.inside and (axis or is_attention(op)):
        if retime is not None and (smaller := cut_op(op, axis, ranks)) is not None:
            # All ranks together do no less than one would alone.
            floor_s = step.floor_s[index] / ranks if step.floor_s else 0.0
            return max(min(retime(smaller), undivided_s), floor_s)
        if (gemm := gemm_of(op)) is not None:
            cut = cut_gemm(gemm, axis, ranks) if axis else gemm._replace(batch=-(-gemm.batch // ranks))
            return undivided_s * min(cut.work(sms) / gemm.work(sms), 1.0)
    return max(undivided_s / ranks, min(undivided_s, SHORTEST_KERNEL_S))


def _messages(
    model: Model, parts: TensorCut, group: RankGroup, fabric: Fabric, *, sequence: bool
) -> tuple[SumMessage, ...]:
    """What a block hands on (batch x sequence x hidden) is what its ranks add up; the ends are as the first block."""
    nbytes = {number: model.units[number].output_bytes for number in model.blocks}
    where = {i: n for n in model.blocks for i in (*model.units[n].forward, *model.units[n].backward)}
    sums = {size: _sum(size, group, fabric, sequence=sequence) for size in set(nbytes.values())}
    places = (*parts.sums_forward, *(index for index, _ in parts.sums_backward))
    sizes = [nbytes[where.get(index, model.blocks[0])] for index in places]
    return tuple(SumMessage(index, size, sums[size]) for index, size in zip(places, sizes, strict=True))


def _sum(nbytes: float, group: RankGroup, fabric: Fabric, *, sequence: bool) -> Transfer:
    if not sequence:
        return all_reduce(nbytes, group, fabric)
    halves = reduce_scatter(nbytes, group, fabric), all_gather(nbytes, group, fabric)
    return Transfer(halves[0].time_s + halves[1].time_s, halves[0].how)


def _words(parts: TensorCut, group: RankGroup, options: ParallelOptions, retime: Retime | None) -> tuple[str, ...]:
    sequence, overlap = options.sequence_parallel, options.overlap
    forward, backward = len(parts.sums_forward), len(parts.sums_backward)
    kind = "reduce-scatters with an all-gather each" if sequence else "all-reduces"
    lines = [
        f"tensor parallel over {group.ranks}: weights of attention, MLP, embedding and head divided; {forward} {kind} "
        f"in forward, {backward} in backward" + (", behind the gradient of a weight" if overlap and backward else ""),
        *_replicated_words(parts),
        "norms, residuals and dropout divided along the sequence"
        if sequence
        else "norms, residuals and dropout done in full by every rank (no sequence parallelism)",
        "divided matmuls timed at their smaller shapes"
        if retime is not None
        else "a divided matmul takes its share of whole rounds of tiles (128 x 128 to 256 x 128) over the SMs",
    ]
    if group.nodes > 1:
        lines.append(f"tensor parallel ranks lie on {group.nodes} nodes: every layer waits for the network")
    return tuple(lines)


def _replicated_words(parts: TensorCut) -> tuple[str, ...]:
    if not parts.replicated:
        return ()
    names = [name for name, _ in parts.replicated.most_common()]
    named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (f"whole on every rank, {formatting.bytes_(parts.replicated.total())}: {named}",)
