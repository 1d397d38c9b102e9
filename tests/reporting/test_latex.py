"""Reports as LaTeX: no table is wider than it may be, nothing of it is lost, and pdflatex sets it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflight
from rooflight.errors import BadInput
from rooflight.reporting.document import first_rows
from rooflight.reporting.report.api import make
from rooflight.reporting.writers import write
from rooflight.reporting.writers.latex import TEXT_WIDTH_PT, _grid, document_latex, latex_table, width_in_pt
from rooflight.reporting.writers.latex_layout import FONTS, LatexGrid, TablePart, laid_out
from rooflight.reporting.writers.latex_signs import BOLD, latex, lines, sign, text_width, widest_piece
from tests.fixtures.paths import ROOT
from tests.fixtures.report_pages import hostile_ledger

MNIST = "recorded:h200/mnist-cnn-train-tf32"
WIDTHS = ("5cm", "345pt", "25cm")
ODD = "µs S² ≥ ≤ … ▾ ▁▄█ é Å ß ő ﬁ ½ α Ω 中文 😀 👩‍💻 \\ { } $ & # ^ _ ~ % < > | \" -- '' `` [*] \x00 \ud800 \u202e"


@pytest.fixture(scope="module")
def reports():
    """Measured, two side by side, a study, an estimate; and a model whose names are meant to break something."""
    return {
        "measured": make(MNIST, on="h200,v100"),
        "pair": make(["recorded:h200/mnist-cnn-infer-fp32", "recorded:h200/mnist-cnn-infer-tf32"], on="h200"),
        "study": make(ROOT / "studies" / "recorded" / "h200" / "mnist-conv2"),
        "estimate": make(rooflight.estimate("gpt2", batch=1, seq=64), on="h200"),
        "hostile": make(hostile_ledger(), on="h200"),
    }


def tables(report) -> list[LatexGrid]:
    return [_grid(first_rows(table, table.telling, "")) for table in report.tables]


def unbroken(tex: str) -> str:
    return tex.replace("\\allowbreak{}", "").replace("\\mbox{-}", "-").replace("\\mbox{-{}-}", "-{}-")


# --- signs ----------------------------------------------------------------------------------------------------------


def test_every_sign_is_ascii_that_any_document_sets():
    assert latex("16×3 µs, 50% of a_b & {c}") == r"16$\times$3 \textmu{}s, 50\% of a\_b \& \{c\}"
    assert latex("é ß S² x₁ ½ αΩ ﬁ") == r"\'{e} \ss{} S\textsuperscript{2} x\textsubscript{1} 1/2 $\alpha$$\Omega$ fi"
    assert latex("中😀") == "U+4E2DU+1F600"
    assert latex("a\u200bb\u202ec\n d\u00a0e") == "abc d e"  # what has no shape goes, what keeps apart is a space
    assert latex("\ud800 ▾") == "U+D800 U+25BE"
    assert latex("--fused a--b ''") == "-{}-fused a-{}-b '{}'"  # fonts make other signs of two
    assert latex("-5.26% a-5") == r"$-$5.26\% a-5"
    assert latex(ODD).isascii()


def test_widths_are_those_of_the_fonts():
    """In em, as tftopl tells them: a reckoned width is not less, and of a number hardly more."""
    cmr10 = {"0": 0.500, "i": 0.278, "m": 0.833, "W": 1.028, "%": 0.833, ".": 0.278, "e": 0.444, "-": 0.333}
    for char, em in cmr10.items():
        assert em <= sign(char).em <= 1.05 * em, char
    assert text_width("1,234.5") == pytest.approx(5 * 0.51 + 2 * 0.29)
    for font, digit, bold in zip(FONTS, (0.5, 0.5139, 0.5313, 0.5694), (0.575, 0.5917, 0.6125, 0.6472), strict=True):
        assert digit <= 0.51 * font.wider <= 1.03 * digit
        assert bold <= 0.51 * font.wider * BOLD <= 1.05 * bold


def test_long_words_break_where_one_would_break_them():
    assert latex("layer4.0.downsample", 6) == r"layer4.0.\allowbreak{}downsample"
    assert latex("conv", 1) == r"c\allowbreak{}o\allowbreak{}n\allowbreak{}v"
    assert latex("16×3×224×224", 4) == r"16$\times$\allowbreak{}3$\times$\allowbreak{}224$\times$\allowbreak{}224"
    assert latex("aten::add", 3) == r"aten::\allowbreak{}add"
    assert latex("1,234,567", 5) == "1,234,567"
    assert "\\allowbreak" not in latex("max_pool2d_with_indices", 20)
    assert lines("allocated, predicted for h200", 5) == ["allocated,", "predicted", "for h200"]
    assert widest_piece("nchwToNhwcKernel") == pytest.approx(text_width("Kernel"))


# --- layout ---------------------------------------------------------------------------------------------------------


def test_the_largest_font_in_which_a_table_fits():
    # Cells of 20 digits are 20 x 0.51 = 10.2 em: 102 pt, and 12 pt between two of them, at 10 pt. 3 need 330 pt.
    # 4 at \small: 4 x 10.2 x 9 x 1.028 + 3 x 10 = 407.5; at \footnotesize 371.0; at \scriptsize 340.3.
    for count, font in ((3, "normalsize"), (4, "scriptsize")):
        (part,) = laid_out(LatexGrid(("n",) * count, (("1" * 20,) * count,) * 2, (True,) * count), 345)
        assert part.font.name == font
        assert not any(column.wraps for column in part.columns)
    (part,) = laid_out(LatexGrid(("n",) * 4, (("1" * 20,) * 4,), (True,) * 4), 372)
    assert part.font.name == "footnotesize"
    assert part.width_pt == pytest.approx(4 * 10.2 * 8 * 1.063 + 3 * 8)


def test_a_table_of_too_many_numbers_stands_in_parts_that_begin_alike():
    grid = LatexGrid(("layer", *map(str, range(30))), (("conv1", *["12.34 ms"] * 30), ("conv2", *["1.5 GB"] * 30)),
                (False, *[True] * 30), frozenset({1}))  # fmt: skip
    parts = laid_out(grid, 345)
    assert len(parts) > 2
    assert all(part.columns[0].number == 0 for part in parts)
    assert [column.number for part in parts for column in part.columns[1:]] == list(range(1, 31))
    assert max(len(part.columns) for part in parts) - min(len(part.columns) for part in parts) <= 2
    tex = latex_table(grid, "Layers", 345)
    for number in range(1, len(parts) + 1):
        assert f"\\caption{{Layers ({number}~of~{len(parts)})}}" in tex
    assert tex.count("\\bfseries conv2") == tex.count("\\lightrulewidth") == len(parts)


def test_rows_of_parts_can_be_told_apart():
    """The first columns are repeated until they do; of a tree, its first."""
    rows = tuple((model, str(batch), *["123.45 GFLOP"] * 12) for model in ("vgg11", "vgg13") for batch in (16, 1024))
    parts = laid_out(LatexGrid(("model", "batch", *["time"] * 12), rows, (False, *[True] * 13)), 345)
    assert all([column.number for column in part.columns[:2]] == [0, 1] for part in parts)
    tree = tuple(("  conv", *row[1:]) for row in rows)
    parts = laid_out(LatexGrid(("model", "batch", *["time"] * 12), tree, (False, *[True] * 13)), 345)
    assert [part.columns[1].number for part in parts][1:] != [1]


def test_the_indent_of_a_tree_stays():
    grid = LatexGrid(("layer", "why"), (("model", "x"), ("    conv", "a sentence " * 30)), (False, False))
    assert "\\hspace*{" in latex_table(grid, "", 345)
    deep = LatexGrid(("layer", "why"), (("model", "x"), ("    " + "conv" * 40, "y" * 400)), (False, False))
    assert "\\leftskip=" in latex_table(deep, "", 345)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_table_of_a_report_fits_and_loses_nothing(reports, width):
    for name, report in reports.items():
        content = unbroken(document_latex(report, width))
        for grid in tables(report):
            parts = laid_out(grid, width_in_pt(width))
            assert max(part.width_pt for part in parts) <= width_in_pt(width), (name, grid.names)
            assert {column.number for part in parts for column in part.columns} == set(range(len(grid.names)))
            assert all(unbroken(latex(cell)) in content for row in grid.rows for cell in row), (name, grid.names)
            assert not any(_number_wraps(grid, part) for part in parts), (name, grid.names)


def _number_wraps(grid: LatexGrid, part: TablePart) -> bool:
    """No cell that is a number, or a number with its unit, is a paragraph, however narrow a page is."""
    numbers = [
        one for one in part.columns if all(re.fullmatch(r"[\d.,]+( \S+)?", row[one.number]) for row in grid.rows)
    ]
    return any(one.wraps for one in numbers)


texts = st.text(st.characters(codec=None, exclude_categories=[]), max_size=40)
numbers = st.floats(0, 1e12).map(lambda value: f"{value:,.2f} ms")
words = st.lists(st.sampled_from(["layer4.0.conv2", "convolution", "16×3×224×224", "is", "ampere_sgemm_32x32_sliced1x4_nn",
                                  "x" * 90, "9" * 60, "  conv"]), max_size=8).map(" ".join)  # fmt: skip


@st.composite
def grids(draw) -> LatexGrid:
    kinds = draw(st.lists(st.sampled_from([texts, numbers, words]), min_size=1, max_size=24))
    rows = draw(st.lists(st.tuples(*kinds), max_size=4))
    names = draw(st.tuples(*[st.one_of(texts, words)] * len(kinds)))
    right = tuple(kind is numbers or draw(st.booleans()) for kind in kinds)
    return LatexGrid(names, tuple(rows), right, frozenset(draw(st.sets(st.integers(0, 3), max_size=2))))


@settings(max_examples=40, deadline=None)
@given(grids(), st.sampled_from([width_in_pt(width) for width in WIDTHS]))
def test_any_table_fits(grid, width_pt):
    parts = laid_out(grid, width_pt)
    for part in parts:
        assert part.width_pt <= width_pt + 1e-6
        assert all(column.body_pt >= 0.9 * part.font.em_pt for column in part.columns if column.wraps)
    assert {column.number for part in parts for column in part.columns} == set(range(len(grid.names)))
    tex = latex_table(grid, grid.names[0], width_pt)
    assert tex.isascii()
    assert tex.count("\\begin{longtable}") == len(parts)
    plain = re.sub(r"\\.", "", tex)
    assert plain.count("{") == plain.count("}")


# --- what is said, and how one asks ---------------------------------------------------------------------------------


def test_notes_and_facts_are_text_and_speak_of_no_page(reports):
    content = document_latex(reports["measured"])
    said = "\n".join(line for line in content.splitlines() if not line.startswith("%"))
    assert content.startswith(
        "% \\usepackage{booktabs,longtable,array,textcomp}\n% tables of at most 345.0 pt (12.1 cm)"
    )
    assert "useful FLOPs of a step" in said
    assert "\\footnotesize" in said
    for word in ("click", "hover", "diamond", "dashed", "coloured", "in the picture"):
        assert word not in said.lower(), word
    assert "% $ rooflight " in content  # commands and small print are comments


def test_the_width_of_the_text_is_that_of_an_article():
    assert width_in_pt(None) == TEXT_WIDTH_PT == 345
    assert width_in_pt("5.08cm") == pytest.approx(2 * 72.27)
    assert width_in_pt("6.5in") == pytest.approx(6.5 * 72.27)
    assert width_in_pt("160mm") == pytest.approx(width_in_pt("16 cm"))


@pytest.mark.parametrize("width", ["16", "cm", "-16cm", "16 parsec", "1e3pt", "", "\N{ARABIC-INDIC DIGIT FOUR}0cm"])
def test_a_width_has_a_unit(width):
    with pytest.raises(BadInput, match=r"a number with its unit \(cm, mm, in or pt\), such as width=\"16cm\""):
        width_in_pt(width)


@pytest.mark.parametrize("width", ["1cm", "0pt", "30000mm"])
def test_a_width_must_make_sense(width):
    with pytest.raises(BadInput, match="5 cm at least, and 2 m"):
        width_in_pt(width)


def test_the_width_goes_with_latex_alone(reports, tmp_path):
    for form in ("md", "html", "png"):
        with pytest.raises(BadInput, match="width is that of LaTeX's tables"):
            write(reports["study"], form, width="16cm")
    with pytest.raises(BadInput, match="width is that of LaTeX's tables"):
        rooflight.report(MNIST, width="16cm")
    rooflight.report(ROOT / "studies/recorded/h200/mnist-conv2", tmp_path / "t.tex", width="16cm")
    assert "% tables of at most 455.2 pt (16.0 cm)" in (tmp_path / "t.tex").read_text()


@pytest.mark.parametrize(("arguments", "error"), [
    (["--width", "16cm"], "--width is that of LaTeX's tables: it goes with --to latex, or a file whose name ends in .tex"),
    (["--width", "16cm", "--to", "md"], "--width is that of LaTeX's tables"),
    (["--width", "16", "--to", "latex"], "--width 16: a number with its unit (cm, mm, in or pt), such as --width 16cm"),
])  # fmt: skip
def test_errors_of_the_command_line(run, arguments, error):
    code, _, said = run("report", MNIST, *arguments)
    assert code == 2
    assert error in said
    assert said.count("\n") == 1


def test_the_command_line_has_a_width(run):
    study = ROOT / "studies" / "recorded" / "h200" / "mnist-conv2"
    _, out, _ = run("report", study, "--to", "latex", "--width", "20cm")
    assert "\\setlength{\\LTcapwidth}{569.1pt}" in out


# --- the real thing -------------------------------------------------------------------------------------------------

DOCUMENT = r"""\documentclass[a4paper,10pt]{article}
\usepackage{booktabs,longtable,array,textcomp}
\usepackage[textwidth=%s]{geometry}
\begin{document}
\input{tables}
\end{document}
"""


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("width", ["5cm", "345pt"])
def test_pdflatex_finds_no_box_too_wide(reports, tmp_path, width):
    odd = LatexGrid(("name", "what " * 6, "n"), (("  " + ODD, ODD * 4, "1.5 ms"), ("中" * 60, "[*] " + "x" * 200, "[2] GB")),
               (False, False, True), frozenset({1}))  # fmt: skip
    made = [document_latex(reports[name], width) for name in ("measured", "pair", "hostile")]
    (tmp_path / "tables.tex").write_text("\n".join([*made, latex_table(odd, ODD, width_in_pt(width))]))
    (tmp_path / "doc.tex").write_text(DOCUMENT % width)
    log = ""
    while not log or "widths have changed" in log:
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "doc.tex"], cwd=tmp_path, capture_output=True, check=False
        )
        log = (tmp_path / "doc.log").read_text(errors="replace")
    missing = re.search(r"! LaTeX Error: File `(.*)' not found", log)
    if missing:
        pytest.skip(f"this TeX has no {missing[1]}")
    assert done.returncode == 0, re.findall(r"^!.*", log, re.MULTILINE)
    assert [float(pt) for pt in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(pt) > 1] == []
    widths = [sum(map(float, re.findall(r"\{([\d.]+)pt", one))) for one in re.findall(
        r"\\gdef \\LT@\w+ \{(.*?)\}\}", (tmp_path / "doc.aux").read_text().replace("\n", "") + "}}")]  # fmt: skip
    assert len(widths) > 30
    assert max(widths) <= width_in_pt(width)
