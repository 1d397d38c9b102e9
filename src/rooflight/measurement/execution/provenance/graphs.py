"""Compiled graphs as they were generated, and the runs of them that make up a step.

A graph knows modules as they were when it was traced. With graph breaks one module's call may spread over several
graphs, and one graph may run for many modules (every block of a transformer). `resolve` numbers calls and ops over the
whole step, as the ledger does.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

# What the same op is called by autograd's trace, by the dispatcher on each device, and inside libraries' wrappers.
_FAMILIES = {
    "convolution": "convolution _convolution cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu"
    " cudnn_convolution_transpose mkldnn_convolution _convolution_pointwise _convolution_transpose_pointwise"
    " convolution_overrideable conv_depthwise3d _conv_depthwise2d _slow_conv2d_forward slow_conv3d_forward"
    " thnn_conv2d miopen_convolution conv1d conv2d conv3d",
    "convolution_backward": "convolution_backward convolution_backward_overrideable",
    "batch_norm": "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit"
    " _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update"
    " _batch_norm_with_update_functional _batch_norm_no_update",
    "batch_norm_backward": "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward",
    "attention": "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_fused_attention_overrideable _flash_attention_forward _efficient_attention_forward"
    " _cudnn_attention_forward scaled_dot_product_attention",
    "attention_backward": "_scaled_dot_product_flash_attention_backward"
    " _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward"
    " _scaled_dot_product_flash_attention_for_cpu_backward _flash_attention_backward _efficient_attention_backward"
    " _scaled_dot_product_fused_attention_overrideable_backward _cudnn_attention_backward",
    "mm": "mm addmm _addmm_activation bias_addmm linear _linear_pointwise _mkl_linear mv addmv",
    "bmm": "bmm baddbmm",
    "dropout": "native_dropout _fused_dropout",
}
_FAMILY = {name: family for family, names in _FAMILIES.items() for name in names.split()}


def family(name: str) -> str:
    """The name under which the same work is compared: without namespace, overload and the mark of an in-place op."""
    plain = name.rpartition("::")[2].partition(".")[0]
    if plain not in _FAMILY and not plain.endswith("__"):
        plain = plain.removesuffix("_")
    return _FAMILY.get(plain, plain)


@dataclass(frozen=True)
class Origin:
    """An op of the traced step that a kernel does the work of, or a part of it."""

    module: str
    """"?" where it is not known."""
    aten: str
    """Without overload: `aten::relu`."""
    backward: bool
    call: int = 0
    """Which call of the module in this step, counted from 0."""
    order: int | None = None
    """Which of the ops of its family in that call of the module; `None` where it is not known."""
    of: int = 0
    """How many of them the compiled code knows."""
    recompute: bool = False
    """A forward op that the compiled backward does again instead of keeping its result."""


@dataclass(frozen=True)
class CompiledCall:
    """A kernel, or a library function (`extern`), called by the generated code."""

    name: str
    extern: bool = False
    origins: tuple[Origin, ...] = ()
    tail: bool = False
    """The kernel leaves partial results, which the generated code adds up with plain aten ops right after it."""


FRAME, RESUMED = -1, -2
"""Call numbers of the module whose forward is the traced frame itself, and of one that goes on after a graph break."""

UNKNOWN = "?"
"""Module of a node that does not tell: it may still be found by its order among all ops of its kind."""

OpGroup = tuple[str, int, str, bool]
"""Module, call, family, backward: the ops that `Origin.order` counts."""


@dataclass(frozen=True)
class GraphNode:
    """What matters of an FX node. `key` is the same for nodes that one aten op was decomposed into."""

    module: str
    call: int
    aten: str
    backward: bool
    recompute: bool
    key: tuple[Any, ...]

    @property
    def group(self) -> OpGroup:
        return (self.module, self.call, family(self.aten), self.backward)


@dataclass(eq=False)
class CompiledGraph:
    """One compiled graph: forward or backward of what Dynamo traced in one go (`traced`)."""

    index: int
    traced: int
    backward: bool
    nodes: dict[int, GraphNode] = field(default_factory=dict)
    """By the identity of the FX node, which lives as long as code is generated."""
    calls: list[tuple[CompiledCall, tuple[GraphNode, ...]]] = field(default_factory=list)
    """In the order of the code; their origins are known when it is known for which modules they run."""
    owners: list[str | None] | None = None
    """Which module owns the parameter at each input, in the first run: the one it was traced for."""
    # Only while code is generated, by identity of what Inductor works on.
    merged: dict[Any, Any] = field(default_factory=dict)
    noted: set[int] = field(default_factory=set)
    defined: dict[int, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"rooflight-{self.index}"

    def forget(self) -> None:
        """Its code is generated: let go of what belongs to the compiler."""
        self.merged, self.noted, self.defined = {}, set(), {}

    @functools.cached_property
    def groups(self) -> dict[OpGroup, dict[tuple[Any, ...], int]]:
        """The ops of each group, numbered in the order of the graph."""
        groups: dict[OpGroup, dict[tuple[Any, ...], int]] = defaultdict(dict)
        for node in self.nodes.values():
            if not node.recompute:
                members = groups[node.group]
                members.setdefault(node.key, len(members))
        return dict(groups)


@dataclass(eq=False)
class GraphRun:
    """One execution of a graph. `moved` leads from the paths it was traced for to those it ran for."""

    graph: CompiledGraph
    forward: GraphRun | None = None
    """Of a backward: the run it is the backward of."""
    moved: tuple[tuple[str, str], ...] = ()
    base: dict[str, int] = field(default_factory=dict)
    """How many calls of each of its modules were made before it."""
    offset: dict[OpGroup, int] = field(default_factory=dict)
    """How many ops of each of its groups were done before it."""

    def path(self, module: str) -> str:
        for old, new in self.moved:
            if module == old or module.startswith(old + "."):
                return new + module[len(old) :]
        return module

    def absolute(self, group: OpGroup) -> OpGroup:
        module, call, name, backward = group
        path = self.path(module)
        return path, (self.forward or self).base.get(path, 0) + max(call, 0), name, backward


def moves(traced: Sequence[str | None], now: Sequence[str | None]) -> tuple[tuple[str, str], ...]:
    """Which modules stand in for those a graph was traced for, told by the owners of the parameters it gets."""
    pairs = {}
    for old, new in zip(traced, now, strict=False):
        if old is None or new is None or old == new:
            continue
        a, b = old.split("."), new.split(".")
        while len(a) > 1 and len(b) > 1 and a[-1] == b[-1]:
            a.pop()
            b.pop()
        pairs[".".join(a)] = ".".join(b)
    return tuple(sorted(pairs.items(), key=lambda pair: -len(pair[0])))


def resolve(runs: Sequence[GraphRun]) -> list[tuple[str, tuple[CompiledCall, ...]]]:
    """Of every run, in order: the label of its graph, and its calls with origins numbered over the whole step."""
    calls_made: Counter[str] = Counter()
    counts: Counter[OpGroup] = Counter()
    for run in runs:
        if not run.graph.backward:
            run.base = _base(run, calls_made)
        run.offset = {}
        for group, members in run.graph.groups.items():
            absolute = run.absolute(group)
            run.offset[group] = counts[absolute]
            counts[absolute] += len(members)
    return [
        (
            run.graph.label,
            tuple(
                replace(call, origins=tuple(dict.fromkeys(_origin(run, node, counts) for node in nodes)))
                for call, nodes in run.graph.calls
            ),
        )
        for run in runs
    ]


def _base(run: GraphRun, calls_made: Counter[str]) -> dict[str, int]:
    """How many calls of each module were made before a forward graph ran; adds its own."""
    seen: dict[str, set[int]] = defaultdict(set)
    for node in run.graph.nodes.values():
        seen[run.path(node.module)].add(node.call)
    base = {}
    for path, calls in seen.items():
        base[path] = calls_made[path] - (1 if calls == {RESUMED} and calls_made[path] else 0)
        calls_made[path] = base[path] + max(max(calls) + 1, 1)
    return base


def _origin(run: GraphRun, node: GraphNode, counts: Counter[OpGroup]) -> Origin:
    home = run.forward or run if node.recompute else run
    number = home.graph.groups.get(node.group, {}).get(node.key)
    absolute = run.absolute(node.group)
    return Origin(
        module=absolute[0],
        aten=node.aten,
        backward=node.backward,
        call=absolute[1],
        order=None if number is None else home.offset.get(node.group, 0) + number,
        of=counts[absolute],
        recompute=node.recompute,
    )
