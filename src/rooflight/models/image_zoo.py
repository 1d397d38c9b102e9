"""`torchvision:NAME` and `timm:NAME`: their networks with random weights, on images of the size each is made for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from rooflight.errors import BadInput, UnknownModel, one_line, suggest
from rooflight.ledger import Note
from rooflight.models import arguments, inputs
from rooflight.models.optional_packages import imported
from rooflight.models.registry import Zoo
from rooflight.models.workload import InputShape, ModelRequest, Optimizer, Task, Workload

_ATTENTION = ("vit", "swin", "deit", "beit", "eva", "maxvit", "cait", "xcit", "pit_")
_BOXES = 8
"""In each image that a detector is trained on."""
_DETECTED = {"ssd300": (3, 300, 300), "ssdlite320": (3, 320, 320)}
"""Images of detectors that take one size; others are made smaller or larger by the network itself."""
_FRAMES = (3, 520, 960)
"""Of RAFT, which takes two of them, as in torchvision's own example."""


def load(source: Zoo, name: str, *, request: ModelRequest) -> Workload:
    """Build a network of the zoo by its name there."""
    if request.step == "decode":
        raise BadInput(
            "cannot-decode", f"{request.spec} is an image network and cannot decode; use --step=infer or train"
        )
    if request.seq is not None:
        raise BadInput(
            "not-a-sequence-model", f"{request.spec} takes images, not sequences; drop --seq, or give --input=3x224x224"
        )
    make, default = (_torchvision if source == "torchvision" else _timm)(name)
    device = inputs.device_of(request)
    model = inputs.make_ready(_constructed(make, request, device=device), request)
    shape = request.input_shape or InputShape(tuple(default(model)))
    optimizer: Optimizer = "adamw" if name.lower().startswith(_ATTENTION) else "momentum"
    # RAFT looks for what moved from one image to the next.
    pair = type(model).__name__ == "RAFT"
    images: tuple[Any, ...] = tuple(
        inputs.from_shape(shape, model, request=request, device=device) for _ in range(1 + pair)
    )
    if _detects(model):
        images = _detection(images[0], request)
    quantized = (
        (Note("float-network", f"{request.spec} is the network in floats, which torchvision quantizes"),)
        if _quantizable(name)
        else ()
    )
    task: Task = "features" if pair else "classification"
    return request.workload(model, args=images, kwargs={}, task=task, optimizer=optimizer, notes=quantized)


def _detects(model: nn.Module) -> bool:
    return type(model).__module__.startswith("torchvision.models.detection")


def _detection(images: torch.Tensor, request: ModelRequest) -> tuple[Any, ...]:
    """What a detector takes: a list of images, and to train on it for each of them some boxes with what is in them."""
    listed = [image.clone() for image in images]
    if request.step != "train":
        return (listed,)
    height, width = images.shape[-2:]
    sides = torch.arange(1, _BOXES + 1, device=images.device) / (_BOXES + 1)
    corners = torch.stack([sides * width / 2, sides * height / 2, sides * width, sides * height], dim=1)
    target = {
        "boxes": corners.to(images.dtype),
        "labels": torch.ones(_BOXES, dtype=torch.int64, device=images.device),
        "masks": torch.ones(_BOXES, height, width, dtype=torch.uint8, device=images.device),
        "keypoints": torch.ones(_BOXES, 17, 3, dtype=images.dtype, device=images.device),
    }
    return listed, [{name: tensor.clone() for name, tensor in target.items()} for _ in listed]


def _quantizable(name: str) -> bool:
    return name.startswith("quantized_")


Maker = Callable[..., Any]
Sizer = Callable[[nn.Module], Sequence[int]]


def _torchvision(name: str) -> tuple[Maker, Sizer]:
    models = imported("torchvision").models
    names = models.list_models()
    if name not in names:
        raise UnknownModel("unknown-model", f"torchvision has no model {name!r}; {_near(name, names, 'torchvision')}")
    builder = models.get_model_builder(name)
    family = builder.__module__.split(".")

    def size(model: nn.Module) -> Sequence[int]:
        if "optical_flow" in family:
            return _FRAMES
        if "detection" in family:
            return _DETECTED.get(name.partition("_")[0], (3, 800, 800))
        # A transformer takes one size only; its best weights may be for another.
        side = getattr(model, "image_size", None) or _crop(models, name)
        return (3, 16, side, side) if "video" in family else (3, side, side)

    return builder, size


def _crop(models: Any, name: str) -> int:
    """The side of the images that the network's published weights were trained for (224 where none are)."""
    weights = next(iter(models.get_model_weights(name)), None)
    crop = getattr(weights.transforms(), "crop_size", None) if weights is not None else None
    return int(crop[0]) if crop else 224


def _timm(name: str) -> tuple[Maker, Sizer]:
    timm = imported("timm")
    if not timm.is_model(name.split(".")[0]):
        raise UnknownModel("unknown-model", f"timm has no model {name!r}; {_near(name, timm.list_models(), 'timm')}")

    def make(**values: Any) -> Any:
        return timm.create_model(name, pretrained=False, **values)

    def size(model: nn.Module) -> Sequence[int]:
        config: Any = getattr(model, "pretrained_cfg", {})
        return tuple(config.get("input_size", (3, 224, 224)))

    return make, size


def _near(name: str, names: Sequence[str], source: str) -> str:
    return suggest(name, names, otherwise=f"see {source}'s list_models()")


def _constructed(make: Maker, request: ModelRequest, *, device: torch.device) -> nn.Module:
    """Build without arguments first: the class that comes out says which arguments it takes."""
    extra = _quiet_arguments(make)
    if request.overrides:
        plain = _on(torch.device("meta"), lambda: make(**extra))
        values = arguments.parse(request.overrides, arguments.settable(type(plain)), owner=request.spec)
        extra = {**extra, **values}
    try:
        return _on(device, lambda: make(**extra))
    except Exception as error:
        raise BadInput(
            "model-not-built", f"{request.spec} cannot be built so: {one_line(error)}; check --set"
        ) from error


def _on(device: torch.device, make: Callable[[], Any]) -> nn.Module:
    """Built on the device. Some networks compute their widths with tensors, which have no values on meta: those are
    built on the CPU and moved."""
    try:
        model = inputs.constructed(make, device)
    except Exception as error:
        if device.type != "meta" or not inputs.lacks_values(error):
            raise
        model = inputs.constructed(make, torch.device("cpu")).to(device)
    assert isinstance(model, nn.Module)
    return model


def _quiet_arguments(make: Maker) -> dict[str, Any]:
    """What keeps a builder from downloading a backbone's weights, and from an initialisation of minutes."""
    values: dict[str, Any] = {}
    if "weights_backbone" in inspect.signature(make).parameters:
        values["weights_backbone"] = None
    if getattr(make, "__name__", "") in ("googlenet", "inception_v3"):
        values["init_weights"] = False
    return values
