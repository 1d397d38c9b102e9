"""Works out of ledgers, derived by hand: which kernels are whose, and what is left out."""

from __future__ import annotations

import pytest

from rooflight.calibration.recorded_points import (
    COMPILED,
    NO_TASK,
    NOT_SPLIT,
    SHARED,
    UNEVEN,
    timed_tasks,
)
from rooflight.files import load
from rooflight.ledger import FORMAT_VERSION, Arg, Header, Kernel, Ledger, Op, Tensor
from rooflight.ops.kernel_task import Task

DGRAD = "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1"
WGRAD = "sm90_xmma_wgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1"
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float>(int)"
TO_NCHW = "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float>(int)"
GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
SUM = "void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"


def tensor(*shape: int, dtype: str = "fp32") -> Tensor:
    return Tensor(0, shape, dtype)  # type: ignore[arg-type]


def op(index: int, name: str, args: dict[str, Arg], *outputs: Tensor, precision: str = "fp32") -> Op:
    return Op(index=index, phase="forward", module="", call=0, name=name, ordinal=index, kind="compute", precision=precision, args=args,
              outputs=outputs)  # fmt: skip


def kernel(name: str, start: float, time_us: float, *ops: int, kind: str = "kernel") -> Kernel:
    return Kernel(name=name, ops=ops, kind=kind, start_s=start, time_s=time_us * 1e-6)  # type: ignore[arg-type]


def ledger(ops: list[Op], kernels: list[Kernel], execution: str = "eager") -> Ledger:
    header = Header(rooflight="1", torch="2.11.0", model="m", step="infer", target="cuda", batch=1, dtype="fp32",
                    math=None, device="NVIDIA H200", execution=execution)  # type: ignore[arg-type]  # fmt: skip
    return Ledger(format_version=FORMAT_VERSION, header=header, ops=tuple(ops), kernels=tuple(kernels))


def mm(index: int, m: int = 512, n: int = 256, k: int = 1024) -> Op:
    return op(index, "aten::mm", {"self": tensor(m, k), "mat2": tensor(k, n)}, tensor(m, n))


def convolution_backward(*wanted: bool, kernel_size: tuple[int, int] = (3, 3), padding: tuple[int, int] = (1, 1)) -> Op:
    x, weight = tensor(8, 32, 28, 28), tensor(64, 32, *kernel_size)
    args: dict[str, Arg] = {
        "grad_output": tensor(8, 64, 28, 28), "input": x, "weight": weight, "bias_sizes": [64], "stride": [1, 1],
        "padding": list(padding), "dilation": [1, 1], "transposed": False, "output_padding": [0, 0], "groups": 1,
        "output_mask": list(wanted),
    }  # fmt: skip
    return op(0, "aten::convolution_backward", args, x, weight, tensor(64), precision="tf32")


NUMBERS = (8, 32, 28, 28, 64, 3, 3, 1, 1, 1, 1, 0)


def works(source: Ledger) -> list[tuple[str, float, int]]:
    timed, _ = timed_tasks(source, name="run.json")
    return [(work.task.family, round(work.seconds * 1e6, 3), work.kernels) for work in timed]


def test_an_op_of_one_task_is_one_work_with_the_sum_of_its_kernels():
    timed, left_out = timed_tasks(ledger([mm(0)], [kernel(GEMM, 0.0, 20, 0), kernel(SUM, 1.0, 3, 0)]), name="run.json")
    (work,) = timed
    assert work.task == Task("gemm", "fp32", (1, 512, 256, 1024, 0, 0, 0))
    assert work.seconds == pytest.approx(23e-6) and work.kernels == 2 and not left_out.reasons
    assert work.place == "op 0 of run.json (aten::mm)"


def test_a_fill_takes_time_and_is_no_kernel():
    assert works(ledger([mm(0)], [kernel("Memset (Device)", 0.0, 1, 0, kind="set"), kernel(GEMM, 1.0, 20, 0)])) == [
        ("gemm", 21.0, 1)
    ]


def test_gradients_are_told_apart_by_their_kernels_and_layouts_belong_to_the_product_they_serve():
    launched = [TO_NHWC, TO_NHWC, DGRAD, TO_NCHW, TO_NHWC, TO_NHWC, WGRAD, TO_NCHW, REDUCE]
    kernels = [kernel(name, place, 10**0 * 2**place, 0) for place, name in enumerate(launched)]
    source = ledger([convolution_backward(True, True, True)], kernels)
    # 1+2+4+8 for the input's gradient, 16+32+64+128 for the weight's, 256 for the bias's.
    assert works(source) == [("conv-dgrad", 15.0, 4), ("conv-wgrad", 240.0, 4), ("reduce", 256.0, 1)]
    assert {work.task.numbers for work in timed_tasks(source, name="")[0][:2]} == {NUMBERS}


def test_products_without_a_name_for_their_gradient_come_in_the_order_torch_makes_them():
    kernels = [kernel(GEMM, 0.0, 10, 0), kernel(GEMM, 1.0, 20, 0), kernel(SUM, 2.0, 4, 0)]
    assert works(ledger([convolution_backward(True, True, False)], kernels)) == [
        ("conv-dgrad", 10.0, 1),
        ("conv-wgrad", 24.0, 2),
    ]


def test_zeros_before_the_sum_of_a_bias_belong_to_it():
    kernels = [kernel(WGRAD, 0.0, 10, 0), kernel("Memset", 1.0, 1, 0, kind="set"), kernel(REDUCE, 2.0, 5, 0)]
    assert works(ledger([convolution_backward(False, True, True)], kernels)) == [
        ("conv-wgrad", 10.0, 1),
        ("reduce", 6.0, 1),
    ]


@pytest.mark.parametrize(
    "launched",
    [
        [GEMM],  # one product for two gradients
        [GEMM, GEMM, GEMM],  # three: any of them may be the second's first
        [WGRAD, DGRAD],  # not in torch's order: something else ran
        ["unknown_kernel_a", "unknown_kernel_b"],
    ],
)
def test_what_cannot_be_told_apart_is_left_out_and_counted(launched):
    kernels = [kernel(name, place, 10, 0) for place, name in enumerate(launched)]
    timed, left_out = timed_tasks(ledger([convolution_backward(True, True, False)], kernels), name="")
    assert not timed and left_out.reasons == {NOT_SPLIT: (1, pytest.approx(len(launched) * 10e-6))}


def test_a_bias_is_a_work_of_its_own_unless_it_is_fused():
    x, weight, out = tensor(8, 32, 28, 28), tensor(64, 32, 3, 3), tensor(8, 64, 28, 28)
    args: dict[str, Arg] = {"input": x, "weight": weight, "bias": tensor(64), "stride": [1, 1], "padding": [1, 1],
                            "dilation": [1, 1], "transposed": False, "groups": 1}  # fmt: skip
    one = op(0, "aten::convolution", args, out, precision="tf32")
    fprop = DGRAD.replace("dgrad", "fprop")
    assert works(ledger([one], [kernel(fprop, 0, 30, 0), kernel(POINTWISE, 1, 5, 0)])) == [
        ("conv-forward", 30.0, 1),
        ("broadcast", 5.0, 1),
    ]
    timed, left_out = timed_tasks(ledger([one], [kernel(fprop, 0, 30, 0)]), name="")
    assert not timed and list(left_out.reasons) == [NOT_SPLIT]


def test_kernels_of_several_ops_and_the_ops_that_share_them_give_nothing():
    kernels = [kernel(GEMM, 0, 10, 0), kernel("triton_fused", 1, 5, 0, 1), kernel(GEMM, 2, 20, 2), kernel("x", 3, 1)]
    timed, left_out = timed_tasks(ledger([mm(0), mm(1), mm(2, m=64)], kernels), name="")
    assert [work.task.numbers[1] for work in timed] == [64]
    # Both shared kernels, and the first op's own.
    assert left_out.reasons == {SHARED: (3, pytest.approx(16e-6))}


def test_a_compiled_step_gives_nothing():
    timed, left_out = timed_tasks(ledger([mm(0)], [kernel(GEMM, 0, 10, 0)], execution="compile"), name="")
    assert not timed and left_out.reasons == {COMPILED: (1, pytest.approx(10e-6))}


def test_what_no_family_is_like_and_what_no_row_can_hold_is_left_out():
    sort = op(0, "aten::sort", {"self": tensor(1000)}, tensor(1000), tensor(1000, dtype="int64"))
    uneven = convolution_backward(False, True, False, kernel_size=(3, 5), padding=(1, 1))
    for one, reason in ((sort, NO_TASK), (uneven, UNEVEN)):
        timed, left_out = timed_tasks(ledger([one], [kernel(WGRAD, 0, 10, 0)]), name="")
        assert not timed and list(left_out.reasons) == [reason]


def test_fused_layers_are_split_where_their_kernels_come_in_order():
    recorded = load("recorded:h200/transformer-infer-bf16")
    timed, left_out = timed_tasks(recorded, name="")
    assert not left_out.reasons
    assert sum(work.seconds for work in timed) == pytest.approx(sum(k.time_s or 0 for k in recorded.kernels))


@pytest.mark.parametrize("name", ["resnet50-train-fp32", "gpt2-train-bf16", "vgg19-train-bf16", "vit-b-16-train-bf16"])
def test_recordings_are_covered_whole(name):
    recorded = load(f"recorded:h200/{name}")
    timed, left_out = timed_tasks(recorded, name="")
    lost = sum(spent for _, spent in left_out.reasons.values())
    total = sum(kernel.time_s or 0 for kernel in recorded.kernels)
    assert sum(work.seconds for work in timed) + lost == pytest.approx(total)
    assert lost < 0.001 * total
