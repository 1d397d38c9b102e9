"""FLOP counters of CPUs: encodings and arithmetic by hand, the system calls with events that every Linux has."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import CannotMeasure
from rooflight.machine import cpu_list
from rooflight.measurement.collectors import perf_events
from rooflight.measurement.collectors.perf_events import (
    CpuModel,
    FlopCounters,
    PerfCounters,
    PerfEvent,
    PerfSample,
    decode,
    events_of,
    growth,
)

SAPPHIRE_RAPIDS = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu sse2 avx avx2 avx512f amx_bf16

processor\t: 1
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 1
"""


def intel(model, *flags):
    return CpuModel("GenuineIntel", 6, model, frozenset(flags))


def amd(family, model):
    return CpuModel("AuthenticAMD", family, model, frozenset())


def test_the_first_processor_of_cpuinfo_is_read():
    assert perf_events.parse_cpuinfo(SAPPHIRE_RAPIDS) == CpuModel(
        "GenuineIntel", 6, 143, frozenset({"fpu", "sse2", "avx", "avx2", "avx512f", "amx_bf16"})
    )
    assert perf_events.parse_cpuinfo("") == CpuModel("", 0, 0, frozenset())
    # An ARM's cpuinfo has none of these lines.
    assert events_of(perf_events.parse_cpuinfo("processor\t: 0\nCPU part\t: 0xd40\n")) == ()


def test_intel_counts_lanes_and_the_hardware_counts_an_fma_twice():
    events = events_of(perf_events.parse_cpuinfo(SAPPHIRE_RAPIDS))
    assert {event.config for event in events} == {
        0x01C7, 0x02C7, 0x04C7, 0x08C7, 0x10C7, 0x20C7, 0x40C7, 0x80C7,
    }  # fmt: skip
    # 1000 FMAs of 512-bit vectors: the counter says 2000, each for 16 floats or 8 doubles.
    weight = {event.config: event.weight for event in events}
    assert 2000 * weight[0x80C7] == 2 * 1000 * 16
    assert 2000 * weight[0x40C7] == 2 * 1000 * 8
    # One 128-bit and one 256-bit add of each precision, and one scalar: 4 + 8 + 1 and 2 + 4 + 1.
    assert weight[0x08C7] + weight[0x20C7] + weight[0x02C7] == 13
    assert weight[0x04C7] + weight[0x10C7] + weight[0x01C7] == 7
    singles = {event.config for event in events if event.quantity == "cpu_flops_fp32"}
    assert singles == {0x02C7, 0x08C7, 0x20C7, 0x80C7}
    assert {event.quantity for event in events} == {"cpu_flops_fp32", "cpu_flops_fp64"}


def test_a_cpu_without_avx512_needs_no_counters_for_it():
    events = events_of(intel(0x9E, "avx2"))  # Coffee Lake
    assert {event.config >> 8 for event in events} == {0x01, 0x02, 0x04, 0x08, 0x10, 0x20}


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        # Zen 1: the low nibble is single precision, the high one double.
        (amd(0x17, 0x01), {("cpu_flops_fp32", 0x0F03), ("cpu_flops_fp64", 0xF003)}),
        (amd(0x17, 0x31), {("cpu_flops_any", 0x0F03)}),  # Rome
        (amd(0x19, 0x01), {("cpu_flops_any", 0x0F03)}),  # Milan
        (amd(0x19, 0x50), {("cpu_flops_any", 0x0F03)}),  # Cezanne
        (amd(0x19, 0x11), {("cpu_flops_any", 0x0F03), ("cpu_flops_bf16", 0x1003)}),  # Genoa
        (
            amd(0x1A, 0x02),  # Turin
            {
                ("cpu_flops_fp32", 0x4F03), ("cpu_flops_fp32", 0x6F03), ("cpu_flops_fp64", 0x8F03),
                ("cpu_flops_fp64", 0xAF03), ("cpu_flops_bf16", 0x2F03),
            },
        ),
    ],
)  # fmt: skip
def test_amd_counts_flops_themselves(cpu, expected):
    events = events_of(cpu)
    assert {(event.quantity, event.config) for event in events} == expected
    assert all(event.weight == 1 for event in events)


@pytest.mark.parametrize(
    "cpu",
    [
        intel(0x3C),
        intel(0x5C),
        intel(0xAF),
        amd(0x15, 0x02),
        amd(0x1A, 0x50),
        CpuModel("GenuineIntel", 19, 1, frozenset()),
    ],
)
def test_a_cpu_whose_events_are_not_known_is_not_guessed(cpu):
    # Haswell and Atoms have no such event; an older AMD has another; Zen 6 and Diamond Rapids are not documented.
    assert events_of(cpu) == ()


def test_the_kernels_answer_is_three_words():
    raw = bytes([5, 1, 0, 0, 0, 0, 0, 0]) + bytes([10] + [0] * 7) + bytes([0, 0, 0, 0, 1, 0, 0, 0])
    assert decode(raw) == PerfSample(count=261, enabled_ns=10, running_ns=1 << 32)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (PerfSample(), PerfSample(), 0),  # the thread slept: proven zero
        (PerfSample(), PerfSample(100, 50, 50), 100),
        (PerfSample(100, 50, 50), PerfSample(160, 70, 70), 60),
        (PerfSample(), PerfSample(100, 300, 100), 300),  # it had the counter a third of the time
        (PerfSample(100, 300, 100), PerfSample(110, 320, 105), 40),  # a quarter of this interval: 10 x 20/5
        (PerfSample(), PerfSample(1, 2, 3), 1),
        (PerfSample(), PerfSample(0, 80, 0), None),  # it never had it
        (PerfSample(7, 80, 80), PerfSample(7, 90, 80), None),
    ],
)
def test_counts_are_scaled_to_the_time_asked_for(before, now, expected):
    assert growth(before, now) == expected


@given(st.integers(0, 1 << 48), st.integers(1, 1 << 50), st.integers(1, 1 << 50))
def test_scaling_never_loses_counts(count, enabled, running):
    scaled = growth(PerfSample(), PerfSample(count, enabled, running))
    assert scaled is not None
    assert scaled >= count
    assert running < enabled or scaled == count


def samples(tmp_path, name, *rows):
    """A file that answers each read with the next sample, as a counter does."""
    path = tmp_path / name
    path.write_bytes(b"".join(word.to_bytes(8, sys.byteorder) for row in rows for word in row))
    return os.open(path, os.O_RDONLY)


def test_totals_are_weighted_and_scaled_and_say_so(tmp_path):
    scalar, wide = PerfEvent("flops", "scalar", 1, 1), PerfEvent("flops", "wide", 2, 16)
    other = PerfEvent("rare", "rare", 3)
    counters = PerfCounters(4, [scalar, wide, other])
    assert counters.origins == {"flops": "perf scalar + wide", "rare": "perf rare"}
    counters._totals = {"flops": 0, "rare": 0}
    counters._open = [
        (samples(tmp_path, "a", (10, 100, 100), (12, 200, 200)), scalar),
        (samples(tmp_path, "b", (5, 100, 100), (6, 200, 150)), wide),
        (samples(tmp_path, "c", (0, 100, 0), (3, 200, 50)), other),
    ]
    assert counters.read() == {"flops": 10 + 5 * 16}  # `rare` has not had its turn: unknown, not 0
    assert counters.multiplexed
    # wide: 1 count in half of the interval makes 2; rare: 3 in a quarter of all the time makes 12.
    assert counters.read() == {"flops": 90 + 2 + 2 * 16, "rare": 12}
    counters._close()
    assert counters._open == []


PAGES = 1000
SOFTWARE, PAGE_FAULTS, MINOR_FAULTS = 1, 2, 5
FAULTS = (PerfEvent("faults", "page-faults", PAGE_FAULTS, 1), PerfEvent("double", "minor-faults", MINOR_FAULTS, 2))


def _software_events():
    try:
        with PerfCounters(SOFTWARE, FAULTS):
            return True
    except (OSError, AttributeError):
        return False


needs_perf = pytest.mark.skipif(not _software_events(), reason="perf_event_open is not allowed here")


def touch_pages():
    block = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(PAGES):
        block[page * mmap.PAGESIZE] = 1
    block.close()


def open_files():
    return len(os.listdir("/proc/self/fd"))


@needs_perf
def test_every_thread_is_counted_those_born_later_too():
    """Page faults go the way of FLOPs: a fresh page is one fault, in whichever thread it is touched."""
    start = threading.Event()
    early = threading.Thread(target=lambda: (start.wait(), touch_pages()))
    early.start()
    files = open_files()
    with PerfCounters(SOFTWARE, FAULTS) as counters:
        assert counters.read()["faults"] < 50
        touch_pages()
        one = counters.read()["faults"]
        start.set()
        early.join()
        two = counters.read()["faults"]
        late = threading.Thread(target=touch_pages)
        late.start()
        late.join()
        three = counters.read()
    # Python's own few page faults come on top.
    assert PAGES <= one < PAGES + 100
    assert 2 * PAGES <= two < 2 * PAGES + 200
    assert 3 * PAGES <= three["faults"] < 3 * PAGES + 300
    assert three["double"] == pytest.approx(2 * three["faults"], abs=20)
    assert not counters.multiplexed
    assert open_files() == files


@needs_perf
def test_counting_again_starts_at_zero_and_an_error_leaves_nothing_open():
    files = open_files()
    counters = PerfCounters(SOFTWARE, FAULTS)
    with counters:
        touch_pages()
        assert counters.read()["faults"] >= PAGES
    with counters:
        assert counters.read()["faults"] < 50
    with pytest.raises(ZeroDivisionError), counters:
        _ = 1 // 0
    with pytest.raises(OSError, match=r"."), PerfCounters(SOFTWARE, [*FAULTS, PerfEvent("x", "no such event", 0xFFFF)]):
        pass
    assert open_files() == files


@pytest.mark.parametrize(
    ("number", "machine", "remedy"),
    [
        (errno.EACCES, {"paranoid": 4}, "sysctl kernel.perf_event_paranoid=2"),
        (errno.EPERM, {"filtered": True}, "--cap-add PERFMON"),
        (errno.EPERM, {}, "CAP_PERFMON"),
        (errno.ENOSYS, {}, "CONFIG_PERF_EVENTS"),
        (errno.EMFILE, {}, "ulimit -n"),
        (errno.EBUSY, {}, "another profiler"),
        (errno.ENOENT, {"virtual": True, "pmu": False}, "pmu=on"),
        (errno.ENOENT, {}, "newer kernel"),
        (errno.EINVAL, {"virtual": True}, "newer kernel"),
    ],
)
def test_each_refusal_names_its_remedy_in_one_line(number, machine, remedy):
    known = {"paranoid": 2, "filtered": False, "virtual": False, "pmu": True}
    line = perf_events.explain(number, **{**known, **machine})
    assert remedy in line
    assert "\n" not in line


def test_a_list_of_cpus_as_the_kernel_writes_it():
    assert cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert cpu_list("") == cpu_list("all") == set()


# --- whether they count at all: a kernel that lets groups of counters take turns ---

ROUND_NS, TURN_NS = 30_000, 4_000_000
"""A thousand multiplications in Python, and the kernel's perf_event_mux_interval_ms."""
DOUBLES = ("SCALAR_DOUBLE", "RETIRED_SSE_AVX_FLOPS.ALL", "RETIRED_SSE_AVX_FLOPS.DP")


class Kernel:
    """Groups run where their counters are free, the first ones first; with every turn another one is the first."""

    def __init__(self, cpu, counters, *, each=1, others=(), counts=True):
        self.events = {event.config: event for event in events_of(cpu)}
        self.counters, self.each, self.counts = counters, each, counts
        self.groups: list[tuple[int, list[tuple[int, int]]]] = [(size, []) for size in others]
        """How many counters each takes, and the events it has; those of others are not ours to read."""
        self.samples = {}
        self.now_ns = 0

    def open(self, kind, config, thread, group):
        fd = len(self.samples)
        if group < 0:
            self.groups.append((self.each, [(fd, config)]))
        else:
            at = next(i for i, (_, events) in enumerate(self.groups) if (group, self.config_of(group)) in events)
            size, events = self.groups[at]
            self.groups[at] = (size + self.each, [*events, (fd, config)])
        self.samples[fd] = (PerfSample(), config)
        return fd

    def config_of(self, fd):
        return self.samples[fd][1]

    def read(self, fd, length):
        if fd == 0:  # our first: a round is over
            self.work()
        sample = self.samples[fd][0]
        return b"".join(
            word.to_bytes(8, sys.byteorder) for word in (sample.count, sample.enabled_ns, sample.running_ns)
        )

    def work(self):
        first = self.now_ns // TURN_NS % len(self.groups)
        self.now_ns += ROUND_NS
        free = self.counters
        for size, events in (*self.groups[first:], *self.groups[:first]):
            runs = size <= free
            free -= size if runs else 0
            for fd, config in events:
                was = self.samples[fd][0]
                counts = runs and self.counts and self.events[config].name.endswith(DOUBLES)
                self.samples[fd] = (
                    PerfSample(was.count + 1000 * counts, was.enabled_ns + ROUND_NS, was.running_ns + ROUND_NS * runs),
                    config,
                )


@pytest.fixture
def available_on(monkeypatch):
    def ask(cpu, counters, **more):
        kernel = Kernel(cpu, counters, **more)
        monkeypatch.setattr(perf_events, "_this_cpu", lambda: cpu)
        monkeypatch.setattr(perf_events, "_unsupported", lambda cpu: None)
        monkeypatch.setattr(perf_events, "_raw_type", lambda: 4)
        monkeypatch.setattr(perf_events, "_threads", lambda: [1])
        monkeypatch.setattr(perf_events, "_perf_event_open", kernel.open)
        monkeypatch.setattr(perf_events, "monotonic", lambda: kernel.now_ns * 1e-9, raising=False)
        monkeypatch.setattr(perf_events, "os", SimpleNamespace(read=kernel.read, close=lambda fd: None))
        monkeypatch.setitem(sys.modules, "fcntl", SimpleNamespace(ioctl=lambda *asked: 0))
        return perf_events.available()

    return ask


SKYLAKE, BROADWELL = intel(0x55, "avx512f"), intel(0x4F)
SAPPHIRE, ZEN_1, ZEN_2, ZEN_4, ZEN_5 = (
    intel(0x8F, "avx512f"), amd(0x17, 0x01), amd(0x17, 0x31), amd(0x19, 0x11), amd(0x1A, 0x02)
)  # fmt: skip


@pytest.mark.parametrize(("cpu", "counters", "each"), [
    (SKYLAKE, 4, 1), (SKYLAKE, 8, 1), (BROADWELL, 4, 1), (SAPPHIRE, 8, 1),
    (ZEN_1, 6, 2), (ZEN_2, 6, 2), (ZEN_4, 6, 2), (ZEN_5, 6, 2),
])  # fmt: skip
def test_few_counters_are_enough_to_find_out_that_they_count(available_on, cpu, counters, each):
    """All events at once do not fit on some of them, and the second precision would wait far longer than the test."""
    assert available_on(cpu, counters, each=each) is None


def test_counters_that_somebody_else_has_are_waited_for(available_on):
    assert available_on(SKYLAKE, 4, others=(4,)) is None
    assert available_on(ZEN_5, 6, each=2, others=(6, 6, 6)) is None


def test_counters_that_never_run_are_told_from_those_that_stay_at_0(available_on):
    never = available_on(SKYLAKE, 3)  # a fourth is held for good
    assert "never get a turn" in never and "another profiler" in never and "virtual machine" not in never
    still = available_on(SKYLAKE, 4, counts=False)
    assert "stay at 0" in still and "virtual machine" in still
    assert "stay at 0" in available_on(ZEN_2, 6, each=2, counts=False)


def test_flops_are_counted_here_or_it_says_why_not():
    import torch

    reason = perf_events.available()
    if reason is None:
        a = torch.randn(256, 256)
        _ = a @ a
        # One quantity: counters that take turns would guess the time in which others have theirs.
        (single,) = {"cpu_flops_fp32", "cpu_flops_any"} & set(perf_events.quantities())
        with FlopCounters([single]) as counters:
            _ = a @ a
            counted = counters.read()
        # 256 x 256 results of 256 multiply-adds; blocking may pad a little.
        useful = 2 * 256**3
        assert set(counted) == {single}
        assert useful <= counted[single] < 1.5 * useful
        return
    assert "\n" not in reason
    if "stay at 0" in reason or "never get a turn" in reason:
        return  # they open, and only counting finds them out
    files = open_files() if sys.platform == "linux" else 0
    with pytest.raises(CannotMeasure) as refused, FlopCounters() as counters:
        counters.read()
    assert str(refused.value) == reason
    assert sys.platform != "linux" or open_files() == files
