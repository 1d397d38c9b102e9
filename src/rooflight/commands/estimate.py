"""`rooflight estimate MODEL`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.table_options import table_options
from rooflight.errors import BadInput

if TYPE_CHECKING:
    from rooflight.ledger import Ledger

_STEPS = click.Choice(["infer", "train", "decode"])


@click.command(short_help="what a model costs by mathematics")
@click.argument("model")
@click.option(
    "--batch", type=int, default=1, show_default=True, help="Samples in a step (a micro-batch with --accumulate)."
)
@click.option("--seq", type=int, help="Sequence length, for models that have one.")
@click.option("--past", type=int, help="Tokens in the KV cache, for --step decode.")
@click.option(
    "--step",
    type=_STEPS,
    default="infer",
    show_default=True,
    help="infer (for language models: prefill), train, or decode one token.",
)
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "bf16", "fp16", "fp64"]),
    default="fp32",
    show_default=True,
    help="Convert the whole model.",
)
@click.option(
    "--autocast", type=click.Choice(["bf16", "fp16"]), help="Run under autocast instead of converting the model."
)
@click.option(
    "--loss",
    type=click.Choice(["cross-entropy", "mse", "sum"]),
    help="mse is the mean square of the output (in fp32). Default: by the model's task.",
)
@click.option(
    "--optimizer",
    type=click.Choice(["sgd", "momentum", "adam", "adamw"]),
    help="Default: momentum for vision, adamw for transformers.",
)
@click.option(
    "--foreach/--no-foreach",
    default=None,
    help="Optimizer over all tensors at once, or tensor by tensor. Default: as torch chooses on the target.",
)
@click.option("--accumulate", type=int, default=1, show_default=True, help="Micro-batches before the optimizer steps.")
@click.option(
    "--target",
    default="cuda",
    show_default=True,
    help="Whose kernels to assume: cuda (Hopper or newer), cuda:80 (a compute capability), cpu.",
)
@click.option("--input", "input_shape", multiple=True, help="Shape of one sample: 3x224x224, or int:128 for tokens.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A constructor argument of the model, e.g. channels=20,40. Repeatable.",
)
@click.option("--download", is_flag=True, help="Allow hf: and timm: to download a configuration.")
@table_options
@click.option("--epochs", type=int, help="With --dataset-size: the cost of a whole training run.")
@click.option("--dataset-size", type=int, help="Samples in an epoch.")
@click.option("--explain", metavar="LAYER", help="Derive one layer by pen and paper.")
@click.option("--latex", is_flag=True, help="With --explain or --symbolic: as LaTeX.")
@click.option("--symbolic", is_flag=True, help="The closed form in batch B and sequence S, with Big-O.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document: header, totals, modules, ops.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the table as CSV.")
@click.option("--md", "as_markdown", is_flag=True, help="Print as Markdown.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write to FILE: .json or .json.gz saves the ledger, .csv and .md the table.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(**options: Any) -> None:
    """What MODEL costs by mathematics, per operation, without a GPU and without memory for weights.

    MODEL is a built-in name (see `rooflight list models`), torchvision:NAME, timm:NAME, hf:NAME-or-folder,
    package.module:factory or path/to/file.py:factory.
    """
    _check(options)
    output: Path | None = options["output"]
    if output is not None:
        from rooflight.files import check_writable

        check_writable(output, force=options["force"])
    if options["symbolic"]:
        _symbolic(options)
        return
    ledger = _estimate(options)
    if options["explain"] is not None:
        _explain(ledger, options)
        if output is not None:
            _save(ledger, output, options)
        return
    to = _form(options)
    if output is not None and _save(ledger, output, options) and to == "text":
        _show(ledger, "text", options)
        return
    if output is None or to != "text":
        _show(ledger, to, options)


def _check(options: Mapping[str, Any]) -> None:
    for name in ("batch", "seq", "past", "accumulate", "epochs", "dataset_size"):
        value = options[name]
        if value is not None and value < 1:
            raise BadInput(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if sum(options[name] for name in ("as_json", "as_csv", "as_markdown")) > 1:
        raise BadInput("choose one of --json, --csv and --md")
    if bool(options["epochs"]) != bool(options["dataset_size"]):
        raise BadInput("--epochs and --dataset-size go together: both are needed for the cost of a run")
    _check_forms(options)
    _check_training(options)
    if options["latex"] and not (options["explain"] or options["symbolic"]):
        raise BadInput("--latex goes with --explain or --symbolic")


def _check_training(options: Mapping[str, Any]) -> None:
    """Options that say nothing about inference."""
    if options["step"] == "train":
        return
    given = [name for name in ("loss", "optimizer", "foreach", "epochs") if options[name] is not None]
    given += ["accumulate"] if options["accumulate"] != 1 else []
    if given:
        raise BadInput(f"--{given[0]} goes with --step train")


def _check_forms(options: Mapping[str, Any]) -> None:
    """Which ways of showing go together."""
    tables = [name for name in ("as_json", "as_csv", "as_markdown") if options[name]]
    ending = options["output"].name.lower() if options["output"] is not None else ".json"
    if not ending.endswith((".json", ".json.gz", ".csv", ".md")):
        raise BadInput(f"{options['output']}: the name must end in .json, .json.gz, .csv or .md")
    if options["explain"] and options["symbolic"]:
        raise BadInput("choose one of --explain and --symbolic")
    if options["explain"] and (tables or not ending.endswith((".json", ".json.gz"))):
        raise BadInput("--explain prints text or --latex; with -o FILE.json it also saves the ledger, nothing else")
    if options["symbolic"] and ("as_csv" in tables or "as_markdown" in tables or not ending.endswith(".json")):
        raise BadInput("--symbolic prints text, --latex or --json, and writes a .json file with -o")


def _form(options: Mapping[str, Any]) -> str:
    for name, form in (("as_json", "json"), ("as_csv", "csv"), ("as_markdown", "md")):
        if options[name]:
            return form
    return "text"


def _overrides(options: Mapping[str, Any]) -> dict[str, str]:
    overrides = {}
    for setting in options["settings"]:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"--set wants NAME=VALUE, got {setting!r}")
        overrides[name.strip()] = value.strip()
    return overrides


def _estimate(options: Mapping[str, Any]) -> Ledger:
    from rooflight.estimation.api import estimate

    with _quiet_model():
        return estimate(
            options["model"], batch=options["batch"], seq=options["seq"], past=options["past"], step=options["step"],
            dtype=options["dtype"], autocast=options["autocast"], loss=options["loss"], optimizer=options["optimizer"],
            foreach=options["foreach"], accumulate=options["accumulate"], target=options["target"],
            overrides=_overrides(options), input_shape=_input_shape(options), download=options["download"],
            command=shlex.join(["rooflight", *sys.argv[1:]]),
        )  # fmt: skip


@contextmanager
def _quiet_model() -> Iterator[None]:
    """What a model prints goes to the error output, so that it cannot get into a document.

    What prints for us is imported before: the model's folder may hold a module of the same name.
    """
    import rich.box
    import rich.console
    import rich.table  # noqa: F401

    with redirect_stdout(sys.stderr):
        yield


def _input_shape(options: Mapping[str, Any]) -> Any:
    from rooflight.models.workload import parse_input

    shapes = options["input_shape"]
    if len(shapes) > 1:
        raise BadInput("only one --input: for a model with several inputs let the factory return (module, inputs)")
    return parse_input(shapes[0]) if shapes else None


def _show(ledger: Ledger, to: str, options: Mapping[str, Any], *, output: Path | None = None) -> None:
    from rooflight.commands.output import show_estimate

    depth = options["depth"]
    if depth is None and to in ("text", "md"):
        depth = 3
    show_estimate(
        ledger, by=options["by"], depth=depth, to=to, folded=not options["unfold"] and to != "csv", output=output,
        force=options["force"], epochs=options["epochs"], dataset_size=options["dataset_size"],
    )  # fmt: skip


def _save(ledger: Ledger, output: Path, options: Mapping[str, Any]) -> bool:
    """Write the file that the name's ending asks for. Is it the ledger itself?"""
    from rooflight.commands.output import say

    name = output.name.lower()
    if name.endswith((".csv", ".md")):
        _show(ledger, "csv" if name.endswith(".csv") else "md", options, output=output)
        say(f"wrote {output}")
        return False
    from rooflight.files import save

    save(ledger, output, force=options["force"])
    say(f"wrote {output} ({len(ledger.ops):,} ops); see it again with: rooflight report {output}")
    return True


def _explain(ledger: Ledger, options: Mapping[str, Any]) -> None:
    from rooflight.commands.output import emit
    from rooflight.estimation.derivation import derive
    from rooflight.reporting.derivation import derivation_latex, derivation_text

    derivation = derive(ledger, options["explain"])
    emit(derivation_latex(derivation) if options["latex"] else derivation_text(derivation))


def _symbolic(options: Mapping[str, Any]) -> None:
    """The closed form, checked at the batch and sequence that were asked for as well."""
    import json

    from rooflight.commands.output import emit, say
    from rooflight.estimation.symbolic import closed_form
    from rooflight.files import write_atomically
    from rooflight.reporting.closed_form import to_json_dict, to_latex, to_text

    length = options["past"] if options["step"] == "decode" else options["seq"]
    with _quiet_model():
        form = closed_form(
            options["model"], step=options["step"], also=[(options["batch"], length)],
            dtype=options["dtype"], autocast=options["autocast"], target=options["target"], loss=options["loss"],
            optimizer=options["optimizer"], foreach=options["foreach"], accumulate=options["accumulate"],
            overrides=_overrides(options), input_shape=_input_shape(options), download=options["download"],
        )  # fmt: skip
    if options["as_json"] or options["output"]:
        content = json.dumps(to_json_dict(form))
    else:
        content = to_latex(form, depth=options["depth"]) if options["latex"] else to_text(form, depth=options["depth"])
    if options["output"] is None:
        emit(content)
        return
    write_atomically(options["output"], content.encode(), force=options["force"])
    say(f"wrote {options['output']}")
