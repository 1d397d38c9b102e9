"""What a processor does at best, as a ledger keeps it: by hand."""

from __future__ import annotations

import pytest

from rooflight.ledger import Value
from rooflight.machine import Machine
from rooflight.machine.rates import CpuRates
from rooflight.machine.recognise import vector_speeds


def rates(**values):
    return CpuRates({name.replace("__", "."): Value(value, "by hand") for name, value in values.items()})


def test_a_virtual_machine_may_run_above_the_clock_that_it_tells():
    told = {"peak__fp32": 160e9, "cores": 2, "threads": 2}
    assert rates(**told, product__fp32__1=100e9, product__fp32=180e9).roof("fp32") == 200e9  # two such cores
    assert rates(**told, product__fp32__1=60e9, product__fp32=110e9).roof("fp32") == 160e9
    assert rates(**told).roof("bf16") is None


def test_all_threads_are_no_slower_than_one():
    found = rates(threads=2, product__fp32__1=100e9, product__fp32=70e9, copy__1024__1=9e9, copy__1024=3e9)
    assert found.product("fp32") == 100e9
    assert found.bandwidth(1) == found.bandwidth(10**9) == 9e9


def test_between_two_sizes_by_the_logarithm():
    found = rates(threads=1, copy__1024__1=80e9, copy__4096__1=20e9)
    assert found.bandwidth(2048) == pytest.approx(40e9)  # halfway from 2^10 to 2^12, and from 80 to 20
    assert found.bandwidth(100) == 80e9
    assert found.bandwidth(10**6) == 20e9
    assert rates(threads=1).bandwidth(2048) is None


def test_a_call_behind_data_takes_longer():
    values = {"call.aten::relu": 2e-6, "call-behind-4194304.aten::relu": 4e-6, "call-behind-67108864.aten::relu": 16e-6}
    found = CpuRates({name: Value(value, "by hand") for name, value in values.items()})
    assert found.call_s("aten::relu") == 2e-6
    assert found.call_s("aten::relu_") == 2e-6  # in place
    assert found.call_s("aten::relu", 2**20) == pytest.approx(2e-6 * 2**0.5)  # halfway from 2^18, by the logarithm
    assert found.call_s("aten::relu", 2**22) == pytest.approx(4e-6)
    assert found.call_s("aten::relu", 2**30) == 16e-6
    assert found.call_s("aten::unheard_of") == 2e-6
    assert found.any_call_s(2**30) == pytest.approx(14e-6)


@pytest.mark.parametrize(
    ("vendor", "family", "name", "flags", "speeds"),
    [
        # Zen 4 does AVX-512 in two halves: AVX2 is as fast.
        ("AuthenticAMD", 25, "AMD EPYC", "sse2 avx avx2 fma avx512f", (1, 1, 0.5, 0.25, 0.125)),
        ("GenuineIntel", 6, "Xeon", "sse2 avx avx2 fma avx512f", (1, 0.5, 0.25, 0.125, 0.0625)),
    ],
)
def test_how_fast_narrower_vectors_are(tmp_path, vendor, family, name, flags, speeds):
    info = f"processor : 0\nvendor_id : {vendor}\ncpu family : {family}\nmodel name : {name}\nflags : {flags}\n"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(info)
    found = vector_speeds(Machine(tmp_path))
    assert tuple(found[kind] for kind in ("avx512", "avx2", "avx", "sse", "scalar")) == speeds
