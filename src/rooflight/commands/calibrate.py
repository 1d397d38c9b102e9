"""`rooflight calibrate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.result_options import form_options
from rooflight.commands.terminal import complain, progress, say
from rooflight.errors import BadInput, CannotMeasure
from rooflight.spec import StepSpec

if TYPE_CHECKING:
    from rooflight.calibration.run import Bench
    from rooflight.hardware.calibration import Calibration

_LEAST_S, _USUAL_S, _MOST_S = 5, 130, 3600


@click.command(short_help="measure this device, so that predictions for it are calibrated")
@click.argument("more", metavar="[FILE]...", nargs=-1)
@click.option(
    "--from",
    "recorded",
    metavar="FILE",
    multiple=True,
    help="Run nothing: take the times of a profiler's trace, a measured ledger or a CSV table, or of several of them.",
)
@click.option(
    "--on",
    "where",
    metavar="cuda|cpu|DEVICE",
    help="cuda or cpu; by default the GPU if there is one. With --from: the device, where the files do not name it.",
)
@click.option(
    "--as",
    "described",
    metavar="DEVICE",
    help="Device to calibrate as, if the GPU is not recognised: a name or a .toml file.",
)
@click.option(
    "--seconds",
    type=float,
    default=_USUAL_S,
    show_default=True,
    help="Time for the micro-benchmarks; start-up and sustained peaks take extra time.",
)
@form_options(
    ["json"],
    json="With --from: print the summary as one JSON document.",
    output="Default: where `rooflight predict` looks.",
)
@click.option("--fresh", is_flag=True, help="Start again instead of resuming an interrupted run.")
def command(
    more: tuple[str, ...],
    recorded: tuple[str, ...],
    where: str | None,
    described: str | None,
    seconds: float,
    as_json: bool,
    output: Path | None,
    force: bool,
    fresh: bool,
) -> None:
    """Time this device with micro-benchmarks: matrix products, convolutions, attention, memory, the host; and measure
    the workspace memory of cuDNN's convolutions. The result is a file that `rooflight predict` uses for this device,
    and from which it transfers times to others.

    The same command resumes a calibration that was interrupted.

    With --from nothing is run: the times are those of files. FILE is a trace of PyTorch's profiler (made with
    record_shapes=True), a ledger of `rooflight measure`, `recorded:NAME`, or a CSV table of op, shape, dtype and time.
    The result is a partial calibration: what it does not know is transferred from another GPU and corrected by what it
    knows.
    """
    if recorded:
        if described is not None or fresh or seconds != _USUAL_S:
            raise BadInput(
                "option-conflict",
                "--from runs nothing: leave --as, --seconds and --fresh out, and name the device with --on",
            )
        from rooflight.commands.calibrate_from import from_files

        from_files([*recorded, *more], on=where, output=output, force=force, as_json=as_json)
        return
    if more or as_json:
        raise BadInput(
            "option-needs-another",
            f"{more[0] if more else '--json'} goes with --from FILE: without, this device is timed",
        )
    if where not in (None, "cuda", "cpu"):
        raise BadInput(
            "unknown-device",
            f"--on is cuda or cpu here, not {where!r}: a device is named with --as, or with --from FILE",
        )
    if not _LEAST_S <= seconds <= _MOST_S:
        raise BadInput("out-of-range", f"--seconds must lie between {_LEAST_S} and {_MOST_S}, got {seconds:g}")
    if output is not None and not output.is_dir() and not output.name.lower().endswith((".json", ".json.gz")):
        raise BadInput("wrong-suffix", f"{output}: the name must end in .json or .json.gz")
    if described is not None and where == "cpu":
        raise BadInput(
            "option-not-applicable",
            "--as says what a GPU is; a CPU is known by /proc/cpuinfo: leave --as or --on cpu out",
        )
    from rooflight.files import check_writable

    if output is not None:
        check_writable(output, force=force)
    bench, name = _bench(where, seconds, described)
    path = output if output is not None else _default_path(name)
    from rooflight.calibration.run import calibrate

    journal = path.with_name(path.name + ".partial")
    try:
        if output is None:  # a folder that was named, and is not there, may be a slip
            path.parent.mkdir(parents=True, exist_ok=True)
            check_writable(path, force=force)
        if fresh:
            journal.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(
            "write-failed", f"cannot write to {path.parent}: {error.strerror}; choose another place with -o"
        ) from None
    if journal.exists():
        say(f"resuming {journal}; --fresh starts again")
    try:
        with progress("starting", count="{task.percentage:.0f}%") as bar:
            calibration = calibrate(bench, lambda doing, part: bar.show(doing, part, 1), journal)
    except KeyboardInterrupt:
        complain(f"interrupted; what is done is kept in {journal}: the same command resumes it")
        sys.exit(130)
    from rooflight.files import write_atomically
    from rooflight.hardware.recorded_tables import encode

    write_atomically(path, encode(calibration), force=force)
    _summary(calibration, path, name)


def _bench(where: str | None, seconds: float, described: str | None) -> tuple[Bench, str]:
    import torch

    from rooflight.calibration.run import Bench
    from rooflight.hardware.devices import find
    from rooflight.machine.recognise import this_device

    on_gpu = torch.cuda.is_available() if where is None else where == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise CannotMeasure("no-gpu", "no GPU here that torch can use: see `rooflight doctor`, or say --on cpu")
    if on_gpu:
        reported = torch.cuda.get_device_name()
        gpu = this_device(reported, kind="gpu")
        device = find(described) if described else None if gpu is None else gpu.device
        if device is None:
            raise BadInput(
                "device-not-in-database",
                f"{reported} is not in the database of devices: describe it in a .toml file as docs/devices.md shows, "
                "and give it with --as FILE",
            )
        wanted = ("fp32", "tf32", "bf16", "fp16")
        peaks = {p: figure.value for p in wanted if (figure := device.peak(p)) and _has(device, p)}
        cache = int(device.l2_bytes.value) if device.l2_bytes else 50 << 20
        return Bench(torch.device("cuda"), peaks, cache, seconds), device.name
    cpu = this_device(kind="cpu")
    processor = None if cpu is None else cpu.device or cpu.outline
    if processor is None:
        raise CannotMeasure(
            "unknown-processor",
            "this processor says too little of itself in /proc/cpuinfo: predict on a CPU of `rooflight list devices`",
        )
    cache = min(int(processor.l2_bytes.value) if processor.l2_bytes else 32 << 20, 256 << 20)
    peaks = {"fp32": processor.core_flops_per_s["fp32"].value}
    return Bench(torch.device("cpu"), peaks, cache, seconds), processor.name


def _has(device: Any, precision: str) -> bool:
    """tf32 on a device without it would be fp32 under another name."""
    return precision == "fp32" or precision in device.tensor_flops_per_s or precision in device.core_flops_per_s


def _default_path(name: str) -> Path:
    from rooflight.hardware.calibration import own_path

    return own_path(name)


def _summary(calibration: Calibration, path: Path, name: str) -> None:
    from rooflight import formatting
    from rooflight.commands.output import emit
    from rooflight.prediction.resolve_devices import waited_much

    points, layers = (
        sum(len(table.rows) for table in tables) for tables in (calibration.points, calibration.workspaces)
    )
    of_memory = f" and the workspaces of {layers:,} convolutions" if layers else ""
    took = f"in {calibration.seconds:.0f} s, torch {calibration.torch}"
    emit(f"{calibration.device}: {points:,} points{of_memory} {took}")
    waited = calibration.conditions.get("waited_for_a_core", "")
    if waited_much(waited):
        emit(f"TIMES UNRELIABLE: others kept the cores busy, threads waited {waited}: calibrate again when it is quiet")
    for key, value in calibration.ceilings.items():
        if key.endswith(".burst"):
            continue
        unit = "FLOP/s" if key.startswith("gemm") else "B/s"
        emit(f"  {key:12} {formatting.count(value.value) + unit:>14}   {value.origin}")
    where = None if path == _default_path(name) else path
    emit(f"wrote {path}; use it with: {StepSpec(model='resnet50').command('predict', on=name, calibration=where)}")
