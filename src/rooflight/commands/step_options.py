"""The options that say which step of which model is meant: made from `StepSpec`, the same for every verb."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import click
from click.core import ParameterSource

from rooflight.commands.result_options import Decorator, together
from rooflight.errors import BadInput
from rooflight.spec import BOTH_BATCHES, Field, StepSpec, Verb, fields_for, settings_of


def step_options(verb: Verb) -> Decorator:
    return together(*(_option(field, verb) for field in fields_for(verb)))


def grid_options(verb: Verb) -> Decorator:
    """The same as axes, each of which takes several values: for models by name."""
    return together(*(_option(field, "study") for field in fields_for(verb)))


def axes_of(options: Mapping[str, Any], verb: Verb) -> dict[str, Any]:
    """Those of the axes that are given."""
    return {
        field.key: _axis(field, value)
        for field in fields_for(verb)
        if (value := options[field.name]) not in (None, (), False) or (field.kind == "switch" and value is False)
    }


def _axis(field: Field, value: Any) -> Any:
    """The values of one axis: with commas between them, but for settings and modules, which have their own."""
    if field.kind == "number":
        return whole_numbers(field, value)
    if field.kind == "settings":
        return settings_of(value)
    if field.kind == "shape":
        return words_of(field.key, one_shape(value))
    return value if field.kind in ("flag", "switch", "modules") else words_of(field.key, value)


def words_of(name: str, text: str) -> list[str]:
    """Names with commas between them."""
    from rooflight.hardware.devices import several

    words = [part.strip() for part in (several(text) if name == "on" else text.split(","))]
    if not all(words):
        raise BadInput("bad-name", f"{name}: an empty name in {text!r}, write names with one comma between them")
    return words


def _option(field: Field, verb: Verb) -> Decorator:
    help = f"{field.help[:-1]}, or several sizes: 1,8,64." if _takes_several(field, verb) else field.help
    if field.kind == "flag":
        return click.option(field.option, field.name, is_flag=True, help=help)
    if field.kind == "switch":
        off = field.option.replace("--", "--no-", 1)
        return click.option(f"{field.option}/{off}", field.name, default=None, help=help)
    if field.kind in ("settings", "shape"):  # a shape only to say that there is one
        return click.option(field.option, field.name, multiple=True, metavar=field.metavar, help=help)
    if verb == "study":
        return click.option(field.option, field.name, metavar=_several(field), help=_with_choices(field))
    if _takes_several(field, verb):
        return click.option(field.option, field.name, metavar="N,...", default="1", show_default=True, help=help)
    kind = click.Choice(field.choices) if field.choices else int if field.kind == "number" else str
    default = field.default or None
    return click.option(
        field.option,
        field.name,
        type=kind,
        default=default,
        show_default=default is not None,
        metavar=field.metavar,
        help=help,
    )


def _takes_several(field: Field, verb: Verb) -> bool:
    return field.name == "batch" and verb == "predict"


def _several(field: Field) -> str:
    """How a grid's axis is written: values with commas, but for modules, which have commas themselves."""
    if field.kind == "modules":
        return field.metavar or "TEXT"
    return f"{field.metavar or ('N' if field.kind == 'number' else field.key.upper())},..."


def _with_choices(field: Field) -> str:
    if not field.choices:
        return field.help
    return f"{', '.join(field.choices)}.{f' Default: {field.default}.' if field.default else ''} {field.help}"


def step_of(options: Mapping[str, Any], verb: Verb) -> StepSpec:
    """The step that the options of a command line describe, checked before the slow import of torch."""
    if options.get("total_batch") is not None and _is_typed("batch"):
        raise BadInput("two-batches", BOTH_BATCHES)
    values = {}
    for field in fields_for(verb):
        value = options[field.name]
        if value is None or value == ():
            continue
        if _takes_several(field, verb):
            value = whole_numbers(field, value)
        values[field.name] = field.read(one_shape(value) if field.kind == "shape" else value, several=True)
    return StepSpec(model=options["model"], **values).check()


def typed_step(options: Mapping[str, Any], verb: Verb) -> dict[str, Any]:
    """What of the step stands on the command line, as Python's keywords: for a ledger, which has the rest."""
    typed = {}
    for field in fields_for(verb):
        value = options[field.name]
        if _is_typed(field.name):
            typed[field.keyword] = whole_numbers(field, value) if _takes_several(field, verb) else value
    return typed


def _is_typed(name: str) -> bool:
    """On the command line, even where it is as usual."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def one_shape(shapes: tuple[str, ...]) -> str:
    if len(shapes) > 1:
        raise BadInput(
            "too-many-inputs",
            "only one --input: for a model with several inputs let the factory return (module, inputs)",
        )
    return shapes[0]


def whole_numbers(field: Field, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(
            "not-a-whole-number", f"{field.option} wants whole numbers such as 8 or 1,8,64, got {text!r}"
        ) from None


def run_options(what: str) -> Decorator:
    """For `what`, the cost or the time, of a training run."""
    return together(
        click.option("--epochs", type=int, help=f"With --dataset-size: the {what} of a whole training run."),
        click.option("--dataset-size", type=int, help="Samples in an epoch."),
    )


def check_run(spec: StepSpec, options: Mapping[str, Any], what: str) -> None:
    for name in ("epochs", "dataset_size"):
        check_positive(name, options[name])
    if bool(options["epochs"]) != bool(options["dataset_size"]):
        raise BadInput(
            "option-needs-another", f"--epochs and --dataset-size go together: both are needed for the {what} of a run"
        )
    if options["epochs"] is not None and spec.step != "train":
        raise BadInput("option-needs-another", "--epochs goes with --step=train: add it, or leave --epochs out")


def check_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise BadInput("out-of-range", f"--{name.replace('_', '-')} must be at least 1, got {value}")


def typed_command() -> str:
    """The command line as it was given."""
    return shlex.join(["rooflight", *sys.argv[1:]])


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
