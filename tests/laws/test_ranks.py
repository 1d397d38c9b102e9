"""Laws of a model shared by ranks: no byte and no FLOP is lost, and what several ranks have is named."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any, get_args

import pytest

import rooflight
from rooflight.errors import BadInput
from rooflight.ledger import PASSES, Ledger, Op
from rooflight.parallel.blocks import is_attention, model_of
from rooflight.parallel.layout import Layout, ParallelOptions, Recompute, parse
from rooflight.parallel.state_memory import ModelStates, per_gpu, states_of
from rooflight.parallel.tensor_split import tensor_cut_of
from rooflight.prediction.cluster import combined, pipeline, tensor
from rooflight.prediction.cluster.step import TimedStep
from tests.fixtures.parallel_steps import device, plain_fabric
from tests.laws.test_predictions import LAYOUTS, STEPS, words

SMALL = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8,
         "num_key_value_heads": 4}  # fmt: skip
MORE_STEPS: list[dict[str, Any]] = [
    {"model": "gpt2", "overrides": {"n_layer": 4, "n_embd": 256, "n_head": 8}, "batch": 8, "seq": 32, "step": "train"},
    {"model": "llama3-8b", "overrides": SMALL, "batch": 8, "seq": 32, "step": "train"},
    {"model": "mixtral-8x7b", "overrides": SMALL, "batch": 8, "seq": 32, "step": "train"},
    {"model": "transformer", "overrides": {"d_model": 128}, "batch": 8, "seq": 32, "step": "train"},
    {"model": "distilbert-mlm", "batch": 8, "seq": 32, "step": "train"},
]
MORE_LAYOUTS: list[dict[str, Any]] = [
    {"gpus": 2, "parallel": "tp"}, {"gpus": 8, "parallel": "tp"}, {"gpus": 4, "parallel": "pp"},
]  # fmt: skip
ROUNDED_UP = 1e-3
"""Of the FLOPs: a rank has whole rows and columns."""
IN_STAGES = 0.02
"""Of the bytes: a stage is taken to have its part of all that is whole, and of a tied weight too."""


def cases() -> list[Any]:
    pairs = itertools.product((*STEPS, *MORE_STEPS), (*LAYOUTS[1:], *MORE_LAYOUTS))
    return [pytest.param(step, layout, id=f"{words(step)} {words(layout)}") for step, layout in pairs]


def flops(op: Op) -> float:
    """Those done once, and those named as done again (flash attention's backward, a checkpointed block)."""
    return float((op.cost.flops or 0) + (op.cost.recompute_flops or 0)) if op.cost is not None else 0.0


def traced(step: dict[str, Any], **changes: Any) -> Ledger:
    return _traced(json.dumps({name: value for name, value in (step | changes).items() if name != "graphs"}))


@cache
def _traced(options: str) -> Ledger:
    return rooflight.estimate(**json.loads(options))


def timed(ledger: Ledger) -> TimedStep:
    """Seconds that are FLOPs: what times the ops of a rank then counts its FLOPs."""
    return TimedStep(ledger, [flops(op) for op in ledger.ops], [0.0] * len(ledger.ops))


def again_flops(ledger: Ledger) -> float:
    """Return the FLOPs that every tensor rank does: those of modules whose weights are named as whole."""
    cut = tensor_cut_of(ledger, model_of(ledger))
    whole = {row.name.rpartition(".")[0] for row in ledger.storages
             if row.category == "parameter" and row.id not in cut.weights}  # fmt: skip
    outside = [op for op in ledger.ops if op.phase in PASSES and op.index not in cut.inside and flops(op)]
    assert cut.replicated and {op.module for op in outside} <= whole
    return sum(map(flops, outside))


@pytest.mark.parametrize(("step", "layout"), cases())
def test_all_ranks_hold_the_model_and_do_its_step(step: dict[str, Any], layout: dict[str, Any]) -> None:
    ranks = parse(layout["parallel"], gpus=layout["gpus"], nodes=layout.get("nodes", 1))
    options = ParallelOptions(micro_batches_a_stage=1 if step.get("step") == "decode" else 4)
    times = pipeline.micro_batches_for(step["batch"], ranks.pipeline, options)
    ledger = traced(step, batch=step["batch"] // times)
    model = model_of(ledger)
    try:
        pipeline.check(model, ranks)
        rank = tensor.divide(timed(ledger), model, ranks.tensor_group, plain_fabric(), device(), options, flops)
    except BadInput as refused:
        if refused.code not in ("not-divisible", "no-transformer-blocks"):
            raise
        return
    stages = pipeline.stages_of(rank.step, model, ranks.pipeline)

    done = ranks.tensor * times * sum(stage.turn_s for stage in stages)
    again = (ranks.tensor - 1) * times * again_flops(ledger) if ranks.tensor > 1 else 0.0
    asked = sum(flops(op) for op in traced(step).ops if op.phase in PASSES)
    assert done == pytest.approx(asked + again, rel=ROUNDED_UP) and again < 0.05 * asked

    sizes = {row.id: row.nbytes for row in ledger.storages if row.category == "parameter"}
    used = [{one.storage for number in stage.units for index in model.units[number].forward
             for one in ledger.ops[index].inputs} for stage in stages]  # fmt: skip
    tied = sum(nbytes * max(sum(number in some for some in used) - 1, 0) for number, nbytes in sizes.items())
    whole = tensor_cut_of(ledger, model).replicated.total() if ranks.tensor > 1 else 0
    share = sum(stage.weight_share for stage in stages) * rank.weight_share
    named = sum(sizes.values()) + tied + (ranks.tensor - 1) * whole
    assert ranks.tensor * share * sum(sizes.values()) == pytest.approx(named, rel=IN_STAGES if tied and whole else 1e-9)

    states = states_of(ledger)
    held, copies = per_gpu(states, ranks.mode, ranks.data), COPIES[ranks.mode]
    for of_rank, of_model, copied in zip(bytes_of(held), bytes_of(states), copies, strict=True):
        assert ranks.data * of_rank == pytest.approx((ranks.data if copied else 1) * of_model)


COPIES = {"ddp": (True, True, True), "zero1": (True, True, False), "fsdp": (False, False, False)}
"""Weights, gradients, optimizer state: does every data parallel rank hold all of them?"""


def bytes_of(states: ModelStates) -> tuple[float, float, float]:
    return states.parameter_bytes, states.gradient_bytes, states.optimizer_bytes


@pytest.mark.parametrize("ranks", [Layout(data=2), Layout(tensor=2)])
@pytest.mark.parametrize("step", MORE_STEPS, ids=words)
def test_flops_done_again_are_those_of_the_blocks(step: dict[str, Any], ranks: Layout) -> None:
    ledger = traced(step)
    model, done = model_of(ledger), []
    for recompute in get_args(Recompute):
        of_rank = combined.predict(
            lambda _: timed(ledger), ranks, plain_fabric(), batch=step["batch"], device=device(), retime=flops,
            options=ParallelOptions(recompute=recompute),
        )  # fmt: skip
        done.append(ranks.tensor * sum(of_rank.kernel_s[phase] for phase in PASSES))
    none, selective, full = done
    ops = [ledger.ops[index] for number in model.blocks for index in model.units[number].forward]
    assert full - none == pytest.approx(sum(map(flops, ops)), rel=ROUNDED_UP)
    assert 0 < selective - none == pytest.approx(sum(flops(op) for op in ops if is_attention(op)), rel=ROUNDED_UP)


def test_a_checkpoint_adds_what_it_names() -> None:
    step = next(one for one in STEPS if "checkpoint" in one)
    kept = {name: value for name, value in step.items() if name != "checkpoint"}
    ledger, again = traced(step), [op for op in traced(step).ops if op.recompute]
    assert sum(map(flops, ledger.ops)) == sum(map(flops, traced(kept).ops)) + sum(map(flops, again))
    assert sum(map(flops, again)) > 0 == sum(op.cost.flops or 0 for op in again if op.cost is not None)
