"""Claims: what the grammar reads and refuses, and what rows make of them. Every verdict is worked out by hand."""

from __future__ import annotations

import ast
import math
import operator
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rooflight.errors import BadInput
from rooflight.study.cell import FACTS, QUANTITIES, Side, StudyCell, StudyRow
from rooflight.study.hypotheses import StudyClaim, claims, judge, parse, unknown_names
from rooflight.study.hypotheses.hypothesis import (
    AxisFilter,
    FactWord,
    FoldAxes,
    Hypothesis,
    Leaf,
    NumberLiteral,
    QuantityTerm,
)
from rooflight.study.hypotheses.parser import comparable
from rooflight.study.hypotheses.scanner import DEEPEST, LONGEST, MOST_PARTS
from rooflight.study.hypotheses.verdict import JudgedHypothesis
from rooflight.units import DIMENSIONS
from tests.fixtures.paths import ROOT

many = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

# ---------------------------------------------------------------- what the grammar reads


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1358954496", 1358954496), ("1_358_954_496", 1358954496), ("1.5 GFLOP", 1_500_000_000), ("16 GiB", 16 * 2**30),
        ("3 ms", 0.003), ("3ms", 0.003), ("5%", 0.05), ("5 %", 0.05), ("100%", 1), ("2.5 MB", 2_500_000), ("1 KiB", 1024),
        ("4.09 GMAC", 4_090_000_000), ("1e3", 1000), ("1.5e-3", 0.0015), ("12 TFLOP/s", 12 * 10**12), ("900 GB/s", 900 * 10**9),
        ("10 FLOP/B", 10), ("25.6 M", 25_600_000), ("7 us", 7e-6), ("7 µs", 7e-6), ("2 min", 120), ("1.5 h", 5400),
        ("1000 /s", 1000), ("1000 samples/s", 1000), ("0.1", 0.1), ("1e30", 10**30),
    ],
)  # fmt: skip
def test_numbers_are_in_si_units_and_whole_where_they_are(text: str, value: float) -> None:
    number = parse(f"{text} * params > {text} * params").leaves["_0"]
    assert isinstance(number, NumberLiteral)
    assert number.value == value
    assert type(number.value) is type(value)
    assert number.text == text


def structure(hypothesis: Hypothesis) -> str:
    """The tree as Python writes it, with what the names stand for in their places."""
    return re.sub(r"\b_\d+\b", lambda name: _shown(hypothesis.leaves[name[0]]), ast.unparse(hypothesis.tree))


def _shown(leaf: Leaf) -> str:
    match leaf:
        case NumberLiteral():
            return f"[{leaf.text}]"
        case QuantityTerm():
            return f"{leaf.name}[{','.join(map(str, leaf.filters))}]"
        case FactWord():
            return repr(leaf.text)
        case FoldAxes():
            return f"over[{','.join(leaf.names)}]"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        # Python leaves out parentheses that change nothing: what stays shows how parts are bound.
        ("params(a) + params(b) * params(c) > 1", "params[a] + params[b] * params[c] > [1]"),
        ("(params(a) + (params(b) * params(c))) > 1", "params[a] + params[b] * params[c] > [1]"),
        ("(params(a) + params(b)) * params(c) > 1", "(params[a] + params[b]) * params[c] > [1]"),
        ("params(a) - (params(b) - params(c)) > 1", "params[a] - (params[b] - params[c]) > [1]"),
        ("(params(a) - params(b)) - params(c) > 1", "params[a] - params[b] - params[c] > [1]"),
        ("-params(a) * 2 < 1", "-params[a] * [2] < [1]"),
        ("flops > 1 or (flops > 2 and not flops > 3)", "flops[] > [1] or (flops[] > [2] and (not flops[] > [3]))"),
        ("flops > 1 or flops > 2 and not flops > 3", "flops[] > [1] or (flops[] > [2] and (not flops[] > [3]))"),
        ("(flops > 1 or flops > 2) and flops > 3", "(flops[] > [1] or flops[] > [2]) and flops[] > [3]"),
        ("flops ≤ 1", "flops[] <= [1]"), ("flops = 1", "flops[] == [1]"), ("flops == 1", "flops[] == [1]"),
        ("flops ~ 2 * macs within 5%", "flops[] is [2] * macs[] in [5%]"),
        ("max(time over batch, dtype) < 1 s", "max(time[], over[batch,dtype]) < [1 s]"),
        ("bound(vgg11) = memory", "bound[vgg11] == 'memory'"), ("bound(a) != bound(b)", "bound[a] != bound[b]"),
        ("memory(vgg11) = memory(vgg13)", "memory[vgg11] == memory[vgg13]"),  # a quantity, where no fact stands before
        ("(bound) = host", "bound[] == 'host'"), ("device = 'NVIDIA H200'", "device[] == 'NVIDIA H200'"),
    ],
)  # fmt: skip
def test_what_a_text_means_to_python(text: str, tree: str) -> None:
    assert structure(parse(text)) == tree


def test_filters_take_names_as_they_are() -> None:
    term = parse("time('my model', on=a100-sxm-80, layer=layer1.0.conv2, dtype=bf16) < 1 s").leaves["_0"]
    filters = (AxisFilter(None, "my model"), AxisFilter("on", "a100-sxm-80"), AxisFilter("dtype", "bf16"))
    assert term == QuantityTerm("time", None, "layer1.0.conv2", filters)


def test_every_part_knows_its_place_in_the_text() -> None:
    hypothesis = parse("not (time( a )  >  2 *  time(b)) or bound = 'host'")
    comparisons = [node for node in ast.walk(hypothesis.tree) if isinstance(node, ast.Compare)]
    assert [hypothesis.written(node) for node in comparisons] == [
        "bound = 'host'",
        "time( a ) > 2 * time(b)",
    ]


# ---------------------------------------------------------------- what it refuses, and where


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time(resnet50, batch=64 > 2", "expected ')' or ',' after 'batch=64', found '>', at character 25"),
        ("(time < 3 s", "expected ')' after '3 s', found the end, at character 12"),
        ("The A100 is faster", "a claim is a comparison such as `time(on=a100) < time(on=v100)`; a sentence goes into"),
        ("tme > 3 s", "unknown quantity 'tme': did you mean time?, at character 1"),
        ("time.estimated > 3 s", "time has no side 'estimated': it is predicted or measured"),
        ("time > 3", "3 has no unit: write it with s, ms or us, at character 8"),
        ("memory > 16", "16 has no unit: write it with B, MB or MiB"),
        ("memory < 3 KB", "the unit 'KB' is not clear: write kB (1,000 bytes) or KiB (1,024)"),
        ("flops / time < 5 TFLOPS", "write TFLOP for work or TFLOP/s for speed"),
        ("time < 3 parsec", "unknown unit 'parsec'"),
        ("memory > time", "memory is in B and time is in s: they cannot be compared"),
        ("time + memory > 3 s", "they cannot be added"),
        ("time - flops > 3 s", "they cannot be subtracted"),
        ("flops > 3 s", "they cannot be compared"),
        ("mfu > 3 s", "mfu is in no unit and 3 s is in s: they cannot be compared"),
        ("time * time > 3 s", "time * time is in s^2"),
        ("flops / time > throughput", "they cannot be compared"),
        ("bound > memory", "bound is a word: compare it with = or !="),
        ("bound = memroy", "bound is never 'memroy': it is compute or memory or host"),
        ("bound = tier", "bound and tier are different things"),
        ("memory = bound", "bound is a word: write it first"),
        ("share > 3%", "a share is that of a layer type or of a layer: write share.Conv2d"),
        ("1 < 2", "only numbers are compared: name a quantity"),
        ("time < 3 s < 4 s", "a comparison cannot be compared again"),
        ("time", "expected a comparison (<, <=, >, >=, =, != or ~) after 'time', found the end"),
        ("not time", "expected a comparison"),
        ("time < 3 s and 4", "behind 'and'"),
        ("(time < 3 s) + 1 > 2", "a comparison is no number"),
        ("time ~ 3 s", "expected 'within' and a percentage"),
        ("time ~ 3 s within 3 ms", "expected a percentage"),
        ("max(time) < 3 s", "expected 'over' and an axis, as in max(time over batch)"),
        ("max(time(batch=1) over batch) < 3 s", "max is over batch, which is fixed inside it"),
        ("sum(flops over layer) > 3", "layers are no axis"),
        ("time(batch=1, batch=2) < 1 s", "batch is given twice, at character 15"),
        ("flops.measured / flops ~ 1 within 5%", "flops stands here with a side and without one"),
        ("", "the claim is empty"),
        (" \n ", "the claim is empty"),
        ("time < 3 s)", "expected 'and', 'or' or the end after '3 s', found ')'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text, number=3)
    assert said in str(caught.value)
    assert str(caught.value).startswith("claim 3: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true') > 1", "().__class__.__bases__ > 1", "time.__class__ > 1 s", "lambda: 1",
        "[x for x in time] > 1", "time(__import__('os')) > 1 s", "exec('1') = 1", "time; time < 1 s", "time < 1 s # note",
        "{}".format("(" * 10_000), "(" * (DEEPEST + 1) + "time" + ")" * (DEEPEST + 1) + " < 1 s", "-" * 200 + "time < 1 s",
        "not " * 200 + "time < 1 s", "9" * 10_000 + " < flops", "1e999999999 < flops", "1e31 < flops", "9" * 41 + " < flops",
        "9" * 40 + " E < flops", " + ".join(["time"] * (MOST_PARTS + 1)) + " < 1 s", "time < 1 s" + " " * LONGEST, "time\x00 < 1 s",
        "time\u202e < 1 s", "flops(٣) < ٣", "f'{time}' < 1 s", "time < 1 s or", "flops ** 9 ** 9 > 1", "`id` = 1", "$(id) = 1",
    ],
)  # fmt: skip
def test_nothing_else_is_read_and_nothing_runs(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert len(str(caught.value)) < 600


def test_the_deepest_that_is_allowed_is_read() -> None:
    parse("(" * DEEPEST + "time < 1 s" + ")" * DEEPEST)
    parse(" + ".join(["time"] * (MOST_PARTS - 1)) + " < 1 s")


PIECES = ["time", "flops", "memory", "bound", "share.Conv2d", "(", ")", ",", "=", "<", ">=", "~", "within", "over", "max", "sum",
          "and", "or", "not", "+", "-", "*", "/", "%", "5%", "3 ms", "16 GiB", "2", "batch=64", "resnet50", ".measured", "'", '"',
          " ", "layer=", "\n", "e9", "1e", "_", ".", "!", "≤"]  # fmt: skip


@many
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join),
                 st.lists(st.sampled_from(PIECES), max_size=25).map("".join)))  # fmt: skip
@example("time(batch=64)<time(batch")
def test_any_text_is_a_claim_or_bad_input(text: str) -> None:
    try:
        claim = parse(text)
    except BadInput:
        return
    assert structure(parse(" ".join(text.split()))) == structure(claim)
    assert judge(claim, ROWS).verdict in ("held", "refuted", "not measured")


DOCS = (ROOT / "docs" / "hypotheses.md").read_text()


def test_every_claim_in_the_reference_can_be_read() -> None:
    found = re.findall(r'^claim = "(.*)"$', DOCS, re.MULTILINE)
    assert len(found) >= 13
    for text in found:
        parse(text)


def test_every_refusal_in_the_reference_is_said_so() -> None:
    block = re.search(r"```text\n(.*?)```", DOCS, re.DOTALL)
    assert block is not None
    pairs = [pair.strip().splitlines() for pair in block[1].split("\n\n")]
    assert len(pairs) >= 6
    for text, said in pairs:
        with pytest.raises(BadInput) as caught:
            parse(text, number=3)
        assert str(caught.value) == said


def test_the_reference_names_every_quantity_and_fact() -> None:
    for name in (*QUANTITIES, *FACTS):
        assert f"`{name}`" in DOCS


# ---------------------------------------------------------------- calculated as Python calculates


@dataclass(frozen=True)
class Sum:
    """A text, and what it comes to where flops are 3 at batch 1 and 5 at batch 2."""

    text: str
    value: float


FLOPS = {1: 3, 2: 5}
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "!=": operator.ne}
leaf_sums = st.sampled_from(
    [Sum("2", 2), Sum("7 FLOP", 7), Sum("flops(batch=1)", 3), Sum("flops( batch=2 )", 5), Sum("max(flops over batch)", 5),
     Sum("min(flops over batch)", 3), Sum("sum(flops over batch)", 8), Sum("0.5 k", 500)]
)  # fmt: skip


def _added(left: Sum, sign: str, right: Sum) -> Sum:
    """In parentheses, as both sides are: what binds how has tests of its own."""
    return Sum(
        f"({left.text} {sign} {right.text})", left.value + right.value if sign == "+" else left.value - right.value
    )


sums = st.recursive(
    leaf_sums,
    lambda inner: st.one_of(
        inner.map(lambda part: Sum(f"-{part.text}", -part.value)),
        st.builds(_added, inner, st.sampled_from("+-"), inner),
        inner.map(lambda part: Sum(f"2 * {part.text}", 2 * part.value)),
        inner.map(lambda part: Sum(f"{part.text} / 4", part.value / 4)),
    ),
    max_leaves=6,
)
statements = st.recursive(
    st.builds(
        lambda left, sign, right: (f"{left.text} {sign} flops(batch=1) + {right.text}", SIGNS[sign](left.value, 3 + right.value)),
        sums, st.sampled_from(list(SIGNS)), sums,
    ),
    lambda inner: st.one_of(
        inner.map(lambda part: (f"not ({part[0]})", not part[1])),
        st.builds(lambda a, b: (f"({a[0]}) and ({b[0]})", a[1] and b[1]), inner, inner),
        st.builds(lambda a, b: (f"({a[0]}) or ({b[0]})", a[1] or b[1]), inner, inner),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(many, max_examples=100)  # each is a tree of its own, which takes long to make
@given(statements)
def test_a_claim_holds_where_python_says_so(statement: tuple[str, bool]) -> None:
    text, truth = statement
    if len(text) <= LONGEST:
        rows = [row("a", batch, flops_estimated=flops) for batch, flops in FLOPS.items()]
        assert one(text, rows).verdict == ("held" if truth else "refuted")


@pytest.mark.parametrize("left", QUANTITIES.values(), ids=str)
def test_units_are_checked_for_every_pair_of_quantities(left: object) -> None:
    for right in QUANTITIES.values():
        one, two = (f"{q.name}.Conv2d" if q.name == "share" else q.name for q in (left, right))  # type: ignore[attr-defined]
        allowed = comparable(DIMENSIONS[left.unit], DIMENSIONS[right.unit])  # type: ignore[attr-defined]
        if allowed:
            parse(f"{one} < {two}")
        else:
            with pytest.raises(BadInput, match="they cannot be compared"):
                parse(f"{one} < {two}")


# ---------------------------------------------------------------- judged by hand-made rows


def row(model: str, batch: int, /, *, on: str | None = "a100", state: Any = "done", facts: dict[str, str] | None = None,
        failures: dict[Side, str] | None = None, cell: dict[str, Any] | None = None, **values: float) -> StudyRow:  # fmt: skip
    """`time_predicted=0.1` is the value `time.predicted`."""
    named = {f"{name.rpartition('_')[0]}.{name.rpartition('_')[2]}": value for name, value in values.items()}
    made = StudyCell(model=model, batch=batch, on=on, **(cell or {}))
    return StudyRow(cell=made, state=state, values=named, facts=facts or {}, failures=failures or {})


ROWS = [
    row("resnet18", 1, time_predicted=0.002, flops_estimated=3_600, memory_predicted=50_000_000),
    row("resnet18", 8, time_predicted=0.004, flops_estimated=28_800, memory_predicted=80_000_000),
    row("resnet50", 1, time_predicted=0.005, flops_estimated=8_200, memory_predicted=110_000_000),
    row("resnet50", 8, time_predicted=0.007, flops_estimated=65_600, memory_predicted=300_000_000),
]


def one(text: str, rows: list[StudyRow] = ROWS) -> JudgedHypothesis:
    return claims([text], rows)[0]


def test_a_claim_is_judged_wherever_its_terms_meet() -> None:
    found = one("time(resnet50) > 2 * time(resnet18)")
    # batch 1: 5 ms > 4 ms; batch 8: 7 ms > 8 ms is false
    assert found.verdict == "refuted"
    assert (found.held, len(found.points)) == (1, 2)
    worst = found.counter_examples[0]
    assert worst.at == {"batch": 8}
    assert (worst.telling.left, worst.telling.right, worst.telling.unit) == (0.007, 0.008, "s")
    assert worst.telling.ratio == pytest.approx(0.875)
    assert worst.telling.margin == pytest.approx(0.125)
    assert found.sides == {"predicted": 2}


def test_held_everywhere() -> None:
    found = one("time(resnet50) > time(resnet18)")
    assert (found.verdict, found.held, found.missing, found.not_asked) == ("held", 2, (), ())
    # The closest first: 7/4 of batch 8 before 5/2 of batch 1.
    assert [point.at["batch"] for point in found.points] == [8, 1]


def test_counter_examples_come_worst_first() -> None:
    found = one("time < 3 ms")
    assert [(point.at["model"], point.at["batch"]) for point in found.counter_examples] == [
        ("resnet50", 8), ("resnet50", 1), ("resnet18", 8)]  # fmt: skip
    assert found.held == 1


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("flops(batch=8) = 8 * flops(batch=1)", "held"),
        ("flops(batch=8) ~ 8 * flops(batch=1) within 0%", "held"),
        ("flops(resnet50) ~ 2 * flops(resnet18) within 14%", "held"),  # 8,200 / 7,200 = 1.139
        ("flops(resnet50) ~ 2 * flops(resnet18) within 13%", "refuted"),
        ("time(resnet50, batch=8) <= 7 ms", "held"),
        ("time(resnet50, batch=8) < 7 ms", "refuted"),
        ("time(resnet50, batch=8) != 7 ms", "refuted"),
        ("time(resnet50, batch=8) = 7 ms", "held"),
        ("time(resnet50, batch=8) >= 7 ms and time(resnet50, batch=8) <= 7 ms", "held"),
        ("time(resnet50) > 6 ms or flops(resnet50) < 10 k", "held"),
        ("not time(resnet50) < 4 ms", "held"),
        ("max(time over batch) = 7 ms", "refuted"),  # resnet18's is 4 ms
        ("max(time over batch, model) = 7 ms", "held"),
        ("min(time over model) <= 4 ms", "held"),
        ("sum(time(resnet50) over batch) = 12 ms", "held"),
        ("sum(flops over batch, model) = 106200", "held"),
        ("max(time(resnet50) / time(resnet18) over batch) = 2.5", "held"),
        ("max(time over batch) / min(time over batch) <= 2", "held"),  # 2 and 1.4
        ("flops / time > 1.8 MFLOP/s", "refuted"),  # 3,600 / 2 ms and 8,200 / 5 ms are not
        ("flops / time >= 1.64 MFLOP/s", "held"),
        ("(time(resnet50) - time(resnet18)) * 2 = 6 ms", "held"),
        ("-time < 0", "held"),
        ("memory(resnet50, batch=8) < 0.3 GiB", "held"),
        ("memory(resnet50, batch=8) < 0.3 GB", "refuted"),
        ("time(on=A100-SXM-80) > 1 ms", "held"),
        ("time(resnet50) > max(time(resnet18) over batch)", "held"),
        ("time(resnet50, batch=1) > time(resnet18)", "held"),
    ],
)
def test_verdicts(text: str, verdict: str) -> None:
    assert one(text).verdict == verdict


def test_a_value_of_any_axis_is_enough_where_it_is_of_one() -> None:
    rows = [*ROWS, row("resnet18", 8, cell={"dtype": "bf16"}, time_predicted=0.001)]
    assert one("time(resnet18, bf16) < time(resnet18, fp32, batch=8)", rows).verdict == "held"
    assert one("time(resnet18, 8, fp32) = 4 ms", rows).verdict == "held"


def test_what_is_ambiguous_is_not_guessed() -> None:
    rows = [
        row("gpt2", 64, cell={"seq": 64}, time_predicted=0.1),
        row("gpt2", 1, cell={"seq": 128}, time_predicted=0.1),
    ]
    found = one("time(64) < 1 s", rows)
    assert (found.verdict, found.reason) == ("not measured", "'64' is ambiguous: write batch=64 or seq=64")
    assert one("time(batch=64) < 1 s", rows).verdict == "held"


def test_what_the_study_does_not_have_is_named() -> None:
    assert one("time(vgg11) < 1 s").reason == "no cell has 'vgg11': models are resnet18, resnet50"
    assert one("time(on=v100) < 1 s").reason == "no cell has on=v100: there is a100"
    assert one("time(bach=8) < 1 s").reason.startswith("no cell has the axis 'bach': there are model, batch")
    assert one("max(time over seq) < 1 s").reason.startswith("no cell has the axis 'seq'")
    assert one("time(resnet50, resnet18) < 1 s").reason == "time(resnet50, resnet18) asks for two values of model"
    assert one("time < 1 s", []).verdict == "not measured"
    assert unknown_names(parse("time(vgg11) < 1 s"), ROWS) is not None
    assert unknown_names(parse("time(resnet50) < 1 s"), ROWS) is None


def test_cells_without_a_partner_are_not_judged() -> None:
    rows = [*ROWS, row("resnet50", 64, time_predicted=9.0)]
    found = one("time(resnet50) < 1 s and time(resnet18) < 1 s", rows)
    assert (found.verdict, len(found.points)) == ("held", 2)
    assert (
        one("time(resnet50, batch=64) > time(resnet18, batch=64)", rows).reason == "no cell is model=resnet18, batch=64"
    )


def test_an_axis_that_a_model_does_not_have_does_not_part_it_from_others() -> None:
    rows = [row("gpt2", 1, cell={"seq": 128}, flops_estimated=100), row("gpt2", 1, cell={"seq": 256}, flops_estimated=300),
            row("resnet18", 1, flops_estimated=200)]  # fmt: skip
    found = one("flops(gpt2) > flops(resnet18)", rows)
    assert [(point.at["seq"], point.held) for point in found.points] == [(128, False), (256, True)]


def test_what_is_not_given_can_be_asked_for() -> None:
    rows = [row("vgg11", 1, cell={"autocast": "bf16"}, time_predicted=1.0), row("vgg11", 1, time_predicted=2.0)]
    assert one("time(autocast=bf16) < time(autocast=none)", rows).verdict == "held"
    # A study that was cut down may have the axis no more; a misspelt one is not taken for that.
    assert one("time(autocast=none) < 1 s").verdict == "held"
    assert one("time(autocats=none) < 1 s", rows).reason.startswith("no cell has the axis 'autocats'")


MIXED = [
    row("vgg11", 1, on="here", time_predicted=0.010, time_measured=0.020, flops_estimated=100, flops_measured=103),
    row("vgg11", 1, on="v100", time_predicted=0.015, flops_estimated=100),
]


def test_two_sides_of_a_comparison_are_of_one_side() -> None:
    # Measured on one device only: 20 ms against 15 ms would mix them. Predicted: 10 ms < 15 ms.
    found = one("time(on=here) < time(on=v100)", MIXED)
    assert (found.verdict, found.sides) == ("held", {"predicted": 1})
    assert (found.points[0].telling.left, found.points[0].telling.right) == (0.010, 0.015)
    unfair = one("time.measured(on=here) > time.predicted(on=v100)", MIXED)
    assert unfair.verdict == "held"
    assert unfair.points[0].telling.sides == {"time.measured": "measured", "time.predicted": "predicted"}


def test_measured_comes_before_predicted_and_the_verdict_says_so() -> None:
    found = one("time > 12 ms", MIXED)
    assert {point.at["on"]: point.telling.sides_said for point in found.points} == {
        "here": "measured",
        "v100": "predicted",
    }
    assert found.sides == {"measured": 1, "predicted": 1}


def test_no_common_side_is_not_measured() -> None:
    rows = [row("a", 1, on="here", time_measured=1.0), row("b", 1, on="here", time_predicted=2.0)]
    found = one("time(a) < time(b)", rows)
    assert found.verdict == "not measured"
    assert found.points == ()
    assert found.not_asked[0].why == "no measurement on here; no prediction on here"


def test_useful_flops_stand_beside_a_predicted_time() -> None:
    found = one("flops / time > 1 FLOP/s", MIXED)
    assert {point.at["on"]: point.telling.sides for point in found.points} == {
        "here": {"flops": "estimated", "time": "measured"}, "v100": {"flops": "estimated", "time": "predicted"}}  # fmt: skip


def test_without_a_side_flops_are_those_of_the_mathematics() -> None:
    """What was executed is another quantity: a claim must not change its meaning with the machine."""
    rows = [row("a", 1, on="here", flops_estimated=200, flops_measured=300, macs_estimated=100)]
    assert one("flops = 2 * macs", rows).verdict == "held"
    assert one("flops.measured = 2 * macs", rows).verdict == "refuted"


def test_a_claim_about_measurements_is_about_the_cells_that_were_measured() -> None:
    found = one("flops.measured / flops.estimated ~ 1 within 5%", MIXED)
    assert (found.verdict, found.held, len(found.not_asked)) == ("held", 1, 1)
    assert found.not_asked[0].why == "no measurement on v100"
    # Nothing measured anywhere: not held.
    nothing = one("flops.measured / flops.estimated ~ 1 within 5%", MIXED[1:])
    assert (nothing.verdict, nothing.not_asked[0].kind) == ("not measured", "not asked")


def test_a_failed_cell_keeps_a_claim_from_being_held() -> None:
    rows = [
        *MIXED,
        row(
            "vgg11",
            512,
            on="here",
            state="failed",
            failures={"measured": "out of memory: 9 GB more"},
            flops_estimated=51_200,
        ),
    ]
    found = one("flops.measured / flops.estimated ~ 1 within 5%", rows)
    assert (found.verdict, found.held) == ("not measured", 1)
    assert (found.missing[0].kind, found.missing[0].why) == ("failed", "measurement failed: out of memory: 9 GB more")
    assert found.missing[0].cell == rows[-1].cell.id
    # But a counter-example is one, whatever else is missing.
    assert one("flops.measured / flops.estimated ~ 1 within 2%", rows).verdict == "refuted"


def test_waiting_and_absent_values_are_told_apart() -> None:
    waiting = one("time < 1 s", [*ROWS, row("resnet18", 64, state="waiting")])
    assert (waiting.verdict, waiting.held, waiting.missing[0].why) == ("not measured", 4, "not run yet")
    absent = one("flops.measured > 1", [row("vgg11", 1, on="here", time_measured=1.0)])
    assert (absent.missing[0].kind, absent.missing[0].why) == ("absent", "the measurement has no flops")
    layer = one("flops(layer=conv2) > 1", [row("vgg11", 1, flops_estimated=5)])
    assert layer.missing[0].why == "the estimate has no flops of the layer 'conv2'"


def test_no_device_means_no_time() -> None:
    found = one("time < 1 s", [row("vgg11", 1, on=None, flops_estimated=5)])
    assert (found.verdict, found.not_asked[0].why) == (
        "not measured",
        "no measurement: the cell names no device; no prediction: the cell names no device",
    )


def test_division_by_zero_is_not_measured() -> None:
    rows = [row("a", 1, flops_estimated=0, macs_estimated=0)]
    found = one("flops / macs > 1", rows)
    assert (found.verdict, found.missing[0].why, found.missing[0].kind) == (
        "not measured",
        "division by zero",
        "arithmetic",
    )
    assert one("1 / flops * flops > 1", rows).verdict == "not measured"


def test_numbers_beyond_floats_are_not_measured() -> None:
    rows = [row("a", 1, flops_estimated=1e300)]
    assert one("flops * flops > flops * flops", rows).missing[0].why == "the number is too large"
    whole = [row("a", 1, params_estimated=10**18)]
    assert one(f"{' * '.join(['params'] * 30)} > 1", whole).missing[0].why == "the number is too large"
    assert one("params * params * params > 1e30", whole).verdict == "held"


def test_whole_numbers_are_compared_exactly() -> None:
    rows = [row("a", 1, flops_estimated=2**60 + 1)]
    assert one(f"flops = {2**60 + 1}", rows).verdict == "held"
    assert one(f"flops = {2**60}", rows).verdict == "refuted"


def test_values_that_are_no_numbers_are_missing() -> None:
    assert one("time < 1 s", [row("a", 1, time_predicted=math.nan)]).verdict == "not measured"
    assert one("time > 1 s", [row("a", 1, time_predicted=math.inf)]).verdict == "not measured"


def test_what_is_not_known_may_not_matter() -> None:
    rows = [row("a", 1, flops_estimated=5)]
    assert one("flops = 5 or time < 1 s", rows).verdict == "held"
    assert one("flops = 4 and time < 1 s", rows).verdict == "refuted"
    assert one("flops = 5 and time < 1 s", rows).verdict == "not measured"
    assert one("not time < 1 s", rows).verdict == "not measured"


def test_about_nothing_against_nothing() -> None:
    rows = [row("a", 1, other_flops_estimated=0, flops_estimated=3)]
    assert one("other_flops ~ 0 within 5%", rows).verdict == "held"
    assert one("flops ~ 0 within 5%", rows).verdict == "refuted"


def test_layers_and_shares() -> None:
    values = {"conv2/flops.estimated": 1_358_954_496, "share.Conv2d.estimated": 0.992, "flops.estimated": 1_535_033_344}
    rows = [StudyRow(cell=StudyCell(model="mnist", batch=64), state="done", values=values)]
    assert one("flops(layer=conv2, batch=64) = 1358954496", rows).verdict == "held"
    assert one("flops(layer=conv2) / flops ~ 88.5% within 0.1%", rows).verdict == "held"
    assert one("share.Conv2d > 99%", rows).verdict == "held"
    assert (
        one(
            "share(layer=conv2) > 88%",
            [StudyRow(cell=rows[0].cell, state="done", values={"conv2/share.estimated": 0.885})],
        ).verdict
        == "held"
    )
    small = one("share.Linear < 1%", rows)
    assert (small.verdict, small.missing[0].why) == (
        "not measured",
        "the estimate has no share.Linear (there is none under 0.1%)",
    )


def test_facts() -> None:
    rows = [row("vgg11", 1, on="here", facts={"bound.measured": "host", "bound.predicted": "memory", "device": "NVIDIA H200"}),
            row("vgg11", 1, on="v100", facts={"bound.predicted": "memory"})]  # fmt: skip
    found = one("bound = memory", rows)
    assert (found.verdict, found.held) == ("refuted", 1)
    assert (found.counter_examples[0].telling.left, found.counter_examples[0].telling.right) == ("host", "memory")
    assert one("bound.predicted = memory", rows).verdict == "held"
    assert one("bound.predicted != host", rows).verdict == "held"
    assert one("bound(on=here) = bound(on=v100)", rows).sides == {"predicted": 1}
    assert one("device(on=here) = 'nvidia h200'", rows).verdict == "held"
    assert one("tier = spec", rows).verdict == "not measured"
    told = [row("vgg11", 1, on="v100", facts={"tier": "spec", "fits": "no", "bound.predicted": "memory"})]
    assert one("tier = spec and fits = no", told).sides == {"predicted": 1}
    assert one("bound.measured = host", told).not_asked[0].why == "no measurement on v100"


def test_claims_keep_their_words_and_their_order() -> None:
    stated = [
        StudyClaim(claim="time(resnet50) > time(resnet18)", says="deeper is slower", source="document 002"),
        StudyClaim(claim="flops > 1"),
    ]
    first, second = claims(stated, ROWS)
    assert (first.number, first.says, first.source, second.number) == (1, "deeper is slower", "document 002", 2)
    with pytest.raises(BadInput, match=r"^claim 2: unknown quantity"):
        claims(["time < 1 s", "oops < 1"], ROWS)


@many
@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=4, unique_by=lambda t: t[0]),
       st.floats(0.1, 10))  # fmt: skip
def test_a_claim_and_its_denial_never_agree(cells: list[tuple[int, float, float]], factor: float) -> None:
    rows = [row(model, batch, time_predicted=value) for batch, a, b in cells for model, value in (("a", a), ("b", b))]
    text = f"time(a) < {factor:.3f} * time(b)"
    claim, denial = one(text, rows), one(f"not {text}", rows)
    assert claim.held + denial.held == len(cells)
    for point in claim.points:
        a, b = next((a, b) for batch, a, b in cells if batch == point.at.get("batch", batch))
        assert point.held == (a < float(f"{factor:.3f}") * b)
    opposite = one(text.replace("<", ">="), rows)
    assert opposite.held == denial.held


def test_a_grid_of_a_thousand_cells_is_judged_at_once() -> None:
    rows = [row(f"m{model}", batch, on=on, time_predicted=float(batch), flops_estimated=batch)
            for model in range(10) for batch in range(1, 26) for on in ("a100", "v100", "h200", "k80")]  # fmt: skip
    assert len(one("time(on=a100) = time(on=v100)", rows).points) == 250
    assert len(one("time = flops / (1 FLOP/s)", rows).points) == 1000


def test_a_claim_about_too_many_places_is_refused() -> None:
    rows = [row(f"m{i}", 1, flops_estimated=i) for i in range(400)]
    rows += [row("m0", batch, flops_estimated=batch) for batch in range(2, 402)]
    found = one("flops(batch=1) > flops(m0)", rows)
    assert (found.verdict, found.reason) == ("not measured", "more than 100,000 places to judge: fix some axes")
