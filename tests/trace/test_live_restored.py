"""Nothing stops the return of a live module halfway: not what its attributes refuse, not where its forward fails, not
Ctrl-C, not something that really cannot be put back."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import rooflight
from rooflight.errors import NotPutBack, RooflightError, TraceFailed
from rooflight.trace import restoring, saved_state, snapshot, tensor_values
from rooflight.trace.snapshot import Snapshot as Reached
from tests.trace.test_live_modules import Snapshot

X = torch.randn(3, 4)
LOSS: dict[str, Any] = {"train": "sum", "infer": None}
SLOW = pytest.mark.slow
REFUSED = ("update", "clear", "extend", "append", "add", "pop", "popitem", "setdefault", "remove", "insert", "copy",
           "items", "keys", "values", "__setitem__", "__delitem__", "__iter__", "__len__", "__copy__", "__deepcopy__",
           "__reduce__", "__reduce_ex__", "__eq__")  # fmt: skip


def _no(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise Exception("You cannot use this method on a frozen instance.")


def refusing(kind: type) -> type:
    """A subclass that refuses whatever could read, copy or change it."""
    return type(f"Refusing{kind.__name__}", (kind,), {name: _no for name in REFUSED if hasattr(kind, name)})


def made(kind: type, content: Any) -> Any:
    """A container of that kind, filled past its own methods."""
    base = next(one for one in (OrderedDict, dict, list, set, deque) if issubclass(kind, one))
    found: Any = base.__new__(kind)
    restoring.refill(found, content)
    return found


PAIRS = (("a", 1), ("b", "two"))
KINDS: list[tuple[type, Any]] = [
    (dict, PAIRS), (OrderedDict, PAIRS), (defaultdict, PAIRS), (Counter, PAIRS), (list, ("x", "y")),
    (set, ("x",)), (deque, ("x", "y")),
]  # fmt: skip


class Net(nn.Module):
    """Calls `point` wherever a failure could strike it; changes all it has in its forward."""

    odd: set[Any]
    names: list[str]

    def __init__(self, held: Any = None, point: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.held, self.point = held, point
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.nested: dict[str, Any] = {"history": [[1], [2]], "seen": {1}, "deep": ({"x": deque([1])},)}
        self.counter = torch.zeros(2)
        self.first.weight.grad = torch.ones(4, 4)
        self.norm.bias.requires_grad_(False)
        self.norm.eval()
        for module in (self.first, self.norm, self.last):
            module.register_forward_pre_hook(lambda *_: self.point())
            module.register_forward_hook(lambda *_: self.point())

    def forward(self, x: Tensor) -> Tensor:
        self.point()
        y = self.first(x)
        if self.held is not None:
            change(self.held)
        self.nested["history"][0].append(y)
        self.nested["seen"].add(2)
        self.nested["deep"][0]["x"].clear()
        self.nested["more"] = []
        self.counter += 1
        self.point()
        self.register_forward_hook(lambda *_: None)
        self.extra = self.last
        del self.last
        self.norm.train()
        y = self.extra(self.norm(y))
        if y.requires_grad:
            y.register_hook(lambda grad: self.point())
        self.point()
        return y


def change(held: Any) -> None:
    """Past the methods that refuse it."""
    restoring.refill(held, (("other", 3),) if isinstance(held, dict) else ("z",))


def insides(net: Net) -> str:
    return repr((net.nested, net.counter.tolist(), net.counter._version))


@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
@pytest.mark.parametrize(("kind", "content"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
def test_containers_that_refuse_everything(kind: type, content: Any, on: Any) -> None:
    held = made(refusing(kind), content)
    net = Net(held)
    before, nested = Snapshot(net), insides(net)
    for step in ("infer", "train"):
        ledger = rooflight.estimate(net, X, step=step, loss=LOSS[step], on=on)
        assert ledger.ops
        before.check(net)
        assert net.held is held
        assert restoring.contents(held) == content
        assert insides(net) == nested


class FrozenConfig(OrderedDict[str, Any]):
    """As the configs of diffusers' models are: made once, then closed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, value in self.items():
            object.__setattr__(self, name, value)
        self._frozen = True

    __delitem__ = setdefault = pop = update = _no

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "_frozen"):
            raise Exception("You cannot use ``__setattr__`` on a frozen instance.")
        super().__setattr__(name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        if hasattr(self, "_frozen"):
            raise Exception("You cannot use ``__setitem__`` on a frozen instance.")
        super().__setitem__(name, value)


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = FrozenConfig(scale=2, sizes=(4, 4))
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) * self.config["scale"]


@pytest.mark.parametrize("verb", [rooflight.estimate, rooflight.predict, rooflight.measure])
@pytest.mark.parametrize("step", ["infer", "train"])
def test_a_model_with_a_frozen_config_is_served_and_stays_whole(verb: Callable[..., Any], step: Any) -> None:
    model = nn.Sequential(Configured(), Configured())
    before = Snapshot(model)
    assert verb(model, X, step=step) is not None
    before.check(model)
    for module in model:
        assert isinstance(module, Configured) and dict(module.config) == {"scale": 2, "sizes": (4, 4)}


class Fault:
    """Raises at one of the points that a step passes, and counts them."""

    def __init__(self, at: int | None, error: type[BaseException]) -> None:
        self.at, self.error, self._passed = at, error, SimpleQueue[None]()  # a number would be restored

    @property
    def passed(self) -> int:
        return self._passed.qsize()

    def __call__(self) -> None:
        self._passed.put(None)
        if self.passed - 1 == self.at:
            raise self.error("on purpose")


def points_of(step: Any, on: Any) -> int:
    fault = Fault(None, ValueError)
    rooflight.estimate(Net([], fault), X, step=step, loss=LOSS[step], on=on)
    return fault.passed


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
@pytest.mark.parametrize("step", ["infer", "train"])
def test_a_failure_at_every_point_of_the_step(step: Any, on: Any, error: type[BaseException]) -> None:
    points = points_of(step, on)
    assert points >= (10 if step == "train" else 9)  # the last one is in backward
    for at in range(points):
        fault = Fault(at, error)
        net = Net(["x"], fault)
        before, nested = Snapshot(net), insides(net)
        # A trace without data is tried again in another way, in which nothing fails any more; Ctrl-C ends it at once.
        ends = on != "meta" or error is KeyboardInterrupt
        with pytest.raises((TraceFailed, KeyboardInterrupt)) if ends else contextlib.nullcontext():
            rooflight.estimate(net, X, step=step, loss=LOSS[step], on=on)
        assert fault.passed > at
        before.check(net)
        assert insides(net) == nested
        assert net.held == ["x"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, pytest.param(SystemExit, marks=SLOW), pytest.param(MemoryError, marks=SLOW)]
)
def test_a_failure_while_it_is_put_back(error: type[BaseException]) -> None:
    """At every line of what puts a model back: it is done again. Ctrl-C is heard when all is done."""
    line = 0
    while True:
        net = Net(["x"])
        before, nested = Snapshot(net), insides(net)
        fault, heard = Lines(error, at=line), False
        try:
            with saved_state.borrowed(net, training=True):
                net(X.to("meta"))
                fault.start()
        except (KeyboardInterrupt, SystemExit):
            heard = True
        finally:
            fault.stop()
        if not fault.struck:
            break
        assert heard is (error is not MemoryError)
        assert torch.is_grad_enabled()
        before.check(net)
        assert (insides(net), net.held) == (nested, ["x"])
        line += 1
    assert line > 200


class Lines:
    """Raises at one of the lines that are run in the modules which put things back, counted from `start`."""

    def __init__(self, error: type[BaseException], at: int) -> None:
        self.error, self.left, self.struck = error, at, False
        self._files = {restoring.__file__, tensor_values.__file__}

    def start(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self._call)

    def stop(self) -> None:
        sys.settrace(self.before)  # a measurement of coverage goes on

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        # What holds signals back and goes through the steps cannot be held back itself: see the next test.
        code, loops = frame.f_code, ("restore", "_signals_deferred")
        return self._line if code.co_filename in self._files and code.co_name not in loops else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not self.struck:
            if self.left == 0:
                self.struck = True
                raise self.error
            self.left -= 1
        return self._line


class Ended(BaseException):
    """What a handler may raise: SystemExit, the end of a test's time."""


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Ended),
                                               (signal.SIGALRM, TimeoutError)])  # fmt: skip
def test_a_signal_at_any_moment_of_putting_back(number: int, error: type[BaseException]) -> None:
    """It is heard, once and afterwards. It comes at moments that cover all of it."""

    def raised(*told: Any) -> None:
        raise error

    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(40)))
    before = Snapshot(model)
    handler = signal.signal(number, raised)
    try:
        for moment in range(60):
            heard = False
            try:
                with saved_state.borrowed(model, training=True):
                    timer = threading.Timer(moment * 2e-4, os.kill, (os.getpid(), number))
                    timer.start()
                    if moment % 2:
                        time.sleep(moment * 1e-4)
                timer.join()
                time.sleep(1e-3)
            except error:
                heard = True
            finally:
                timer.join()
            assert heard
            assert all(not tensor.is_meta for tensor in model.state_dict().values()), moment
            assert signal.getsignal(number) is raised
    finally:
        signal.signal(number, handler)
    before.check(model)


class Unhashable:
    """Can be taken into a set once, and never again."""

    taken = False

    def __hash__(self) -> int:
        if Unhashable.taken:
            raise TypeError("no second time")
        Unhashable.taken = True
        return 1


@pytest.mark.parametrize("fails", [False, True])
def test_what_cannot_be_put_back_is_named_and_all_else_is(fails: bool) -> None:
    Unhashable.taken = False
    net = Net()
    net.odd, net.names = {Unhashable()}, ["x"]

    def forward(x: Tensor) -> Tensor:
        set.clear(net.odd)
        net.names.append("y")
        net.table = net.counter
        if fails:
            raise ValueError("midway")
        return net.norm(net.first(x))

    net.__dict__["forward"] = forward
    before = Snapshot(net)
    with pytest.raises(NotPutBack, match=r"Net\.odd \(no second time\); everything else was") as failure:
        rooflight.estimate(net, X)
    assert failure.value.what == ("Net.odd (no second time)",)
    assert isinstance(failure.value, RooflightError)
    before.check(net)
    assert net.names == ["x"]
    assert not hasattr(net, "table")


def test_parameters_that_the_step_moves_or_freezes_are_as_before() -> None:
    class Pruned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mask = nn.Linear(4, 4), torch.ones(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.layer.weight.data = self.layer.weight.data * self.mask
            self.layer.bias.data = torch.zeros(4, dtype=torch.float64)[:4].float()
            y = self.layer(x)
            self.mask.zero_()
            for parameter in self.parameters():
                parameter.requires_grad_(False)
            return y

    for on in ("meta", "fake", "cpu"):
        for step in ("infer", "train"):
            model = Pruned()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            before = Snapshot(model)
            rooflight.estimate(model, X, on=on, step=step, loss=LOSS[step])
            before.check(model)
            assert model.mask.tolist() == [[1.0] * 4] * 4
            assert optimizer.param_groups[0]["params"][0] is model.layer.weight


def test_a_graph_of_before_still_goes_backward() -> None:
    """It keeps the versions of tensors that are no parameters, too."""
    net = Net()
    net.scale = torch.ones(4)
    net.__dict__["forward"] = lambda x: net.first(x) * net.scale.mul_(2)
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * net.scale).sum()
    for on in ("meta", "cpu"):
        rooflight.estimate(net, X, on=on)
    assert net.scale.tolist() == [1.0] * 4
    loss.backward()
    assert weight.grad is not None


class Refusing(Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("no function takes me")


def test_odd_attributes_are_no_hindrance() -> None:
    """What calls itself a dict and is none, and tensors that do not even say what they are."""
    net = Net()
    net.mock = Mock(spec=dict)
    net.nested_tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    net.uninitialized = [nn.parameter.UninitializedParameter()]  # type: ignore[assignment]
    net.refusing = torch.ones(3).as_subclass(Refusing)
    before = Snapshot(net)
    assert rooflight.estimate(net, X).ops
    before.check(net)


def test_large_tensors_of_a_model_are_not_copied_but_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state, "_MOST_BYTES", 100)
    net = Net()
    net.table = torch.ones(100)
    assert rooflight.estimate(net, X).ops
    net.__dict__["forward"] = lambda x: net.first(x) + net.table.mul_(2)[:4]
    with pytest.raises(NotPutBack, match=r"a tensor of \(100,\) \(changed in place, and too large to have been kept\)"):
        rooflight.estimate(net, X)


def test_what_modules_share_is_saved_once() -> None:
    shared: dict[str, list[list[Any]]] = {"lists": [[number] for number in range(50)]}
    layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    for layer in layers:
        layer.shared = shared  # type: ignore[assignment]
    saved = Reached(("", layers))
    shared["lists"][3].append("more")
    restoring.restore(saved.restorers)
    assert shared["lists"][3] == [3]
    # The lists once; of every module its attributes, class, state and 15 containers; of every weight its attributes.
    assert len(saved.restorers) < 50 + 2 + 21 * 20 + 40


class Deep(nn.Module):
    """What it holds besides comes before its layers in a walk."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4))
        self.graph = [[number] for number in range(100)]
        self.second = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_weights_come_back_however_much_a_model_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_MOST_OBJECTS", 20)
    model = Deep()
    before = Snapshot(model)
    assert "too-many-objects" in {note.code for note in rooflight.estimate(model, X).header.notes}
    before.check(model)


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class NoAttributes:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise KeyError


def test_objects_that_refuse_to_be_looked_at_are_left_alone() -> None:
    model = Net()
    dead = weakref.proxy(Hostile())
    model.__dict__ |= {"a": Hostile(), "b": NoAttributes(), "c": Mock(spec=nn.Module), "d": dead}
    model.unused = [nn.LazyLinear(3)]  # type: ignore[assignment]
    attributes = dict(model.__dict__)
    assert rooflight.estimate(model, X).ops
    assert all(model.__dict__[name] is held for name, held in attributes.items())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_in_a_step() -> None:
    scripted = torch.jit.script(nn.Linear(4, 4))
    ledger = rooflight.estimate(lambda: scripted(X).sum().backward())
    assert any(op.name == "aten::addmm" for op in ledger.ops)
    assert scripted.weight.grad is None


def test_tensors_without_memory_of_their_own_are_no_hindrance() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    net = Net()
    with FakeTensorMode():
        net.fake = torch.ones(4)
    net.sparse, net.meta = torch.eye(3).to_sparse(), torch.ones(3, device="meta")
    with torch.inference_mode():
        net.frozen = torch.ones(3)
    before = Snapshot(net)
    for on in ("meta", "cpu"):
        assert rooflight.estimate(net, X, on=on).ops
        before.check(net)
