"""Kernels of compiled steps and the ops they do the work of, on Inductor's C++ backend.

Inductor generates its code for real. Only the C++ compiler is left out (it takes seconds a kernel): what runs instead
does nothing but show up in the profiler under the kernel's name. Library calls run for real, on whatever lies in the
buffers. One test at the end runs everything.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
import torch._inductor.debug
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import rooflight
from rooflight.ledger import Op
from rooflight.measurement.execution.compiled import compiled, is_compiled
from rooflight.measurement.execution.provenance import CompiledCall, LaunchContext, Origin, Provenance, recording, walk
from rooflight.measurement.execution.provenance.attribution import LedgerRows
from rooflight.measurement.execution.provenance.graphs import family
from rooflight.measurement.execution.provenance.nodes import module_path
from tests.fixtures.paths import DATA
from tests.fixtures.tracing import compiled_module

tells_kernels = pytest.mark.skipif(
    not hasattr(torch._inductor.debug, "set_kernel_post_grad_provenance_tracing"),
    reason="this torch does not tell what its compiled kernels do",
)


def attribute(origins: Iterable[Origin], ops: Sequence[Op]) -> tuple[int, ...]:
    return LedgerRows(ops).find(origins)


class Residual(nn.Module):
    """conv + bn + relu + conv + bn + add + relu + mean + linear; `relu` is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.bn1, self.bn2, self.relu, self.fc = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)) + x)
        return self.fc(x.mean((2, 3)))


class Block(nn.Module):
    """A transformer's block, with attention as one op."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.attn(self.ln_1(x)).split(c, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class Broken(nn.Module):
    """A graph break in the middle; the model itself adds, and calls `act`, on both sides of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.a(x)) + 1
        torch._dynamo.graph_break()
        return self.act(self.b(x)) + 2


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(x))


class Stacked(nn.Module):
    """Breaks in a loop: the model's own frame stays eager, and all blocks share one compiled graph."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.h = nn.ModuleList(Cell() for _ in range(layers))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.h:
            torch._dynamo.graph_break()
            x = block(x)
        return self.head(x)


@dataclass
class Step:
    """A compiled step, with what it did and what eager does."""

    provenance: Provenance
    ops: tuple[Op, ...]
    launches: list[LaunchContext]

    @property
    def calls(self) -> list[CompiledCall]:
        return [call for _, calls in self.provenance.calls() for call in calls]

    def named(self, call: CompiledCall) -> list[tuple[str, int, str]]:
        return [(self.ops[i].module, self.ops[i].call, self.ops[i].packet) for i in attribute(call.origins, self.ops)]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that do nothing but show their name to the profiler."""
    from torch._inductor.async_compile import AsyncCompile

    def stand_in(_: Any, __: Any, source: str) -> Callable[..., None]:
        name = re.search(r"\"((graph_\d+_)?cpp_fused\w*)\"", source)
        assert name is not None

        def kernel(*_: Any) -> None:
            with torch.profiler.record_function(name[1]):
                pass

        return kernel

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", stand_in)
    with torch._inductor.config.patch({"cpp.enable_kernel_profile": True, "cpp.vec_isa_ok": True}):
        yield


def run(model: nn.Module, x: torch.Tensor, *, train: bool = True, wrap: Callable[[nn.Module], Any] = compiled) -> Step:
    """Compile and run a step twice; the second is profiled."""
    model.train(train)
    ledger = rooflight.estimate(model, x, on="cpu", step="train" if train else "infer", loss="sum" if train else None)
    torch._dynamo.reset()
    callee = wrap(model)

    def step() -> None:
        with torch.set_grad_enabled(train):
            y = callee(x)
            if train:
                y.sum().backward()

    with Provenance(model) as provenance:
        step()
        provenance.begin_step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            step()
    assert provenance.reason == ""
    return Step(provenance, ledger.ops, launches_of(profile))


def launches_of(profile: Any) -> list[LaunchContext]:
    """On the CPU a generated kernel, or the outermost aten op, stands for a launch."""
    found = []
    for event in sorted(profile.events(), key=lambda event: (event.time_range.start, -event.time_range.end)):
        parents, graph = [], None
        parent = event.cpu_parent
        while parent is not None:
            parents.append(parent.name)
            if graph is None and parent.name.startswith("## Call CompiledFxGraph"):
                graph = parent.name
            parent = parent.cpu_parent
        is_launch = event.name.startswith("aten::") or "cpp_fused" in event.name
        if is_launch and not any(name.startswith("aten::") for name in parents):
            found.append(LaunchContext(event.name, ((event.name, event.id),), graph))
    return found


def covered(step: Step) -> set[int]:
    return {index for call in step.calls for index in attribute(call.origins, step.ops)}


def compute(step: Step) -> set[int]:
    """The ops of the model that do work: not loss and optimizer, not views, not the making of an empty tensor."""
    return {
        op.index
        for op in step.ops
        if op.kind == "compute"
        and not op.module.startswith("<")
        and op.packet not in ("aten::empty", "aten::ones_like")
    }


def extern(step: Step) -> list[list[tuple[str, int, str]]]:
    return [step.named(call) for call in step.calls if call.extern]


@tells_kernels
@pytest.mark.usefixtures("no_compiler")
class TestCompiled:
    def test_training_step_of_a_residual_net(self) -> None:
        step = run(Residual(), torch.randn(2, 3, 8, 8))
        assert (step.provenance.graphs, step.provenance.graph_breaks) == (1, {})
        assert all(attribute(call.origins, step.ops) for call in step.calls)
        assert covered(step) == compute(step)
        # Library calls are one op each, in the order of the net's lines, and backward from its end.
        assert extern(step)[:3] == [
            [("conv1", 0, "aten::convolution")],
            [("conv2", 0, "aten::convolution")],
            [("fc", 0, "aten::addmm")],
        ]
        assert [rows for rows in extern(step)[3:] if rows[0][2] != "aten::mm"] == [
            [("conv2", 0, "aten::convolution_backward")],
            [("conv1", 0, "aten::convolution_backward")],
        ]
        # The gradients of input and weight are two ops, told apart.
        products = [attribute(call.origins, step.ops) for call in step.calls if call.name.endswith("kernels.mm")]
        assert sorted(products) == [(op.index,) for op in step.ops if op.packet == "aten::mm"]
        assert len(products) == 2

    def test_directions_and_calls_of_a_module_used_twice(self) -> None:
        step = run(Residual(), torch.randn(2, 3, 8, 8))
        forward, backward = (
            [[step.ops[i] for i in attribute(call.origins, step.ops)] for call in calls]
            for _, calls in step.provenance.calls()
        )
        assert {op.phase for ops in forward for op in ops} == {"forward"}
        assert {op.phase for ops in backward for op in ops} == {"backward"}
        uses = [{(op.module, op.call) for op in ops} for ops in (*forward, *backward)]
        first, second = ("relu", 0), ("relu", 1)
        # The first relu has bn1's result to itself; the second one comes after the sum with bn2's.
        assert any({("bn1", 0), first} <= use and second not in use for use in uses)
        assert any({("bn2", 0), second} <= use and ("bn1", 0) not in use for use in uses)

    def test_by_kernel_name(self) -> None:
        step = run(Residual(), torch.randn(2, 3, 8, 8), train=False)
        kernels = {call.name for call in step.calls if not call.extern}
        assert kernels
        for name in kernels:
            assert name.startswith("cpp_fused")
            assert attribute([origin for call in step.calls if call.name == name for origin in call.origins], step.ops)
        assert covered(step) == compute(step)

    def test_transformer_block(self) -> None:
        step = run(Block(), torch.randn(2, 8, 16))
        assert covered(step) == compute(step)
        assert extern(step)[:5] == [
            [("attn", 0, "aten::addmm")],
            [("", 0, "aten::_scaled_dot_product_flash_attention_for_cpu")],
            [("proj", 0, "aten::addmm")],
            [("mlp.0", 0, "aten::addmm")],
            [("mlp.2", 0, "aten::addmm")],
        ]
        # Four linears with the gradients of input and weight; the block's input wants none, the layer norm's does.
        products = [attribute(call.origins, step.ops) for call in step.calls if call.name.endswith("kernels.mm")]
        assert sorted(products) == [(op.index,) for op in step.ops if op.packet == "aten::mm"]
        assert len(products) == 8

    def test_graph_break(self) -> None:
        step = run(Broken(), torch.randn(2, 4))
        assert step.provenance.graphs == 2
        assert sum(step.provenance.graph_breaks.values()) == 1
        assert "graph_break" in next(iter(step.provenance.graph_breaks))
        runs = [
            {i for call in calls for i in attribute(call.origins, step.ops)} for _, calls in step.provenance.calls()
        ]
        assert [{step.ops[i].phase for i in run} for run in runs] == [
            {"forward"},
            {"forward"},
            {"backward"},
            {"backward"},
        ]
        assert [{step.ops[i].module for i in run} for run in runs] == [
            {"a", "act", ""},
            {"b", "act", ""},
            {"b", "act"},
            {"a", "act"},
        ]
        assert covered(step) == compute(step)
        # Both graphs call `act`, and add in the frame of the model: the numbers go on from one to the other.
        adds, tanhs = ([op.index for op in step.ops if op.packet == name] for name in ("aten::add", "aten::tanh"))
        assert runs[0] & {*adds, *tanhs} == {adds[0], tanhs[0]}
        assert runs[1] & {*adds, *tanhs} == {adds[1], tanhs[1]}

    def test_one_graph_that_runs_for_many_modules(self) -> None:
        step = run(Stacked(), torch.randn(2, 4))
        assert step.provenance.graphs == 2  # the first block's input wants no gradient; the others share a graph
        assert sum(step.provenance.graph_breaks.values()) == 1
        blocks = [
            {name.rpartition(".")[0] for call in calls for name, _, _ in step.named(call)}
            for _, calls in step.provenance.calls()
        ]
        assert blocks == [{"h.0"}, {"h.1"}, {"h.2"}, {"h.2"}, {"h.1"}, {"h.0"}]
        assert covered(step) == {i for i in compute(step) if step.ops[i].module.startswith("h.")}

    def test_the_same_module_again_and_again(self) -> None:
        class Loop(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell = Cell()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for _ in range(3):
                    torch._dynamo.graph_break()
                    x = self.cell(x)
                return x

        step = run(Loop(), torch.randn(2, 4))
        calls = [{call for part in calls for _, call, _ in step.named(part)} for _, calls in step.provenance.calls()]
        assert calls == [{0}, {1}, {2}, {2}, {1}, {0}]

    def test_a_product_merged_with_a_sum(self) -> None:
        class Tied(nn.Module):
            """The gradient of the shared weight is the sum of two products; Inductor makes it one library call."""

            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
                self.b.weight = self.a.weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.b(self.a(x).sin())

        step = run(Tied(), torch.randn(2, 4))
        # Older versions of torch forget the sum.
        assert {step.ops[i].packet for i in compute(step) - covered(step)} <= {"aten::add"}
        assert [name for _, _, name in extern(step)[-1]] in (["aten::mm"], ["aten::mm", "aten::add"])
        assert [row for rows in extern(step) for row in rows if row[2] == "aten::mm"] == [
            ("a", 0, "aten::mm"), ("b", 0, "aten::mm"), ("b", 0, "aten::mm"), ("b", 0, "aten::mm"), ("a", 0, "aten::mm")
        ]  # fmt: skip

    def test_backward_of_an_op_in_place(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(inplace=True), nn.Linear(4, 4), nn.SiLU(inplace=True))
        step = run(model, torch.randn(2, 4))
        # Autograd keeps a copy of what it overwrites; compiled code needs none.
        assert {step.ops[i].packet for i in compute(step) - covered(step)} == {"aten::clone"}

    def test_checkpointing(self) -> None:
        class Checkpointed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.block = Block()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = checkpoint(self.block, x, use_reentrant=False)
                return result

        step = run(Checkpointed(), torch.randn(2, 8, 16))
        assert covered(step) == compute(step)
        again = [
            step.ops[i]
            for call in step.calls
            if call.extern
            for i in attribute(call.origins, step.ops)
            if step.ops[i].recompute
        ]
        assert "aten::_scaled_dot_product_flash_attention_for_cpu" in {op.packet for op in again}

    def test_only_a_part_is_compiled(self) -> None:
        def compile_part(model: nn.Module) -> nn.Module:
            model[1].compile()  # type: ignore[index]
            return model

        model = nn.Sequential(nn.Linear(4, 4), Cell())
        step = run(model, torch.randn(2, 4), wrap=compile_part)
        assert {step.ops[i].module for i in covered(step)} == {"1.fc", "1.act"}
        # What is left is eager, and found by the order of its ops.
        found = walk(step.launches, step.provenance.calls(), step.ops)
        eager = [
            step.ops[i] for ops, launch in zip(found, step.launches, strict=True) if launch.graph is None for i in ops
        ]
        assert {("0", "forward"), ("0", "backward")} <= {(op.module, op.phase) for op in eager}

    def test_a_module_with_two_names(self) -> None:
        model = nn.Module()
        model.first = model.second = nn.Linear(4, 4)
        model.forward = lambda x: model.second(x).cos()  # type: ignore[operator]
        step = run(model, torch.randn(2, 4), train=False, wrap=lambda model: torch.compile(model))
        assert extern(step) == [[("first", 0, "aten::addmm")]]

    def test_walk_over_a_profile(self) -> None:
        step = run(Residual(), torch.randn(2, 3, 8, 8))
        found = walk(step.launches, step.provenance.calls(), step.ops)
        expected = [attribute(call.origins, step.ops) for call in step.calls]
        inside = [ops for ops, launch in zip(found, step.launches, strict=True) if launch.graph and ops]
        assert inside == expected
        # Without the profiler's ranges the order alone must do.
        bare = [LaunchContext(launch.name, launch.stack) for launch in step.launches if launch.graph]
        assert [ops for ops in walk(bare, step.provenance.calls(), step.ops) if ops] == expected

    def test_what_torch_does_not_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from torch._inductor.scheduler import Scheduler

        monkeypatch.delattr(Scheduler, "codegen_extern_call")
        with Provenance(nn.Linear(1, 1)) as provenance:
            pass
        assert "codegen_extern_call" in provenance.reason
        assert len(provenance.reason.splitlines()) == 1
        assert provenance.calls() == []
        assert walk([LaunchContext("kernel")], provenance.calls(), ()) == [()]

    def test_a_failure_inside_does_not_reach_the_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_: Any) -> None:
            raise ValueError("changed\nand more")

        monkeypatch.setattr(recording, "fused_nodes", fail)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        torch._dynamo.reset()
        with Provenance(model) as provenance, torch.no_grad():
            compiled(model)(torch.randn(2, 4))
        assert provenance.reason == "this torch does not tell what its compiled kernels do (ValueError: changed)"
        assert [call.name for _, calls in provenance.calls() for call in calls] == ["extern_kernels.addmm"]

    def test_nothing_is_left_behind(self) -> None:
        from torch._inductor import debug
        from torch._inductor.graph import GraphLowering
        from torch._inductor.output_code import CompiledFxGraph

        def hooks() -> list[Any]:
            return [
                GraphLowering.codegen, CompiledFxGraph.__init__, CompiledFxGraph.__call__,
                debug.set_kernel_post_grad_provenance_tracing, torch._inductor.config.fx_graph_cache,
            ]  # fmt: skip

        before = hooks()
        with suppress(KeyError), Provenance(nn.Linear(1, 1)):
            assert hooks()[:4] != before[:4]
            raise KeyError
        assert hooks() == before

    def test_nothing_compiled(self) -> None:
        model = nn.Linear(2, 2)
        with Provenance(model) as provenance:
            model(torch.randn(1, 2))
        assert provenance.reason.startswith("nothing was compiled while it was watched")
        torch._dynamo.reset()
        with Provenance(model) as provenance:
            torch.compile(model, backend="eager")(torch.randn(1, 2))
        assert provenance.reason.startswith("nothing was compiled by Inductor")


def op(
    index: int,
    name: str,
    *,
    module: str = "m",
    call: int = 0,
    phase: Any = "forward",
    kind: Any = "compute",
    recompute: bool = False,
) -> Op:
    return Op(index=index, phase=phase, module=module, call=call, name=name, ordinal=0, kind=kind, recompute=recompute)


class TestAttribute:
    def test_the_order_tells_which(self) -> None:
        ops = [
            op(0, "aten::mul.Tensor"),
            op(1, "aten::add.Tensor"),
            op(2, "aten::mul.Scalar"),
            op(3, "aten::mul_.Tensor"),
        ]
        assert attribute([Origin("m", "aten::mul", False, order=2, of=3)], ops) == (3,)
        # Two on one side, three on the other: some of these.
        assert attribute([Origin("m", "aten::mul", False, order=1, of=2)], ops) == (0, 2, 3)
        assert attribute([Origin("m", "aten::mul", False)], ops) == (0, 2, 3)

    def test_module_call_and_direction_must_agree(self) -> None:
        ops = [
            op(0, "aten::relu"),
            op(1, "aten::relu", call=1),
            op(2, "aten::relu", module="n"),
            op(3, "aten::relu", phase="backward"),
        ]
        assert attribute([Origin("m", "aten::relu", False, call=1)], ops) == (1,)
        assert attribute([Origin("m", "aten::relu", True)], ops) == (3,)
        assert attribute([Origin("x", "aten::relu", False)], ops) == ()
        assert attribute([Origin("m", "aten::gelu", False)], ops) == ()
        assert attribute([], ops) == ()

    def test_views_only_where_there_is_nothing_else(self) -> None:
        ops = [op(0, "aten::t", kind="view"), op(1, "aten::mm")]
        view, product = Origin("m", "aten::t", False), Origin("m", "aten::addmm", False)
        assert attribute([view, product], ops) == (1,)
        assert attribute([view], ops) == (0,)

    def test_what_backward_does_again(self) -> None:
        again, gradient = (
            Origin("m", "aten::relu", False, recompute=True),
            Origin("m", "aten::threshold_backward", True),
        )
        ops = [op(0, "aten::relu"), op(1, "aten::threshold_backward", phase="backward")]
        assert attribute([again, gradient], ops) == (1,)
        assert attribute([again], ops) == (0,)
        # With checkpointing eager does it again too, in a call of its own.
        ops.append(op(2, "aten::relu", call=1, phase="backward", recompute=True))
        assert attribute([again, gradient], ops) == (1, 2)

    def test_one_op_works_there(self) -> None:
        ops = [op(0, "aten::detach", kind="view", phase="backward"), op(1, "aten::silu_backward", phase="backward")]
        assert attribute([Origin("m", "aten::sigmoid", True), Origin("m", "aten::mul", True)], ops) == (1,)
        ops.append(op(2, "aten::sum", phase="backward"))
        assert attribute([Origin("m", "aten::sigmoid", True)], ops) == ()

    def test_an_unknown_module_is_found_by_order(self) -> None:
        ops = [op(i, "aten::silu_backward", module=f"m{i}", phase="backward") for i in range(3)]
        assert attribute([Origin("?", "aten::silu_backward", True, order=1, of=3)], ops) == (1,)
        assert attribute([Origin("?", "aten::silu_backward", True, order=1, of=2)], ops) == ()

    def test_names_of_the_same_work(self) -> None:
        same = [
            ("aten::cudnn_batch_norm", "aten::_native_batch_norm_legit_functional"),
            ("aten::add_.Tensor", "aten::add"),
            ("aten::addmm", "aten::mm"),
            ("aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_efficient_attention"),
            ("mkldnn::_convolution_pointwise", "aten::convolution"),
            ("aten::_to_copy", "aten::_to_copy"),
        ]
        assert all(family(a) == family(b) for a, b in same)
        assert family("aten::convolution") != family("aten::convolution_backward")
        assert family("aten::__and__.Tensor") == "__and__"


def origin(module: str, aten: str) -> tuple[Origin, ...]:
    return (Origin(module, aten, False),)


LAYERS = [f"l{i}" for i in range(4)]
OPS = [
    op(2 * i + j, name, module=layer)
    for i, layer in enumerate(LAYERS)
    for j, name in enumerate(("aten::mm", "aten::relu"))
]
CALLS = tuple(
    call
    for layer in LAYERS
    for call in (
        CompiledCall("extern_kernels.mm", True, origin(layer, "aten::mm")),
        CompiledCall("triton_poi_fused_relu_0", origins=origin(layer, "aten::relu")),
    )
)
GRAPH = "## Call CompiledFxGraph rooflight-0 ##"


def gpu_launches(*, graph: str | None = GRAPH) -> list[LaunchContext]:
    """Four layers: the product takes two kernels, the rest is one and the same Triton kernel."""
    found = []
    for i in range(len(LAYERS)):
        found += [
            LaunchContext("cutlass_gemm", (("aten::mm", i),), graph),
            LaunchContext("splitK_reduce", (("aten::mm", i),), graph),
            LaunchContext("triton_poi_fused_relu_0", (), graph),
        ]
    return found


EXPECTED = [(2 * i + j,) for i in range(4) for j in (0, 0, 1)]


class TestWalk:
    def test_kernels_of_one_call_and_one_kernel_of_many(self) -> None:
        runs = [("rooflight-0", CALLS)]
        assert walk(gpu_launches(), runs, OPS) == EXPECTED
        assert walk(gpu_launches(graph=None), runs, OPS) == EXPECTED

    def test_a_graph_that_runs_twice(self) -> None:
        half = len(CALLS) // 2
        runs = [("rooflight-0", CALLS[:half]), ("rooflight-0", CALLS[half:])]
        assert walk(gpu_launches(), runs, OPS) == EXPECTED

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 12),
                st.sampled_from(["memset", "cutlass_gemm", "fill", "nchw"]),
                st.sampled_from([(), (("aten::zero_", 90),), (("aten::mm", 91),)]),
            ),
            max_size=6,
        )
    )
    def test_launches_around_it_change_nothing(self, noise: list[tuple[int, str, tuple[tuple[str, int], ...]]]) -> None:
        launches: list[tuple[LaunchContext, tuple[int, ...] | None]] = [*zip(gpu_launches(), EXPECTED, strict=True)]
        for where, name, stack in noise:
            launches.insert(where, (LaunchContext(name, stack), None))
        found = walk([launch for launch, _ in launches], [("rooflight-0", CALLS)], OPS)
        assert [ops for ops, (_, expected) in zip(found, launches, strict=True) if expected is not None] == EXPECTED
        assert all(ops == () for ops, (_, expected) in zip(found, launches, strict=True) if expected is None)

    @given(st.sets(st.sampled_from(range(4))))
    def test_a_missing_library_call_stays_missing(self, gone: set[int]) -> None:
        kept = [
            (launch, ops)
            for i, (launch, ops) in enumerate(zip(gpu_launches(), EXPECTED, strict=True))
            if i % 3 == 2 or i // 3 not in gone
        ]
        assert walk([launch for launch, _ in kept], [("rooflight-0", CALLS)], OPS) == [ops for _, ops in kept]

    def test_names_alone_as_in_a_cuda_graph(self) -> None:
        bare = [LaunchContext(launch.name, (), GRAPH) for launch in gpu_launches()]
        assert walk(bare, [("rooflight-0", CALLS)], OPS) == EXPECTED
        # Two library calls in a row: three kernels could be divided in two ways, two only in one.
        calls = (
            *(CompiledCall("extern_kernels.mm", True, origin(layer, "aten::mm")) for layer in LAYERS[:2]),
            CALLS[1],
        )
        three = [LaunchContext(name, (), GRAPH) for name in ("gemm", "gemm", "reduce", "triton_poi_fused_relu_0")]
        assert walk(three, [("rooflight-0", calls)], OPS) == [(0, 2), (0, 2), (0, 2), (1,)]
        # What is not known to be inside of the graph may be anything.
        assert walk([LaunchContext(launch.name) for launch in three], [("rooflight-0", calls)], OPS) == [
            (),
            (),
            (),
            (1,),
        ]
        assert walk([*three[:2], three[3]], [("rooflight-0", calls)], OPS) == [(0,), (2,), (1,)]

    def test_partial_results_are_added_up_by_plain_ops(self) -> None:
        calls = (CompiledCall("triton_red_fused_relu_0", origins=origin("l0", "aten::relu"), tail=True), *CALLS[2:4])
        launches = [
            LaunchContext("triton_red_fused_relu_0", (), GRAPH),
            LaunchContext("reduce_kernel", (("aten::sum", 1),), GRAPH),
            LaunchContext("reduce_kernel", (("aten::sum", 2),), GRAPH),
            LaunchContext("gemm", (("aten::mm", 3),), GRAPH),
            LaunchContext("reduce_kernel", (("aten::sum", 4),), GRAPH),
        ]
        assert walk(launches, [("rooflight-0", calls)], OPS) == [(1,), (1,), (1,), (2,), ()]

    def test_loss_and_optimizer_are_eager(self) -> None:
        ops = [
            *OPS,
            op(8, "aten::_log_softmax", module="<loss>"),
            op(9, "aten::nll_loss_forward", module="<loss>"),
            op(10, "aten::_foreach_add_.List", module="<optimizer>", phase="optimizer"),
            op(11, "aten::_foreach_add_.List", module="<optimizer>", phase="optimizer"),
        ]
        loss = ("aten::cross_entropy_loss", 20)
        launches = [
            *gpu_launches(),
            LaunchContext("softmax", (loss, ("aten::log_softmax", 21), ("aten::_log_softmax", 22))),
            LaunchContext("nll", (loss, ("aten::nll_loss_nd", 23), ("aten::nll_loss_forward", 24))),
            LaunchContext("multi_tensor", (("aten::_foreach_add_", 25),)),
            LaunchContext("multi_tensor", (("aten::_foreach_add_", 25),)),
            LaunchContext("multi_tensor", (("aten::_foreach_add_", 26),)),
            LaunchContext("memset"),
        ]
        assert walk(launches, [("rooflight-0", CALLS)], ops) == [*EXPECTED, (8,), (9,), (10,), (10,), (11,), ()]

    def test_nothing(self) -> None:
        assert walk([], [], []) == []
        assert walk(gpu_launches(), [], []) == [()] * 12


Runs = list[tuple[str, tuple[CompiledCall, ...]]]


def recorded(kind: str) -> tuple[Runs, list[LaunchContext], list[float]]:
    """A training step of resnet18, batch 16, as torch 2.11 compiled it for an H200; names of libraries' kernels are cut."""
    path = DATA / "provenance" / "resnet18-h200.json.gz"
    found = json.loads(gzip.decompress(path.read_bytes()))[kind]
    runs = [
        (
            label,
            tuple(
                CompiledCall(name, extern, tuple(Origin(*row) for row in origins)) for name, extern, origins in calls
            ),
        )
        for label, calls in found["runs"]
    ]
    launches = [LaunchContext(name, tuple(map(tuple, stack)), graph) for name, stack, graph, _ in found["launches"]]
    return runs, launches, [row[3] for row in found["launches"]]


class TestRecorded:
    @pytest.fixture(scope="class")
    def ops(self) -> tuple[Op, ...]:
        return rooflight.estimate("resnet18", batch=16, step="train", optimizer="momentum").ops

    def test_every_convolution_has_its_kernels(self, ops: tuple[Op, ...]) -> None:
        runs, launches, times = recorded("plain")
        found = walk(launches, runs, ops)
        for packet in ("aten::convolution", "aten::convolution_backward"):
            seen = [
                row[0]
                for row, launch in zip(found, launches, strict=True)
                if launch.stack and launch.stack[0][0] == packet and len(row) == 1
            ]
            # 1 + 2 * 8 convolutions and 3 on the way around; one op after the other, each with one kernel or more.
            assert sorted(set(seen)) == [op.index for op in ops if op.packet == packet]
            assert len(set(seen)) == 20
            assert seen == sorted(seen)
            assert len(seen) == sum(launch.stack[:1] != () and launch.stack[0][0] == packet for launch in launches)
        # Weights that are only copied to another layout had no origin when this was recorded; gradients that are
        # copied when they are kept have no op in eager.
        missing = {launch.name for row, launch in zip(found, launches, strict=True) if not row}
        assert {re.sub(r"\d+$", "", name) for name in missing if name.startswith("triton")} == {"triton_poi_fused_"}
        assert sum(time for time, row in zip(times, found, strict=True) if row) > 0.95 * sum(times)

    def test_the_same_step_in_cuda_graphs(self, ops: tuple[Op, ...]) -> None:
        runs, launches, times = recorded("cuda_graph")
        found = walk(launches, runs, ops)
        assert not any(launch.stack for launch in launches if launch.graph and launch.name.startswith("triton"))
        assert sum(time for time, row in zip(times, found, strict=True) if row) > 0.95 * sum(times)
        # Where two backward convolutions follow each other directly, a kernel may be of either.
        wgrad = [row for row, launch in zip(found, launches, strict=True) if "wgrad" in launch.name]
        assert {len(row) for row in wgrad} == {1, 2}
        assert {ops[i].packet for row in wgrad for i in row} == {"aten::convolution_backward"}


class TestModulePath:
    @pytest.mark.parametrize(
        ("source", "path"),
        [
            ("L['self']", ""),
            ("L['self'].layer1.0.conv1", "layer1.0.conv1"),
            ("L['self'].layer1[0].conv1", "layer1.0.conv1"),
            ("L['self']._modules['layer1']._modules['0']._modules['conv1']", "layer1.0.conv1"),
            ('L["model"]._orig_mod.h[11]', "h.11"),
            ("G['net'].fc", "fc"),
            ("layer1.0.conv1", "layer1.0.conv1"),
        ],
    )
    def test_examples(self, source: str, path: str) -> None:
        assert module_path(source) == path

    @given(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,8}|[0-9]{1,3}", fullmatch=True), max_size=6), st.data())
    def test_every_way_of_writing_a_path(self, parts: list[str], data: st.DataObject) -> None:
        parts = [part for part in parts if part not in ("_modules", "_orig_mod")]
        forms = [
            data.draw(st.sampled_from([".{}", "['{}']", "[{}]", "._modules['{}']", "._orig_mod.{}"])).format(part)
            for part in parts
        ]
        assert module_path("L['self']" + "".join(forms)) == ".".join(parts)


class TestIsCompiled:
    def test_every_way_to_compile(self) -> None:
        assert not is_compiled(nn.Sequential(nn.Linear(1, 1)))
        assert is_compiled(torch.compile(nn.Linear(1, 1)))
        assert is_compiled(nn.Sequential(nn.ReLU(), compiled_module(nn.Linear(1, 1))))
        part = nn.Sequential(nn.Linear(1, 1))
        part[0].compile()
        assert is_compiled(part)
        forward = nn.Linear(1, 1)
        forward.forward = torch.compile(forward.forward)  # type: ignore[method-assign]
        assert is_compiled(forward)

    def test_compiled_once(self) -> None:
        model = compiled(nn.Linear(1, 1))
        assert is_compiled(model)
        assert compiled(model) is model


@tells_kernels
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_watched_step_computes_the_same() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval(), torch.randn(2, 4)
    torch._dynamo.reset()
    with torch.no_grad(), Provenance(model) as provenance:
        watched = compiled(model)(x)
        torch.testing.assert_close(watched, model(x))
    assert provenance.reason == ""
    assert [call.extern for _, calls in provenance.calls() for call in calls] == [True, False]
