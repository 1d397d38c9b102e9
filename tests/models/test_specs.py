"""Models from torchvision, timm, Hugging Face and users' own code; and the line that answers each mistake."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rooflight
from rooflight.errors import RooflightError, UnknownModel
from rooflight.ledger import total
from rooflight.models import Workload, build, huggingface, optional_packages, parse_input
from tests.fixtures.notes import note_texts

USER_CODE = """
import torch
from torch import nn

def net(width: int = 8, batch: int = 1, seq: int = 4):
    return nn.Linear(width, 3), torch.randn(batch, seq, width)

def plain(width: int = 8):
    return nn.Sequential(nn.Linear(width, 3))

class Net(nn.Module):
    def __init__(self, rows: int = 5):
        super().__init__()
        self.table = nn.Embedding(rows, 4)

    def forward(self, x):
        return self.table(x)

instance = nn.Linear(3, 3)
value = 7

def reads_values():
    layer = nn.Linear(4, 4)
    layer.norm = layer.weight.sum().item()
    return layer, torch.ones(2, 4)

def half_loaded():
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.zeros(4, 4, device="cpu"))
    return layer, torch.ones(2, 4)

def keywords():
    return Net(), (), {"x": torch.zeros(2, 3, dtype=torch.long)}

def keywords_only():
    return Net(), {"x": torch.zeros(2, 3, dtype=torch.long)}

def halved():
    layer = nn.Linear(4, 4).bfloat16()
    layer.register_buffer("packed", torch.zeros(4, 4).to(torch.float8_e4m3fn))
    return layer, torch.ones(2, 4, dtype=torch.bfloat16)

def fixed():
    return nn.Linear(4, 4), torch.ones(6, 4)

def fails():
    raise KeyError("lost")

def five():
    return 5

def bad_keywords():
    return nn.Linear(4, 4), (), 3

def needs(inputs: int, outputs: int):
    return nn.Linear(inputs, outputs)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's files, made the current one."""
    (tmp_path / "mine.py").write_text(USER_CODE)
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "boom.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "script.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "dependent.py").write_text("import nosuchthing\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def devices(workload: Workload) -> set[str]:
    return {parameter.device.type for parameter in workload.model.parameters()}


def output(workload: Workload) -> Any:
    with torch.no_grad():
        return workload.model(*workload.args, **workload.kwargs)


def failure(spec: str, **options: Any) -> str:
    """The one line that a bad request is answered by, after the name of its class."""
    with pytest.raises(RooflightError) as caught:
        build(spec, **options)
    assert "\n" not in str(caught.value)
    return f"{type(caught.value).__name__}: {caught.value.on_command_line}"


@pytest.mark.parametrize("spec", ["", " ", ":", "a:", ":b", "a:b:c", "torchvision:", "hf:"])
def test_specs_that_name_nothing(spec: str) -> None:
    assert failure(spec).startswith(f"UnknownModel: {spec!r} names no model; give a built-in name, torchvision:NAME")


def test_factory_takes_batch_and_sequence(folder: Path) -> None:
    workload = build("mine:net", batch=3, seq=9, overrides={"width": "5"})
    assert tuple(workload.args[0].shape) == (3, 9, 5)
    assert (workload.batch, workload.sequence) == (3, 9)
    assert devices(workload) == {"meta"}
    assert workload.args[0].is_meta
    assert (workload.task, workload.loss) == ("features", "mse")
    assert tuple(output(workload).shape) == (3, 9, 3)


@pytest.mark.parametrize("form", ["mine.py:net", "./mine.py:net", "{folder}/mine.py:net"])
def test_factory_in_a_file(folder: Path, form: str) -> None:
    workload = build(form.format(folder=folder), dtype="bf16", step="train")
    assert workload.model.training
    assert workload.model.weight.dtype == workload.args[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_model_made_in_16_bits_stays_so(folder: Path, dtype: str) -> None:
    workload = build("mine:halved", dtype=dtype)
    assert workload.dtype == "bf16" and {note.code for note in workload.notes} == {"own-dtype"}
    assert workload.model.weight.dtype == workload.args[0].dtype == torch.bfloat16
    assert workload.model.packed.dtype == torch.float8_e4m3fn
    # --dtype converts it, and one input of --input is of its type.
    assert build("mine:halved", dtype="fp16").args[0].dtype == torch.float16
    assert build("mine:halved", dtype=dtype, input_shape="4").args[0].dtype == torch.bfloat16


def test_the_current_folder_is_searched_before_those_of_models_loaded_earlier(folder: Path) -> None:
    for name, width in (("first", 4), ("second", 6), ("first", 4)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "layers.py").write_text(
            f"import torch\n\ndef net():\n    return torch.nn.Linear({width}, 1)\n"
        )
        (folder / name / "net.py").write_text("from layers import net\n")
        sys.modules.pop("layers", None)
        assert build(f"{name}/net.py:net", input_shape=(width,)).model.in_features == width


def test_inputs_from_the_command_line(folder: Path) -> None:
    image = build("mine:plain", input_shape=(2, 8), batch=5)
    assert tuple(image.args[0].shape) == (5, 2, 8)
    tokens = build("mine:Net", input_shape=parse_input("int:7"), batch=2, overrides={"rows": "11"})
    assert (tuple(tokens.args[0].shape), tokens.args[0].dtype) == ((2, 7), torch.int64)
    assert (tokens.sequence, tokens.task) == (7, "language-model")
    assert tokens.model.table.num_embeddings == 11  # type: ignore[union-attr]


def test_live_modules_stay_as_they_are(folder: Path) -> None:
    workload = build("mine:instance", input_shape=(3,), batch=4, device="cpu")
    assert devices(workload) == {"cpu"}
    assert not workload.args[0].is_meta
    assert tuple(output(workload).shape) == (4, 3)


def test_a_trace_of_a_live_module_needs_no_memory_for_its_input(folder: Path) -> None:
    workload = build("mine:instance", input_shape=(3,), batch=10**9)
    assert devices(workload) == {"cpu"}
    assert workload.args[0].is_meta
    (found,) = rooflight.predict("mine:instance", input_shape=(3,), on="h200", advice=False, batch=2**24)
    assert found.memory is not None and found.memory.peak.split["input"] > 2**24


@pytest.mark.parametrize("name", ["reads_values", "half_loaded"])
def test_what_cannot_be_built_without_data_is_built_on_the_cpu(folder: Path, name: str) -> None:
    workload = build(f"mine:{name}")
    assert devices(workload) == {"cpu"}
    assert workload.batch == 2
    assert tuple(output(workload).shape) == (2, 4)


@pytest.mark.parametrize("name", ["keywords", "keywords_only"])
def test_keyword_inputs(folder: Path, name: str) -> None:
    workload = build(f"mine:{name}")
    assert workload.args == ()
    assert workload.kwargs["x"].is_meta
    assert (workload.batch, workload.sequence) == (2, 3)


def test_batch_of_a_factory_with_its_own_inputs(folder: Path) -> None:
    assert build("mine:fixed").batch == 6
    assert "makes its own inputs; give the factory a `batch` parameter" in failure("mine:fixed", batch=4)


FACTORY_ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("mine:net", {"overrides": {"width": "x"}}, "BadInput: --set width=x: mine:net wants a whole number for width"),
    ("mine:net", {"overrides": {"widht": "3"}}, "BadInput: mine:net has no argument 'widht'; did you mean width?"),
    ("mine:plain", {}, "BadInput: mine:plain brings no inputs; add --input 3x224x224 (or int:128 for tokens)"),
    ("mine:instance", {"overrides": {"a": "1"}}, "BadInput: mine:instance is a finished module: --set needs a factory"),
    ("mine:instance", {"seq": 8}, "BadInput: mine:instance takes no --seq: give the length in --input"),
    ("mine:fixed", {"seq": 8}, "BadInput: mine:fixed takes no --seq: give the length in --input"),
    ("mine:fails", {}, "BadInput: mine:fails failed: KeyError at mine.py:"),
    ("mine:five", {}, "BadInput: mine:five returned an object of type int; return an nn.Module, (module, inputs)"),
    ("mine:bad_keywords", {}, "BadInput: mine:bad_keywords returned keyword inputs of type int"),
    ("mine:needs", {}, "BadInput: mine:needs needs inputs, outputs; add --set inputs=VALUE"),
    ("mine:value", {}, "UnknownModel: mine:value is of type int; give a factory"),
    ("mine:nte", {}, "UnknownModel: mine:nte: the module has no 'nte'; did you mean net?"),
    ("mine:net", {"step": "decode"}, "BadInput: mine:net cannot decode"),
    ("nofile.py:net", {}, "UnknownModel: no file nofile.py"),
    ("bad:f", {}, "UnknownModel: SyntaxError at bad.py:1: "),
    ("bad.py:f", {}, "UnknownModel: SyntaxError at bad.py:1: "),
    ("boom:f", {}, "UnknownModel: ZeroDivisionError at boom.py:2: division by zero"),
    ("script:f", {}, "UnknownModel: script ends the program while it is imported"),
    ("builtins:dict", {}, "BadInput: builtins:dict returned an object of type dict"),
    ("dependent:f", {}, "UnknownModel: ModuleNotFoundError at dependent.py:1: No module named 'nosuchthing'"),
    ("nosuch.module:thing", {}, "UnknownModel: no module 'nosuch' here or among the installed packages"),
]


@pytest.mark.parametrize(("spec", "options", "line"), FACTORY_ERRORS)
def test_mistakes_in_users_code(folder: Path, spec: str, options: dict[str, Any], line: str) -> None:
    assert failure(spec, **options).startswith(line)


@pytest.mark.parametrize(
    ("spec", "parameters", "shape"),
    [
        ("torchvision:resnet18", 11_689_512, (2, 3, 224, 224)),
        ("torchvision:inception_v3", 27_161_264, (2, 3, 299, 299)),
        ("torchvision:regnet_y_400mf", 4_344_144, (2, 3, 224, 224)),  # computes its widths with tensors
        ("torchvision:vit_h_14", 632_045_800, (2, 3, 224, 224)),
        ("torchvision:quantized_resnet18", 11_689_512, (2, 3, 224, 224)),
        ("torchvision:raft_small", 990_162, (2, 3, 520, 960)),
        ("torchvision:fcn_resnet50", 32_957_013, (2, 3, 224, 224)),
        ("torchvision:r3d_18", 33_371_472, (2, 3, 16, 112, 112)),
        ("timm:resnet18", 11_689_512, (2, 3, 224, 224)),
        ("timm:vit_tiny_patch16_224", 5_717_416, (2, 3, 224, 224)),
    ],
)
def test_image_networks(spec: str, parameters: int, shape: tuple[int, ...]) -> None:
    workload = build(spec, batch=2)
    assert sum(parameter.numel() for parameter in workload.model.parameters()) == parameters
    assert tuple(workload.args[0].shape) == shape
    assert devices(workload) == {"meta"}
    assert workload.optimizer == ("adamw" if "vit" in spec else "momentum")


@pytest.mark.parametrize("source", ["torchvision", "timm"])
def test_image_networks_with_overrides(source: str) -> None:
    workload = build(f"{source}:resnet18", overrides={"num_classes": "10"})
    assert workload.model.fc.out_features == 10  # type: ignore[union-attr]
    line = failure(f"{source}:resnet18", overrides={"num_clases": "10"})
    assert line.startswith(f"BadInput: {source}:resnet18 has no argument 'num_clases'; did you mean num_classes")


IMAGE_ERRORS = [
    ("torchvision:resnet5O", {}, "UnknownModel: torchvision has no model 'resnet5O'; did you mean resnet50"),
    ("timm:resnet5O", {}, "UnknownModel: timm has no model 'resnet5O'; did you mean resnet50"),
    ("torchvision:resnet18", {"step": "decode"}, "BadInput: torchvision:resnet18 is an image network"),
    ("timm:resnet18", {"seq": 3}, "BadInput: timm:resnet18 takes images, not sequences"),
    (
        "torchvision:resnet18",
        {"overrides": {"block": "x"}},
        "BadInput: --set block=x: torchvision:resnet18 wants an obj",
    ),
]


@pytest.mark.parametrize(("spec", "options", "line"), IMAGE_ERRORS)
def test_mistakes_with_image_networks(spec: str, options: dict[str, Any], line: str) -> None:
    assert failure(spec, **options).startswith(line)


def test_missing_and_broken_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownModel, match=r"^nosuchzoo is not installed: pip install nosuchzoo$"):
        optional_packages.imported("nosuchzoo")
    (tmp_path / "brokenzoo.py").write_text("raise RuntimeError('operator brokenzoo::nms\\ndoes not exist')")
    (tmp_path / "needyzoo.py").write_text("import nosuchthing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UnknownModel, match=r"^brokenzoo cannot be imported beside torch .*nms does not exist; install the release"
    ):
        optional_packages.imported("brokenzoo")
    with pytest.raises(UnknownModel, match=r"^needyzoo needs nosuchthing, which is missing: pip install nosuchthing$"):
        optional_packages.imported("needyzoo")


SMALL = {"num_hidden_layers": "2"}


@pytest.mark.parametrize(
    ("name", "cls", "task"),
    [
        ("gpt2", "GPT2LMHeadModel", "language-model"),
        ("llama", "LlamaForCausalLM", "language-model"),
        ("bert", "BertForMaskedLM", "masked-lm"),
        ("vit", "ViTForImageClassification", "classification"),
        ("BertModel", "BertModel", "features"),
    ],
)
def test_hugging_face_architectures(name: str, cls: str, task: str) -> None:
    workload = build(f"hf:{name}", batch=2, overrides=SMALL)
    assert (type(workload.model).__name__, workload.task) == (cls, task)
    assert devices(workload) == {"meta"}
    first = next(iter(output(workload).values()))
    assert first.shape[0] == 2
    assert workload.sequence == (None if name == "vit" else 128)


def test_hugging_face_encoder_decoder() -> None:
    workload = build("hf:t5", seq=16, overrides={"num_layers": "1"})
    assert set(workload.kwargs) == {"input_ids", "decoder_input_ids"}
    assert tuple(output(workload).logits.shape) == (1, 16, 32128)


def test_hugging_face_decode() -> None:
    workload = build("hf:llama", batch=2, past=50, step="decode", dtype="bf16", overrides=SMALL)
    cache = workload.kwargs["past_key_values"]
    assert (cache.get_seq_length(), workload.sequence, workload.past) == (50, 1, 50)
    assert tuple(cache.layers[1].keys.shape) == (2, 32, 50, 128)
    assert tuple(output(workload).logits.shape) == (2, 1, 32000)


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "use_cache": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_hugging_face_folder(llama_folder: Path) -> None:
    workload = build(f"hf:{llama_folder}", seq=8)
    assert isinstance(workload.model, nn.Module)
    assert tuple(output(workload).logits.shape) == (1, 8, 100)
    # The head size follows the hidden size: 128 / 4.
    wider = build(f"hf:{llama_folder}", seq=8, overrides={"hidden_size": "128"})
    assert tuple(dict(wider.model.named_parameters())["model.layers.0.self_attn.k_proj.weight"].shape) == (64, 128)


def test_hugging_face_folder_mistakes(llama_folder: Path) -> None:
    config = llama_folder / "config.json"
    spec = f"hf:{llama_folder}"
    config.write_text("{bad")
    assert failure(spec).startswith(f"UnknownModel: {spec} cannot be read: ")
    config.write_text('{"model_type": "lama"}')
    assert "has no model_type known here; did you mean llama" in failure(spec)
    config.write_text("{}")
    assert failure(spec).endswith("has an empty config.json: give a folder that save_pretrained wrote")
    config.unlink()
    assert failure(spec).endswith("the folder has no config.json: give one that save_pretrained wrote")


def test_a_fault_of_a_large_configuration_is_told_without_its_weights(llama_folder: Path) -> None:
    config = llama_folder / "config.json"
    fields = {**json.loads(config.read_text()), "hidden_size": 1 << 20, "vocab_size": 1 << 30, "hidden_act": "none"}
    config.write_text(json.dumps(fields))
    assert failure(f"hf:{llama_folder}").startswith(f"BadInput: hf:{llama_folder} cannot be built so: 'none'")


def test_a_default_that_cannot_be_built_is_completed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = build("hf:esm")
    assert any("with vocab_size, mask_token_id, pad_token_id of ESM-2" in note for note in note_texts(workload.notes))
    monkeypatch.setattr(huggingface, "COMPLETED", {})
    line = failure("hf:esm")
    assert line.startswith("BadInput: hf:esm cannot be built so: ")
    assert "give a folder with the config.json of a released model, as in hf:FOLDER, or " in line


def test_sizes_of_images_are_read_without_data() -> None:
    small = {"text_config.num_hidden_layers": 1, "vision_config.num_hidden_layers": 1}
    flops = {
        real: total(rooflight.estimate("hf:siglip2", batch=2, overrides=small, target="cpu", real_data=real).ops).flops
        for real in (False, True)
    }
    assert flops[False] == flops[True] > 0


HF_ERRORS = [
    (
        "hf:gpt22",
        {},
        "UnknownModel: hf:gpt22 is no architecture known here and is not in the local cache: add --download",
    ),
    ("hf:nobody/nothing", {}, "UnknownModel: hf:nobody/nothing is no architecture known here"),
    ("hf:gpt2", {"overrides": {"n_layers": "2"}}, "BadInput: hf:gpt2 has no argument 'n_layers'; did you mean n_layer"),
    ("hf:gpt2", {"overrides": {"n_layer": "two"}}, "BadInput: --set n_layer=two: hf:gpt2 wants a whole number"),
    ("hf:gpt2", {"overrides": {"n_head": "7"}}, "BadInput: hf:gpt2 cannot be built so: "),
    ("hf:gpt2", {"seq": 5000}, "BadInput: hf:gpt2 has 1024 positions, this step needs 5000"),
    ("hf:gpt2", {"input_shape": (3, 4)}, "BadInput: --input 3x4: hf:gpt2 takes tokens"),
    (
        "hf:gpt2",
        {"seq": 8, "input_shape": parse_input("int:5")},
        "BadInput: --seq 8 and --input int:5 name two lengths",
    ),
    ("hf:bert", {"step": "decode"}, "BadInput: hf:bert cannot decode: it is no causal language model"),
    ("hf:decision_transformer", {}, "BadInput: hf:decision_transformer takes states; give its shape"),
]


@pytest.mark.parametrize(("spec", "options", "line"), HF_ERRORS)
def test_mistakes_with_hugging_face(spec: str, options: dict[str, Any], line: str) -> None:
    import huggingface_hub.constants

    before = os.environ.get("HF_HUB_OFFLINE"), huggingface_hub.constants.HF_HUB_OFFLINE
    assert failure(spec, **options).startswith(line)
    assert (os.environ.get("HF_HUB_OFFLINE"), huggingface_hub.constants.HF_HUB_OFFLINE) == before


def test_nothing_is_downloaded_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    calls = []
    monkeypatch.setattr(socket.socket, "connect", lambda *args: calls.append(args))
    failure("hf:nobody/nothing")
    build("torchvision:fcn_resnet50")
    build("timm:resnet18")
    assert calls == []
