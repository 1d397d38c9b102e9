"""One description of a step: options, commands, headers, cells and Python's keywords say the same of it."""

from __future__ import annotations

import html
import inspect
import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rooflight
from rooflight.commands.main import cli
from rooflight.commands.step_options import step_of
from rooflight.errors import BadInput, RooflightError
from rooflight.estimation.symbolic import closed_form
from rooflight.files import load
from rooflight.ledger import Header, MathModes
from rooflight.reporting.report.api import make
from rooflight.reporting.writers import write
from rooflight.spec import (
    FIELDS,
    PredictKeywords,
    StepKeywords,
    StepSpec,
    Verb,
    as_options,
    execution,
    fields_for,
    in_python,
    is_live,
    parse,
    repeat,
    shell,
)
from rooflight.study.api import _asked as study_asked
from rooflight.study.api import study
from rooflight.study.cell import StudyCell
from rooflight.study.plan import read_plan

NET = """
from torch import nn
def make(width=32):
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 8, 1))
"""
RECORDING = "recorded:h200/mnist-cnn-train-tf32"
VERBS: tuple[Verb, ...] = ("estimate", "measure", "predict")


# --- specs of every kind ---

_WORDS = st.from_regex(r"[A-Za-z0-9_.,:/ '\"$-]{1,12}", fullmatch=True)
_NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


def _values(name: str) -> st.SearchStrategy[Any]:
    field = FIELDS[name]
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "number": st.integers(1, 4096),
        "flag": st.booleans(),
        "switch": st.sampled_from([None, True, False]),
        "modules": st.lists(st.from_regex(r"[a-z0-9.*]{1,8}", fullmatch=True), max_size=3, unique=True).map(tuple),
        "settings": st.dictionaries(_NAMES, _WORDS.map(str.strip), max_size=3),
        "shape": st.sampled_from([None, "3x224x224", "int:128"]),
        "text": st.sampled_from([None, "ddp", "fsdp", "2x1x4"]),
        "choice": st.sampled_from(field.choices),
    }
    found = kinds[field.kind or ""]
    return st.none() | found if field.default is None else found


@st.composite
def specs(draw: st.DrawFn, verb: Verb) -> StepSpec:
    values = {field.name: draw(_values(field.name)) for field in fields_for(verb)}
    values |= {field.name: field.default for field in fields_for(verb) if field.step not in (None, values["step"])}
    if values["foreach"] is not None:
        values["fused"] = False
    if values["past"] is not None:
        values |= {"seq": None, "input": None}
    if values.get("total_batch") is not None:
        values["batch"] = 1  # it follows
    if values["accumulate"] > 1:
        values |= {name: 1 for name in ("gpus", "nodes") if name in values}
    model = draw(st.sampled_from(["resnet50", "net.py:make", "my folder/it's.py:make", "hf:gpt2"]))
    return StepSpec(model=model, **values)


def parsed(command: str) -> StepSpec:
    """What click makes of it."""
    program, verb, *words = shlex.split(command)
    assert program == "rooflight" and verb in VERBS
    found = cli.get_command(click.Context(cli), verb)
    assert found is not None
    return step_of(found.make_context(verb, words).params, verb)


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_is_read_as_the_step_that_wrote_it(verb: Verb) -> None:
    @settings(max_examples=150, deadline=None)
    @given(specs(verb))
    def same(spec: StepSpec) -> None:
        command = spec.command(verb)
        assert parsed(command) == spec
        values, rest = parse(command)
        assert StepSpec(model=spec.model, **values) == spec
        assert rest == [spec.model]

    same()


def test_several_batches_are_one_command() -> None:
    spec = StepSpec(model="gpt2", batch=(1, 8, 64))
    assert spec.command("predict", on=["h200", "a100"]) == "rooflight predict gpt2 --batch 1,8,64 --on h200,a100"
    assert parsed(spec.command("predict")) == spec


def test_what_is_usual_is_left_away_and_paths_are_quoted() -> None:
    assert StepSpec(model="resnet50").command() == "rooflight estimate resnet50"
    assert StepSpec(model="a b.py:f", settings={"k": "1 2"}).command() == "rooflight estimate 'a b.py:f' --set 'k=1 2'"
    assert shell("report", "my run.json", output="a.html") == "rooflight report 'my run.json' -o a.html"
    # --pad and --nodes are of predictions
    assert StepSpec(model="gpt2", pad=True, nodes=8).command("measure") == "rooflight measure gpt2"


# --- headers ---


def header_with(spec: StepSpec, **more: Any) -> Header:
    """As the tracer writes it, where nothing is resolved by the model."""
    names = set(Header.__struct_fields__) & set(FIELDS)
    shared = {name: getattr(spec, name) for name in names}
    known = {"rooflight": "0", "torch": None, "target": "cuda", "math": MathModes(tf32_conv=True, tf32_matmul=False)}
    how = execution(compile=spec.compile, graphs=spec.graphs)
    return Header(**{**shared, **known, "execution": how, "sequence": spec.seq, **more})


@settings(max_examples=150, deadline=None)
@given(specs("predict"))
def test_a_header_holds_the_whole_step(spec: StepSpec) -> None:
    spec = msgspec.structs.replace(spec, total_batch=None)  # a header has the batch of a replica
    assert StepSpec.of(header_with(spec)) == spec
    stored = msgspec.json.decode(msgspec.json.encode(header_with(spec)), type=Header)
    assert StepSpec.of(stored) == spec


def test_every_field_is_in_the_header() -> None:
    assert set(FIELDS) - set(Header.__struct_fields__) == {
        "compile",
        "graphs",  # which are its `execution`
        "total_batch",  # which its batch follows from
    }


def test_an_older_header_is_completed_by_its_command() -> None:
    old = header_with(
        StepSpec(model="net.py:make", batch=4, step="train", loss="mse"),
        command="rooflight measure net.py:make --batch 4 --step train --loss mse --input 3x8x8 --set width=64 "
        "--no-foreach --level l2 -o run.json --force",
    )
    spec = StepSpec.of(old)
    assert (spec.input, spec.settings, spec.foreach) == ("3x8x8", {"width": "64"}, False)
    again = "rooflight measure net.py:make --batch 4 --step train --loss mse --no-foreach --input 3x8x8 --set width=64"
    assert repeat(old, measured=True) == f"{again} --level l2"
    other = msgspec.structs.replace(old, command="python train.py --input 3x8x8")
    assert StepSpec.of(other).input is None
    assert repeat(other, measured=True).endswith("--loss mse --on cuda")


def test_a_live_module_is_repeated_by_a_call() -> None:
    class Net(nn.Linear):
        pass

    ledger = rooflight.estimate(Net(4, 4), torch.zeros(2, 4), step="train", loss="mse", accumulate=2, fused=True)
    assert is_live(ledger.header)
    call = repeat(ledger.header, measured=False)
    assert call == (
        'rooflight.estimate(model, x, step="train", loss="mse", optimizer="adamw", fused=True, accumulate=2)'
    )
    again = eval(call, {"rooflight": rooflight, "model": Net(4, 4), "x": torch.zeros(2, 4)})
    assert StepSpec.of(again.header) == StepSpec.of(ledger.header)


class _Several(nn.Linear):
    def forward(self, x: torch.Tensor, more: Any = None, *, mask: Any = None) -> torch.Tensor:
        return super().forward(x if more is None else x + more) * mask


def test_the_call_of_a_live_module_has_its_inputs_and_all_that_was_asked() -> None:
    model, x = _Several(4, 4), torch.zeros(2, 4)
    ledger = rooflight.estimate(model, x, x, kwargs={"mask": x}, target="cuda:80", on="fake")
    call = repeat(ledger.header, measured=False)
    assert call == 'rooflight.estimate(model, x0, x1, kwargs={"mask": mask}, target="cuda:80", on="fake")'
    again = eval(call, {"rooflight": rooflight, "model": model, "x0": x, "x1": x, "mask": x})
    assert again == ledger
    measured = rooflight.measure(model, kwargs={"x": x, "mask": x}, repeat=2, counters="none", autocast="bf16")
    call = 'rooflight.measure(model, kwargs={"x": x, "mask": mask}, autocast="bf16", counters="none", repeat=2)'
    assert measured.header.command == repeat(measured.header, measured=True) == call


def test_the_command_of_a_measurement_has_all_that_was_asked_of_it() -> None:
    found = rooflight.measure("mnist-cnn", batch=2, repeat=2, counters="none").header
    assert repeat(found, measured=True) == "rooflight measure mnist-cnn --batch 2 --counters none --repeat 2 --on cpu"
    said = (
        "rooflight --quiet measure mnist-cnn --batch=2 --repeat=2 --trace t.json --output=run.json --by op --level l2"
    )
    asked = "rooflight measure mnist-cnn --batch 2 --repeat=2 --level l2 --on cpu"
    assert repeat(msgspec.structs.replace(found, command=said), measured=True) == asked
    several = StepSpec(model="gpt2").asked("measure", live=None, device="cuda:1", levels=("l2", "l1"), spread=True)
    assert several == "rooflight measure gpt2 --on cuda:1 --level l2 --level l1 --spread"


@pytest.mark.parametrize(
    ("given", "said"),
    [({}, ""), ({"batch": 1}, ", batch=1"), ({"batch": 3, "seq": 7}, ", batch=3, seq=7"), ({"seq": 5}, ", seq=5")],
)
def test_the_call_of_a_live_module_repeats_the_batch_and_length_that_were_given(given: StepKeywords, said: str) -> None:
    """Its input has 6 rows, which are 6 samples unless somebody says otherwise."""
    model, x = nn.Linear(4, 4), torch.zeros(6, 4)
    ledger = rooflight.estimate(model, x, **given)
    call = repeat(ledger.header, measured=False)
    assert call == f"rooflight.estimate(model, x{said})"
    again = eval(call, {"rooflight": rooflight, "model": model, "x": x})
    assert (again.header.batch, again.header.sequence) == (ledger.header.batch, ledger.header.sequence)
    assert StepSpec.given(model, given, verb="estimate").python_call() == call


def test_the_header_says_how_the_step_is_to_be_run() -> None:
    how = StepKeywords(batch=2, step="train", fused=True, channels_last=True, compile=True, graphs=True)
    plain = rooflight.estimate("mnist-cnn", batch=2, step="train")
    ledger = rooflight.estimate("mnist-cnn", **how)
    assert [op for op in ledger.ops if op.phase != "optimizer"] == [op for op in plain.ops if op.phase != "optimizer"]
    (one,) = [op for op in ledger.ops if op.phase == "optimizer" and op.kind == "compute"]
    # Momentum: 1,199,882 parameters, their gradients and buffers are read, parameters and buffers written.
    assert one.packet == "aten::_fused_sgd_"
    assert one.cost is not None and (one.cost.bytes_read, one.cost.bytes_written) == (12 * 1_199_882, 8 * 1_199_882)
    assert ledger.header.execution == "compile+graph" and ledger.header.fused and ledger.header.channels_last
    found = rooflight.predict("mnist-cnn", pad=True, advice=False, **how)
    assert found.header.pad and found.header.is_graph and found.header.is_compiled and found.header.fused
    many = rooflight.predict("mnist-cnn", batch=2, step="train", gpus=4, parallel="fsdp", advice=False)
    assert StepSpec.of(many.header).command("predict").endswith("--gpus 4 --parallel fsdp")


def test_a_step_that_is_compiled_and_captured_says_so_everywhere(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    words = ["estimate", "mnist-cnn", "--batch", "2", "--compile", "--graphs"]
    shown = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert "not in matmuls) · compiled · CUDA graph" in " ".join(shown.output.split())
    assert CliRunner().invoke(cli, [*words, "-o", str(out)], catch_exceptions=False).exit_code == 0
    ledger = load(out)
    assert ledger.header.execution == "compile+graph" and ledger.header.is_compiled and ledger.header.is_graph
    assert "compiled" in repr(ledger) and "CUDA graph" in repr(ledger)
    assert repeat(ledger.header, measured=False).endswith("--batch 2 --compile --graphs")
    assert ledger.ops == rooflight.estimate("mnist-cnn", batch=2).ops


# --- cells of studies ---

IDS = [  # computed by the code of 85513bf: names of files in studies of today
    ({"model": "resnet50"}, "resnet50-b1-infer-fp32-10167d87"),
    ({"model": "resnet50", "batch": 16, "step": "train"}, "resnet50-b16-train-fp32-08ad2bbc"),
    (
        {"model": "resnet50", "batch": 16, "step": "train", "dtype": "bf16", "on": "h200"},
        "resnet50-b16-train-bf16-h200-bb95f30c",
    ),
    (
        {
            "model": "gpt2",
            "batch": 4,
            "seq": 1024,
            "step": "train",
            "dtype": "bf16",
            "optimizer": "adamw",
            "on": "a100",
        },
        "gpt2-b4-s1024-train-bf16-a100-395901ad",
    ),
    (
        {"model": "gpt2", "step": "decode", "past": 512, "autocast": "fp16"},
        "gpt2-b1-decode-fp32-autocast-fp16-d172a0a3",
    ),
    (
        {
            "model": "net.py:make",
            "input": "3x64x64",
            "set": {"width": "64", "depth": "3"},
            "loss": "mse",
            "step": "train",
        },
        "net.py-make-b1-train-fp32-64-3-f558120f",
    ),
    ({"model": "mnist-cnn", "tf32": False, "on": "here"}, "mnist-cnn-b1-infer-fp32-here-6735c4ec"),
    ({"model": "mnist-cnn", "tf32": True, "batch": 64}, "mnist-cnn-b64-infer-fp32-a6528dbd"),
    (
        {"model": "resnet18", "on": "v100", "gpus": 8, "parallel": "fsdp", "step": "train", "batch": 32},
        "resnet18-b32-train-fp32-v100-x8-f65e5962",
    ),
    (
        {"model": "timm:vit_base_patch16_224", "dtype": "fp16", "batch": 256},
        "timm-vit-base-patch16-224-b256-infer-fp16-a2f9a60f",
    ),
    (
        {"model": "hf:gpt2", "seq": 128, "batch": 2, "on": "devices/mine.toml"},
        "hf-gpt2-b2-s128-infer-fp32-devices-mine.toml-622b1542",
    ),
    (
        {"model": "mnist-cnn", "set": {"channels": "32,64"}, "step": "train", "optimizer": "sgd", "loss": "sum"},
        "mnist-cnn-b1-train-fp32-32-64-a85284d8",
    ),
    (
        {
            "model": "llama3-8b",
            "step": "decode",
            "past": 4096,
            "dtype": "bf16",
            "on": "h200",
            "gpus": 2,
            "parallel": "tp",
        },
        "llama3-8b-b1-decode-bf16-h200-x2-a70ee099",
    ),
]


@pytest.mark.parametrize(("cell", "expected"), IDS, ids=[expected for _, expected in IDS])
def test_cells_keep_their_names(cell: dict[str, Any], expected: str) -> None:
    found = msgspec.convert(cell, type=StudyCell)
    assert found.id == expected
    assert msgspec.to_builtins(found) == cell


def test_new_axes_make_other_cells() -> None:
    plain = StudyCell(model="resnet50", step="train")
    others = [
        msgspec.structs.replace(plain, **{name: True}) for name in ("fused", "channels_last", "compile", "graphs")
    ]
    others += [msgspec.structs.replace(plain, accumulate=2), msgspec.structs.replace(plain, checkpoint=("blocks",))]
    assert len({cell.id for cell in [plain, *others]}) == len(others) + 1
    assert plain.coordinates == {"model": "resnet50", "batch": 1, "step": "train", "dtype": "fp32", "gpus": 1}
    assert others[0].coordinates["fused"] is True


# --- the language of the caller ---


def test_python_keywords_are_the_fields() -> None:
    keywords = {field.keyword for field in fields_for("predict")}
    assert set(get_type_hints(PredictKeywords)) == keywords
    assert set(get_type_hints(StepKeywords)) == {field.keyword for field in fields_for("estimate")}
    assert keywords <= set(inspect.signature(rooflight.predict).parameters)
    assert {field.key for field in fields_for("study")} <= set(inspect.signature(study).parameters)
    with pytest.raises(TypeError, match="takes no keyword 'batches'"):
        rooflight.estimate("resnet50", batches=3)  # type: ignore[call-arg]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"batch": 0}, "batch must be at least 1, got 0"),
    ({"batch": "x"}, "batch must be a whole number, got 'x'"),
    ({"batch": True}, "batch must be a whole number, got True"),
    ({"loss": "mse"}, 'loss goes with step="train": add it, or leave loss out'),
    ({"past": 4}, 'past goes with step="decode": add it, or leave past out'),
    ({"past": 4, "step": "decode", "seq": 5}, "decode makes one token after past=4: leave seq out"),
    ({"past": 4, "step": "decode", "input_shape": "int:5"}, "decode makes one token after past=4: leave input_shape"),
    ({"fused": True}, 'fused goes with step="train": add it, or leave fused out'),
    ({"accumulate": 1.5, "step": "train"}, "accumulate must be a whole number, got 1.5"),
    ({"dtype": "int3"}, "dtype must be one of fp32, bf16, fp16, fp64, got 'int3'"),
    ({"autocast": torch.float32}, "autocast must be one of bf16, fp16, got torch.float32"),
    ({"tf32": "yes"}, "tf32 is True or False, not 'yes'"),
    ({"input_shape": (0, 3)}, "input_shape '0x3' is no shape: write the sizes of one sample"),
    ({"foreach": True, "fused": True, "step": "train"}, "choose one of foreach and fused"),
    ({"step": "trian"}, "step must be one of infer, train, decode, got 'trian'"),
    ({"checkpoint": True, "step": "train"}, "checkpoint wants paths of modules"),
    ({"overrides": 3}, "overrides wants NAME=VALUE, as in overrides={'channels': '20,40'}, got 3"),
    ({"kwargs": 3}, "kwargs are what the model is called with by name"),
]


@pytest.mark.parametrize(("keywords", "said"), WRONG, ids=[said[:30] for _, said in WRONG])
@pytest.mark.parametrize("call", [rooflight.estimate, rooflight.measure, rooflight.predict], ids=VERBS)
def test_python_is_answered_in_its_own_words(call: Any, keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        call("mnist-cnn", **keywords)
    assert said in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"gpus": 2.5}, "gpus must be a whole number, got 2.5"),
        ({"on": 3}, "on must name devices"),
        ({"on": ["h200", None]}, "on must name devices"),
        ({"batch": [1, 2.5]}, "batch must be a whole number, got 2.5"),
    ],
)
def test_predict_is_as_strict(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        rooflight.predict("mnist-cnn", **keywords)


def test_a_live_module_takes_what_it_has() -> None:
    model, x = nn.Linear(4, 4), torch.zeros(2, 4)
    with pytest.raises(BadInput, match="dtype, overrides: only for a model by name"):
        rooflight.estimate(model, x, dtype="bf16", overrides={"a": "1"})
    with pytest.raises(BadInput, match="channels_last is for images: no input of Linear has four dimensions"):
        rooflight.estimate(model, x, channels_last=True)


# Some are of another type on purpose.
ODD: list[tuple[Callable[[], object], str]] = [
    (lambda: rooflight.predict("mnist-cnn", batch=[]), "batch has no size in it"),
    (lambda: rooflight.predict("mnist-cnn", torch.zeros(1)), "inputs go with a live module"),
    (lambda: rooflight.predict("mnist-cnn", ppp="x"), "ppp is a fraction of the peak, such as 0.5, not 'x'"),  # type: ignore[arg-type]
    (lambda: rooflight.predict("mnist-cnn", calibration=3), "calibration is a file of `rooflight calibrate`, not of type int"),  # type: ignore[arg-type]
    (lambda: rooflight.predict("mnist-cnn", allocator=3), "allocator is a text"),  # type: ignore[arg-type]
    (lambda: rooflight.predict(StepSpec(model="mnist-cnn", gpus=2.5)), "gpus must be a whole number, got 2.5"),  # type: ignore[arg-type]
    (lambda: rooflight.estimate("mnist-cnn", target=80), "unknown target 80"),  # type: ignore[arg-type]
    (lambda: rooflight.estimate("mnist-cnn", on="tpu"), "on names the tensors of a trace: meta, fake, cpu, cuda"),  # type: ignore[arg-type]
    (lambda: rooflight.estimate(nn.Linear(4, 4), torch.zeros(2, 5)), "change what it is called with"),
    (lambda: rooflight.measure("mnist-cnn", repeat=1.5), "repeat must be a whole number, got 1.5"),  # type: ignore[arg-type]
    (lambda: rooflight.measure("mnist-cnn", levels="l9"), "unknown level 'l9'"),  # type: ignore[arg-type]
    (lambda: rooflight.report(3), "a report is of a Ledger, a Study or where one is kept, not of int"),  # type: ignore[arg-type]
    (lambda: rooflight.report(RECORDING, "page.html", width="9"), 'width is that of LaTeX\'s tables: it goes with to="latex"'),
    (lambda: closed_form(nn.Linear(4, 4)), "a closed form needs the step at every batch"),
    (lambda: study("mnist-cnn", batch=[1]), 'a study needs a folder for what it finds: add folder="FOLDER"'),
    (lambda: study("mnist-cnn", loss="mse", folder="none"), 'loss goes with step="train"'),
    (lambda: study("mnist-cnn", step="train", fused=True, foreach=True, folder="none"), "choose one of foreach and"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), ODD, ids=[said[:30] for _, said in ODD])
def test_odd_values_are_refused_in_one_line(call: Callable[[], object], said: str) -> None:
    with pytest.raises(RooflightError, match=re.escape(said)):
        call()


def test_what_numpy_and_torch_give_is_taken() -> None:
    found = rooflight.predict("mnist-cnn", batch=np.array([1, 2]), on="h200", advice=False)  # type: ignore[arg-type]
    assert [row.batch for row in found] == [1, 2]
    ledger = rooflight.estimate("mnist-cnn", step="train", fused=np.bool_(True), batch=np.int64(2))  # type: ignore[arg-type]
    assert ledger.header.fused
    asked = {"batch": np.array([1, 2]), "dtype": [torch.bfloat16], "input_shape": (1, 28, 28),
             "overrides": {"channels": "8,16"}}  # fmt: skip
    plan, _ = study_asked("mnist-cnn", asked)
    first, _ = plan.cells
    assert first.at([1]) == StepSpec(model="mnist-cnn", batch=(1,), dtype="bf16", input="1x28x28",
                                     settings={"channels": "8,16"})  # fmt: skip
    with pytest.raises(TypeError, match="measure\\(\\) takes no keyword 'on'; did you mean device\\?"):
        rooflight.measure("mnist-cnn", on="cpu")  # type: ignore[call-arg]


def test_a_grids_errors_are_in_the_words_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    for line, said in (('input = "3x"', "input '3x' is no shape"), ("fused = true", 'fused goes with step = "train"')):
        file.write_text(f'[grid]\nmodel = "mnist-cnn"\n{line}\n')
        with pytest.raises(BadInput, match=said):
            read_plan(file)


def test_torch_names_of_types_are_taken() -> None:
    for dtype in (torch.float16, "float16", "torch.float16", "half", "fp16"):
        assert rooflight.estimate("mnist-cnn", dtype=dtype).header.dtype == "fp16"
    assert rooflight.estimate("mnist-cnn", autocast=torch.bfloat16).header.autocast == "bf16"
    assert rooflight.predict("mnist-cnn", autocast=torch.bfloat16, advice=False).header.autocast == "bf16"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "0"], "--batch must be at least 1, got 0"),
        (["--loss", "mse"], "--loss goes with --step train: add it, or leave --loss out"),
        (["--fused"], "--fused goes with --step train"),
        (["--input", "3x"], "--input '3x' is no shape"),
        (["--channels-last", "--set", "x"], "--set wants NAME=VALUE"),
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_the_command_line_is_answered_in_options(verb: str, words: list[str], said: str) -> None:
    found = CliRunner().invoke(cli, [verb, "mnist-cnn", *words])
    assert isinstance(found.exception, RooflightError)
    assert said in found.exception.on_command_line


def test_messages_in_two_languages() -> None:
    text = "--micro-batches goes with --gpus=2; --no-foreach, --input=int:128. `rooflight measure x --loss mse` stays"
    assert in_python(text) == (
        'micro_batches goes with gpus=2; foreach=False, input_shape="int:128". `rooflight measure x --loss mse` stays'
    )
    assert as_options(text) == text.replace("=", " ")
    assert in_python("--device=cpu, --folder=F, --force") == 'device="cpu", folder="F", force=True'
    assert as_options("--device=cpu, --folder=F, --force") == "--on cpu, -o F, --force"
    assert (
        in_python("ncu --target-processes all --cap-add=SYS_ADMIN") == "ncu --target-processes all --cap-add=SYS_ADMIN"
    )


# --- what measuring does with them ---


def test_measure_does_what_the_options_say() -> None:
    ledger = rooflight.measure(
        "mnist-cnn", batch=2, step="train", device="cpu", repeat=1, fused=True, channels_last=True
    )
    assert any(op.packet.startswith("aten::_fused_sgd") for op in ledger.ops if op.phase == "optimizer")
    first = next(op for op in ledger.ops if op.packet == "aten::convolution" and op.module == "conv2")
    assert first.tensor("input").channels_last and first.tensor("weight").channels_last
    assert ledger.header.fused and ledger.header.channels_last
    with pytest.raises(BadInput, match="choose one of compile and graphs"):
        rooflight.measure("mnist-cnn", device="cpu", compile=True, graphs=True)


# --- every command that a report prints ---

STEPS: dict[str, list[str]] = {
    "own model": "net.py:make --input 3x32x32 --batch 4 --step train --loss mse --autocast bf16 --optimizer adamw "
                 "--set width=64".split(),
    "gpt2": "gpt2 --set n_layer=2 --batch 2 --seq 32 --step train --accumulate 2 --checkpoint transformer.h.*".split(),
    "llama": "llama3-8b --set num_hidden_layers=2 --step decode --past 64 --dtype bf16 --batch 2".split(),
    "resnet50": "resnet50 --batch 2 --dtype bf16 --step train --fused --channels-last".split(),
    "zoo": "torchvision:resnet18 --batch 2 --input 3x64x64 --no-tf32 --graphs".split(),
}  # fmt: skip


def invoked(words: list[str]) -> None:
    found = CliRunner().invoke(cli, words, obj=None)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise AssertionError(shlex.join(words)) from found.exception
    assert found.exit_code == 0, (shlex.join(words), found.output)


def commands_on(page: str) -> list[str]:
    found = re.findall(r"rooflight (?:estimate|predict|report|compare|study|measure) [^`\n]*", html.unescape(page))
    return [line.strip() for line in dict.fromkeys(found) if not re.search(r"\b(PATH|FILE|FOLDER|MODEL)\b", line)]


@pytest.mark.parametrize("name", [*STEPS, "recording"])
def test_every_command_of_a_report_runs_and_loses_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "zoo" and find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    source = RECORDING
    if name != "recording":
        source = "my step.json.gz"
        invoked(["estimate", *STEPS[name], "-o", source])
    header = load(source).header
    first = StepSpec.of(header)
    report = make(source, on="h200")
    pages = [write(report, "md").decode(), re.sub(r"(?s)<script.*?</script>", "", write(report, "html").decode())]
    commands = commands_on(pages[0])
    assert commands == commands_on(pages[1])
    assert any(repeat(header, measured=name == "recording") == line for line in commands)
    for line in commands:
        words = shlex.split(line)[1:]
        if words[0] == "measure":
            assert parsed(line.partition(" --per-kernel")[0]) == first
            continue
        if words[0] == "estimate":
            invoked([*words, "-o", "again.json"])
            assert StepSpec.of(load("again.json").header) == first
            continue
        invoked([*words, *(["--json"] if words[0] in ("predict", "compare") else [])])
        if words[0] == "predict":
            asked = parsed(shlex.join(["rooflight", *words[: words.index("--on")]]))
            changed = {field: getattr(first, field) for field in ("batch", "gpus", "nodes")}
            assert msgspec.structs.replace(asked, **changed) == first
    verbs = [line.split()[1] for line in commands]
    assert "report" in verbs
    if name == "own model":  # which a report does not build by itself: for other batches, and for many GPUs
        assert verbs.count("predict") == 2


def test_a_report_prints_no_command_that_would_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own many GPUs do not go with what the step accumulates."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    ledger = rooflight.estimate("net.py:make", input_shape=(3, 8, 8), step="train", loss="mse", accumulate=2)
    page = write(make(ledger, on="h200"), "md").decode()
    assert not any("--gpus" in line for line in commands_on(page))
    assert "--accumulate with several GPUs is not modelled" in page
