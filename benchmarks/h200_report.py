"""Writes docs/h200-measurements.md from the recordings that come with rooflight and the results beside this file.

usage: h200_report.py [--recordings FOLDER] [--results FOLDER] [-o PAGE]    (needs no GPU)
       h200_report.py --gpu-tests JUNIT.xml     keep what `pytest tests/gpu --junitxml=JUNIT.xml` found, then write

A section is there only if its files are. Every number comes from them; the sentences around the numbers are ours.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from h200_results import (
    Row,
    against_ncu,
    code,
    executions,
    gpu_tests,
    kept_tests,
    many_ops,
    range_ends,
    table,
    undisturbed,
)

from rooflight import formatting
from rooflight.files import load
from rooflight.formatting import per_second, quotient, seconds, whole_bytes
from rooflight.ledger import Kernel, Ledger
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS, cuda_is_known
from rooflight.reporting.table import kernel_name
from rooflight.summary.facts import Number, op_values
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import busy_s, rates, self_check, useful_flops, utilisation, wall_s

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "src" / "rooflight" / "recordings" / "h200"
RESULTS = Path(__file__).parent / "h200" / "results"
PAGE = ROOT / "docs" / "h200-measurements.md"
WITHIN = 0.01
"""Bytes of the ops and of the step that differ by no more than this need no explanation."""
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
CONV2 = "2 × 9 × 32 × 64 × 576 × 64"


# --- the recordings ---


def page(recordings: dict[str, Ledger], results: dict[str, Any]) -> str:
    measured = {name: Measured(ledger) for name, ledger in recordings.items()}
    eager = {name: found for name, found in measured.items() if found.ledger.header.execution == "eager"}
    sections = [
        head(recordings), work(measured), speed(measured), checked(eager),
        range_ends(results.get("range_ends")), conv2(recordings),
        against_ncu(results.get("against_ncu")), undisturbed(results.get("undisturbed")), executions(recordings),
        many_ops(results.get("many_ops")), gpu_tests(results.get("gpu_tests")), commands(recordings),
    ]  # fmt: skip
    return "\n\n".join(part for section in sections for part in section) + "\n"


def head(recordings: dict[str, Ledger]) -> list[str]:
    headers = [ledger.header for ledger in recordings.values()]

    def all_of(name: str) -> str:
        return " and ".join(sorted({str(getattr(header, name)) for header in headers}))

    return [
        "<!-- Made by `python benchmarks/h200_report.py`. Do not edit: run it again. -->\n"
        "# Measured on an H200",
        f"{all_of('device')}, driver {all_of('driver')}, CUDA {all_of('cuda')}, torch {all_of('torch')}, rooflight "
        f"{all_of('rooflight')}. Each row of the first tables is a file that comes with rooflight: "
        "`rooflight report recorded:h200/NAME` shows all of it, op by op, with the clocks and the power of that run. "
        "How each number is taken is in [measuring.md](measuring.md).",
        "The recordings were made by one command; each file also names its own in its header (listed at the end).",
        code(["python benchmarks/h200/recordings.py FOLDER"]),
    ]  # fmt: skip


def whole(found: Measured, names: Iterable[str]) -> Number | None:
    """Of the range around the step."""
    known = [found.step[name].value for name in names if name in found.step]
    return sum(known) if known else None


def cuda_cores(found: Measured) -> Number | None:
    """The same of the CUDA cores, where all they did was counted."""
    return whole(found, CUDA_FLOPS) if cuda_is_known(found.step, half=found.has_half) else None


def work(measured: dict[str, Measured]) -> list[str]:
    rows = []
    for name, found in measured.items():
        kernels = found.step.get("kernels")
        executed = found.total.executed_per_useful
        rows.append((
            name, f"{len(found.launched):,}", "–" if kernels is None else f"{kernels.value:,}",
            formatting.count(useful_flops(found.ledger)), formatting.count(whole(found, TENSOR_FLOPS)),
            formatting.count(cuda_cores(found)), quotient(executed), whole_bytes(whole(found, DRAM_BYTES[:1])),
            whole_bytes(whole(found, DRAM_BYTES[1:])),
        ))  # fmt: skip
    return [
        "## What the steps did",
        "FLOPs and bytes are those of one range around the whole step. `ops` are those that launched something. "
        "`exec/useful` is over the ops with matrix work: padding to tiles raises it, Winograd and causal attention, which "
        "skips what is masked, lower it. It is `–` where ops have no counters of their own (captured steps).",
        table(
            ("recording", "ops", "kernels", "useful FLOPs", "tensor FLOPs", "CUDA-core FLOPs", "exec/useful",
             "DRAM read", "written"), rows,
        ),
        *fp32_attention(measured),
    ]  # fmt: skip


def fp32_attention(measured: dict[str, Measured]) -> list[str]:
    """What an attention kernel for fp32 executes on the tensor cores, of its formula."""
    found = {}
    for name, one in measured.items():
        ledger = one.ledger
        if ledger.header.step == "infer" and ledger.header.dtype == "fp32":
            ops = [op for op in ledger.ops if op.packet == "aten::_scaled_dot_product_efficient_attention"]
            useful = sum(op.cost.flops or 0 for op in ops if op.cost is not None)
            done = sum(
                value.value for op in ops for key, value in op_values(ledger)[op.index].items() if key in TENSOR_FLOPS
            )
            if useful and done:
                found[name] = done / useful
    if not found:
        return []
    told = ", ".join(f"`{name}` {ratio:g}" for name, ratio in found.items())
    return [
        "The fp32 transformers show tensor FLOPs although TF32 is off in matmuls: they are those of the fp32 attention "
        f"kernel, which executes a multiple of its formula in tf32: {told}. 3 is three products in tf32 for one in "
        "fp32; where the mask is causal, tiles that it covers wholly are left out."
    ]


def speed(measured: dict[str, Measured]) -> list[str]:
    rows = []
    for name, found in measured.items():
        rate, used = rates(found), utilisation(found)
        passes, took = passes_of(found.ledger)
        rows.append((
            name, seconds(wall_s(found)), seconds(busy_s(found)),
            *(("–",) * 3 if used is None else map(formatting.percent, (used.mfu, used.mfu_causal, used.hfu))),
            "–" if used is None else f"{used.peak.flops_per_s / 1e12:g} {used.precision}",
            per_second(rate.samples_per_s), per_second(rate.tokens_per_s), passes, took,
        ))  # fmt: skip
    return [
        "## How fast they were, and what counting cost",
        "Wall time is the median of 20 plain steps, before any profiler ran. MFU is useful FLOPs by the "
        "wall, of the dense peak (TFLOP/s) of the precision that most of the work runs in; `causal` is the same with only "
        "the half of attention that a causal mask keeps, where there is one. HFU is the share of the wall that the units "
        "would need for what they executed, each at its own peak: tensor cores by precision, CUDA cores by theirs. It is "
        "below MFU where less was executed than the formula says (causal attention that skips what is masked), or by a "
        "unit with a higher peak (the fp32 attention kernel, which runs in tf32 on tensor cores). It is `–` where the FLOPs of CUDA cores are unknown. Most of these "
        "steps are small for this GPU: where it is busy for much less than the wall, the host is what limits them. The "
        "last two columns are the repeats of the step that the counters took, two of them for the spread of the whole "
        "step's counts (`--spread`), and the seconds for all of them together.",
        table(
            ("recording", "wall", "GPU busy", "MFU", "causal", "HFU", "peak", "samples/s", "tokens/s", "passes", "seconds"), rows,
        ),
    ]  # fmt: skip


def passes_of(ledger: Ledger) -> tuple[str, str]:
    for note in ledger.header.notes:
        if found := re.match(r"counters took (\d+) passes in ([\d.]+) s", note.text):
            return found[1], found[2]
    return "–", "–"


# --- the self-check ---


def checked(measured: dict[str, Measured]) -> list[str]:
    rows, off = [], []
    tensor_equal, within, cuda_differ = 0, 0, []
    for name, found in measured.items():
        checks = {check.name: check for check in self_check(found)}
        tensor = sum(checks[key].difference for key in TENSOR_FLOPS if key in checks)
        cuda = sum(checks[key].difference for key in CUDA_FLOPS if key in checks)
        read, written = (checks[key] for key in DRAM_BYTES)
        both = (read.difference + written.difference) / (read.whole_step + written.whole_step)
        tensor_equal += not any(checks[key].difference for key in TENSOR_FLOPS if key in checks)
        spread = sum(own_spread(checks[key]) for key in CUDA_FLOPS if key in checks)
        if cuda:
            within += sum(outside(checks[key]) for key in CUDA_FLOPS if key in checks) <= spread
            cuda_differ.append(
                f"`{name}` by {cuda:+,} of {sum(checks[k].whole_step for k in CUDA_FLOPS if k in checks):,}, where the "
                f"step's own three counts differ by {spread:,}"
            )
        if abs(both) > WITHIN:
            off.append((name, both, read, written))
        rows.append((
            name, f"{tensor:,}", f"{cuda:+,}" if cuda else "0", off_by(read.relative),
            off_by(written.relative), off_by(both),
            off_by((own_spread(read) + own_spread(written)) / (read.whole_step + written.whole_step)).lstrip("+"),
            f"{read.missing:,}", f"{written.missing:,}",
        ))  # fmt: skip
    count = len(rows)
    parts = [
        "## The ops against the step",
        "Every measurement checks itself: the sum over all ops, each in a range of its own, against one range around "
        "the whole step, in other runs of it. `without` counts the ops whose bytes are no more than a range with "
        "nothing in it shows; they have no value and are not in the sum. `spread` is by how much three counts of the whole "
        "step's bytes differ from each other.",
        table(("recording", "tensor FLOPs", "CUDA-core FLOPs", "DRAM read", "written", "both", "spread", "without: read",
               "written"), rows),
        f"- Tensor FLOPs: equal to the last digit in {tensor_equal} of {count}.",
        f"- CUDA-core FLOPs: equal in {count - len(cuda_differ)} of {count}."
        + (f" The others have kernels that do not run the same number of instructions in every run: {'; '.join(cuda_differ)}. "
           "The sum over the ops is a fourth count, and a fourth lies outside three every second time; no further outside "
           f"than the three are apart: {within} of {len(cuda_differ)}." if cuda_differ else ""),
        f"- DRAM bytes, read and written together: within {WITHIN:.0%} in {count - len(off)} of {count}.",
    ]  # fmt: skip
    return [*parts[:3], "\n".join(parts[3:]), *explained(off)]


def outside(check: Any) -> Number:
    """By how much the sum over the ops lies beyond all counts of the step."""
    if check.low is None:
        return abs(check.difference)
    return max(check.low - check.sum_of_ops, check.sum_of_ops - check.high, 0)


def own_spread(check: Any) -> Number:
    return 0 if check.low is None else check.high - check.low


def off_by(value: float | None) -> str:
    if not value:
        return "–" if value is None else "0"
    return f"{value:+.2%}" if abs(value) >= 5e-5 else f"{value:+.4%}"


def explained(off: list[Any]) -> list[str]:
    """The recordings whose bytes differ, with what each of them moves more or less of."""
    if not off:
        return []

    def said(check: Any) -> str:
        return f"{'+' if check.difference >= 0 else '−'}{whole_bytes(abs(check.difference))}"

    rows = [
        (name, off_by(both), said(read), said(written), whole_bytes(read.whole_step + written.whole_step))
        for name, both, read, written in off
    ]
    more = [name for name, both, *_ in off if both > 0]
    less = [name for name, both, *_ in off if both < 0]
    parts = [
        "The ones beyond that:",
        table(("recording", "both", "ops read", "ops write", "the step moves"), rows),
        f"More: {', '.join(f'`{name}`' for name in more)}." if more else "",
        f"Less: {', '.join(f'`{name}`' for name in less)}." if less else "",
        "For the bytes of a step take the range around it: the headline, the rates and the whole-step lines of "
        "`rooflight compare` do. The rows say where in the step the traffic is.",
    ]  # fmt: skip
    return [part for part in parts if part]


# --- one layer, to the last digit ---


def conv2(recordings: dict[str, Ledger]) -> list[str]:
    names = [name for name in ("mnist-cnn-infer-tf32", "mnist-cnn-infer-fp32") if name in recordings]
    rows: list[Row] = []
    for name in names:
        ledger = recordings[name]
        op = next(op for op in ledger.ops if op.module == "conv2")
        own = op_values(ledger)[op.index]
        rows += [
            (name, f"`{kernel_name(kernel.name, 60).shown}`", *counts(kernel))
            for kernel in ledger.kernels
            if kernel.ops == (op.index,) and kernel.kind == "kernel"
        ]
        rows.append((name, "**the op**", *(f"**{own[key].value:,}**" for key in ("tensor_flops_tf32", FFMA))))
    if not rows:
        return []
    return [
        "## One convolution, to the last digit",
        f"`mnist-cnn`, batch 64, `conv2`: 32 to 64 channels, 3 × 3, 24 × 24 results. By formula {CONV2} = "
        f"{2 * 9 * 32 * 64 * 576 * 64:,} FLOPs, half as many multiply-adds. FFMA are the fp32 multiply-adds of the CUDA "
        "cores.",
        table(("recording", "kernel", "tensor FLOPs (tf32)", "FFMA"), rows, words=2),
        "With TF32 the tensor cores execute the formula's number. Without, the convolution kernel executes exactly half "
        "of it as FFMA, and the op 2,359,296 more: the bias kernel, one for each of the 64 × 64 × 576 results.",
        code(f"rooflight report recorded:h200/{name}" for name in names),
    ]  # fmt: skip


def counts(kernel: Kernel) -> list[str]:
    return [f"{kernel.quantities[key].value:,}" for key in ("tensor_flops_tf32", FFMA)]


def commands(recordings: dict[str, Ledger]) -> list[str]:
    lines = [re.sub(r" -o \S+| --force| --depth 0", "", ledger.header.command) for ledger in recordings.values()]
    own = [line for line in lines if line]
    return ["## The commands of the recordings", code(own)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--gpu-tests", type=Path, metavar="JUNIT.xml")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    given = parser.parse_args()
    if given.gpu_tests is not None:
        (given.results / "gpu_tests.json").write_text(json.dumps(kept_tests(given.gpu_tests), indent=1) + "\n")
    given.output.write_text(made(given.recordings, given.results))


def made(recordings: Path = RECORDINGS, results: Path = RESULTS) -> str:
    ledgers = {path.name.removesuffix(".json.gz"): load(path) for path in sorted(recordings.glob("*.json.gz"))}
    return page(ledgers, {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))})


if __name__ == "__main__":
    main()
