"""Do the same commands still give the same answers? Records what rooflight says, and compares two recordings.

    python benchmarks/answers.py record FOLDER [--source SRC]   every command below, with the rooflight of SRC
    python benchmarks/answers.py compare BEFORE AFTER [--tolerance 1e-9]

A change of the code that should change no answer is proved so; one that should gets a line in REASONS for every field
that it moves, and `compare` ends with 1 where a field moved without one. Offline, without a GPU; about four minutes on
two cores. Both recordings want the same torch and the same copy of this script: its commands are the questions.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import SequenceMatcher
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
_GONE: Any = object()
"""In the place of a value that one side does not have; null is a value."""

REASONS: dict[str, str] = {
    "*header.*": "a header holds all that its step was asked for with (StepSpec), and which recording it is",
    "*intensity": "FLOPs that must be computed: without the half of attention that a causal mask leaves out",
    "estimate: stdout[].FLOP/B": "FLOPs that must be computed: without the half that a causal mask leaves out",
    "*.gpu_time_s": "the sum of kernels is kernel_time_s; in predictions GPU-busy time keeps the name",
    "*kernel_time_s*": "the sum of kernels has a name of its own",
    "*gpu_span_s": "the time of a region on the GPU by its own name, beside the old one",
    "*advice*": "one engine: gain is of throughput, options ask for it, changes of measured steps for predicted ones too",
    "*.gain": "what the best change of this very step gains",
    "*.fit": "fits, barely or does not fit, beside the old yes and no",
    "*.fits": "fits is said by one column, `fit`",
    "*wall_time_s": "the clear name beside time_s",
    "*gpu_busy_s": "the clear name beside gpu_time_s",
    "*mfu*": "each op against the peak of the precision it runs in, as predictions had it; in studies and measurements",
    "*percent_of_roof*": "the roofs of the ops one after the other over GPU-busy time: the mix could not be reached",
    "*percent_of_op_roofs*": "no op is cut off at its roof any more, and the time is GPU-busy time",
    "*roof_time_s": "the roofs of the ops one after the other, for several of them",
    "*attainable_flops_per_s": "FLOPs over the roofs of the ops one after the other",
    "*bound*": "compute, memory or host: latency and cache are said beside it, as why work is far from its roof",
    "*far": "why work is far from its roof, which was a bound",
    "*parts": "how many sets of ops the roofs of a row are of",
    "*side*": "of several ops the side with more of their time, and what ties lies on the compute side",
    "*.place": "in the words of the new percent of roof",
    "*.evidence": "in the words of the new roofs",
    "*sentence": "in the words of the new gain and bound",
    "*.verdict": "the step's percent of roof is that of its ops",
    "*conventions*": "definitions are those of the catalogue of metrics",
    "*.times": "recorded is not measured here",
    "*origin": "recorded is not measured here; quantities by their new names",
    "*headline*": "intensity and MFU beside the time, gain of throughput, bounds without latency",
    "report: stdout.report.lines[]": "the verdict in the words of the new gain and bound",
    "*nine times in ten*": "called a 90% interval",
    "*90% interval*": "was called nine times in ten",
    "*stdout[]": "hidden columns were columns without room",
    "*.±": "the text of the interval; it was Python's repr of the prediction",
    "*device_bytes": "the number; it was Python's repr of the memory",
    "*predictions[].source": "in plain trade English: transferred, not carried over",
    "*.notes[]": "in the words of the new verdicts",
    "*.commands[]": "every command is made by the step's description, and loses nothing",
    "*sections.*": "tables and sentences of the report follow the answers above",
    "study: *": "values by the names of the catalogue",
    "*utilisation.peaks": "the peaks that MFU is made with, by precision",
    "*trends.*": "quantities by the names of the catalogue",
    "*.advised": "whether advice was looked for",
    "report: stdout.rows[]*": "values of a study by the names of the catalogue",
    "*differences.input": "what two steps were asked for with is compared whole (StepSpec)",
    "*causes[].name": "in plain English: reserved, not allocated",
    "*.measured.name": "in plain English: memory in use on the device",
    "*calibrations.*": "fused Adam was timed anew, and the file says so",
    **dict.fromkeys(
        (
            "report: stdout.a",
            "report: stdout.b",
            *(
                f"report: stdout.{name}"
                for name in ("basis differences memory rows totals unmatched verdicts why".split())
            ),
        ),
        "a report of two ledgers has the data of `compare`, beside its sections",
    ),
    "*report.notes": "notes are the document's, in every form",
    "*.units.*": "units of a study's values are those of the catalogue",
}
"""Why an answer is another one now: pattern of `verb: path` -> one sentence. `*` is anything; indices of lists are `[]`,
as `compare` prints them: "predict: stdout.predictions[].mfu". These are of 85513bf and of the commit that brought `metrics.py`."""

DROPPED: tuple[tuple[str, str, str], ...] = (
    # verb, pattern of the path, why it may differ between two runs of the same code
    ("*", "*header.rooflight", "the version is that of the build, and a worktree has none"),
    ("measure", "*header.device", "the CPU of this machine"),
    ("measure", "*header.conditions*", "this machine's CPU, clock, load and memory at the moment"),
    ("measure", "*time*_s*", "times of this CPU"),
    ("measure", "*.share_of_*", "shares of this CPU's times"),
    ("measure", "*.rates.*", "by this CPU's wall time"),
    ("measure", "*.measured.time[].part", "what lies between ops and wall is named after which was longer this time"),
    ("measure", "*resident_bytes*", "of the whole process, and the operating system's to give"),
    ("measure", "*.doubt", "times are doubted where others kept the cores busy"),
    ("run", "*header.device", "the CPU of this machine"),
    ("run", "*header.conditions*", "this machine's CPU, clock, load and memory at the moment"),
    ("run", "*time*_s*", "times of this CPU"),
    ("run", "*.doubt", "times are doubted where others kept the cores busy"),
    ("run", "*resident_bytes*", "of the whole process, and the operating system's to give"),
    ("run", "*.peak_bytes", "the same resident memory"),
    ("run", "*growth_bytes*", "how far the same resident memory grew"),
    ("report", "stdout.rows[].seconds*", "how long a cell of a study took to compute here"),
)
"""Their places stay, with DROP in them: that a field is there, and where it comes from (its `origin`), are answers too."""
DROP = "(dropped)"
NOTHING = 1e-14
"""What a difference of equal times leaves in the last places: no gain of so many seconds is one."""
INDEX = re.compile(r"\[\d+\]")

FIRST = """
estimate resnet50 --batch 16 --step train --json -o resnet50.json
estimate gpt2 --batch 4 --seq 1024 --dtype bf16 --json -o gpt2.json
estimate net.py:make --input 3x32x32 --batch 8 --step train --json -o net.json
study grid.toml -o grid --workers 1
"""
"""What later commands read, in this order."""

COMMANDS = """
estimate mnist-cnn --batch 64 --json
estimate mnist-cnn --batch 64 --explain conv2
estimate mnist-cnn --batch 8 --target cpu --json
estimate resnet50 --batch 16 --no-tf32 --json
estimate resnet50 --batch 2 --by type --csv
estimate gpt2 --seq 128 --by op --csv
estimate gpt2 --seq 256 --step train --checkpoint blocks --accumulate 2 --json
estimate gpt2 --symbolic --json
estimate vit-b-16 --batch 4 --step train --autocast bf16 --tf32 --optimizer sgd --json
estimate llama3-8b --step decode --past 1024 --dtype bf16 --json
estimate mixtral-8x7b --seq 32 --dtype bf16 --depth 2 --csv
estimate resnet18 --batch 32 --step train --epochs 2 --dataset-size 50000 --target cuda:70 --json
estimate net.py:make --input 3x16x16 --set width=32 --json
estimate torchvision:mobilenet_v2 --json
estimate hf:bert --seq 64 --json
measure mnist-cnn --batch 2 --step train --on cpu --counters none --repeat 2 --json
run --counters none --json -- python regions.py
predict mnist-cnn --batch 64 --on h200 --roofline --json
predict resnet50 --batch 16 --step train --on h200,a100,v100 --json
predict resnet50 --batch 1,16,64 --step train --on h200 --graphs --roofline --json
predict resnet50 --batch 16 --on k80,t4,l40s,b200,mi300x --json
predict resnet50 --batch 16 --on xeon-8480 --json
predict resnet50 --batch 16 --step train --autocast bf16 --on h200 --epochs 90 --dataset-size 1281167 --price 2.5 --json
predict resnet50 --batch 16 --on h200 --tier spec --json
predict resnet50 --batch 16 --on h200 --tier transferred --json
predict resnet50 --batch 16 --step train --on h200 --ppp recorded:h200/resnet50-train-fp32 --tier spec --json
predict vgg16 --on k80 --dtype fp64 --ppp 0.5 --json
predict resnet18 --batch 8 --on own.toml --calibration own-calibration.json.gz --json
predict net.py:make --input 3x32x32 --batch 256 --step train --on a100 --roofline --json
predict vgg19 --batch 16 --step train --on v100 --max-batch --json
predict gpt2 --batch 64 --step train --on v100,a100 --memory --json
predict gpt2 --batch 8 --on v100 --max-seq --json
predict gpt2 --batch 8 --step train --on h200 --checkpoint blocks --accumulate 4 --allocator expandable_segments:True --json
predict llama3-8b --step decode --past 1024 --batch 1,16 --dtype bf16 --on h200,a100 --json
predict llama3-8b --dtype bf16 --step train --on h200 --gpus 16 --parallel fsdp --max-batch --json
predict llama3-70b --dtype bf16 --step train --on h200 --json
predict llama3-70b --dtype bf16 --step train --on h200 --gpus 64 --parallel 8x4x2 --json
predict llama3-8b --step decode --past 512 --dtype bf16 --on h200 --gpus 4 --parallel tp --json
predict gpt2-xl --dtype bf16 --step train --batch 2 --on h200,a100 --gpus 8 --parallel zero1 --price 2 --json
predict gpt2 --batch 8 --step train --on h200 --gpus 4 --parallel pp --micro-batches 4 --memory --json
predict resnet50 --batch 64 --step train --on v100 --gpus 8 --nodes 2 --json
predict resnet50 --on no-such-device --json
compare recorded:h200/resnet50-train-fp32 --json
compare recorded:h200/gpt2-train-bf16 --by type --json
compare recorded:h200/gpt2-infer-bf16 recorded:h200/gpt2-infer-bf16-compiled --json
compare recorded:h200/resnet50-train-fp32 recorded:h200/resnet50-train-fp32-graph --by op --json
compare gpt2.json recorded:h200/gpt2-infer-bf16 --json
compare resnet50.json net.json --json
compare recorded:h200/mnist-cnn-infer-tf32 --claims data/claims/mnist.csv --json
report resnet50.json --on h200,l4 --json
report net.json --on a100 --json
report recorded:h200/mnist-cnn-infer-tf32 --json
report recorded:h200/resnet50-train-fp32 --json
report recorded:h200/distilbert-train-bf16 --on b200 --section roofline --json
report recorded:h200/gpt2-infer-bf16-compiled --json
report recorded:h200/resnet50-infer-fp32 recorded:h200/resnet50-infer-bf16 --json
report resnet50.json recorded:h200/resnet50-train-fp32-graph --json
report ranks.rank0.json ranks.rank1.json --json
report recorded:h200/mnist-cnn-train-tf32 --csv
report grid --json
report mnist-conv2 --json
import data/ncu/h200_mnist_raw.csv.gz --json
import data/ncu/h200_mnist_console.log.gz --by launch --json
import data/ncu/resnet50_b16_tf32.csv.gz --json
import data/timeline/resnet18_marked.json.gz --by range --json
list models --json
list formulas --json
list recordings --json
list devices --json
list devices a100 --json
"""
"""Left out: doctor and calibrate, which are about this machine; completion, which is a script for the shell."""

NET = """
from torch import nn


def make(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, groups=width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )
"""
REGIONS = """
import torch

import rooflight

a = torch.ones(64, 64)
for _ in range(3):
    with rooflight.region("product"):
        a = a @ a / 64
"""
GRID = """
title = "A small grid"
layers = ["conv2"]

[[grid]]
model = "mnist-cnn"
batch = [1, 16, 64, 256]
step = ["infer", "train"]
on = ["h200", "a100"]

[[grid]]
model = "gpt2"
batch = [2, 512]
seq = 1024
step = "train"
dtype = "bf16"
on = "h200"
gpus = [1, 8]

[[grid]]
model = "resnet18"
tf32 = [true, false]

[[claim]]
claim = "flops(mnist-cnn, batch=64, step=infer) ~ 1.5 GFLOP within 10%"

[[claim]]
claim = "bound(mnist-cnn, batch=1) = memory"
says = "at batch 1 the network is bound by memory"
"""


# --- recording ---


def lines(block: str) -> list[str]:
    return block.strip().splitlines()


def slug(command: str) -> str:
    return re.sub(r"[^\w.,+]+", "-", command.replace(" --json", "")).strip("-")


def record(folder: Path, source: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: an answer to an old question would stay in it")
    start, failed = monotonic(), []
    # Relative names in a folder of its own: no path of this machine gets into an answer.
    with tempfile.TemporaryDirectory(prefix="answers-") as place:
        work = Path(place)
        prepare(work, source)
        environment = surroundings(work, source)
        check_source(work, source, environment)

        def ask(command: str) -> None:
            answer = answered(command, work, environment)
            (folder / f"{slug(command)}.json").write_text(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
            if answer["exit"] not in (0, 1) and "no-such" not in command:
                failed.append(f"{command}: {answer['stderr']}")

        for command in lines(FIRST):
            ask(command)
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(ask, lines(COMMANDS)))
    print(f"{len(lines(FIRST + COMMANDS.lstrip()))} commands in {monotonic() - start:.0f} s, from {source}: {folder}")
    if failed:
        raise SystemExit("\n".join(["could not be answered:", *failed]))


def prepare(work: Path, source: Path) -> None:
    """All that the commands read. What has a format of its own, as the source has it."""
    for name, text in (("net.py", NET), ("regions.py", REGIONS), ("grid.toml", GRID)):
        (work / name).write_text(text)
    shutil.copytree(ROOT / "tests" / "data", work / "data")
    shutil.copytree(ROOT / "studies" / "recorded" / "h200" / "mnist-conv2", work / "mnist-conv2")
    shutil.copy(found(source, "calibrations/h200.json.gz"), work / "own-calibration.json.gz")
    device = found(source, "h100-sxm.toml").read_text().replace('"h100-sxm"', '"own"')
    (work / "own.toml").write_text(device)
    ledger = json.loads(gzip.decompress(found(source, "mnist-cnn-train-tf32.json.gz").read_bytes()))
    for rank in range(2):
        ledger["header"] |= {"rank": rank, "world": 2}
        for row in ledger["ops"]:
            row["rank"] = rank
        (work / f"ranks.rank{rank}.json").write_text(json.dumps(ledger))


def found(source: Path, name: str) -> Path:
    """By its last names alone: a refactor may move it."""
    return next(source.rglob(name))


def surroundings(work: Path, source: Path) -> dict[str, str]:
    mine = {
        "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1",  # others may be working in there
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "XDG_DATA_HOME": str(work / "no-calibrations-of-this-machine"), "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1",
    }  # fmt: skip
    return {**os.environ, **mine}


def check_source(work: Path, source: Path, environment: Mapping[str, str]) -> None:
    """An editable install of another tree must not answer in its place."""
    told = subprocess.run([sys.executable, "-c", "import rooflight; print(rooflight.__file__)"], cwd=work,
                          env=environment, capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    if not Path(told).is_relative_to(source):
        raise SystemExit(f"rooflight comes from {told}, not from {source}")


def answered(command: str, work: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-m", "rooflight", *shlex.split(command)], cwd=work, env=environment,
                         capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)  # fmt: skip
    answer = {"command": command, "exit": ran.returncode, "stdout": parsed(ran.stdout, command),
              "stderr": (ran.stderr.splitlines() or [""])[-1]}  # fmt: skip
    return cleaned(answer)


def cleaned(answer: Mapping[str, Any]) -> dict[str, Any]:
    verb = answer["command"].split()[0]
    patterns = [matcher(path) for verbs, path, _ in DROPPED if verbs in ("*", verb)]
    return {name: without(value, name, patterns) for name, value in answer.items()}


def parsed(text: str, command: str) -> Any:
    if "--json" in command and text:  # an error has no document; one that is none is a fault, and told
        return json.loads(text)
    if "--csv" in command:
        return list(csv.DictReader(StringIO(text)))
    return text.splitlines()


def without(value: Any, path: str, patterns: Sequence[re.Pattern[str]]) -> Any:
    if isinstance(value, dict):
        return {name: without(part, f"{path}.{name}", patterns) for name, part in value.items()}
    if isinstance(value, list):
        return [without(part, f"{path}[]", patterns) for part in value]
    if path.endswith(".origin"):
        return value
    return DROP if any(pattern.fullmatch(path) for pattern in patterns) else value


def matcher(pattern: str) -> re.Pattern[str]:
    """`fnmatch` would take the [] of paths for a set of characters."""
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")))


# --- comparing ---


@dataclass(frozen=True)
class Difference:
    command: str
    path: str
    old: Any
    new: Any

    @property
    def kind(self) -> str:
        return "added" if self.old is _GONE else "removed" if self.new is _GONE else "changed"

    @property
    def group(self) -> tuple[str, str]:
        verb = self.command.partition(" ")[0]
        return f"{verb}: {INDEX.sub('[]', self.path)}", self.kind

    @property
    def relative(self) -> float:
        """Of numbers; 0 where it cannot be told."""
        if not (is_number(self.old) and is_number(self.new)):
            return 0.0
        return (self.new - self.old) / abs(self.old) if self.old else math.inf

    def __str__(self) -> str:
        moved = f" ({self.relative:+.3g} relative)" if self.relative else ""
        said = " -> ".join(short(value) for value in (self.old, self.new) if value is not _GONE)
        return f"{self.path}: {said}{moved}   [{self.command}]"


def short(value: Any, most: int = 160) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def differences(old: Any, new: Any, tolerance: float, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            inside = f"{path}.{name}" if path else name
            yield from differences(old.get(name, _GONE), new.get(name, _GONE), tolerance, inside)
    elif isinstance(old, list) and isinstance(new, list):
        for index, (before, after) in enumerate(paired(old, new)):
            yield from differences(before, after, tolerance, f"{path}[{index}]")
    elif not same(old, new, tolerance):
        yield path, old, new


def same(old: Any, new: Any, tolerance: float) -> bool:
    """Whole numbers are counts, and exact."""
    if is_number(old) and is_number(new) and float in (type(old), type(new)):
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=NOTHING if tolerance else 0.0)
    return old is new or (type(old) is type(new) and bool(old == new))


def paired(old: Sequence[Any], new: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """By place; where one is longer, by what its items are called, so that one new row does not move all behind it."""
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
        return
    matched = SequenceMatcher(None, [called(item) for item in old], [called(item) for item in new], autojunk=False)
    for _, a, b, c, d in matched.get_opcodes():
        yield from zip_longest(old[a:b], new[c:d], fillvalue=_GONE)


def called(item: Any) -> str:
    """The texts of a row name it; its numbers are what may have changed."""
    if isinstance(item, dict):
        return json.dumps({name: value for name, value in item.items() if isinstance(value, str)})
    return json.dumps(item)


def read(path: Path) -> Any:
    """Cleaned again: it may have been recorded before a field was known to be unsteady."""
    return cleaned(json.loads(path.read_text())) if path.exists() else _GONE


def compare(before: Path, after: Path, tolerance: float) -> bool:
    """Prints every group of differences with its reason. Has each one?"""
    groups: dict[tuple[str, str], list[Difference]] = {}
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.json")})
    if not names:
        raise SystemExit(f"no answers in {before} and {after}")
    for name in names:
        first, second = read(before / name), read(after / name)
        command = (second if first is _GONE else first)["command"]
        for path, old, new in differences(first, second, tolerance):
            one = Difference(command, path, old, new)
            groups.setdefault(one.group, []).append(one)
    open_ = 0
    for (where, kind), members in sorted(groups.items()):
        reason = next((text for pattern, text in REASONS.items() if matcher(pattern).fullmatch(where)), None)
        open_ += reason is None
        commands = len({one.command for one in members})
        largest = max(members, key=lambda one: abs(one.relative))
        print(f"{where}\n  {kind} {len(members):,} times in {commands} commands: {reason or 'NO REASON'}")
        print(f"  e.g. {largest}")
    print(f"{len(names)} answers, {sum(map(len, groups.values())):,} differences in {len(groups)} groups, "
          f"{open_} of them without a reason")  # fmt: skip
    return not open_


def main() -> None:
    parser = argparse.ArgumentParser(description="The answers of two versions of rooflight.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="run every command and keep its answer")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--source", type=Path, default=ROOT / "src", help="the folder that has rooflight in it")
    comparing = verbs.add_parser("compare", help="list what differs, with its reason")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--tolerance", type=float, default=1e-9, help="relative, for numbers that are not whole")
    given = parser.parse_args()
    if given.verb == "record":
        record(given.folder.resolve(), given.source.resolve())
    elif not compare(given.before, given.after, given.tolerance):
        sys.exit(1)


if __name__ == "__main__":
    main()
