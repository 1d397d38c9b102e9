"""Calibration and prediction speak of the same work in the same words: what a micro-benchmark says it does is what
prediction reads out of the aten call that it makes."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn

import rooflight
from rooflight.calibration.attention import attention_cases, kernel_set
from rooflight.calibration.case import BenchmarkCase, OutOfPool, TensorPool, precision_set
from rooflight.calibration.convolution import convolution_cases
from rooflight.calibration.elements import cat_cases, fused_cases
from rooflight.calibration.gemm import gemm_cases
from rooflight.calibration.plan import Chapter, cpu_plan, gpu_plan
from rooflight.calibration.recurrent import recurrent_cases
from rooflight.errors import RooflightError
from rooflight.estimation.costs import cost_of
from rooflight.hardware.calibration import shipped
from rooflight.hardware.devices import find
from rooflight.ledger import Cost, Ledger, MathModes, Op, Tensor
from rooflight.ops.kernel_task import FAMILIES, OUTPUT, Task, convolves, precision_of, rows_of
from rooflight.ops.op_tasks import is_guess, tasks_of
from rooflight.ops.registry import FORMULAS
from rooflight.prediction.calibrated.baseline import columns, matrix_flops, task_bytes
from rooflight.prediction.calibrated.model import CalibratedModel
from rooflight.prediction.tiers import predictor, speed_of
from rooflight.trace.dispatch import dispatch_as
from rooflight.trace.meta_kernels import META_KERNELS
from rooflight.trace.modules import ModuleTracker
from rooflight.trace.recorder import Recorder
from rooflight.trace.target import Target
from tests.fixtures.formula_calls import CALLS, call_by_schema
from tests.fixtures.recording import Pretended, meta, numbers, record
from tests.fixtures.small_models import First, ModelSize
from tests.fixtures.torch_versions import VERSION, needs_torch
from tests.fixtures.tracing import infer, only, train

aten = torch.ops.aten
FIRST = 40
"""Cases of each chapter."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def gpu_chapters() -> dict[str, Chapter]:
    """What a GPU would be timed with, of sizes that also a CPU could run."""
    plan = gpu_plan(dict.fromkeys(PRECISIONS, 2e9), largest=200_000, longest_s=3e-3)
    return {chapter.name: chapter for chapter in plan}


def cpu_chapters() -> dict[str, Chapter]:
    plan = cpu_plan({"fp32": 2e9}, largest=50_000, longest_s=3e-3)
    return {chapter.name: chapter for chapter in plan if "cudnn" not in chapter.name}


def ops_of(case: BenchmarkCase, pool: TensorPool) -> list[Op]:
    """The aten calls of a case, as the tracer writes them down: on tensors without data as CUDA would run them, on the
    CPU's for real."""
    device, family = pool.device.type, case.task.family
    capability = 80 if "flash" in family else 90
    tf32 = case.task.precision == "tf32"
    recorder = Recorder(
        ModuleTracker(nn.Identity()), device=device, modes=MathModes(tf32, tf32),
        meta_kernels=META_KERNELS if device == "meta" else None,
    )  # fmt: skip
    pool.reset()
    kernels = dispatch_as(Target("cuda", capability)) if device == "meta" else nullcontext()
    chosen = kernel_set(family.split("-")[1]) if family.startswith("attention") else nullcontext()
    with precision_set(case.task.precision), torch.no_grad(), kernels, chosen:
        call = case.make(pool)
        recorder.phase = "backward" if family.startswith("attention") and family.endswith("backward") else "forward"
        with recorder:
            call()
    return recorder.ops


def tasks_in(ops: list[Op]) -> list[Task]:
    return [task for op in ops for task in tasks_of(op)]


@pytest.fixture(scope="module")
def meta_pool():
    return TensorPool(torch.device("meta"), 1 << 30)


@pytest.fixture(scope="module")
def cpu_pool():
    return TensorPool(torch.device("cpu"), 1 << 27)


# --- what calibration says it does ---


ELSEWHERE = ("fused-sgd", "recurrent")
"""Chapters whose calls need more than tensors without data; they have tests of their own."""


@pytest.mark.parametrize("name", [name for name in gpu_chapters() if not name.startswith(ELSEWHERE)])
def test_a_case_for_a_gpu_is_the_task_that_prediction_sees_in_its_call(name, meta_pool):
    for case in islice(gpu_chapters()[name].cases, FIRST):
        assert tasks_in(ops_of(case, meta_pool)) == [case.task]


def test_a_recurrent_case_is_the_task_that_prediction_sees_in_its_layer():
    for case in islice(recurrent_cases("fp32", 1e12, 1, 3e-3), 12):
        gates, steps, samples, inputs, hidden, layers, directions = case.task.numbers
        kind = {1: nn.RNN, 3: nn.GRU, 4: nn.LSTM}[gates]
        layer = First(kind(inputs, hidden, layers, bidirectional=directions == 2, device="meta"))
        ledger = train(layer, meta(steps, samples, inputs), loss="mse", optimizer="sgd", tf32=False)
        assert case.task in [task for op in ledger.ops for task in tasks_of(op)]


@pytest.mark.parametrize("name", list(cpu_chapters()))
def test_a_case_for_a_cpu_runs_there_and_is_the_task_that_prediction_sees_in_its_call(name, cpu_pool, one_thread):
    if "attention to a cache" in name and VERSION < (2, 11):
        pytest.skip("torch before 2.11 has no flash attention of grouped heads on a CPU")
    for case in islice(cpu_chapters()[name].cases, FIRST):
        assert tasks_in(ops_of(case, cpu_pool)) == [case.task]


def test_a_fused_optimizer_is_the_task_that_prediction_sees_in_its_call(meta_pool):
    """No tensors without data for fused SGD: torch has no kernel for them."""
    for family, function in (("fused-sgd", aten._fused_sgd_.default), ("fused-adam", aten._fused_adamw_.default)):
        for case in islice(fused_cases(family, 1, 200_000), FIRST):
            meta_pool.reset()
            call = case.make(meta_pool)
            assert isinstance(call, partial)
            assert tasks_of(record(Pretended(function, ()), *call.args, **call.keywords)) == [case.task]


_ADAMW = ((1, 1), (2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1))
"""Lists that AdamW's ops over lists read and write: its own decay, both averages, a root, a quotient, a sum, the step."""
_MOMENTUM = ((1, 1), (2, 1), (2, 1))


@pytest.mark.parametrize("device", ["h200", "a100"])
@pytest.mark.parametrize("tensors", [60, 160, 300])
@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize(
    ("family", "lists", "plain"), [("fused-adam", (4, 3), _ADAMW), ("fused-sgd", (3, 2), _MOMENTUM)]
)
def test_a_large_fused_optimizer_takes_its_bytes_at_a_bandwidth(
    family, lists, plain, precision, width, tensors, device
):
    """Sizes from a million elements to a thousand million, of which calibration timed the smaller ones."""
    by, peak = predictor(find(device)), find(device).bandwidth_bytes_per_s.value

    def task(name: str, moved: tuple[int, int], size: int) -> Task:
        return Task(name, precision, (tensors, size, *(width * size * one for one in moved)))

    sizes = [10**6 * 2**power for power in range(11)]
    seconds = by.task_seconds([task(family, lists, size) for size in sizes])
    others = [by.task_seconds([task("foreach", one, size) for one in plain]).sum() for size in sizes]
    assert np.all(np.diff(seconds) > 0)
    for size, fused, foreach in zip(sizes, seconds, others, strict=True):
        assert sum(lists) * width * size / peak <= fused < foreach
    assert seconds[-1] / seconds[-2] == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(
    ("family", "precision", "nbytes", "measured_s"),
    [("fused-adam", "fp32", (16, 12), 8.11e-3), ("fused-adam", "bf16", (8, 6), 5.19e-3),
     ("fused-sgd", "fp32", (12, 8), 5.54e-3), ("fused-sgd", "bf16", (6, 4), 3.36e-3)],
)  # fmt: skip
def test_a_fused_optimizer_of_a_thousand_million_elements(family, precision, nbytes, measured_s):
    """Timed on an H200 on 2026-11-16, 160 tensors; calibration has none above 48 million."""
    task = Task(family, precision, (160, 10**9, *(10**9 * one for one in nbytes)))
    assert predictor(find("h200")).task_seconds([task])[0] == pytest.approx(measured_s, rel=0.08)


def test_a_fused_optimizer_is_timed_on_numbers_that_no_other_case_writes(meta_pool):
    for case in islice(fused_cases("fused-adam", 1, 200_000), FIRST):
        meta_pool.reset()
        case.make(meta_pool)
        sizes = [tensor.untyped_storage().nbytes() for tensor in meta_pool.taken]
        assert sizes == [tensor.nbytes for tensor in meta_pool.taken]


def test_a_fused_optimizer_writes_gradients_only_to_unscale_them():
    x = [meta(8) for _ in range(4)]
    options = dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
    call = partial(record, Pretended(aten._fused_adamw_.default, ()), *([one] for one in x), [], [meta()])
    assert [task.numbers for task in tasks_of(call(**options))] == [(1, 8, 4 * 32, 3 * 32)]
    assert [task.numbers for task in tasks_of(call(**options, grad_scale=meta()))] == [(1, 8, 4 * 32, 4 * 32)]


def test_chapters_have_names_of_their_own_and_every_family_has_one():
    plan = gpu_plan(dict.fromkeys(PRECISIONS, 1e12), largest=1_000_000, longest_s=3e-3)
    assert len({chapter.name for chapter in plan}) == len(plan)
    families = {case.task.family for chapter in plan for case in islice(chapter.cases, FIRST)}
    assert families == set(FAMILIES)


@pytest.mark.parametrize("name", list(gpu_chapters()))
def test_a_task_has_the_numbers_that_its_family_names(name):
    for case in islice(gpu_chapters()[name].cases, FIRST):
        family, precision, found = case.task
        named = len(FAMILIES[family])
        assert len(found) == named or (convolves(family) and len(found) == named + len(OUTPUT))
        assert precision in PRECISIONS
        assert all(type(number) is int and number >= 0 for number in found)


def test_the_same_plan_gives_the_same_cases():
    def first(plan):
        return [case.task for chapter in plan.values() for case in islice(chapter.cases, 10)]

    assert first(gpu_chapters()) == first(gpu_chapters())
    assert first(cpu_chapters()) == first(cpu_chapters())


def test_no_case_is_too_long_and_no_tensor_too_large():
    plan = gpu_plan({"bf16": 1e12}, largest=1_000_000, longest_s=1e-3)
    for chapter in plan:
        for case in islice(chapter.cases, FIRST):
            family, numbers = case.task.family, np.array([case.task.numbers], dtype=np.float64)
            flops = matrix_flops(family, columns(family, numbers))
            assert flops is None or flops[0] <= 1e12 * 1e-3 * (2 if "backward" in family else 1), case.task
            sizes = dict(zip(FAMILIES[case.task.family], case.task.numbers, strict=False))  # some tell their output
            assert sizes.get("elements", 0) <= 2 * 1_000_000, case.task


def test_a_pool_gives_tensors_that_share_nothing_until_it_begins_again():
    pool = TensorPool(torch.device("cpu"), 1 << 16)
    x, y = pool.take(10, 10), pool.take(3, dtype=torch.float32)
    assert x.is_contiguous() and x.data_ptr() + 4 * 100 <= y.data_ptr()
    with pytest.raises(OutOfPool):
        pool.take(1 << 16)
    pool.reset()
    assert pool.take(10, 10).data_ptr() == x.data_ptr()
    assert pool.take(4, dtype=torch.bfloat16).dtype is torch.bfloat16


def test_shapes_that_everybody_has_are_left_to_models():
    """Powers of two for pictures, channels and filters at once, square weights, the usual lengths and batches."""
    for precision in ("bf16", "tf32"):
        for last in (False, True):
            cases = convolution_cases(precision, 1e12, 3, 1e-2, channels_last=last)
            for case in islice(cases, 600):
                n, c, *_, k = case.task.numbers[:5]
                assert not all(size & (size - 1) == 0 for size in (n, c, k)), case.task
    for case in islice(gemm_cases("bf16", 1e15, 3, 1e-2), 600):
        _, _, n, k, *_ = case.task.numbers
        assert n != k
        assert n & (n - 1) or k & (k - 1), case.task
    for case in islice(attention_cases("flash", "bf16", 1e15, 3, 1e-2), 600):
        batch, _, _, length, *_ = case.task.numbers
        assert (batch & (batch - 1)) or length not in (64, 128, 256, 512, 1024, 2048, 4096) or batch > 64


def test_the_largest_of_joined_parts_is_one_of_them():
    for case in islice(cat_cases(5, 100_000), 400):
        sizes = dict(zip(FAMILIES["cat"], case.task.numbers, strict=True))
        assert sizes["largest"] * sizes["tensors"] >= sizes["elements"] >= sizes["largest"]


# --- what prediction reads out of the layers of a model ---


def families(ops: list[Op]) -> list[str]:
    return [task.family for op in ops for task in tasks_of(op)]


def test_a_linear_layer_is_three_products_of_three_layouts():
    ledger = train(nn.Linear(48, 32), meta(10, 48).requires_grad_(), loss="sum", optimizer="sgd")
    forward = only(ledger, "addmm", phase="forward")
    assert tasks_of(forward) == [Task("gemm", "fp32", (1, 10, 32, 48, 0, 1, 1))]
    backward = [op for op in ledger.ops if op.packet == "aten::mm"]
    found = {task.numbers for op in backward for task in tasks_of(op)}
    # The gradient of the sum has strides 0: it counts as neither way round.
    assert {numbers[:4] for numbers in found} == {(1, 10, 48, 32), (1, 32, 48, 10)}


def test_gradients_of_a_linear_layer_inside_a_model():
    model = nn.Sequential(nn.Linear(48, 32), nn.Linear(32, 16))
    ledger = train(model, meta(10, 48), loss="mse", optimizer="sgd")
    inner = [op for op in ledger.ops if op.packet == "aten::mm" and op.module == "1"]
    assert {task.numbers for op in inner for task in tasks_of(op)} == {
        (1, 10, 32, 16, 0, 0, 0),  # of the input: grad @ weight
        (1, 16, 32, 10, 1, 0, 0),  # of the weight: grad.T @ input
    }


@pytest.mark.parametrize("last", [False, True])
def test_a_convolution_with_its_bias_and_gradients(last):
    layout = torch.channels_last if last else torch.contiguous_format
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 24, (1, 3), stride=2, bias=True))
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    x = torch.randn(2, 8, 10, 12).to(memory_format=layout)
    ledger = train(model, x, loss="mse", optimizer="sgd", tf32=True)
    first = next(op for op in ledger.ops if op.packet == "aten::convolution")
    conv = (2, 8, 10, 12, 16, 3, 3, 1, 1, 1, 1, int(last))
    out = 2 * 16 * 10 * 12
    assert tasks_of(first) == [
        Task("conv-forward", "tf32", conv),
        Task("broadcast", "fp32", (out, 4 * out, 4 * out)),
    ]
    inner, outer = [op for op in ledger.ops if op.packet == "aten::convolution_backward"]
    assert tasks_of(outer) == [
        Task("conv-wgrad", "tf32", conv),
        Task("reduce", "fp32", (16, 2 * 10 * 12, int(not last))),
    ]
    second = (2, 16, 10, 12, 24, 1, 3, 2, 0, 1, 1, int(last))
    assert [task for task in tasks_of(inner) if task.family.startswith("conv")] == [
        Task("conv-dgrad", "tf32", second),
        Task("conv-wgrad", "tf32", second),
    ]


@pytest.mark.parametrize(
    ("layer", "shape", "sides", "numbers"),
    [
        # A sequence is a picture of one row, which is not padded.
        (nn.Conv1d(8, 16, 9, padding=4), (2, 8, 100), (1, 100), (2, 8, 1, 100, 16, 1, 9, 1, 4, 1, 1, 0)),
        (nn.Conv1d(8, 16, 3, stride=2, padding=1), (2, 8, 100), (1, 50), (2, 8, 1, 100, 16, 1, 3, 2, 1, 1, 1, 0)),
        # Of a picture, the side with the larger kernel tells stride and padding.
        (nn.Conv2d(8, 16, (7, 1), padding=(3, 0)), (2, 8, 17, 17), (17, 17), (2, 8, 17, 17, 16, 7, 1, 1, 3, 1, 1, 0)),
        (nn.Conv2d(8, 16, (5, 1), stride=(3, 1), padding=(2, 0)), (2, 8, 90, 7), (30, 7), (2, 8, 90, 7, 16, 5, 1, 3, 2, 1, 1, 0)),
        # The slices of a volume are stacked.
        (nn.Conv3d(8, 16, 3, stride=2, padding=1), (2, 8, 8, 16, 16), (4 * 8, 8), (2, 8, 8 * 16, 16, 16, 9, 3, 2, 1, 1, 1, 0)),
    ],
)  # fmt: skip
def test_sides_of_a_convolution_that_differ(layer, shape, sides, numbers):
    (task, _) = tasks_of(next(op for op in infer(layer, meta(*shape)).ops if op.packet == "aten::convolution"))
    assert task.numbers == (*numbers, *sides)
    # What is timed by it has the FLOPs that are estimated.
    (op,) = [op for op in infer(layer, meta(*shape)).ops if op.packet == "aten::convolution"]
    columns_of = columns(task.family, rows_of([task], np.float64))
    assert matrix_flops(task.family, columns_of) == op.cost.flops


def test_convolutions_of_both_kinds_in_one_question():
    """One tells the sides of its output, the other need not."""
    tasks = [Task("conv-forward", "fp32", (2, 8, 1, 100, 16, 1, 9, 1, 4, 1, 1, 0, 1, 100)),
             Task("conv-forward", "fp32", (2, 8, 10, 12, 16, 3, 3, 2, 1, 1, 1, 0))]  # fmt: skip
    assert rows_of(tasks, np.int64)[:, -2:].tolist() == [[1, 100], [5, 6]]
    table = shipped("h200")
    assert table is not None
    model = CalibratedModel(table, speed_of(find("h200")))
    assert model.times(tasks).warm_s.tolist() == [model.times([task]).warm_s[0] for task in tasks]


def test_a_transposed_convolution_is_the_gradient_of_one_that_goes_the_other_way():
    model = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, bias=False))
    ledger = train(model, meta(2, 4, 5, 5), loss="mse", optimizer="sgd", tf32=False)
    # Seen from its output of 10 x 10, it is a convolution from 6 channels to 8.
    numbers = (2, 6, 10, 10, 8, 4, 4, 2, 1, 1, 1, 0)
    forward = [op for op in ledger.ops if op.packet == "aten::convolution"][1]
    assert tasks_of(forward) == [Task("conv-dgrad", "fp32", numbers)]
    backward = next(op for op in ledger.ops if op.packet == "aten::convolution_backward")
    assert tasks_of(backward) == [Task("conv-forward", "fp32", numbers), Task("conv-wgrad", "fp32", numbers)]


class Heads(nn.Module):
    def forward(self, x):
        q = x.view(2, 64, 4, 32).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.parametrize(
    ("dtype", "target", "kernel"),
    [(torch.bfloat16, "cuda", "cudnn"), (torch.bfloat16, "cuda:80", "flash"), (torch.float32, "cuda", "efficient"),
     (torch.float32, "cpu", "flash")],
)  # fmt: skip
def test_attention_is_a_task_of_the_kernel_it_runs_in(dtype, target, kernel):
    ledger = infer(Heads(), meta(2, 64, 128, dtype=dtype), target=target)
    precision = "fp32" if dtype is torch.float32 else "bf16"
    assert Task(f"attention-{kernel}-forward", precision, (2, 4, 4, 64, 64, 32, 1, 0)) in tasks_in(list(ledger.ops))


def test_views_and_tensors_without_a_kernel_are_no_work():
    assert tasks_of(record(aten.view.default, meta(4, 4), [16])) == []
    assert tasks_of(record(aten.empty_like.default, meta(4, 4))) == []
    assert tasks_of(record(aten.transpose.int, meta(4, 4), 0, 1)) == []
    assert tasks_of(record(aten.relu.default, meta(0, 4))) == []


@pytest.mark.parametrize(
    ("make", "family", "sizes"),
    [
        (lambda: record(aten.relu.default, meta(10, 10)), "plain", (100, 400, 400)),
        (lambda: record(aten.add.Tensor, meta(10, 10), meta(10, 10)), "plain", (100, 800, 400)),
        (lambda: record(aten.gelu.default, meta(10, 10)), "math", (100, 400, 400)),
        (lambda: record(aten.zero_.default, meta(10, 10)), "plain", (100, 0, 400)),
        (lambda: record(aten.zeros_like.default, meta(10, 10)), "plain", (100, 0, 400)),
        (lambda: record(aten.new_zeros.default, meta(10, 10), [5]), "plain", (5, 0, 20)),
        (lambda: record(aten.add.Tensor, meta(10, 10), meta(10)), "broadcast", (100, 440, 400)),
        (lambda: record(aten.mul.Tensor, meta(10, 10), meta()), "plain", (100, 404, 400)),
        (lambda: record(aten.add.Tensor, meta(10, 10), meta(1, 1).expand(10, 10)), "broadcast", (100, 404, 400)),
        (lambda: record(aten.add.Tensor, meta(10, 10), meta(10, 10).t()), "strided", (100, 800, 400, 1)),
        (lambda: record(aten.clone.default, meta(10, 10)), "copy", (100, 400, 400)),
        (lambda: record(aten.mul.Tensor, meta(10, 10, dtype=torch.bfloat16), meta(10, 1)), "mixed", (100, 240, 400)),
        (lambda: record(aten.clone.default, meta(10, 10).t(), memory_format=torch.contiguous_format), "strided",
         (100, 400, 400, 1)),
        (lambda: record(aten._to_copy.default, meta(10, 10), dtype=torch.bfloat16), "cast", (100, 400, 200)),
        (lambda: record(aten.gt.Scalar, meta(10, 10), 0), "cast", (100, 400, 100)),
        (lambda: record(aten.masked_fill.Scalar, meta(10, 10), meta(10, 10, dtype=torch.bool), 0), "cast",
         (100, 500, 400)),
        (lambda: record(aten.cat.default, [meta(2, 3), meta(2, 5)], 1), "cat", (2, 16, 64, 64, 10, 1)),
        (lambda: record(aten.sum.dim_IntList, meta(8, 32), [1]), "reduce", (8, 32, 1)),
        (lambda: record(aten.sum.dim_IntList, meta(8, 32), [0]), "reduce", (32, 8, 0)),
        (lambda: record(aten.sum.default, meta(8, 32)), "reduce", (1, 256, 1)),
        (lambda: record(aten._softmax.default, meta(4, 6, 10), -1, False), "softmax-forward", (24, 10)),
        (lambda: record(aten._log_softmax_backward_data.default, meta(6, 10), meta(6, 10), 1, torch.float32),
         "softmax-backward", (6, 10)),
        (lambda: record(aten.native_layer_norm.default, meta(4, 6, 10), [6, 10], None, None, 1e-5),
         "layer-norm-forward", (4, 60)),
        (lambda: record(aten.embedding.default, meta(100, 16), numbers(3, 5)), "embedding-forward", (15, 16)),
        (lambda: record(aten.embedding_dense_backward.default, meta(3, 5, 16), numbers(3, 5), 100, -1, False),
         "embedding-backward", (15, 16, 100)),
        (lambda: record(aten.index.Tensor, meta(100, 16), [numbers(15)]), "index", (15, 16)),
        (lambda: record(aten.gather.default, meta(100, 16), 0, numbers(15, 16)), "gather", (15, 16)),
        (lambda: record(aten._index_put_impl_.default, meta(100, 16), [numbers(15)], meta(15, 16), True), "index-put",
         (15, 16, 100)),
        (lambda: record(aten._index_put_impl_.default, meta(100, 16), [numbers(15)], meta(15, 16), False), "index", (15, 16)),
        (lambda: record(aten.index_add_.default, meta(100, 16), 0, numbers(15), meta(15, 16)), "index-add", (15, 16, 100)),
        (lambda: record(aten.scatter_add_.default, meta(100, 16), 0, numbers(15, 16), meta(15, 16)), "scatter-add",
         (15, 16, 100)),
        # Rows are told by the op, not by sizes that happen to agree: a permutation, pairs of places, other dimensions.
        (lambda: record(aten.index.Tensor, meta(1000), [numbers(1000)]), "index", (1000, 1)),
        (lambda: record(aten.index.Tensor, meta(100, 16), [numbers(16), numbers(16)]), "index", (16, 1)),
        (lambda: record(aten.index.Tensor, meta(2, 100, 16), [None, numbers(7)]), "index", (14, 16)),
        (lambda: record(aten.gather.default, meta(100, 16), 1, numbers(100, 3)), "gather", (300, 1)),
        (lambda: record(aten.scatter_add_.default, meta(1000), 0, numbers(1000), meta(1000)), "scatter-add",
         (1000, 1, 1000)),
        (lambda: record(aten.index_add_.default, meta(16, 1000), 1, numbers(1000), meta(16, 1000)), "index-add",
         (16000, 1, 16000)),
        (lambda: record(aten._index_put_impl_.default, meta(100, 16), [numbers(50)], meta(), False), "index", (50, 16)),
        (lambda: record(aten._index_put_impl_.default, meta(100, 16), [numbers(50)], meta(16), True), "index-put",
         (50, 16, 100)),
        (lambda: record(aten.nll_loss_forward.default, meta(6, 1000), numbers(6), None, 1, -100), "nll-forward",
         (6, 1000)),
        (lambda: record(aten.nll_loss2d_forward.default, meta(2, 9, 3, 5), numbers(2, 3, 5), None, 1, -100), "reduce",
         (1, 30, 1)),
        (lambda: record(aten._adaptive_avg_pool2d.default, meta(2, 16, 7, 7), [1, 1]), "reduce", (32, 49, 1)),
    ],
)  # fmt: skip
def test_work_bound_by_memory(make, family, sizes):
    task, *more = tasks_of(make())
    assert (task.family, task.numbers[: len(sizes)]) == (family, sizes)
    assert not more


def test_the_gradient_of_a_likelihood_is_zeros_and_one_number_a_row():
    op = record(aten.nll_loss_backward.default, meta(), meta(6, 1000), numbers(6), None, 1, -100, meta())
    assert [task.numbers for task in tasks_of(op)] == [(6000, 0, 24000), (6, 48, 24)]


def test_memory_bound_work_is_told_apart_by_width():
    assert [precision_of(dtype) for dtype in ("fp32", "fp64", "int64")] == ["fp32"] * 3
    assert [precision_of(dtype) for dtype in ("bf16", "fp16", "bool", "uint8", "fp8_e4m3")] == ["bf16"] * 5


def called(name: str) -> Op | None:
    """A call of an aten op, if one can be made up."""
    try:
        op = CALLS[name]() if name in CALLS else call_by_schema(name)
        return replace(op, cost=cost_of(op, {}))
    except (AssertionError, RooflightError):
        return None


def test_every_op_that_has_a_formula_is_tasks_and_matrix_work_is_matrix_tasks():
    seen = 0
    for name in sorted(name.removeprefix("aten::") for name in FORMULAS.names()):
        if not hasattr(aten, name) or (name == "_fused_rms_norm" and VERSION < (2, 11)):
            continue  # of another version of torch
        op = called(name)
        if op is None or op.cost is None:
            continue
        seen += 1
        tasks = tasks_of(op)
        for family, precision, found in tasks:
            assert len(found) == len(FAMILIES[family]), name
            assert all(type(number) is int and number >= 0 for number in found), name
            assert precision in (*PRECISIONS, "fp64"), name
        if op.cost.macs:
            assert any(task.family.startswith(("gemm", "conv-", "attention-")) for task in tasks), name
    assert seen > 600


def test_matrix_work_without_a_description_is_a_product_of_as_many_flops():
    op = record(aten._trilinear.default, meta(2, 3, 1), meta(2, 3, 5), meta(2, 1, 5), [], [], [], [1])
    assert [task.family for task in tasks_of(op)] != ["gemm"]  # nothing is known of its FLOPs
    op = replace(op, outputs=(Tensor(9, (4, 8), "fp32"),), cost=Cost("a test", macs=4 * 8 * 16))
    assert tasks_of(op) == [Task("gemm", "fp32", (1, 4, 8, 16, 0, 1, 0))]


@pytest.mark.parametrize(
    ("layer", "numbers"),
    [
        # gates, steps, samples, inputs, hidden, layers, directions
        (nn.LSTM(16, 32), (4, 5, 4, 16, 32, 1, 1)),
        (nn.GRU(16, 32, num_layers=2, bidirectional=True), (3, 5, 4, 16, 32, 2, 2)),
        (nn.RNN(16, 32, num_layers=3), (1, 5, 4, 16, 32, 3, 1)),
    ],
)
def test_a_recurrent_layer_is_one_work_with_all_its_flops(layer, numbers):
    ledger = train(First(layer), meta(5, 4, 16), loss="mse", optimizer="sgd")
    forward, backward = (op for op in ledger.ops if "_cudnn_rnn" in op.name)
    for op, way in ((forward, "forward"), (backward, "backward")):
        (task,) = tasks_of(op)
        assert task == Task(f"recurrent-{way}", "tf32", numbers)
        assert matrix_flops(task.family, columns(task.family, rows_of([task], np.float64))) == op.cost.flops


def test_a_recurrent_layer_with_a_projection_has_no_more_flops_than_it_does():
    ledger = infer(First(nn.LSTM(32, 512, num_layers=2, proj_size=64)), meta(5, 4, 32))
    (op,) = (op for op in ledger.ops if "_cudnn_rnn" in op.name)
    (task,) = tasks_of(op)
    flops = matrix_flops(task.family, columns(task.family, rows_of([task], np.float64)))[0]
    assert 0.95 * op.cost.flops < flops <= op.cost.flops and is_guess(op)


def test_gradients_of_frozen_recurrent_weights_are_as_much_work_as_forward():
    layer = First(nn.GRU(16, 32)).requires_grad_(False)
    ledger = train(nn.Sequential(nn.Linear(16, 16), layer), meta(5, 4, 16), loss="mse", optimizer="sgd")
    backward = next(op for op in ledger.ops if "_cudnn_rnn_backward" in op.name)
    assert [task.family for task in tasks_of(backward)] == ["recurrent-forward"]


def test_what_a_recurrent_case_calls_runs(cpu_pool, one_thread):
    for case in islice(recurrent_cases("fp32", 1e9, 3, 3e-3), 4):
        cpu_pool.reset()
        result = case.make(cpu_pool)()
        _, steps, samples, _, hidden, layers, directions = case.task.numbers
        if case.task.family.endswith("forward"):
            assert result.shape == (steps, samples, hidden * directions)
        else:
            assert len(result) == 4 * layers * directions  # two weights and two biases each


def test_a_volume_and_its_gradients_are_a_family_of_their_own():
    model = nn.Sequential(nn.Conv3d(4, 8, 1, bias=False), nn.Conv3d(8, 16, 3, padding=1, bias=False))
    ledger = train(model, meta(2, 4, 5, 6, 7), loss="mse", optimizer="sgd", tf32=False)
    convolved = [op for op in ledger.ops if "convolution" in op.packet]
    # five slices of six rows are one picture of thirty, kernels of 3 x 3 x 3 one of 9 x 3
    numbers = (2, 8, 30, 7, 16, 9, 3, 1, 1, 1, 1, 0, 30, 7)
    assert Task("conv3d-forward", "fp32", numbers) in tasks_of(convolved[1])
    assert tasks_of(convolved[2]) == [Task("conv3d-dgrad", "fp32", numbers), Task("conv3d-wgrad", "fp32", numbers)]


@pytest.mark.parametrize(
    ("call", "shape", "families"),
    [
        (lambda x: torch.linalg.vector_norm(x, dim=1), (6, 40), ["reduce-norm"]),
        (lambda x: x.max(1), (6, 40), ["reduce-index"]),
        (lambda x: x.argmin(0), (6, 40), ["reduce-index"]),
        (lambda x: x.amax(1), (6, 40), ["reduce"]),
        (lambda x: x.cumsum(1), (6, 40), ["scan"]),
        (lambda x: nn.functional.max_pool3d(x, 2), (1, 3, 4, 6, 8), ["max-pool3d-forward"]),
        (lambda x: nn.functional.avg_pool3d(x, 2), (1, 3, 4, 6, 8), ["avg-pool3d-forward"]),
        (lambda x: nn.functional.huber_loss(x, x), (6, 40), ["plain", "reduce"]),
        (lambda x: nn.functional.huber_loss(x, x, reduction="none"), (6, 40), ["plain"]),
        (lambda x: nn.functional.nll_loss(x, torch.zeros(6, dtype=torch.int64, device=x.device)), (6, 40), ["nll-forward"]),
        (lambda x: x.logsumexp(1), (6, 40),
         ["reduce", "plain", "plain", "plain", "broadcast", "math", "reduce", "math", "plain"]),
    ],
)  # fmt: skip
def test_works_with_kernels_of_their_own(call, shape, families):
    ledger = infer(_Calling(call), meta(*shape))
    assert [task.family for op in ledger.ops for task in tasks_of(op) if "zeros" not in op.packet] == families


class _Calling(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def test_of_a_scan_and_of_a_pool_the_sizes():
    (scan,) = tasks_of(record(aten.cumsum.default, meta(6, 40, 3), 1))
    assert scan == Task("scan", "fp32", (18, 40, 0))  # along a middle axis: elements of a row lie apart
    (pool,) = tasks_of(record(aten.avg_pool3d.default, meta(2, 3, 4, 6, 8), [2, 2, 2]))
    assert pool == Task("avg-pool3d-forward", "fp32", (6, 4 * 6, 8, 2, 2, 2 * 3 * 4, 0))


@needs_torch(2, 11, why="it has no such operator on GPUs")
def test_a_fused_norm_is_no_optimizer():
    op = record(aten._fused_rms_norm.default, meta(4, 64), [64], meta(64), 1e-5)
    assert tasks_of(op) == [Task("layer-norm-forward", "fp32", (4, 64))]


# --- whole models ---

MODELS: list[tuple[str, ModelSize]] = [
    ("resnet18", {}),
    ("googlenet", {}),
    ("gpt2", {"seq": 32, "overrides": {"n_layer": "2"}}),
    ("transformer", {}),
    ("distilbert-mlm", {}),
    ("vit-b-16", {"overrides": {"num_layers": "2"}}),
]


@pytest.fixture(scope="module")
def ledgers() -> list[Ledger]:
    return [rooflight.estimate(name, batch=3, step="train", dtype=dtype, **options)
            for name, options in MODELS for dtype in ("fp32", "bf16")]  # fmt: skip


def test_every_op_of_a_model_is_tasks_that_calibration_knows(ledgers):
    for ledger in ledgers:
        for op in ledger.ops:
            for family, precision, found in tasks_of(op):
                assert len(found) == len(FAMILIES[family])
                assert all(type(number) is int and number >= 0 for number in found), (op.name, found)
                assert precision in PRECISIONS


_STRANGE = {"aten::sub": "positions of tokens are compared with themselves, one further: the same memory twice"}


def test_tasks_bound_by_memory_move_the_bytes_that_the_formulas_say(ledgers):
    told: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for ledger in ledgers:
        for op in ledger.ops:
            tasks = tasks_of(op)
            if not tasks or op.cost is None or not all("bytes_read" in FAMILIES[task.family] for task in tasks):
                continue
            told[op.packet] += sum(task_bytes(task.family, columns(task.family, np.array([task.numbers], dtype=float)),
                                              task.precision)[0] for task in tasks)  # fmt: skip
            counted[op.packet] += (op.cost.bytes_read or 0) + (op.cost.bytes_written or 0)
    assert len(told) > 25
    for packet, nbytes in told.items():
        if packet not in _STRANGE and "select_backward" not in packet and "slice_backward" not in packet:
            assert nbytes == pytest.approx(counted[packet], rel=0.02), packet
