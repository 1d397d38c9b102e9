"""What names and sizes of oneDNN's primitives say: of lines that torch 2.13 printed, by hand."""

from __future__ import annotations

import pytest

from rooflight.ops.primitive_names import primitive_of

FIRST = "mb2_ic3oc64_ih224oh112kh7sh2dh0ph3_iw224ow112kw7sw2dw0pw3"
DEPTHWISE = "g3mb2_ic3oc3_ih56oh56kh7sh1dh0ph3_iw56ow56kw7sw1dw0pw3"
POINT = "mb2_ic20oc44_ih28oh28kh1sh1dh0ph0_iw28ow28kw1sw1dw0pw0"


def convolution(sizes, formats, direction="forward_training", implementation="jit:avx512_core"):
    primitive = primitive_of(f"convolution {implementation} {direction} f32 {formats}", sizes)
    assert primitive is not None
    return primitive


@pytest.mark.parametrize(
    ("implementation", "instructions"),
    [
        ("jit:avx512_core", "avx512"),
        ("brgconv:avx10_1_512_amx", "amx"),
        ("brg_matmul:avx512_core_bf16", "avx512"),
        ("jit_dw:avx2", "avx2"),
        ("jit:sse41", "sse"),
        ("ref:any", "scalar"),
        ("x64:gemm:jit", None),  # a product inside, of which nothing more is told
        ("jit:uni", None),
    ],
)
def test_the_instructions_of_an_implementation(implementation, instructions):
    assert convolution(POINT, "ab+ab>ab", implementation=implementation).instructions == instructions


def test_the_flops_of_a_convolution():
    assert convolution(FIRST, "").useful_flops == 2 * 2 * 3 * 64 * 112 * 112 * 49
    assert convolution(DEPTHWISE, "").useful_flops == 2 * 2 * 3 * 56 * 56 * 49
    assert primitive_of("reorder jit:uni f32 abcd>Acdb16a", "64x3x7x7").useful_flops is None


@pytest.mark.parametrize(
    ("sizes", "formats", "direction", "times"),
    [
        (FIRST, "abcd+Acdb16a>aBcd16b", "forward_training", 1),  # 64 fill four vectors; 3 are gone through one by one
        (POINT, "aBcd16b+ABcd16b16a>aBcd16b", "forward_training", 48 / 44),
        (POINT, "aBcd16b+ABcd16a16b>aBcd16b", "backward_data", 32 / 20),
        (DEPTHWISE, "aBcd16b+Abcde16a>aBcd16b", "forward_training", 16 / 3),
        (POINT, "abcd+abcd>abcd", "forward_training", 1),
        (POINT, "", "forward_training", 1),
    ],
)
def test_vectors_that_are_not_full(sizes, formats, direction, times):
    assert convolution(sizes, formats, direction).padded == pytest.approx(times)


def test_what_is_no_primitive():
    assert primitive_of("void cudnn::ops::nchwToNhwcKernel") is None
    assert primitive_of("") is None


def test_types_are_no_formats():
    assert primitive_of("reorder jit:uni f32>bf16 abcd>aBcd16b").formats == "abcd>aBcd16b"
    assert primitive_of("matmul brg:avx512_core f32>bf16").formats == ""
