"""The names of the built-in models, and what is known of each without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from rooflight.errors import UnknownModel
from rooflight.models.messages import suggest
from rooflight.models.workload import Optimizer, Task

InputKind = Literal["image", "tokens", "tokens-seq-first", "features"]
Zoo = Literal["torchvision", "timm"]
ZOOS: tuple[Zoo, ...] = ("torchvision", "timm")
IMAGENET = (3, 224, 224)


@dataclass(frozen=True, kw_only=True)
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

    @property
    def default_input(self) -> str:
        """The input of one sample in words, as `rooflight list models` shows it."""
        if self.inputs == "image":
            return "image " + "x".join(map(str, self.shape))
        if self.inputs == "features":
            return "features " + "x".join(map(str, self.shape))
        return f"{self.shape[0]} tokens"


def _vision(name: str, description: str, *, architecture: str, arguments: Mapping[str, Any] | None = None) -> Builtin:
    return Builtin(
        name=name,
        description=description,
        architecture=architecture,
        inputs="image",
        shape=IMAGENET,
        task="classification",
        optimizer="momentum",
        arguments=arguments or {},
    )


def _mnist(name: str, description: str, *, architecture: str) -> Builtin:
    return replace(_vision(name, description, architecture=architecture), shape=(1, 28, 28))


def _vgg(depth: int, convs: tuple[int, ...]) -> Builtin:
    return _vision(f"vgg{depth}", f"VGG-{depth} without batch norm", architecture="vgg:VGG", arguments={"convs": convs})


def _resnet(depth: int, layers: tuple[int, ...], *, bottleneck: bool) -> Builtin:
    arguments = {"layers": layers, "bottleneck": bottleneck}
    return _vision(f"resnet{depth}", f"ResNet-{depth} v1.5", architecture="resnet:ResNet", arguments=arguments)


def _distilbert(name: str, description: str, *, architecture: str, task: Task) -> Builtin:
    return Builtin(
        name=name,
        description=description,
        architecture=architecture,
        inputs="tokens",
        shape=(128,),
        task=task,
        optimizer="adamw",
        positions="max_position_embeddings",
    )


def _causal(
    name: str,
    description: str,
    *,
    architecture: str,
    sequence: int,
    arguments: Mapping[str, Any] | None = None,
    positions: str | None = None,
) -> Builtin:
    return Builtin(
        name=name,
        description=description,
        architecture=architecture,
        inputs="tokens",
        shape=(sequence,),
        task="language-model",
        optimizer="adamw",
        arguments=arguments or {},
        positions=positions,
        decodes=True,
    )


def _gpt2(name: str, size: str, *, n_embd: int, n_layer: int, n_head: int) -> Builtin:
    return _causal(
        name,
        f"GPT-2 {size}, tied language-model head",
        architecture="gpt2:GPT2LMHeadModel",
        sequence=1024,
        arguments={"n_embd": n_embd, "n_layer": n_layer, "n_head": n_head},
        positions="n_positions",
    )


_LLAMA3_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}

_ENTRIES = (
    _mnist(
        "mnist-cnn",
        "the PyTorch MNIST example: two 3x3 convolutions, two linear layers",
        architecture="mnist:MnistCnn",
    ),
    _mnist(
        "mnist-cnn-5x5",
        "the older MNIST example: two 5x5 convolutions, 21,840 parameters",
        architecture="mnist:MnistCnn5x5",
    ),
    _vision("alexnet", "AlexNet (one-tower version)", architecture="alexnet:AlexNet"),
    _vgg(11, (1, 1, 2, 2, 2)),
    _vgg(13, (2, 2, 2, 2, 2)),
    _vgg(16, (2, 2, 3, 3, 3)),
    _vgg(19, (2, 2, 4, 4, 4)),
    _vision("googlenet", "GoogLeNet (Inception v1 with batch norm)", architecture="googlenet:GoogLeNet"),
    _resnet(18, (2, 2, 2, 2), bottleneck=False),
    _resnet(34, (3, 4, 6, 3), bottleneck=False),
    _resnet(50, (3, 4, 6, 3), bottleneck=True),
    _resnet(101, (3, 4, 23, 3), bottleneck=True),
    _resnet(152, (3, 8, 36, 3), bottleneck=True),
    _vision(
        "wide-resnet50-2",
        "Wide ResNet-50-2",
        architecture="resnet:ResNet",
        arguments={"layers": (3, 4, 6, 3), "bottleneck": True, "width_per_group": 128},
    ),
    replace(
        _vision("vit-b-16", "Vision Transformer B/16", architecture="vit:VisionTransformer"),
        optimizer="adamw",
    ),
    Builtin(
        name="transformer",
        description="torch.nn.Transformer, 6 encoder and 6 decoder layers, source = target",
        architecture="transformer:EncoderDecoder",
        inputs="features",
        shape=(128, 512),
        task="features",
        optimizer="adamw",
    ),
    Builtin(
        name="word-lm",
        description="the PyTorch word-language-model example with its transformer",
        architecture="word_lm:TransformerModel",
        inputs="tokens-seq-first",
        shape=(35,),
        task="language-model",
        optimizer="adamw",
        positions="max_len",
    ),
    _distilbert(
        "distilbert",
        "DistilBERT base, hidden states",
        architecture="distilbert:DistilBertModel",
        task="features",
    ),
    _distilbert(
        "distilbert-mlm",
        "DistilBERT with its masked-LM head",
        architecture="distilbert:DistilBertForMaskedLM",
        task="masked-lm",
    ),
    _gpt2("gpt2", "small", n_embd=768, n_layer=12, n_head=12),
    _gpt2("gpt2-medium", "medium", n_embd=1024, n_layer=24, n_head=16),
    _gpt2("gpt2-large", "large", n_embd=1280, n_layer=36, n_head=20),
    _gpt2("gpt2-xl", "XL", n_embd=1600, n_layer=48, n_head=25),
    _causal(
        "llama3-8b",
        "Llama 3 8B, grouped-query attention",
        architecture="llama:LlamaForCausalLM",
        sequence=2048,
    ),
    _causal(
        "llama3-70b",
        "Llama 3 70B, grouped-query attention",
        architecture="llama:LlamaForCausalLM",
        sequence=2048,
        arguments=_LLAMA3_70B,
    ),
    _causal(
        "mixtral-8x7b",
        "Mixtral 8x7B, two of eight experts a token",
        architecture="mixtral:MixtralForCausalLM",
        sequence=2048,
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
    if entry is None and name.endswith(".py"):
        raise UnknownModel(f"{name} is a file: name the model in it, as in {name}:MyNet")
    if entry is None:
        raise UnknownModel(f"no built-in model {name!r}; {suggest(name, BUILTINS)}")
    return entry
