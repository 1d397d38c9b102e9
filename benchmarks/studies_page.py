"""Puts the verdicts of the recorded studies into docs/studies-of-the-documents.md, between its markers.

    python benchmarks/studies_page.py            prints the page as it would be
    python benchmarks/studies_page.py --write    writes it

Needs no GPU: claims are those of studies/*.toml, numbers those of studies/recorded/h200.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rooflight.reporting.sections.study_claims import counted, held_in, place, sides, telling
from rooflight.study.cell import StudyRow
from rooflight.study.hypotheses import JudgedHypothesis, claims
from rooflight.study.plan import read_plan
from rooflight.study.store import read

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "studies-of-the-documents.md"
STUDIES = ROOT / "studies"
NAMES = ("mnist-conv2", "transformers", "resnet-memory-roofline", "vgg-roofline", "paleo-k80")
MARKED = re.compile(
    r"(<!-- (?P<name>[\w -]+): written by benchmarks/studies_page.py -->\n).*?(<!-- end -->)", re.DOTALL
)
MISTAKES = (
    "Cout missing from the formula of a convolution",
    "parameters scaled with the batch",
    "MACs and FLOPs mixed, and held against peaks that count a multiply-add as 2",
    "totals that are not the sum of their rows",
    "output sizes typed by hand",
    "the batch not recorded, or mislabelled",
    "tensor cores missing from the counters, and judged against the FP32 roof",
    "a forward estimate against a training measurement",
    "parameters against all GPU memory",
    "workspace, output and net growth confused",
    "KB, KiB and MB; units of ncu parsed wrong",
    "replicas counted twice",
    "functional ops unseen, a pool that does nothing charged",
    "one model's numbers under another's name",
    '"memory-bound" without the side of the ridge or the distance to the roof',
    "scopes of time mixed",
    "a peak off by 10; precision called GPU; a board's peak for one die",
    "hardware preferred by balance, not time",
    "misspelt metric names",
    "tools that disagree, left unexplained",
)
ELSEWHERE = "in a table or a log, not in a claim: [claims.md](claims.md)"


@cache
def judged(name: str) -> tuple[tuple[JudgedHypothesis, ...], tuple[StudyRow, ...]]:
    rows = read(STUDIES / "recorded" / "h200" / name)
    return tuple(claims(read_plan(STUDIES / f"{name}.toml")[0].claim, rows)), tuple(rows)


def study_table(name: str) -> str:
    """Every claim: where it is said, its verdict, the numbers that say most, and why."""
    found, rows = judged(name)
    measured = sum("measured" in row.ledgers for row in rows)
    lines = [f"{counted(found)}; {len(rows)} cells, {measured} of them measured on the H200.", ""]
    lines += table(
        ("", "claim", "place", "verdict", "in", "numbers", "by", "why"),
        [
            (
                str(one.number),
                one.says,
                one.place,
                f"**{one.verdict}**",
                held_in(one),
                numbers(one),
                sides(one),
                one.why,
            )
            for one in found
        ],
    )
    return "\n".join(lines)


def numbers(one: JudgedHypothesis) -> str:
    label, where = telling(one)
    at = f" ({where})" if where else ""
    return f"{label.full}{at}"


def mistakes() -> str:
    """Where each of the twenty is shown."""
    shown: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name in NAMES:
        for one in judged(name)[0]:
            for listed in re.findall(r"mistakes? ([\d, and]+)", one.why):
                for number in re.findall(r"\d+", listed):
                    shown[int(number)][name].append(one.number)
    rows = []
    for number, text in enumerate(MISTAKES, start=1):
        where = "; ".join(f"[{name}](#{name}) {', '.join(map(str, which))}" for name, which in shown[number].items())
        rows.append((str(number), text, where or ELSEWHERE))
    return "\n".join(table(("", "mistake", "shown by claim"), rows))


def unexplained() -> str:
    """The largest part that no cause explains, study by study."""
    rows = []
    for name in NAMES:
        found = {row.cell.id: row for row in judged(name)[1] if "unexplained.measured" in row.values}
        ordered = sorted(found.values(), key=lambda row: -row.values["unexplained.measured"])
        over = [row for row in ordered if row.values["unexplained.measured"] >= 0.01]
        most = ordered[0]
        at = place(
            {"model": most.cell.model, "batch": most.cell.batch, "step": most.cell.step, "dtype": most.cell.dtype}
        )
        rows.append((f"[{name}](#{name})", str(len(found)), f"{100 * most.values['unexplained.measured']:.2g}%", at,
                     str(len(over))))  # fmt: skip
    return "\n".join(table(("study", "steps", "largest", "at", "1% and more"), rows))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(map(_cell, row))} |" for row in (head, ["---"] * len(head), *rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PARTS = {**{name: lambda name=name: study_table(name) for name in NAMES}, "mistakes": mistakes,
         "unexplained": unexplained}  # fmt: skip


def page(text: str) -> str:
    """The page with all that is between markers made anew."""
    return MARKED.sub(lambda found: f"{found[1]}{PARTS[found['name']]()}\n{found[3]}", text)


if __name__ == "__main__":
    made = page(PAGE.read_text())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(made)
    else:
        print(made)
