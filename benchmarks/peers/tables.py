"""From measurements to the page: tables in Markdown, rooflight = 1.0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from peers.cases import BACKWARD, CASES, FORWARD, LAYERS, STEP, Case
from peers.tools import FORWARD_PEERS, TOOLS


class Job(NamedTuple):
    """One tool on one case, with one kind of tensors."""

    tool: str
    case: str
    tensors: str


@dataclass(frozen=True)
class Run:
    """What came out of one job, or of the best of several."""

    time_s: float = 0.0
    added_bytes: int = 0
    macs: int | None = None
    ops: int | None = None
    peak_bytes: int | None = None
    failed: str = ""

    def better(self, other: Run) -> Run:
        """The faster of two; of the memory, the lesser."""
        if other.failed:
            return self
        fast = min(self, other, key=lambda run: run.time_s)
        least = min(self.added_bytes, other.added_bytes)
        return Run(fast.time_s, least, fast.macs, fast.ops, fast.peak_bytes)

    def in_words(self) -> str:
        return self.failed or f"{seconds(self.time_s)}, {megabytes(self.added_bytes)}"


Results = dict[Job, Run]

SLOW_S = 15.0  # a job that takes longer is asked only once


def document(results: Results, conditions: str, memory: str) -> str:
    """The page, with a section for every group that was measured. `memory`: the section of benchmarks/memory.py."""
    sections = [HEAD.format(conditions=conditions, slow=SLOW_S)]
    sections += _targets(results)
    sections += _forward(results)
    sections += _backward(results)
    sections += _step(results)
    sections += _growth(results)
    sections += [memory] if memory else []
    sections.append(PREDICTED)
    sections.append(_conventions())
    return "\n\n".join(sections) + "\n"


HEAD = """\
<!-- Made by `benchmarks/estimate.py --write`, "Peak memory" by `benchmarks/memory.py --peers --write`. Do not edit: run
`make bench`. -->
# Benchmarks: rooflight beside other tools

Made by `python benchmarks/estimate.py --write` (`make bench`). {conditions}

How it is measured: every figure comes from a fresh process that imports everything, warms up on a tiny model of the \
same kind and then asks the tool, up to three times. The tools take turns, so that a busy moment of the machine does \
not fall on one of them; the best time and the least memory count, except that a tool which takes more than {slow:.0f} s \
is asked once. Time is that of the tool alone, without building the model. Added \
memory is the peak of the process minus what it held before the model was built, so real weights count. `× time` is \
the tool's time over rooflight's: 2.0 means twice as slow, 0.5 twice as fast. Absolute times are those of one small \
machine; the ratios are what to look at."""


def _targets(results: Results) -> list[str]:
    """Each goal beside what was measured; without its measurements, a goal is left out."""
    rows = [*_target_backward(results), *_target_llama(results), *_target_step(results), *_target_growth(results)]
    if not rows:
        return []
    return ["## What it set out to reach", table(("goal", "measured", ""), rows)]


Goal = tuple[str, str, str]


def goal(text: str, measured: str, *, reached: bool) -> Goal:
    return text, measured, "reached" if reached else "**not reached**"


def _target_backward(results: Results) -> Iterable[Goal]:
    ours, theirs = _pair(results, "gpt2-backward", "flop-counter-mode")
    if ours and theirs:
        ratio = ours.time_s / theirs.time_s
        text = "GPT-2 s1024 b4, forward and backward: at most 1.2 × FlopCounterMode's time"
        yield goal(text, f"{ratio:.2f} × (rooflight's includes an optimizer step)", reached=ratio <= 1.2)


def _target_llama(results: Results) -> Iterable[Goal]:
    ours, theirs = _pair(results, "llama-forward", "flop-counter-mode")
    if ours and theirs:
        ratio = ours.time_s / theirs.time_s
        yield goal("Llama 3 70B forward: at most 1.5 × FlopCounterMode's time", f"{ratio:.2f} ×", reached=ratio <= 1.5)
        yield goal("Llama 3 70B forward: under 300 MB of added memory", megabytes(ours.added_bytes),
                    reached=ours.added_bytes < 300e6)  # fmt: skip


def _target_step(results: Results) -> Iterable[Goal]:
    ours, theirs = _pair(results, "llama-step", "mem-tracker")
    if ours and theirs:
        ratio = ours.time_s / theirs.time_s
        text = "Llama 3 70B, a whole training step: at most 0.1 × MemTracker's time"
        yield goal(text, f"{ratio:.3f} × (MemTracker on meta tensors, its faster way)", reached=ratio <= 0.1)


def _target_growth(results: Results) -> Iterable[Goal]:
    """Each depth against the cheapest shallower one: the fixed costs of a few layers must not hide growth."""
    worst = {}
    for step in ("infer", "train"):
        costs = [cost for layers in LAYERS if (cost := _per_op(results, layers, step)) is not None]
        if len(costs) != len(LAYERS):
            return
        worst[step] = max(cost / min(costs[:depth]) for depth, cost in enumerate(costs) if depth)
    text = "cost grows linearly with the ops: an op takes at most 1.25 × its time in any shallower model"
    measured = f"{worst['infer']:.2f} × forward, {worst['train']:.2f} × training, at the worst depth"
    yield goal(text, measured, reached=max(worst.values()) <= 1.25)


def _pair(results: Results, case: str, peer: str) -> tuple[Run | None, Run | None]:
    runs = (results.get(Job(tool, case, "meta")) for tool in ("rooflight", peer))
    ours, theirs = (None if run is None or run.failed else run for run in runs)
    return ours, theirs


def _forward(results: Results) -> list[str]:
    sections = ["## Forward pass", FORWARD_NOTE]
    for case in FORWARD:
        rows = _rows(results, case, ("rooflight", *FORWARD_PEERS))
        if rows:
            sections += [f"### {case.title}", f"Reference: {case.macs:,} multiply-adds (MACs).", _counts(rows, case)]
            sections += _failures(rows)
    return sections


FORWARD_NOTE = """\
On *meta* tensors nothing is computed and no weights are held. On *cpu* the model is really built and run, which is \
what most of these tools expect: the time is then mostly that of the model. Some answers depend on which it is, since \
torch takes attention and linear layers apart differently."""


def _backward(results: Results) -> list[str]:
    sections = ["## Forward and backward", BACKWARD_NOTE]
    for case in BACKWARD:
        rows = _rows(results, case, ("rooflight", "flop-counter-mode"))
        if rows:
            sections += [f"### {case.title}", f"Reference: {case.macs:,} MACs.", _counts(rows, case)]
    return sections if len(sections) > 2 else []


BACKWARD_NOTE = """\
The loss is the mean square of the output. rooflight has no step without an optimizer, so it also traces an SGD step, \
which FlopCounterMode does not. On meta tensors torch computes attention through full matrices, and this is what \
FlopCounterMode sees; rooflight traces the fused kernels that CUDA would take, which are fewer ops, and works out an \
operator only once for the same shapes. The others do not trace backward: calflops and DeepSpeed multiply forward by a \
factor."""


def _step(results: Results) -> list[str]:
    sections = ["## A whole training step", STEP_NOTE]
    for case in STEP:
        rows = _rows(results, case, ("rooflight", "mem-tracker", "mem-tracker-cuda"))
        if rows:
            sections += [f"### {case.title}", _memory(rows, case)]
            sections += _failures(rows)
    return sections if len(sections) > 2 else []


STEP_NOTE = """\
Forward, backward and optimizer. MemTracker (`torch.distributed._tools`) follows memory only, and says the peak at \
once, by module and category; it counts no operations. rooflight writes every op with its costs, and every storage \
with its birth and death; the peak that it predicts of them is under [Peak memory](#peak-memory). MemTracker is given meta tensors and, as it is mostly used, fake \
ones. There attention goes through full matrices and dropout keeps float masks, unlike on the H200 that the reference \
was measured on; the last row of GPT-2 shows its peak without that."""


def _growth(results: Results) -> list[str]:
    rows = []
    for layers in LAYERS:
        row = [str(layers)]
        for step in ("infer", "train"):
            run = results.get(Job("rooflight", f"llama-{layers}-{step}", "meta"))
            if run is None or run.failed or not run.ops:
                return []
            row += [f"{run.ops:,}", seconds(run.time_s), f"{1e6 * run.time_s / run.ops:.0f}"]
        rows.append(row)
    heads = ("layers", "ops forward", "time", "µs an op", "ops training", "time", "µs an op")
    return ["## Growth with depth", GROWTH_NOTE, table(heads, rows, numbers_from=0)]


GROWTH_NOTE = "Llama 3 70B with fewer layers, bf16, sequence 2048, batch 1; rooflight only; training with AdamW."


def _per_op(results: Results, layers: int, step: str) -> float | None:
    run = results.get(Job("rooflight", f"llama-{layers}-{step}", "meta"))
    return None if run is None or not run.ops else run.time_s / run.ops


def _conventions() -> str:
    rows = [(tool.title, tool.convention, CANNOT[key]) for key, tool in TOOLS.items() if key in CANNOT]
    return "## What is compared, and what each cannot do\n\n" + table(("tool", "MACs are", "what it does not do"), rows)


PREDICTED = """## Predicted time

Tools of this page count; only torch's RuntimeEstimator also says how long a step takes. Predictions have pages of their
own, each with every row and the models of time beside it:

- [predict-errors.md](predict-errors.md): 120 steps measured on an H200, beside PALEO, the plain roofline and
  RuntimeEstimator; wall times of host-bound steps; how long predicting takes.
- [predicting-published.md](predicting-published.md): steps that others timed, on GPUs that were never calibrated.
- [predicting-many-gpus.md](predicting-many-gpus.md): published runs on many GPUs."""


CANNOT = {
    "rooflight": "run the model or time it here",
    "flop-counter-mode": "bytes, memory, rows of single ops; ops without a formula count 0 and are not named; "
                         "on the CPU fused attention counts 0",
    "torchinfo": "backward; ops that are not modules, such as attention; the sequence: a linear layer counts once a sample",
    "fvcore": "backward; attention through `scaled_dot_product_attention` (it does name what it left out); "
              "convolutions on meta",
    "ptflops": "backward; attention through `scaled_dot_product_attention`; on meta it counts `addmm` twice",
    "ptflops-aten": "backward; fused attention on the CPU",
    "calflops": "backward, except as a factor; attention through `scaled_dot_product_attention`",
    "deepspeed": "backward, except as a factor; on meta it counts `addmm` twice (it does time modules)",
    "mem-tracker": "FLOPs or bytes moved",
}  # fmt: skip

Row = tuple[Job, Run, Run | None]


def _rows(results: Results, case: Case, tools: Sequence[str]) -> list[Row]:
    """A tool's runs on a case, with rooflight's to compare with."""
    ours = results.get(Job("rooflight", case.key, "meta"))
    if ours is None:
        return []
    jobs = [job for tool in tools for job in results if job.tool == tool and job.case == case.key]
    return [(job, results[job], None if ours.failed else ours) for job in jobs]


def _counts(rows: Sequence[Row], case: Case) -> str:
    heads = ("tool", "tensors", "time", "× time", "added memory", "MACs", "error")
    lines = []
    for job, run, ours in rows:
        if run.failed:
            lines.append((TOOLS[job.tool].title, job.tensors, "fails", "", "", "", ""))
            continue
        lines.append((TOOLS[job.tool].title, job.tensors, seconds(run.time_s), times(run, ours),
                      megabytes(run.added_bytes), f"{run.macs:,}", error(run.macs, case.macs)))  # fmt: skip
    return table(heads, lines, numbers_from=2)


def _memory(rows: Sequence[Row], case: Case) -> str:
    heads = ("tool", "tensors", "time", "× time", "added memory", "ops written", "peak it gives", "against the H200")
    lines = []
    for job, run, ours in rows:
        if run.failed:
            lines.append((TOOLS[job.tool].title, job.tensors, "fails", *[""] * 5))
            continue
        peak = "" if run.peak_bytes is None else f"{run.peak_bytes / 1e9:.1f} GB"
        lines.append((TOOLS[job.tool].title, job.tensors, seconds(run.time_s), times(run, ours),
                      megabytes(run.added_bytes), "" if run.ops is None else f"{run.ops:,}", peak,
                      error(run.peak_bytes, case.peak_bytes)))  # fmt: skip
    return table(heads, lines, numbers_from=2)


def _failures(rows: Sequence[Row]) -> list[str]:
    lines = [f"- {TOOLS[job.tool].title} on {job.tensors} fails: `{run.failed}`" for job, run, _ in rows if run.failed]
    real = any(job.tensors == "cpu" for job, _, _ in rows)
    if not real and CASES[rows[0][0].case].group == "forward":
        lines.append("- Not tried on the CPU: the weights alone are 141 GB.")
    return ["\n".join(lines)] if lines else []


def times(run: Run, ours: Run | None) -> str:
    if ours is None:
        return ""
    ratio = run.time_s / ours.time_s
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms"


def megabytes(value: int) -> str:
    return f"{value / 1e6:,.0f} MB"


def error(value: int | None, right: int | None) -> str:
    """How far off, in percent; as a factor from a factor of two on."""
    if value is None or right is None:
        return ""
    if value == right:
        return "0"
    ratio = value / right
    if not 0.5 < ratio < 2:
        return f"× {ratio:.2g}"
    percent = 100 * (ratio - 1)
    text = f"{percent:+.1f}%" if abs(percent) >= 0.1 else f"{percent:+.1g}%"
    return text.replace("-", "−")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """A Markdown table; columns from `numbers_from` on are aligned to the right."""
    first = len(heads) if numbers_from is None else numbers_from
    rule = ["---" if column < first else "---:" for column in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))
