"""Which models of the zoos rooflight can trace by their names, and whether torch counts the same FLOPs.

    python benchmarks/coverage.py                   every zoo, printed, and kept in benchmarks/results/coverage.json
    python benchmarks/coverage.py hf --all          all types of transformers (of timm: all models), not the usual ones
    python benchmarks/coverage.py --part 2/4        the second quarter of what there is to try
    python benchmarks/coverage.py --from FILE       what worked in FILE is kept, all else is tried (again)
    python benchmarks/coverage.py hf:bert gpt2      these alone, printed; with --from tried again, all else of FILE kept
    python benchmarks/coverage.py --page            docs/coverage.md written anew from what is kept, nothing tried

A model works if its step is traced without data, on default inputs (torchvision's detectors: with `--real-data`);
inference and training are tried apart, each in a
process of its own with a limit on its time and memory. FlopCounterMode runs the same step on tensors without data, with
the kernels that CUDA would take, where it can; what it counts too much of grouped convolutions' backward is taken off.

The zoos: every name of torchvision; of timm the first model of every module; of transformers the usual types, those
with a folder and a modeling file of their own and a head for text (causal, masked, sequence to sequence), images
(classification, detection, zero-shot), speech (CTC, sequence to sequence) or text with images; and the released models
of `rooflight list models`.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import resource
import sysconfig
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from coverage_page import TriedStep, page

RESULTS = Path(__file__).parent / "results" / "coverage.json"
PAGE = Path(__file__).parent.parent / "docs" / "coverage.md"
STEPS = ("infer", "train")
_HEADS = (
    "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "OBJECT_DETECTION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "CTC", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT",
)  # fmt: skip
_UNSEEN_BY_TORCH = {"aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd", "aten::_cudnn_rnn"}
"""What FlopCounterMode counts as nothing."""


# --- what there is to try ---


def torchvision_specs(everything: bool) -> list[str]:
    from rooflight.models.optional_packages import imported

    return [f"torchvision:{name}" for name in imported("torchvision").models.list_models()]


def timm_specs(everything: bool) -> list[str]:
    from rooflight.models.optional_packages import imported

    timm = imported("timm")
    if everything:
        return [f"timm:{name}" for name in timm.list_models()]
    families = (timm.list_models(module=module) for module in timm.list_modules())
    return [f"timm:{names[0]}" for names in families if names]


def hf_specs(everything: bool) -> list[str]:
    from rooflight.models.optional_packages import imported

    library = imported("transformers")
    configurations, auto = library.models.auto.configuration_auto, library.models.auto.modeling_auto
    types = list(configurations.CONFIG_MAPPING_NAMES)
    if not everything:
        with_head = {name for head in _HEADS for name in getattr(auto, f"MODEL_FOR_{head}_MAPPING_NAMES")}
        folders = Path(library.__file__).parent / "models"
        own = {name: folders / name.replace("-", "_") / f"modeling_{name.replace('-', '_')}.py" for name in types}
        types = [name for name in types if name in with_head and own[name].is_file()]
    return [f"hf:{name}" for name in types]


def released_specs(everything: bool) -> list[str]:
    from rooflight.models.released import RELEASED

    return list(RELEASED)


ZOOS: dict[str, Callable[[bool], list[str]]] = {
    "torchvision": torchvision_specs, "timm": timm_specs, "hf": hf_specs, "released": released_specs,
}  # fmt: skip


# --- one step ---


def tried(zoo: str, spec: str, step: str) -> TriedStep:
    """Trace the step, and count it with torch."""
    from rooflight.errors import RooflightError
    from rooflight.estimation.costs import fill_costs
    from rooflight.ledger import total
    from rooflight.models import build
    from rooflight.trace import TraceOptions, trace

    begun = time.perf_counter()
    try:
        workload = build(spec, batch=2, step=step, dtype=_dtype(zoo))
        ledger = fill_costs(trace(workload, TraceOptions()))
    except RooflightError as error:
        if zoo == "torchvision":  # a detector chooses boxes by their values; it is small enough to be really run
            return _tried_on_data(zoo, spec, step)
        return TriedStep(zoo, spec, step, failure=_short(str(error)), time_s=_since(begun))
    except Exception as error:
        return TriedStep(zoo, spec, step, failure=_short(f"TRACEBACK {type(error).__name__}: {error}"))
    counted = _counted_by_torch(workload)
    sums = total(ledger.ops)
    unseen = total(op for op in ledger.ops if op.packet.removesuffix("_backward") in _UNSEEN_BY_TORCH)
    return TriedStep(
        zoo,
        spec,
        step,
        flops=sums.flops + sums.recompute_flops - unseen.flops - unseen.recompute_flops,
        torch_flops=None if counted is None else counted - sum(map(_groups_forgotten, ledger.ops)),
        uncounted=tuple(left.op for left in sums.uncounted),
        unused=next((note.text for note in ledger.header.notes if note.code == "unused-parameters"), ""),
        time_s=_since(begun),
    )


def _tried_on_data(zoo: str, spec: str, step: str) -> TriedStep:
    import rooflight
    from rooflight.ledger import total

    begun = time.perf_counter()
    try:
        sums = total(rooflight.estimate(spec, batch=2, step=step, real_data=True).ops)
    except rooflight.RooflightError as error:
        return TriedStep(zoo, spec, step, failure=_short(str(error)), time_s=_since(begun))
    uncounted = tuple(left.op for left in sums.uncounted)
    return TriedStep(zoo, spec, step, real_data=True, flops=sums.flops, uncounted=uncounted, time_s=_since(begun))


def _groups_forgotten(op: Any) -> int:
    """FLOPs that FlopCounterMode has too many: it takes the gradient of a grouped convolution's weight for that of a
    full one."""
    if op.packet != "aten::convolution_backward" or op.args["groups"] == 1 or not op.args["output_mask"][1]:
        return 0
    results = op.tensor("input" if op.args["transposed"] else "grad_output")
    batch, _, *places = results.shape
    groups = op.args["groups"]
    return int(2 * (groups - 1) * batch * math.prod(places) * math.prod(op.tensor("weight").shape))


def _dtype(zoo: str) -> str:
    """Released models as they are run; all else as the libraries build it."""
    return "bf16" if zoo == "released" else "fp32"


def _counted_by_torch(workload: Any) -> int | None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from rooflight.trace.dispatch import dispatch_as
    from rooflight.trace.step import main_output
    from rooflight.trace.target import Target

    training = workload.step == "train"
    os.environ["TRANSFORMERS_DISABLE_TORCH_CHECK"] = "1"  # it looks at values
    try:
        model = workload.model.to("meta")
        with dispatch_as(Target("cuda")), torch.set_grad_enabled(training), FlopCounterMode(display=False) as counter:
            output = model(*workload.args, **workload.kwargs)
            if training:
                main_output(output).float().square().mean().backward()
    except Exception:
        return None
    return int(counter.get_total_flops())


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 1)


def _short(line: str) -> str:
    """Without the folders of the machine."""
    packages = sysconfig.get_path("purelib")
    return " ".join(line.replace(packages + os.sep, "").split())[:400]


LISTED = (
    "torchvision:alexnet", "torchvision:convnext_tiny", "torchvision:efficientnet_b0", "torchvision:swin_t",
    "torchvision:vit_h_14", "torchvision:fcn_resnet50", "torchvision:r3d_18", "torchvision:quantized_mobilenet_v2",
    "torchvision:raft_small", "timm:vit_tiny_patch16_224", "timm:mobilenetv3_small_100", "timm:mixer_s16_224",
    "timm:deit_tiny_patch16_224", "hf:gpt2", "hf:opt", "hf:bert", "hf:deberta", "hf:t5", "hf:vit", "hf:clip",
    "hf:convnext", "hf:videomae", "hf:whisper", "hf:audio-spectrogram-transformer", "hf:sam",
    "whisper-tiny", "gemma3-1b", "bert-base", "clip-vit-b-32",
)  # fmt: skip
"""Models of every zoo and kind: those that benchmarks/ratchet.py tries."""


def figures() -> dict[str, float]:
    """Return how many steps of the listed models are traced, have a formula for each op, and cost what torch counts."""
    _import_libraries()
    rows = [
        tried(spec.partition(":")[0] if ":" in spec else "released", spec, step) for spec in LISTED for step in STEPS
    ]
    return {
        "traced": sum(not row.failure for row in rows),
        "fully_counted": sum(not row.failure and not row.uncounted for row in rows),
        "as_many_FLOPs_as_FlopCounterMode": sum(row.flops == row.torch_flops for row in rows),
        "other_FLOPs_than_FlopCounterMode": sum(row.torch_flops not in (None, row.flops) for row in rows),
    }


# --- many of them ---


@dataclass
class RunningStep:
    """A process that tries a step."""

    task: tuple[str, str, str]
    process: Any
    deadline: float


def try_all(
    tasks: Sequence[tuple[str, str, str]], *, jobs: int, timeout_s: float, memory_gib: int
) -> Iterator[TriedStep]:
    """Each in a fork of this process, which has imported the libraries; as many at once as `jobs`."""
    _import_libraries()
    context = multiprocessing.get_context("fork")
    waiting, running = deque(tasks), dict[Connection, RunningStep]()
    while waiting or running:
        while waiting and len(running) < jobs:
            receiver, sender = context.Pipe(duplex=False)
            task = waiting.popleft()
            process = context.Process(target=_in_fork, args=(sender, task, memory_gib))
            process.start()
            sender.close()
            running[receiver] = RunningStep(task, process, time.monotonic() + timeout_s)
        ready = wait(list(running), timeout=1)
        for receiver in [receiver for receiver in running if receiver in ready]:
            yield _received(receiver, running.pop(receiver))
        late = [receiver for receiver, step in running.items() if time.monotonic() > step.deadline]
        for receiver in late:
            step = running.pop(receiver)
            step.process.kill()
            step.process.join()
            yield TriedStep(*step.task, failure=f"took more than {timeout_s:.0f} s", time_s=timeout_s)


def _received(receiver: Connection, step: RunningStep) -> TriedStep:
    try:
        result: TriedStep = receiver.recv()
    except EOFError:
        step.process.join()
        result = TriedStep(*step.task, failure=f"its process ended with {step.process.exitcode}")
    step.process.join()
    return result


def _in_fork(sender: Connection, task: tuple[str, str, str], memory_gib: int) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_DATA, (memory_gib << 30, memory_gib << 30))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # here, not in the process that forks: it may be a test's
    torch.set_num_threads(1)
    try:
        sender.send(tried(*task))
    except MemoryError:
        sender.send(TriedStep(*task, failure=f"takes more than {memory_gib} GiB of memory"))


def _import_libraries() -> None:
    from rooflight.models.optional_packages import imported

    for package in ("torchvision", "timm", "transformers"):
        imported(package)
    import rooflight.trace.tracer  # noqa: F401


# --- what is kept ---


def versions_here() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "timm", "transformers"))


def load(path: Path) -> list[TriedStep]:
    kept = json.loads(path.read_text()) if path.is_file() else {"versions": [], "rows": []}
    rows = []
    for row in kept["rows"]:
        tried_with = kept["versions"][row.pop("with", 0)]
        rows.append(TriedStep(**{**row, "uncounted": tuple(row.get("uncounted", ())), "versions": tried_with}))
    return rows


def save(path: Path, rows: Sequence[TriedStep]) -> None:
    """One line a step, the defaults left out; `with` is the place of its versions in their list."""
    versions = sorted({row.versions for row in rows})
    lines = []
    for row in sorted(rows, key=lambda row: (list(ZOOS).index(row.zoo), row.spec, row.step)):
        values = {**asdict(row), "versions": "", "with": versions.index(row.versions)}
        lines.append("  " + json.dumps({name: value for name, value in values.items() if value not in _LEFT_OUT}))
    path.write_text(f'{{"versions": {json.dumps(versions)},\n "rows": [\n' + ",\n".join(lines) + "\n]}\n")


_LEFT_OUT = ("", None, (), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help="zoos (torchvision, timm, hf, released), or names of models")
    parser.add_argument("--all", action="store_true", help="every model of the zoo")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one step")
    parser.add_argument("--memory", type=int, default=6, help="GiB for one process")
    parser.add_argument("--part", default="1/1", help="I/N: every Nth model, from the Ith on")
    parser.add_argument("--from", dest="kept", type=Path, help="results, of which those that worked are kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write docs/coverage.md from what is kept, and end")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(load(options.out)))
        return
    named = [name for name in options.what if name not in ZOOS]
    zoos = [name for name in options.what if name in ZOOS] or ([] if named else list(ZOOS))
    specs = [(zoo, spec) for zoo in zoos for spec in ZOOS[zoo](options.all)]
    specs += [(name.partition(":")[0] if ":" in name else "released", name) for name in named]
    first, of = map(int, options.part.split("/"))
    tasks = [(zoo, spec, step) for zoo, spec in specs[first - 1 :: of] for step in STEPS]
    known = load(options.kept) if options.kept else []
    kept = [row for row in known if (row.spec not in named if named else not row.failure)]
    done = {(row.zoo, row.spec, row.step) for row in kept}
    rows = list(kept)
    for row in try_all(
        [task for task in tasks if task not in done],
        jobs=options.jobs,
        timeout_s=options.timeout,
        memory_gib=options.memory,
    ):
        rows.append(replace(row, versions=versions_here()))
        same = "" if row.torch_flops in (None, row.flops) else f" torch {row.torch_flops:,} us {row.flops:,}"
        print(f"{row.spec} {row.step} {row.time_s} s: {row.failure or 'works'}{same} {row.unused}".rstrip(), flush=True)
        if known or not named:
            save(options.out, rows)


if __name__ == "__main__":
    main()
