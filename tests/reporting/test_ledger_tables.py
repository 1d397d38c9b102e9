"""How ledgers are shown: tables that add up, safe text in every format, derivations of every layer."""

from __future__ import annotations

import csv
import io
import re

import pytest
import torch
from rich.console import Console
from torch import nn

import rooflight
from rooflight import formatting, summary
from rooflight.estimation.derivation import derive
from rooflight.ledger import LOSS, OPTIMIZER, Totals, is_inside, total
from rooflight.reporting.sections import estimate_tables
from rooflight.reporting.sections.derivation import derivation_latex, derivation_text
from rooflight.reporting.sections.layer_rows import fold
from rooflight.reporting.sections.ledger_data import ledger_data
from rooflight.reporting.sections.ledger_documents import summary_sizes
from rooflight.reporting.table import Column, Table
from rooflight.reporting.writers.csv import table_csv
from rooflight.reporting.writers.html import table_html
from rooflight.reporting.writers.markdown import table_markdown
from rooflight.reporting.writers.terminal import drawn, narrowed

EVIL = "</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def gpt2():
    return rooflight.estimate("gpt2", batch=2, seq=64, step="train")


# --- units ---


@pytest.mark.parametrize(("value", "text"), [
    (None, "–"), (0, "0"), (9_999, "9,999"), (10_000, "10.0 k"), (4_089_184_256, "4.09 G"), (147_837_069_295_616, "148 T"),
    (0.5, "0.5"), (10**27, "1000 Y"),
])  # fmt: skip
def test_counts_are_written_with_three_digits(value, text):
    assert formatting.count(value) == text


def test_bytes_are_powers_of_a_thousand_and_shares_are_percent():
    assert formatting.bytes_(15_048_960) == "15.0 MB"
    assert formatting.bytes_(512) == "512 B"
    assert formatting.percent(0.9999) == "100.0%"
    assert formatting.percent(0.0001) == "<0.1%"
    assert formatting.percent(0.0) == "0.0%"
    assert formatting.shape((64, 3)) == "64×3"
    assert formatting.shape(()) == "1"


# --- rows ---


def test_folded_rows_still_add_up(gpt2):
    rows = summary.rows(gpt2)
    folded = {row.name: row for row in fold(rows)}
    blocks = [row for row in rows if re.fullmatch(r"transformer\.h\.\d+", row.name)]
    merged = folded["transformer.h.[0-11]"]
    assert merged.totals == sum((row.totals for row in blocks), Totals())
    assert merged.params == sum(row.params for row in blocks)
    assert merged.type == "12 × GPT2Block"
    children = [row for name, row in folded.items() if re.fullmatch(r"transformer\.h\.\[0-11\]\.\w+", name)]
    own = total(op for op in gpt2.ops if re.fullmatch(r"transformer\.h\.\d+", op.module))
    assert sum(row.totals.flops for row in children) + own.flops == merged.totals.flops
    assert sum(row.totals.bytes for row in children) + own.bytes == merged.totals.bytes


def test_unequal_siblings_are_not_folded():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 8))
    names = [row.name for row in fold(summary.rows(rooflight.estimate(model, torch.randn(2, 4))))]
    assert names == ["", "[0-1]", "2"]


@pytest.mark.parametrize("by", ["module", "type", "op"])
def test_every_table_ends_in_the_total_of_its_rows(gpt2, by):
    table = estimate_tables.main_table(gpt2, by)
    column = [column.name for column in table.columns].index("MACs")
    *rows, last = table.rows
    if by == "module":
        rows = [row for row in rows if row[0].full in ("gpt2", LOSS, OPTIMIZER)]
    assert sum(row[column] for row in rows) == last[column] == total(gpt2.ops).macs


def test_phases_add_up(gpt2):
    *phases, step = estimate_tables.phase_table(gpt2).rows
    assert [row[0] for row in phases] == ["forward", "backward", "optimizer"]
    for column in range(1, 8):
        assert sum(row[column] for row in phases) == step[column]


def test_a_run_counts_the_last_small_batch_of_an_epoch():
    ledger = rooflight.estimate("mnist-cnn", batch=64, step="train")
    assert estimate_tables.run_steps(ledger, epochs=2, dataset_size=1000) == 2 * 16
    assert estimate_tables.run_steps(ledger, epochs=None, dataset_size=1000) is None


# --- formats ---


def evil_table():
    return Table(
        EVIL,
        (Column("na|me", right=False), Column("n", formatting.count)),
        ((EVIL, 12), ("=cmd()|x", None), ("a|b", 3)),
    )


def test_html_shows_markup_as_text():
    shown = table_html(evil_table(), inline=True)
    assert "<script>" not in shown
    assert "&lt;/script&gt;" in shown


def test_a_module_with_an_evil_name_stays_harmless_in_a_notebook():
    model = nn.Module()
    model.add_module(EVIL.replace(".", ""), nn.Linear(4, 4))
    model.forward = lambda x: next(model.children())(x)
    shown = rooflight.estimate(model, torch.randn(2, 4))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_csv_is_no_program():
    rows = list(csv.reader(io.StringIO(table_csv(evil_table()))))
    assert rows[2] == ["'=cmd()|x", ""]
    assert rows[1] == [EVIL, "12"]


def test_markdown_keeps_its_columns():
    lines = table_markdown(evil_table()).splitlines()[2:]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[1:]} == {3}


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_narrow_terminal_gets_fewer_columns(gpt2, width):
    table = estimate_tables.main_table(gpt2, depth=1)
    narrow = narrowed(table, width)
    written = [[column.name for column in narrow.columns], *narrow.written()]
    needed = sum(max(len(row[i]) for row in written) + 3 for i in range(len(narrow.columns)))
    assert needed <= width or not any(column.optional for column in narrow.columns)
    assert narrow.columns[0].name == "layer"
    assert len(narrow.rows) == len(table.rows)
    shown = {column.name for column in narrow.columns}
    assert narrow.left_out == tuple(column.name for column in table.columns if column.name not in shown)


def test_a_narrow_terminal_says_which_columns_it_has_no_room_for(gpt2):
    def shown(width):
        console = Console(width=width, file=io.StringIO())
        console.print(drawn(estimate_tables.main_table(gpt2, depth=1), width))
        return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]

    assert "hidden columns: type, output" in shown(60)
    assert "no room" not in shown(200)


def test_repr_says_what_it_is(gpt2):
    lines = repr(gpt2).splitlines()
    assert lines[0] == "gpt2 · training step · batch 2 · sequence 64 · fp32 · cross-entropy loss, adamw"
    assert lines[1].startswith("124,439,808 parameters")
    assert "every op has a formula" in lines[3]


def test_frozen_parameters_are_told():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    assert "30 parameters, 20 of them frozen" in repr(rooflight.estimate(model, torch.randn(2, 4)))


def test_pandas_has_a_row_for_every_op_and_keeps_unknown_unknown():
    @torch.library.custom_op("rooflight_tests::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    unknown.register_fake(torch.empty_like)

    class Net(nn.Module):
        def forward(self, x):
            return unknown(x).relu()

    ledger = rooflight.estimate(Net(), torch.randn(3, 4))
    frame = ledger.to_pandas()
    assert list(frame.op) == ["rooflight_tests::unknown", "aten::relu"]
    assert frame.flops.isna().tolist() == [True, False]
    assert frame.other_flops.sum() == 12
    assert "rooflight_tests::unknown (1×)" in repr(ledger)


# --- derivations ---


def figures(text: str, label: str) -> int:
    """The number of `label` in the last line: `sum: 12 MACs = 24 FLOPs, ...`."""
    return int(re.search(rf"([\d,]+) {label}", text.strip().splitlines()[-1])[1].replace(",", ""))


@pytest.mark.parametrize(("name", "options"), [
    ("mnist-cnn", {}), ("resnet18", {}), ("googlenet", {}), ("vit-b-16", {}), ("gpt2", {"seq": 32, "overrides": {"n_layer": "2"}}),
    ("llama3-8b", {"seq": 32, "overrides": {"num_hidden_layers": "1"}}), ("transformer", {"seq": 16}), ("word-lm", {}),
])  # fmt: skip
@pytest.mark.parametrize("step", ["infer", "train"])
def test_every_layer_can_be_derived_and_its_parts_sum_up(name, options, step):
    ledger = rooflight.estimate(name, batch=2, step=step, **options)
    for module in ledger.modules:
        inside = [op for op in ledger.ops if is_inside(op.module, module.path) and op.kind == "compute"]
        if not inside:
            continue
        derivation = derive(ledger, module.path)
        text, sums = derivation_text(derivation), total(inside)
        assert sum(row.times for row in derivation.ops) == len(inside)
        if text.strip().splitlines()[-1].startswith("sum:"):
            assert figures(text, "MACs") == sums.macs
            assert figures(text, "other") == sums.other_flops
            assert figures(text, "B") == sums.bytes
        latex = derivation_latex(derivation)
        assert latex.count("{") == latex.count("}")
        assert latex.count(r"\begin{align*}") == latex.count(r"\end{align*}") == len(derivation.ops)


def test_loss_and_optimizer_can_be_derived_too():
    ledger = rooflight.estimate("mnist-cnn", batch=2, step="train")
    assert "nll_loss_forward" in derivation_text(derive(ledger, LOSS))
    # momentum: v = 0.9 v + g, p = p - lr v over 1,199,882 parameters
    assert "1,199,882" in derivation_text(derive(ledger, OPTIMIZER))


@pytest.mark.parametrize("width", [40, 50, 60, 66, 80, 120])
def test_numbers_are_never_cut_on_a_narrow_terminal(width):
    """Names give way, then columns, and what went is named."""
    from rich.console import Console

    from rooflight.reporting.table import Column, Table

    columns = (
        Column("op", right=False),
        Column("first in", right=False),
        Column("time"),
        Column("share"),
        Column("% of roof"),
    )
    table = Table("", columns, (("convolution_backward", "layer4.1.conv2", "237.456 µs", "9.1%", "14.25%"),))
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(drawn(table, width))
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= width
    for column, cell in zip(columns, table.rows[0], strict=True):
        if column.right:
            assert (cell in shown) == (column.name in shown.partition("hidden columns")[0])
    kept = [column.name for column in columns if column.name in shown.partition("hidden columns")[0]]
    assert kept == [column.name for column in columns][: len(kept)]


def test_the_block_of_summary_tools():
    """Document 000's figure 4, and document 001's smaller net."""
    said = summary_sizes(rooflight.estimate("mnist-cnn", batch=1))
    # Every op: conv1 and relu 32x26x26 each, conv2 and relu 64x24x24 each, pool 64x12x12, fc1 and relu 128 each, fc2 and
    # log_softmax 10 each: 126,484 values of 4 bytes, twice, are 0.965 MiB; with 784 x 4 B in and 1,199,882 parameters.
    assert "0.96 and 5.55 by outputs of every op" in said[1]
    # Leaf modules: conv1, conv2, two dropouts, fc1, fc2 give 67,978 values; those with parameters 58,634.
    assert "input size 0.00, forward/backward pass size 0.52 " in said[0]
    assert "params size 4.58, estimated total size 5.10" in said[0]
    assert "0.45 and 5.03 by those of leaf modules with parameters" in said[1]
    small = " ".join(summary_sizes(rooflight.estimate("mnist-cnn-5x5", batch=1)))
    assert "pass size 0.06 " in small and "params size 0.08, estimated total size 0.15" in small


def test_the_block_is_of_the_model_and_of_one_pass():
    """Neither the loss nor a second micro-batch is a part of it, and JSON has the number of the text."""
    infer, train, twice = (
        rooflight.estimate("mnist-cnn", batch=2, **options)
        for options in ({}, {"step": "train"}, {"step": "train", "accumulate": 2})
    )
    assert summary.sizes(infer).every_output_bytes == 2 * 4 * 126_484
    # In training each dropout is an op: one gives 64x12x12, one 128. The loss has two ops, which are left out.
    assert [op.name for op in train.ops if op.module == LOSS and op.phase == "forward" and op.outputs]
    trained = 2 * 4 * (126_484 + 64 * 12 * 12 + 128)
    assert summary.sizes(train).every_output_bytes == summary.every_output_bytes(twice) == trained
    told = ledger_data(infer)["totals"]["sizes"]["forward_backward_bytes"]
    assert told == 2 * 2 * 4 * 67_978
    assert f"forward/backward pass size {told / 2**20:.2f} " in summary_sizes(infer)[0]


def test_summary_tools_agree_where_there_are_only_leaf_modules():
    ledger = rooflight.estimate(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.zeros(1, 4))
    assert len(summary_sizes(ledger)) == 1


def test_a_report_says_which_card_was_taken_where_one_was_named(run):
    _, _, silent = run("report", "recorded:h200/mnist-cnn-infer-tf32", "--csv")
    assert "is taken as" not in silent
    code, _, said = run("report", "recorded:h200/mnist-cnn-infer-tf32", "--csv", "--on", "a100")
    assert code == 0 and "a100 is taken as a100-sxm-80" in said
