"""Regions: what each execution is used for, what comes out of it, and that the program notices nothing."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rooflight.errors import BadInput
from rooflight.measurement.regions import plain, region, regions, regions_ledger, save_regions, scheduler, settings
from rooflight.measurement.regions.execution_times import MOST_TIMES, ExecutionTimes
from tests.fixtures.notes import note_texts

MEBI = 1024 * 1024
NO_GPU = "FLOPs and DRAM bytes: no GPU is in use"


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Every test has the process for itself."""
    for name in (settings.RUN, settings.COUNTERS, "RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(scheduler, "_process", scheduler.RegionProcess())


@pytest.fixture
def clock(monkeypatch):
    """The host's clock, which goes on only when it is told to."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(plain, "perf_counter_ns", lambda: round(clock.now_s * 1e9))
    return clock


def execute(name, times=1, **options):
    for _ in range(times):
        with region(name, **options) as r:
            pass
    return r


# --- what comes out ---


def test_time_is_the_median_of_the_executions_after_the_first(clock):
    for duration in (50, 3, 1, 2):
        with region("work") as r:
            clock.now_s += duration
        if duration == 50:
            assert r.time_s == 50
            assert "first execution" in r.quantities["wall_time_s"].origin
            assert r.missing == ("a time without what the first execution sets up: 1 more execution", NO_GPU)
    time = r.quantities["wall_time_s"]
    assert (time.value, time.low, time.high) == (2, 1, 3)
    assert time.origin == "host clock: median of 3 executions"
    assert (r.name, r.executions, r.time_s, r.gpu_time_s, r.flops, r.bytes_read) == ("work", 4, 2, None, None, None)
    assert r.complete
    assert r.missing == (NO_GPU,)


def test_on_a_cpu_every_execution_is_timed(clock):
    durations = [9, *range(1, 101), 1000]
    for duration in durations:
        with region("work") as r:
            clock.now_s += duration
    time = r.quantities["wall_time_s"]
    # All but the first: 1 to 100 and 1000, the 51st of 101 is the median.
    assert (time.value, time.low, time.high) == (51, 1, 1000)
    assert (r.executions, r.quantities["timed_executions"].value) == (102, 101)
    assert r.measurement.times_s == tuple(durations)


def test_of_very_many_executions_few_times_are_kept_and_all_are_counted():
    times = ExecutionTimes()
    for number in range(4 * MOST_TIMES):
        times.add(float(number % 100))
    time = times.value("a clock")
    assert time is not None
    assert (times.count, time.low, time.high) == (4 * MOST_TIMES, 0, 99)
    # One in eight is kept: the numbers 0, 8, 16, ... 96 and, from the next hundred on, 4, 12, ... 92.
    assert time.value == pytest.approx(48, abs=2)
    assert "1 in 8 is kept" in time.origin
    assert len(times.course()) <= 200


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory of one moment is known on Linux")
def test_growth_is_the_memory_that_stays():
    kept = []
    for _ in range(4):
        with region("keeps 64 MiB") as r:
            kept.append(torch.ones(64 * MEBI, dtype=torch.uint8))
            torch.ones(64 * MEBI, dtype=torch.uint8).sum()
    assert 63 * MEBI <= r.growth_bytes <= 72 * MEBI
    assert r.peak_bytes >= 4 * 64 * MEBI


def test_repr_says_what_is_known_and_what_is_not(clock):
    for _ in range(3):
        with region("conv2") as r:
            clock.now_s += 0.002
    text = repr(r)
    assert text.startswith("<region 'conv2': 3 executions, 2 ms, ")
    assert text.endswith(f"; missing {NO_GPU}>")


@pytest.mark.parametrize(("time_s", "text"), [(0.0000123, "0.0123 ms"), (0.5, "500 ms"), (75.5, "75.500 s")])
def test_repr_writes_short_and_long_times(clock, time_s, text):
    for _ in range(2):
        start_s = clock.now_s
        with region("x") as r:
            clock.now_s = start_s + time_s
    assert f" executions, {text}, " in repr(r)


def test_executions_in_several_places_belong_together(clock):
    with region("same"):
        clock.now_s += 9
    with region("same") as r:
        clock.now_s += 1
    assert (r.executions, r.time_s) == (2, 1)
    assert regions() == (r,)


def test_a_name_is_needed():
    for name in ("", "  ", None, 3):
        with pytest.raises(BadInput, match="needs a name"):
            region(name)  # type: ignore[arg-type]  # some are no text


# --- when ---


def test_when_is_asked_each_time_and_nothing_is_done_where_it_is_false(clock):
    for epoch in range(6):
        with region("late", when=lambda epoch=epoch: epoch >= 4) as r:  # type: ignore[misc]
            clock.now_s += 1
        assert r.executions == max(0, epoch - 3)
    assert r.time_s == 1
    never = execute("never", 3, when=False)
    assert (never.executions, never.quantities, never.complete) == (0, {}, False)
    assert never.missing == ("everything: it was never executed (or `when` was never true)",)


def test_an_error_of_when_is_the_programs(clock):
    with pytest.raises(ZeroDivisionError), region("x", when=lambda: 1 / 0):
        raise AssertionError("not reached")
    assert execute("x", 2).complete


# --- inside each other ---


def test_regions_inside_each_other_are_timed_at_once(clock):
    for _ in range(4):
        with region("outer") as outer:
            clock.now_s += 1
            with region("inner") as inner:
                clock.now_s += 6
            with region("other"):
                clock.now_s += 3
    assert (outer.executions, inner.executions) == (4, 4)
    assert (outer.time_s, inner.time_s) == (10, 6)
    assert outer.quantities["timed_executions"].value == inner.quantities["timed_executions"].value == 3
    assert outer.shares == {"inner": 0.6, "other": 0.3}
    assert inner.shares == {}


def test_a_share_is_that_of_all_executions_inside(clock):
    for epoch in range(3):
        with region("epoch") as outer:
            clock.now_s += 4
            for _ in range(3):
                with region("step"):
                    clock.now_s += 100 if epoch == 0 else 2
    # Of the epochs after the first: 3 steps of 2 s in 10 s.
    assert outer.shares == {"step": 0.6}


def test_one_region_may_be_inside_several(clock):
    def layer():
        with region("layer"):
            clock.now_s += 1

    for name in ("train", "evaluate", "train", "evaluate"):
        with region(name):
            clock.now_s += 1 if name == "train" else 3
            layer()
    assert {r.name: r.shares for r in regions()} == {"train": {"layer": 0.5}, "evaluate": {"layer": 0.25}, "layer": {}}


def test_the_program_is_what_lies_between_the_first_region_and_the_last(clock):
    clock.now_s += 1000  # before the first
    for _ in range(4):
        with region("step"):
            clock.now_s += 3
        clock.now_s += 2  # loads data; after the last step it is outside
    *_, program = regions_ledger().measurements
    assert (program.scope, program.name, program.quantities["wall_time_s"].value) == ("program", "", 18)
    assert program.parts == {"step": 12 / 18}


def test_what_fails_or_runs_in_another_thread_is_no_part_of_the_rest(clock):
    with region("first"):
        clock.now_s += 1
    with suppress(OSError), region("fails"):
        clock.now_s += 2
        raise OSError
    thread = threading.Thread(target=execute, args=("beside", 2))
    thread.start()
    thread.join()
    clock.now_s += 1
    with region("last"):
        pass
    *_, program = regions_ledger().measurements
    assert program.parts == {"first": 0.25, "fails": 0.5, "last": 0}


def test_a_region_around_everything_has_its_time_and_its_parts(clock):
    with region("program") as program:
        clock.now_s += 1
        for _ in range(3):
            with region("step") as step:
                clock.now_s += 1
    assert step.complete
    assert (program.time_s, program.shares) == (4, {"step": 0.75})
    assert program.missing[0] == "a time without what the first execution sets up: 1 more execution"


def test_what_rooflight_writes_meanwhile_is_not_in_the_time(clock):
    with region("outer") as outer, region("inner"):
        with plain.own_work():
            clock.now_s += 5
        clock.now_s += 1
    assert outer.time_s == 1


def test_inside_one_of_the_same_name_it_is_part_of_it(clock):
    @region("fib")
    def fib(n):
        clock.now_s += 1
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    for _ in range(3):
        assert fib(6) == 8
    (r,) = regions()
    assert (r.executions, r.time_s) == (3, 25)  # 25 calls for fib(6)


def test_one_scope_may_be_entered_again_inside_itself(clock):
    scope = region("x")
    for _ in range(3):
        with scope, scope as r:
            clock.now_s += 1
    assert (r.executions, r.time_s) == (3, 1)


# --- when something goes wrong ---


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
def test_an_exception_goes_through_unchanged_and_its_execution_is_not_kept(clock, kind):
    execute("x")
    error = kind("mine")
    with pytest.raises(kind) as caught, region("x"):
        raise error
    assert caught.value is error
    assert error.__context__ is None and error.__cause__ is None
    with region("x") as r:
        clock.now_s += 1
    assert (r.executions, r.failures, r.time_s) == (2, 1, 1)
    assert scheduler.process().measuring is None


def test_an_exception_inside_an_inner_region_leaves_all_of_them(clock):
    for number in range(4):
        try:
            with region("outer") as outer, region("inner") as inner:
                if number == 1:
                    raise OSError
        except OSError:
            assert number == 1
    assert (outer.executions, outer.failures) == (inner.executions, inner.failures) == (3, 1)
    assert outer.complete and inner.complete


def test_a_region_that_always_fails_says_so():
    for _ in range(2):
        with pytest.raises(ValueError, match="no"), region("x") as r:
            raise ValueError("no")
    assert r.missing == ("everything: it was never executed to its end: an exception left it 2 times",)


def test_a_failing_clock_costs_only_its_execution(monkeypatch):
    execute("x")
    with monkeypatch.context() as broken:
        broken.setattr(plain, "resident", lambda: 1 / 0)
        r = execute("x")
    assert r.executions == 2
    assert any("ZeroDivisionError" in line for line in r.missing)
    assert execute("x").complete


def test_ctrl_c_while_it_is_entered_leaves_the_place_free(monkeypatch):
    execute("x")

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(plain, "resident", interrupt)
        with pytest.raises(KeyboardInterrupt), region("x"):
            raise AssertionError("not reached")
    assert execute("x").complete


def test_leaving_early_is_no_failure():
    def leave():
        with region("x"):
            return 3

    assert [leave() for _ in range(2)] == [3, 3]
    assert (regions()[0].executions, regions()[0].failures) == (2, 0)


# --- as a decorator ---


def test_a_decorated_function_is_the_same_function(clock):
    @region("loss", when=lambda: clock.now_s < 3)
    def loss(a, *, b=2):
        """Adds."""
        clock.now_s += 1
        return a + b

    assert [loss(1), loss(1, b=5), loss(1), loss(1)] == [3, 6, 3, 3]
    assert (loss.__name__, loss.__doc__) == ("loss", "Adds.")
    assert (regions()[0].executions, regions()[0].time_s) == (3, 1)


def test_a_decorated_function_that_is_never_called_is_told():
    region("unused")(len)
    assert [r.name for r in regions()] == ["unused"]


def test_what_stops_in_between_cannot_be_decorated():
    def generator():
        yield

    async def coroutine():
        pass

    async def both():
        yield

    for function in (generator, coroutine, both):
        with pytest.raises(BadInput, match="stops in between"):
            region("x")(function)
    with pytest.raises(BadInput, match="can decorate a function"):
        region("x")(int)


def test_a_region_inside_a_generator_ends_with_it():
    def numbers():
        with region("x"):
            yield 1
            yield 2

    assert list(numbers()) == [1, 2]
    left = numbers()
    next(left)
    left.close()
    assert (regions()[0].executions, regions()[0].failures) == (1, 1)
    assert scheduler.process().measuring is None


# --- threads and processes ---


def test_no_execution_of_any_thread_is_lost():
    def work():
        for _ in range(100):
            execute("shared")
            execute(f"own {threading.get_ident()}")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {r.name: r.executions for r in regions()}
    assert counts.pop("shared") == 800
    assert sum(counts.values()) == 800
    assert scheduler.process().measuring is None
    assert execute("shared", 2).complete


def test_threads_are_timed_beside_each_other(clock):
    execute("main", 1)
    execute("loader", 1)
    with region("main") as main:
        thread = threading.Thread(target=execute, args=("loader", 3))
        thread.start()
        thread.join()
    loader = execute("loader")
    assert (loader.executions, len(loader.pieces.plain)) == (5, 4)
    assert main.shares == {}


def test_a_forked_child_begins_anew(tmp_path):
    execute("x", 3)
    with region("around the fork"):
        pid = os.fork()
        if pid == 0:
            r = execute("x", 1)
            (tmp_path / "child").write_text(f"{r.executions} {len(regions())}")
            os._exit(0)
        os.waitpid(pid, 0)
    assert (tmp_path / "child").read_text() == "1 1"
    assert [r.executions for r in regions()] == [3, 1]


# --- the program notices nothing ---


class Net(nn.Module):
    def __init__(self, *, measured):
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), nn.Linear(8 * 24 * 24, 10)
        self.measured = measured

    def forward(self, x):
        x = self.conv1(x).relu()
        if self.measured:
            with region("conv2"):
                x = self.conv2(x)
        else:
            x = self.conv2(x)
        return self.fc(nn.functional.dropout(x).flatten(1))


def trained(*, measured):
    torch.manual_seed(3)
    model = Net(measured=measured)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        with region("step", when=measured):
            optimizer.zero_grad()
            model(torch.randn(2, 1, 28, 28)).square().mean().backward()
            optimizer.step()
    return model.state_dict()


def test_weights_are_the_same_bit_for_bit():
    plain, measured = trained(measured=False), trained(measured=True)
    assert all(torch.equal(plain[name], measured[name]) for name in plain)
    assert {r.name: r.executions for r in regions()} == {"step": 5, "conv2": 5}


def test_a_compiled_function_stays_one_graph():
    layer = nn.Linear(8, 8)

    def forward(x):
        with region("inside"):
            x = layer(x)
        return x.relu()

    compiled = torch.compile(forward, backend="eager", fullgraph=True)  # fullgraph: a break would raise
    x = torch.randn(4, 8)
    assert torch.equal(compiled(x), forward(x).detach())
    (inside,) = regions()
    assert inside.executions == 1  # the eager call
    assert any("torch.compile" in line for line in inside.missing)
    for _ in range(3):
        with region("around") as around:
            compiled(x)
    assert around.complete


def test_nothing_is_measured_under_torchs_profiler(clock):
    execute("x")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        r = execute("x", 3)
    assert (r.executions, r.pieces.plain) == (4, [])
    assert "executions under torch's profiler were not measured" in r.missing
    assert execute("x").complete


def test_torch_is_left_alone_where_the_program_does_not_use_it(tmp_path):
    import subprocess

    program = (
        "import sys, rooflight\nfrom rooflight.measurement.regions import region, regions_ledger\n"
        "for _ in range(3):\n    with region('x') as r: pass\n"
        "assert r.complete and regions_ledger().header.torch is None\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


# --- as a ledger ---


def test_the_ledger_has_a_row_for_every_region(clock, tmp_path):
    from rooflight.files import load

    for _ in range(2):
        with region("a"):
            clock.now_s += 2
    execute("b", when=False)
    path = save_regions(tmp_path / "regions.json")
    ledger = load(path)
    assert ledger.measurements[:2] == regions_ledger().measurements[:2]  # the program's row has its memory of now
    assert [(row.scope, row.name) for row in ledger.measurements] == [
        ("region", "a"),
        ("region", "b"),
        ("program", ""),
    ]
    assert ledger.measurements[0].quantities["wall_time_s"].value == 2
    assert ledger.measurements[0].quantities["executions"].value == 2
    header = ledger.header
    assert (header.step, header.dtype, header.batch, header.target, header.rank) == (None, None, None, "cpu", 0)
    assert header.torch == torch.__version__
    assert note_texts(header.notes) == (
        f"a: {NO_GPU}",
        "b: everything: it was never executed (or `when` was never true)",
    )


def test_what_all_regions_miss_is_said_once(clock):
    execute("a", 2)
    execute("b", 2)
    assert note_texts(regions_ledger().header.notes) == (f"all regions: {NO_GPU}",)


# --- the environment ---


@pytest.mark.parametrize(("environment", "rank", "world", "reason"), [
    ({}, 0, 1, None),
    ({"RANK": "0", "WORLD_SIZE": "4"}, 0, 4, None),
    ({"RANK": "3", "WORLD_SIZE": "4"}, 3, 4, "only rank 0 counts"),
    ({"RANK": "3", "WORLD_SIZE": "4", "ROOFLIGHT_COUNTERS_RANK": "3"}, 3, 4, None),
    ({"RANK": "3", "WORLD_SIZE": "4", "ROOFLIGHT_COUNTERS_RANK": "all"}, 3, 4, None),
    ({"RANK": "3", "WORLD_SIZE": "4", "ROOFLIGHT_COUNTERS_RANK": "x"}, 3, 4, "is none of a rank, all"),
    ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, 1, 2, "only rank 0 counts"),
    ({"RANK": "nonsense", "WORLD_SIZE": "2"}, 0, 1, "RANK='nonsense' is no number"),
    ({"ROOFLIGHT_COUNTERS": "none"}, 0, 1, "switched off"),
    ({"ROOFLIGHT_COUNTERS": "nvprof"}, 0, 1, "is none of auto, cupti, none"),
    ({"ROOFLIGHT_LEVEL": "l9"}, 0, 1, "is none of dram, l2, l1"),
])  # fmt: skip
def test_settings_never_raise(environment, rank, world, reason):
    found = settings.read(environment)
    assert (found.rank, found.world) == (rank, world)
    if reason is None:
        assert found.no_counters is None
    else:
        assert reason in found.no_counters


def test_dram_is_counted_beside_every_level():
    levels = [settings.read({"ROOFLIGHT_LEVEL": level}).levels for level in ("dram", "l2", "l1")]
    assert levels == [("dram",), ("dram", "l2"), ("dram", "l1")]
