"""oneDNN's primitives: lines that torch 2.13 really printed, and convolutions really run."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rooflight.errors import CannotMeasure
from rooflight.ledger import Kernel
from rooflight.measurement.collectors.onednn import (
    PrimitiveCollector,
    kernels_of,
    parse_line,
    shortest,
    split,
)

MARK = b"rooflight_mark_0"
# Recorded from torch 2.13 (oneDNN 3.12) on a Xeon.
HEADER = """onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71049cd69a3df32adcccb623b12cd7baa22)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX10.1 and Intel AMX with bfloat16 and 8-bit integer support
onednn_verbose,v1,info,gpu,runtime:none
onednn_verbose,v1,info,graph,backend,0:dnnl_backend
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,attributes,auxiliary,problem_desc,exec_time
onednn_verbose,v1,graph,info,template:operation,engine,partition_id,partition_kind,op_names,data_formats,logical_tensors,fpmath_mode,implementation,backend,exec_time
"""
REORDER = "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 dst:f32:p:blocked:Acdb16a::f0,attr-scratchpad:user,,8x3x3x3,0.00488281"
FORWARD = "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src:f32:a:blocked:abcd::f0 wei:f32:ap:blocked:Acdb16a::f0 bia:f32:a:blocked:a::f0 dst:f32:ap:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,mb2_ic3oc8_ih32oh30kh3sh1dh0ph0_iw32ow30kw3sw1dw0pw0,0.164795"
BACKWARD = "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,backward_weights,src:f32:a:blocked:abcd::f0 wei:f32:ap:blocked:Acdb16a::f0 bia:undef::undef::: dst:f32:ap:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,mb2_ic3oc8_ih32oh30kh3sh1dh0ph0_iw32ow30kw3sw1dw0pw0,0.14209"

FORMATS = "abcd+Acdb16a>aBcd16b"
SIZES = "mb2_ic3oc8_ih32oh30kh3sh1dh0ph0_iw32ow30kw3sw1dw0pw0"


def test_recorded_lines_become_kernels_of_the_op_marked_before_them():
    text = (
        HEADER
        + f"{REORDER}\nrooflight_mark_0,7\n{FORWARD}\nrooflight_mark_0,\n{REORDER}\nrooflight_mark_0,12\n{BACKWARD}\n"
    )
    assert kernels_of(split(text.encode(), MARK)[0]) == (
        _primitive("reorder jit:uni f32 abcd>Acdb16a", (), 0.00488281e-3, "8x3x3x3"),
        _primitive(f"convolution jit:avx512_core forward_training f32 {FORMATS}", (7,), 0.164795e-3, SIZES),
        _primitive("reorder jit:uni f32 abcd>Acdb16a", (), 0.00488281e-3, "8x3x3x3"),
        _primitive(f"convolution jit:avx512_core backward_weights f32 {FORMATS}", (12,), 0.14209e-3, SIZES),
    )


def _primitive(name: str, ops: tuple[int, ...], time_s: float, sizes: str) -> Kernel:
    return Kernel(name=name, ops=ops, kind="primitive", time_s=time_s, label=sizes)


def test_primitives_of_several_runs_have_their_shortest_time():
    runs = [[_primitive("reorder", (3,), taken, "8x3")] for taken in (3e-6, 9e-3, 4e-6)]
    assert shortest(runs) == [_primitive("reorder", (3,), 3e-6, "8x3")]
    other = [_primitive("reorder", (4,), 1e-6, "8x3")]
    assert shortest([*runs, other]) == runs[0]  # not the same step: nothing to compare


def test_what_others_print_is_kept_byte_for_byte():
    output = b"50% \xffdone " + FORWARD.encode() + b"\nrooflight_mark_0,1\nepoch 1\n" + REORDER.encode() + b"\nlast"
    assert split(output, MARK)[1] == b"50% \xffdone epoch 1\nlast"
    # A process that died in the middle of a line leaves no line end.
    assert split(b"a\n" + REORDER.encode(), MARK)[1] == b"a\n"


@pytest.mark.parametrize("line", [*HEADER.splitlines(), "onednn_verbose,v1,graph,exec,cpu,100002,matmul_post_ops,x,,,,,dnnl_backend,0.1", "onednn_verbose,v1,primitive,create:cache_miss,cpu,reorder,jit:uni,undef,,,,8x3x3x3,0.04", "onednn_verbose,", "something else"])  # fmt: skip
def test_lines_on_other_things_are_passed_over(line):
    assert parse_line(line, 0) is None


def test_a_timestamp_may_come_first():
    stamped = REORDER.replace("v1,primitive", "v1,1736871829456.123,primitive")
    assert parse_line(stamped, 3) == parse_line(REORDER, 3)


@pytest.mark.parametrize(
    "line",
    [
        REORDER.replace(",0.00488281", ""),
        REORDER.replace("0.00488281", "soon"),
        REORDER.replace("0.00488281", "nan"),
        REORDER.replace("0.00488281", "-1"),
        REORDER + ",1",
        REORDER.replace("v1", "v2"),
        "onednn_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd:f0,,,8x3,0.1",  # oneDNN 2
        FORWARD[:120],
    ],
)
def test_a_broken_or_unknown_line_is_refused_in_one_line(line):
    with pytest.raises(CannotMeasure) as refused:
        parse_line(line, 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("memory", "types"),
    [
        ("src:f32::blocked:ab::f0 dst:bf16::blocked:ab::f0", "f32>bf16"),
        ("src_f32::blocked:ab::f0 dst_f32::blocked:ab::f0", "f32"),  # as oneDNN wrote it before
        ("src:bf16:a:blocked:ab::f0 wei:bf16:a:any:::f0 bia:undef::undef::: dst:bf16:a:blocked:ab::f0", "bf16"),
        ("src_layer:f32::blocked:abc::f0 wei_layer:f32:p:blocked:abcde::f0", "f32"),
        ("data:f8_e4m3::blocked:ab::f0", "f8_e4m3"),
        ("src:undef::undef:::", ""),
        ("", ""),
    ],
)
def test_the_types_of_the_data_are_named(memory, types):
    line = f"onednn_verbose,v1,primitive,exec,cpu,matmul,ref:any,undef,{memory},,,4x4:4x4,0.5"
    kernel = parse_line(line, None)
    assert kernel is not None
    assert kernel.name.partition(" ab")[0] == f"matmul ref:any {types}".rstrip()


@pytest.mark.parametrize(
    ("memory", "formats"),
    [
        ("src:f32::blocked:ab::f0 dst:bf16::blocked:BA16a16b4a::f0", " ab>BA16a16b4a"),
        ("src_f32::blocked:ab::f0 dst_f32::blocked:ab::f0", " ab>ab"),
        ("src:f32:a:blocked:ab::f0 wei:f32:a:any:::f0 bia:f32::blocked:a::f0 dst:f32:a:blocked:ab::f0", " ab>ab"),
        ("data:f32::blocked:ab::f0", ""),
    ],
)
def test_the_formats_of_the_data_are_named(memory, formats):
    kernel = parse_line(f"onednn_verbose,v1,primitive,exec,cpu,reorder,ref:any,undef,{memory},,,4x4,0.5", None)
    assert kernel is not None
    assert kernel.name.replace("f32>bf16", "f32") == f"reorder ref:any f32{formats}"
    assert kernel.label == "4x4"


@given(st.lists(st.one_of(st.integers(0, 99), st.none(), st.binary(max_size=20).filter(lambda b: b"," not in b))))
def test_marks_and_text_can_be_taken_apart_again(parts):
    """Numbers are marks, each with one primitive after it; bytes are somebody's text."""
    output, text, ops = b"", b"", []
    for part in parts:
        if isinstance(part, bytes):
            output, text = output + part, text + part
        else:
            output += MARK + b"," + (b"" if part is None else str(part).encode()) + b"\n" + REORDER.encode() + b"\n"
            ops.append(part)
    lines, others = split(output, MARK)
    assert [op for op, _ in lines] == ops
    assert others == text


@given(st.text(max_size=200))
def test_no_line_is_worse_than_refused(text):
    for line in (text, "onednn_verbose," + text, "onednn_verbose,v1,primitive,exec," + text):
        try:
            kernel = parse_line(line, 1)
        except CannotMeasure:
            continue
        assert kernel is None or kernel.time_s is not None


class Marking(TorchDispatchMode):
    def __init__(self, primitives):
        super().__init__()
        self.names: list[str] = []
        self._primitives = primitives

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._primitives.mark(len(self.names))
        self.names.append(str(func))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._primitives.mark(None)


@pytest.fixture
def convolution():
    weight, bias = torch.randn(8, 3, 3, 3, requires_grad=True), torch.randn(8)
    return lambda image: F.conv2d(image, weight, bias)


needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


@needs_onednn
def test_primitives_belong_to_the_ops_that_ran_them_in_backward_too(convolution, capfd):
    primitives = PrimitiveCollector()
    image = torch.randn(2, 3, 32, 32)
    with primitives, Marking(primitives) as mode:
        convolution(image).relu().sum().backward()
        _ = torch.exp(image)
    assert primitives.reason is None
    by_op = {name: [k for k in primitives.kernels() if k.ops == (i,)] for i, name in enumerate(mode.names)}
    assert sum(len(kernels) for kernels in by_op.values()) == len(primitives.kernels())
    (forward,) = (k for k in by_op["aten.convolution.default"] if k.name.startswith("convolution"))
    assert " forward_training f32" in forward.name
    (backward,) = (k for k in by_op["aten.convolution_backward.default"] if k.name.startswith("convolution"))
    assert " backward_weights f32" in backward.name  # the image needs no gradient
    assert all(k.kind == "primitive" and k.time_s is not None and k.time_s >= 0 for k in primitives.kernels())
    assert by_op["aten.exp.default"] == by_op["aten.sum.default"] == []
    assert capfd.readouterr().out == ""


@needs_onednn
def test_the_users_output_is_passed_on_in_its_order(convolution, capfd):
    primitives = PrimitiveCollector()
    image = torch.randn(2, 3, 32, 32)
    with primitives:
        sys.stdout.write("from Python, ")
        sys.stdout.flush()
        primitives.mark(0)
        convolution(image)
        os.write(1, b"from the system\n")
        ctypes.CDLL(None).puts(b"from C")
        primitives.mark(1)
        convolution(image)
        os.write(1, b"\xff\xfe last\n")
    sys.stdout.write("after\n")
    sys.stdout.flush()
    out = os.fsencode(capfd.readouterr().out)
    assert out.replace(b"\xef\xbf\xbd", b"?").endswith(b" last\nafter\n")
    assert out.startswith(b"from Python, from the system\nfrom C\n")
    assert b"onednn_verbose" not in out and b"rooflight_mark" not in out
    assert [k.ops for k in primitives.kernels() if k.name.startswith("convolution")] == [(0,), (1,)]


@needs_onednn
def test_a_step_that_raises_leaves_standard_output_as_it_was(convolution, capfd):
    primitives = PrimitiveCollector()
    files = os.listdir("/proc/self/fd") if sys.platform == "linux" else []

    def step():
        sys.stdout.write("before the error\n")
        convolution(torch.randn(2, 3, 32, 32))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), primitives:
        step()
    assert capfd.readouterr().out == "before the error\n"
    assert len(primitives.kernels()) >= 1
    assert files == (os.listdir("/proc/self/fd") if sys.platform == "linux" else [])
    # oneDNN is silent again, and a mark outside is nothing.
    convolution(torch.randn(2, 3, 32, 32))
    primitives.mark(3)
    assert capfd.readouterr().out == ""


@needs_onednn
def test_entered_again_it_holds_the_new_primitives_only(convolution):
    primitives = PrimitiveCollector()
    with primitives:
        convolution(torch.randn(2, 3, 32, 32))
    assert primitives.kernels()
    with primitives:
        _ = torch.exp(torch.randn(4))
    assert primitives.kernels() == []
    assert primitives.reason is None


@needs_onednn
@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # `flags` sets every flag, that one too
def test_with_onednn_switched_off_it_says_so(convolution):
    with torch.backends.mkldnn.flags(enabled=False):
        primitives = PrimitiveCollector()
        with primitives:
            primitives.mark(0)
            convolution(torch.randn(2, 3, 32, 32))
    assert primitives.kernels() == []
    assert primitives.reason is not None
    assert "mkldnn.enabled" in primitives.reason


@needs_onednn
def test_a_closed_standard_output_is_no_crash():
    program = (
        "import os, sys; os.close(1)\n"
        "from rooflight.measurement.collectors.onednn import PrimitiveCollector\n"
        "p = PrimitiveCollector()\n"
        "with p: p.mark(0)\n"
        "print(p.reason, p.kernels(), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr.startswith("standard output is closed")
    assert done.stderr.endswith(" []\n")
