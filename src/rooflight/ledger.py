"""The one data model: a ledger holds one row for every operation of a step.

The trace writes the rows, the estimate and the measurement fill them from two sides, everything else reads them.
Nothing here needs torch. All structures are frozen; changing a ledger means making another (`msgspec.structs.replace`).

Units are SI and stand in the names. `None` is unknown, `0` is proven zero.

The rows are hidden from Python's garbage collector (`gc=False`): they hold no cycles, and walking tens of thousands of
them again and again made a trace's cost grow faster than its length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, get_args

import msgspec

from rooflight import views

FORMAT_VERSION = 5

Phase = Literal["forward", "backward", "optimizer", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""In the order in which they are shown."""
PASSES: tuple[Phase, ...] = ("forward", "backward")
"""Phases that go through the model; the others are done once in a step, whatever the number of passes."""
Kind = Literal["compute", "view", "host"]
StepKind = Literal["infer", "train", "decode"]
Execution = Literal["eager", "compile", "graph", "compile+graph"]
COMPILED: tuple[Execution, ...] = ("compile", "compile+graph")
GRAPHS: tuple[Execution, ...] = ("graph", "compile+graph")
Category = Literal["parameter", "buffer", "gradient", "optimizer-state", "input", "output", "activation", "temporary"]

LOSS = "<loss>"
"""Module path of the loss, which is no part of the model."""
OWN_LOSS = "model's own"
"""What a header says of the loss where the model's output is or has one."""
OPTIMIZER = "<optimizer>"
"""Module path of the optimizer's ops."""
OTHER = "<other>"
"""Module path of what a step does besides: data preparation, gradient clipping, averages of weights."""
OUTSIDE = (LOSS, OPTIMIZER, OTHER)
"""Module paths that are no part of the model."""

Dtype = Literal[
    "fp64", "fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "bool", "complex32", "complex64", "complex128",
]  # fmt: skip
DTYPE_BYTES: dict[str, int] = {
    "fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip
LARGEST = 2**63 - 1
"""No whole number of a step is larger: torch counts elements and bytes in 64 bits."""
Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]


class Tensor(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What an op sees of a tensor: its shape, and which storage its elements lie in."""

    storage: Size
    """`id` of the `Storage` its elements lie in."""
    shape: tuple[Size, ...]
    """Sizes of its dimensions."""
    dtype: Dtype
    """Type of one element."""
    strides: tuple[int, ...] | None = None
    """`None` when contiguous."""
    offset: Size = 0
    """Elements between the start of the storage and its first element."""

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of its distinct elements: an expanded (stride 0) dimension is there once, overlaps too."""
        numel = math.prod(self.shape)
        if self.strides is None or not numel:
            return numel * DTYPE_BYTES[self.dtype]
        sizes = list(zip(self.shape, self.strides, strict=True))
        distinct = math.prod(size for size, stride in sizes if stride != 0)
        span = 1 + sum((size - 1) * abs(stride) for size, stride in sizes)
        return min(distinct, span) * self.itemsize

    @property
    def channels_last(self) -> bool:
        """Is it a 4-d (or 5-d) tensor whose channels lie closest together?"""
        return self.strides is not None and len(self.shape) in (4, 5) and self.strides[1] == 1 and self.shape[1] > 1


Scalar = int | float | bool | str | None
Arg = Tensor | list[Tensor | Scalar] | Scalar


def tensors_in(values: Iterable[Arg]) -> Iterator[Tensor]:
    """Lists opened."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, Tensor))


class Storage(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A block of memory and when it lives, counted in ops of the step."""

    id: Size
    """What tensors call it by; unique in the ledger."""
    nbytes: Size
    """Bytes that were asked for, before an allocator rounds them."""
    category: Category
    """What it holds."""
    born: Size | None = None
    """Index of the op that made it; `None`: it was there before the step."""
    dies: Size | None = None
    """Index of the first op that runs after it was freed; `None`: it outlives the step."""
    name: str = ""
    """Parameter, buffer or input name where it has one."""
    host: bool = False
    """It lies in the memory of the CPU although the step is for another device."""


class Cost(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What the mathematics says one op costs. Every quantity comes from the formula that `origin` names."""

    origin: str
    """Which formula, as `formula aten::mm`."""
    macs: Size | None = None
    """Multiply-adds of useful matrix work (convolution, matmul, attention)."""
    flops: Size | None = None
    """2 x macs."""
    other_flops: Size | None = None
    """1 per arithmetic result, transcendental or comparison outside matrix work."""
    bytes_read: Size | None = None
    """Compulsory: every distinct input once."""
    bytes_written: Size | None = None
    """Compulsory: every output once."""
    flops_causal: Size | None = None
    """`flops` with only the half of the attention matrix that a causal mask keeps; equals `flops` elsewhere."""
    recompute_flops: Size | None = 0
    """Matrix FLOPs done a second time (flash backward, checkpointing); not part of `flops`."""


Key = tuple[int, str, str, int, str, int]
"""What an op is known by in every ledger of a step."""


class Op(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One dispatcher call below autograd and autocast."""

    index: int
    """Place in the ledger, counted from 0."""
    phase: Phase
    """Part of the step it ran in."""
    module: str
    """Path of the module it ran in; "" is the model itself."""
    call: int
    """Which call of that module, counted from 0."""
    name: str
    """With overload: `aten::add.Tensor`."""
    ordinal: int
    """Counts the ops that share all of the above but the index."""
    rank: int = 0
    """Process of a distributed step."""
    kind: Kind = "compute"
    """`view` moves nothing, `host` runs on the CPU of a step for another device; both cost nothing."""
    precision: str = ""
    """The precision the arithmetic runs in on the target: `tf32` for an fp32 convolution where torch allows it."""
    args: dict[str, Arg] = {}
    """By schema name; defaulted arguments are absent. A sparse tensor is the list of its parts, values last, in an op
    named `sparse::mm` and the like."""
    outputs: tuple[Tensor, ...] = ()
    """Tensors it gave."""
    mutates: tuple[str, ...] = ()
    """Names of arguments written in place."""
    recompute: bool = False
    """Run again during backward (checkpointing)."""
    attention: int = 0
    """Which call of attention that runs as plain matrix products it is a part of, counted from 1; negative in its
    backward."""
    routed: int = 0
    """Experts that each token goes to, of a product grouped by expert; 0: not known."""
    line: str = ""
    """File and line of the Python that asked for its result, of an op that the host waits for."""
    cost: Cost | None = None
    """What the mathematics says; `None`: no formula is known."""

    @property
    def key(self) -> Key:
        """What tells it from all other ops of the step, also in another ledger of the same step."""
        return (self.rank, self.phase, self.module, self.call, self.name, self.ordinal)

    @property
    def packet(self) -> str:
        """The name without its overload: `aten::add`."""
        return self.name.partition(".")[0]

    def tensor(self, name: str) -> Tensor:
        """The tensor argument `name`; a missing one is a mistake of the formula, not of the user."""
        value = self.args.get(name)
        if not isinstance(value, Tensor):
            raise KeyError(f"{self.name} has no tensor argument {name!r}")
        return value

    def tensors(self, name: str) -> list[Tensor]:
        """The tensors of a list argument (or of a single one); absent ones are left out."""
        value = self.args.get(name)
        if isinstance(value, Tensor):
            return [value]
        return [item for item in value if isinstance(item, Tensor)] if isinstance(value, list) else []

    def ints(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """The whole numbers of an argument, one or a list; `default` where it was not given."""
        value = self.args.get(name)
        if isinstance(value, list):
            return [int(item) for item in value if isinstance(item, int)]
        return [value] if isinstance(value, int) and not isinstance(value, bool) else list(default)

    def has(self, name: str) -> bool:
        """Was the argument given, and is it not None?"""
        return self.args.get(name) is not None

    @property
    def inputs(self) -> Iterator[Tensor]:
        """Every tensor that goes in, lists opened, in the order of the schema."""
        return tensors_in(self.args.values())


class Module(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A module of the model. Parameters are counted at their first owner, so that the rows sum to the model's."""

    path: str
    """Name in the model, as `layer1.0.conv1`; "" is the model itself."""
    type: str
    """Name of its class."""
    params: Size = 0
    """Own parameters, without those of children."""
    trainable_params: Size = 0
    """Those of `params` that get a gradient."""
    param_bytes: Size = 0
    """Bytes of `params`."""
    buffer_bytes: Size = 0
    """Bytes of its own buffers."""
    tied: tuple[str, ...] = ()
    """Own parameters that another module already owns."""
    calls: Size = 0
    """How often the step called it."""
    inputs: tuple[tuple[Size, ...], ...] = ()
    """Shapes of the tensors its first call got, and gave."""
    outputs: tuple[tuple[Size, ...], ...] = ()
    """Shapes of the tensors its first call gave."""
    output_dtypes: tuple[Dtype, ...] = ()
    """Types of `outputs`, in the same order."""

    @property
    def output_bytes(self) -> int:
        """Bytes of the tensors one call gives."""
        return sum(
            math.prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in zip(self.outputs, self.output_dtypes, strict=True)
        )

    def pass_output_bytes(self, accumulate: int = 1) -> int:
        """Outputs of all calls of one forward pass, each taken to be like the first; `accumulate` passes in a step."""
        return self.output_bytes * max(self.calls // accumulate, 1)


class Value(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A measured quantity and the counter, clock or spec it was read from."""

    value: int | float
    """The number, in the unit of its name."""
    origin: str
    """The counter, clock or specification."""
    low: int | float | None = None
    """Least and greatest of the repeats that `value` is the median of; `None` where there was one."""
    high: int | float | None = None
    """Greatest of the repeats."""


KernelKind = Literal["kernel", "copy", "set", "primitive", "op"]
HostCallKind = Literal["synchronisation", "allocator", "data"]
Scope = Literal["op", "region", "graph", "step", "collective", "program"]


class Kernel(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One kernel launch. It belongs to one op, or to several when they were fused or captured together."""

    name: str
    """As the profiler gives it."""
    ops: tuple[int, ...] = ()
    """Empty: nothing tells which op it belongs to."""
    kind: KernelKind = "kernel"
    """`copy` and `set` are the copy engine's work; a `primitive` is a CPU library's, an `op` a call of torch on the CPU
    in a log from elsewhere."""
    grid: tuple[int, int, int] | None = None
    """Thread blocks in x, y, z; `None`: no kernel of a GPU, or not told."""
    block: tuple[int, int, int] | None = None
    """Threads of a block in x, y, z."""
    tile: tuple[int, ...] | None = None
    """Rows and columns (and depth) of the output tile of one thread block, where the name tells."""
    stream: int | None = None
    """Stream of the GPU it ran on."""
    start_s: float | None = None
    """Counted from the step's first kernel."""
    time_s: float | None = None
    """How long it ran; all `calls` of it together."""
    calls: Count = 1
    """Launches that the row stands for: more than one where a log has only the sum of them."""
    launch_s: float | None = None
    """When the host began to launch it, on the clock of `start_s`: negative before the first kernel ran."""
    launch_time_s: float | None = None
    """How long that call took the host."""
    label: str = ""
    """The range it was launched in, where a log names one; of a `primitive`, the sizes of its problem."""
    quantities: dict[str, Value] = {}
    """What was counted for this kernel alone."""


class HostCall(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What kept the host from launching kernels, as the profiler saw it."""

    kind: HostCallKind
    """`synchronisation` waits for the GPU, `allocator` asks the driver for memory or gives it back, `data` waits for
    the next batch."""
    name: str
    """Of the call or the range: `cudaStreamSynchronize`."""
    start_s: float
    """On the clock of a kernel's `start_s`: negative before the first kernel ran."""
    time_s: float
    """How long it took the host."""


class Measurement(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Quantities over a set of ops: one op, a region, a compiled graph, the whole step, what ranks do together, or a
    program from its first region to its last. Modules are sums of ops.

    The names of quantities are those of `rooflight.metrics`, or a counter's own.
    """

    scope: Scope
    """What the set of ops is."""
    ops: tuple[int, ...] = ()
    """Indices of the ops it is over; empty for a region, whose ops are not known."""
    quantities: dict[str, Value] = {}
    """By name, each with its origin."""
    name: str = ""
    """What a region or graph is called."""
    parts: dict[str, float] = {}
    """Of a region or program: which part of its time was spent in each region directly inside it, by name."""
    times_s: tuple[float, ...] = ()
    """Of a region: the times of its executions in their order; of many, medians of as many neighbours each."""


class MathModes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The switches that decide which unit fp32 work runs on."""

    tf32_conv: bool
    """fp32 convolutions may run in TF32."""
    tf32_matmul: bool
    """fp32 matrix products may run in TF32."""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Something that a reader of the numbers should know: what could not be measured and why, what was assumed."""

    code: str
    """A name for programs, such as `random-inputs`; empty in files of before format 5, where a note was a text."""
    text: str
    """A sentence for people, which may be improved at any time."""

    def of(self, where: str) -> Note:
        """Return the same note, said of one of several."""
        return Note(self.code, f"{where}: {self.text}")

    def __str__(self) -> str:
        return self.text


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What was run, how, and what could not be said about it."""

    rooflight: str
    """Version that wrote the ledger."""
    torch: str | None
    """`None` here and below: a log from elsewhere does not tell."""
    model: str
    """Name it was asked for by, or the class of a live module."""
    step: StepKind | None
    """`infer`, `train` or `decode`."""
    target: str
    """What the step was traced for: `cuda`, `cuda:80`, `cpu`."""
    batch: Count | None
    """`None`: a live module whose inputs do not tell it."""
    dtype: str | None
    """Type the model was converted to."""
    math: MathModes | None
    """Whether fp32 work runs in TF32."""
    tf32: bool | None = None
    """As it was asked for, for convolutions and matrix products alike; `None`: as torch has it."""
    sequence: Size | None = None
    """Length of the sequence, where the model has one."""
    seq: Size | None = None
    """The same as it was asked for; `None`: as the model, its inputs or `input` have it."""
    past: Size | None = None
    """Tokens that are in the cache already, for `decode`."""
    autocast: str | None = None
    """Type of autocast; `None`: without."""
    loss: str | None = None
    """Loss of a training step."""
    optimizer: str | None = None
    """Optimizer of a training step."""
    foreach: bool | None = None
    """Was the optimizer to take all tensors at once? `None`: as torch chooses."""
    accumulate: Count = 1
    """Forward and backward passes before one optimizer step."""
    checkpoint: tuple[str, ...] = ()
    """Modules with activation checkpointing, as given in `--checkpoint`."""
    execution: Execution = "eager"
    """How the step was run."""
    channels_last: bool = False
    """Was the model, and images with it, put into channels_last?"""
    fused: bool = False
    """Does the optimizer do a step's work in one kernel?"""
    pad: bool = False
    """Are odd sizes of products padded? Only in predictions: of what really ran, the shapes tell."""
    settings: dict[str, str] = {}
    """Constructor arguments that the model was built with, as `--set` gives them."""
    input: str | None = None
    """Shape of one sample, as `--input` gives it; `None`: the model's own."""
    download: bool = False
    """Might its configuration be downloaded?"""
    live: bool = False
    """Was it a live module of Python, which nobody can build by name?"""
    program: bool = False
    """Was it code of the caller's own, a step that rooflight did not compose?"""
    gpus: Count = 1
    """GPUs of a node that a prediction is for."""
    nodes: Count = 1
    """Nodes that a prediction is for."""
    parallel: str | None = None
    """How they work together."""
    micro_batches: Count | None = None
    """Parts of a replica's batch, in a pipeline."""
    traced_on: str = "meta"
    """Where the trace ran: `meta` is on tensors without data."""
    inputs: tuple[tuple[str, Tensor], ...] = ()
    """Names and tensors the model was called with."""
    outputs: tuple[Tensor, ...] = ()
    """Tensors it gave."""
    rank: int = 0
    """Process this ledger is of."""
    world: int = 1
    """How many processes there were."""
    device: str | None = None
    """Name of the device as its driver gives it; `None`: nothing was run on one."""
    cuda: str | None = None
    """Version of CUDA."""
    driver: str | None = None
    """Version of the driver."""
    conditions: dict[str, str] = {}
    """Clocks, power, throttling, other processes while it ran; empty for a trace without a device."""
    rates: dict[str, Value] = {}
    """Of the processor of a step on a CPU: its `threads` and `cores`, FLOP/s of all cores by precision (`peak.fp32`),
    seconds of a `page_fault`; empty for a GPU."""
    command: str = ""
    """Command line that makes it again."""
    recording: str = ""
    """Name of the recording that it is, of those that come with rooflight."""
    notes: tuple[Note, ...] = ()
    """What could not be measured and why, what was assumed."""

    @property
    def is_compiled(self) -> bool:
        """Does torch.compile run it?"""
        return self.execution in COMPILED

    @property
    def is_graph(self) -> bool:
        """Is the whole step one CUDA graph?"""
        return self.execution in GRAPHS


class Ledger(views.Shown, msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One step: what it was, its modules, its memory, its ops, and what was measured over them."""

    format_version: int
    """Version of this format; `rooflight.load` migrates older ones."""
    header: Header
    """What was run, and how."""
    modules: tuple[Module, ...] = ()
    """The module tree, parents first."""
    storages: tuple[Storage, ...] = ()
    """Every block of memory that the step touches."""
    ops: tuple[Op, ...] = ()
    """Every op, in the order in which they ran."""
    kernels: tuple[Kernel, ...] = ()
    """Every kernel that was measured."""
    measurements: tuple[Measurement, ...] = ()
    """What was measured, over sets of ops."""
    host_calls: tuple[HostCall, ...] = ()
    """Calls that kept the host from launching kernels, in the run that the kernels' starts are of."""

    def roofline(self, on: str | None = None) -> Any:
        """The roofline as a chart, interactive in a notebook. A step that was measured on a GPU is shown on that; of
        any other, times are predicted for `on`, a device by name or file."""
        return views.roofline(self, on)


class Uncounted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An op that a total does not cover."""

    op: str
    calls: int


class Totals(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sums over ops, and the ops they do not cover. Bytes assume no reuse between ops."""

    macs: int = 0
    flops: int = 0
    other_flops: int = 0
    flops_causal: int = 0
    recompute_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    ops: int = 0
    uncounted: tuple[Uncounted, ...] = ()

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Totals) -> Totals:
        if not other.ops:
            return self
        if not self.ops:
            return other
        missing: Counter[str] = Counter()
        for row in (*self.uncounted, *other.uncounted):
            missing[row.op] += row.calls
        sums = {quantity: getattr(self, quantity) + getattr(other, quantity) for quantity in QUANTITIES}
        return Totals(**sums, ops=self.ops + other.ops, uncounted=_listed(missing))

    @property
    def work_flops(self) -> int:
        """All that must be computed: causal matrix work, recomputation and other arithmetic."""
        return self.flops_causal + self.recompute_flops + self.other_flops

    @property
    def intensity(self) -> float | None:
        """FLOPs that must be computed for every compulsory byte."""
        return self.work_flops / self.bytes if self.bytes else None


QUANTITIES = ("macs", "flops", "other_flops", "flops_causal", "recompute_flops", "bytes_read", "bytes_written")
_QUANTITIES_OF = attrgetter(*QUANTITIES)


def total(ops: Iterable[Op]) -> Totals:
    """Add up the costs of ops. A row with an unknown quantity adds what is known and is listed as uncounted."""
    missing: Counter[str] = Counter()
    n, costs = 0, []
    for op in ops:
        n += 1
        if op.cost is None:
            missing[op.name] += 1
            continue
        values = _QUANTITIES_OF(op.cost)
        if None in values:
            missing[op.name] += 1
            values = tuple(value or 0 for value in values)
        costs.append(values)
    sums = map(sum, zip(*costs, strict=True))
    return Totals(**dict(zip(QUANTITIES, sums, strict=False)), ops=n, uncounted=_listed(missing))


def _listed(missing: Counter[str]) -> tuple[Uncounted, ...]:
    return tuple(Uncounted(op=name, calls=calls) for name, calls in missing.most_common())


def is_inside(path: str, module: str) -> bool:
    """Is `path` the module itself or something below it? The model ("") contains all but what is outside of it."""
    if module == "":
        return path not in OUTSIDE
    return path == module or path.startswith(module + ".")
