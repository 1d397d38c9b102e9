"""Plans of studies: grids become cells, files come back as they were, and whatever is wrong is one line."""

from __future__ import annotations

import itertools
import pickle
import re
import tomllib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.errors import BadFile, BadInput, RooflightError
from rooflight.study.cell import StudyCell
from rooflight.study.plan import AXES, MOST_CELLS, StudyPlan, check_claims, merged, plan_of, read_plan, to_toml
from tests.fixtures.paths import ROOT


def plan(grid, **rest):
    return plan_of({"grid": grid, **rest}, "s.toml")


def test_a_grid_is_the_product_of_its_axes():
    found = plan(
        {"model": ["mnist-cnn", "resnet18"], "batch": [1, 8], "step": ["infer", "train"], "on": ["v100", "h200"]}
    )
    cells = found.cells
    assert len(cells) == 16 == len({cell.id for cell in cells})
    expected = set(itertools.product(["mnist-cnn", "resnet18"], [1, 8], ["infer", "train"], ["v100", "h200"]))
    assert {(cell.model, cell.batch, cell.step, cell.on) for cell in cells} == expected


def test_scalars_and_several_grids():
    found = plan([{"model": "mnist-cnn", "batch": 4}, {"model": "gpt2", "seq": [16, 32], "dtype": "bf16"}])
    assert found.cells == [
        StudyCell(model="mnist-cnn", batch=4),
        StudyCell(model="gpt2", seq=16, dtype="bf16"),
        StudyCell(model="gpt2", seq=32, dtype="bf16"),
    ]


def test_a_cell_that_two_grids_ask_for_is_there_once():
    found = plan(
        [{"model": "mnist-cnn", "batch": [1, 8]}, {"model": "mnist-cnn", "batch": 8, "step": ["infer", "train"]}]
    )
    assert [(cell.batch, cell.step) for cell in found.cells] == [(1, "infer"), (8, "infer"), (8, "train")]


def test_set_is_one_axis_of_tables():
    found = plan({"model": "mnist-cnn", "set": [{"channels": "32,64"}, {"channels": "64,128", "kernel_size": 5}]})
    assert [cell.settings for cell in found.cells] == [
        {"channels": "32,64"},
        {"channels": "64,128", "kernel_size": "5"},
    ]


def test_what_only_some_steps_have_is_not_given_to_the_others():
    found = plan({"model": "gpt2", "step": ["infer", "train", "decode"], "loss": "mse", "optimizer": "sgd", "past": 8})
    infer, train, decode = found.cells
    assert (infer.loss, infer.optimizer, infer.past) == (None, None, None)
    assert (train.loss, train.optimizer, train.past) == ("mse", "sgd", None)
    assert (decode.loss, decode.optimizer, decode.past) == (None, None, 8)


def test_parallel_is_for_several_gpus():
    found = plan({"model": "mnist-cnn", "on": "a100", "gpus": [1, 2], "parallel": "fsdp"})
    assert [(cell.gpus, cell.parallel) for cell in found.cells] == [(1, None), (2, "fsdp")]


WRONG = [
    ({"grid": {"model": "mnist-cnn", "bach": 8}}, "unknown key 'bach': did you mean batch?"),
    ({"grid": {"model": "mnist-cnn"}, "titel": "x"}, "unknown key 'titel': did you mean title?"),
    ({"grid": {"model": "mnist-cnn"}, "claim": [{"clam": "x"}]}, "unknown key 'clam'"),
    ({"title": "x"}, "grid"),
    ({"grid": []}, "no [grid]"),
    ({"grid": {"batch": 8}}, "model"),
    ({"grid": {"model": "mnist-cnn", "batch": []}}, "batch is an empty list"),
    ({"grid": {"model": "mnist-cnn", "batch": "8"}}, "grid.batch: expected int | array, got str"),
    ({"grid": {"model": "mnist-cnn", "batch": 8.5}}, "grid.batch"),
    ({"grid": {"model": "mnist-cnn", "batch": True}}, "grid.batch"),
    ({"grid": {"model": "mnist-cnn", "batch": [1, "2"]}}, "grid.batch"),
    ({"grid": {"model": "mnist-cnn", "batch": 0}}, "batch must be from 1"),
    ({"grid": {"model": "mnist-cnn", "batch": -(2**70)}}, "batch"),
    ({"grid": {"model": "mnist-cnn", "batch": [8, 1, 8]}}, "batch has 8 twice"),
    ({"grid": {"model": ["mnist-cnn", "mnist-cnn"]}}, "model has 'mnist-cnn' twice"),
    ({"grid": {"model": "resnet5"}}, "no built-in model 'resnet5'"),
    ({"grid": {"model": ""}}, "model"),
    ({"grid": {"model": "mnist-cnn", "on": "h2000"}}, "did you mean h200"),
    ({"grid": {"model": "mnist-cnn", "on": ["v100", "v100-sxm2-16"]}}, "the same device"),
    ({"grid": {"model": "mnist-cnn", "on": "missing.toml"}}, "missing.toml"),
    ({"grid": {"model": "mnist-cnn", "dtype": "fp31"}}, "dtype must be one of fp32, bf16, fp16, fp64, got 'fp31'"),
    ({"grid": {"model": "mnist-cnn", "step": "trian"}}, "step must be one of infer, train, decode, got 'trian'"),
    ({"grid": {"model": "mnist-cnn", "autocast": "fp32"}}, "autocast"),
    ({"grid": {"model": "mnist-cnn", "loss": "mse"}}, 'loss goes with step = "train"'),
    ({"grid": {"model": "gpt2", "past": 8}}, 'past goes with step = "decode"'),
    ({"grid": {"model": "mnist-cnn", "gpus": 2}}, "name the device"),
    ({"grid": {"model": "mnist-cnn", "on": "a100", "parallel": "ddp"}}, "gpus above 1"),
    ({"grid": {"model": "mnist-cnn", "on": "a100", "gpus": 2, "parallel": "dpd"}}, "did you mean ddp"),
    ({"grid": {"model": "mnist-cnn", "set": {"channels": [32, 64]}}}, "grid.set"),
    ({"grid": {"model": "mnist-cnn"}, "measure": "yes"}, 'measure is "auto", true or false'),
    ({"grid": {"model": "mnist-cnn"}, "timeout_s": 0}, "timeout_s must be above 0"),
    ({"grid": {"model": "mnist-cnn"}, "timeout_s": float("nan")}, "timeout_s must be above 0"),
    ({"grid": {"model": "mnist-cnn"}, "repeat": 0}, "repeat must be at least 1"),
    ({"grid": {"model": "mnist-cnn"}, "layers": ["conv1", "conv1"]}, "layers has 'conv1' twice"),
    ({"grid": {"model": "mnist-cnn"}, "layers": [" "]}, "empty name"),
    ({"grid": {"model": "mnist-cnn", "batch": list(range(1, 501)), "seq": list(range(1, 501))}}, "250,000 cells"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_said_in_one_line(document, said):
    with pytest.raises(RooflightError) as caught:
        plan_of(document, "s.toml")
    text = str(caught.value)
    assert said in text
    assert text.startswith("s.toml: ")
    assert "\n" not in text


@pytest.mark.parametrize("claim", ["flops >", "flops(nosuchmodel) > 1", "nosuchthing > 1"])
def test_a_claim_that_cannot_be_judged_is_told_before_the_work(claim):
    found = plan({"model": "mnist-cnn", "batch": [1, 2]}, claim=[{"claim": "flops(batch=2) > 0"}, {"claim": claim}])
    with pytest.raises(BadInput, match=r"s\.toml: claim 2: "):
        check_claims(found, "s.toml")


@pytest.mark.parametrize(
    "content",
    [
        b"grid = [",
        b"\xff\xfe",
        b"[grid]\nmodel = 'a'\n[grid]\n",
        b"repeat = 0x" + b"f" * 17,
        b"repeat = " + b"9" * 5000,
        b"grid = " + b"[" * 5000 + b"]" * 5000,
    ],
)
def test_a_file_that_is_no_toml(tmp_path, content):
    path = tmp_path / "s.toml"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=r"s\.toml is no TOML file"):
        read_plan(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadFile, match="does not exist"):
        read_plan(tmp_path / "s.toml")
    with pytest.raises(BadFile, match="cannot read"):
        read_plan(tmp_path)


_NUMBERS = st.lists(st.integers(1, 2**24), min_size=1, max_size=4, unique=True)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=30)


def _one_or_many(values, most=3):
    return st.one_of(values, st.lists(values, min_size=1, max_size=most, unique=True))


GRIDS = st.fixed_dictionaries(
    {"model": _one_or_many(st.sampled_from(["mnist-cnn", "resnet18", "gpt2"]))},
    optional={
        "batch": _NUMBERS,
        "seq": _NUMBERS,
        "dtype": _one_or_many(st.sampled_from(["fp32", "bf16"])),
        "tf32": st.one_of(st.booleans(), st.just([True, False])),
        "on": _one_or_many(st.sampled_from(["h200", "a100", "here", "cpu"])),
        "set": st.lists(st.dictionaries(_TEXT.filter(bool), st.one_of(_TEXT, st.integers(0, 9), st.booleans()), max_size=2),
                        min_size=1, max_size=2, unique_by=repr),
    },
)  # fmt: skip
PLANS = st.fixed_dictionaries(
    {"grid": st.lists(GRIDS, min_size=1, max_size=3)},
    optional={
        "title": _TEXT,
        "about": _TEXT,
        "layers": st.lists(_TEXT.filter(str.strip), max_size=3, unique=True),
        "measure": st.sampled_from(["auto", True, False]),
        "timeout_s": st.floats(0.1, 1e6),
        "repeat": st.integers(1, 100),
    },
)


@settings(max_examples=200, deadline=None)
@given(PLANS)
def test_a_plan_written_as_toml_reads_back_as_itself(document):
    found = plan_of(document, "s.toml")
    again = plan_of(tomllib.loads(to_toml(found)), "s.toml")
    assert again == found
    assert [cell.id for cell in again.cells] == [cell.id for cell in found.cells]


_ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from([*AXES, "unknown"]), _ANYTHING, max_size=4),
       st.dictionaries(st.sampled_from(["title", "layers", "measure", "timeout_s", "repeat", "claim"]), _ANYTHING, max_size=3))  # fmt: skip
def test_anything_else_is_a_plan_or_one_line(grid, rest):
    said = None
    try:
        found = plan_of({"grid": {"model": "mnist-cnn", **grid}, **rest}, "s.toml")
    except RooflightError as error:
        said = str(error)
    if said is None:
        assert isinstance(found, StudyPlan)
        assert 0 < len(found.cells) <= MOST_CELLS
    else:
        assert said.startswith("s.toml: ")
        assert "\n" not in said


def test_a_plan_grows_by_the_cells_of_another():
    old = plan({"model": "mnist-cnn", "batch": [1, 2]}, title="old", claim=[{"claim": "flops(batch=2) > 0"}])
    new = plan({"model": "mnist-cnn", "batch": [2, 4]})
    both = merged(old, new, "folder")
    assert [cell.batch for cell in both.cells] == [1, 2, 4]
    assert (both.title, len(both.claim)) == ("old", 1)
    assert merged(both, new, "folder").cells == both.cells


def test_a_plan_that_holds_all_of_the_old_one_takes_its_place():
    old = plan({"model": "mnist-cnn", "batch": 1})
    new = plan({"model": "mnist-cnn", "batch": [1, 2]}, title="new")
    assert merged(old, new, "folder") == new


@pytest.mark.parametrize("rest", [{"layers": ["conv1"]}, {"repeat": 3}, {"measure": False}])
def test_plans_that_do_not_agree_are_not_put_together(rest):
    old = plan({"model": "mnist-cnn"})
    with pytest.raises(BadInput, match=f"folder holds a study with {next(iter(rest))} = "):
        merged(old, plan({"model": "mnist-cnn"}, **rest), "folder")


def test_ids_do_not_depend_on_what_is_usual():
    assert StudyCell(model="mnist-cnn").id == StudyCell(model="mnist-cnn", batch=1, step="infer", gpus=1).id
    assert StudyCell(model="mnist-cnn").id != StudyCell(model="mnist-cnn", batch=2).id


def test_the_plan_in_the_manual_is_one():
    text = (ROOT / "docs" / "studies.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    found = plan_of(tomllib.loads(example), "docs/studies.md")
    check_claims(found, "docs/studies.md")
    assert len(found.cells) == 2 * 3 * 2 * 2 * 3 + 3 * 2
    assert set(AXES) <= set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize("shape", ["3x", "x3", "3x-1", "0x3", "3 x 4", "3x224x224; rm", ""])
def test_an_input_has_a_shape(shape):
    with pytest.raises(BadInput, match="is no shape"):
        plan_of({"grid": {"model": "mine.py:Net", "input": shape}}, "plan.toml")


def test_the_input_of_a_model_without_one_is_given_to_every_verb():
    (cell,) = plan_of({"grid": {"model": "mine.py:Net", "input": "3x32x32"}}, "plan.toml").cells
    assert cell.input == "3x32x32"
    assert cell.command("estimate") == "rooflight estimate mine.py:Net --input 3x32x32"


def test_a_cell_of_a_large_grid_computes_its_coordinates_once():
    """Reports ask for a cell's coordinates dozens of times, and a page of 100,000 cells took a minute."""
    (cell, *_) = plan({"model": "mnist-cnn", "batch": list(range(1, 50_001))}).cells
    assert cell.coordinates is cell.coordinates and cell.alone is cell.alone
    again = msgspec.structs.replace(cell, batch=2)
    assert (again.coordinates["batch"], cell.coordinates["batch"]) == (2, 1)
    assert pickle.loads(pickle.dumps(cell)) == cell
