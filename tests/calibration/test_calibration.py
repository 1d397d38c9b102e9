"""Micro-benchmarks: how their shapes are chosen, how they are timed, the journal of a run, and the file they make."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import threading
import time
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rooflight
from rooflight.calibration import clock, host
from rooflight.calibration import run as running
from rooflight.calibration.case import BenchmarkCase, OutOfPool, precision_set
from rooflight.calibration.clock import CpuClock, GpuClock, TimedCase, _attributed, kernel_segments
from rooflight.calibration.host import HostBench, HostSample, fitted_costs, middle, not_negative
from rooflight.calibration.host_nets import host_nets
from rooflight.calibration.plan import Chapter, cpu_plan, gpu_plan
from rooflight.calibration.run import Bench, CalibrationJournal, calibrate
from rooflight.calibration.sampling import choice, is_power_of_two, points, spread, whole
from rooflight.errors import BadFile, BadInput
from rooflight.hardware import calibration as files
from rooflight.hardware.calibration import FORMAT_VERSION, Calibration, TimedPoints, decode, read
from rooflight.hardware.recorded_tables import encode
from rooflight.hardware.workspaces import WorkspacePoints
from rooflight.ledger import Value
from rooflight.ops.kernel_task import FAMILIES, OUTPUT, Task, convolves

# --- where the points lie ---


def test_points_are_the_same_every_time_and_others_with_another_seed():
    assert list(islice(points(3, 7), 100)) == list(islice(points(3, 7), 100))
    assert list(islice(points(3, 7), 100)) != list(islice(points(3, 8), 100))


@pytest.mark.parametrize("dimensions", [1, 2, 5, 9])
def test_every_beginning_of_the_points_covers_the_cube_evenly(dimensions):
    """Each half of each axis gets half of them, each quarter a quarter, to within two points."""
    found = list(islice(points(dimensions, 11), 256))
    assert all(0 <= value < 1 and math.isfinite(value) for point in found for value in point)
    for count in (16, 64, 100, 256):
        for axis in range(dimensions):
            values = sorted(point[axis] for point in found[:count])
            for part in range(4):
                inside = sum(part / 4 <= value < (part + 1) / 4 for value in values)
                assert abs(inside - count / 4) <= 2


unit = st.floats(0, 1, exclude_max=True)


@given(unit, st.integers(1, 100), st.integers(1, 10_000), st.sampled_from([1, 2, 8, 64]))
def test_whole_numbers_are_multiples_near_the_range(u, low, more, multiple):
    found = whole(u, low, low + more, multiple)
    assert found % multiple == 0
    assert found >= multiple
    assert low - multiple <= found <= low + more + multiple


@given(unit)
def test_every_doubling_is_as_likely_as_the_next(u):
    assert spread(u, 1, 1024) == pytest.approx(2 ** (10 * u))


@given(unit, st.lists(st.tuples(st.floats(0.1, 10), st.integers()), min_size=1, max_size=6))
def test_a_choice_is_one_of_those_given(u, weighted):
    assert choice(u, weighted) in {value for _, value in weighted}


def test_choices_come_as_often_as_they_weigh():
    found = [choice(u / 1000, ((1, 10), (3, 20))) for u in range(1000)]
    assert found.count(10) == 250
    assert choice(1.0, ((1, 10), (3, 20))) == 20  # a rounded 1 is still inside


def test_powers_of_two():
    assert [value for value in range(20) if is_power_of_two(value)] == [1, 2, 4, 8, 16]


# --- the plan ---


def test_a_precision_that_the_device_lacks_is_not_timed():
    plan = gpu_plan({"fp32": 1e13, "fp16": 1e14}, largest=1_000_000, longest_s=1e-3)
    names = " ".join(chapter.name for chapter in plan)
    assert "tf32" not in names
    assert "gemm bf16" not in names
    assert "gemm fp16" in names


def test_a_cpu_is_not_timed_with_what_only_gpus_have():
    plan = cpu_plan({"fp32": 1e11}, largest=100_000, longest_s=1e-3)
    families = {case.task.family for chapter in plan for case in islice(chapter.cases, 10)}
    assert not any("cudnn" in family or "fused" in family or "efficient" in family for family in families)
    assert {"gemm", "conv-wgrad", "attention-flash-backward", "batch-norm-native-train", "foreach"} <= families


def test_shares_of_the_time_are_positive():
    for plan in (gpu_plan({"fp32": 1e13, "bf16": 1e14}, largest=10**6, longest_s=1e-3),
                 cpu_plan({"fp32": 1e11}, largest=10**5, longest_s=1e-3)):  # fmt: skip
        assert all(chapter.share > 0 for chapter in plan)


# --- the clocks ---

TASK = Task("plain", "fp32", (8, 32, 32))


def case(call=lambda: None, task=TASK):
    return BenchmarkCase(task, lambda pool: call)


def test_cases_that_cannot_run_are_left_out_and_the_others_timed():
    def fails():
        raise RuntimeError("no such kernel")

    def too_large(pool):
        raise OutOfPool

    clock = CpuClock(1 << 10, 1 << 12)
    found = list(clock.timed([case(fails), BenchmarkCase(TASK, too_large), case()], time.monotonic() + 60))
    assert [one.task for one in found] == [TASK]
    assert 0 < found[0].warm_s <= found[0].cold_s


def test_time_that_is_up_is_up():
    clock = CpuClock(1 << 10, 1 << 12)
    assert list(clock.timed(iter(lambda: case(), None), time.monotonic() - 1)) == []


def test_precisions_are_set_for_a_case_and_put_back():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    with precision_set("tf32"):
        assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32

    def fails():
        with precision_set("fp32"):
            assert not torch.backends.cudnn.allow_tf32
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


class Event:
    def __init__(self, start, duration, name, device=torch.autograd.DeviceType.CUDA):
        self.start_ns, self.duration_ns, self.name, self.device_type = (
            lambda v=v: v for v in (start, duration, name, device)
        )


def test_kernels_between_two_markers_are_a_case():
    marker = "void at::cuda::spin_kernel(long)"
    events = [
        Event(50, 7, "gemm"), Event(40, 1, marker), Event(60, 3, "bias"), Event(70, 1, marker),
        Event(80, 99, "flush"), Event(90, 1, marker), Event(95, 2, "gemm"), Event(99, 1, marker),
        Event(52, 1000, "aten::mm", torch.autograd.DeviceType.CPU),
    ]  # fmt: skip
    profiler = SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events)))
    assert kernel_segments(profiler) == [(10e-9, 2), (2e-9, 1)]


def test_kernels_beside_each_other_count_once():
    marker = "void at::cuda::spin_kernel(long)"
    # 10 to 20 and 15 to 25 on two streams, then 30 to 33: 15 + 3 ns of three kernels
    events = [Event(0, 1, marker), Event(10, 10, "layer 1"), Event(15, 10, "layer 2"), Event(30, 3, "sum"),
              Event(40, 1, marker)]  # fmt: skip
    profiler = SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events)))
    assert kernel_segments(profiler) == [(18e-9, 3)]


def test_times_are_given_to_no_case_when_the_profiler_lost_some():
    done = [(TASK, True), (Task("plain", "fp32", (9, 36, 36)), True)]
    segments = [(1e-6, 1), (2e-6, 1), (3e-6, 2), (4e-6, 2)]
    warm, other = _attributed(done, segments)
    assert (warm, other) == (TimedCase(TASK, 1e-6, 2e-6, 1), TimedCase(done[1][0], 3e-6, 4e-6, 2))
    assert list(_attributed(done, segments[:-1])) == []
    assert [one.task for one in _attributed(done, [(0.0, 0), *segments[1:]])] == [done[1][0]]  # it ran no kernel
    assert [one.task for one in _attributed([(TASK, False), done[1]], segments)] == [done[1][0]]  # it failed half-way


class Pretended:
    """Stands in for CUDA, the profiler and its kernels, and the host's clock: what was run, by which thread."""

    def __init__(self, monkeypatch, *, free=1 << 40):
        self.events, self.threads, self.now, self.host_s = [], {}, 0, 0.0
        monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: self.host_s))
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, free))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda _: self.ran(1, "spin_kernel"))
        monkeypatch.setattr(clock, "watched", self.watched)

    def ran(self, duration, name):
        self.events.append(Event(self.now, duration, name))
        self.now += 1000

    @contextmanager
    def watched(self):
        self.events.clear()
        yield SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: self.events)))

    def case(self, size, *, fails=(), duration=10, waits=lambda: None):
        """`fails`: what its calls raise, in turn; `waits`: what the first of them waits for. A call takes 2 ms."""
        failures = iter(fails)

        def call():
            self.threads.setdefault(size, []).append(threading.get_ident())
            if len(self.threads[size]) == 1:
                waits()
            self.host_s += 0.002
            failure = next(failures, None)
            if failure is not None:
                raise failure
            self.ran(duration * size, "kernel")

        return BenchmarkCase(Task("plain", "fp32", (size, size, size)), lambda pool: (pool.take(4), call)[1])


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(clock.os, "sched_getaffinity", lambda _: set(range(5)))  # type: ignore[attr-defined]
    return Pretended(monkeypatch)


def timed_on(gpu, cases, seconds=60.0):
    with closing(GpuClock(torch.device("cpu"), 1 << 10, 1 << 10)) as one:
        return sorted(one.timed(cases, gpu.host_s + seconds, many=True), key=lambda found: found.task.numbers)


def test_each_case_is_timed_by_the_thread_that_made_it_ready(gpu):
    several = threading.Barrier(2, timeout=60)  # the first two cases are made ready at the same time
    found = timed_on(gpu, [gpu.case(size, waits=several.wait if size < 3 else lambda: None) for size in range(1, 41)])
    assert [(one.task.numbers[0], round(1e9 * one.warm_s), one.kernels) for one in found] == [
        (size, 10 * size, 1) for size in range(1, 41)
    ]
    assert all(len(used) == 3 and len(set(used)) == 1 for used in gpu.threads.values())
    assert gpu.threads[1] != gpu.threads[2]


def test_what_fails_is_left_out_and_what_had_no_room_is_tried_alone(gpu):
    full = torch.OutOfMemoryError("full")
    cases = [gpu.case(1, fails=[RuntimeError("not here")] * 3), gpu.case(2, fails=[full]), gpu.case(3),
             gpu.case(4, fails=[full] * 5), gpu.case(5, fails=[None, full])]  # fmt: skip
    assert [one.task.numbers[0] for one in timed_on(gpu, cases)] == [2, 3]


def test_a_clock_stops_in_time_and_where_nothing_works(gpu):
    sizes = itertools.count(1)
    found = timed_on(gpu, (gpu.case(size) for size in sizes), seconds=0.5)
    # A round is planned with 1 ms a case. Each is made ready in 2 ms and takes 4: 167 cases, 1 s.
    assert len(found) == pytest.approx(167, abs=6) and gpu.host_s == pytest.approx(1.0, abs=0.05)
    assert timed_on(gpu, (gpu.case(size, fails=[RuntimeError("no")]) for size in itertools.count(1))) == []


def test_an_error_in_one_thread_stops_the_others(gpu):
    cases = (gpu.case(size, fails=[ValueError("a bug")] if size == 3 else ()) for size in itertools.count(1))
    with pytest.raises(ValueError, match="a bug"):
        timed_on(gpu, cases)
    assert max(gpu.threads) < 2 * clock._CHUNK


# --- the host ---


TRUTH = {"view": 1e-6, "plain": 4e-6, "gemm": 9e-6, "conv": 7e-6, "launch": 5e-6, "module": 2e-6, "batch-norm": 12e-6}


def told(name: str, phase: str, **counts: float) -> HostSample:
    """A network whose time is exactly what its parts cost."""
    dearer = 1.0 if name.startswith("random") else 1 / 1.25
    start = 1e-4 if phase == "backward" else 0.0
    whole = sum(TRUTH[key.removesuffix(".bf16")] * count for key, count in counts.items()) + start
    return HostSample(name, phase, counts, whole * dearer)


def test_what_networks_cost_is_found_again_by_their_ops_kernels_and_calls():
    """Chains of one kind take four fifths of what the same ops take in a mixture: costs are those of a mixture."""
    rng = np.random.default_rng(3)
    samples = []
    for phase in ("infer", "forward", "backward"):
        for number in range(60):
            counts = {key: float(count) for key, count in zip(TRUTH, rng.integers(1, 40, len(TRUTH)), strict=True)}
            samples.append(told(f"{'random' if number % 2 else 'chain'}{number}", phase, **counts))
    found = fitted_costs(samples, 9)
    for key, cost in TRUTH.items():
        for phase in ("infer", "forward"):
            assert found[f"{key}.{phase}"].value == pytest.approx(cost, rel=0.03, abs=1e-7), key
    assert found["step.train"].value == pytest.approx(1e-4, rel=0.5)
    assert "1.25 times as long" in found["gemm.infer"].origin and "9 rounds" in found["gemm.infer"].origin


def test_what_networks_cannot_tell_apart_keeps_its_usual_share():
    """A launch and a view that always come together: three ops in ten are not known better than that."""
    samples = [told(f"random{n}", "infer", view=float(n), launch=float(n)) for n in range(1, 9)]
    found = fitted_costs(samples, 1)
    assert found["view.infer"].value + found["launch.infer"].value == pytest.approx(6e-6, rel=0.01)
    assert found["view.infer"].value / found["launch.infer"].value == pytest.approx(0.3 / 0.5, rel=0.2)


def test_libraries_have_their_own_way_in_sixteen_bits():
    samples = [told(f"random{n}", "infer", **{"gemm": n % 3 + 1.0, "gemm.bf16": n // 3 + 1.0}) for n in range(9)]
    slow = [HostSample(s.net, s.phase, s.counts, s.seconds + 3e-6 * s.counts["gemm.bf16"]) for s in samples]
    found = fitted_costs(slow, 1)
    assert found["gemm.infer"].value == pytest.approx(9e-6, rel=0.02)
    assert found["gemm.infer.bf16"].value == pytest.approx(12e-6, rel=0.02)


def test_no_class_costs_less_than_nothing_and_the_others_share_the_rest():
    counts, times = np.array([[1.0, 0.0], [2.0, 1.0]]), np.array([1.0, 1.5])
    found = not_negative(counts, times)
    assert found == pytest.approx([0.8, 0.0])  # the best with the second at nothing


def test_the_middle_is_the_mean_of_the_inner_half_after_two_rounds():
    assert middle([99.0, 99.0, 4.0, 1.0, 2.0, 50.0]) == pytest.approx(3.0)
    assert middle([99.0, 99.0, 7.0]) == 7.0


def test_the_host_is_timed_on_networks_by_class_phase_and_call(monkeypatch, one_thread):
    some = [net for net in host_nets() if net[0].startswith(("ConvBlock0", "FeedForward", "LayerBlock", "random30"))]
    monkeypatch.setattr(host, "host_nets", lambda: iter(some))
    monkeypatch.setattr(host, "_ENOUGH", "")
    bench = HostBench(torch.device("cpu"))
    for _ in range(3):
        bench.time_once()
    bench.count_kernels()
    found = bench.costs()
    assert {"gemm.infer", "conv.backward", "view.forward", "layer-norm.forward", "step.train", "module.infer",
            "launch.forward", "MultiheadAttention.infer", "optimizer.adamw.tensor"} <= found.keys()  # fmt: skip
    # Of three short rounds by a real clock one class may get nothing; all of them together cannot.
    assert all(cost.value >= 0 for cost in found.values())
    assert sum(cost.value for name, cost in found.items() if name.endswith(".forward")) > 0
    assert "3 rounds" in found["gemm.infer"].origin


def test_networks_for_the_host_hold_every_class_of_ops_once_chained_and_mixed():
    """Counted as prediction counts a step."""
    names, seen = [], set()
    for name, net, shape in host_nets():
        names.append(name)
        x = torch.empty(shape, device="meta", requires_grad=True)
        counts = host._counts(net.to("meta"), x, "cuda")
        assert counts["infer"]["module"] >= counts["infer"].get("MultiheadAttention", 0.0)
        seen |= {key for phase in counts.values() for key in phase}
    assert len(names) == len(set(names)) and sum(name.startswith("random") for name in names) == 12
    assert {"conv", "gemm", "batch-norm", "layer-norm", "attention-efficient", "view", "module", "pool", "cat", "math",
            "embedding", "softmax", "strided", "reduce", "dropout", "plain", "broadcast"} <= seen  # fmt: skip


# --- the journal ---

IDENTITY = {"torch": "2.13", "device": "a"}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "deep" / "h.json.gz.partial"


def test_a_journal_goes_on_where_it_was(path):
    first = CalibrationJournal(path, IDENTITY)
    first.keep("host", {"view.infer": 1})
    first.keep("gemm", {"gemm fp32": [[1, 2]]})
    again = CalibrationJournal(path, IDENTITY)
    assert again.done == {"host": {"view.infer": 1}, "gemm": {"gemm fp32": [[1, 2]]}}
    again.keep("cat", {})
    assert list(CalibrationJournal(path, IDENTITY).done) == ["host", "gemm", "cat"]
    again.close()
    assert not path.exists()
    again.close()


@pytest.mark.parametrize("other", [{"torch": "2.11", "device": "a"}, {"torch": "2.13", "device": "b"}, {}])
def test_what_another_torch_or_device_did_is_done_anew(path, other):
    CalibrationJournal(path, other).keep("host", {"view.infer": 1})
    assert CalibrationJournal(path, IDENTITY).done == {}
    assert json.loads(path.read_text()) == IDENTITY  # and nothing of the other is left


@pytest.mark.parametrize("kept", range(0, 60, 7))
def test_a_line_that_was_cut_off_is_done_again_and_harms_no_other(path, kept):
    journal = CalibrationJournal(path, IDENTITY)
    journal.keep("host", {"view.infer": 1})
    whole = path.read_bytes()
    journal.keep("gemm", {"gemm fp32": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]})
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    again = CalibrationJournal(path, IDENTITY)
    assert list(again.done) == ["host"]
    again.keep("gemm", {"gemm fp32": []})
    again.keep("cat", {"cat fp32": []})
    assert list(CalibrationJournal(path, IDENTITY).done) == ["host", "gemm", "cat"]


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\xff\xfe\x00", b"[1, 2", b"null\n", json.dumps(IDENTITY).encode()[:-3],
                json.dumps(IDENTITY).encode() + b'\n{"section": "host"}\n', json.dumps(IDENTITY).encode() + b"\n[]\n",
                json.dumps(IDENTITY).encode() + b'\n{"section": "host", "found": 5}\n'],
)  # fmt: skip
def test_a_journal_that_nobody_can_read_is_begun_anew(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    journal = CalibrationJournal(path, IDENTITY)
    assert journal.done == {}
    journal.keep("host", {"a": 1})
    assert CalibrationJournal(path, IDENTITY).done == {"host": {"a": 1}}


def test_a_journal_that_cannot_be_written_is_one_clear_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match=r"cannot write .*: .*; choose another place with -o"):
        CalibrationJournal(tmp_path / "file" / "journal", IDENTITY)
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadFile, match="cannot write"):
        CalibrationJournal(tmp_path / "folder", IDENTITY)
    journal = CalibrationJournal(tmp_path / "journal", IDENTITY)
    full = Path("/dev/full")
    if full.exists():
        monkeypatch.setattr(journal, "_path", full)
        with pytest.raises(BadFile, match="No space left on device"):
            journal.keep("host", {})


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = CalibrationJournal(None, IDENTITY)
    journal.keep("host", {})
    journal.close()
    assert list(tmp_path.iterdir()) == []


# --- a whole run ---


class Stopped(Exception):
    pass


@pytest.fixture
def bench(monkeypatch):
    """A calibration of a few chapters, whose parts that take seconds are put aside; it tells what was run."""
    run: list[str] = []

    def cases(name):
        for number in range(3):

            def make(pool, number=number):
                run.append(f"{name} {number}")
                return lambda: None

            yield BenchmarkCase(Task("plain", "fp32", (8 + number, 32, 32)), make)

    def section(name):
        def found(*_, **__):
            run.append(name)
            return {f"{name}.a": Value(1e-6, "a test")}

        return found

    plan = [Chapter(name, cases(name), 1.0) for name in ("one", "two", "three")]
    monkeypatch.setattr(running, "cpu_plan", lambda *_, **__: [Chapter(c.name, cases(c.name), 1.0) for c in plan])
    monkeypatch.setattr(running, "host_costs", section("host"))
    monkeypatch.setattr(running, "ceilings", section("ceilings"))
    # No case cuts from the numbers of the pool: few of them do.
    monkeypatch.setattr(running, "CpuClock", lambda cache_bytes, _: CpuClock(cache_bytes, 1 << 20))
    return SimpleNamespace(bench=Bench(torch.device("cpu"), {"fp32": 1e11}, 1 << 16, 30.0), run=run)


def stopping_at(name):
    def progress(doing, part):
        assert 0 <= part <= 1
        if doing == name:
            raise Stopped

    return progress


def test_nothing_is_run_twice_when_a_run_that_was_cut_off_goes_on(bench, path):
    for name in ("ceilings", "two", "three"):
        with pytest.raises(Stopped):
            calibrate(bench.bench, stopping_at(name), path)
        assert path.exists()
    calibration = calibrate(bench.bench, lambda doing, part: None, path)
    assert sorted(bench.run) == sorted(
        ["host", "ceilings", *(f"{name} {n}" for name in ("one", "two", "three") for n in range(3))]
    )
    assert not path.exists()
    (found,) = calibration.points
    assert [row[0] for row in found.rows] == [8, 9, 10] * 3
    assert calibration.host == {"host.a": Value(1e-6, "a test")}
    assert decode(encode(calibration), "it") == calibration


def test_a_whole_run_is_the_same_file_as_one_that_was_cut_off(bench, path):
    whole = calibrate(bench.bench, lambda doing, part: None)
    with pytest.raises(Stopped):
        calibrate(bench.bench, stopping_at("three"), path)
    again = calibrate(bench.bench, lambda doing, part: None, path)
    assert [points.tasks() for points in whole.points] == [points.tasks() for points in again.points]
    assert whole.torch == again.torch == str(torch.__version__)
    assert whole.format_version == FORMAT_VERSION
    assert whole.cuda is None or isinstance(whole.cuda, str)
    assert whole.cudnn is whole.driver is None


LAYER = [16, 64, 30, 30, 64, 3, 3, 1, 1, 1, 1, 0]


@pytest.fixture
def with_cudnn(bench, monkeypatch):
    """The same, as if the device had cuDNN."""

    def record(device, seconds, progress):
        assert seconds == pytest.approx(0.2 * bench.bench.seconds)
        for precision in ("tf32", "bf16"):
            progress(f"workspaces {precision}")
            bench.run.append(f"workspaces {precision}")
        points = (WorkspacePoints("bf16", [[*LAYER, 0, 512, -1]]), WorkspacePoints("tf32", [[*LAYER, 7, 0, 0]]))
        return SimpleNamespace(points=points)

    monkeypatch.setattr(running, "_WORKSPACES_SHARE", {"cpu": 0.2})
    monkeypatch.setattr(running, "record", record)
    return bench


def test_workspaces_are_recorded_last_and_not_again_when_a_run_goes_on(with_cudnn, path):
    for name in ("three", "workspaces bf16", "done"):
        with pytest.raises(Stopped):
            calibrate(with_cudnn.bench, stopping_at(name), path)
    calibration = calibrate(with_cudnn.bench, lambda doing, part: None, path)
    assert with_cudnn.run.count("three 0") == 1
    # The first time it was cut off in the middle; what is begun is done as a whole.
    assert [name for name in with_cudnn.run if name.startswith("workspaces")] == [
        "workspaces tf32", "workspaces tf32", "workspaces bf16",
    ]  # fmt: skip
    assert with_cudnn.run[-1] == "workspaces bf16"
    assert calibration.workspaces == (
        WorkspacePoints("bf16", [[*LAYER, 0, 512, -1]]),
        WorkspacePoints("tf32", [[*LAYER, 7, 0, 0]]),
    )
    assert [points.family for points in calibration.points] == ["plain"]
    assert decode(encode(calibration), "it") == calibration


def test_progress_leaves_a_part_to_workspaces(with_cudnn):
    told = []
    calibrate(with_cudnn.bench, lambda doing, part: told.append((doing, part)))
    assert [doing for doing, _ in told][-4:] == ["three", "workspaces tf32", "workspaces bf16", "done"]
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert parts[-4:] == pytest.approx([0.8 * 2 / 3, 0.8, 0.8, 1.0], abs=0.01)


def test_a_cpu_has_no_workspaces(bench, monkeypatch):
    monkeypatch.setattr(running, "record", None)
    assert calibrate(bench.bench, lambda doing, part: None).workspaces == ()


def test_progress_goes_from_nothing_to_all(bench):
    told = []
    calibrate(bench.bench, lambda doing, part: told.append((doing, part)))
    assert [doing for doing, _ in told] == ["host", "ceilings", "one", "two", "three", "done"]
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


def test_another_length_of_time_is_another_calibration(bench, path):
    with pytest.raises(Stopped):
        calibrate(bench.bench, stopping_at("two"), path)
    other = Bench(bench.bench.device, bench.bench.peaks, bench.bench.cache_bytes, 31.0)
    calibrate(other, lambda doing, part: None, path)
    assert bench.run.count("host") == 2


# --- the file ---


def made(**changes) -> Calibration:
    points = (TimedPoints("gemm", "fp32", [[1, 2, 3, 4, 0, 1, 0, 1000, 1100, 1]]),)
    return msgspec.structs.replace(
        Calibration(format_version=FORMAT_VERSION, rooflight="0", torch="2.13", device="a", points=points), **changes
    )


def test_a_calibration_is_the_same_after_writing_and_reading(tmp_path):
    calibration = made(host={"gap": Value(1e-6, "a test")}, notes=("a", "b"))
    (tmp_path / "a.json.gz").write_bytes(encode(calibration))
    assert read(tmp_path / "a.json.gz") == calibration
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(calibration))  # unpacked, to be looked at
    assert read(tmp_path / "a.json") == calibration
    assert encode(calibration) == encode(calibration)
    assert calibration.points[0].tasks() == [Task("gemm", "fp32", (1, 2, 3, 4, 0, 1, 0))]


def test_workspaces_are_read_back_and_files_of_before_have_none(tmp_path):
    calibration = made(workspaces=(WorkspacePoints("tf32", [[*LAYER, 0, 512, -1]]), WorkspacePoints("bf16", [])))
    (tmp_path / "a.json.gz").write_bytes(encode(calibration))
    assert read(tmp_path / "a.json.gz") == calibration
    assert decode(changed(lambda d: d.pop("workspaces")), "older").workspaces == ()


def changed(change) -> bytes:
    document = json.loads(gzip.decompress(encode(made())))
    change(document)
    return json.dumps(document).encode()


def workspaces(*rows) -> dict:
    return {"precision": "tf32", "rows": rows}


def with_digits(count: int, where: str) -> bytes:
    """A calibration with a whole number of so many digits in one place."""
    places = {
        "format_version": lambda d: d.update(format_version="@"),
        "seconds": lambda d: d.update(seconds="@"),
        "gap": lambda d: d.update(host={"gap": {"value": "@", "origin": "x"}}),
        "size": lambda d: d["points"][0]["rows"][0].__setitem__(1, "@"),
    }
    return changed(places[where]).replace(b'"@"', b"9" * count)


PACKED = encode(made())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no calibration file"),
        (b"hello", "no calibration file"),
        (b"[]", "calibration format None"),
        (b"{}", "calibration format None"),
        (b"5", "calibration format None"),
        (b"[" * 100_000, "no calibration file"),
        (PACKED[: len(PACKED) // 2], "breaks off in the middle"),
        (PACKED[:4], "breaks off in the middle"),
        (PACKED[:20] + b"\x00\xff\x00\xff" + PACKED[24:], "no valid gzip file"),
        (PACKED[:-6] + b"\x00" * 6, "no valid gzip file"),
        (changed(lambda d: d.update(format_version=99)), "calibration format 99, this rooflight reads"),
        (changed(lambda d: d.update(format_version="1")), "calibration format '1'"),
        (changed(lambda d: d.update(format_version=True, torch=3)), "calibration f"),
        (changed(lambda d: d.update(extra=1)), "unknown field"),
        (changed(lambda d: d.pop("torch")), "missing required field"),
        (changed(lambda d: d.update(torch=None)), "Expected `str`"),
        (changed(lambda d: d["points"][0].update(family="gym")), "its 'gym' points do not fit"),
        (changed(lambda d: d["points"][0]["rows"].append([1, 2])), "its 'gemm' points do not fit"),
        (changed(lambda d: d["points"][0]["rows"].append([])), "its 'gemm' points do not fit"),
        (changed(lambda d: d["points"][0]["rows"][0].append(1)), "its 'gemm' points do not fit"),
        (changed(lambda d: d["points"][0]["rows"][0].__setitem__(1, -2)), "its 'gemm' points do not fit"),
        (changed(lambda d: d["points"][0]["rows"][0].__setitem__(-3, 0)), "its 'gemm' points do not fit"),
        (changed(lambda d: d["points"][0]["rows"][0].__setitem__(1, 2.5)), "Expected `int`"),
        (changed(lambda d: d["points"][0]["rows"][0].__setitem__(1, None)), "Expected `int`"),
        (changed(lambda d: d.update(workspaces=[workspaces([*LAYER])])), "its workspaces in tf32 are no layers"),
        (
            changed(lambda d: d.update(workspaces=[workspaces([*LAYER, 0, 0, -2])])),
            "its workspaces in tf32 are no layers",
        ),
        (changed(lambda d: d.update(workspaces=[workspaces([0, *LAYER[1:], 0, 0, 0])])), "are no layers"),
        (changed(lambda d: d.update(workspaces=[workspaces([1 << 62, *LAYER[1:], 0, 0, 0])])), "are no layers"),
        (changed(lambda d: d.update(workspaces=[workspaces()] * 2)), "its workspaces in tf32 come twice"),
        (changed(lambda d: d.update(workspaces=[workspaces([*LAYER, 0, 0, "0"])])), "Expected `int`"),
        (changed(lambda d: d.update(workspaces={"tf32": []})), "Expected `array`"),
        (changed(lambda d: d.update(host={"gap": {"value": -1, "origin": "x"}})), "gap is negative"),
        (changed(lambda d: d.update(ceilings={"copy": {"value": "fast", "origin": "x"}})), "Expected `int | float`"),
        (with_digits(400, "format_version"), "calibration format 9999"),
        (with_digits(400, "seconds"), "out of range"),
        (with_digits(400, "gap"), "gap is larger than anything that a device does"),
        (with_digits(400, "size"), "its 'gemm' points do not fit"),
        *((with_digits(5000, where), "out of range") for where in ("format_version", "seconds", "gap", "size")),
    ],
)
def test_a_file_that_is_no_calibration_is_one_clear_line(tmp_path, content, message):
    path = tmp_path / "mine.json.gz"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read(path)
    text = str(caught.value)
    assert message in text
    assert str(path) in text
    assert "rooflight calibrate" in text
    assert "\n" not in text


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path):
    with pytest.raises(BadInput, match=r"does not exist"):
        read(tmp_path / "none")
    with pytest.raises(BadInput, match=r"is a folder, not a calibration"):
        read(tmp_path)


def test_the_users_own_calibration_comes_before_the_shipped_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    shipped, source = files.calibration_for("h200")
    assert source == "comes with rooflight"
    own = files.own_path("h200")
    assert own == tmp_path / "rooflight" / "calibrations" / "h200.json.gz"
    own.parent.mkdir(parents=True)
    own.write_bytes(encode(made()))
    assert files.calibration_for("h200") == (made(), str(own))
    assert files.calibration_for("no-such-device") is None
    assert shipped != made()


def test_what_a_calibration_notes_of_itself_is_told(tmp_path):
    """Not all of the one that comes along is of one day and machine: nobody may take it for that."""
    shipped, mine = files.shipped("h200"), tmp_path / "mine.json.gz"
    noted = msgspec.structs.replace(shipped, notes=("timed in a hurry",))
    mine.write_bytes(gzip.compress(msgspec.json.encode(noted), 1))  # a tenth of the time of the smallest file
    told = [rooflight.predict("mnist-cnn", on="h200", calibration=path).calibrations["h200"] for path in (None, mine)]
    assert "on several machines" in told[0]
    assert told[0].endswith("; ".join(shipped.notes))
    assert told[1].endswith(" timed points; timed in a hurry")


def test_the_shipped_calibration_is_what_it_says():
    calibration = files.shipped("h200")
    assert calibration is not None
    assert calibration.device == "NVIDIA H200"
    assert calibration.seconds <= 180
    assert {some.family for some in calibration.points} == set(FAMILIES)
    for some in calibration.points:
        for task, row in zip(some.tasks(), some.rows, strict=True):
            named = len(FAMILIES[some.family])
            assert len(task.numbers) == named or (convolves(some.family) and len(task.numbers) == named + len(OUTPUT))
            assert row[-1] >= 1
            assert 100 < row[-3] < 1e9  # nanoseconds
    for key, value in (*calibration.host.items(), *calibration.ceilings.items()):
        assert value.origin, key
        assert math.isfinite(value.value) and value.value >= 0
