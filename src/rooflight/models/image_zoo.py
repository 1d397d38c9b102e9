"""`torchvision:NAME` and `timm:NAME`: their networks with random weights, on images of the size each is made for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from rooflight.errors import BadInput, UnknownModel, one_line, suggest
from rooflight.models import arguments, inputs
from rooflight.models.optional_packages import imported
from rooflight.models.registry import Zoo
from rooflight.models.workload import InputShape, ModelRequest, Optimizer, Workload

_ATTENTION = ("vit", "swin", "deit", "beit", "eva", "maxvit", "cait", "xcit", "pit_")
# Families of torchvision that take lists of images, pairs of frames or integer weights, not one image tensor.
_OTHER_INPUTS = ("detection", "optical_flow", "quantization")


def load(source: Zoo, name: str, *, request: ModelRequest) -> Workload:
    """Build a network of the zoo by its name there."""
    if request.step == "decode":
        raise BadInput(f"{request.spec} is an image network and cannot decode; use --step=infer or train")
    if request.seq is not None:
        raise BadInput(f"{request.spec} takes images, not sequences; drop --seq, or give --input=3x224x224")
    make, default = (_torchvision if source == "torchvision" else _timm)(name)
    device = inputs.device_of(request)
    model = inputs.make_ready(_constructed(make, request, device=device), request)
    shape = request.input_shape or InputShape(tuple(default(model)))
    optimizer: Optimizer = "adamw" if name.lower().startswith(_ATTENTION) else "momentum"
    image = inputs.from_shape(shape, model, request=request, device=device)
    return request.workload(model, args=(image,), kwargs={}, task="classification", optimizer=optimizer)


Maker = Callable[..., Any]
Sizer = Callable[[nn.Module], Sequence[int]]


def _torchvision(name: str) -> tuple[Maker, Sizer]:
    models = imported("torchvision").models
    names = models.list_models()
    if name not in names:
        raise UnknownModel(f"torchvision has no model {name!r}; {_near(name, names, 'torchvision')}")
    builder = models.get_model_builder(name)
    family = builder.__module__.split(".")
    if any(other in family for other in _OTHER_INPUTS):
        raise BadInput(f"torchvision:{name} does not take one image tensor; wrap it in module:factory with its inputs")

    def size(model: nn.Module) -> Sequence[int]:
        side = _crop(models, name)
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
        raise UnknownModel(f"timm has no model {name!r}; {_near(name, timm.list_models(), 'timm')}")

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
        raise BadInput(f"{request.spec} cannot be built so: {one_line(error)}; check --set") from error


def _on(device: torch.device, make: Callable[[], Any]) -> nn.Module:
    """Built on the device. Some networks compute their widths with tensors, which have no values on meta: those are
    built on the CPU and moved."""
    try:
        model = inputs.constructed(make, device)
    except (NotImplementedError, RuntimeError) as error:
        if device.type != "meta" or "meta" not in str(error):
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
