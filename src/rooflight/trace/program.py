"""Follows anybody's code while it runs: every op, and in which part of the step it is.

Nothing of it is rooflight's to arrange, so everything is seen from outside: calls of modules, autograd's engine, and
the hooks that every optimizer of torch calls. Between those, what follows the call of a model and can be
differentiated is the loss; what cannot (preparing data, clipping gradients, averaging weights) is `other`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn
from torch._C import _current_autograd_node
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from rooflight.errors import TraceFailed
from rooflight.ledger import LOSS, Note, Phase
from rooflight.models.dtypes import DTYPE_NAMES
from rooflight.trace.assumed_values import DECIDES, ONE, UNKNOWN, AssumedValues
from rooflight.trace.autocast import autocast_now
from rooflight.trace.handed_out import values_handed_out
from rooflight.trace.in_place import PARAMETER_NODE, InPlaceCalls, called_by_engine
from rooflight.trace.interception import as_a_mode
from rooflight.trace.modules import original_name
from rooflight.trace.program_modules import ProgramTracker, learns
from rooflight.trace.python_line import python_line
from rooflight.trace.recorder import Recorder
from rooflight.trace.replacements import replaced
from rooflight.trace.shape_cache import tensors_of
from rooflight.trace.stand_ins import StandIns

_DETACH = torch.ops.aten.detach.default
_DEVICE = torch.ops.prim.device.default
_READ = torch.ops.aten._local_scalar_dense.default
_FETCH = "torch.utils.data._utils.fetch"
_CONSTANT = torch.ops.aten.lift_fresh.default
_THREADS = Note("other-threads", "a module was called in another thread: what other threads do is no part of this")
_NO_THREADS = (
    "the step works with its tensors in another thread, which cannot be followed without data: run it once on its own "
    "data with real_data=True, or measure it"
)
_MOST_READS = 1_000
"""Of numbers that are not known, by one line, beside one of each parameter, as a step may log."""


def _keeps_books(keep: Callable[..., Any]) -> Callable[..., Any]:
    """Around what only writes down: where the program is to outlive a failure of that, it is kept, and nothing more is
    written."""

    @functools.wraps(keep)
    def kept(recorder: ProgramRecorder, *args: Any) -> Any:
        if recorder.failure is not None:
            return None
        try:
            return keep(recorder, *args)
        except Exception as error:
            if not recorder.outlived:
                raise
            recorder.failure = error
            return None

    return kept


class ProgramRecorder(Recorder):
    """Records the ops of any code. With `stand_ins` it runs on tensors without data."""

    _tracker: ProgramTracker
    _filed_as = "input"
    """What no op has made was there before, or came from outside: a batch of data."""

    def __init__(
        self,
        tracker: ProgramTracker,
        *,
        stand_ins: StandIns | None = None,
        optimizer_met: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None,
        outlived: bool = False,
        **options: Any,
    ) -> None:
        """`outlived`: the program goes on where something of it cannot be written down, which `failure` then is."""
        super().__init__(tracker, **options)
        self.outlived = outlived
        self.failure: Exception | None = None
        self.optimizer_steps = 0
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        """Those that stepped, by their ids."""
        self.passes_back = 0
        self._stand_ins = stand_ins
        self._assumed = AssumedValues(self.ops, self.storages)
        self._in_place = None if stand_ins is None else InPlaceCalls(fake=True)
        self._optimizer_met = optimizer_met
        self._stepping: list[int] = []
        """Of each optimizer that is at work, how many passes back were open when it began."""
        self._last: tuple[tuple[int, ...], tuple[int, int]] = (), (0, 0)
        """The last results, and who asked for them."""
        self._going_back = 0
        self._thread = threading.get_ident()
        self._refused: TraceFailed | None = None
        """What another thread was stopped for."""
        self._said: dict[Note, None] = {}
        """Notes on what was seen."""
        self._moved: dict[int, nn.Parameter] = {}
        """Parameters that their modules exchanged for others when they were moved, by their ids."""
        self._parameters = 0
        """How many the models had before the step."""
        self._reads: Counter[str] = Counter()
        """By line, how often it read a number that is not known."""
        self._counting = False
        self._makes_graph = False
        """Is backward itself to be differentiated, as for a penalty on gradients?"""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """From here on every op is written down."""
        with ExitStack() as stack:
            for hook in (
                register_optimizer_step_pre_hook(self._before_optimizer),
                register_optimizer_step_post_hook(self._after_optimizer),
            ):
                stack.callback(hook.remove)
            for name in ("backward", "grad"):
                stack.enter_context(self._followed_back(name))
            stack.enter_context(self._tracker.watch())
            stack.enter_context(self._calls_of_models())
            if self._stand_ins is not None:
                stack.enter_context(self._stand_ins.data_followed())
                stack.enter_context(self._threads_kept_off())
                stack.enter_context(self._numbers_handed_out(self._stand_ins))
                stack.enter_context(replaced(nn.Module, "_apply", self._noting_moves(nn.Module._apply)))
            stack.enter_context(self)
            yield

    # Parts of the step.

    @_keeps_books
    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self.optimizers:
            self.optimizers[id(optimizer)] = optimizer
            self._optimizer_met(optimizer)
        self._refuse_what_was_moved(optimizer)
        self._stepping.append(self._passes_open())
        self.optimizer_steps += 1
        self._tracker.rest_is_nothing()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.storages.mark(self.shown(parameter.grad), "gradient")

    def _refuse_what_was_moved(self, optimizer: torch.optim.Optimizer) -> None:
        """Without data a module that is moved gets other parameters, of which its optimizer knows nothing."""
        if any(id(one) in self._moved for group in optimizer.param_groups for one in group["params"]):
            raise TraceFailed(
                "module-moved",
                "the step moves a module to another device or type, and its optimizer cannot be followed there without "
                "data: move it before the step, or measure the step",
            )

    def _noting_moves(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around what a module does to be moved."""

        def apply(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = dict(module._parameters)
            result = original(module, *args, **kwargs)
            for name, parameter in before.items():
                if parameter is not None and module._parameters.get(name) is not parameter:
                    self._moved[id(parameter)] = parameter
            return result

        return apply

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._stepping:
            self._stepping.pop()

    @contextmanager
    def _followed_back(self, name: str) -> Iterator[None]:
        original = getattr(torch.autograd, name)

        @functools.wraps(original)
        def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._going_back:
                self._before_backward(tensors)
            self._going_back += 1
            outer, self._makes_graph = self._makes_graph, kwargs.get("create_graph", False)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                self._going_back -= 1
                self._makes_graph = outer
                if not self._going_back:
                    self._tracker.rest_is_nothing()

        setattr(torch.autograd, name, run)
        try:
            yield
        finally:
            setattr(torch.autograd, name, original)

    @_keeps_books
    def _before_backward(self, tensors: Any) -> None:
        self.passes_back += 1
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                self.storages.mark(self.shown(tensor), "output", "loss")
        self.storages.mark_alive("activation")

    @contextmanager
    def _calls_of_models(self) -> Iterator[None]:
        """Around the tracker's own: when a call from outside of any module is over, the loss begins."""
        original, tracker = nn.Module.__call__, self._tracker

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread and _current_autograd_node() is None:
                if self._stand_ins is not None:
                    self._refuse_threads()
                self._said.setdefault(_THREADS)
                return module._wrapped_call_impl(*args, **kwargs)
            outside = not tracker.depth and not self._going_back
            if outside and not learns(module) and _loads_data():
                return module._wrapped_call_impl(*args, **kwargs)
            if outside:
                tracker.given(module, args, kwargs, _autocast())
            result = original(module, *args, **kwargs)
            if outside and torch.is_grad_enabled() and (learns(module) or _differentiable(tuple(tree_leaves(result)))):
                tracker.rest_is_loss()
            return result

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _passes_open(self) -> int:
        return self._going_back or int(_current_autograd_node() is not None)

    @contextmanager
    def _threads_kept_off(self) -> Iterator[None]:
        """A thread that the step starts sees real tensors: what it did to them would stay."""
        start, stand_ins = threading.Thread.start, self._stand_ins
        assert stand_ins is not None

        def checked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if any(stand_ins.knows(one) or id(one) in self._reached for one in tensors_of(args, kwargs)):
                self._refuse_threads()
            return func(*args, **kwargs)

        def start_kept_off(thread: threading.Thread) -> None:
            run = thread.run

            def run_kept_off() -> None:
                with suppress(TraceFailed), as_a_mode(checked):  # it is told where the step ends
                    run()

            thread.run = run_kept_off  # type: ignore[method-assign]
            start(thread)

        threading.Thread.start = start_kept_off  # type: ignore[assignment, method-assign]
        try:
            yield
            if self._refused is not None:
                raise self._refused
        finally:
            threading.Thread.start = start  # type: ignore[method-assign]

    def _refuse_threads(self) -> NoReturn:
        self._refused = TraceFailed("threads", _NO_THREADS)
        raise self._refused

    def _phase(self, func: Any, args: tuple[Any, ...]) -> Phase:
        grad, passes = torch.is_grad_enabled(), self._passes_open()
        # An optimizer may step in a pass back, by a hook, and go back in its step, by a closure: what began last.
        if self._stepping and self._stepping[-1] == passes and not self._tracker.depth and not grad:
            return "optimizer"
        if passes:
            return "backward"
        if self._tracker.depth:
            return "forward"
        if grad and (self._tracker.place[0] == LOSS or (func is not _READ and _differentiable(args))):
            return "forward"
        return "other"

    def _is_forward_again(self) -> bool:
        return self._tracker.inside_a_module if self._makes_graph else super()._is_forward_again()

    # Ops.

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _DEVICE:  # what a fake tensor is asked most often, and most quickly from here
            return args[0].device if type(args[0]) is FakeTensor else func(*args, **kwargs)
        self.phase = self._phase(func, args)
        if self._stand_ins is None:
            return func(*args, **kwargs) if self.failure is not None else super().record(func, args, kwargs)
        args, kwargs = self._stand_ins.exchanged(args), self._stand_ins.exchanged(kwargs)
        if func is _DETACH and self._is_autograds(args[0]):
            return self._stand_ins.run(func, args, kwargs)
        if func is _CONSTANT and not args[0].dim():
            self.storages.id_of(args[0], host=True)  # a number, wherever the tensors are
        result = super().record(func, args, kwargs)
        results = result if isinstance(result, (list, tuple)) else (result,)
        self._last = tuple(map(id, results)), _asked_by()
        return result

    def _is_autograds(self, tensor: torch.Tensor) -> bool:
        """With a mode around, autograd takes a view of a result when it keeps it and another when it needs it; without
        one it does not."""
        node = _current_autograd_node()
        if node is not None and node.name() == PARAMETER_NODE:
            return False
        if node is not None and called_by_engine():
            return True
        results, asked = self._last
        return id(tensor) in results and asked == _asked_by()

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, pure: bool) -> Any:
        if self._stand_ins is None:
            return super()._run(func, args, kwargs, pure=pure)
        result = self._stand_ins.run(func, args, kwargs)
        if result is UNKNOWN:
            result = self._taken_as_usual(func, args, kwargs)
        return result

    def _taken_as_usual(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the program asks of values that are not there."""
        answer = self._assumed.answer(func, args, kwargs, _current_autograd_node())
        if answer is UNKNOWN and func is _READ and (self._counting or args[0].is_floating_point()):
            self._assumed.note(ONE)
            self._refuse_endless_reads()
            return 1.0
        if answer is UNKNOWN:
            raise TraceFailed(
                "data-dependent",
                f"{python_line()}: the step looks at values of its data here ({func.name()}), which a trace without "
                "data does not have; run it once on its own data with --real-data, or measure it",
            )
        return answer

    def _refuse_endless_reads(self) -> None:
        line = python_line()
        self._reads[line] += 1
        if self._reads[line] > _MOST_READS + self._parameters:
            raise TraceFailed(
                "data-dependent",
                f"{line}: the step reads a number here again and again, which is always 1 in a trace without data: if "
                "it decides when a loop ends, that never ends; run the step once on its own data with --real-data",
            )

    def _read(self, tensor: torch.Tensor) -> Any:
        return self._taken_as_usual(_READ, (tensor,), {})

    def _numbers_handed_out(self, stand_ins: StandIns) -> AbstractContextManager[None]:
        return values_handed_out(stand_ins.current, self._read, self._count, partial(self._assumed.note, DECIDES))

    def _count(self, tensor: torch.Tensor) -> Any:
        """A whole number that the program asks for by `.item()`, as it does to log it."""
        self._counting = True
        try:
            return _READ(tensor)
        finally:
            self._counting = False

    @property
    def _without_data(self) -> bool:
        return self._stand_ins is not None

    @property
    def notes(self) -> tuple[Note, ...]:
        return (*self._assumed.notes, *self._said)

    _arguments = _keeps_books(Recorder._arguments)
    _write = _keeps_books(Recorder._write)

    def shown(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as ops see it."""
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # of torch.func's transforms
            tensor = torch._C._functorch.get_unwrapped(tensor)
        return tensor if self._stand_ins is None else self._stand_ins.twin(tensor)

    def register(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        others: Iterable[torch.Tensor] = (),
    ) -> None:
        """Name the storages that are there before the step."""
        self._reached = set(map(id, others))
        self._parameters = sum(1 for model in models.values() for _ in model.parameters())
        for root, model in models.items():
            for name, parameter in model.named_parameters(prefix=root):
                self.storages.id_of(self.shown(parameter), "parameter", original_name(name))
            for name, buffer in model.named_buffers(prefix=root):
                self.storages.id_of(self.shown(buffer), "buffer", original_name(name))
        for optimizer in optimizers:
            for state in optimizer.state.values():
                for name, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        # Counts of steps lie on the host, beside parameters on a GPU.
                        host = not value.dim() and value.device.type == "cpu" and self._stand_ins is not None
                        self.storages.id_of(self.shown(value), "optimizer-state", name, host=host)

    def file_results(self, output: Sequence[torch.Tensor]) -> None:
        """Gradients and outputs are known only when the step is over."""
        for root, model in self._tracker.models.items():
            for name, parameter in model.named_parameters(prefix=root):
                if parameter.grad is not None:
                    self.storages.mark(self.shown(parameter.grad), "gradient", original_name(name))
        for optimizer in self.optimizers.values():
            for state in optimizer.state.values():
                for name, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        self.storages.mark(self.shown(value), "optimizer-state", name)
        for leaf in output:
            self.storages.mark(self.shown(leaf), "output")


def _asked_by() -> tuple[int, int]:
    """Which frame of Python asked for the op, and where in it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("rooflight.", "torch.utils._python")):
        frame = frame.f_back
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


def _loads_data() -> bool:
    """Is it a data loader that runs now? Transforms are modules too."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != _FETCH:
        frame = frame.f_back
    return frame is not None


def _autocast() -> str | None:
    dtype = autocast_now()
    return None if dtype is None else DTYPE_NAMES[dtype]


def _differentiable(args: tuple[Any, ...]) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad
        for value in args
        for leaf in (value if isinstance(value, (list, tuple)) else (value,))
    )
