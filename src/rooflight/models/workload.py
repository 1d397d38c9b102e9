"""What the models room hands on: one model, the inputs of one step, and what the user asked for.

Nothing here imports torch, so that names and options can be checked before the slow import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from rooflight.errors import BadInput
from rooflight.ledger import Note, StepKind

if TYPE_CHECKING:
    import torch
    from torch import nn

Task = Literal["classification", "language-model", "masked-lm", "features"]
Loss = Literal["cross-entropy", "mse"]
Optimizer = Literal["sgd", "momentum", "adam", "adamw"]

STEPS: tuple[StepKind, ...] = get_args(StepKind)
DTYPES = ("fp32", "bf16", "fp16", "fp64")
"""What a model can be converted to."""


@dataclass(frozen=True)
class Workload:
    """A model with the inputs of one step, ready to be traced or run.

    `model` is on the device it was built for (meta unless asked otherwise), converted to `dtype`, and in `train()`
    mode for a training step, `eval()` otherwise. `sequence` is the number of tokens a sequence brings to this step
    (1 when decoding), `past` the number already in the cache (decode only).
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: int | None
    sequence: int | None
    past: int | None
    step: StepKind
    dtype: str
    task: Task
    loss: Loss
    optimizer: Optimizer
    notes: tuple[Note, ...] = ()
    seq: int | None = None
    """The length as it was asked for; `None`: the model's or its inputs' own."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Constructor arguments that the model was built with."""
    input: str | None = None
    """The shape of one sample, where it was asked for."""
    download: bool = False
    live: bool = False
    """A module of the caller's, which nobody can build by name."""
    labels: Any = None
    """What the caller's loss takes beside the output; `None`: made for it."""


@dataclass(frozen=True)
class InputShape:
    """The shape of one input without its batch dimension, and whether it holds floats or token numbers."""

    dims: tuple[int, ...]
    kind: Literal["float", "int"] = "float"

    def __str__(self) -> str:
        return ("int:" if self.kind == "int" else "") + "x".join(map(str, self.dims))


@dataclass(frozen=True)
class ModelRequest:
    """The checked options of one `build`, as every source of models reads them."""

    spec: str
    batch: int
    seq: int | None
    past: int | None
    dtype: str
    step: StepKind
    overrides: Mapping[str, str]
    input_shape: InputShape | None
    download: bool
    device: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype that the model is converted to."""
        from rooflight.models.dtypes import torch_dtype

        return torch_dtype(self.dtype)

    def workload(
        self,
        model: nn.Module,
        *,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        task: Task,
        optimizer: Optimizer,
        batch: int | None = None,
        sequence: int | None = None,
        past: int | None = None,
        notes: tuple[Note, ...] = (),
    ) -> Workload:
        """The model that was built for it, with its inputs."""
        return Workload(
            name=self.spec,
            model=model,
            args=args,
            kwargs=kwargs,
            batch=self.batch if batch is None else batch,
            sequence=sequence,
            past=past,
            step=self.step,
            dtype=self.dtype,
            task=task,
            loss=loss_for(task),
            optimizer=optimizer,
            notes=notes,
            seq=self.seq,
            settings=self.overrides,
            input=None if self.input_shape is None else str(self.input_shape),
            download=self.download,
        )


def parse_input(text: str) -> InputShape:
    """Read an input shape as given on the command line: `3x224x224`, or `int:128` for token numbers.

    >>> parse_input("3x224x224").dims
    (3, 224, 224)
    """
    body = text.strip().lower()
    kind: Literal["float", "int"] = "float"
    if ":" in body:
        prefix, body = body.split(":", 1)
        if prefix not in ("int", "float"):
            raise BadInput(
                "unknown-input-kind",
                f"--input={text}: {prefix!r} is no kind of input; use int:128 for tokens or 3x224x224",
            )
        kind = "int" if prefix == "int" else "float"
    parts = body.split("x")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(
            "bad-shape", f"--input={text!r} is no shape; write the sizes without the batch, as in 3x224x224 or int:128"
        )
    dims = tuple(int(part) for part in parts)
    if 0 in dims:
        raise BadInput("out-of-range", f"--input={text}: every size must be at least 1")
    return InputShape(dims, kind)


def optimizer_for(task: Task) -> Optimizer:
    """The optimizer it takes unless somebody names another: that of image networks, or that of all the others."""
    return "momentum" if task == "classification" else "adamw"


def loss_for(task: Task) -> Loss:
    """The loss a training step of such a model takes unless the user names another."""
    return "mse" if task == "features" else "cross-entropy"
