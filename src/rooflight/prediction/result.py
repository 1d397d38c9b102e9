"""What a prediction says. Times in seconds; every one of them comes with an interval and with how it was found."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from rooflight import views
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import Header, Note
from rooflight.memory.result import Memory
from rooflight.metrics import Bound, Fit
from rooflight.prediction.checked_steps import Checked
from rooflight.prediction.deviations import NINETY
from rooflight.prediction.resolve_devices import device_of

_NAMED = 6
"""Of so many predictions it is said that they are there."""


class Interval(msgspec.Struct, frozen=True):
    """The 90% interval, if errors are as they are among the calibrated points."""

    low: float
    """Seconds."""
    high: float
    """Seconds."""

    @classmethod
    def around(cls, value: float, deviation: float, *, least: float = 0.0) -> Interval:
        """Of an error with this standard deviation, as likely half as twice; but for what is below the `least` that
        physics allows."""
        times = math.exp(NINETY * deviation / value) if value > 0 else 1.0
        return cls(min(value, max(least, value / times)), value * times)

    def holds(self, value: float) -> bool:
        """But for rounding."""
        return self.low <= value * (1 + 1e-9) and value <= self.high * (1 + 1e-9)

    def or_later(self, other: Interval, times: float) -> Interval:
        """Of the later of two ends, and what comes to it: `times` the later one."""
        return Interval(times * max(self.low, other.low), times * max(self.high, other.high))


class CostlyOp(msgspec.Struct, frozen=True, kw_only=True):
    """Ops that are alike (same shapes, same work), together."""

    name: str
    """As `aten::convolution`."""
    calls: int
    """How many of them the step has."""
    time_s: float
    """Of all of them."""
    share: float
    """Of the device's time in the step."""
    module: str
    """Of the first of them."""
    shapes: str
    """Of its first two inputs."""
    precision: str
    """That it runs in."""
    bound: Bound
    """What bounds it."""
    percent_of_roof: float | None
    """Of the least time that the roofs allow; `None`: no roof is known."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change, and what it makes of the step. Of a predicted step `time_s` is what `predict` with `options` says."""

    change: str
    """In words."""
    key: str = ""
    """Short."""
    options: str = ""
    """What to add to the command, or to change in it."""
    how: str = ""
    """How a sentence about it begins."""
    origin: str = ""
    """How its effect was found."""
    time_s: float | None
    """Of a step with it, by the wall; `None`: the wall was not measured."""
    throughput: float | None = None
    """Samples a second with it; `None`: the batch is not known."""
    gain: float
    """Throughput with it over throughput without, less 1; of the kernels alone where no wall was measured."""
    wall_time_s: float | None = None
    """Of the step without it."""
    kernel_time_s: float = 0.0
    """Of the kernels that it is about, of a layer or of the step, without it ..."""
    changed_kernel_time_s: float = 0.0
    """... and with it."""
    gain_of_kernels: float = 0.0
    """What that saves, as part of the time of all kernels of the step."""
    samples: float = 1.0
    """So many times the samples are in the step then."""
    assumption: str = ""
    """What was taken for granted."""

    @property
    def saved_s(self) -> float:
        """Of the kernels."""
        return self.kernel_time_s - self.changed_kernel_time_s


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of communication of one GPU in a step."""

    what: str
    """What is sent, and for what."""
    calls: int
    """Messages in a step."""
    bytes: float
    """Of all its messages, as one GPU sends them."""
    time_s: float
    """Of all its messages, hidden or not."""
    how: str
    """Over which links and by which algorithm."""


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One size of run. Speed-ups and efficiency are against the first of its curve."""

    gpus: int
    """How many there are."""
    batch: int
    """Of one replica."""
    global_batch: int
    """Of all replicas."""
    time_s: float
    """Of one step."""
    throughput: float
    """Samples a second of all GPUs."""
    exposed_s: float
    """What communication makes the step longer by."""
    speedup: float
    """Throughput over that of the first point."""
    efficiency: float
    """`speedup` by how many times more GPUs there are."""
    gpu_bound_efficiency: float | None = None
    """The same with hosts that need no time, waiting for which hides communication; `None`: hosts are no limit."""
    paleo_speedup: dict[str, float]
    """By PALEO's own models of communication, with the same computation."""
    fit: Fit | None = None
    """Does the fullest of its GPUs have the memory? `None`: not looked for."""


class ClusterPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The step of one GPU among many. Bytes and times are of one GPU, the fullest; parameters are the model's, once."""

    parallel: str
    """How they work together, as `--parallel` takes it."""
    gpus: int
    """All of them."""
    nodes: int
    """Machines they are in."""
    gpus_per_node: int | None = None
    """In each of them; in the last one there may be fewer. `None`: an earlier version, which did not say."""
    tensor: int
    """GPUs that share every layer."""
    pipeline: int
    """Stages that layers are dealt to."""
    data: int
    """Replicas of the model."""
    batch: int
    """Of one replica."""
    global_batch: int
    """Of all replicas."""
    micro_batches: int
    """Parts that a replica's batch is cut into."""
    one_gpu_time_s: float
    """The same replica's step on one GPU alone."""
    compute_s: float
    """The GPU's own work, with no communication and no bubble."""
    host_wait_s: float
    """The part of `compute_s` that a host which needs no time would save."""
    bubble_s: float
    """In which a stage of the pipeline waits for others."""
    communication_s: float
    """Of all messages, hidden or not."""
    exposed_s: float
    """What communication makes the step longer by."""
    efficiency: float | None
    """Samples a second of one GPU among these over those of one alone; `None`: one alone cannot hold it."""
    parameters: int
    """The model's."""
    parameter_bytes: float
    """Held by one GPU."""
    gradient_bytes: float
    """Held by one GPU."""
    optimizer_bytes: float
    """Held by one GPU."""
    traffic: tuple[Traffic, ...] = ()
    """By kind."""
    weak: tuple[ScalingPoint, ...] = ()
    """Every replica keeps its batch."""
    strong: tuple[ScalingPoint, ...] = ()
    """The global batch is kept and divided."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted."""
    notes: tuple[Note, ...] = ()
    """What a reader should know of it."""

    @property
    def state_bytes(self) -> float:
        """Parameters, gradients and optimizer state that one GPU holds."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A whole training run, and what it costs."""

    epochs: int
    """How often the dataset is gone through."""
    dataset_size: int
    """Samples."""
    steps: int
    """Of the optimizer."""
    time_s: float
    """Of all of them."""
    time_interval_s: Interval
    """All steps at the ends of their interval."""
    cost: float | None = None
    """In the currency of the price; `None`: none was given."""


class PeakTime(msgspec.Struct, frozen=True, kw_only=True):
    """A step's matrix FLOPs over the peak: no memory, no kernels, no host."""

    precision: str
    """That the peak is of; several, where a step runs in several."""
    peak_flops_per_s: float | None
    """The peak; `None`: there are several, each over the FLOPs of its own precision."""
    time_s: float
    """FLOPs over the peak."""
    throughput: float | None
    """Samples a second at that; `None`: the batch is not known."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one device (or on several, `many`) at one batch."""

    device: str
    """Its name in the database, or that of its file."""
    tier: str
    """`calibrated`, `partial`, `published`, `transferred`, `guessed` or `spec`."""
    source: str
    """Which calibration, or which constant."""
    checked: Checked | None = None
    """How far such predictions were from steps that were timed on the device; `None`: an earlier version, which did
    not say."""
    batch: int | None
    """Samples of one step; `None`: not known."""
    time_s: float
    """Of one step among many, by a watch: the later of host and device."""
    time_interval_s: Interval
    """Around `time_s`."""
    gpu_time_s: float
    """In which the device works; with `many`, one of its GPUs: divided kernels, over all its micro-batches."""
    gpu_time_interval_s: Interval
    """Around `gpu_time_s`."""
    host_time_s: float | None = None
    """In which the host works (with `many`, that of the same GPU); `None`: the tier knows no host."""
    host_time_interval_s: Interval | None = None
    """Around `host_time_s`; `None`: no host is known, or it is one of many."""
    throughput: float | None
    """Samples a second."""
    tokens_per_s: float | None = None
    """Where the model has a sequence."""
    flops: int = 0
    """Useful matrix FLOPs of the step."""
    flops_over_peak: tuple[PeakTime, ...] = ()
    """`flops` over the peak in the step's precision and, of fp32, in double precision: the least that a table of FLOPs
    and a data sheet give."""
    mfu: float | None = None
    """Useful matrix FLOPs over what the units they run on could do in the step's time."""
    bound: Bound
    """What bounds the step."""
    percent_of_roof: float
    """The least time that the roofs allow for all ops, over the device's time; above 100 only where a cache holds the
    bytes of most of them."""
    intensity: float | None = None
    """FLOPs that must be computed for every compulsory byte."""
    inside: float | None = None
    """Part of the device's time in ops whose shapes lie among the calibrated ones."""
    kernels: int | None = None
    """Launches of a step; `None`: the tier does not count them."""
    phases: dict[str, float] = {}
    """The device's time by phase: the parts of `gpu_time_s`."""
    ops: tuple[CostlyOp, ...] = ()
    """The ten costliest kinds of ops."""
    advice: tuple[Advice, ...] = ()
    """What would make it faster, the best first; then a larger batch, which is another step."""
    advised: bool = False
    """Was advice looked for?"""
    op_times_s: tuple[float, ...] = ()
    """Of every op of the step, in its order."""
    op_least_s: tuple[tuple[float, float], ...] = ()
    """Of the same ops, the least times at the roofs: of compute and of memory."""
    roofline: dict[str, Any] | None = None
    """Roofs, ridges and points, where they were asked for."""
    memory: Memory | None = None
    """Of the device, of one GPU where there are many; before anything has run."""
    max_batch: int | None = None
    """The largest batch that fits, where it was asked for."""
    max_seq: int | None = None
    """The longest sequence that fits at this batch, where it was asked for."""
    measured_time_s: float | None = None
    """The wall time that the step took on this very device, where it is a ledger's that was measured on it."""
    measured_gpu_time_s: float | None = None
    """The GPU-busy time of the same."""
    many: ClusterPrediction | None = None
    """The run on several GPUs that `time_s`, `throughput` and `mfu` are then of. `gpu_time_s`, its interval (as wide,
    for its length, as one GPU's), `host_time_s` and `phases` are of one GPU of it, in a pipeline of the slowest stage;
    the rest is of one GPU alone with a replica's whole batch."""

    @property
    def fit(self) -> Fit | None:
        """Does it fit? `None`: its memory is not known."""
        return None if self.memory is None else self.memory.fit

    @property
    def wall_time_s(self) -> float:
        """The same as `time_s`, by its full name."""
        return self.time_s

    @property
    def gpu_busy_s(self) -> float:
        """The same as `gpu_time_s`, by its full name: the time in which the device works, not the sum of kernels."""
        return self.gpu_time_s

    @property
    def error(self) -> float | None:
        """Of the predicted time against the measured one, where there is one."""
        return self.time_s / self.measured_time_s - 1 if self.measured_time_s else None

    @property
    def gain(self) -> float | None:
        """What the best change of this very step gains; `None` where none was looked for, 0 where none is worth it. A
        larger batch is another step."""
        return max(
            (change.gain for change in self.advice if change.samples == 1), default=0.0 if self.advised else None
        )

    @property
    def gpus(self) -> int:
        """How many of the device work together."""
        return 1 if self.many is None else self.many.gpus

    def run(
        self, epochs: int, dataset_size: int, price: float | None = None, *, accumulate: int = 1
    ) -> TrainingRun | None:
        """So many epochs of so many samples; `price` is of one device for an hour. `None`: the batch is not known."""
        samples = self.many.global_batch if self.many is not None else (self.batch or 0) * accumulate
        if not samples:
            return None
        steps = epochs * -(-dataset_size // samples)
        low, high = self.time_interval_s.low, self.time_interval_s.high
        return TrainingRun(
            epochs=epochs,
            dataset_size=dataset_size,
            steps=steps,
            time_s=steps * self.time_s,
            time_interval_s=Interval(steps * low, steps * high),
            cost=None if price is None else price * self.gpus * steps * self.time_s / 3600,
        )

    def cost_of_samples(self, samples: int, price: float) -> float | None:
        """What so many samples cost at this price of one device for an hour."""
        return price * self.gpus * samples / self.throughput / 3600 if self.throughput else None


class MemorySaving(msgspec.Struct, frozen=True, kw_only=True):
    """A change that takes less memory, and what the same prediction says of the step with it."""

    device: str
    """Where it was predicted for."""
    batch: int | None
    """At which."""
    change: str
    """In words."""
    options: str
    """What to add to the command, or to change in it."""
    peak_allocated_bytes: int
    """With the change."""
    peak_reserved_bytes: int | None
    """With the change."""
    device_bytes: int
    """With the change: what a tool outside the process sees."""
    saved_bytes: int
    """Of the device's."""
    fits: bool
    """Would it run then?"""
    fit: Fit | None = None
    """The same, and whether barely."""
    time_s: float | None = None
    """Of a step with it; `None`: not predicted."""
    throughput: float | None = None
    """Samples a second with it."""


class SizeLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How large a step can be on a device, and how that was found."""

    device: str
    """Where it was looked for."""
    what: Literal["batch", "sequence"]
    """What was made larger."""
    batch: int | None = None
    """At which a longest sequence was looked for."""
    value: int
    """0: nothing that was tried fits. Of many GPUs, a replica's."""
    unit: int = 1
    """What it is a multiple of: a pipeline's micro-batches are of one size."""
    fails: int | None
    """The least larger one that does not fit; `None`: it is not memory that ends it."""
    why: str = ""
    """What ends it, where that is not memory."""
    how: str = ""
    """How it was found."""
    memory: Memory | None = None
    """Of the largest that fits."""
    with_expandable_segments: int | None = None
    """The value with segments that grow, of a batch on a GPU where that was not set."""
    expandable_settings: str = ""
    """PYTORCH_CUDA_ALLOC_CONF with which that is so."""


class NoPrediction(BadInput, KeyError):
    """Not among those that were asked for. A `KeyError` too, as of anything that is looked up."""


class Predictions(views.Shown, msgspec.Struct, frozen=True, kw_only=True):
    """One prediction for every device and batch."""

    header: Header
    """Of the step; without a batch where there are several."""
    predictions: tuple[Prediction, ...]
    """In the order of devices, then batches."""
    notes: tuple[Note, ...] = ()
    """What a reader should know of all of them."""
    devices: tuple[Device, ...] = ()
    """As the database or their files describe them."""
    calibrations: dict[str, str] = {}
    """By device: which calibration, made when, with what."""
    precisions: tuple[str, ...] = ()
    """That matrix work runs in."""
    graphs: bool = False
    """Is the step one CUDA graph?"""
    traces: int = 1
    """Made for all of them: one for every generation of GPUs that runs the step in other kernels."""
    limits: tuple[SizeLimit, ...] = ()
    """The largest batch or sequence of every device, where it was asked for."""
    savings: tuple[MemorySaving, ...] = ()
    """What would take less memory, each predicted."""

    def __iter__(self) -> Any:
        return iter(self.predictions)

    def __len__(self) -> int:
        return len(self.predictions)

    def __getitem__(self, place: int) -> Prediction:
        return self.predictions[place]

    def at(self, device: str, batch: int | None = None) -> Prediction:
        """The prediction for a device, at a batch where there are several."""
        name = device if device in {row.device for row in self} else device_of(device).name
        for row in self.predictions:
            if row.device == name and batch in (None, row.batch):
                return row
        asked = device if batch is None else f"{device} at batch {batch}"
        there = [f"{row.device} at batch {row.batch}" for row in self.predictions]
        more = f", and {len(there) - _NAMED:,} more" if len(there) > _NAMED else ""
        raise NoPrediction("no-prediction", f"no prediction for {asked}; there are {', '.join(there[:_NAMED])}{more}")
