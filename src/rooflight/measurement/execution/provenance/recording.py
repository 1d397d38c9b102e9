"""Listens to Dynamo and Inductor while they compile a model and run what they compiled.

For every call in the generated code, in its order, the FX nodes behind it are noted: they know their module, the aten
op they were made of, and whether they belong to backward. Nothing of this is public in torch. Where a piece is missing
the origins are empty and `reason` says why; the compiled step itself is never harmed.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from rooflight.measurement.execution.provenance.graphs import (
    FRAME,
    RESUMED,
    UNKNOWN,
    CompiledCall,
    CompiledGraph,
    GraphNode,
    GraphRun,
    moves,
    resolve,
)
from rooflight.measurement.execution.provenance.nodes import (
    fused_nodes,
    is_library,
    made_of,
    merged,
    metadata,
    module_path,
    packet,
    packet_inside,
    sources,
    without_wrappers,
)
from rooflight.measurement.findings import first_line

_Hook = TypeVar("_Hook", bound=Callable[..., None])


class Provenance:
    """Open it before the first compiled call (after `torch._dynamo.reset()`), and run the step inside.

    Caches that would skip the generation of code are off while it is open. Call `begin_step` before the step whose
    launches are walked, when more than one is run inside.
    """

    def __init__(self, model: Any) -> None:
        self.reason = ""
        """Why origins are missing, in one line; empty when nothing failed."""
        self.graphs = 0
        """Pieces that Dynamo traced: 1 for a model without graph breaks."""
        self.graph_breaks: dict[str, int] = {}
        """Reasons, and how often each was met; known when it is closed."""
        self._model = model  # identities are only good while it lives
        self._paths = {id(module): without_wrappers(path) for path, module in model.named_modules()}
        self._owners: dict[int, str] = {}
        self._graphs: list[CompiledGraph] = []
        self._before_passes: list[Any] = []
        self._runs: list[GraphRun] = []
        self._waiting: dict[int, list[GraphRun]] = defaultdict(list)
        self._stack = ExitStack()

    def __enter__(self) -> Provenance:
        try:
            self._install()
        except (ImportError, AttributeError, TypeError, KeyError) as error:
            self._stack.close()
            self._fail(error)
        self.begin_step()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if not self._graphs and not self.reason:
            what = "was compiled while it was watched" if not self.graphs else "was compiled by Inductor"
            self.reason = f"nothing {what}, so no kernel can be traced back to its ops"

    def begin_step(self) -> None:
        """Forget which graphs ran; what was compiled stays."""
        self._runs.clear()
        self._waiting.clear()
        self._owners = {
            parameter.data_ptr(): without_wrappers(path.rpartition(".")[0])
            for path, parameter in reversed([*self._model.named_parameters()])
            if parameter.numel()
        }

    def calls(self) -> list[tuple[str, tuple[CompiledCall, ...]]]:
        """Of every graph in the order they ran in the step: its label, and its calls in the order of the code."""
        if self._runs:
            return resolve(self._runs)
        # Nothing ran: as it would, each graph once.
        forward = [GraphRun(graph) for graph in self._graphs if not graph.backward]
        pairs = {run.graph.traced: run for run in forward}
        backward = [GraphRun(graph, forward=pairs.get(graph.traced)) for graph in self._graphs if graph.backward]
        return resolve([*forward, *reversed(backward)])

    def _install(self) -> None:
        import torch._dynamo.utils
        import torch._functorch.config
        import torch._inductor.config
        from torch._dynamo.output_graph import OutputGraph
        from torch._inductor import compile_fx, debug
        from torch._inductor.codegen import cpp, triton
        from torch._inductor.graph import GraphLowering
        from torch._inductor.output_code import CompiledFxGraph
        from torch._inductor.scheduler import Scheduler

        enter = self._stack.enter_context
        # A graph that comes out of a cache is not lowered here. Machine code may come from its own cache.
        inductor, autograd = torch._inductor.config, torch._functorch.config
        enter(inductor.patch({"fx_graph_cache": False, "fx_graph_remote_cache": False}))
        enter(autograd.patch({"enable_autograd_cache": False, "enable_remote_autograd_cache": False}))
        if inductor.fx_graph_cache or autograd.enable_autograd_cache:  # an environment variable insists
            enter(inductor.patch({"force_disable_caches": True}))
        counters = torch._dynamo.utils.counters
        before = {kind: Counter(counters[kind]) for kind in ("graph_break", "unimplemented")}
        self._stack.callback(lambda: self._count_breaks(counters, before))
        enter(wrapped(OutputGraph, "call_user_compiler", before=self._safe(self._on_trace)))
        enter(wrapped(compile_fx, "_recursive_post_grad_passes", before=self._safe(self._on_passes)))
        enter(wrapped(GraphLowering, "codegen", before=self._safe(self._on_codegen)))
        for place in (debug, cpp, triton):  # the last two hold the function by its name
            enter(wrapped(place, "set_kernel_post_grad_provenance_tracing", before=self._safe(self._on_kernel)))
        enter(wrapped(triton.TritonScheduling, "define_kernel", after=self._safe(self._on_define)))
        enter(wrapped(triton.TritonScheduling, "codegen_comment", before=self._safe(self._on_comment)))
        enter(wrapped(Scheduler, "codegen_extern_call", after=self._safe(self._on_extern)))
        enter(wrapped(CompiledFxGraph, "__init__", after=self._safe(self._on_compiled)))
        enter(wrapped(CompiledFxGraph, "__call__", before=self._safe(self._on_run)))

    def _fail(self, error: Exception) -> None:
        if not self.reason:
            why = f"{type(error).__name__}: {first_line(error)}"
            self.reason = f"this torch does not tell what its compiled kernels do ({why})"

    def _safe(self, hook: _Hook) -> _Hook:
        """What goes wrong in a hook must not reach the compiler."""

        @functools.wraps(hook)
        def call(*args: Any, **kwargs: Any) -> None:
            try:
                hook(*args, **kwargs)
            except Exception as error:
                self._fail(error)

        return call  # type: ignore[return-value]

    def _count_breaks(self, counters: Any, before: dict[str, Counter[str]]) -> None:
        # A break that makes Dynamo give up a whole frame is only counted as something it does not support.
        for kind, old in before.items():
            for reason, count in (Counter(counters[kind]) - old).items():
                line = reason.strip().partition("\n")[0]
                self.graph_breaks[line] = max(count, self.graph_breaks.get(line, 0))

    def _on_trace(self, output: Any, gm: Any, *_: Any, **__: Any) -> None:
        """Dynamo says in which modules below the traced frame an op ran; add the module whose frame it is."""
        import torch

        self.graphs += 1
        code, scope = output.root_tx.f_code, output.local_scope
        names = ["self", *code.co_varnames[: code.co_argcount], *scope]
        owner = next((scope[name] for name in names if id(scope.get(name)) in self._paths), self._model)
        call = RESUMED if code.co_name.startswith("torch_dynamo_resume") else FRAME
        for module in gm.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                if node.op not in ("placeholder", "output", "get_attr") and not node.meta.get("nn_module_stack"):
                    node.meta["nn_module_stack"] = {f"{id(owner)}@{call}": ("", type(owner))}

    def _on_passes(self, gm: Any, *_: Any, **__: Any) -> None:
        """The graph before Inductor's last rewriting of it."""
        self._before_passes += [node for node in gm.graph.nodes if is_library(node)]

    def _on_codegen(self, lowering: Any) -> None:
        traced = getattr(lowering, "graph_id", None)
        index = len(self._graphs)
        graph = CompiledGraph(
            index=index, traced=-1 - index if traced is None else traced, backward=bool(lowering.is_backward)
        )
        self._graphs.append(graph)
        lowering._rooflight_graph = graph
        nodes = [node for node in lowering.module.graph.nodes if node.op == "call_function"]
        graph.merged = merged(self._before_passes, nodes)
        for node in nodes:
            if node in graph.merged:
                self._describe(graph, graph.merged[node])
            self._describe(graph, node)
        self._before_passes = []

    def _describe(self, graph: CompiledGraph, node: Any) -> GraphNode | None:
        if id(node) in graph.nodes:
            return graph.nodes[id(node)]
        meta = metadata(node)
        original = meta.get("original_aten")
        aten = packet(original) or packet(node.target) or packet_inside(node)
        if aten is None:
            return None
        stack, past = meta.get("nn_module_stack"), meta.get("fwd_nn_module_stack")
        again = graph.backward and bool(meta.get("partitioner_tag", "").endswith("forward") or (stack and not past))
        backward = graph.backward and not again
        place = self._place(past if backward else stack or past)
        if place is None and backward and aten == "aten::add":
            # The sum of two gradients has no forward op; eager does it where the later of the two was made.
            gradients = [graph.nodes[id(source)] for source in sources(node) if id(source) in graph.nodes]
            place = (gradients[-1].module, gradients[-1].call) if gradients else None
        if place is None and backward and "_backward" in aten:  # as it is after some ops in place
            place = (UNKNOWN, 0)
        if place is None:
            return None
        source = meta.get("fwd_source_fn_stack" if backward else "source_fn_stack") or [("",)]
        # What stands in the graph as it was called is an op of its own; the rest are parts of one.
        is_own_op = original is None or str(original) == str(node.target)
        key = (meta.get("seq_nr"), source[-1][0], node.name if is_own_op else "")
        graph.nodes[id(node)] = described = GraphNode(*place, aten=aten, backward=backward, recompute=again, key=key)
        return described

    def _place(self, stack: Any) -> tuple[str, int] | None:
        if not stack:
            return None
        key, (name, _) = list(stack.items())[-1]
        identity, _, call = str(key).partition("@")
        path = self._paths.get(int(identity)) if identity.isdigit() else None
        return module_path(name) if path is None else path, int(call or 0)

    def _on_kernel(self, schedule: Any, kernel_name: str | None, is_extern: bool = False) -> None:
        if not kernel_name:
            return
        if is_extern:
            self._add_extern(schedule, kernel_name)
            return
        self._add(kernel_name, fused_nodes(schedule))

    def _on_define(self, name: str, _: Any, __: Any, schedule: Any, *___: Any, **____: Any) -> None:
        if graph := generating():
            graph.defined[id(schedule)] = name

    def _on_comment(self, _: Any, schedule: Any, kernel_name: str | None = None) -> None:
        """A reduction over both rows and columns is called without the note that `_on_kernel` listens to."""
        graph = generating()
        if kernel_name is None and graph is not None and id(schedule) in graph.defined:
            self._add(graph.defined[id(schedule)], fused_nodes(schedule), tail=True)

    def _on_extern(self, _: Any, scheduler: Any, item: Any, *__: Any, **___: Any) -> None:
        """Some calls are generated without the note that `_on_kernel` listens to."""
        name, graph = getattr(item.node, "python_kernel_name", None), generating()
        if name and graph is not None and id(item.node) not in graph.noted:
            self._add_extern(item.node, name)

    def _add_extern(self, kernel: Any, name: str) -> None:
        if graph := generating():
            graph.noted.add(id(kernel))
        # Its origins are the call itself and all that its inputs were made of; the call comes last.
        origin = getattr(kernel, "origin_node", None)
        self._add(name, [origin] if origin is not None else sorted(made_of(kernel))[-1:], extern=True)

    def _add(self, name: str, origins: Sequence[Any], *, extern: bool = False, tail: bool = False) -> None:
        if graph := generating():
            lost = [graph.merged[origin] for origin in origins if origin in graph.merged]
            nodes = [self._describe(graph, origin) for origin in dict.fromkeys([*origins, *lost])]
            described = tuple(node for node in nodes if node is not None)
            if graph.calls and (graph.calls[-1][0].name, graph.calls[-1][1]) == (name, described):
                graph.calls.pop()  # some versions of torch say the same twice
            graph.calls.append((CompiledCall(name, extern=extern, tail=tail), described))

    def _on_compiled(self, _: None, compiled: Any, *args: Any, **kwargs: Any) -> None:
        graphs = (getattr(value, "_rooflight_graph", None) for value in (*args, *kwargs.values()))
        graph = next((graph for graph in graphs if graph is not None), None)
        if graph is not None:
            graph.forget()
            compiled._rooflight_graph = graph
            compiled._fx_graph_cache_key = graph.label  # the profiler shows it; with caches off nothing else uses it

    def _on_run(self, compiled: Any, inputs: Sequence[Any], *_: Any, **__: Any) -> None:
        graph: CompiledGraph | None = getattr(compiled, "_rooflight_graph", None)
        if graph is None or graph not in self._graphs:
            return
        if graph.backward:
            # The last forward that still waits for its backward is the first to get it.
            waiting = self._waiting[graph.traced]
            forward = waiting.pop() if waiting else None
            self._runs.append(GraphRun(graph, forward=forward, moved=forward.moved if forward else ()))
            return
        owners = [self._owners.get(_address(value)) for value in inputs]
        if graph.owners is None:
            graph.owners = owners
        run = GraphRun(graph, moved=moves(graph.owners, owners))
        self._runs.append(run)
        self._waiting[graph.traced].append(run)


def _address(value: Any) -> int:
    try:
        return int(value.data_ptr())
    except (AttributeError, RuntimeError):
        return 0


def generating() -> CompiledGraph | None:
    """The graph whose code is being generated; to try out a choice, Inductor may generate another one in between."""
    from torch._inductor.virtualized import V

    lowering: Any = V.graph
    while lowering is not None:
        graph: CompiledGraph | None = getattr(lowering, "_rooflight_graph", None)
        if graph is not None:
            return graph
        lowering = getattr(lowering, "parent", None)
    return None


@contextmanager
def wrapped(
    owner: Any, name: str, *, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> Iterator[None]:
    """Call `before` with the arguments, or `after` with the result and the arguments, while this is open."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(result, *args, **kwargs)
        return result

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)
