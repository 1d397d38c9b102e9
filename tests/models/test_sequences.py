"""The built-in networks run the same aten operations, on the same shapes, as the implementations they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rooflight.models import Workload, build
from rooflight.models.optional_packages import declare_missing_operators

declare_missing_operators()
import torchvision  # noqa: E402
import transformers  # noqa: E402

Rows = list[tuple[str, tuple[tuple[int, ...], ...], tuple[torch.dtype, ...]]]


class Recorder(TorchDispatchMode):
    """Every operation with the shapes and dtypes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Rows = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            # Hugging Face asks whether several sequences share a row; there is no data here, and the answer is no.
            return True
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self.rows.append((str(func), tuple(tuple(t.shape) for t in tensors), tuple(t.dtype for t in tensors)))
        return func(*args, **(kwargs or {}))


def logits_of(output: Any) -> Tensor:
    if isinstance(output, tuple):
        return torch.stack(output)
    for name in ("logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            output = getattr(output, name)
    assert isinstance(output, Tensor)
    return output


def sequence(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, train: bool) -> Rows:
    with torch.set_grad_enabled(train), Recorder() as recorder:
        output = logits_of(model(*args, **kwargs))
        if train:
            output.float().square().mean().backward()
    return recorder.rows


def assert_same(ours: Workload, theirs: nn.Module, *, kwargs: Mapping[str, Any] | None = None) -> None:
    train = ours.step == "train"
    theirs.train(train)
    expected = sequence(theirs, ours.args, kwargs or {}, train=train)
    got = sequence(ours.model, ours.args, ours.kwargs, train=train)
    assert len(expected) > 10
    first = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected))
    )
    assert got == expected, f"row {first}: {got[first : first + 2]} instead of {expected[first : first + 2]}"


def assert_same_names(ours: nn.Module, theirs: nn.Module) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert {name: tuple(tensor.shape) for name, tensor in ours.state_dict().items()} == shapes


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


ZOO = [
    "alexnet",
    "vgg11",
    "vgg16",
    "googlenet",
    "resnet18",
    "resnet34",
    "resnet50",
    "wide-resnet50-2",
    "vit-b-16",
]


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("name", ZOO)
def test_torchvision(name: str, step: str) -> None:
    extra = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    theirs = on_meta(lambda: torchvision.models.get_model(name.replace("-", "_"), **extra))
    ours = build(name, batch=2, step=step)
    assert_same_names(ours.model, theirs)
    assert_same(ours, theirs)


@pytest.mark.parametrize("step", ["infer", "train"])
def test_googlenet_with_side_classifiers(step: str) -> None:
    theirs = on_meta(lambda: torchvision.models.googlenet(aux_logits=True, init_weights=False))
    ours = build("googlenet", batch=2, step=step, overrides={"aux_logits": "true"})
    assert sum(p.numel() for p in ours.model.parameters()) == 13_004_888
    assert_same_names(ours.model, theirs)
    assert_same(ours, theirs)


def test_vgg_with_batch_norm() -> None:
    theirs = on_meta(torchvision.models.vgg11_bn)
    ours = build("vgg11", batch=2, overrides={"batch_norm": "true"})
    assert_same_names(ours.model, theirs)
    assert_same(ours, theirs)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CASES = [(step, dtype) for step in ("infer", "train") for dtype in DTYPES]


def hf_gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=100)
    model = transformers.GPT2LMHeadModel(config)
    assert isinstance(model, nn.Module)
    return model


GPT2 = {"n_embd": "32", "n_layer": "2", "n_head": "4", "n_positions": "64", "vocab_size": "100"}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
LLAMA_SET = {name: str(value) for name, value in LLAMA.items()}


def hf_llama() -> nn.Module:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, rms_norm_eps=1e-5))
    assert isinstance(model, nn.Module)
    return model


@pytest.mark.parametrize(("step", "dtype"), CASES)
def test_gpt2(step: str, dtype: str) -> None:
    theirs = on_meta(hf_gpt2).to(DTYPES[dtype])
    ours = build("gpt2", batch=2, seq=16, step=step, dtype=dtype, overrides=GPT2)
    assert_same_names(ours.model, theirs)
    assert_same(ours, theirs, kwargs={"use_cache": False})


@pytest.mark.parametrize(("step", "dtype"), CASES)
def test_llama(step: str, dtype: str) -> None:
    theirs = on_meta(hf_llama).to(DTYPES[dtype])
    ours = build("llama3-8b", batch=2, seq=16, step=step, dtype=dtype, overrides=LLAMA_SET)
    assert_same_names(ours.model, theirs)
    assert_same(ours, theirs, kwargs={"use_cache": False})


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("name", "make"), [("gpt2", hf_gpt2), ("llama3-8b", hf_llama)])
def test_decode(name: str, make: Callable[[], Any], dtype: str) -> None:
    theirs: Any = on_meta(make).to(DTYPES[dtype])
    overrides = GPT2 if name == "gpt2" else LLAMA_SET
    ours = build(name, batch=2, past=12, step="decode", dtype=dtype, overrides=overrides)
    cache = transformers.DynamicCache(config=theirs.config)
    for layer, (key, value) in enumerate(ours.kwargs["cache"]):
        cache.update(key, value, layer)
    assert_same(ours, theirs, kwargs={"past_key_values": cache, "use_cache": True})


@pytest.mark.parametrize(("step", "dtype"), CASES)
@pytest.mark.parametrize("name", ["distilbert", "distilbert-mlm"])
def test_distilbert(name: str, step: str, dtype: str) -> None:
    config = transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=100)
    cls = transformers.DistilBertModel if name == "distilbert" else transformers.DistilBertForMaskedLM
    overrides = {"dim": "32", "n_layers": "2", "n_heads": "4", "hidden_dim": "64", "vocab_size": "100"}
    ours = build(name, batch=2, seq=16, step=step, dtype=dtype, overrides=overrides)
    theirs = on_meta(lambda: cls(config)).to(DTYPES[dtype])
    assert_same_names(ours.model, theirs)
    assert_same(ours, theirs)


@pytest.mark.parametrize(("name", "make"), [("gpt2", hf_gpt2), ("llama3-8b", hf_llama)])
def test_same_numbers_with_the_same_weights(name: str, make: Callable[[], nn.Module]) -> None:
    theirs = make().eval()
    overrides = GPT2 if name == "gpt2" else {**LLAMA_SET, "rope_theta": "10000"}
    ours = build(name, batch=2, seq=16, overrides=overrides, device="cpu")
    ours.model.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours.model(*ours.args), theirs(*ours.args, use_cache=False).logits)


def test_mixtral_has_the_parameters_of_the_original() -> None:
    overrides = {**LLAMA_SET, "num_local_experts": "4"}
    config = transformers.MixtralConfig(**LLAMA, num_local_experts=4)
    theirs = on_meta(lambda: transformers.MixtralForCausalLM(config))
    assert_same_names(build("mixtral-8x7b", seq=16, overrides=overrides).model, theirs)


def test_mixtral_on_cpu_computes_the_same_amount_as_the_original() -> None:
    """Matrix multiply-adds agree: dealing the tokens out evenly changes who works, not how much."""
    from torch.utils.flop_counter import FlopCounterMode

    overrides = {**LLAMA_SET, "num_local_experts": "4"}
    config = transformers.MixtralConfig(**LLAMA, num_local_experts=4, experts_implementation="eager")
    theirs = transformers.MixtralForCausalLM(config).eval()
    ours = build("mixtral-8x7b", batch=2, seq=16, overrides=overrides, device="cpu")
    counts = []
    for model, kwargs in ((theirs, {"use_cache": False}), (ours.model, {})):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(*ours.args, **kwargs)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


class ExampleMnist(nn.Module):
    """The network of the PyTorch MNIST example, line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.conv1(x))
        x = nn.functional.relu(self.conv2(x))
        x = self.dropout1(nn.functional.max_pool2d(x, 2))
        x = self.dropout2(nn.functional.relu(self.fc1(torch.flatten(x, 1))))
        return nn.functional.log_softmax(self.fc2(x), dim=1)


@pytest.mark.parametrize("step", ["infer", "train"])
def test_mnist(step: str) -> None:
    ours = build("mnist-cnn", batch=2, step=step)
    theirs = on_meta(ExampleMnist)
    assert_same_names(ours.model, theirs)
    assert_same(ours, theirs)
