"""Two ledgers side by side: the join, the ratios, and the four forms, against figures worked out on paper."""

from __future__ import annotations

import csv
import io
import json
from functools import partial

import msgspec
import pytest

import rooflight
from rooflight.analysis.comparison.sides import Comparison, attributed
from rooflight.files import load
from rooflight.ledger import MathModes
from rooflight.reporting.sections import compare_tables
from rooflight.reporting.writers.terminal import narrowed
from rooflight.summary.measured_rows import NO_OP, SEVERAL
from tests.fixtures.measured_ledgers import HEADER, MODULES, OPS, compiled, cost, mnist, op, toy

US = 1e-6


def near(value):
    return pytest.approx(value, rel=1e-12)


@pytest.fixture(scope="module")
def eager_compiled():
    return Comparison(toy(), compiled())


@pytest.fixture(scope="module")
def estimate_measured():
    return Comparison(toy(measurements=()), toy())


def lines(comparison):
    return {line.name: line for line in comparison.totals()}


def pairs(comparison, by="module"):
    return {row.name: row for row in comparison.rows(by)}


# --- eager against compiled ---


def test_totals_of_eager_and_compiled(eager_compiled):
    found = lines(eager_compiled)
    assert found["wall time"].ratio == near(0.5)
    assert found["GPU-busy"].ratio == near(70 / 86)
    assert found["sum of kernel times"].ratio == near(70 / 90)
    assert (found["kernels"].a, found["kernels"].b) == (10, 5)
    assert found["useful FLOPs"].ratio == 1
    assert found["executed, tensor cores tf32"].ratio == 1
    # The ranges around the steps, not the sums of the ops: 250 for 500 read, 165 for 330 written.
    assert (found["DRAM read"].a, found["DRAM read"].ratio) == (500, 0.5)
    assert found["DRAM written"].ratio == 0.5
    assert (found["executed, CUDA cores fp32"].b, found["executed, CUDA cores fp32"].ratio) == (None, None)


def test_rows_of_eager_and_compiled(eager_compiled):
    found = pairs(eager_compiled)
    assert found["b"].ratio_of(lambda side: side.time_s) == near(58 / 77)
    assert found["a"].ratio_of(lambda side: side.time_s) == near(0.8)
    # What is fused into the block is not known to be the ReLU's.
    assert found["b.d"].b.time_s is None
    assert found["b.d"].ratio_of(lambda side: side.time_s) is None
    assert (found[SEVERAL].a, found[SEVERAL].b.time_s) == (None, near(3 * US))
    assert found[NO_OP].b.time_s == near(1 * US)


def test_the_last_row_takes_both_steps_from_the_same_kind_of_range(eager_compiled):
    table = compare_tables.row_table(eager_compiled)
    names = [column.name for column in table.columns]
    last = dict(zip(names, table.rows[-1], strict=True))
    assert (last["bytes A"], last["bytes B"], last["bytes B/A"]) == (830, 415, 0.5)
    assert last["time B/A"] == near(70 / 90)
    # B has the tensor cores alone: that is not all it executed, and no ratio is made of it.
    assert (last["FLOPs A"], last.get("FLOPs B"), last.get("FLOPs B/A")) == (14_030, None, None)


def test_how_much_is_attributed_is_said(eager_compiled):
    assert attributed(eager_compiled.a) == {"one op": 1, "several ops": 0, "no op": 0}
    assert attributed(eager_compiled.b) == {"one op": near(48 / 70), "several ops": near(0.3), "no op": near(1 / 70)}
    page = compare_tables.compare_document(eager_compiled, by="module", depth=None, folded=True)
    assert "A: the kernels' time belongs 100.0% to one op" in page.notes
    assert any(line.startswith("B: the kernels' time belongs 68.6% to one op, 30.0% to several") for line in page.notes)
    assert page.lines[-1] == "not the same (A | B): execution eager | compile"
    assert "7 ops, views apart, are in both; 0 only in A, 0 only in B" in page.notes


def test_fused_types_stand_beside_what_they_were(eager_compiled):
    found = pairs(eager_compiled, "type")
    assert found["Conv2d"].ratio_of(lambda side: side.time_s) == near(40 / 70)
    assert (found["Conv2d + ReLU"].a, found["ReLU"].b) == (None, None)
    assert next(iter(found)) == "Conv2d"


# --- estimate against measurement ---


def test_useful_stands_beside_executed(estimate_measured):
    assert estimate_measured.flops_basis == ("useful", "matrix executed")
    assert estimate_measured.bytes_basis == ("compulsory", "DRAM")
    found = pairs(estimate_measured)
    assert found["b.c"].ratio_of(lambda side: side.flops) == near(12_810 / 12_000)
    assert found["a"].ratio_of(lambda side: side.flops) == 1.2
    # A ReLU executes instructions but has no matrix work to compare them with.
    assert (found["b.d"].a.flops, found["b.d"].b.flops) == (0, None)
    assert found["b.d"].ratio_of(lambda side: side.bytes) == near(70 / 120)
    names = [column.name for column in compare_tables.row_table(estimate_measured).columns]
    assert "FLOPs A useful" in names and "FLOPs B executed, matrix ops" in names and "time A" not in names
    totals = lines(estimate_measured)
    assert totals["matrix work: A useful, B executed"].ratio == near(14_010 / 13_000)
    assert totals["bytes: A compulsory, B DRAM"].ratio == near(830 / 904)
    assert attributed(estimate_measured.a) is None


def test_the_other_way_round_is_the_reciprocal(estimate_measured):
    other = Comparison(toy(), toy(measurements=()))
    assert other.flops_basis == ("matrix executed", "useful")
    for name, row in pairs(estimate_measured).items():
        there, back = (one.ratio_of(lambda side: side.flops) for one in (row, pairs(other)[name]))
        assert (there is None) == (back is None)
        assert there is None or there * back == near(1.0)


def test_an_account_beside_the_estimate_of_another_step_says_of_what_it_is():
    """Tables have A's FLOPs, the account begins at those of B by formula: at another batch these are not the same."""
    run = load("recorded:h200/mnist-cnn-infer-tf32")
    other = rooflight.compare(rooflight.estimate("mnist-cnn", batch=128), run)
    said = "why B differs from the estimate of its own step, which is not A"
    assert any(line.startswith(f"{said}: FLOPs: ") for line in compare_tables.compare_document(other).lines)
    back = rooflight.compare(run, rooflight.estimate("mnist-cnn", batch=128))
    assert compare_tables.why_title(back) == "why A differs from the estimate of its own step, which is not B"
    assert compare_tables.why_title(rooflight.compare(run)) == ""


def test_two_estimates_are_compared_by_formula():
    comparison = Comparison(toy(measurements=()), toy(measurements=()))
    assert comparison.flops_basis == ("useful", "useful")
    assert [line.name for line in comparison.totals()] == ["useful FLOPs", "compulsory bytes"]
    assert {row.ratio_of(lambda side: side.bytes) for row in comparison.rows()} == {1.0}


def test_a_ledger_against_itself_is_one_everywhere():
    comparison = Comparison(mnist(), mnist())
    assert not comparison.differences() and not comparison.unmatched()
    assert {line.ratio for line in comparison.totals()} == {1.0}
    for by in ("module", "type", "op"):
        assert {row.ratio_of(lambda side: side.time_s) for row in comparison.rows(by)} == {1.0}


# --- what is not the same ---


def test_ops_that_only_one_side_has_are_counted_and_shown():
    other = toy(ops=(*OPS[:2], op(2, "forward", "b.d", "aten::gelu", cost(0, 60, 60)), *OPS[3:]))
    comparison = Comparison(toy(), other)
    assert [found.name for found in comparison.only_a] == ["aten::relu"]
    assert [found.name for found in comparison.only_b] == ["aten::gelu"]
    assert (pairs(comparison)["b"].a.only_here, pairs(comparison)["b.c"].a.only_here) == (1, 0)
    assert compare_tables.unmatched_table(comparison).rows == (("b.d", 1, 1, "aten::relu", "aten::gelu"),)
    columns = [column.name for column in compare_tables.row_table(comparison).columns]
    assert columns[-2:] == ["only in A", "only in B"]


def test_modules_that_only_one_side_has_are_rows():
    fewer = toy(
        modules=MODULES[:-1],
        ops=tuple(msgspec.structs.replace(one, module="b") if one.module == "b.d" else one for one in OPS),
    )
    found = pairs(Comparison(toy(), fewer))
    assert found["b.d"].b is None
    assert found["b"].ratio_of(lambda side: side.time_s) == 1


def test_differences_are_named_and_those_of_a_run_only_between_runs():
    header = msgspec.structs.replace(HEADER, batch=16, math=MathModes(tf32_conv=True, tf32_matmul=False), device=None)
    found = {one.name: (one.a, one.b) for one in Comparison(toy(), toy(header=header)).differences()}
    assert found == {"batch": ("8", "16"), "math": ("TF32 in convolutions and matmuls", "TF32 in convolutions")}


# --- forms ---


@pytest.mark.parametrize("width", [80, 120, 160])
@pytest.mark.parametrize("which", ["eager_compiled", "estimate_measured"])
def test_the_table_fits_a_terminal_and_keeps_a_ratio(request, width, which):
    comparison = request.getfixturevalue(which)
    table = narrowed(compare_tables.row_table(comparison), width)
    texts = [[column.name for column in table.columns], *table.written()]
    assert sum(max(len(row[i]) for row in texts) + 3 for i in range(len(table.columns))) <= width
    assert any(column.name.endswith("B/A") for column in table.columns)


@pytest.fixture
def run(run):
    return partial(run, columns=160)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return [rooflight.save(make(), folder / f"{make.__name__}.json") for make in (toy, compiled)]


def test_compare_prints_both_and_their_ratio(run, saved):
    code, out, err = run("compare", *saved)
    assert (code, err) == (0, "")
    assert "B: toy · training step · batch 8" in out and "· compiled · NVIDIA H200" in out
    assert "DRAM read" in out and "0.50" in out


def test_compare_in_every_form(run, saved, tmp_path):
    code, out, _ = run("compare", *saved, "--json")
    made = json.loads(out)
    assert made["a"]["header"]["execution"] == "eager" and made["b"]["header"]["execution"] == "compile"
    assert next(line for line in made["totals"] if line["name"] == "wall time")["ratio"] == near(0.5)
    assert next(row for row in made["rows"] if row["name"] == "b")["time_ratio"] == near(58 / 77)
    code, out, _ = run("compare", *saved, "--csv", "--by", "op")
    found = {row["op"]: row for row in csv.DictReader(io.StringIO(out))}
    assert float(found["aten::mm"]["time B/A"]) == near(0.8)
    code, out, _ = run("compare", *saved, "--md", "--depth", "1")
    assert "| layer |" in out and "wall time" in out
    code, _, err = run("compare", *saved, "-o", tmp_path / "c.md")
    assert code == 0 and "wrote" in err and "| layer |" in (tmp_path / "c.md").read_text()


@pytest.mark.parametrize(("arguments", "said"), [
    (["--json", "--csv"], "choose one of"), (["-o", "c.txt"], "must end in .json, .csv or .md"),
    (["--csv", "-o", "c.md"], "two forms"), (["-o", "nowhere/c.md"], "does not exist"),
])  # fmt: skip
def test_compare_says_what_cannot_be_done(run, saved, arguments, said):
    code, out, err = run("compare", *saved, *arguments)
    assert code == 2 and not out
    assert said in err and len(err.splitlines()) == 1


def test_a_missing_side_is_named(run, saved):
    code, _, err = run("compare", saved[0], "nothing.json")
    assert code == 2 and "nothing.json does not exist" in err
