"""Which counters to ask of each chip, and what they are worth: names, quantities and weights.

The names were checked against CUPTI's own tables (see the tests). Nothing here needs a GPU, CUPTI or torch.

Tensor cores count operations (`sm__ops_path_tensor_...`, a multiply-add is 2). A counter of a family already holds its
`_sparsity_on` and `_sparsity_off` parts: they are never added to it. CUDA cores count instructions of single threads;
what one instruction is worth is its weight.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rooflight.errors import CannotMeasure
from rooflight.ledger import Value

Level = Literal["dram", "l2", "l1"]

EMPTY_RANGE_BYTES = 512
"""A range with nothing in it reads or writes 0 to 512 bytes of DRAM: up to here nothing can be said."""


@dataclass(frozen=True)
class Counter:
    """One hardware counter, the quantity it is part of, and what one count adds to it."""

    metric: str
    quantity: str
    weight: int = 1


@dataclass(frozen=True)
class _Pipe:
    """A counter of instructions that tells whether some tensor operations ran at all, and which those may be."""

    metric: str
    precisions: tuple[str, ...]
    less: str | None = None
    """Instructions to take off: HFMA2.MMA runs in the same pipe and is no matrix work."""


@dataclass(frozen=True)
class _ChipFamily:
    """The tables of chips that count alike."""

    chips: str
    """A regular expression of their names."""
    tensor: str
    """What follows `sm__ops_path_tensor_src_` in the names of their tensor counters."""
    pipes: tuple[_Pipe, ...]
    paired_fp32: bool = False
    """Has FADD2, FMUL2 and FFMA2, which work on two fp32 values."""
    # The memory of Jetsons and of GB20B is the CPU's: nothing counts its bytes.
    dram: tuple[str, str] | None = ("dram__bytes_read.sum", "dram__bytes_write.sum")


_INSTRUCTIONS = "sm__inst_executed_pipe_"
_HFMA2 = f"{_INSTRUCTIONS}tensor_op_hmma_type_hfma2.sum"


def _pipe(name: str, precisions: str, *, less: str | None = None) -> _Pipe:
    return _Pipe(f"{_INSTRUCTIONS}{name}.sum", tuple(precisions.split()), less)


_AMPERE = "tf32_dst_fp32 bf16_dst_fp32 fp16_dst_fp32 fp16_dst_fp16 fp64 int8 int4 int1"
_BLACKWELL = "tf32_dst_fp32 bf16_dst_fp32 fp16_dst_fp32 fp16_dst_fp16 fp4_dst_fp32 fp64 int8"
_MIXED_TOGETHER = "fp4_fp6_fp8_dst_fp32 fp4_fp6_fp8_dst_fp16"
_MIXED_APART = "fp8_dst_fp32 fp8_dst_fp16 fp4_fp6_dst_fp32 fp4_fp6_dst_fp16"
_HALVES, _INTS = "tf32 bf16 fp16", "int8 int4 int1"
_DMMA_IN_FP64 = _pipe("fp64_op_dmma", "fp64")
_BLACKWELL_PIPES = (_pipe("tensor_subpipe_hmma", f"{_HALVES} fp8 fp4"), _pipe("tensor_subpipe_imma", "int8"))

_FAMILIES = (
    _ChipFamily("GV100", "fp16_dst_fp32 fp16_dst_fp16", (_pipe("tensor_op_hmma", "fp16"),)),
    _ChipFamily(
        "TU10[0-9]",
        "fp16_bf16_tf32_dst_fp32 fp16_dst_fp16 int8 int4 int1",
        (_pipe("tensor_op_hmma", "fp16"), _pipe("tensor_op_imma", _INTS)),
    ),
    # No tensor cores, yet HMMA and IMMA are part of sm_75 and run here too, only slowly (on a GTX 1660 in
    # github.com/tracel-ai/cubecl/pull/1588). CUPTI's table counts such instructions, but not what they are worth.
    _ChipFamily("TU11[0-9]", "", (_pipe("tensor_op_hmma", "fp16"), _pipe("tensor_op_imma", _INTS))),
    _ChipFamily(
        "GA100",
        _AMPERE,
        (
            _pipe("tensor_op_hmma", _HALVES, less=_HFMA2),
            _pipe("tensor_op_imma", _INTS),
            _pipe("tensor_op_dmma", "fp64"),
        ),
    ),
    _ChipFamily(
        "GA10[1-9]", _AMPERE, (_pipe("tensor_op_hmma", _HALVES), _pipe("tensor_op_imma", _INTS), _DMMA_IN_FP64)
    ),
    _ChipFamily(
        "GA10B",
        _AMPERE,
        (_pipe("tensor_op_hmma", _HALVES, less=_HFMA2), _pipe("tensor_op_imma", _INTS), _DMMA_IN_FP64),
        dram=None,
    ),
    _ChipFamily(
        "AD10[0-9]",
        f"{_AMPERE} fp8",
        (_pipe("tensor_op_hmma_v2", f"{_HALVES} fp8"), _pipe("tensor_op_imma_v2", _INTS), _DMMA_IN_FP64),
    ),
    # Hopper's warp-group instructions are counted in the pipes they use: HGMMA and QGMMA with HMMA, IGMMA with IMMA.
    _ChipFamily(
        "GH100",
        "tf32_dst_fp32 bf16_dst_fp32 fp16 fp8 fp64 int8 int1",
        (
            _pipe("tensor_op_hmma", f"{_HALVES} fp8", less=_HFMA2),
            _pipe("tensor_op_imma", "int8 int1"),
            _pipe("tensor_op_dmma", "fp64"),
        ),
    ),
    _ChipFamily(
        "GB10[0-9]",
        f"{_BLACKWELL} {_MIXED_TOGETHER}",
        (*_BLACKWELL_PIPES, _pipe("tensor_subpipe_dmma", "fp64")),
        paired_fp32=True,
    ),
    _ChipFamily("GB11[0-9]", f"{_BLACKWELL} {_MIXED_APART}", (*_BLACKWELL_PIPES, _DMMA_IN_FP64), paired_fp32=True),
    _ChipFamily("GB10B", f"{_BLACKWELL} {_MIXED_TOGETHER}", (*_BLACKWELL_PIPES, _DMMA_IN_FP64), dram=None),
    _ChipFamily(
        "GB20[0-9]",
        f"{_BLACKWELL} {_MIXED_APART}",
        (*_BLACKWELL_PIPES, _DMMA_IN_FP64),
        dram=("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"),
    ),
    _ChipFamily("GB20[BC]", f"{_BLACKWELL} {_MIXED_APART}", (*_BLACKWELL_PIPES, _DMMA_IN_FP64), dram=None),
)

_SHARED_NAMES = {
    # Turing's counter has Ampere's name, but Turing has neither bf16 nor tf32.
    "fp16_bf16_tf32": "fp16",
    # Instructions whose operands may be fp8, fp6 or fp4 run at the rate of fp8, so that roof is theirs.
    "fp4_fp6_fp8": "fp8",
    "fp4_fp6": "fp8",
}


def _family(chip: str) -> _ChipFamily:
    for family in _FAMILIES:
        if re.fullmatch(family.chips, chip.upper()):
            return family
    raise CannotMeasure(
        "no-counter-table", f"rooflight has no table of counters for the chip {chip}: measure with --counters=none"
    )


# A compute capability does not tell TU116 and TU117, which have no tensor counters, from the others of 7.5. Thor is
# 11.0 since CUDA 13.0 and was 10.1 before (its release notes: "SM101 has been renumbered as SM110").
CHIPS_BY_CAPABILITY = {
    "7.0": "GV100", "7.5": "TU102", "8.0": "GA100", "8.6": "GA102", "8.7": "GA10B", "8.9": "AD102", "9.0": "GH100",
    "10.0": "GB100", "10.1": "GB10B", "10.3": "GB110", "11.0": "GB10B", "12.0": "GB202", "12.1": "GB20B",
}  # fmt: skip
"""The chip whose counters those of a compute capability have."""
# GV11B is in CUPTI's list of chips, but its tables cannot be opened (run with CUPTI of CUDA 13.0).
_WITHOUT_COUNTERS = {"7.2": "Jetson Xavier, whose GV11B CUPTI does not count on"}


def no_table(capability: str) -> str:
    """That counters of this compute capability are not known, and why where that is known."""
    why = f" ({_WITHOUT_COUNTERS[capability]})" if capability in _WITHOUT_COUNTERS else ""
    return f"rooflight has no table of counters for compute capability {capability}{why}"


def chip_of(capability: str) -> str:
    """The chip behind a compute capability such as `9.0`, as far as counters are concerned."""
    if capability not in CHIPS_BY_CAPABILITY:
        raise CannotMeasure("no-counter-table", f"{no_table(capability)}: measure with --counters=none")
    return CHIPS_BY_CAPABILITY[capability]


def _sass(op: str) -> str:
    return f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum"


# Half precision instructions are packed since Volta (HADD2, HMUL2, HFMA2): a thread's instruction works on two values.
# Nsight Compute's roofline weighs them 2, 2 and 4, and so do we. It is an upper bound: scalar half arithmetic leaves
# one half unused, and compilers also load constants by HFMA2, so that fp32 kernels show a little fp16 work.
_CUDA_CORES = tuple(
    Counter(_sass(letter + op), f"cuda_flops_{precision}", width * weight)
    for letter, precision, width in (("f", "fp32", 1), ("h", "fp16", 2), ("d", "fp64", 1))
    for op, weight in (("add", 1), ("mul", 1), ("fma", 2))
)
_PAIRED = tuple(
    Counter(_sass(op), "cuda_flops_fp32", weight) for op, weight in (("fadd2", 2), ("fmul2", 2), ("ffma2", 4))
)


def cuda_core_counters(chip: str) -> tuple[Counter, ...]:
    """Adds, multiplies and multiply-adds of the CUDA cores, by precision. They take one pass of their own."""
    return (*_CUDA_CORES, *_PAIRED) if _family(chip).paired_fp32 else _CUDA_CORES


def tensor_counters(chip: str) -> tuple[Counter, ...]:
    """Operations of the tensor cores by the precision of their operands; each may take a pass or two."""
    sources = [(name, name.partition("_dst_")[0]) for name in _family(chip).tensor.split()]
    return tuple(
        Counter(f"sm__ops_path_tensor_src_{name}.sum", f"tensor_flops_{_SHARED_NAMES.get(source, source)}")
        for name, source in sources
    )


def scout_metrics(chip: str) -> tuple[str, ...]:
    """Counters of the tensor pipes, which together take one pass and tell which families can be left out."""
    pipes = _family(chip).pipes
    return tuple(dict.fromkeys(metric for pipe in pipes for metric in (pipe.metric, pipe.less) if metric is not None))


def tensor_counters_in_use(chip: str, scout_values: Mapping[str, float]) -> tuple[Counter, ...]:
    """The families that were at work where `scout_values` were counted: nothing else need be asked there.

    The values may be those of `scout_metrics`, those of families themselves (one range around a whole step is enough),
    or both: a family's own count decides, else its pipe's. What neither says anything about is kept.
    """
    busy: dict[str, bool] = {}
    for pipe in _family(chip).pipes:
        count = scout_values.get(pipe.metric)
        less = scout_values.get(pipe.less, 0.0) if pipe.less is not None else 0.0
        for precision in pipe.precisions:
            busy[precision] = busy.get(precision, False) or count is None or count > less
    chosen = []
    for counter in tensor_counters(chip):
        count = scout_values.get(counter.metric)
        in_pipe = busy.get(counter.quantity.removeprefix("tensor_flops_"), True)
        if in_pipe if count is None else count > 0:
            chosen.append(counter)
    return tuple(chosen)


def idle_quantities(
    chip: str, in_use: Iterable[Counter], *, source: str, scouted: Mapping[str, float] | None = None
) -> dict[str, Value]:
    """The tensor quantities that the scout has proven to be zero, for every op of the step it ran over.

    A chip may have pipes and no counters of what they do (TU116): there `scouted` must say that all of them stood
    still.
    """
    busy = {counter.quantity for counter in in_use}
    families = [counter.quantity for counter in tensor_counters(chip)]
    if not families and all(scouted is not None and scouted.get(name) == 0 for name in scout_metrics(chip)):
        families = [f"tensor_flops_{precision}" for pipe in _family(chip).pipes for precision in pipe.precisions]
    idle = dict.fromkeys(quantity for quantity in families if quantity not in busy)
    return {quantity: Value(value=0, origin=f"{source}: not in use in the whole step") for quantity in idle}


_HALF_TYPES = {"fp16", "bf16"}


def no_half_arithmetic(quantities: Mapping[str, Value], types: Collection[str]) -> dict[str, Value]:
    """Without fp16 FLOPs of CUDA cores, where no tensor has 16 bits.

    Compilers also load constants by HFMA2, so that kernels which know no half precision show some. The counters
    themselves stay.
    """
    if _HALF_TYPES & set(types):
        return dict(quantities)
    return {name: value for name, value in quantities.items() if name != "cuda_flops_fp16"}


def byte_counters(levels: Collection[Level], *, chip: str = "GH100") -> tuple[Counter, ...]:
    """Bytes to and from device memory, through L2 and through L1. Chips without DRAM counters give none for it."""
    dram = _family(chip).dram
    counters: list[Counter] = []
    if "dram" in levels and dram is not None:
        counters += [Counter(dram[0], "dram_bytes_read"), Counter(dram[1], "dram_bytes_written")]
    if "l2" in levels:
        counters.append(Counter("lts__t_bytes.sum", "l2_bytes"))
    if "l1" in levels:
        counters.append(Counter("l1tex__t_bytes.sum", "l1_bytes"))
    return tuple(counters)


def _whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


def _short(metric: str) -> str:
    name = metric.removesuffix(".sum")
    sass = re.fullmatch(r"smsp__sass_thread_inst_executed_op_(\w+)_pred_on", name)
    return sass[1] if sass else name


def to_quantities(values: Mapping[str, float], counters: Sequence[Counter], *, source: str) -> dict[str, Value]:
    """Weigh and add up what was counted in one range; every count also stays under its own name.

    A quantity one of whose counters is missing is unknown and left out; so are DRAM bytes that an empty range has too.
    `source` says who counted: `cupti`, `ncu`.
    """
    parts: dict[str, list[Counter]] = {}
    for counter in counters:
        parts.setdefault(counter.quantity, []).append(counter)
    quantities: dict[str, Value] = {}
    for quantity, members in parts.items():
        if any(member.metric not in values for member in members):
            continue
        total = sum(member.weight * values[member.metric] for member in members)
        if quantity.startswith("dram_bytes") and total <= EMPTY_RANGE_BYTES:
            continue
        terms = [f"{m.weight} x {_short(m.metric)}" if m.weight != 1 else _short(m.metric) for m in members]
        quantities[quantity] = Value(value=_whole(total), origin=f"{source}: {' + '.join(terms)}")
    for metric, value in values.items():
        quantities[metric] = Value(value=_whole(value), origin=source)
    return quantities


def flop_count_sp(values: Mapping[str, float]) -> int | None:
    """nvprof's metric of that name: fp32 add + multiply + 2 x multiply-add of the CUDA cores, tensor cores left out."""
    counts = [values.get(_sass(op)) for op in ("fadd", "fmul", "ffma")]
    if None in counts:
        return None
    add, multiply, fused = (int(count) for count in counts if count is not None)
    return add + multiply + 2 * fused
