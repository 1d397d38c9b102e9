"""Memory in predictions: what it is made of, how it follows batch, optimizer, precision and cache, and what fits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import rooflight
from rooflight.errors import BadInput
from rooflight.hardware.devices import find
from rooflight.memory.context_memory import first_uses, kept_workspaces
from rooflight.memory.predict import MemoryPredictor, chip_of
from rooflight.memory.result import Memory
from rooflight.memory.sharding.ranks import FullestRank
from rooflight.models.workload import parse_input
from rooflight.parallel.layout import Layout, ParallelOptions
from rooflight.prediction.api import predict
from rooflight.prediction.result import Predictions
from rooflight.reporting.sections.predict_document import predict_document
from rooflight.reporting.sections.predict_memory_tables import limit_line
from rooflight.step.costed_step import PreparedTrace
from tests.fixtures.notes import note_texts

SMALL_LLAMA = {"num_hidden_layers": "2"}
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"overrides": {"n_layer": "2"}},
    "transformer": {"overrides": {"num_encoder_layers": "1", "num_decoder_layers": "1"}},
}
"""Two layers say what twelve do, in a quarter of the time."""
ALL_LAYERS: dict[str, Any] = {"overrides": {}}
MIB = 1 << 20


def ask(model: str = "mnist-cnn", **options: Any) -> Predictions:
    return predict(model, **{"on": "h200", "advice": False, **SMALL.get(model, {}), **options})


def memory(model: str = "mnist-cnn", **options: Any) -> Memory:
    """Looking for what would take less of it, where it is full or shown over time, takes several traces."""
    found = ask(model, find_savings=False, **options)[0].memory
    assert found is not None
    return found


def params_bytes(model: str, **options: Any) -> int:
    return sum(module.param_bytes for module in rooflight.estimate(model, **SMALL.get(model, {}), **options).modules)


CASES: list[dict[str, Any]] = [
    {"model": "mnist-cnn", "batch": 8},
    {"model": "resnet18", "batch": 4, "step": "train"},
    {"model": "gpt2", "batch": 2, "seq": 64, "step": "train"},
    {"model": "gpt2", "batch": 2, "seq": 64, "step": "train", "dtype": "bf16", "optimizer": "adam"},
    {"model": "gpt2", "batch": 2, "seq": 64, "step": "train", "autocast": "bf16"},
    {"model": "gpt2", "batch": 2, "seq": 64, "step": "train", "accumulate": 2},
    {"model": "gpt2", "batch": 2, "seq": 64, "step": "train", "checkpoint": "blocks"},
    {"model": "gpt2", "batch": 2, "step": "decode", "past": 100},
    {"model": "transformer", "batch": 2, "step": "train", "optimizer": "sgd"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_the_parts_add_up(case: dict[str, Any]) -> None:
    found = memory(**case, memory=True)
    assert sum(found.peak.split.values()) == found.peak_allocated_bytes
    assert found.peak.split["parameter"] == params_bytes(**case)
    assert 0 <= found.peak.split.get("rounding", 0) < 0.1 * found.peak_allocated_bytes
    assert found.before_bytes <= found.peak_allocated_bytes <= (found.peak_reserved_bytes or 0) < found.device_bytes
    timeline = found.timeline
    assert timeline is not None
    ops = len(timeline.allocated)
    assert all(len(row) == ops for row in timeline.categories.values())
    # What the allocator has given out after an op is what lives then and what libraries keep, in whole blocks.
    for place in (0, ops // 2, ops - 1):
        live = sum(row[place] for name, row in timeline.categories.items() if name != "workspace")
        assert live <= timeline.allocated[place] <= live + 0.1 * live + 40 * MIB
    assert max(timeline.allocated) <= found.peak_allocated_bytes
    largest = [tenant.bytes for tenant in found.peak.tenants]
    assert largest == sorted(largest, reverse=True)


@pytest.mark.parametrize("batch", [3, 17, 64])
def test_the_closed_form_in_the_batch_is_the_trace(batch: int) -> None:
    """Three batches come of one trace; each equals a trace of its own."""
    many = {one.batch: one.memory for one in ask("resnet18", step="train", batch=[3, 17, 64])}
    own = memory("resnet18", step="train", batch=batch)
    found = many[batch]
    assert found is not None
    assert found.peak_allocated_bytes == own.peak_allocated_bytes
    assert found.peak_reserved_bytes == own.peak_reserved_bytes
    assert found.peak == own.peak


def test_optimizers_keep_what_they_keep() -> None:
    options: dict[str, Any] = {"step": "train", "batch": 1, "seq": 32}
    weights = params_bytes("gpt2", seq=32)
    found = {name: memory("gpt2", optimizer=name, **options) for name in ("sgd", "momentum", "adam")}
    state = {name: one.peak.split.get("optimizer-state", 0) for name, one in found.items()}
    assert (state["sgd"], state["momentum"]) == (0, weights)
    assert state["adam"] == 2 * weights
    # Between steps the gradients of the last one are there too, in blocks of at most 1 MiB more each.
    assert found["adam"].before_bytes == pytest.approx(4 * weights + 65 * MIB, rel=0.02)


def test_the_first_step_begins_without_the_optimizers_state() -> None:
    found = memory("gpt2", step="train", batch=8, seq=256, optimizer="adam", **ALL_LAYERS)
    missing = found.peak_allocated_bytes - found.first_step_bytes
    weights = sum(module.param_bytes for module in rooflight.estimate("gpt2", seq=256).modules)
    assert missing == pytest.approx(2 * weights, rel=0.05)


def test_micro_batches_follow_one_another() -> None:
    once = memory("gpt2", step="train", batch=4, seq=128)
    thrice = memory("gpt2", step="train", batch=4, seq=128, accumulate=3)
    gradients = params_bytes("gpt2", seq=128)
    # The gradients of the first micro-batch are there in the others; their activations are not.
    assert 0 < thrice.peak_allocated_bytes - once.peak_allocated_bytes < 1.1 * gradients


def most_kept(category: str = "activation", **options: Any) -> int:
    timeline = memory("gpt2", step="train", memory=True, **options).timeline
    assert timeline is not None
    return max(timeline.categories.get(category, (0,)))


def test_checkpoints_keep_less() -> None:
    assert most_kept(batch=4, seq=256, checkpoint="blocks", **ALL_LAYERS) < 0.5 * most_kept(
        batch=4, seq=256, **ALL_LAYERS
    )


def test_autocast_keeps_copies_of_the_weights() -> None:
    """Half of each weight that a matmul reads, from its first use to the end of forward; autograd keeps them. They are
    no activations: of these there are hardly more than without."""
    weights = params_bytes("gpt2", seq=32)
    copies = most_kept("weight-copy", batch=1, seq=32, autocast="bf16")
    assert 0.45 * weights < copies <= 0.5 * weights
    assert not most_kept("weight-copy", batch=1, seq=32)
    more = most_kept(batch=1, seq=32, autocast="bf16") - most_kept(batch=1, seq=32)
    assert abs(more) < 0.05 * weights


def test_the_cache_of_a_decoder() -> None:
    """Keys and values: 2 x layers x past x width x batch x 4 bytes."""
    long, short = (memory("gpt2", step="decode", past=past, batch=4) for past in (900, 100))
    cache = 2 * 2 * 800 * 768 * 4 * 4
    assert long.peak.split["input"] - short.peak.split["input"] <= cache
    grown = long.before_bytes - short.before_bytes
    assert grown == pytest.approx(cache, abs=4 * MIB)  # each of 4 blocks may be up to 1 MiB larger than asked for


def test_libraries_take_their_workspace_once_a_thread() -> None:
    training = rooflight.estimate("mnist-cnn", step="train")
    assert sorted(sum(kept_workspaces(first_uses(training), 90).values(), ())) == [MIB, 32 * MIB, 32 * MIB]
    inference = rooflight.estimate("mnist-cnn")
    assert sum(kept_workspaces(first_uses(inference), 90).values(), ()) == (32 * MIB, MIB)
    assert sum(kept_workspaces(first_uses(inference), 80).values(), ())[0] == 8 * MIB + 128 * 1024
    without = rooflight.estimate(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.zeros(1, 3, 8, 8))
    assert kept_workspaces(first_uses(without), 90) == {}


def test_recurrent_layers_have_a_reserve() -> None:
    """cuDNN keeps what backward needs of an LSTM in one block, whose size no meta tensor knows."""
    model, data = nn.LSTM(256, 512, 2), torch.zeros(100, 8, 256)
    ledger = rooflight.estimate(model, data, step="train", loss="sum")
    found = MemoryPredictor().of(PreparedTrace(ledger, None).at(None), find("h200"))
    assert found.peak.split["activation"] > 100 * 8 * 512 * 2 * 4 * 4


# --- what fits ---


@pytest.mark.parametrize(("model", "options"), [("gpt2", {"seq": 256}), ("resnet18", {})])
def test_the_largest_batch_fits_and_the_next_does_not(model: str, options: dict[str, Any]) -> None:
    found = ask(model, step="train", on="t4", max_batch=True, **options)
    (limit,) = found.limits
    assert limit.what == "batch" and limit.value == found[0].max_batch and limit.fails == limit.value + 1
    assert "and a trace at batch" in limit.how
    assert memory(model, step="train", on="t4", batch=limit.value, **options).fits
    assert not memory(model, step="train", on="t4", batch=limit.fails, **options).fits


def test_what_fails_for_want_of_a_block_is_not_said_to_need_more_than_there_is() -> None:
    """Just past the limit little more is in use than just below it."""
    (limit,) = ask("resnet18", step="train", on="t4", max_batch=True).limits
    assert limit.fails is not None
    found = ask("resnet18", step="train", on="t4", batch=[limit.value, limit.fails, 2 * limit.fails])
    fits, fails = (one.memory for one in found[:2])  # type: ignore[attr-defined, index]
    assert fits is not None and fails is not None and fails.outside_bytes is not None
    assert fits.fits and not fails.fits
    assert fails.peak_allocated_bytes + fails.outside_bytes < fails.usable_bytes
    assert [
        note
        for note in note_texts(found.notes)
        if f"batch {limit.fails:,} has" in note and "in pieces that do not fit" in note
    ]
    assert [note for note in note_texts(found.notes) if f"batch {2 * limit.fails:,} would need" in note]
    assert (
        f"t4 at batch {limit.value:,}: fits barely, cached blocks are given back, which waits for the GPU"
        in note_texts(found.notes)
    )


def test_memory_does_not_hang_on_how_many_are_asked_for() -> None:
    """What a sum borrows goes with the number of multiprocessors: an L4's share is not that of a GPU asked for before
    it."""
    ask_for = partial(rooflight.predict, "distilbert", batch=16, step="train", advice=False)
    names = ["h200", "h100-pcie", "gh200", "b200", "a100-sxm-80", "a100-pcie-40", "a40", "a10", "rtx-3090", "l4",
             "l40s", "rtx-4090", "rtx-a6000"]  # fmt: skip
    many = ask_for(on=names)
    (alone,) = ask_for(on="l4")
    one, other = many.at("l4").memory, alone.memory
    assert (one.peak_allocated_bytes, one.peak_reserved_bytes, one.fit, one.peak.split) == (
        other.peak_allocated_bytes, other.peak_reserved_bytes, other.fit, other.peak.split)  # fmt: skip
    assert one.peak_reserved_bytes != many.at("a10").memory.peak_reserved_bytes


def test_memory_that_hardly_grows() -> None:
    """A line through two sizes that are alike points to anywhere: the search goes on by doubling."""
    (limit,) = ask("mnist-cnn", on="epyc-9654", tier="spec", max_batch=True).limits
    assert limit.value > 100_000
    endless = SMALL_LLAMA | {"max_position_embeddings": "1000000000"}
    (limit,) = ask("llama3-8b", dtype="bf16", step="infer", seq=512, max_seq=True, overrides=endless).limits
    assert limit.fails == limit.value + 1 and limit.value > 10_000


def test_what_ended_the_search_is_what_ended_it() -> None:
    """Longer ones than the positions were tried first; memory ends it before."""
    (limit,) = ask("gpt2", step="train", batch=12, seq=64, max_seq=True, on="rtx-4090", **ALL_LAYERS).limits
    assert limit.why == "" and limit.fails == limit.value + 1 < 1024


def test_the_longest_sequence_is_of_the_batch_it_was_looked_for_at() -> None:
    found = ask("transformer", batch=[32, 64], step="train", on="t4", max_seq=True)
    assert [one.max_seq is None for one in found] == [False, True]


def test_nothing_that_is_trained() -> None:
    found = predict(nn.Identity(), torch.zeros(2, 8), on="h200", step="train", memory=True, advice=False)
    assert found[0].memory is not None and found[0].memory.fits


def test_changes_that_are_alike_to_the_eye_are_told_apart() -> None:
    """Each layout's rank is a new object, and memory must not take one for another that is gone."""
    step, device, memories = _traced("resnet18", 8), find("h200"), MemoryPredictor()
    layouts = [Layout(data=8, mode=mode) for mode in ("ddp", "zero1", "zero2", "fsdp")]

    def peaks(known: MemoryPredictor | None) -> list[int]:
        return [
            (known or MemoryPredictor())
            .of(step, device, change=FullestRank(step.ledger, one, ParallelOptions(), 1, ()))
            .peak_allocated_bytes
            for one in layouts
        ]

    assert peaks(memories) == peaks(None)


def test_a_device_is_predicted_as_if_it_were_alone() -> None:
    """Which of them could hold the model in fp32 is each one's own affair."""
    asked: dict[str, Any] = {"dtype": "bf16", "seq": 64, "overrides": {"num_hidden_layers": "12"}}
    alone = memory("llama3-8b", on="l4", **asked)
    beside = ask("llama3-8b", on="h200,l4", **asked).at("l4").memory
    assert beside is not None and beside.peak_reserved_bytes == alone.peak_reserved_bytes


@pytest.mark.parametrize(
    ("parallel", "unit"),
    [("fsdp", 1), pytest.param("tp", 1, marks=pytest.mark.slow), pytest.param("pp", 8, marks=pytest.mark.slow)],
)
def test_the_largest_batch_of_a_replica_among_many(parallel: str, unit: int) -> None:
    """What fits is what the prediction at that very batch says; the next one, in steps of the micro-batches, does not."""
    options: dict[str, Any] = {"step": "train", "on": "t4", "gpus": 2, "parallel": parallel, "seq": 128, "tier": "spec"}
    found = ask("gpt2", max_batch=True, batch=8, **options)
    (limit,) = found.limits
    assert (limit.unit, limit.value % unit) == (unit, 0)
    assert limit.value == found[0].max_batch and limit.fails == limit.value + unit
    at = [ask("gpt2", batch=size, **options)[0].memory for size in (limit.value, limit.fails)]
    assert [one is not None and one.fits for one in at] == [True, False]
    assert f"the largest batch of a replica that fits: {limit.value}" in predict_document(found).to_markdown()


def test_segments_that_grow_hold_a_larger_batch() -> None:
    options: dict[str, Any] = {"step": "train", "on": "t4", "seq": 512}
    found = ask("gpt2", max_batch=True, **options)
    (limit,) = found.limits
    wide = ask("gpt2", max_batch=True, allocator="expandable_segments:True", **options).limits[0]
    assert limit.with_expandable_segments == wide.value > limit.value
    assert wide.with_expandable_segments is None
    shown = " ".join(predict_document(found).lines)
    assert f"; {wide.value} with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in shown


def test_a_memory_fraction_ends_the_memory() -> None:
    options: dict[str, Any] = {"step": "train", "batch": 64}
    whole, half = (memory("resnet18", allocator=one, **options) for one in (None, "per_process_memory_fraction:0.5"))
    assert half.peak_allocated_bytes == whole.peak_allocated_bytes
    assert half.outside_bytes is not None
    assert half.usable_bytes == whole.usable_bytes // 2 + half.outside_bytes, "the context is not torch's"


def test_a_threshold_without_a_fraction_is_told_to_do_nothing() -> None:
    threshold = "garbage_collection_threshold:0.5"
    told = [any("only under a memory fraction" in note for note in note_texts(ask("mnist-cnn", allocator=one).notes))
            for one in (threshold, f"{threshold},per_process_memory_fraction:0.9", None)]  # fmt: skip
    assert told == [True, False, False]


def test_where_no_batch_fits() -> None:
    (limit,) = ask("llama3-8b", on="t4", seq=64, max_batch=True).limits
    assert (limit.value, limit.fails) == (0, 1)


def test_the_longest_sequence_ends_with_the_positions() -> None:
    (limit,) = ask("gpt2", seq=128, batch=2, max_seq=True).limits
    assert (limit.what, limit.value, limit.fails) == ("sequence", 1024, None)
    assert "1024 positions" in limit.why


def test_the_longest_sequence_ends_with_the_memory() -> None:
    options: dict[str, Any] = {"step": "train", "on": "t4", "batch": 32}
    (limit,) = ask("transformer", max_seq=True, **options).limits
    assert limit.fails == limit.value + 1
    assert memory("transformer", seq=limit.value, **options).fits
    assert not memory("transformer", seq=limit.fails, **options).fits


def test_what_is_full_gives_back_what_it_caches() -> None:
    """Near the largest batch more would be reserved than there is; blocks are given back, and it runs."""
    limit = ask("resnet18", step="train", on="v100-sxm2-32", max_batch=True).limits[0]
    found = limit.memory
    assert found is not None and found.fits
    assert found.device_bytes <= found.usable_bytes
    unlimited = MemoryPredictor().fits(_traced("resnet18", limit.value), find("v100-sxm2-32"))
    assert (unlimited[1] > unlimited[2]) == (found.retries > 0)


def _traced(model: str, batch: int) -> Any:
    return PreparedTrace(rooflight.estimate(model, step="train", batch=batch), None).at(None)


def test_what_would_take_less() -> None:
    found = ask("gpt2", step="train", batch=8, seq=512, memory=True, **ALL_LAYERS)
    now = found[0].memory
    assert now is not None
    changes = {one.options: one for one in found.savings}
    for options in ("--checkpoint blocks", "--dtype bf16", "--autocast bf16", "--batch 4", "--gpus 8 --parallel zero2",
                    "--gpus 8 --parallel fsdp"):  # fmt: skip
        assert changes[options].saved_bytes == now.device_bytes - changes[options].device_bytes > 0
    half = changes["--batch 4"]
    assert half.change == "half the batch"
    assert (
        half.peak_allocated_bytes == memory("gpt2", step="train", batch=4, seq=512, **ALL_LAYERS).peak_allocated_bytes
    )


def test_settings_of_the_allocator_are_followed() -> None:
    options: dict[str, Any] = {"step": "train", "batch": 16}
    plain, wide = (memory("resnet18", allocator=one, **options) for one in (None, "expandable_segments:True"))
    assert (wide.peak_reserved_bytes or 0) < (plain.peak_reserved_bytes or 0)
    assert (wide.fragmentation or 0) < (plain.fragmentation or 0)


def test_a_cpu_caches_nothing() -> None:
    cpu = next(device.name for device in rooflight_devices() if device.kind == "cpu")
    found = memory("resnet18", on=cpu, tier="spec", batch=4)
    assert found.peak_reserved_bytes is None and found.outside_bytes is None
    assert found.device_bytes == found.peak_allocated_bytes
    assert "workspace" not in found.peak.split and "rounding" not in found.peak.split


def rooflight_devices() -> Any:
    from rooflight.hardware.devices import known

    return known()


@pytest.mark.parametrize(("options", "says"), [
    ({"max_seq": True}, "takes no sequence"), ({"max_seq": True, "gpus": 2}, "takes no sequence"),
    ({"allocator": "nonsense"}, "has no value"), ({"allocator": "no_such:1"}, "unknown allocator setting"),
])  # fmt: skip
def test_what_cannot_be_asked(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        ask("resnet18", **options)


def test_a_live_module_has_the_batch_of_its_inputs() -> None:
    model, data = nn.Linear(8, 8), torch.zeros(2, 8)
    assert predict(model, data, on="h200", advice=False)[0].memory is not None
    with pytest.raises(BadInput, match="needs a model by name"):
        predict(model, data, on="h200", max_batch=True)


# --- devices ---


def test_check_bits_take_their_part() -> None:
    """GDDR with ECC on keeps a sixteenth for itself; HBM does not."""
    parts = {name: memory("mnist-cnn", on=name).usable_bytes / find(name).memory_bytes.value for name in ("a40", "t4")}
    assert all(0.9 < part < 0.93 for part in parts.values())
    assert memory("mnist-cnn", on="a100-sxm-40").usable_bytes / find("a100-sxm-40").memory_bytes.value > 0.98


def test_savings_are_in_a_precision_that_the_device_has() -> None:
    changes = [one.options for one in ask("gpt2", step="train", batch=8, seq=256, on="t4", memory=True).savings]
    assert "--dtype fp16" in changes and not any("bf16" in change for change in changes)
    # Where the update is the peak, its lists are what to do without.
    small = [one.options for one in ask("gpt2", step="train", batch=1, seq=32, memory=True).savings]
    assert "--no-foreach" in small


def test_a_length_that_the_model_does_not_follow(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.e = nn.Embedding(10, 4)\n    def forward(self, x):\n        return self.e(x)\n"
    )
    with pytest.raises(BadInput, match="the length is that of input_shape"):
        ask(f"{tmp_path / 'own.py'}:Net", input_shape=parse_input("int:16"), max_seq=True)


def test_what_fits_is_advised_first() -> None:
    found = ask("gpt2", step="train", batch=24, seq=1024, on="a100-sxm-40", **ALL_LAYERS).savings
    fits = [one.fits for one in found]
    assert True in fits and False in fits and fits == sorted(fits, reverse=True)
    for group in (True, False):
        saved = [one.saved_bytes for one in found if one.fits is group]
        assert saved == sorted(saved, reverse=True)


def test_chips_hold_as_many_threads_as_they_do() -> None:
    """What a reduction borrows depends on it (CUDA C++ Programming Guide, technical specifications)."""
    threads = {name: chip_of(find(name)).threads_per_sm for name in ("h200", "t4", "a40", "rtx-4090")}
    assert threads == {"h200": 2048, "t4": 1024, "a40": 1536, "rtx-4090": 1536}


def test_attention_runs_in_the_kernels_that_each_device_has() -> None:
    """cuDNN's on Hopper, flash on Ampere, the memory efficient one on Turing; what one trace serves has one trace."""
    options: dict[str, Any] = {"dtype": "fp16", "seq": 64, "overrides": {"n_layer": "2"}}
    alone = {name: memory("gpt2", on=name, **options) for name in ("t4", "h200", "a100", "l4")}
    found = ask("gpt2", on="t4,h200,a100,l4", **options)
    assert [row.device for row in found] == [device.name for device in found.devices]
    assert [row.memory for row in found] == list(alone.values())
    kernels = {name: {op for op in _costly(name, **options) if op.endswith("attention")} for name in alone}
    said = {"t4": "efficient", "h200": "cudnn", "a100": "flash", "l4": "flash"}
    assert kernels == {name: {f"aten::_scaled_dot_product_{kernel}_attention"} for name, kernel in said.items()}
    many = ask("gpt2", on="t4,h200,a100,l4", batch=[1, 2, 3, 4], **options)
    first = [row for row in many if row.batch == 1]
    # Batches of one trace and a batch of one traced by itself, which spares it copies, differ by some microseconds of
    # the host; another's kernels by far more.
    assert [row.time_s for row in first] == pytest.approx([row.time_s for row in found], rel=0.05)
    for row, name in zip(first, alone, strict=True):
        assert row.memory is not None and row.memory.device_bytes == pytest.approx(alone[name].device_bytes, rel=1e-3)


def _costly(name: str, **options: Any) -> set[str]:
    return {op.name for op in ask("gpt2", on=name, **options)[0].ops}


def test_grouped_queries_take_the_whole_matrix_where_no_kernel_shares_keys() -> None:
    options: dict[str, Any] = {"dtype": "fp16", "seq": 1024, "overrides": {**SMALL_LLAMA, "num_key_value_heads": "2"}}
    volta, hopper = (memory("llama3-8b", on=name, **options) for name in ("v100", "h200"))
    assert volta.peak_allocated_bytes > hopper.peak_allocated_bytes


def test_without_tf32_convolutions_have_the_workspaces_of_fp32() -> None:
    alone, beside = (ask("resnet18", on=names, batch=8, step="train").at("t4").memory for names in ("t4", "h200,t4"))
    assert alone == beside
    assert alone == ask("resnet18", on="t4", batch=8, step="train", tf32=False)[0].memory


@pytest.mark.slow
def test_a_pipeline_takes_fewer_micro_batches_where_all_of_them_do_not_fit() -> None:
    """Sixteen samples are too many at any size; below that each is a micro-batch, and fewer are in flight."""
    options: dict[str, Any] = {"step": "train", "on": "t4", "gpus": 4, "parallel": "pp", "seq": 1024, "tier": "spec"}
    (limit,) = ask("gpt2-xl", batch=16, max_batch=True, **options).limits
    assert 0 < limit.value < 16 and limit.fails == limit.value + 1
    at = [ask("gpt2-xl", batch=size, **options)[0].memory for size in (limit.value, limit.fails, 16)]
    assert [one is not None and one.fits for one in at] == [True, False, False]


def test_no_margin_is_named_that_would_be_nothing() -> None:
    (limit,) = ask("gpt2", on="t4", step="train", seq=512, max_batch=True).limits
    assert "with a margin of 10%" in limit_line(limit, several=False)
    one = msgspec.structs.replace(limit, value=1, fails=2)
    assert "; 2 would not); " in limit_line(msgspec.structs.replace(one, with_expandable_segments=None), several=False)


def test_segments_that_grow_are_added_to_the_settings_that_were_given() -> None:
    given = "per_process_memory_fraction:0.2"
    found = ask("gpt2", step="train", seq=512, batch=64, on="a100", max_batch=True, allocator=given)
    (limit,) = found.limits
    both = f"{given},expandable_segments:True"
    assert limit.expandable_settings == both
    assert ask("gpt2", step="train", seq=512, on="a100", max_batch=True, allocator=both).limits[0].value == (
        limit.with_expandable_segments
    )
    assert f"--allocator {both}" in {one.options for one in found.savings}


def test_savings_are_of_what_does_not_fit_whatever_its_generation() -> None:
    found = ask("gpt2", seq=1024, step="train", batch=48, dtype="fp16", on="h200,t4", memory=True)
    assert {one.device for one in found.savings} == {"t4"}


def test_the_header_is_the_newest_devices_in_any_order() -> None:
    one, other = (ask("resnet18", on=names) for names in ("t4,h200", "h200,t4"))
    assert one.header == other.header and one.precisions == other.precisions == ("fp32", "tf32")
    assert [row.device for row in one] == ["t4", "h200"]


def test_savings_can_be_asked_for() -> None:
    """Several GPUs with accumulation are not modelled, so they are not advised."""
    options = {
        saving.options for saving in ask("gpt2", seq=256, step="train", batch=8, accumulate=4, memory=True).savings
    }
    assert options and not any("--gpus" in one for one in options)


def test_a_model_of_its_own_length_has_no_longest_sequence(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\ndef made(batch=1):\n    return torch.nn.Embedding(9, 4), torch.zeros(batch, 8, dtype=torch.long)\n"
    )
    with pytest.raises(BadInput, match="takes no seq"):
        ask(f"{tmp_path / 'own.py'}:made", max_seq=True)
