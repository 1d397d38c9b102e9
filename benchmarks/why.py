"""How much of FLOPs, DRAM bytes, time and memory the causes of `rooflight compare` explain, over all measured steps.

    python benchmarks/why.py            prints the tables
    python benchmarks/why.py --write    puts them into docs/why.md
    python benchmarks/why.py --cache    tries how much of the L2 keeps what a step uses again

Reads the recordings, the recorded studies, steps of other models (h200/results/steps) and the micro-benchmarks
(h200/results/instructions). Without a GPU, in a minute.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import fill

from recorded_steps import RecordedStep, recorded_steps

from rooflight.analysis import traffic_causes as traffic_model
from rooflight.analysis.cause import Account, Explained, account
from rooflight.analysis.counted_kernels import table_of
from rooflight.analysis.flop_causes import explain_flops, work_of_ops
from rooflight.analysis.instruction_counts import Instructions
from rooflight.analysis.memory_causes import explain_memory
from rooflight.analysis.time_causes import explain_time
from rooflight.analysis.traffic_causes import explain_traffic
from rooflight.files import load
from rooflight.ledger import Header, Ledger
from rooflight.metrics import CUDA_FLOPS
from rooflight.summary.facts import op_values, useful_flops_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "why.md"
MICRO = ROOT / "benchmarks" / "h200" / "results" / "instructions"
MARKED = re.compile(r"(<!-- (?P<name>[\w ]+): written by benchmarks/why.py -->\n).*?(<!-- end -->)", re.DOTALL)
SHORT = {
    "tile padding": "padding", "fast algorithm": "fast", "masked blocks skipped": "masked",
    "fp32 as three TF32 products": "3×TF32", "recomputation": "again", "zeros between strides": "strides",
    "scaling of results": "scaling", "layout and cast kernels": "layout",
    "pointwise and address arithmetic": "pointwise", "sums of a split depth": "parts",
    "taps outside the image": "border",
}  # fmt: skip


TOO_MUCH = 0.02
"""An op that is explained by more than this too much is a mistake, if it is a ten-thousandth of its step."""


@dataclass(frozen=True)
class Step:
    """One measured step and its accounts; an empty one where ops have no counters."""

    of: RecordedStep
    header: Header
    flops: Sequence[Explained]
    traffic: Sequence[Explained]
    time: Sequence[Explained]
    memory: Account | None

    @property
    def named(self) -> list[str]:
        header = self.header
        length = f" s{header.sequence}" if header.sequence else ""
        return [f"{self.of.model or header.model}{length}", header.step or "", str(header.batch), precision(header)]


def precision(header: Header) -> str:
    ran = "" if header.execution == "eager" else ", graph" if header.execution == "graph" else ", compiled"
    if header.dtype != "fp32" or header.math is None:
        return f"{header.autocast or header.dtype}{ran}"
    conv, matmul = header.math.tf32_conv, header.math.tf32_matmul
    return ("TF32" if conv and matmul else "fp32" if conv else "fp32, no TF32") + ran


def step_of(of: RecordedStep, ledger: Ledger) -> Step:
    traffic = explain_traffic(ledger)
    return Step(of, ledger.header, explain_flops(ledger), traffic, explain_time(ledger, traffic), memory_of(of, ledger))


def memory_of(of: RecordedStep, ledger: Ledger) -> Account | None:
    """Steps of other models were measured one after the other in one process: what it took of the device beside its
    tensors is that of all before."""
    return explain_memory(ledger) if not of.model else None


def part(amount: float, whole: float, *, signed: bool = True) -> str:
    """A share in percent; what is no hundredth of one is left blank."""
    share = 100 * amount / whole if whole else 0.0
    if abs(share) < 0.005:
        return ""
    return (f"{share:+.2f}" if signed else f"{share:.2f}").replace("-", "−")


@dataclass(frozen=True)
class Quantity:
    """A quantity that is explained: the rows of a step that has it, and what its shares are of."""

    name: str
    rows_of: Callable[[Step], Sequence[Explained]]
    whole_of: Callable[[Account], float]

    def accounts(self, steps: Sequence[Step]) -> list[Account]:
        return [account(rows) for step in steps if (rows := self.rows_of(step))]

    def net(self, steps: Sequence[Step]) -> list[float]:
        """Return the unexplained share of every step, the smallest first."""
        return sorted(abs(one.unexplained) / self.whole_of(one) for one in self.accounts(steps))


QUANTITIES = (
    Quantity("FLOPs", lambda step: step.flops, lambda one: one.asked),
    Quantity("DRAM bytes", lambda step: step.traffic, lambda one: one.asked),
    Quantity("kernel time", lambda step: step.time, lambda one: one.measured),
)
MUCH = 0.03
"""One step in twenty may leave this share of its FLOPs, or more, unexplained."""


def figures() -> dict[str, float]:
    """Return the unexplained share of each quantity, net over a step: the median by kind of step; and how many steps
    leave much of their FLOPs."""
    steps = [step_of(one, load(one.place)) for one in recorded_steps()]
    kinds = {"recordings": "recordings", "studies": "studies", "other_models": "other models"}
    found: dict[str, float] = {}
    for name, kind in kinds.items():
        some = [step for step in steps if step.of.kind.startswith(kind)]
        found[f"{name}_steps"] = len(some)
        for quantity in QUANTITIES:
            found[f"{name}_{quantity.name.replace(' ', '_')}"] = median(quantity.net(some))
    flops = QUANTITIES[0].net(steps)
    return found | {
        "steps_with_much_FLOPs": sum(share >= MUCH for share in flops) / len(flops),
        "memory": median(abs(one.unexplained) / one.measured for one in eager_memory(steps)),
    }


def eager_memory(steps: Sequence[Step]) -> list[Account]:
    return [step.memory for step in steps if step.memory is not None and step.header.execution == "eager"]


def figures_table(steps: Sequence[Step]) -> str:
    """By set: what is left of each quantity, net and op by op, and how often too much is explained."""
    lines = [
        "| steps | of | quantity | left, net: median | 90% under | worst | left, op by op: median | 90% under | worst "
        "| explained too much |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in dict.fromkeys(step.of.kind for step in steps):
        of_kind = [step for step in steps if step.of.kind == kind]
        for quantity in QUANTITIES:
            accounts, net = quantity.accounts(of_kind), quantity.net(of_kind)
            gross = sorted(one.unexplained_gross / quantity.whole_of(one) for one in accounts)
            if quantity.name == "FLOPs":
                rows = [rows for step in of_kind if (rows := quantity.rows_of(step))]
                over = f"{sum(map(too_much, rows))} of {sum(map(len, rows)):,} ops"
            else:
                over = f"{sum(one.unexplained < -TOO_MUCH * quantity.whole_of(one) for one in accounts)} of {len(accounts)} steps"
            cells = [f"{value:.2%}" for some in (net, gross) for value in (median(some), ninetieth(some), some[-1])]
            lines.append(f"| {kind} | {len(accounts)} | {quantity.name} | {' | '.join(cells)} | {over} |")
    return "\n".join(lines) + "\n"


def ninetieth(values: Sequence[float]) -> float:
    return values[math.ceil(0.9 * len(values)) - 1]


def too_much(rows: Sequence[Explained]) -> int:
    step = math.fsum(row.measured for row in rows)
    return sum(-row.left > max(TOO_MUCH * max(row.asked, row.measured), 1e-4 * step) for row in rows)


def flop_table(steps: Sequence[Step]) -> str:
    accounts = [(step, account(step.flops)) for step in steps if step.flops]
    causes = [name for name in SHORT if any(cause.name == name for _, one in accounts for cause in one.causes)]
    lines = [
        f"| model | step | batch | precision | executed/useful | {' | '.join(SHORT[name] for name in causes)} "
        "| left, net | left, op by op | from |",
        f"|---|---|---:|---|---:|{'---:|' * len(causes)}---:|---:|---|",
    ]
    for step, one in accounts:
        amounts = {cause.name: cause.amount for cause in one.causes}
        unknown = set(amounts) - set(SHORT)
        assert not unknown, f"no column for {unknown}"
        cells = [
            *step.named,
            f"{one.measured / one.asked:.3f}",
            *(part(amounts.get(name, 0), one.asked) for name in causes),
        ]
        cells += [part(one.unexplained, one.asked), part(one.unexplained_gross, one.asked, signed=False) or "0.00"]
        lines.append(f"| {' | '.join(cells)} | {step.of.where} |")
    return "\n".join(lines) + "\n"


def flop_line(steps: Sequence[Step]) -> str:
    left = {id(step): share(account(step.flops)) for step in steps if step.flops}
    over = [step for step in steps if step.flops and left[id(step)] >= 0.01]
    worst = ", ".join(f"{' '.join(step.named)} ({left[id(step)]:.1%})" for step in over)
    said = f"; 1% or more in {len(over)}: {worst}" if over else ""
    return fill(
        f"Of {len(left)} measured steps whose ops were counted, {median(left.values()):.2%} of the useful FLOPs is "
        f"unexplained in the median, op by op and without signs, and under 1% in {len(left) - len(over)}{said}.", 120
    ) + "\n"  # fmt: skip


def share(one: Account) -> float:
    return one.unexplained_gross / one.asked


def other_table(steps: Sequence[Step]) -> str:
    lines = [
        "| model | step | batch | precision | DRAM/compulsory | left, net | left, op by op | kernels/least time "
        "| left of the kernels' time | op by op | memory left | from |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for step in steps:
        cells = step.named
        if step.traffic:
            one = account(step.traffic)
            cells += [f"{one.measured / one.asked:.2f}", part(one.unexplained, one.asked),
                      part(one.unexplained_gross, one.asked, signed=False)]  # fmt: skip
        else:
            cells += ["", "", ""]
        one = account(step.time)
        cells += [f"{one.measured / one.asked:.2f}", part(one.unexplained, one.measured),
                  part(one.unexplained_gross, one.measured, signed=False)]  # fmt: skip
        memory = step.memory
        cells.append("" if memory is None else part(memory.unexplained, memory.measured) or "0.00")
        lines.append(f"| {' | '.join(cells)} | {step.of.where} |")
    return "\n".join(lines) + "\n"


def other_line(steps: Sequence[Step]) -> str:
    bytes_ = [account(step.traffic) for step in steps if step.traffic]
    gaps = [math.fsum(abs(row.gap) for row in step.traffic) / sum(row.asked for row in step.traffic)
            for step in steps if step.traffic]  # fmt: skip
    times = [account(step.time) for step in steps]
    left = sorted(one.unexplained / one.measured for one in times)
    return fill(
        f"Op by op and without signs, DRAM bytes differ from the compulsory ones by {median(gaps):.0%} of those in the "
        f"median of {len(bytes_)} steps; {median(map(share, bytes_)):.0%} is left when the causes are known. Of the time of "
        f"all kernels {median(one.asked / one.measured for one in times):.0%} is what the roofs ask for in the median, and "
        f"{median(left):.0%} is unexplained ({left[0]:.0%} to {left[-1]:.0%}). Of the memory of eager steps "
        f"{median(abs(one.unexplained) / one.measured for one in eager_memory(steps)):.1%} is unexplained in the median.", 120
    ) + "\n"  # fmt: skip


def micro_table(explained: Callable[[str], Sequence[Explained]], read: Callable[[str], Ledger]) -> str:
    lines = [
        "| section | calls | within 1% | within 0.1% | to the last digit | left, of all executed |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    sections = sorted(path.name.removesuffix(".json.gz") for path in MICRO.glob("*.json.gz"))
    for section in sections:
        rows = [row for row in explained(section) if row.asked]
        if not rows:
            continue
        errors = [abs(row.unexplained) / row.measured for row in rows]
        whole = math.fsum(row.measured for row in rows)
        cells = [str(len(rows)), *(str(sum(error <= most for error in errors)) for most in (0.01, 0.001, 0.0))]
        lines.append(f"| {section} | {' | '.join(cells)} | "
                     f"{part(math.fsum(abs(row.unexplained) for row in rows), whole, signed=False) or '0.00'}% |")  # fmt: skip
    told = [left_out(read(section)) for section in sections if section.startswith("others-")]
    lines += ["", fill(
        "Ops without matrix work are predicted from counts of the same kernels. Of "
        + " and ".join(f"{len(errors):,} in {kind}" for kind, (errors, _) in zip(("bf16", "fp32"), told, strict=True))
        + ", by a table of every second other op, "
        + " and ".join(f"{median(errors):.1%}" for errors, _ in told) + " is the median error, and "
        + " and ".join(f"{wrong:.0%}" for _, wrong in told) + " of their FLOPs are wrong.", 120)]  # fmt: skip
    return "\n".join(lines) + "\n"


def left_out(source: Ledger) -> tuple[list[float], float]:
    """Errors of every second op told by a table of the others, and what is told wrong of all their FLOPs."""
    table = Instructions(table_of("h200", [source], lambda index: index % 2 == 0))
    errors, wrong, whole = [], 0.0, 0.0
    for work, values in zip(work_of_ops(source, table), op_values(source), strict=True):
        counted = sum(values[name].value for name in CUDA_FLOPS if name in values)
        if not counted or not work.op.index % 2 or useful_flops_of(work.op):
            continue
        off = abs(sum(cause.amount for cause in work.causes) - counted)
        errors.append(off / counted)
        wrong, whole = wrong + off, whole + counted
    return errors, wrong / whole


def tried_caches() -> str:
    """What is left of the bytes of single ops in a row, op by op, by how much of the L2 is taken to keep them."""
    ledgers = [load(path) for path in sorted(MICRO.glob("*.json.gz"))]
    lines = []
    for usable in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        traffic_model.USABLE = usable
        accounts = [account(explain_traffic(ledger)) for ledger in ledgers]
        left = math.fsum(one.unexplained_gross for one in accounts) / math.fsum(one.measured for one in accounts)
        lines.append(f"{usable:.1f} of the L2: {left:.2%} of the bytes left")
    return "\n".join(lines)


def sections(steps: Sequence[Step], micro: Callable[[str], Sequence[Explained]],
             read: Callable[[str], Ledger]) -> dict[str, str]:  # fmt: skip
    return {
        "figures": figures_table(steps), "left of the FLOPs": flop_line(steps), "FLOPs of steps": flop_table(steps),
        "left of the rest": other_line(steps), "the rest of steps": other_table(steps),
        "single ops": micro_table(micro, read),
    }  # fmt: skip


def written(page: str, found: dict[str, str]) -> str:
    """The page with the tables of today."""
    return MARKED.sub(lambda mark: f"{mark[1]}{found[mark['name']]}{mark[3]}", page)


def main() -> None:
    if "--cache" in sys.argv[1:]:
        print(tried_caches())
        return

    def read(section: str) -> Ledger:
        return load(MICRO / f"{section}.json.gz")

    steps = [step_of(one, load(one.place)) for one in recorded_steps()]
    found = sections(steps, lambda section: explain_flops(read(section)), read)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(PAGE.read_text(), found))
    else:
        print("\n".join(f"## {name}\n{text}" for name, text in found.items()))


if __name__ == "__main__":
    main()
