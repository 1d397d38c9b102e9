"""The options that say which step of which model is meant: the same for every verb that runs one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from rooflight.errors import BadInput

if TYPE_CHECKING:
    _SizesType = click.ParamType[tuple[int, ...]]
else:
    _SizesType = click.ParamType  # which in older releases does not say what it gives


class _Sizes(_SizesType):
    """`8`, or several with commas: `1,8,64`. Each is taken once, in the order given."""

    name = "N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            raise BadInput(f"--batch wants whole numbers such as 8 or 1,8,64, got {value!r}") from None


_BATCH = click.option("--batch", type=int, default=1, show_default=True,
                      help="Samples in a step (a micro-batch with --accumulate).")  # fmt: skip
_BATCHES = click.option("--batch", type=_Sizes(), default="1", show_default=True,
                        help="Samples in a step of one device, or several sizes: 1,8,64.")  # fmt: skip
_OPTIONS = (
    click.option("--seq", type=int, help="Sequence length, for models that have one."),
    click.option("--past", type=int, help="Tokens in the KV cache, for --step decode."),
    click.option("--step", type=click.Choice(["infer", "train", "decode"]), default="infer", show_default=True,
                 help="infer (for language models: prefill), train, or decode one token."),
    click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16", "fp64"]), default="fp32", show_default=True,
                 help="Convert the whole model."),
    click.option("--autocast", type=click.Choice(["bf16", "fp16"]),
                 help="Run under autocast instead of converting the model."),
    click.option("--tf32/--no-tf32", default=None,
                 help="TF32 for fp32 convolutions and matmuls. Default: as torch (convolutions yes, matmuls no)."),
    click.option("--loss", type=click.Choice(["cross-entropy", "mse", "sum"]),
                 help="mse is the mean square of the output (in fp32). Default: by the model's task."),
    click.option("--optimizer", type=click.Choice(["sgd", "momentum", "adam", "adamw"]),
                 help="Default: momentum for vision, adamw for transformers."),
    click.option("--foreach/--no-foreach", default=None,
                 help="Optimizer over all tensors at once, or tensor by tensor. Default: as torch chooses."),
    click.option("--accumulate", type=int, default=1, show_default=True,
                 help="Micro-batches before the optimizer steps."),
    click.option("--checkpoint", metavar="MODULES",
                 help="Modules that run again in backward instead of keeping what they make: h.*, or blocks for all "
                      "repeated ones."),
    click.option("--input", "input_shape", multiple=True,
                 help="Shape of one sample: 3x224x224, or int:128 for tokens."),
    click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
                 help="A constructor argument of the model, e.g. channels=20,40. Repeatable."),
    click.option("--download", is_flag=True, help="Allow hf: and timm: to download a configuration."),
)  # fmt: skip


def step_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return _decorated(command, _BATCH)


def steps_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a verb that takes several batches at once."""
    return _decorated(command, _BATCHES)


def _decorated(command: Callable[..., Any], batch: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((batch, *_OPTIONS)):
        command = option(command)
    return command


def check_step(options: Mapping[str, Any]) -> None:
    """What goes together, before the slow import of torch."""
    batch = options["batch"]
    for size in batch if isinstance(batch, tuple) else (batch,):
        check_positive("batch", size)
    for name in ("seq", "past", "accumulate"):
        check_positive(name, options[name])
    if options["step"] == "train":
        return
    given = [name for name in ("loss", "optimizer", "foreach", "checkpoint") if options[name] is not None]
    given += ["accumulate"] if options["accumulate"] != 1 else []
    if given:
        raise BadInput(f"--{given[0]} goes with --step train: add it, or leave --{given[0]} away")


def check_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise BadInput(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def step_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as `rooflight.estimate` and `rooflight.measure` take them."""
    names = (
        "batch", "seq", "past", "step", "dtype", "autocast", "tf32", "loss", "optimizer", "foreach", "accumulate",
        "checkpoint", "download",
    )  # fmt: skip
    return {
        **{name: options[name] for name in names},
        "overrides": overrides(options),
        "input_shape": input_shape(options),
    }


def overrides(options: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for setting in options["settings"]:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"--set wants NAME=VALUE such as channels=20,40, got {setting!r}")
        found[name.strip()] = value.strip()
    return found


def input_shape(options: Mapping[str, Any]) -> Any:
    from rooflight.models.workload import parse_input

    shapes = options["input_shape"]
    if len(shapes) > 1:
        raise BadInput("only one --input: for a model with several inputs let the factory return (module, inputs)")
    return parse_input(shapes[0]) if shapes else None


@contextmanager
def quiet_model() -> Iterator[None]:
    """What a model prints goes to the error output, so that it cannot get into a document.

    What prints for us is imported before: the model's folder may hold a module of the same name.
    """
    import rich.box
    import rich.console
    import rich.progress
    import rich.table  # noqa: F401

    with redirect_stdout(sys.stderr):
        yield
