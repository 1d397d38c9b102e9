"""How a step is traced: what may be said of it without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from rooflight.errors import BadInput
from rooflight.spec import FIELDS, StepSpec

TensorKind = Literal["meta", "fake", "cpu", "cuda"]


@dataclass(frozen=True)
class TraceOptions:
    """How a step is traced. `on` says what the tensors are: without data (meta, fake), or real (cpu, cuda)."""

    target: str = "cuda"
    autocast: str | None = None
    tf32: bool | None = None
    """For fp32 convolutions and matmuls alike; `None`: as torch's switches say."""
    loss: str | Callable[..., Any] | None = None
    optimizer: Any = None
    """A name; or, as for the loss, the caller's own."""
    foreach: bool | None = None
    """`None`: as torch chooses on the target (on for CUDA, off for the CPU)."""
    fused: bool = False
    """Here and below: of a trace without data only the header tells, and the ops are those of the plain step."""
    accumulate: int = 1
    checkpoint: tuple[str, ...] = ()
    """Modules whose inside is not kept for backward but run again: paths, patterns (`h.*`), or `blocks`."""
    channels_last: bool = False
    compile: bool = False
    graphs: bool = False
    pad: bool = False
    gpus: int = 1
    nodes: int = 1
    parallel: str | None = None
    micro_batches: int | None = None
    on: TensorKind = "meta"
    rank: int = 0
    command: str = ""

    @classmethod
    def of(
        cls, spec: StepSpec, *, on: TensorKind = "meta", target: str = "cuda", rank: int = 0, command: str = ""
    ) -> TraceOptions:
        """As the step's description says."""
        if on not in get_args(TensorKind):
            raise BadInput(
                "unknown-choice", f"--on names the tensors of a trace: {', '.join(get_args(TensorKind))}, not {on!r}"
            )
        shared = {field.name: getattr(spec, field.name) for field in fields(cls) if field.name in FIELDS}
        return cls(**shared, on=on, target=target, rank=rank, command=command)

    @property
    def runs(self) -> bool:
        """Does the step really run, on data?"""
        return self.on in ("cpu", "cuda")

    @property
    def capturable(self) -> bool:
        """Must the optimizer be one that a CUDA graph can hold, with step counts that live on the device?"""
        return self.graphs and self.runs
