"""The names of the built-in and the released models, and what is known of each without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from rooflight.errors import UnknownModel, suggest
from rooflight.models.released import RELEASED, ReleasedModel
from rooflight.models.workload import Optimizer, Task

InputKind = Literal["image", "tokens", "tokens-seq-first", "features"]
Zoo = Literal["torchvision", "timm"]
ZOOS: tuple[Zoo, ...] = ("torchvision", "timm")
IMAGENET = (3, 224, 224)
WHERE_LISTED = "see `rooflight list models`"


@dataclass(frozen=True)
class BuiltinModel:
    """One built-in model: where its class is, with which arguments, and what one step of it takes.

    `architecture` is `module:Class` below `rooflight.models.architectures`; `shape` is the default input without the
    batch (for tokens: the default sequence length); `positions` names the constructor argument that limits the
    sequence, where there is one; `decodes` says that it can run one token against a cache. The defaults are those of
    an image network.
    """

    name: str
    description: str
    architecture: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: InputKind = "image"
    shape: tuple[int, ...] = IMAGENET
    task: Task = "classification"
    optimizer: Optimizer = "momentum"
    positions: str | None = None
    decodes: bool = False

    @property
    def about(self) -> str:
        """What it is, and its default input, in one line."""
        return f"{self.description}; {self.default_input}"

    @property
    def default_input(self) -> str:
        """The input of one sample in words, as `rooflight list models` shows it."""
        if self.inputs == "image":
            return "image " + "x".join(map(str, self.shape))
        if self.inputs == "features":
            return "features " + "x".join(map(str, self.shape))
        return f"{self.shape[0]} tokens"


def _vgg(depth: int, *convs: int) -> BuiltinModel:
    return BuiltinModel(f"vgg{depth}", f"VGG-{depth} without batch norm", "vgg:VGG", {"convs": convs})


def _resnet(depth: int, *layers: int, bottleneck: bool) -> BuiltinModel:
    arguments = {"layers": layers, "bottleneck": bottleneck}
    return BuiltinModel(f"resnet{depth}", f"ResNet-{depth} v1.5", "resnet:ResNet", arguments)


_text = partial(BuiltinModel, inputs="tokens", task="language-model", optimizer="adamw")
_causal = partial(_text, decodes=True)


def _gpt2(name: str, size: str, *, n_embd: int, n_layer: int, n_head: int) -> BuiltinModel:
    description = f"GPT-2 {size}, tied language-model head"
    arguments = {"n_embd": n_embd, "n_layer": n_layer, "n_head": n_head}
    return _causal(name, description, "gpt2:GPT2LMHeadModel", arguments, shape=(1024,), positions="n_positions")


_rotary = partial(_causal, shape=(2048,), positions="max_position_embeddings")
_LLAMA3_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}

_ENTRIES = (
    BuiltinModel(
        "mnist-cnn",
        "the PyTorch MNIST example: two 3x3 convolutions, two linear layers",
        "mnist:MnistCnn",
        shape=(1, 28, 28),
    ),
    BuiltinModel(
        "mnist-cnn-5x5",
        "the older MNIST example: two 5x5 convolutions, 21,840 parameters",
        "mnist:MnistCnn5x5",
        shape=(1, 28, 28),
    ),
    BuiltinModel("alexnet", "AlexNet (one-tower version)", "alexnet:AlexNet"),
    _vgg(11, 1, 1, 2, 2, 2),
    _vgg(13, 2, 2, 2, 2, 2),
    _vgg(16, 2, 2, 3, 3, 3),
    _vgg(19, 2, 2, 4, 4, 4),
    BuiltinModel("googlenet", "GoogLeNet (Inception v1 with batch norm)", "googlenet:GoogLeNet"),
    _resnet(18, 2, 2, 2, 2, bottleneck=False),
    _resnet(34, 3, 4, 6, 3, bottleneck=False),
    _resnet(50, 3, 4, 6, 3, bottleneck=True),
    _resnet(101, 3, 4, 23, 3, bottleneck=True),
    _resnet(152, 3, 8, 36, 3, bottleneck=True),
    BuiltinModel(
        "wide-resnet50-2",
        "Wide ResNet-50-2",
        "resnet:ResNet",
        {"layers": (3, 4, 6, 3), "bottleneck": True, "width_per_group": 128},
    ),
    BuiltinModel("vit-b-16", "Vision Transformer B/16", "vit:VisionTransformer", optimizer="adamw"),
    BuiltinModel(
        "transformer",
        "torch.nn.Transformer, 6 encoder and 6 decoder layers, source = target",
        "transformer:EncoderDecoder",
        inputs="features",
        shape=(128, 512),
        task="features",
        optimizer="adamw",
    ),
    _text(
        "word-lm",
        "the PyTorch word-language-model example with its transformer",
        "word_lm:TransformerModel",
        inputs="tokens-seq-first",
        shape=(35,),
        positions="max_len",
    ),
    _text(
        "distilbert",
        "DistilBERT base, hidden states",
        "distilbert:DistilBertModel",
        shape=(128,),
        task="features",
        positions="max_position_embeddings",
    ),
    _text(
        "distilbert-mlm",
        "DistilBERT with its masked-LM head",
        "distilbert:DistilBertForMaskedLM",
        shape=(128,),
        task="masked-lm",
        positions="max_position_embeddings",
    ),
    _gpt2("gpt2", "small", n_embd=768, n_layer=12, n_head=12),
    _gpt2("gpt2-medium", "medium", n_embd=1024, n_layer=24, n_head=16),
    _gpt2("gpt2-large", "large", n_embd=1280, n_layer=36, n_head=20),
    _gpt2("gpt2-xl", "XL", n_embd=1600, n_layer=48, n_head=25),
    _rotary("llama3-8b", "Llama 3 8B, grouped-query attention", "llama:LlamaForCausalLM"),
    _rotary("llama3-70b", "Llama 3 70B, grouped-query attention", "llama:LlamaForCausalLM", _LLAMA3_70B),
    _rotary("mixtral-8x7b", "Mixtral 8x7B, two of eight experts a token", "mixtral:MixtralForCausalLM"),
)


def _by_name(entries: Iterable[BuiltinModel]) -> Mapping[str, BuiltinModel]:
    table: dict[str, BuiltinModel] = {}
    for entry in entries:
        if entry.name in table:
            raise ValueError(f"built-in model {entry.name} is registered twice")
        table[entry.name] = entry
    return MappingProxyType(table)


BUILTINS = _by_name(_ENTRIES)


NAMES: tuple[str, ...] = (*BUILTINS, *RELEASED)
if len(set(NAMES)) < len(NAMES):
    raise ValueError(f"registered twice, built in and released: {', '.join(set(BUILTINS) & set(RELEASED))}")


def find(name: str) -> BuiltinModel | ReleasedModel:
    """The model of that name; `_` may stand for `-`, as other libraries write it."""
    dashed = name.replace("_", "-")
    entry = BUILTINS.get(name) or BUILTINS.get(dashed) or RELEASED.get(dashed)
    if entry is None and name.endswith(".py"):
        raise UnknownModel("model-not-named", f"{name} is a file: name the model in it, as in {name}:MyNet")
    if entry is None:
        raise UnknownModel(
            "unknown-model", f"no built-in model {name!r}; {suggest(name, NAMES, otherwise=WHERE_LISTED)}"
        )
    return entry
