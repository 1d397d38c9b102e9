"""`rooflight calibrate --from FILE`: a calibration from times that are there already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflight.errors import BadInput
from rooflight.spec import StepSpec

if TYPE_CHECKING:
    from rooflight.prediction.recorded_calibration import RecordedCalibration


def from_files(files: Sequence[str], *, on: str | None, output: Path | None, force: bool, as_json: bool) -> None:
    """Read, check, write, and say what there is."""
    if output is not None and not output.name.lower().endswith((".json", ".json.gz")):
        raise BadInput("wrong-suffix", f"{output}: the name must end in .json or .json.gz")
    from rooflight.files import check_writable

    if output is not None:
        check_writable(output, force=force)
    from rooflight.prediction.recorded_calibration import calibration_from

    if on in ("cuda", "cpu"):
        raise BadInput(
            "unknown-device", f"--on {on} says where to run, and --from runs nothing: name a device, as --on rtx-4090"
        )
    made = calibration_from(files, on=on)
    path = _own(made.device.name, force=force) if output is None else output
    made.save(path, force=force)
    from rooflight.commands.output import emit
    from rooflight.commands.terminal import say

    for doubt in made.doubts:
        say(f"note: {doubt}")
    emit(json.dumps(_document(made, path), indent=2) if as_json else "\n".join(_lines(made, path, given=output, on=on)))


def _own(device: str, *, force: bool) -> Path:
    """Where predictions look first. A calibration by micro-benchmarks knows more than one that is made of files."""
    from rooflight.files import check_writable
    from rooflight.hardware.calibration import own_path, read, shipped

    path = own_path(device)
    comes_along = shipped(device)
    if comes_along is not None and not comes_along.partial and not force:
        raise BadInput(
            "file-exists",
            f"a full calibration of {device} comes with rooflight, and what lies in {path} goes before it: write this "
            "one elsewhere with -o FILE, or say --force",
        )
    if path.is_file() and not force:
        try:
            there = read(path)
        except BadInput:
            there = None
        if there is not None and not there.partial:
            raise BadInput(
                "file-exists",
                f"{path} holds a full calibration of {there.device}, of {there.made}: write this one elsewhere with "
                "-o FILE, or replace it with --force",
            )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            "write-failed", f"cannot write to {path.parent}: {error.strerror}; choose another place with -o"
        ) from None
    check_writable(path, force=force)
    return path


def _rows(made: RecordedCalibration) -> list[tuple[str, str, int, float]]:
    """Family, precision, points, and part of the recorded time."""
    total = sum(file.total_s for file in made.files)
    seconds: dict[tuple[str, str], float] = {}
    points: dict[tuple[str, str], int] = {}
    for file in made.files:
        for work in file.works:
            kind = work.task.family, work.task.precision
            seconds[kind] = seconds.get(kind, 0.0) + work.seconds
    for group in made.calibration.points:
        kind = group.family, group.precision
        points[kind] = points.get(kind, 0) + len(group.rows)
    ordered = sorted(points, key=lambda kind: -seconds[kind])
    return [(*kind, points[kind], seconds[kind] / total) for kind in ordered]


def _left_out(made: RecordedCalibration) -> list[tuple[str, int, float]]:
    """Reason, how many, and part of the recorded time."""
    total = sum(file.total_s for file in made.files)
    reasons: dict[str, tuple[int, float]] = {}
    for file in made.files:
        for reason, (count, spent) in file.left_out.reasons.items():
            before = reasons.get(reason, (0, 0.0))
            reasons[reason] = before[0] + count, before[1] + spent
    ordered = sorted(reasons.items(), key=lambda item: -item[1][1])
    return [(reason, count, spent / total) for reason, (count, spent) in ordered]


def _lines(made: RecordedCalibration, path: Path, *, given: Path | None, on: str | None) -> list[str]:
    from rooflight import formatting
    from rooflight.hardware.calibration import published_name, shipped
    from rooflight.hardware.devices import names
    from rooflight.prediction.believed_times import SHORT

    total = sum(file.total_s for file in made.files)
    lines = [
        f"{made.device.title}: {_counted(made.points, 'point')} from {_counted(len(made.files), 'file')}, "
        f"{formatting.percent(made.covered)} of {formatting.seconds(total)} of recorded GPU time"
    ]
    rows = _rows(made)
    width = max(len(family) for family, *_ in rows)
    for family, precision, points, part in rows:
        counted = _counted(points, "point")
        lines.append(f"  {family:{width}}  {precision:4}  {counted:>12}  {formatting.percent(part):>6} of the time")
    lines += [
        _too_short(made, count) if reason == SHORT else f"left out, {formatting.percent(part)} of the time: {reason}"
        for reason, count, part in _left_out(made)
    ]
    # A device that a file or a few numbers describe is known by these alone.
    named = on if on is not None and made.device.name not in names() else made.device.name
    use = StepSpec(model="resnet50").command("predict", on=named, calibration=given)
    if any(file.in_steps for file in made.files):
        lines.append("times are those of a running model: warm and cold inputs are not told apart")
    lines.append(f"wrote {path}; use it with: {use}")
    if given is None:
        published = shipped(published_name(made.device.name)) is not None
        without = "published" if published else "transferred"
        lines.append(f"to undo it, delete that file; to predict once without it, add: --tier {without}")
    return lines


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _too_short(made: RecordedCalibration, count: int) -> str:
    rows = count + sum(len(file.works) for file in made.files if not file.in_steps)
    are = "is" if count == 1 else "are"
    return f"{count:,} of {_counted(rows, 'row')} {are} too short to tell more than a launch: left out"


def _document(made: RecordedCalibration, path: Path) -> dict[str, Any]:
    return {
        "device": made.device.name,
        "points": made.points,
        "covered": made.covered,
        "families": [
            {"family": family, "precision": precision, "points": points, "part_of_time": part}
            for family, precision, points, part in _rows(made)
        ],
        "left_out": [
            {"reason": reason, "count": count, "part_of_time": part} for reason, count, part in _left_out(made)
        ],
        "files": [
            {"file": file.name, "source": file.what, "device": file.device, "kernel_time_s": file.total_s}
            for file in made.files
        ],
        "notes": list(made.doubts),
        "written": str(path),
    }
