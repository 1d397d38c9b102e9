"""Why ops on a CPU take longer than its roofs allow: by hand, and on steps that a shared machine measured."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from rooflight.analysis import cpu_causes, cpu_work
from rooflight.analysis.cause import account
from rooflight.analysis.comparison.why import Reasons
from rooflight.analysis.time_causes import explain_time
from rooflight.files import load
from rooflight.ledger import FORMAT_VERSION, Cost, Kernel, Ledger, Measurement, Op, Storage, Tensor, Value
from rooflight.machine import rates
from rooflight.summary.measured import Measured
from tests.fixtures.measured_ledgers import HEADER

DATA = Path(__file__).parents[1] / "data" / "cpu_versions"
FILES = sorted(DATA.glob("*.json.gz"))
RATES = {
    "peak.fp32": 200e9, "cores": 2, "threads": 2, "speed.avx512": 1, "speed.avx2": 0.5, "speed.scalar": 0.125,
    "product.fp32.1": 80e9, "product.fp32": 160e9, "copy.262144.1": 10e9, "copy.262144": 20e9,
    "call.aten::convolution": 10e-6, "call.aten::relu": 2e-6, "call.aten::mm": 3e-6, "page_fault": 1e-6,
    "element.aten::exp.1": 1e-9, "call.aten::exp": 2e-6,
}  # fmt: skip
SIZES = "mb1_ic16oc8_ih10oh10kh1sh1dh0ph0_iw10ow10kw1sw1dw0pw0"


def tensor(storage, *shape):
    return Tensor(storage, shape, "fp32")


def ledger_of(name, args, outputs, cost, kernels=(), rates=None, mutates=(), **measured):
    op = Op(
        index=0, phase="forward", module="", call=0, name=name, ordinal=0, precision="fp32", args=args,
        outputs=outputs, mutates=mutates, cost=Cost("by hand", **cost),
    )  # fmt: skip
    tensors = {t.storage: t for t in (*(a for a in args.values() if isinstance(a, Tensor)), *outputs)}
    quantities = {key: Value(value, "by hand") for key, value in {"host_time_s": 1e-3, **measured}.items()}
    values = {key: Value(value, "by hand") for key, value in {**RATES, **(rates or {})}.items() if value is not None}
    return Ledger(
        format_version=FORMAT_VERSION,
        header=msgspec.structs.replace(HEADER, device="a CPU", rates=values),
        modules=(),
        storages=tuple(Storage(id=key, nbytes=t.nbytes, category="activation") for key, t in tensors.items()),
        ops=(op,),
        kernels=tuple(kernels),
        measurements=(Measurement(scope="op", ops=(0,), quantities=quantities),),
    )


def convolution(kernels=(), **more):
    """16 to 8 channels, 1x1, over 10 x 10: 2 * 16 * 8 * 100 = 25,600 FLOPs, and tensors of 10,112 bytes."""
    args = {"input": tensor(1, 1, 16, 10, 10), "weight": tensor(2, 8, 16, 1, 1)}
    cost = {"macs": 12_800, "flops": 25_600, "other_flops": 0, "bytes_read": 6_912, "bytes_written": 3_200}
    return ledger_of("aten::convolution", args, (tensor(3, 1, 8, 10, 10),), cost, kernels, **more)


def primitive(name, sizes=SIZES, time_s=0.0):
    return Kernel(name=name, ops=(0,), kind="primitive", time_s=time_s, label=sizes)


def causes(ledger):
    (row,) = explain_time(ledger)
    assert row.asked + math.fsum(cause.amount for cause in row.causes) + row.unexplained == pytest.approx(row.measured)
    return row.asked, {cause.name: cause.amount for cause in row.computed}


# No bytes to speak of, so that FLOPs decide.
FAST_MEMORY = {"copy.262144.1": 1e15, "copy.262144": 1e15}


def test_no_rates_no_causes():
    assert explain_time(msgspec.structs.replace(convolution(), header=HEADER)) == []


def test_the_roof_is_the_longer_of_flops_and_bytes():
    least, _ = causes(convolution())
    assert least == pytest.approx(10_112 / 20e9)
    least, found = causes(convolution(rates=FAST_MEMORY))
    assert least == pytest.approx(25_600 / 200e9)
    assert found[cpu_work.SUSTAINED] == pytest.approx(25_600 / 160e9 - 25_600 / 200e9)
    assert found[cpu_causes.CALL] == pytest.approx(10e-6)


def test_fewer_threads_than_cores():
    _, found = causes(convolution(rates={**FAST_MEMORY, "threads": 1}))
    assert found[cpu_work.THREADS] == pytest.approx(25_600 / 100e9 - 25_600 / 200e9)
    assert found[cpu_work.SUSTAINED] == pytest.approx(25_600 / 80e9 - 25_600 / 100e9)


def test_reorders_take_what_their_clock_says():
    kernels = [
        primitive("reorder jit:uni f32 abcd>aBcd16b", "1x16x10x10", 4e-6),
        primitive("convolution jit:avx512_core forward_training f32 aBcd16b+ABcd16b8a>aBcd8b", time_s=9e-6),
        primitive("reorder jit:uni f32 aBcd8b>abcd", "1x8x10x10", 2e-6),
    ]
    (row,) = explain_time(convolution(kernels))
    (reorders,) = [cause for cause in row.causes if cause.name == cpu_causes.REORDERS]
    assert reorders.amount == pytest.approx(6e-6)
    assert reorders.evidence == "the clock of 2, the longest abcd to aBcd16b, 1x16x10x10"


def test_vectors_that_are_not_full_and_narrow_ones():
    """8 channels in vectors of 16 are twice the work; AVX2 is half as fast here."""
    padded = primitive("convolution jit:avx512_core forward_training f32 aBcd16b+ABcd16b16a>aBcd16b")
    _, found = causes(convolution([padded], rates=FAST_MEMORY))
    assert found[cpu_work.PADDED] == pytest.approx(25_600 / 160e9)
    narrow = primitive("convolution jit:avx2 forward_training f32 aBcd8b+ABcd8b8a>aBcd8b")
    _, found = causes(convolution([narrow], rates=FAST_MEMORY))
    assert found[cpu_work.NARROW] == pytest.approx(25_600 / 160e9)
    assert cpu_work.PADDED not in found
    plain = primitive("convolution ref:any forward_training f32 abcd+abcd>abcd")
    _, found = causes(convolution([plain], rates=FAST_MEMORY))
    assert found[cpu_work.NARROW] == pytest.approx(7 * 25_600 / 160e9)


def test_an_unfolded_input_is_written_and_read_where_no_primitive_ran():
    _, found = causes(convolution(workspace_bytes=1_000_000))
    assert found[cpu_work.UNFOLDED] == pytest.approx(2 * 1_000_000 / 20e9)
    by_onednn = [primitive("convolution jit:avx512_core forward_training f32 abcd+abcd>abcd")]
    _, found = causes(convolution(by_onednn, workspace_bytes=1_000_000))
    assert cpu_work.UNFOLDED not in found


def elements(count, name="aten::exp", **more):
    cost = {"macs": 0, "flops": 0, "other_flops": count, "bytes_read": 4 * count, "bytes_written": 4 * count}
    return ledger_of(name, {"self": tensor(1, count)}, (tensor(2, count),), cost, **more)


def test_few_elements_are_left_to_one_thread():
    least, found = causes(elements(32_768, "aten::relu"))
    assert least == pytest.approx(8 * 32_768 / 20e9)
    assert found[cpu_work.ALONE] == pytest.approx(8 * 32_768 / 20e9)  # at half the speed
    _, found = causes(elements(32_769, "aten::relu"))
    assert cpu_work.ALONE not in found


def test_instructions_of_an_op_beyond_its_bytes():
    """A million exponentials of 1 ns by two threads are 500 µs; the bytes alone are 400."""
    least, found = causes(elements(1_000_000))
    assert least == pytest.approx(400e-6)
    assert found[cpu_work.ELEMENTS] == pytest.approx(100e-6)


def test_what_the_kernel_counted():
    _, found = causes(elements(1000, page_faults=250, core_wait_s=3e-3))
    assert found[cpu_causes.FAULTS] == pytest.approx(250e-6)
    assert found[cpu_causes.WAITED] == pytest.approx(3e-3)


def test_what_was_touched_long_ago_comes_from_further_away():
    """The step goes through 20 MB: its input was touched that long ago, in the step before."""
    levels = {"copy.262144.1": 10e9, "copy.262144": 40e9, "copy.16777216": 10e9}
    ledger = elements(2_500_000, "aten::relu", rates=levels)
    before = msgspec.structs.replace(ledger.ops[0], args={"self": tensor(3, 16)}, outputs=(tensor(4, 16),))
    ledger = msgspec.structs.replace(ledger, ops=(ledger.ops[0], msgspec.structs.replace(before, index=1)))
    assert causes(ledger)[0] == pytest.approx(20e6 / 10e9)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_measured_step_is_accounted_for_up_to_its_wall_time(path):
    ledger = load(path)
    rows = explain_time(ledger)
    assert len(rows) > 80
    assert all(row.asked >= 0 for row in rows)
    of_ops = account(rows)
    of_step, _ = Reasons(Measured(ledger)).whole("time")
    wall = next(row.quantities["wall_time_s"].value for row in ledger.measurements if row.scope == "step")
    assert of_step.measured == wall
    told = math.fsum(cause.amount for cause in of_step.causes)
    assert of_step.asked + told + of_step.unexplained == pytest.approx(wall)
    assert {cause.name for cause in of_ops.causes} >= {cpu_causes.REORDERS, cpu_causes.CALL}


def test_a_cause_is_never_made_from_the_time_it_explains():
    ledger = load(FILES[0])
    rows = explain_time(ledger)
    longer = [
        msgspec.structs.replace(
            row,
            quantities={
                name: msgspec.structs.replace(value, value=2 * value.value) if name == "host_time_s" else value
                for name, value in row.quantities.items()
            },
        )
        for row in ledger.measurements
    ]
    again = explain_time(msgspec.structs.replace(ledger, measurements=tuple(longer)))
    assert [(row.asked, row.causes) for row in again] == [(row.asked, row.causes) for row in rows]
    assert [row.measured for row in again] == [2 * row.measured for row in rows]


def test_every_cause_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text()
    names = [
        value
        for module in (cpu_causes, cpu_work)
        for name, value in vars(module).items()
        if name.isupper()
        and isinstance(value, str)
        and name not in ("ROOF", "UNVECTORED")
        # The names of rates are no causes.
        and value not in vars(rates).values()
    ]
    assert len(names) >= 15
    assert [name for name in names if f"| {name} |" not in page and name != cpu_causes.WATCHED] == []


def test_windows_of_a_pooling_layer_end_at_the_border():
    """3 x 3 at every place of 7 x 7, one row around it: 3 a place less one at either end, 19 in each direction."""
    values = {"self": tensor(1, 1, 4, 7, 7), "kernel_size": [3, 3], "stride": [1, 1], "padding": [1, 1]}
    cost = {"macs": 0, "flops": 0, "other_flops": 0, "bytes_read": 784, "bytes_written": 784}
    pooled = "aten::max_pool2d_with_indices"
    rates = {f"element.{pooled}.1": 1e-6, "threads": 1}
    least, found = causes(ledger_of(pooled, values, (tensor(2, 1, 4, 7, 7),), cost, rates=rates))
    assert least + found[cpu_work.ELEMENTS] == pytest.approx(4 * 19 * 19 * 1e-6)


def test_a_look_up_goes_through_what_it_finds():
    """Eight rows of a table of 10 MB: no more of it is touched than comes out."""
    values = {"weight": tensor(1, 10_000, 256), "indices": Tensor(2, (8,), "int64")}
    cost = {"macs": 0, "flops": 0, "other_flops": 0, "bytes_read": 8_256, "bytes_written": 8_192}
    rates = {"element.aten::embedding.1": 1e-9, "threads": 1}
    least, found = causes(ledger_of("aten::embedding", values, (tensor(3, 8, 256),), cost, rates=rates))
    assert least + found[cpu_work.ELEMENTS] == pytest.approx(8 * 256 * 1e-9)
