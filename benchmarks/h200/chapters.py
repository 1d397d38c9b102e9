"""Time some chapters of `rooflight calibrate` alone, and add their points to a calibration.

usage: chapters.py OUT.json SECONDS WORD...               chapters with one of the words in their name (needs a GPU)
       chapters.py --into CALIBRATION.json.gz OUT.json NOTE    their points into the file, at most MOST of a family

A family that was added later need not wait for a calibration of everything else. NOTE says which points are of another
day: the file keeps it, and every page that uses it shows it.
"""

import json
import sys
from contextlib import closing
from datetime import date
from pathlib import Path
from time import monotonic

import msgspec
import torch

from rooflight.calibration.run import Bench, clock_for, plan_for, timed_rows
from rooflight.hardware.calibration import TimedPoints, read
from rooflight.hardware.devices import recognise_name
from rooflight.hardware.recorded_tables import encode
from rooflight.machine.installed_gpus import driver_version

MOST = 9000
"""Points of a family and precision: what is quickly timed has thousands, which would only make prediction slower."""


def timed(out: Path, seconds: float, words: list[str]) -> None:
    device = recognise_name(torch.cuda.get_device_name())
    peaks = {precision: device.peak(precision).value for precision in ("fp32", "tf32", "bf16", "fp16")}
    bench = Bench(torch.device("cuda"), peaks, int(device.l2_bytes.value), seconds)
    chapters = [chapter for chapter in plan_for(bench) if any(word in chapter.name for word in words)]
    whole = sum(chapter.share for chapter in chapters)
    rows: dict[str, list[list[int]]] = {}
    with closing(clock_for(bench)) as clock:
        for chapter in chapters:
            for key, some in timed_rows(clock, chapter, monotonic() + seconds * chapter.share / whole).items():
                rows.setdefault(key, []).extend(some)
            print(chapter.name, {key: len(some) for key, some in rows.items()}, flush=True)
    about = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "driver": driver_version(),
             "made": date.today().isoformat(), "chapters": [chapter.name for chapter in chapters]}  # fmt: skip
    out.write_text(json.dumps(about | {"points": rows}) + "\n")


def merged(path: Path, out: Path, note: str) -> None:
    calibration, added = read(path), json.loads(out.read_text())
    if (added["device"], added["torch"]) != (calibration.device, calibration.torch):
        sys.exit(f"{out} is of {added['device']}, torch {added['torch']}: not what {path} is of")
    known = {(points.family, points.precision): points.rows for points in calibration.points}
    for key, rows in added["points"].items():
        family, _, precision = key.partition(" ")
        before = {tuple(row[:-3]): row for row in known.get((family, precision), [])}
        chosen = rows[:: -(-len(rows) // MOST)]
        known[family, precision] = [*(before | {tuple(row[:-3]): row for row in chosen}).values()]
    found = msgspec.structs.replace(
        calibration, points=tuple(TimedPoints(*key, rows) for key, rows in sorted(known.items())),
        notes=tuple(dict.fromkeys((*calibration.notes, note))),
    )  # fmt: skip
    path.write_bytes(encode(found))
    print(f"{path}: {sum(len(points.rows) for points in found.points):,} points")


if __name__ == "__main__":
    if sys.argv[1] == "--into":
        merged(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    else:
        timed(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
