"""The built-in models: sizes, inputs, overrides, decoding, and the line that explains a shape that does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import rooflight
from rooflight.errors import BadInput, UnknownModel
from rooflight.models import build, builtin_names, describe, parse_input, registry
from rooflight.models.architectures.mixtral import even_shares
from rooflight.models.shapes import explain_shape_errors
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import DATA

REFERENCE = json.loads((DATA / "models.json").read_text())["models"]

PARAMETERS = {
    "mnist-cnn": 1_199_882,
    "mnist-cnn-5x5": 21_840,
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "googlenet": 6_624_904,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "wide-resnet50-2": 68_883_240,
    "vit-b-16": 86_567_656,
    "transformer": 44_140_544,
    # 2 x 33,278 x 200 embedding and decoder + 33,278 bias; a layer 4 x (200^2 + 200) attention + 2 x (200^2 + 200)
    # feed-forward + 2 x 400 norms = 242,000; the last norm 400.
    "word-lm": 2 * 33_278 * 200 + 33_278 + 2 * 242_000 + 400,
    "distilbert": 66_362_880,
    "distilbert-mlm": 66_985_530,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_builtin_is_counted_here() -> None:
    assert sorted(PARAMETERS) == sorted(builtin_names())


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_parameters_and_nothing_allocated(name: str) -> None:
    workload = build(name, batch=2)
    assert parameters(workload.model) == PARAMETERS[name]
    tensors = [*workload.model.parameters(), *workload.model.buffers(), *tree_leaves((workload.args, workload.kwargs))]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert not workload.model.training
    assert workload.name == name
    assert workload.batch == 2


MACS = {
    "mnist_cnn": ("mnist-cnn", None),
    "resnet18": ("resnet18", None),
    "resnet50": ("resnet50", None),
    "vgg11": ("vgg11", None),
    "vgg13": ("vgg13", None),
    "vgg16": ("vgg16", None),
    "vgg19": ("vgg19", None),
    "gpt2_s128": ("gpt2", 128),
    "gpt2_s1024": ("gpt2", 1024),
    "distilbert_s128": ("distilbert", 128),
    "nn_transformer_128_128": ("transformer", 128),
    "llama3_70b_s2048": ("llama3-70b", 2048),
}


@pytest.mark.parametrize("reference", list(MACS))
def test_reference_counts(reference: str) -> None:
    name, seq = MACS[reference]
    workload = build(name, seq=seq)
    assert parameters(workload.model) == REFERENCE[reference]["params"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        workload.model(*workload.args, **workload.kwargs)
    assert counter.get_total_flops() == 2 * REFERENCE[reference]["macs"]


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_default_inputs(name: str) -> None:
    entry = registry.BUILTINS[name]
    workload = build(name, batch=3)
    x = workload.args[0]
    if entry.inputs in ("image", "features"):
        assert (tuple(x.shape), x.dtype) == ((3, *entry.shape), torch.float32)
    elif entry.inputs == "tokens":
        assert (tuple(x.shape), x.dtype) == ((3, entry.shape[0]), torch.int64)
    else:
        assert (tuple(x.shape), x.dtype) == ((entry.shape[0], 3), torch.int64)
    assert workload.sequence == (None if entry.inputs == "image" else entry.shape[0])


def test_defaults_of_loss_and_optimizer() -> None:
    assert [
        (w.task, w.loss, w.optimizer) for w in map(build, ("resnet18", "gpt2", "distilbert", "distilbert-mlm"))
    ] == [
        ("classification", "cross-entropy", "momentum"),
        ("language-model", "cross-entropy", "adamw"),
        ("features", "mse", "adamw"),
        ("masked-lm", "cross-entropy", "adamw"),
    ]


def test_training_step_and_dtype() -> None:
    workload = build("gpt2", dtype="bf16", step="train", seq=8, overrides={"n_layer": "1"})
    assert workload.model.training
    assert {parameter.dtype for parameter in workload.model.parameters()} == {torch.bfloat16}
    # The head still shares the embedding's weight after the conversion.
    assert workload.model.lm_head.weight is workload.model.transformer.wte.weight  # type: ignore[union-attr]
    assert build("resnet18", dtype="fp16").args[0].dtype == torch.float16


@pytest.mark.parametrize(("name", "heads", "size", "layers"), [("gpt2", 12, 64, 12), ("llama3-70b", 8, 128, 80)])
def test_decode(name: str, heads: int, size: int, layers: int) -> None:
    workload = build(name, batch=4, past=100, step="decode", dtype="bf16")
    assert (workload.sequence, workload.past, tuple(workload.args[0].shape)) == (1, 100, (4, 1))
    cache = workload.kwargs["cache"]
    assert len(cache) == layers
    assert {(tuple(t.shape), t.dtype, t.device.type) for pair in cache for t in pair} == {
        ((4, heads, 100, size), torch.bfloat16, "meta")
    }
    with torch.no_grad():
        assert workload.model(*workload.args, **workload.kwargs).shape[:2] == (4, 1)


def test_default_context_of_a_decoding_step() -> None:
    assert build("llama3-8b", step="decode").past == 2048
    assert build("llama3-8b", step="decode", seq=512).past == 512
    # The table of gpt2 ends at position 1023, which the new token takes.
    assert build("gpt2", step="decode").past == 1023


@pytest.mark.parametrize(
    ("name", "positions"), [("gpt2", 1024), ("llama3-8b", 8192), ("mixtral-8x7b", 32768), ("llama3.1-8b", 131072)]
)
def test_no_cache_is_longer_than_the_positions_of_the_model(name: str, positions: int) -> None:
    assert build(name, step="decode", past=positions - 1).past == positions - 1
    with pytest.raises(BadInput, match=f"{name} has {positions} positions") as error:
        build(name, step="decode", past=200_000)
    assert error.value.code == "sequence-too-long"


def test_decoding_gives_the_same_logits_as_the_whole_sequence() -> None:
    overrides = {"n_layer": "2", "n_embd": "32", "n_head": "4", "vocab_size": "50"}
    whole = build("gpt2", seq=6, overrides=overrides, device="cpu")
    cache: list[tuple[Tensor, ...]] = []

    def keep(_module: nn.Module, _inputs: Any, out: Tensor) -> None:
        if out.shape[1] == 6:  # keys and values of all but the last token, [1, heads, 5, head size]
            cache.append(tuple(part.view(1, 6, 4, 8).transpose(1, 2)[:, :, :5] for part in out.split(32, dim=2)[1:]))

    for block in whole.model.transformer.h:  # type: ignore[union-attr]
        block.attn.c_attn.register_forward_hook(keep)
    tokens = whole.args[0]
    with torch.no_grad():
        expected = whole.model(tokens)[:, -1]
        got = whole.model(tokens[:, -1:], tuple(cache))[:, 0]
    torch.testing.assert_close(got, expected)


def test_word_lm_is_causal() -> None:
    overrides = {"ntoken": "40", "emsize": "16", "nhid": "16", "max_len": "20"}
    workload = build("word-lm", batch=2, seq=7, overrides=overrides, device="cpu")
    words = workload.args[0]
    changed = words.clone()
    changed[-1] = (changed[-1] + 1) % 40
    with torch.no_grad():
        before, after = workload.model(words), workload.model(changed)
    torch.testing.assert_close(before[:-1], after[:-1])
    assert not torch.allclose(before[-1], after[-1])
    torch.testing.assert_close(before.exp().sum(-1), torch.ones(7, 2))


def test_mixtral_deals_tokens_evenly_and_says_so() -> None:
    workload = build("mixtral-8x7b", seq=16, overrides={"num_hidden_layers": "1"})
    assert note_texts(workload.notes) == ("routing depends on the data; estimated as balanced top-2 of 8 experts",)
    assert even_shares(32, 8) == [4] * 8
    assert sum(even_shares(37, 8)) == 37
    # One decoding token reaches two experts, not all eight; four reach 8 x (1 - (3/4)^4) = 5.5 in the mean.
    for batch, reached in ((1, 2), (4, 5), (64, 8)):
        ledger = rooflight.estimate("mixtral-8x7b", step="decode", batch=batch, overrides={"num_hidden_layers": "1"})
        assert sum(op.packet == "aten::index_add_" for op in ledger.ops) == reached


def test_only_causal_models_decode() -> None:
    with pytest.raises(BadInput, match=r"^distilbert cannot decode; these can: gpt2, .*llama3-8b.*mixtral-8x7b"):
        build("distilbert", step="decode")


def test_overrides_change_what_follows() -> None:
    workload = build("mnist-cnn", overrides={"channels": "20,40"})
    assert parameters(workload.model) == 746_138
    assert workload.model.fc1.in_features == 5760  # type: ignore[union-attr]
    assert tuple(build("transformer", overrides={"d_model": "256"}).args[0].shape) == (1, 128, 256)
    assert tuple(build("vit-b-16", overrides={"image_size": "32"}).args[0].shape) == (1, 3, 32, 32)


BAD_OVERRIDES = [
    ("mnist-cnn", "chanels=20,40", "mnist-cnn has no argument 'chanels'; did you mean channels? (it takes channels, "),
    ("mnist-cnn", "channels=1,2,3", "--set channels=1,2,3: mnist-cnn wants 2 whole numbers separated by commas"),
    ("mnist-cnn", "kernel=3.5", "--set kernel=3.5: mnist-cnn wants a whole number for kernel"),
    ("mnist-cnn", "kernel=0", "wants kernel of at least 1"),
    ("mnist-cnn", "kernel=40", "two 40x40 convolutions leave nothing of a 28x28 image"),
    ("mnist-cnn-5x5", "kernel=20", "leave nothing of a 28x28 image"),
    ("googlenet", "aux_logits=1", "--set aux_logits=1: googlenet wants true or false"),
    ("alexnet", "dropout=nan", "--set dropout=nan: alexnet wants a number"),
    ("alexnet", "dropout=1.5", "alexnet cannot be built so: dropout probability has to be between 0 and 1"),
    ("gpt2", "n_head=7", "n_embd=768 is not a multiple of n_head=7"),
    ("llama3-8b", "num_key_value_heads=5", "num_key_value_heads=5"),
    ("mixtral-8x7b", "num_experts_per_tok=9", "num_experts_per_tok=9 of num_local_experts=8"),
    ("vgg11", "widths=8,8", "convs names 5 stages, widths 2"),
    ("resnet18", "groups=2", "groups and width_per_group need bottleneck=true"),
    ("distilbert", "n_heads=5", "dim=768 is not a multiple of n_heads=5"),
    ("word-lm", "nhead=3", "emsize=200 must be even and a multiple of nhead=3"),
    ("transformer", "nhead=3", "d_model=512 is not a multiple of nhead=3"),
    ("vit-b-16", "patch_size=15", "image_size must be a multiple of patch_size"),
]


@pytest.mark.parametrize(("name", "setting", "message"), BAD_OVERRIDES)
def test_bad_overrides(name: str, setting: str, message: str) -> None:
    key, value = setting.split("=")
    with pytest.raises(BadInput) as caught:
        build(name, overrides={key: value})
    assert message in caught.value.on_command_line
    assert "\n" not in str(caught.value)


BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("resnet50", {"batch": 0}, "--batch must be at least 1, got 0"),
    ("resnet50", {"batch": -3}, "--batch must be at least 1, got -3"),
    ("gpt2", {"seq": 0}, "--seq must be at least 1"),
    ("gpt2", {"past": -1, "step": "decode"}, "--past must be at least 1"),
    ("gpt2", {"past": 5}, "--past 5 is for --step decode"),
    ("gpt2", {"past": 1024, "step": "decode"}, "gpt2 has 1024 positions, --past 1024 and the new token needs 1025"),
    ("gpt2", {"seq": 2048}, "add --set n_positions=2048"),
    ("gpt2", {"input_shape": (3, 224, 224)}, "--input 3x224x224: gpt2 takes 1024 tokens"),
    ("resnet50", {"seq": 4}, "resnet50 takes images, not sequences"),
    ("resnet50", {"input_shape": (1, 28)}, "--input 1x28: resnet50 takes images"),
    ("resnet50", {"input_shape": ()}, "give at least one size"),
    ("resnet50", {"step": "fly"}, "unknown --step 'fly'; choose one of infer, train, decode"),
    ("resnet50", {"dtype": "int3"}, "unknown --dtype 'int3'; choose one of fp32, bf16, fp16, fp64"),
    ("resnet50", {"device": "abacus"}, "unknown device 'abacus'"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_OPTIONS)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        build(name, **options)
    assert message in caught.value.on_command_line
    assert "\n" not in str(caught.value)


def test_input_shapes_as_text() -> None:
    assert parse_input("3x224x224").dims == (3, 224, 224)
    assert str(parse_input("int:128")) == "int:128"
    assert parse_input("int:128").kind == "int"
    for text in ("", "3x", "x", "axb", "3x-1", "3,4", "int:", "bool:3", "3x0"):
        with pytest.raises(BadInput, match="input_shape"):
            parse_input(text)


MISFITS: list[tuple[str, dict[str, Any], str]] = [
    (
        "mnist-cnn",
        {"batch": 64, "overrides": {"channels": "20,40", "fc1_in": "9216"}},
        "fc1 (Linear) wants 9216 input features, got 5760 (input 64x5760)",
    ),
    ("mnist-cnn", {"input_shape": (1, 32, 32)}, "fc1 (Linear) wants 9216 input features, got 12544"),
    ("mnist-cnn", {"input_shape": (1, 5, 5)}, "MnistCnn cannot take input 1x1x5x5: "),
    ("resnet50", {"input_shape": (1, 28, 28)}, "conv1 (Conv2d) wants 3 input channels, got 1 (input 1x1x28x28)"),
    (
        "vgg16",
        {"input_shape": (3, 16, 16), "overrides": {"hidden": "8"}},
        "features.30 (MaxPool2d) wants at least 2x2 to pool, got 1x1",
    ),
    ("alexnet", {"input_shape": (3, 4, 4)}, "features.0 (Conv2d) wants at least 11x11 for its kernel, got 8x8"),
    (
        "resnet18",
        {"input_shape": (3, 32, 32), "step": "train"},
        "layer4.0.bn1 (BatchNorm2d) wants more than one value per channel in training, got one",
    ),
    ("transformer", {"input_shape": (64, 256)}, "t (Transformer) wants 512 input features, got 256"),
    ("vit-b-16", {"input_shape": (3, 32, 32)}, "wants 224x224 images, got 32x32"),
]


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(("name", "options", "message"), MISFITS)
def test_shapes_that_do_not_fit_are_explained(name: str, options: dict[str, Any], message: str, device: str) -> None:
    workload = build(name, device=device, **options)
    with pytest.raises(BadInput) as caught, explain_shape_errors(workload.model):
        workload.model(*workload.args, **workload.kwargs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([inner])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x)


LAYERS: list[tuple[nn.Module, Tensor, str]] = [
    (nn.LayerNorm(8), torch.zeros(2, 9), "blocks.0 (LayerNorm) wants 8 features last, got 9"),
    (nn.Embedding(5, 4), torch.zeros(2, 3), "blocks.0 (Embedding) wants whole token numbers"),
    (nn.Embedding(5, 4), torch.full((2, 3), 7), "blocks.0 (Embedding) cannot take input 2x3: index out of range"),
    (nn.BatchNorm2d(4), torch.zeros(2, 5, 3, 3), "blocks.0 (BatchNorm2d) wants 4 input channels, got 5"),
    (nn.BatchNorm2d(4), torch.zeros(2, 4), "wants batch x 4 channels x 2 sizes, got 2 dimensions"),
    (nn.GroupNorm(2, 4), torch.zeros(2, 6, 3), "blocks.0 (GroupNorm) wants 4 channels, got 6"),
    (nn.LSTM(4, 4), torch.zeros(5, 2, 3), "blocks.0 (LSTM) wants 4 input features, got 3"),
    (nn.Conv1d(4, 4, 3), torch.zeros(2, 4, 2), "blocks.0 (Conv1d) wants at least 3 for its kernel, got 2"),
    (nn.Conv2d(4, 4, 3), torch.zeros(2, 4), "blocks.0 (Conv2d) wants batch x 4 channels x 2 sizes, got 2 dimensions"),
    (nn.ConvTranspose2d(4, 4, 3), torch.zeros(2, 5, 4, 4), "blocks.0 (ConvTranspose2d) wants 4 input channels, got 5"),
    (nn.Flatten(5), torch.zeros(2, 3), "blocks.0 (Flatten) cannot take input 2x3: Dimension out of range"),
]


@pytest.mark.parametrize(("layer", "x", "message"), LAYERS)
def test_any_layer_is_explained(layer: nn.Module, x: Tensor, message: str) -> None:
    model = Outer(layer)
    with pytest.raises(BadInput) as caught, explain_shape_errors(model):
        model(x)
    assert message in str(caught.value)
    assert caught.value.__cause__ is not None


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("the reactor is on fire")


def test_other_errors_pass_unchanged() -> None:
    model = Outer(Broken())
    with pytest.raises(RuntimeError, match="the reactor is on fire") as caught, explain_shape_errors(model):
        model(torch.zeros(1))
    assert not isinstance(caught.value, BadInput)
    mixed = nn.Linear(4, 4).double()
    with pytest.raises(RuntimeError, match="dtype"), explain_shape_errors(mixed):
        mixed(torch.zeros(2, 4))


def test_names_are_known_without_torch() -> None:
    code = (
        "import sys, rooflight.models as m; [m.describe(n) for n in m.builtin_names()];\n"
        "try: m.build('resnet5O')\n"
        "except Exception as error: print(error)\n"
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out == ["no built-in model 'resnet5O'; did you mean resnet50 or resnet152 or resnet34?", "False"]


def test_descriptions() -> None:
    assert describe("resnet50") == "ResNet-50 v1.5; image 3x224x224"
    assert describe("wide_resnet50_2") == describe("wide-resnet50-2")
    assert all("\n" not in describe(name) for name in builtin_names())
    with pytest.raises(UnknownModel, match="see `rooflight list models`"):
        describe("qqqqqq")
    with pytest.raises(ValueError, match="registered twice"):
        registry._by_name([registry.BUILTINS["gpt2"], registry.BUILTINS["gpt2"]])
