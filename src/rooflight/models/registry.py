"""The names of the built-in models, and what is known of each without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from rooflight.errors import UnknownModel
from rooflight.models.messages import suggest
from rooflight.models.workload import Optimizer, Task

InputKind = Literal["image", "tokens", "tokens-seq-first", "features"]
Zoo = Literal["torchvision", "timm"]
ZOOS: tuple[Zoo, ...] = ("torchvision", "timm")
IMAGENET = (3, 224, 224)


@dataclass(frozen=True)
class Builtin:
    """One built-in model: where its class is, with which arguments, and what one step of it takes.

    `architecture` is `module:Class` below `rooflight.models.architectures`; `shape` is the default input without the
    batch (for tokens: the default sequence length); `positions` names the constructor argument that limits the
    sequence, where there is one; `decodes` says that it can run one token against a cache.
    """

    name: str
    description: str
    architecture: str
    inputs: InputKind
    shape: tuple[int, ...]
    task: Task
    optimizer: Optimizer
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positions: str | None = None
    decodes: bool = False
    notes: tuple[str, ...] = ()

    @property
    def default_input(self) -> str:
        """The input of one sample in words, as `rooflight list models` shows it."""
        if self.inputs == "image":
            return "image " + "x".join(map(str, self.shape))
        if self.inputs == "features":
            return "features " + "x".join(map(str, self.shape))
        return f"{self.shape[0]} tokens"


def _vision(name: str, description: str, architecture: str, **arguments: Any) -> Builtin:
    return Builtin(name, description, architecture, "image", IMAGENET, "classification", "momentum", arguments)


def _mnist(name: str, description: str, architecture: str) -> Builtin:
    return Builtin(name, description, architecture, "image", (1, 28, 28), "classification", "momentum")


def _gpt2(name: str, size: str, **arguments: Any) -> Builtin:
    return Builtin(
        name,
        f"GPT-2 {size}, tied language-model head",
        "gpt2:GPT2LMHeadModel",
        "tokens",
        (1024,),
        "language-model",
        "adamw",
        arguments,
        positions="n_positions",
        decodes=True,
    )


def _llama3(name: str, size: str, **arguments: Any) -> Builtin:
    return Builtin(
        name,
        f"Llama 3 {size}, grouped-query attention",
        "llama:LlamaForCausalLM",
        "tokens",
        (2048,),
        "language-model",
        "adamw",
        arguments,
        decodes=True,
    )


def _distilbert(name: str, description: str, cls: str, *, task: Task) -> Builtin:
    return Builtin(
        name,
        description,
        f"distilbert:{cls}",
        "tokens",
        (128,),
        task,
        "adamw",
        positions="max_position_embeddings",
    )


def _vgg(depth: int, *convs: int) -> Builtin:
    return _vision(f"vgg{depth}", f"VGG-{depth} without batch norm", "vgg:VGG", convs=convs)


def _resnet(depth: int, *layers: int, bottleneck: bool) -> Builtin:
    return _vision(f"resnet{depth}", f"ResNet-{depth} v1.5", "resnet:ResNet", layers=layers, bottleneck=bottleneck)


_ENTRIES = (
    _mnist("mnist-cnn", "the PyTorch MNIST example: two 3x3 convolutions, two linear layers", "mnist:MnistCnn"),
    _mnist("mnist-cnn-5x5", "the older MNIST example: two 5x5 convolutions, 21,840 parameters", "mnist:MnistCnn5x5"),
    _vision("alexnet", "AlexNet (one-tower version)", "alexnet:AlexNet"),
    _vgg(11, 1, 1, 2, 2, 2),
    _vgg(13, 2, 2, 2, 2, 2),
    _vgg(16, 2, 2, 3, 3, 3),
    _vgg(19, 2, 2, 4, 4, 4),
    _vision("googlenet", "GoogLeNet (Inception v1 with batch norm)", "googlenet:GoogLeNet"),
    _resnet(18, 2, 2, 2, 2, bottleneck=False),
    _resnet(34, 3, 4, 6, 3, bottleneck=False),
    _resnet(50, 3, 4, 6, 3, bottleneck=True),
    _resnet(101, 3, 4, 23, 3, bottleneck=True),
    _resnet(152, 3, 8, 36, 3, bottleneck=True),
    _vision(
        "wide-resnet50-2",
        "Wide ResNet-50-2",
        "resnet:ResNet",
        layers=(3, 4, 6, 3),
        bottleneck=True,
        width_per_group=128,
    ),
    Builtin(
        "vit-b-16",
        "Vision Transformer B/16",
        "vit:VisionTransformer",
        "image",
        IMAGENET,
        "classification",
        "adamw",
    ),
    Builtin(
        "transformer",
        "torch.nn.Transformer, 6 encoder and 6 decoder layers, source = target",
        "transformer:EncoderDecoder",
        "features",
        (128, 512),
        "features",
        "adamw",
    ),
    Builtin(
        "word-lm",
        "the PyTorch word-language-model example with its transformer",
        "word_lm:TransformerModel",
        "tokens-seq-first",
        (35,),
        "language-model",
        "adamw",
        positions="max_len",
    ),
    _distilbert("distilbert", "DistilBERT base, hidden states", "DistilBertModel", task="features"),
    _distilbert("distilbert-mlm", "DistilBERT with its masked-LM head", "DistilBertForMaskedLM", task="masked-lm"),
    _gpt2("gpt2", "small"),
    _gpt2("gpt2-medium", "medium", n_embd=1024, n_layer=24, n_head=16),
    _gpt2("gpt2-large", "large", n_embd=1280, n_layer=36, n_head=20),
    _gpt2("gpt2-xl", "XL", n_embd=1600, n_layer=48, n_head=25),
    _llama3("llama3-8b", "8B"),
    _llama3(
        "llama3-70b",
        "70B",
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
    ),
    Builtin(
        "mixtral-8x7b",
        "Mixtral 8x7B, two of eight experts a token",
        "mixtral:MixtralForCausalLM",
        "tokens",
        (2048,),
        "language-model",
        "adamw",
        decodes=True,
    ),
)


def _by_name(entries: Iterable[Builtin]) -> Mapping[str, Builtin]:
    table: dict[str, Builtin] = {}
    for entry in entries:
        if entry.name in table:
            raise ValueError(f"built-in model {entry.name} is registered twice")
        table[entry.name] = entry
    return MappingProxyType(table)


BUILTINS = _by_name(_ENTRIES)


def find(name: str) -> Builtin:
    """The built-in model of that name; `_` may stand for `-`, as other libraries write it."""
    entry = BUILTINS.get(name) or BUILTINS.get(name.replace("_", "-"))
    if entry is None:
        raise UnknownModel(f"no built-in model {name!r}; {suggest(name, BUILTINS)}")
    return entry
