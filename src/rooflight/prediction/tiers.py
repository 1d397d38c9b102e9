"""How a time is predicted, always named: from the device's calibration, another device's, or the data sheet alone.

`calibrated`: tasks are looked up among this device's own micro-benchmarks. `partial`: transferred, and corrected by the
works of somebody's own that were timed on it. `published`: transferred, and corrected by
single ops that others timed on this device and published. `transferred`: looked up among another device's
micro-benchmarks and carried over (`prediction/transfer.py`). `guessed`: a step with matrix work in a precision that
has no points: the efficiency of another one at the peak of this one. `spec`: PALEO, read + compute + write over the
peaks and one constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as with_points

from rooflight.errors import BadInput
from rooflight.hardware.calibration import (
    COMES_ALONG,
    Calibration,
    TimedPoints,
    own_path,
    published_name,
    read,
    shipped,
)
from rooflight.hardware.described import ASSUMED
from rooflight.hardware.device import Device
from rooflight.hardware.devices import find, known, recognise_name
from rooflight.ledger import Value
from rooflight.ops.kernel_task import Task, rows_of
from rooflight.prediction.calibrated.baseline import Speed, is_matrix_work, least_seconds
from rooflight.prediction.calibrated.corrections import Corrections, PointsOf
from rooflight.prediction.calibrated.features import group
from rooflight.prediction.calibrated.model import CalibratedModel, TaskTimes
from rooflight.prediction.host_speed import CALIBRATED_HOST, HostSpeed, host_of_others, usual_host
from rooflight.prediction.least_times import cache_bytes, floor_seconds
from rooflight.prediction.own_ops import carried_times
from rooflight.prediction.transfer import transferred
from rooflight.step.cache_reuse import USABLE, Array
from rooflight.step.changes import has_convolutions, in_channels_last, is_channels_last, padded, uneven_sizes
from rooflight.step.costed_step import Step

Tier = Literal["calibrated", "partial", "published", "transferred", "guessed", "spec"]
TIERS: tuple[Tier, ...] = ("calibrated", "published", "transferred", "spec")

ORIGIN = "h200"
"""Whose calibration is carried over where a device has none."""
_CACHE_SPEEDUP = 2.0
"""How much faster than its memory a device's cache is taken to be in the baseline, where nobody measured."""
SHARED = 0.04
"""One standard deviation of an error that all ops of a step share, as a part of its time."""
_ELSEWHERE = 0.1
"""The same of transferred times: a board's real clocks and power, another driver and torch."""
_ASSUMED_FIGURES = 0.27
"""And of a device that was told by a few numbers: clocks of NVIDIA's GPUs in the database differ by so much from the
one that is assumed then."""
_OF_FAMILY = {"gemm": 0.13, "conv": 0.3, "attention": 0.17, "softmax": 0.14, "layer-norm": 0.14, "group-norm": 0.14,
              "recurrent": 0.35}  # fmt: skip
_OF_FP32_CONVOLUTIONS = 0.5
"""Without tensor cores libraries choose among more algorithms, and choose otherwise on each generation."""
_OF_OTHERS = 0.05
"""And for ops of one family, whose kernels are better or worse on the other device. Both are what single ops are off by
on the GPUs that the transfer was tuned on (benchmarks/transfer.py): families by GPU, and all families of one."""
GUESSED = 0.6
"""The same of ops that nothing like them was timed of, wherever they run."""
_SAME_ARCHITECTURE = 0.5
"""How much of that is left where the device has the architecture of the calibrated one ..."""
_CORRECTED = 0.6
"""... and where somebody timed the like of an op on the device itself."""
_ATTENTION_OF = ((90, "cudnn"), (80, "flash"), (0, "efficient"))


@dataclass(frozen=True)
class OpTimes:
    """Seconds of the device for every op of a step."""

    seconds: Array
    deviation_s: float
    """One standard deviation of the sum."""
    inside: float
    """Part of the time that lies among calibrated points."""
    kernels: Array
    floor_s: Array
    """What no op can be faster than."""


def speed_of(device: Device) -> Speed:
    """What the baseline must know of a device; the same for the device and for one that is carried over to."""
    precisions = ("fp32", "tf32", "bf16", "fp16", "fp64", "fp8", "int8")
    bandwidth = device.bandwidth_bytes_per_s.value
    return Speed(
        units=device.sms.value,
        bandwidth=0.85 * bandwidth,
        cache_bandwidth=_CACHE_SPEEDUP * bandwidth,
        cache_bytes=0.7 * cache_bytes(device),
        peaks={precision: peak.value for precision in precisions if (peak := device.peak(precision)) is not None},
        clock_hz=device.clock_hz.value,
    )


@dataclass(frozen=True)
class Predictor:
    """Times of tasks on one device by one tier."""

    device: Device
    tier: Tier
    model: CalibratedModel
    """Of the device, or of the one it is carried over from."""
    source: str
    """Which calibration this is, in words."""
    corrections: Corrections | None = None
    """What was timed on the device itself, or on others like it, where only a part was."""
    host_speed: HostSpeed = CALIBRATED_HOST
    """Of the machine that the device is taken to be in."""

    @property
    def looks_up(self) -> bool:
        """Was all of it timed on this very device? Else times are carried over from another."""
        return self.tier == "calibrated" and self.corrections is None

    @property
    def calibration(self) -> Calibration:
        return self.model.calibration

    @cached_property
    def host(self) -> dict[str, Value]:
        """Seconds of the host for one op of a class, and between two kernels of the device."""
        if self.host_speed.ratio == 1.0:
            return self.calibration.host
        # Ratios are of the host that came along, whatever host the user has calibrated since.
        origin = shipped(ORIGIN)
        return self.host_speed.costs(self.calibration.host if origin is None else origin.host)

    def op_times(self, step: Step) -> OpTimes:
        return self._compiled_times(step) if step.is_compiled else self._op_times(step)

    def _compiled_times(self, step: Step) -> OpTimes:
        """Chains of ops in one kernel, at the bytes per second that they have in eager mode. The compiler also keeps
        images in channels_last between convolutions and pads odd products, where that is faster."""
        eager = self._op_times(step)
        part = step.moves
        others = [in_channels_last(step)] if has_convolutions(step) and not is_channels_last(step) else []
        others += [padded(step)] if uneven_sizes(step) else []
        for other in others:
            with_it = self._op_times(other).seconds
            ratio = np.divide(with_it, eager.seconds, out=np.ones(len(part)), where=eager.seconds > 0)
            part = part * np.minimum(1.0, ratio)
        seconds: Array = np.maximum(eager.seconds * part, eager.floor_s)
        shorter = float(seconds.sum()) / float(eager.seconds.sum() or 1.0)
        return replace(eager, seconds=seconds, deviation_s=eager.deviation_s * shorter)

    def _op_times(self, step: Step) -> OpTimes:
        times = self.task_times(step.tasks)
        count = len(step.kinds)
        # What a task reads is in the cache when the op does the same again, as a recurrent layer does at every step.
        cold_s = np.where(step.is_first, times.cold_s, times.warm_s)
        warm, cold, kernels = (
            np.bincount(step.task_kind, values, count).astype(np.float64)
            for values in (times.warm_s, cold_s, times.kernels)
        )
        shares, _ = step.reuse.cold_reads(USABLE * cache_bytes(self.device))
        of = step.kind_of
        floor_s = floor_seconds(step, self.device)
        seconds: Array = np.maximum(warm[of] + shares * (cold - warm)[of], floor_s)
        repeats, guessed = np.bincount(of, minlength=count)[step.task_kind], self.guessed(step)
        each = times.warm_s * repeats
        if (own := carried_times(step, self.device)) is not None:
            before = np.bincount(of, seconds, count)
            seconds[own.places] = own.seconds
            floor_s[own.places] = np.minimum(floor_s[own.places], own.seconds)
            after = np.bincount(of, seconds, count)
            each *= np.divide(after, before, out=np.ones(count), where=before > 0)[step.task_kind]
            guessed[of[own.places]] = not own.same_device
        looked_up = ~guessed[step.task_kind]  # what is a guess is one of its whole family
        apart = float(np.linalg.norm((each * times.deviation)[looked_up]))
        near = (times.distance <= _NEAR) & looked_up
        inside = float(each[near].sum() / each.sum()) if each.sum() else 1.0
        total = float(seconds.sum())
        shared = total * math.hypot(SHARED, self._elsewhere, self._family_deviation(step, each, guessed))
        return OpTimes(seconds, apart + shared, inside, kernels[of], floor_s)

    @property
    def _elsewhere(self) -> float:
        if self.looks_up:
            return 0.0
        known = _ELSEWHERE * (_SAME_ARCHITECTURE if self._is_same_architecture else 1.0)
        figures = (self.device.sms, self.device.clock_hz, self.device.l2_bytes)
        assumed = any(figure is not None and figure.source.startswith(ASSUMED) for figure in figures)
        return math.hypot(known, _ASSUMED_FIGURES) if assumed else known

    @property
    def _is_same_architecture(self) -> bool:
        return (self.device.capability or 0) // 10 == (self._origin.capability or 0) // 10

    def _family_deviation(self, step: Step, seconds: Array, guessed: npt.NDArray[np.bool_]) -> float:
        """Of the sum, as a part of it: what times of whole families are off by, each in its own way. Seconds are those
        of the step's tasks. `guessed`: of every kind."""
        if not seconds.any():
            return 0.0
        off: dict[str, float] = {}
        for task, taken, guess in zip(step.tasks, seconds.tolist(), guessed[step.task_kind].tolist(), strict=True):
            family = group(task.family)
            deviation = GUESSED if guess else self._deviation_of(task, family)
            off[family] = off.get(family, 0.0) + taken * deviation
        return math.sqrt(sum(part**2 for part in off.values())) / float(seconds.sum())

    def _deviation_of(self, task: Task, family: str) -> float:
        if self.looks_up:
            return 0.0
        deviation = _OF_FAMILY.get(family.removesuffix("-forward").removesuffix("-backward"), _OF_OTHERS)
        if family == "conv" and task.precision == "fp32":
            deviation = _OF_FP32_CONVOLUTIONS
        if self._is_same_architecture:
            deviation *= _SAME_ARCHITECTURE
        if self.corrections is None:
            return deviation
        deviation *= _CORRECTED if self.corrections.knows(task) else 1.0
        return math.hypot(deviation, self.corrections.left_open(task))

    def guessed(self, step: Step) -> npt.NDArray[np.bool_]:
        """Return for every kind of op whether nothing like it was timed."""
        unknown = self._unknown(step)
        untimed = np.array([task[:2] in unknown for task in step.tasks], dtype=np.bool_)
        of_kinds: npt.NDArray[np.bool_] = np.bincount(step.task_kind[untimed], minlength=len(step.kinds)) > 0
        return of_kinds | step.guessed

    def tier_of(self, step: Step) -> Tier:
        """Return the tier of the step's time: matrix work without points is never called calibrated."""
        untimed = any(is_matrix_work(family) for family, _ in self._unknown(step))
        return "guessed" if untimed or (step.guessed & step.has_products).any() else self.tier

    def _unknown(self, step: Step) -> set[tuple[str, str]]:
        return {pair for pair in {task[:2] for task in step.tasks} if not self.knows(Task(*pair, ()))}

    def knows(self, task: Task) -> bool:
        """Return whether works of its family and precision were timed, on this device or on the calibrated one."""
        here = retargeted(task, self.device)
        return self.model.has(*here[:2]) or (self.corrections is not None and self.corrections.knows(here))

    def task_seconds(self, tasks: Sequence[Task]) -> Array:
        """Of tasks that belong to no step, their inputs in memory."""
        return self.task_times(tasks).cold_s

    def task_times(self, tasks: Sequence[Task]) -> TaskTimes:
        """Each is found once; asking for the tasks of all steps first finds them all at once."""
        missing = [task for task in dict.fromkeys(tasks) if task not in self._known]
        if missing:
            here = [retargeted(task, self.device) for task in missing]
            times = self._here(here)
            columns = (times.warm_s, times.cold_s, times.deviation, times.distance, times.kernels)
            self._known.update(zip(missing, zip(*(column.tolist() for column in columns), strict=True), strict=True))
        return TaskTimes(*np.array([self._known[task] for task in tasks], dtype=np.float64).reshape(-1, 5).T)

    @cached_property
    def _known(self) -> dict[Task, tuple[float, ...]]:
        return {}

    def _here(self, tasks: Sequence[Task]) -> TaskTimes:
        """On this device: looked up where it is the one that was calibrated, else transferred and corrected."""
        times = self.model.times(tasks)
        if self.looks_up:
            return times
        warm_s, cold_s = transferred(tasks, times, origin=self._origin, target=self.device)
        if self.corrections is not None:
            corrected = self.corrections.of(tasks)
            warm_s, cold_s = corrected.ratio * warm_s, corrected.ratio * cold_s
            times = replace(
                times,
                deviation=np.minimum(times.deviation, corrected.deviation),
                distance=np.minimum(times.distance, corrected.distance),
            )
        least = least_task_seconds(tasks, speed_of(self.device))
        return replace(times, warm_s=np.maximum(warm_s, least), cold_s=np.maximum(cold_s, least))

    @property
    def _origin(self) -> Device:
        origin = recognise_name(self.calibration.device)
        assert origin is not None  # a calibration whose device nobody knows is not carried over
        return origin


_NEAR = 2.0
"""Within this many doublings of the nearest calibrated point, all sizes together, a task counts as inside. Of points
of the H200 that are left out, those farther away are predicted several times worse."""


def least_task_seconds(tasks: Sequence[Task], speed: Speed) -> Array:
    """What the peak allows each of them."""
    least = np.zeros(len(tasks))
    groups: dict[tuple[str, str], list[int]] = {}
    for place, task in enumerate(tasks):
        groups.setdefault((task.family, task.precision), []).append(place)
    for (family, precision), places in groups.items():
        numbers = rows_of([tasks[place] for place in places], np.float64)
        least[places] = least_seconds(family, precision, numbers, speed)
    return least


def retargeted(task: Task, device: Device) -> Task:
    """The task as this device does it: without TF32 fp32 is fp32, and attention runs in the kernel it has."""
    family, precision, numbers = task
    if precision == "tf32" and "tf32" not in device.tensor_flops_per_s:
        precision = "fp32"
    if family.startswith("attention-cudnn") and device.capability is not None and device.capability < 90:
        kernel = next(kernel for least, kernel in _ATTENTION_OF if device.capability >= least)
        family = family.replace("cudnn", kernel)
    return Task(family, precision, numbers)


def check_precision(step_precision: str, devices: Sequence[Device], *, option: str = "--dtype") -> None:
    """One clear line where devices cannot compute in what was asked for: all of them, and what they have. `option`:
    which one asked."""
    without = [device for device in devices if device.peak(step_precision) is None]
    if not without:
        return
    have = "; ".join(
        f"{device.title} has no {step_precision}: it has "
        f"{', '.join(sorted({*device.core_flops_per_s, *device.tensor_flops_per_s}))}"
        for device in without
    )
    names = ",".join(device.name for device in without)
    others = f", or leave {names} out of --on" if len(without) < len(devices) else ""
    raise BadInput("unknown-peak", f"{have}; choose with {option}{others}")


def _model(device: str) -> tuple[CalibratedModel, str] | None:
    """By the calibration that there is now: `rooflight calibrate` may have made another since it was last asked for."""
    path = own_path(device)
    own = _own_model(device, path, path.stat().st_mtime_ns) if path.is_file() else None
    return _shipped_model(device) if own is None else own


@lru_cache(maxsize=8)
def _own_model(device: str, path: Path, written_ns: int) -> tuple[CalibratedModel, str] | None:
    """`None`: it holds only some works."""
    calibration = read(path)
    return None if calibration.partial else (CalibratedModel(calibration, speed_of(find(device))), str(path))


@cache
def _shipped_model(device: str) -> tuple[CalibratedModel, str] | None:
    calibration = shipped(device)
    return None if calibration is None else (CalibratedModel(calibration, speed_of(find(device))), COMES_ALONG)


def _published_names(device: Device) -> tuple[str, ...]:
    """The device and others of the same chip, those that somebody timed single ops on."""
    kin = [device.name]
    if not _same_chip(device, find(ORIGIN)):  # else the calibration itself is of its chip, and says more
        kin += [other.name for other in known() if other.name != device.name and _same_chip(device, other)]
    return tuple(name for name in kin if shipped(published_name(name)) is not None)


def _published_points(names: tuple[str, ...]) -> tuple[PointsOf, ...]:
    pairs = ((shipped(published_name(name)), find(name)) for name in names)
    return tuple(PointsOf(calibration, device) for calibration, device in pairs if calibration is not None)


def _same_chip(one: Device, other: Device) -> bool:
    """V100s on other boards, A100s with more memory: the kernels are the same ones."""
    alike = one.vendor == other.vendor and one.capability is not None and one.capability == other.capability
    return alike and abs(np.log(one.sms.value / other.sms.value)) < _SAME_UNITS


_SAME_UNITS = 0.05


def predictor(device: Device, tier: str | None = None, calibration: Calibration | None = None) -> Predictor:
    """The best tier that a device has, or the one that was asked for (`spec` is not made here)."""
    if calibration is not None and not calibration.partial:
        return Predictor(device, "calibrated", CalibratedModel(calibration, speed_of(device)), "the given calibration")
    if calibration is not None:
        return corrected(device, calibration, "the given calibration")
    calibrated = None if tier in ("published", "transferred") else _model(device.name)
    if calibrated is not None:
        return Predictor(device, "calibrated", *calibrated)
    if tier == "calibrated":
        raise BadInput(
            "not-calibrated",
            f"there is no calibration of {device.name}: make one there with `rooflight calibrate`, or leave "
            "--tier away",
        )
    if device.kind == "cpu":
        raise BadInput(
            "not-calibrated",
            f"no calibration of {device.name}, and a GPU's cannot be transferred to a CPU: run `rooflight "
            "calibrate --on cpu` there, or use --tier spec",
        )
    if not device.is_cuda:
        raise BadInput(
            "no-transfer",
            f"{device.vendor}'s GPUs run other kernels than CUDA's, so no measured times can be transferred to "
            f"{device.name}: use --tier spec",
        )
    names = () if tier == "transferred" else _published_names(device)
    if names:
        model, words, corrections = _published(names, _origin_model()[0], _older_than(device))
        host = _host_of(device, names)
        return Predictor(device, "published", model, f"{words}; {_said_of(host)}", corrections, host)
    if tier == "published":
        raise BadInput(
            "not-calibrated",
            f"nobody has published single ops of {device.name} that come with rooflight: leave --tier away",
        )
    model, words = _origin_model()
    host = _host_of(device, ())
    words = f"transferred from {ORIGIN} ({words}); {_said_of(host)}"
    return Predictor(device, "transferred", model, words, _of_older_gpus(model, _older_than(device)), host)


_WITH_CONVOLUTIONS = ("v100-pcie-32", "p100-pcie")
"""GPUs before the calibrated one whose convolutions in fp32 others timed; not those that their power holds back, whose
times say more of that, and none that is held out (benchmarks/held_out.toml)."""


def _older_than(device: Device) -> tuple[str, ...]:
    """Those of them, of other chips, that tell something of a device: none of one as new as the calibrated one."""
    if device.vendor != "NVIDIA" or (device.capability or 0) >= (find(ORIGIN).capability or 0):
        return ()
    return tuple(name for name in _WITH_CONVOLUTIONS if not _same_chip(device, find(name)))


@lru_cache(maxsize=8)
def _of_older_gpus(model: CalibratedModel, names: tuple[str, ...]) -> Corrections | None:
    """Convolutions in fp32 are faster on older GPUs than they are transferred: libraries have faster ways there,
    Winograd's among them. What is so on some of these GPUs is so on others: it halves the error there
    (benchmarks/transfer.py --across)."""
    points = tuple(
        PointsOf(
            with_points(row.calibration, points=tuple(filter(_is_convolution_in_fp32, row.calibration.points))),
            row.device,
        )
        for row in _published_points(names)
    )
    return Corrections(points, _transfer_to(model), own=False) if points else None


def _is_convolution_in_fp32(points: TimedPoints) -> bool:
    return points.family.startswith("conv-") and points.precision == "fp32"


def _host_of(device: Device, names: tuple[str, ...]) -> HostSpeed:
    """Of the machine that it is in: the calibrated one's own, that of those who published ops of its chip, or one as
    old as it is."""
    if device.name == ORIGIN:
        return CALIBRATED_HOST
    published = (shipped(published_name(name)) for name in names)
    told = (host_of_others(calibration.host) for calibration in published if calibration is not None)
    return next((host for host in told if host is not None), None) or usual_host(device)


def _said_of(host: HostSpeed) -> str:
    return f"{host.words}, which takes {host.ratio:.2g} times as long for a call as that of {ORIGIN} did"


@lru_cache(maxsize=16)
def _published(
    names: tuple[str, ...], model: CalibratedModel, older: tuple[str, ...]
) -> tuple[CalibratedModel, str, Corrections]:
    points = _published_points(names)
    sources = sorted({source for row in points for source in _sources(row.calibration)})
    count = sum(len(group.rows) for row in points for group in row.calibration.points)
    words = f"{count:,} single ops of {', '.join(sources)}; the rest transferred from {ORIGIN}"
    return model, words, _corrections(points, model, older)


def _corrections(points: tuple[PointsOf, ...], model: CalibratedModel, older: tuple[str, ...]) -> Corrections:
    """By these points; where none of them is a convolution in fp32, by those of older GPUs first."""
    own = any(_is_convolution_in_fp32(group) for row in points for group in row.calibration.points)
    return Corrections(points, _transfer_to(model), None if own else _of_older_gpus(model, older))


def corrected(device: Device, calibration: Calibration, words: str, *, published: bool = True) -> Predictor:
    """By a calibration of some works only: what is far from its points is transferred, and corrected by what others
    published where they did, unless that is not wanted."""
    if not device.is_cuda:
        raise BadInput(
            "no-transfer",
            f"a calibration of some works corrects times that are transferred from {ORIGIN}, and none can be "
            f"transferred to {device.name}: use --tier spec",
        )
    model, _ = _origin_model()
    names, older = _published_names(device) if published else (), _older_than(device)
    others = _published_points(names)
    before = _corrections(others, model, older) if others else _of_older_gpus(model, older)
    corrections = Corrections((PointsOf(calibration, device),), _transfer_to(model), before)
    host = _host_of(device, names)
    words = f"{words}, the rest transferred from {ORIGIN}; {_said_of(host)}"
    return Predictor(device, "partial", model, words, corrections, host)


def _sources(calibration: Calibration) -> set[str]:
    """`NeuSight`, from `NeuSight 6945927, linear, ...`."""
    return {group.source.split(" ")[0] for group in calibration.points}


def _transfer_to(model: CalibratedModel) -> Callable[[Sequence[Task], Device], tuple[Array, Array]]:
    def seconds(tasks: Sequence[Task], device: Device) -> tuple[Array, Array]:
        times = Predictor(device, "transferred", model, "").task_times(tasks)
        return times.warm_s, times.cold_s

    return seconds


def _origin_model() -> tuple[CalibratedModel, str]:
    origin = _model(ORIGIN)
    if origin is None:
        raise BadInput(
            "damaged-installation",
            f"the calibration of {ORIGIN} that comes with rooflight is missing: install it again",
        )
    return origin
