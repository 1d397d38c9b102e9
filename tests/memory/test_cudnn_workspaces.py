"""Workspaces of convolutions: layers that were never among the points, closed forms to the byte, and bad files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rooflight
from rooflight.analysis.verdicts import Judge
from rooflight.calibration import workspaces as recording
from rooflight.errors import BadInput
from rooflight.hardware import calibration, workspaces
from rooflight.hardware.device import Device, Figure
from rooflight.hardware.devices import find
from rooflight.hardware.recorded_tables import encode
from rooflight.hardware.workspaces import FAMILIES, WorkspacePoints
from rooflight.memory.cudnn_workspaces import TAKEN_OVER, ConvolutionWorkspaces, DeviceWorkspaces
from rooflight.memory.result import Memory
from rooflight.models.registry import BUILTINS
from rooflight.ops.kernel_task import Task
from rooflight.prediction.traces import Traces
from rooflight.reporting.charts.memory_course import predicted_memory
from rooflight.spec import StepSpec
from rooflight.trace import TraceOptions
from tests.fixtures.paths import DATA

HELD_OUT = DATA / "h200_workspaces.json.gz"
LAYER = (16, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 0)


@pytest.fixture(scope="module")
def shipped() -> workspaces.Workspaces:
    found = workspaces.shipped("h200")
    assert found is not None
    return found


def tensor_bytes(numbers: tuple[int, ...], size: int) -> int:
    n, c, h, w, k, r, s, stride, pad, dilation, groups, _ = numbers
    p = (h + 2 * pad - dilation * (r - 1) - 1) // stride + 1
    q = (w + 2 * pad - dilation * (s - 1) - 1) // stride + 1
    return size * (n * c * h * w + n * k * p * q + k * c // groups * r * s)


def held_out() -> list[tuple[Task, int]]:
    return [
        (Task(family, points.precision, tuple(row[:-3])), row[len(LAYER) + way])
        for points in workspaces.decode(HELD_OUT.read_bytes(), "held out").points
        for row in points.rows
        for way, family in enumerate(FAMILIES)
        if row[len(LAYER) + way] >= 0
    ]


def test_held_out_layers_are_not_among_the_points(shipped: workspaces.Workspaces) -> None:
    """No way of a layer may be in the table: the three ways of one layer tell on each other."""
    known = {(points.precision, tuple(row[:-3])) for points in shipped.points for row in points.rows}
    layers = {(task.precision, task.numbers) for task, _ in held_out()}
    assert len(layers) >= 250
    assert not known & layers


# Shares of these held-out layers (no NCHW depthwise ones: those are easy) whose error is within 2% and within 10% of
# input + output + weight: what the shipped table reaches, less about three points in a hundred.
SHARES = {
    ("conv-forward", "tf32"): (0.74, 0.77),
    ("conv-forward", "bf16"): (0.88, 0.88),
    ("conv-forward", "fp32"): (0.86, 0.86),
    ("conv-dgrad", "tf32"): (0.73, 0.76),
    ("conv-dgrad", "bf16"): (0.87, 0.90),
    ("conv-dgrad", "fp32"): (0.93, 0.93),
    ("conv-wgrad", "tf32"): (0.53, 0.65),
    ("conv-wgrad", "bf16"): (0.63, 0.74),
    ("conv-wgrad", "fp32"): (0.72, 0.72),
}


@pytest.mark.parametrize("kind", SHARES, ids="-".join)
def test_held_out_layers(kind: tuple[str, str], shipped: workspaces.Workspaces) -> None:
    cases = [(task, recorded) for task, recorded in held_out() if (task.family, task.precision) == kind]
    found = ConvolutionWorkspaces(shipped.by_precision()).bytes_of_many(task for task, _ in cases)
    size = 2 if kind[1] == "bf16" else 4
    errors = [
        abs(answer - recorded) / tensor_bytes(task.numbers, size)
        for answer, (task, recorded) in zip(found, cases, strict=True)
    ]
    shares = tuple(sum(error <= limit for error in errors) / len(errors) for limit in (0.02, 0.10))
    assert shares[0] >= SHARES[kind][0]
    assert shares[1] >= SHARES[kind][1]


def bf16_copies(batch: int, table: workspaces.Workspaces) -> int:
    return ConvolutionWorkspaces(table.by_precision()).bytes_of(Task("conv-forward", "bf16", (batch, *LAYER[1:])))


def test_copies_to_nhwc_are_closed_forms(shipped: workspaces.Workspaces) -> None:
    """A 3x3 layer of NCHW pictures in bf16: input, output and weight are copied, each begins at a multiple of 256."""
    copied = bf16_copies(16, shipped)
    assert 0 <= copied - tensor_bytes(LAYER, 2) < 3 * 256


def test_bytes_grow_with_the_batch_as_the_tensors_do(shipped: workspaces.Workspaces) -> None:
    """Far beyond the recorded batches the pattern still says what is copied."""
    batches = (16, 48, 96, 512, 2048)
    found = [bf16_copies(batch, shipped) for batch in batches]
    assert found == sorted(set(found))
    for batch, answer in zip(batches, found, strict=True):
        assert answer == pytest.approx(tensor_bytes((batch, *LAYER[1:]), 2), rel=1e-3)


def test_depthwise_layers_of_nchw_take_nothing(shipped: workspaces.Workspaces) -> None:
    task = Task("conv-forward", "tf32", (32, 144, 56, 56, 144, 3, 3, 1, 1, 1, 144, 0))
    assert ConvolutionWorkspaces(shipped.by_precision()).bytes_of(task) == 0


def one_point(numbers: tuple[int, ...], workspace: int, family: str = "conv-wgrad") -> ConvolutionWorkspaces:
    ways = [workspace if way == family else -1 for way in FAMILIES]
    return ConvolutionWorkspaces({"fp32": [[*numbers, *ways]]})


def test_winograd_transfers_by_its_closed_form() -> None:
    """Recorded on an H200: tiles of 4x4 outputs become 6x6 numbers of input and output, and so does the weight."""
    recorded = one_point((111, 64, 114, 114, 64, 3, 3, 1, 1, 1, 1, 0), 1_721_235_456)
    other = Task("conv-wgrad", "fp32", (3, 128, 60, 60, 512, 3, 3, 1, 1, 1, 1, 0))
    assert recorded.bytes_of(other) == 71_645_184


def test_fourier_transfers_by_its_closed_form() -> None:
    recorded = one_point((118, 128, 20, 20, 128, 3, 3, 1, 1, 1, 1, 0), 274_661_376, "conv-forward")
    other = Task("conv-forward", "fp32", (3, 128, 68, 68, 128, 3, 3, 1, 1, 1, 1, 0))
    assert recorded.bytes_of(other) == 2_232_745_984


def test_a_rest_stays_when_the_copies_grow() -> None:
    """What split sums keep does not grow with the batch."""
    numbers = (16, 64, 28, 28, 96, 3, 3, 1, 1, 1, 1, 0)
    recorded = one_point(numbers, tensor_bytes(numbers, 4) + 3_000_000)
    larger = (40, *numbers[1:])
    assert recorded.bytes_of(Task("conv-wgrad", "fp32", larger)) == tensor_bytes(larger, 4) + 3_000_000


@pytest.mark.parametrize(("groups", "asked", "padded"), [(1, 62, 64), (4, 4 * 9, 4 * 16)], ids=["dense", "groups"])
def test_channels_that_need_no_padding_stand_for_those_that_do(groups: int, asked: int, padded: int) -> None:
    """A copy of 64 channels does not show whether the engine pads: it is taken to, dense channels to a multiple of four
    (16 bytes), those of a group to a power of two."""
    recorded = one_point((16, 64, 28, 28, 64, 3, 3, 1, 1, 1, groups, 0), 16 * 64 * 28 * 28 * 4, "conv-forward")
    other = Task("conv-forward", "fp32", (16, asked, 28, 28, asked, 3, 3, 1, 1, 1, groups, 0))
    assert recorded.bytes_of(other) == 16 * padded * 28 * 28 * 4


def test_padding_by_hand_borrows_the_same(shipped: workspaces.Workspaces) -> None:
    """A sequence padded by its layer, and before it: the picture has one row in both."""
    table = ConvolutionWorkspaces(shipped.by_precision())
    inside = Task("conv-forward", "tf32", (8, 64, 1, 100_000, 64, 1, 9, 1, 4, 1, 1, 0, 1, 100_000))
    before = Task("conv-forward", "tf32", (8, 64, 1, 100_008, 64, 1, 9, 1, 0, 1, 1, 0))
    assert table.bytes_of(before) > 100_000_000
    assert table.bytes_of(inside) == pytest.approx(table.bytes_of(before), rel=1e-3)


def test_precisions_stand_for_each_other(shipped: workspaces.Workspaces) -> None:
    table = ConvolutionWorkspaces(shipped.by_precision())
    for asked, recorded in (("fp16", "bf16"), ("fp64", "fp32")):
        tasks = [Task("conv-wgrad", precision, LAYER) for precision in (asked, recorded)]
        assert table.bytes_of(tasks[0]) == table.bytes_of(tasks[1]) > 0


def test_nothing_recorded_is_nought() -> None:
    table = one_point(LAYER, 5_000_000)
    tasks = [Task("conv-wgrad", "int8", LAYER), Task("conv-wgrad", "fp32", LAYER), Task("conv-dgrad", "fp32", LAYER)]
    assert table.bytes_of_many(tasks) == [0, 5_000_000, 0]
    assert table.bytes_of_many([]) == []


def written(**changes: object) -> bytes:
    points = [{"precision": "bf16", "rows": [[*LAYER, 0, 512, -1]]}]
    content = {"format_version": 1, "device": "NVIDIA H200", "torch": "2.11.0", "cudnn": "91900", "points": points}
    return json.dumps(content | changes).encode()


def test_a_file_reads_back() -> None:
    found = workspaces.decode(written(), "mine")
    assert found.by_precision() == {"bf16": [[*LAYER, 0, 512, -1]]}
    assert workspaces.decode(encode(found), "mine") == found


def with_rows(*rows: list[object]) -> bytes:
    return written(points=[{"precision": "bf16", "rows": rows}])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "mine is no workspace file"),
        (b"[]", "workspace format None, this rooflight reads 1"),
        # No time of writing: it would be in the name of the test, and two workers would not find the same one.
        pytest.param(gzip.compress(written(), mtime=0)[:40], "mine is no workspace file", id="cut short"),
        (written(format_version=2), "workspace format 2, this rooflight reads 1"),
        (written(colour="red"), "unknown field `colour`"),
        (written(device=None), r"Expected `str`, got `null` - at `\$.device`"),
        (with_rows([*LAYER]), "its points in bf16 are no layers"),
        (with_rows([*LAYER, 0, 0, -2]), "are no layers"),
        (with_rows([*LAYER[:7], 0, *LAYER[8:], 0, 0, 512]), "are no layers"),
        (with_rows([1 << 50, *LAYER[1:], 0, 0, 512]), "are no layers"),
        (with_rows([1 << 70, *LAYER[1:], 0, 0, 512]), "mine"),
        (with_rows([*LAYER, 0, 0, 1.5]), "Expected `int`, got `float`"),
        (written(points=[{"precision": "bf16", "rows": []}] * 2), "come twice"),
    ],
)
def test_bad_files_are_told_in_one_line(content: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=says) as told:
        workspaces.decode(content, "mine")
    assert "mine" in str(told.value)
    assert "\n" not in str(told.value)


def test_most_devices_have_no_workspaces_of_their_own() -> None:
    assert workspaces.shipped("no-such-device") is None


# --- those of other GPUs ---


def zeros(count: int) -> WorkspacePoints:
    """Layers in TF32 that take nothing."""
    layers = islice(recording.layers(5, channels_last=0), count)
    return WorkspacePoints("tf32", [[*layer, 0, 0, 0] for layer in layers])


def test_a_gpu_has_its_own_workspaces_where_enough_were_recorded() -> None:
    known = DeviceWorkspaces({"mine": [zeros(1000)], "hardly": [zeros(999)], "never": []})
    assert [known.origin(name) for name in ("mine", "hardly", "never", "other")] == ["mine", "h200", "h200", "h200"]
    task = Task("conv-forward", "tf32", LAYER)
    assert known.of("mine").bytes_of(task) == 0
    assert known.of("hardly").bytes_of(task) == known.of("h200").bytes_of(task) > 0
    in_bf16 = task._replace(precision="bf16")
    assert known.of("mine").bytes_of(in_bf16) == known.of("h200").bytes_of(in_bf16) > 0


def memory_of(model: str, on: str | Device, **options: Any) -> Memory:
    (found,) = rooflight.predict(model, on=on, advice=False, **options)
    assert found.memory is not None
    return found.memory


def test_predictions_take_the_workspaces_of_the_calibration(tmp_path: Path) -> None:
    shipped_times = calibration.shipped("h200")
    assert shipped_times is not None
    mine = tmp_path / "mine.json.gz"
    made = msgspec.structs.replace(shipped_times, device="NVIDIA A100-SXM4-80GB", workspaces=(zeros(1000),))
    mine.write_bytes(encode(made))
    usual = memory_of("alexnet", "a100", batch=64)  # at its highest in a convolution
    own = memory_of("alexnet", "a100", batch=64, calibration=mine)
    assert own.peak_allocated_bytes < 0.9 * usual.peak_allocated_bytes
    assert "workspace" not in own.peak.split
    # Of another GPU than the one it was made on it says nothing.
    other = memory_of("alexnet", "l4", batch=64, calibration=mine)
    assert other.peak.split["workspace"] == usual.peak.split["workspace"]


def test_verdicts_and_reports_take_the_memory_that_predict_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU with room for a step without workspaces, which it was recorded to do without."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    a100, shipped_times, ledger = find("a100"), calibration.shipped("h200"), rooflight.estimate("alexnet", batch=64)
    assert shipped_times is not None
    needed = memory_of("alexnet", "a100", batch=64).device_bytes
    small = Figure(0.95 * needed, "made up", "2026-11-16")
    device = msgspec.structs.replace(a100, name="small", aliases=(), usable_memory_bytes=small)
    assert Judge(ledger, on=device).fit == "does not fit"
    mine = calibration.own_path("small")
    mine.parent.mkdir(parents=True)
    made = msgspec.structs.replace(shipped_times, device="NVIDIA A100-SXM4-80GB", workspaces=(zeros(1000),))
    mine.write_bytes(encode(made))
    found, told = memory_of("alexnet", device, batch=64), predicted_memory(ledger, device)
    assert told is not None and told.peak_allocated_bytes == found.peak_allocated_bytes
    assert Judge(ledger, on=device).fit == found.fit != "does not fit"


def test_what_an_h200_recorded_is_added_to_what_is_known_of_it() -> None:
    """A short calibration draws fewer layers than come with rooflight."""
    layer, usual = (33, *LAYER[1:]), DeviceWorkspaces().of("h200")
    task = Task("conv-forward", "tf32", layer)
    other = [[*one, 0, 0, 0] for one in islice(recording.layers(5, channels_last=0), 1000)]
    known = DeviceWorkspaces({"h200": [WorkspacePoints("tf32", [*other, [*layer, 123, 0, 0]] * 9)]}).of("h200")
    assert usual.bytes_of(task) > 1_000_000 and known.bytes_of(task) < 1000
    apart = task._replace(numbers=(64, 96, 96, 96, 96, 3, 3, 1, 1, 1, 1, 0))
    assert DeviceWorkspaces({"h200": [zeros(1000)]}).of("h200").bytes_of(apart) == usual.bytes_of(apart) > 0


def test_what_is_taken_over_from_the_h200_is_told() -> None:
    assert TAKEN_OVER in memory_of("mnist-cnn", "a100").notes
    assert TAKEN_OVER not in memory_of("mnist-cnn", "h200").notes
    assert TAKEN_OVER not in memory_of("distilbert", "a100", seq=16, overrides={"n_layers": "1"}).notes


# --- which layers are recorded ---


def drawn() -> Iterator[tuple[int, ...]]:
    for number, (_, channels_last) in enumerate(recording.SHARES):
        for layer in islice(recording.layers(recording._SEED + number, channels_last=channels_last), 20_000):
            assert layer[-1] == channels_last
            yield layer


def built_in_layers() -> dict[tuple[int, ...], str]:
    """Without batch and layout, and the name of a model that has it."""
    known: dict[tuple[int, ...], str] = {}
    for name, entry in BUILTINS.items():
        if entry.inputs == "image":
            traces = Traces(name, **StepSpec(model=name).build)
            (step,), _ = traces.steps([2], TraceOptions(target="cuda", on="meta"))
            known |= {task.numbers[1 : len(LAYER) - 1]: name for task in step.tasks if task.family == "conv-forward"}
    assert len(known) > 90
    return known


def test_no_layer_that_is_drawn_is_one_of_a_built_in_model(shipped: workspaces.Workspaces) -> None:
    """At whatever batch, in whatever layout; nor is one of those that come with rooflight."""
    known = built_in_layers()
    assert {known[layer[1:-1]] for layer in drawn() if layer[1:-1] in known} == set()
    rows = [tuple(row[1 : len(LAYER) - 1]) for points in shipped.points for row in points.rows]
    assert len(rows) > 19_000
    assert {known[row] for row in rows if row in known} == set()


def test_layers_that_are_drawn_can_be_run() -> None:
    for n, c, h, w, k, r, s, stride, pad, dilation, groups, _ in drawn():
        p = (h + 2 * pad - r) // stride + 1
        q = (w + 2 * pad - s) // stride + 1
        assert min(n, c, k, p, q) >= 1
        assert n <= 256 and h == w <= 384 and dilation == 1
        assert c % groups == k % groups == 0
        assert n * max(c * h * w, k * p * q) <= 4e8
