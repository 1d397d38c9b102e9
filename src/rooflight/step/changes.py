"""What a step becomes when it is run in another way: every change is a transformation of the one step that was traced.

`predict --channels-last` and the advice to use channels_last are the same function of the same trace. What a header
says of how its step is run (`channels_last`, `fused`, `pad`, `execution`) is applied when the step is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rooflight.errors import RooflightError
from rooflight.ledger import Note
from rooflight.ops.kernel_task import CONVOLUTION, FAMILIES, OUTPUT, Task, convolves, copy_task
from rooflight.ops.op_tasks import tasks_of
from rooflight.spec import execution, is_live
from rooflight.trace.target import HOPPER, generation, target_for

if TYPE_CHECKING:
    from rooflight.hardware.calibration import Calibration
    from rooflight.hardware.device import Device
    from rooflight.step.costed_step import Step

_HALVED = ("bytes_read", "bytes_written")
_EVEN = 8
"""Rows of so many elements begin at multiples of 16 bytes in 16 bits; fast kernels need that."""
_PADDED = 64
"""What a size is padded to."""
_SIDES = ("m", "n", "k")
_BF16 = "--dtype bf16"

COMPILE_ASSUMES = (
    "torch.compile is assumed to run chains of elementwise ops, reductions and norms as one kernel each, at the bytes "
    "per second that they reach in eager mode, and convolutions in channels_last and odd products padded where that is "
    "faster; the host, memory and the number of kernels are those of eager mode"
)


BF16_ASSUMES = (
    "bf16 is predicted from this trace, op by op: a model in bf16 makes casts and copies of its own, so that its own "
    "prediction may differ by some percent"
)


@dataclass(frozen=True)
class Change:
    """A step as it would be run otherwise."""

    key: str
    """Short, for a column of a table."""
    words: str
    """What to do."""
    options: str
    """What to add to the command, or to change in it."""
    how: str
    """How a sentence about it begins."""
    step: Step
    """With the change."""
    assumption: str = ""
    """What is taken for granted, in a sentence."""

    def and_graphs(self) -> Change:
        """The same, captured as one CUDA graph."""
        graph = as_graph(self.step)
        between = ", " if is_live(self.step.ledger.header) else " "
        return Change(
            f"graph + {self.key}",
            f"{graph.words}, and {self.words}",
            between.join((graph.options, self.options)),
            f"{graph.how} and {self.how}",
            graph.step,
            self.assumption,
        )


def _option(step: Step, option: str) -> str:
    """As it is asked for. A live module is its caller's: he has keywords, and converts it himself."""
    if not is_live(step.ledger.header):
        return option
    return "model.bfloat16()" if option == _BF16 else f"{option.removeprefix('--').replace('-', '_')}=True"


def changes_of(step: Step, device: Device, calibration: Calibration, *, op_by_op: bool = False) -> Iterator[Change]:
    """Those that apply to the step on a device; `calibration`: the one that its times come from. What each of them
    gains, if anything, is another question. `op_by_op`: as steps of the very same ops, to be compared one by one."""
    families = {task.family for task in step.tasks}
    precisions = {task.precision for task in step.tasks}
    on_gpu = device.kind == "gpu"
    if precisions & {"fp32", "tf32"} and timed_in_bf16(device, calibration):
        yield from _bf16(step, device, op_by_op=op_by_op)
    if has_fp32_products(step) and "tf32" in device.tensor_flops_per_s:
        yield _change("TF32", "TF32 in matrix work", "--tf32", "with TF32", step, in_tf32)
    if (sizes := uneven_sizes(step)) and not step.is_compiled:  # the compiler pads by itself
        named = " and ".join(f"{size:,} padded to {_up(size):,}" for size in sizes[:2])
        more = f" and {len(sizes) - 2} more sizes" if len(sizes) > 2 else ""
        yield _change("pad", f"{named}{more}", "--pad", f"with {named}{more}", step, padded)
    if has_convolutions(step) and not is_channels_last(step):
        words = "channels_last for model and images"
        yield _change("channels_last", words, "--channels-last", "in channels_last", step, in_channels_last)
    if "foreach" in families and on_gpu:
        how = "with a fused optimizer (fused=True)"
        yield _change("fused", "a fused optimizer (fused=True)", "--fused", how, step, fused)
    if not step.is_compiled and on_gpu:
        yield _change("compile", "torch.compile", "--compile", "under torch.compile", step, compiled, COMPILE_ASSUMES)
    if not step.is_graph and on_gpu:
        yield as_graph(step)


def _bf16(step: Step, device: Device, *, op_by_op: bool) -> Iterator[Change]:
    target = target_for(device.kind, generation(device.capability or HOPPER))
    try:
        traced = None if op_by_op or step.traced_in is None else step.traced_in("bf16", target)
    except RooflightError:  # it does not run in bf16, and advice never spoils what was asked
        return
    words = "bf16 for the whole model"
    if traced is None:
        yield _change("bf16", words, _BF16, "in bf16", step, in_bf16, BF16_ASSUMES)
    else:
        yield Change("bf16", words, _option(step, _BF16), "in bf16", traced)


def _change(
    key: str, words: str, option: str, how: str, step: Step, make: Callable[[Step], Step], assumption: str = ""
) -> Change:
    if key not in step.variants:  # once for all devices
        step.variants[key] = make(step)
    return Change(key, words, _option(step, option), how, step.variants[key], assumption)


def as_graph(step: Step) -> Change:
    # What asks the GPU for a value cannot be captured.
    asks = sorted(
        {op.packet.removeprefix("aten::") for op, waits in zip(step.ledger.ops, step.waits, strict=True) if waits}
    )
    but = f" (without {asks[0]}, which no graph can hold)" if asks else ""
    return _change("graph", f"one CUDA graph for the step{but}", "--graphs", f"as one CUDA graph{but}", step, _captured)


def _captured(step: Step) -> Step:
    return replace(step, execution=execution(compile=step.is_compiled, graphs=True))


def as_asked(step: Step) -> Step:
    """As its header says that it is run: of a trace that is still the plain one."""
    header = step.ledger.header
    if header.channels_last and has_convolutions(step) and not is_channels_last(step):
        step = in_channels_last(step)
    if header.fused and any(task.family == "foreach" for task in step.tasks):
        step = fused(step)
    if header.pad and uneven_sizes(step):
        step = padded(step)
    return step


def compiled(step: Step) -> Step:
    return replace(step, execution=execution(compile=True, graphs=step.is_graph))


def timed_in_bf16(device: Device, calibration: Calibration) -> bool:
    """Has the device bf16, and the calibration products in it? A CPU's was made in fp32 only."""
    timed = any(points.family == "gemm" and points.precision == "bf16" for points in calibration.points)
    return timed and "bf16" in device.tensor_flops_per_s


def has_fp32_products(step: Step) -> bool:
    """Matrix products or convolutions that could run in TF32."""
    return any(_could_be_tf32(task) for task in step.tasks)


def _could_be_tf32(task: Task) -> bool:
    of_matrices = task.family == "gemm" or convolves(task.family) or task.family.startswith("recurrent-")
    return task.precision == "fp32" and of_matrices


def has_convolutions(step: Step) -> bool:
    """Of images, or sequences: torch has no channels_last of volumes that anybody timed."""
    return any(task.family.startswith(_OF_IMAGES) for task in step.tasks)


_OF_IMAGES = "conv-"


def is_channels_last(step: Step) -> bool:
    layout = CONVOLUTION.index("channels_last")
    return any(task.family.startswith(_OF_IMAGES) and task.numbers[layout] for task in step.tasks)


def _changed(step: Step, change: Callable[[Task], Task]) -> Step:
    return replace(step, tasks=tuple(map(change, step.tasks)))


def in_bf16(step: Step) -> Step:
    step = step.fused_attention("bf16")
    return replace(_changed(step, _in_bf16), runs_in={"fp32": "bf16", "tf32": "bf16"})


def _in_bf16(task: Task) -> Task:
    """Half the bytes, on tensor cores; fused attention in the kernel that bf16 has."""
    if task.precision not in ("fp32", "tf32"):
        return task
    if task.family == "copy":
        return copy_task(task.numbers[1] // 2)
    family = task.family.replace("-efficient-", "-cudnn-")
    named = zip((*FAMILIES[family], *OUTPUT), task.numbers, strict=False)
    numbers = tuple(value // 2 if name in _HALVED else value for name, value in named)
    return Task(family.replace("batch-norm-cudnn", "batch-norm-native"), "bf16", numbers)


def in_tf32(step: Step) -> Step:
    """In products and convolutions: nothing else changes, but a floor may be too low for what does not."""
    return replace(_changed(step, _in_tf32), runs_in={"fp32": "tf32"})


def _in_tf32(task: Task) -> Task:
    return Task(task.family, "tf32", task.numbers) if _could_be_tf32(task) else task


def in_channels_last(step: Step) -> Step:
    """Convolutions need no change of layout any more; norms and pools follow theirs."""
    return _changed(step, _in_channels_last)


def _in_channels_last(task: Task) -> Task:
    names = FAMILIES[task.family]
    if "channels_last" not in names or "3d" in task.family:
        return task
    place = names.index("channels_last")
    family = task.family.replace("batch-norm-cudnn", "batch-norm-native") if task.precision != "fp32" else task.family
    return Task(family, task.precision, (*task.numbers[:place], 1, *task.numbers[place + 1 :]))


def uneven_sizes(step: Step) -> list[int]:
    """Sizes of products that are odd, as a vocabulary of 50,257; the largest first."""
    return sorted({size for task in step.tasks for size in _uneven(task)}, reverse=True)


def padding_note(step: Step) -> Note | None:
    """Return a note if `--pad` was asked for and finds nothing to pad in the step as it was traced."""
    if not step.ledger.header.pad or any(_uneven(task) for op in step.kinds for task in tasks_of(op)):
        return None
    return Note(
        "nothing-padded", f"--pad changes no product: every size above {_PADDED} is a multiple of {_EVEN} already"
    )


def _uneven(task: Task) -> Sequence[int]:
    if task.family != "gemm":
        return ()
    sizes = (task.numbers[FAMILIES["gemm"].index(side)] for side in _SIDES)
    return [size for size in sizes if size > _PADDED and size % _EVEN]


def _up(size: int) -> int:
    return -(-size // _PADDED) * _PADDED


def padded(step: Step) -> Step:
    return _changed(step, in_padded)


def in_padded(task: Task) -> Task:
    if not (uneven := _uneven(task)):
        return task
    named = zip(FAMILIES[task.family], task.numbers, strict=False)
    return task._replace(
        numbers=tuple(_up(size) if name in _SIDES and size in uneven else size for name, size in named)
    )


def fused(step: Step) -> Step:
    """All ops of the optimizer in one kernel: parameters, gradients and states read and written once."""
    return step.fused_optimizer()
