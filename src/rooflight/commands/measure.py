"""`rooflight measure MODEL`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.result_options import (
    form_options,
    forms,
    ledger_file,
    measured_options,
    table_of,
    table_options,
)
from rooflight.commands.signals import heard_once, say_again
from rooflight.commands.step_options import check_positive, quiet_model, step_of, step_options, typed_command
from rooflight.commands.terminal import complain, progress, say
from rooflight.errors import BadFile, BadInput, CannotMeasure, RooflightError
from rooflight.spec import StepSpec, with_part_of

if TYPE_CHECKING:
    from rooflight.ledger import Ledger
    from rooflight.measurement.findings import Progress


@click.command(short_help="what the hardware does, per operation")
@click.argument("model")
@step_options("measure")
@click.option("--on", "device", metavar="DEVICE", help="cuda, cuda:1 or cpu. Default: the GPU if there is one.")
@click.option(
    "--counters",
    type=click.Choice(["auto", "cupti", "ncu", "none"]),
    default="auto",
    show_default=True,
    help="Hardware counters: CUPTI in this process, ncu around another one, or none.",
)
@click.option(
    "--level",
    "levels",
    type=click.Choice(["dram", "l2", "l1"]),
    multiple=True,
    help="Memory level whose bytes are counted. Repeatable. Default: dram.",
)
@click.option(
    "--metrics", multiple=True, metavar="NAME", help="Another hardware counter, by NVIDIA's name. Repeatable."
)
@click.option("--per-kernel", is_flag=True, help="Counters for every kernel too, not only for every op.")
@click.option("--spread", is_flag=True, help="Count the whole step three times, to see how much the counts vary.")
@click.option("--repeat", type=int, default=20, show_default=True, help="Steps to time, without profiler and counters.")
@click.option(
    "--compile-mode", metavar="MODE", help="torch.compile's mode: reduce-overhead, max-autotune, ... Implies --compile."
)
@click.option(
    "--total-batch", type=int, metavar="N", help="Samples per step of all --gpus together, shared equally among them."
)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a trace for ui.perfetto.dev or chrome://tracing.",
)
@click.option(
    "--ncu-command", metavar="OP", help="Only print the ncu command that profiles OP (a number, or MODULE:NAME)."
)
@click.option("--profile-op", hidden=True, help="Run the step once for an outer profiler: `all`, or one op.")
@table_options
@measured_options
@form_options(
    output="Write to FILE: .json or .json.gz saves the ledger, .csv and .md the table, with the ledger beside it."
)
def command(**options: Any) -> None:
    """Run a step of MODEL, and record what the hardware did in every operation.

    On an NVIDIA GPU: FLOPs by unit and precision, DRAM bytes, time, memory, kernels. On a CPU: time and memory.
    `rooflight doctor` says what can be measured here.
    """
    spec = step_of({**options, "compile": options["compile"] or bool(options["compile_mode"])}, "measure")
    _check(spec, options)
    if options["total_batch"] is not None:
        spec = with_part_of(spec, options["total_batch"], spec.gpus)
    if options["profile_op"] is not None:
        from rooflight.measurement.api import profiled_step

        with quiet_model():
            only = None if options["profile_op"] == "all" else options["profile_op"]
            profiled_step(spec, device=options["device"], only=only)
        return
    options["output"] = _of_rank(options["output"])
    options["trace_file"] = _of_rank(options["trace_file"])
    to, written = forms(options, measured=True)
    if options["ncu_command"] is not None:
        _ncu_command(spec, options)
        return
    if options["trace_file"] is not None:
        from rooflight.files import check_writable

        check_writable(options["trace_file"], force=options["force"])
    ledger, stopped = _measure(spec, options)
    _give(ledger, options, to, written)
    if stopped:
        complain("interrupted; what was measured before is shown, the rest is missing")
        sys.exit(130)  # click would swallow its own Exit


def _check(spec: StepSpec, options: Mapping[str, Any]) -> None:
    check_positive("repeat", options["repeat"])
    check_positive("total-batch", options["total_batch"])
    if (spec.gpus > 1 or options["total_batch"] is not None) and options["counters"] == "ncu":
        raise BadInput("option-conflict", "--counters ncu profiles one process: leave it out, or --gpus")
    eager = spec.execution == "eager"
    wishes = [options[name] for name in ("metrics", "per_kernel", "levels", "spread")]
    if options["counters"] == "none" and any(wishes):
        raise BadInput(
            "option-conflict", "--metrics, --per-kernel, --level and --spread need counters: leave --counters none out"
        )
    if options["counters"] == "ncu" and not eager:
        raise BadInput(
            "option-conflict", "--counters ncu is for the eager step: use --counters cupti with --compile and --graphs"
        )
    if options["counters"] == "ncu" and options["spread"]:
        raise BadInput("option-conflict", "--spread repeats the step in this process: use --counters cupti with it")
    if options["ncu_command"] is not None and not eager:
        raise BadInput(
            "option-conflict", "--ncu-command opens an op of the eager step: leave --compile and --graphs out"
        )
    trace_file = options["trace_file"]
    output = options["output"]
    if trace_file is not None and output is not None and trace_file in (output, ledger_file(output)):
        raise BadInput("same-file-twice", "--trace and -o name the same file: give them different names")
    if trace_file is not None and spec.compile and not _on_gpu(options["device"]):
        raise BadInput(
            "option-not-applicable",
            "--trace draws ops and kernels by their time, and a compiled step on the CPU has neither: leave "
            "--compile or --trace out",
        )
    if trace_file is not None and not trace_file.name.lower().endswith(".json"):
        raise BadInput("wrong-suffix", f"--trace {trace_file}: the name must end in .json")


def _measure(spec: StepSpec, options: Mapping[str, Any]) -> tuple[Ledger, bool]:
    """The ledger, and whether Ctrl-C ended the measurement early."""
    from rooflight.measurement.api import MeasurementStopped, measure

    backend = options["counters"]
    if backend == "ncu":
        _refuse_ncu(options["device"])
    try:
        with quiet_model(), _progress() as show, heard_once():
            ledger = measure(
                spec,
                device=options["device"],
                counters="none" if backend == "ncu" else backend,
                levels=options["levels"] or ("dram",),
                metrics=() if backend == "ncu" else options["metrics"],
                per_kernel=options["per_kernel"] and backend != "ncu",
                repeat=options["repeat"],
                spread=options["spread"],
                compile_mode=options["compile_mode"],
                progress=show,
                command=typed_command(),
            )
            if backend != "ncu":
                return ledger, False
            show("counters: ncu replays every kernel", 0, 1)
            try:
                return _with_ncu(ledger, spec, options), False
            except KeyboardInterrupt:
                say_again(0)
                return _noted(ledger, "interrupted", "interrupted while ncu counted: counters are missing"), True
    except MeasurementStopped as stopped:
        say_again(0)
        return stopped.ledger, True


def _refuse_ncu(device: str | None) -> None:
    """Before the step is measured, not after."""
    import torch

    from rooflight.measurement import ncu

    if not _on_gpu(device):
        ncu.check_can_count("cpu")
    elif torch.cuda.is_available():  # else the measurement says so
        major, minor = torch.cuda.get_device_capability()
        ncu.check_can_count(f"cuda:{major}{minor}")


def _on_gpu(device: str | None) -> bool:
    """Whether the step of a model by name is measured there."""
    import torch

    return torch.cuda.is_available() if device is None else device.startswith("cuda")


def _noted(ledger: Ledger, code: str, text: str) -> Ledger:
    import msgspec

    from rooflight.ledger import Note

    header = msgspec.structs.replace(ledger.header, notes=(*ledger.header.notes, Note(code, text)))
    return msgspec.structs.replace(ledger, header=header)


def _with_ncu(ledger: Ledger, spec: StepSpec, options: Mapping[str, Any]) -> Ledger:
    import gc

    import torch

    from rooflight.measurement import ncu
    from rooflight.measurement.options import MeasureOptions

    gc.collect()
    if torch.cuda.is_initialized():  # the model is gone by now; the other process needs the memory it took
        torch.cuda.empty_cache()
    wanted = MeasureOptions(counters="ncu", levels=options["levels"] or ("dram",), metrics=options["metrics"])
    try:
        return ncu.count(ledger, [sys.executable, "-m", *_this_step(spec, options), "--profile-op", "all"], wanted)
    except CannotMeasure as error:  # what was measured before stays
        return _noted(ledger, "not-measured", f"counters not measured: {error.on_command_line}")


def _this_step(spec: StepSpec, options: Mapping[str, Any]) -> list[str]:
    """The words that run the same step, for `python -m`."""
    return spec.words("measure", on=options["device"])


def _ncu_command(spec: StepSpec, options: Mapping[str, Any]) -> None:
    from rooflight.commands.output import emit
    from rooflight.estimation.api import estimate
    from rooflight.measurement.ncu import find_op, open_op_command

    with quiet_model():
        ledger = estimate(spec)
    op = find_op(ledger.ops, options["ncu_command"])
    line = ["python", "-m", *_this_step(spec, options)]
    where = op.module or spec.model
    emit(f"# {op.name} in {where}, {op.phase}, op {op.index} of {len(ledger.ops)}")
    emit(open_op_command(line, op))


def _give(ledger: Ledger, options: Mapping[str, Any], to: str, written: str) -> None:
    """Save the files first, so that a closed terminal does not cost the measurement. A file that could not be written
    (a full disk) is an error after the table is shown."""
    from rooflight.commands.output import keep, ops_of, show
    from rooflight.reporting.sections.ledger_documents import measure_document

    document = measure_document(ledger, memory=options["memory"], kernels=options["kernels"], **table_of(options))
    unwritten: list[RooflightError] = []
    if written:
        try:
            say(keep(ledger, lambda to: document, options, written, held=ops_of(ledger, options), measured=True))
        except BadFile as error:
            unwritten.append(error)
    is_saved = not unwritten
    if options["trace_file"] is not None:
        try:
            _write_trace(ledger, options)
        except RooflightError as error:
            unwritten.append(error)
    is_the_table = written in ("csv", "md") and to == "text"
    if ledger.header.rank == 0 and not (is_the_table and is_saved):
        show(document, to)
    for failure in unwritten[:-1]:
        complain(failure.on_command_line)
    if unwritten:
        raise unwritten[-1]


def _write_trace(ledger: Ledger, options: Mapping[str, Any]) -> None:
    from rooflight.files import write_atomically
    from rooflight.reporting.writers.perfetto import to_perfetto

    write_atomically(options["trace_file"], to_perfetto(ledger), force=options["force"])
    say(f"wrote {options['trace_file']}; open it at https://ui.perfetto.dev")


def _of_rank(output: Path | None) -> Path | None:
    """Under torchrun every process writes its own file: run.json becomes run.rank1.json."""
    from rooflight.measurement.ranks import process_rank

    here = process_rank()
    if output is None or here.world < 2:
        return output
    stem, dot, ending = output.name.partition(".")
    return output.with_name(f"{stem}.rank{here.rank}{dot}{ending}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar with what is being done; of several processes, only the first shows it."""
    from rooflight.measurement.ranks import process_rank

    count = "run {task.completed:g} of {task.total:g}"
    with progress("starting", count=count, wanted=not process_rank().rank) as bar:
        yield bar.show
