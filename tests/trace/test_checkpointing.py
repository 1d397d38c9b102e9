"""Modules that are checkpointed by an option: which are meant, what runs again, what is no longer kept."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as by_torch

import rooflight
from rooflight import files, summary
from rooflight.analysis.comparison.sides import Comparison
from rooflight.commands.measure import _this_step
from rooflight.errors import BadInput, TraceFailed
from rooflight.ledger import total
from rooflight.models import build
from rooflight.models.resolve import live_workload
from rooflight.parallel.blocks import model_of
from rooflight.parallel.tensor_split import tensor_cut_of
from rooflight.reporting.sections.ledger_documents import headline
from rooflight.spec import StepSpec, module_names
from rooflight.trace import TraceOptions
from rooflight.trace.checkpointing import Checkpoints, chosen_paths
from rooflight.trace.stage import staged
from tests.fixtures.notes import note_texts
from tests.fixtures.photograph import assert_same, photograph
from tests.fixtures.tracing import compiled_module, flops, rows, train

TINY_GPT2 = {"n_layer": "2", "n_embd": "64", "n_head": "4"}


class Block(nn.Module):
    """Work of its own between its modules; autograd keeps its last result, so all of it runs again."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(dropout)

    def forward(self, x, *, scale=1.0):
        return torch.tanh(self.narrow(self.drop(self.wide(x).sin())) * scale + x)


class Net(nn.Module):
    def __init__(self, blocks: int = 3, **options: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block(**options) for _ in range(blocks))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class NetByHand(Net):
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = by_torch(block, x, use_reentrant=False)
        return self.last(x)


def net_and_input(**options):
    return Net(**options), torch.randn(4, 8)


def again(ledger):
    return [op for op in ledger.ops if op.recompute]


def sequence(ledger):
    return [(op.phase, op.module, op.call, op.name, op.recompute) for op in ledger.ops]


def kept_bytes(ledger):
    return summary.sizes(ledger).kept_for_backward_bytes


tiny_gpt2 = partial(rooflight.estimate, "gpt2", seq=8, batch=2, step="train", overrides=TINY_GPT2)


# --- which modules are meant ---


def resnet_like():
    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4)))

        def forward(self, x):
            return x + self.inner(x)

    model = nn.Sequential()
    model.add_module("stem", nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model.add_module("stage1", nn.Sequential(Unit(), Unit()))
    model.add_module("stage2", nn.Sequential(Unit(), Unit(), nn.Linear(4, 4)))
    return model


@pytest.mark.parametrize(
    ("written", "paths"),
    [
        (["stage1.0"], ("stage1.0",)),
        (["stage1.*"], ("stage1.0", "stage1.1")),
        (["*.1"], ("stem.1", "stage1.1", "stage2.1")),
        (["stage?"], ("stage1", "stage2")),
        (["stage2.0", "stage1.1"], ("stage1.1", "stage2.0")),
        (["stage1.0.inner.0", "stage1.0", "stage1.0"], ("stage1.0",)),
        (["stage1.*.*", "stage1.1"], ("stage1.0.inner", "stage1.1")),
        (["blocks"], ("stage1.0", "stage1.1", "stage2.0", "stage2.1")),
        (["blocks", "stage1"], ("stage1", "stage2.0", "stage2.1")),
    ],
)
def test_paths_patterns_and_the_word_blocks(written, paths):
    assert chosen_paths(resnet_like(), written) == paths


def test_blocks_of_built_in_models():
    def blocks(name, **options):
        return chosen_paths(build(name, step="train", **options).model, ["blocks"])

    assert blocks("gpt2", overrides={"n_layer": "3"}) == ("transformer.h.0", "transformer.h.1", "transformer.h.2")
    assert blocks("resnet18") == tuple(f"layer{stage}.{number}" for stage in range(1, 5) for number in range(2))
    assert blocks("transformer", overrides={"num_encoder_layers": "2", "num_decoder_layers": "2"}) == (
        "t.encoder.layers.0", "t.encoder.layers.1", "t.decoder.layers.0", "t.decoder.layers.1"
    )  # fmt: skip


def test_lists_of_lists_are_no_blocks_but_hold_some():
    levels = nn.ModuleList(nn.ModuleList([Block(), Block(), nn.Linear(2, 2)]) for _ in range(2))
    assert chosen_paths(nn.ModuleDict({"down": levels}), ["blocks"]) == ("down.0.0", "down.0.1", "down.1.0", "down.1.1")


def test_a_shared_block_is_one_block():
    assert chosen_paths(nn.Sequential(*[Block()] * 3), ["blocks"]) == ("0",)
    assert chosen_paths(nn.Sequential(*[Block()] * 3), ["2"]) == ("0",)


def test_paths_are_those_of_the_model_before_it_was_compiled():
    model = Net()
    model.blocks[1] = compiled_module(model.blocks[1])
    assert chosen_paths(model, ["blocks.1"]) == ("blocks.1",)
    assert chosen_paths(compiled_module(Net()), ["blocks.*"]) == ("blocks.0", "blocks.1", "blocks.2")


@pytest.mark.parametrize(
    ("model", "written", "message"),
    [
        (resnet_like(), "stage1.7", r"Sequential has no such module; there are stage1\.\*, stage2\.\*, stem"),
        (resnet_like(), "*.*.*.*.*.*", "no such module"),
        (resnet_like(), "stage", "no such module"),
        (Net(), "blocks.0.wid", r"there are blocks\.\*, first, last"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "blocks", "has no repeated blocks; there are 0, 1"),
        (nn.Linear(2, 2), "0", "no such module, nor any other"),
        (nn.ModuleDict({"h": nn.ModuleList([Block()])}), "h", r"a ModuleList is not called itself.*h\.\*"),
    ],
)
def test_what_fits_nothing(model, written, message):
    with pytest.raises(BadInput, match=message) as found:
        chosen_paths(model, [written])
    assert "\n" not in str(found.value)


def test_written_as_text_or_as_a_list():
    assert module_names("h.*, layer1.0,h.*") == ("h.*", "layer1.0")
    assert module_names(["h.*", "a,b"]) == ("h.*", "a", "b")
    for nothing in ("", "a,,b", [], [""]):
        with pytest.raises(BadInput, match="checkpoint wants"):
            module_names(nothing)


# --- the model is borrowed ---


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_the_model_is_as_it_was(on):
    model, x = net_and_input(dropout=0.5)
    own = model.blocks[1].forward = model.blocks[1].forward  # as tools that patch a module leave it
    before = photograph(model)
    train(model, x, checkpoint="blocks.*", on=on, target="cpu")
    assert_same(photograph(model), before)
    assert model.blocks[1].__dict__["forward"] is own
    assert "forward" not in model.blocks[0].__dict__


def test_the_model_is_as_it_was_after_a_failure():
    class Failing(Block):
        def forward(self, x, *, scale=1.0):
            raise ValueError("no such luck")

    model, x = net_and_input()
    model.blocks[1] = Failing()
    before = photograph(model)
    with pytest.raises(TraceFailed, match="no such luck"):
        train(model, x, checkpoint="blocks.*")
    assert_same(photograph(model), before)
    with pytest.raises(BadInput, match="no such module"):
        train(model, x, checkpoint="blocks.9")
    assert_same(photograph(model), before)


def test_checkpoints_are_taken_away_by_themselves():
    model = Net()
    own = model.blocks[1].forward = model.blocks[1].forward
    checkpoints = Checkpoints(model, ["blocks.*"], keep_randomness=False)

    def use():
        with checkpoints.placed():
            assert all("forward" in block.__dict__ for block in model.blocks)
            assert model.blocks[1].forward is not own
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        use()
    assert ["forward" in block.__dict__ for block in model.blocks] == [False, True, False]
    assert model.blocks[1].__dict__["forward"] is own


def test_every_run_of_a_staged_step_is_checkpointed():
    model, x = net_and_input()
    options = TraceOptions(target="cpu", on="cpu", loss="mse", checkpoint=("blocks.*",))
    with staged(live_workload(model, (x,), {}, step="train"), options) as stage:
        stage.keep()
        first = stage.record()
        stage.put_back()
        stage.run()
        stage.put_back()
        second = stage.record()
    assert [op.key for op in first.ops] == [op.key for op in second.ops]
    assert sum(op.recompute for op in second.ops) > 0


# --- what runs again ---


def test_the_same_as_checkpointing_by_hand():
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    ours = train(Net(dropout=0.1), x, checkpoint="blocks.*", loss="mse")
    theirs = train(NetByHand(dropout=0.1), x, loss="mse")
    # An empty tensor that torch 2.11 hangs inputs on is made where the checkpoint is: here inside the module.
    ops = [[op for op in sequence(ledger) if op[3] != "aten::empty.memory_format"] for ledger in (ours, theirs)]
    assert ops[0] == ops[1]
    assert again(theirs)
    assert ours.storages == theirs.storages
    assert [(m.path, m.calls) for m in ours.modules] == [(m.path, m.calls) for m in theirs.modules]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_useful_flops_stay_and_the_blocks_run_again(accumulate):
    model, x = net_and_input()
    plain = train(model, x, loss="mse", accumulate=accumulate)
    found = train(model, x, loss="mse", accumulate=accumulate, checkpoint="blocks")
    assert flops(found.ops) == flops(plain.ops)
    inside = [op for op in found.ops if op.phase == "forward" and op.module.startswith("blocks.")]
    assert total(found.ops).recompute_flops == flops(inside) == accumulate * 3 * 2 * 2 * 4 * 8 * 32
    assert {op.phase for op in again(found)} == {"backward"}
    # What the block does between its modules is filed under the block, not under the loss that backward comes from.
    computed = [(op.module, op.name) for op in again(found) if op.kind == "compute"]
    assert sorted(computed) == sorted((op.module, op.name) for op in inside if op.kind == "compute")


def test_gpt2_runs_its_blocks_again():
    plain, found = tiny_gpt2(), tiny_gpt2(checkpoint="transformer.h.*")
    assert flops(found.ops) == flops(plain.ops)
    by_attention = total(plain.ops).recompute_flops  # its fused kernel makes the scores again in any case
    inside = flops(op for op in found.ops if op.phase == "forward" and op.module.startswith("transformer.h."))
    assert total(found.ops).recompute_flops - by_attention == inside > 0


def test_what_nothing_in_backward_needs_does_not_run_again():
    """torch stops when it has what it wants: the result of a last matrix product is not kept."""
    tiny_llama = partial(rooflight.estimate, "llama3-8b", batch=1, seq=8, step="train", overrides={
        "num_hidden_layers": "2", "hidden_size": "64", "intermediate_size": "96", "num_attention_heads": "4",
        "num_key_value_heads": "4",
    })  # fmt: skip
    plain, found = tiny_llama(), tiny_llama(checkpoint="blocks")
    inside = [op for op in found.ops if op.phase == "forward" and ".layers." in op.module]
    last = flops(op for op in inside if op.module.endswith("down_proj"))
    extra = total(found.ops).recompute_flops - total(plain.ops).recompute_flops
    assert extra == flops(inside) - last
    assert last > 0


def test_resnet18():
    plain = rooflight.estimate("resnet18", batch=2, step="train")
    found = rooflight.estimate("resnet18", batch=2, step="train", checkpoint="blocks")
    assert flops(found.ops) == flops(plain.ops)
    inside = flops(op for op in found.ops if op.phase == "forward" and op.module.startswith("layer"))
    assert total(found.ops).recompute_flops == inside  # each block ends in a ReLU, which keeps its result
    assert kept_bytes(found) < 0.6 * kept_bytes(plain)


def test_a_module_called_twice_runs_twice_again():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return self.block(self.block(x))

    x = torch.randn(4, 8, requires_grad=True)
    found = train(Twice(), x, loss="mse", checkpoint="block")
    assert [op.call for op in rows(found, "tanh")] == [0, 1, 2, 3]
    assert [op.recompute for op in rows(found, "tanh")] == [False, False, True, True]
    assert total(found.ops).recompute_flops == 2 * 2 * 2 * 4 * 8 * 32
    assert next(module.calls for module in found.modules if module.path == "block") == 2


class Named(nn.Module):
    """Takes what it needs by names that `torch.utils.checkpoint` has for itself, and gives several things."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.fc = self.Inner(), nn.Linear(8, 8)

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x, *, debug, context_fn, unused=None):
            made = torch.tanh(self.fc(x) + debug)
            return made, {"double": made * 2}, context_fn

    def forward(self, x):
        made, more, word = self.block(x, debug=x.mean(), context_fn="a word")
        assert word == "a word"
        return self.fc(made + more["double"])


@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
def test_keyword_arguments_and_several_results(on):
    found = train(Named(), torch.randn(4, 8), loss="mse", checkpoint="block", on=on, target="cpu")
    # The double does not run again: backward of a product with a number needs nothing of it.
    assert [(op.module, op.packet) for op in again(found) if op.kind == "compute"] == [
        ("block.fc", "aten::addmm"), ("block", "aten::add"), ("block", "aten::tanh")
    ]  # fmt: skip


# --- autocast ---


def test_what_runs_again_runs_in_the_same_precision():
    model, x = net_and_input()
    found = train(model, x, loss="mse", autocast="bf16", checkpoint="blocks.*")
    matmuls = [op for op in rows(found, "addmm") if op.module.startswith("blocks.")]
    assert sum(op.recompute for op in matmuls) == 6
    assert {op.precision for op in matmuls} == {"bf16"}
    # Weights are cast once in a forward, and once more for what runs again, as on CUDA.
    casts = [op for op in rows(found, "_to_copy", module="blocks.0.wide") if op.phase == "forward" or op.recompute]
    forward = [op for op in casts if not op.recompute]
    assert len(forward) == len(casts) - len(forward) > 0


class ChecksItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x):
        return by_torch(self.inside, x, use_reentrant=False)


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_models_own_checkpoint_runs_again_in_the_autocast_it_ran_in(on):
    ledger = train(ChecksItself(), torch.randn(4, 8), loss="sum", autocast="bf16", on=on)
    forward = [op for op in rows(ledger, "addmm") if op.phase == "forward"]
    again = [op for op in rows(ledger, "addmm") if op.recompute]
    assert len(forward) == 2 and 1 <= len(again) <= 2  # it stops where nothing more is needed
    assert {op.outputs[0].dtype for op in (*forward, *again)} == {"bf16"}


def test_the_models_own_autocast_around_a_block_counts():
    class Delicate(Net):
        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                with torch.autocast("cuda", enabled=block is not self.blocks[1], dtype=torch.bfloat16):
                    x = block(x.float())
            return self.last(x)

    found = train(Delicate(), torch.randn(4, 8), loss="mse", checkpoint="blocks.*", target="cuda:70")
    made = [(op.module, op.precision) for op in again(found) if op.packet == "aten::addmm"]
    assert dict(made) == {
        f"blocks.{number}.{layer}": "fp32" if number == 1 else "bf16"
        for number in range(3)
        for layer in ("wide", "narrow")
    }


# --- what is kept ---


def test_a_checkpointed_block_of_gpt2_keeps_its_input_only():
    def kept(layers, **options):
        return kept_bytes(tiny_gpt2(overrides=TINY_GPT2 | {"n_layer": str(layers)}, **options))

    activation = 2 * 8 * 64 * 4
    assert kept(5, checkpoint="blocks") - kept(4, checkpoint="blocks") == activation
    assert kept(5) - kept(4) > 10 * activation


def test_transformers_own_layers_are_checkpointed_without_their_cache():
    pytest.importorskip("transformers")

    def kept(layers):
        overrides = TINY_GPT2 | {"n_layer": str(layers)}
        return rooflight.estimate("hf:gpt2", batch=2, seq=8, step="train", overrides=overrides, checkpoint="blocks")

    few, more = kept(2), kept(3)
    assert not rows(few, "cat", phase="forward")
    assert sum(op.recompute for op in few.ops) > 0
    assert kept_bytes(more) - kept_bytes(few) == 2 * 8 * 64 * 4


def test_what_a_block_makes_dies_in_its_forward_and_again_in_its_backward():
    model, x = net_and_input()
    found = train(model, x, loss="mse", checkpoint="blocks.*")
    storages = {storage.id: storage for storage in found.storages}
    forward_ends = next(op.index for op in found.ops if op.module == "<loss>")

    def made(phase, block):
        ops = [op for op in found.ops if op.phase == phase and op.module.startswith(block) and op.kind == "compute"]
        ops = [op for op in ops if phase == "forward" or op.recompute]
        return ops, [storages[op.outputs[0].storage] for op in ops]

    _, results = made("forward", "blocks.1")
    outlives = [storage for storage in results if storage.dies is None or storage.dies > forward_ends]
    assert outlives == results[-1:]
    next_block_begins = made("backward", "blocks.0")[0][0].index
    for storage in made("backward", "blocks.1")[1]:
        assert storage.dies is not None and storage.dies <= next_block_begins


# --- really run ---


def test_a_real_run_has_the_ops_of_a_trace_without_data():
    model, x = net_and_input(dropout=0.5)
    estimate = partial(train, model, x, loss="mse", checkpoint="blocks.*", target="cpu")
    real = estimate(on="cpu")
    assert sequence(real) == sequence(estimate())
    assert rows(real, "bernoulli_")


def test_a_real_gpt2_has_the_ops_of_a_trace_without_data():
    def in_blocks(**options):
        ledger = tiny_gpt2(checkpoint="blocks", target="cpu", **options)
        return [op for op in sequence(ledger) if op[1].startswith("transformer.h.")]  # around them, masks are looked at

    assert in_blocks(on="cpu") == in_blocks()


def test_a_real_run_draws_the_same_numbers_again():
    model, x = net_and_input(dropout=0.5)

    def gradients(checkpoint):
        workload = live_workload(model, (x,), {}, step="train")
        with staged(workload, TraceOptions(target="cpu", on="cpu", loss="mse", checkpoint=checkpoint)) as stage:
            torch.manual_seed(7)
            stage.run()
            return [parameter.grad.clone() for parameter in model.parameters()]

    plain, found = gradients(()), gradients(("blocks.*",))
    assert all(map(torch.equal, plain, found))


def test_the_checkpoints_reach_compiled_code():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    model, x = net_and_input()
    options = TraceOptions(target="cpu", on="cpu", loss="mse", checkpoint=("blocks.*",))
    with staged(live_workload(model, (x,), {}, step="train"), options) as stage:
        stage.call = torch.compile(model, backend=backend)
        stage.run()
    torch._dynamo.reset()
    assert len(graphs) == 1  # a graph break would make more
    assert sum("checkpoint" in str(node.target) for node in graphs[0].graph.nodes) == 3


def test_measured():
    model, x = net_and_input()
    found = rooflight.measure(model, x, step="train", loss="mse", repeat=2, checkpoint=["blocks.0", "blocks.2"])
    assert {op.module.split(".")[1] for op in again(found)} == {"0", "2"}
    assert found.header.checkpoint == ("blocks.0", "blocks.2")


def test_predicted():
    plain = rooflight.predict("gpt2", on="h200", batch=8, seq=512, step="train", dtype="bf16", advice=False)
    found = rooflight.predict("gpt2", on="h200", batch=8, seq=512, step="train", dtype="bf16", advice=False,
                              checkpoint="blocks")  # fmt: skip
    assert found.header.checkpoint == ("blocks",)
    assert 1.1 < found[0].gpu_time_s / plain[0].gpu_time_s < 1.4  # of three forwards' worth of work, some are four


def test_tensor_parallel_ranks_share_what_runs_again():
    plain, found = tiny_gpt2(), tiny_gpt2(checkpoint="blocks")
    parts = tensor_cut_of(found, model_of(found))

    def divided(ops):
        return sorted((op.module, op.name) for op in ops if op.index in parts.inside and op.kind == "compute")

    in_blocks = [op for op in found.ops if op.phase == "forward" and op.module.startswith("transformer.h.")]
    assert divided(again(found)) == divided(in_blocks)
    assert divided(again(found))
    # Attention and MLP of each of two blocks are summed over the ranks once more.
    assert len(parts.sums_backward) == len(tensor_cut_of(plain, model_of(plain)).sums_backward) + 2 * 2


# --- what is said about it ---


def test_the_headline_says_it():
    model, x = net_and_input()
    found = train(model, x, loss="mse", optimizer="sgd", checkpoint=["blocks.*", "first"])
    assert headline(found).endswith("mse loss, sgd · checkpointed: blocks.*, first")
    assert "checkpointed" not in headline(train(model, x, loss="mse"))


def test_a_file_tells_it_and_older_files_load(tmp_path):
    model, x = net_and_input()
    plain, found = train(model, x, loss="mse"), train(model, x, loss="mse", checkpoint="blocks.*")
    for name, ledger in (("plain", plain), ("found", found)):
        files.save(ledger, tmp_path / f"{name}.json")
    assert "checkpoint" not in json.loads((tmp_path / "plain.json").read_text())["header"]  # as before there was any
    assert files.load(tmp_path / "plain.json").header.checkpoint == ()
    assert files.load(tmp_path / "found.json") == found
    assert ("checkpoint", "–", "blocks.*") in [(d.name, d.a, d.b) for d in Comparison(plain, found).differences()]


def test_a_module_that_is_never_called_is_told():
    class Unused(Net):
        def forward(self, x):
            return self.blocks[0](x)

    x = torch.randn(4, 8)
    assert "not called in this step, so not checkpointed: blocks.1, blocks.2" in note_texts(train(
        Unused(), x, loss="mse", checkpoint="blocks.*"
    ).header.notes)  # fmt: skip
    (unused,) = note_texts(train(Unused(), x, loss="mse", checkpoint="blocks.0").header.notes)
    assert "were never used in this step: blocks.1.*" in unused


def test_only_training_can_be_checkpointed():
    model, x = net_and_input()
    with pytest.raises(BadInput, match='checkpoint goes with step="train"'):
        rooflight.estimate(model, x, checkpoint="blocks.*")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["estimate", "gpt2", "--checkpoint", "h.*"], "--checkpoint goes with --step train"),
        (["measure", "gpt2", "--checkpoint", "h.*"], "--checkpoint goes with --step train"),
        (["predict", "gpt2", "--step", "decode", "--checkpoint", "h.*"], "--checkpoint goes with --step train"),
        (["estimate", "gpt2", "--step", "train", "--checkpoint", "h.*"], "there are transformer.h.*, transformer"),
        (["estimate", "mnist-cnn", "--step", "train", "--checkpoint", "blocks"], "no repeated blocks; there are conv1"),
        (["estimate", "mnist-cnn", "--step", "train", "--checkpoint", ","], "--checkpoint wants paths of modules"),
    ],
)
def test_errors_of_the_command_line_are_one_line(arguments, message, run):
    code, out, err = run(*arguments)
    assert code and not out
    assert message in err and len(err.splitlines()) == 1


def test_the_command_line(run):
    _, out, _ = run("estimate", "resnet18", "--step", "train", "--checkpoint", "layer1.0,layer2.*", "--json")
    document = json.loads(out)
    assert document["header"]["checkpoint"] == ["layer1.0", "layer2.*"]
    blocks = {".".join(op["module"].split(".")[:2]) for op in document["ops"] if op["recompute"]}
    assert blocks == {"layer1.0", "layer2.0", "layer2.1"}


def test_a_step_for_another_process_is_checkpointed_too():
    spec = StepSpec(model="gpt2", step="train", checkpoint=("h.*",))
    assert _this_step(spec, {"device": None})[-2:] == ["--checkpoint", "h.*"]
