"""What is remembered of an operator's result is what torch's own fake mode gives."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from rooflight.trace.shape_cache import FakeShapeCache
from rooflight.trace.storages import storage_address

aten = torch.ops.aten
KERNELS: dict = {}


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake(mode, *shape, dtype=torch.float32, device="cpu"):
    with mode:
        return torch.empty(*shape, dtype=dtype, device=device)


def form(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.storage_offset()


CALLS = {
    "fresh": lambda x: (aten.mm.default, (x, x)),
    "several": lambda x: (aten.max.dim, (x, 0)),
    "a view": lambda x: (aten.t.default, (x,)),
    "a view with an offset": lambda x: (aten.select.int, (x, 0, 2)),
    "a view of a view": lambda x: (aten.slice.Tensor, (aten.select.int(x, 0, 2), 0, 1, 3)),
    "a list of views": lambda x: (aten.split.Tensor, (x, 2)),
    "another type": lambda x: (aten._to_copy.default, (x,), {"dtype": torch.bfloat16}),
    "as bytes": lambda x: (aten.view.dtype, (x, torch.uint8)),
    "in place": lambda x: (aten.add_.Tensor, (x, x)),
    "many in place": lambda x: (aten._foreach_mul_.Scalar, ([x, x], 0.5)),
    "made": lambda x: (aten.zeros.default, ([2, 3],), {"device": torch.device("cpu"), "pin_memory": False}),
    "turned in place": lambda x: (aten.t_.default, (x,)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_results_are_those_of_torch(call, mode):
    cache = FakeShapeCache(mode, KERNELS)
    for _ in range(3):  # computed, remembered, remembered
        with mode:
            ours, theirs = fake(mode, 4, 4), fake(mode, 4, 4)
            func, args, *rest = call(ours)
            _, plain_args, *_ = call(theirs)
        kwargs = rest[0] if rest else {}
        result = cache.run(func, args, kwargs)
        with mode:
            plain = func(*plain_args, **kwargs)
        outputs = result if isinstance(result, (list, tuple)) else [result]
        wanted = plain if isinstance(plain, (list, tuple)) else [plain]
        assert type(result) is type(plain)
        assert len(outputs) == len(wanted)
        for output, other in zip(outputs, wanted, strict=True):
            assert (output is None) == (other is None)
            if output is not None:
                assert form(output) == form(other)
                assert (output is ours) == (other is theirs)
                assert (storage_address(output) == storage_address(ours)) == (
                    storage_address(other) == storage_address(theirs)
                )
        assert form(ours) == form(theirs)


def test_numbers_count_where_a_result_depends_on_them(mode):
    cache = FakeShapeCache(mode, KERNELS)
    options = {"device": torch.device("cpu"), "pin_memory": False}
    assert cache.run(aten.arange.default, (4.0,), options).shape == (4,)
    assert cache.run(aten.arange.default, (6.0,), options).shape == (6,)


def test_tensors_are_told_apart_by_their_device(mode):
    cache = FakeShapeCache(mode, KERNELS)
    for device in map(torch.device, ("cpu", "cuda:0", "cpu")):
        x = FakeTensor(mode, torch.empty(2, device="meta"), device)
        assert cache.run(aten.mul.Tensor, (x, fake(mode, ())), {}).device == device
