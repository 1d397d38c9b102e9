"""`hf:NAME-or-folder`: Hugging Face architectures from their configuration alone, with random weights.

NAME is a folder with a config.json, a model type (`gpt2`, `llama`, `bert`: its default configuration), a class
(`BertForMaskedLM`), or a name on the hub, which is looked up in the local cache, and downloaded only if asked.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rooflight.errors import BadInput, RooflightError, UnknownModel, one_line, suggest
from rooflight.models import arguments, inputs
from rooflight.models.optional_packages import imported
from rooflight.models.registry import WHERE_LISTED
from rooflight.models.workload import InputShape, ModelRequest, Task, Workload

DEFAULT_SEQUENCE = 128


def load(name: str, request: ModelRequest) -> Workload:
    """Build the model that the configuration describes, with inputs of its kind."""
    with _offline(not request.download):
        library = imported("transformers")
        config, cls = _configured(library, name, request=request)
        cls = cls or _class_for(library, config)
        device = inputs.device_of(request)
        model = inputs.make_ready(_constructed(cls, config, request=request, device=device), request)
    home = next(model.parameters()).device
    task = _task(cls)
    main = str(getattr(model, "main_input_name", "input_ids"))
    sequence, past = _lengths(config, request, task=task, main=main)
    kwargs: dict[str, Any] = {
        main: _main_input(main, model, config=config, request=request, device=home, sequence=sequence)
    }
    if config.is_encoder_decoder:
        kwargs["decoder_input_ids"] = inputs.tokens((request.batch, sequence or DEFAULT_SEQUENCE), model, device=home)
    if task == "language-model" and not config.is_encoder_decoder and hasattr(config, "use_cache"):
        # Without a cache, transformers reads values of the mask, which tensors without data do not have.
        kwargs["use_cache"] = True
    if past is not None:
        kwargs["past_key_values"] = _prefilled(model, past, request=request, device=home)
    return request.workload(model, args=(), kwargs=kwargs, sequence=sequence, past=past, task=task, optimizer="adamw")


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Keep the hub's client from the network; it reads the variable at import and the constant ever after."""
    if not wanted:
        yield
        return
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        imported("transformers")
        constants = imported("huggingface_hub").constants
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = (before or "").upper() in ("1", "ON", "YES", "TRUE")
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _configured(library: Any, name: str, *, request: ModelRequest) -> tuple[Any, Any]:
    """The configuration with the user's overrides, and the model's class where the name or the file says it."""
    types = library.models.auto.configuration_auto.CONFIG_MAPPING
    if name in types and not Path(name).is_dir():
        return _with_overrides(types[name], {}, request=request), None
    named: Any = getattr(library, name, None) if name.isidentifier() else None
    if inspect.isclass(named) and issubclass(named, library.PreTrainedModel):
        kind = getattr(named, "config_class", None)
        if kind is not None:
            return _with_overrides(kind, {}, request=request), named
    fields = _fields(library, name, request=request, known=list(types))
    model_type = fields.get("model_type")
    if model_type not in types:
        raise UnknownModel(
            f"{request.spec}: config.json has no model_type known here; "
            + suggest(str(model_type), types, otherwise=WHERE_LISTED)
        )
    config = _with_overrides(types[model_type], fields, request=request)
    cls = getattr(library, (fields.get("architectures") or [""])[0] or "-", None)
    return config, cls


def _fields(library: Any, name: str, *, request: ModelRequest, known: list[str]) -> dict[str, Any]:
    """The entries of config.json, from a folder, the local cache or (if asked) the hub."""
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UnknownModel(f"{request.spec}: the folder has no config.json: give one that save_pretrained wrote")
    try:
        fields, _ = library.PreTrainedConfig.get_config_dict(
            str(folder) if folder.is_dir() else name, local_files_only=not request.download
        )
    except Exception as error:
        if request.download or folder.is_dir():
            raise UnknownModel(f"{request.spec} cannot be read: {one_line(error)}") from error
        near = suggest(name, known, otherwise="")
        raise UnknownModel(
            f"{request.spec} is no architecture known here and is not in the local cache: "
            f"add --download, or give a folder with config.json{'; ' + near if near else ''}"
        ) from None
    if not fields:
        raise UnknownModel(f"{request.spec} has an empty config.json: give a folder that save_pretrained wrote")
    return dict(fields)


def _with_overrides(kind: Any, fields: Mapping[str, Any], *, request: ModelRequest) -> Any:
    """The configuration, built anew with the overrides so that what follows from them is derived."""
    try:
        config = kind.from_dict(dict(fields))
        types = {
            name: arguments.type_of(value)
            for name, value in {**config.to_dict(), **_aliases(config)}.items()
            if not name.startswith("_")
        }
        values = arguments.parse(request.overrides, types, owner=request.spec)
        return kind.from_dict({**fields, **values}) if values else config
    except RooflightError:
        raise
    except Exception as error:
        raise BadInput(
            f"{request.spec} cannot be configured so: {one_line(error)}; check --set and config.json"
        ) from error


def _aliases(config: Any) -> dict[str, Any]:
    """Other names under which the configuration answers (`num_hidden_layers` for gpt2's `n_layer`)."""
    return {name: getattr(config, name, None) for name in config.attribute_map}


def _class_for(library: Any, config: Any) -> Any:
    """The class with the most telling head that this architecture has.

    Encoders such as BERT are in the list of causal models too, as decoders in an encoder-decoder pair: they count as
    masked language models unless their configuration says `is_decoder`.
    """
    auto = library.models.auto.modeling_auto
    masked = type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING
    heads = (
        ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", config.is_encoder_decoder),
        ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", config.is_encoder_decoder),
        ("MODEL_FOR_CAUSAL_LM_MAPPING", not masked or getattr(config, "is_decoder", False)),
        ("MODEL_FOR_MASKED_LM_MAPPING", True),
        ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING", True),
        ("MODEL_MAPPING", True),
    )
    for name, fits in heads:
        if fits and type(config) in (classes := getattr(auto, name)):
            entry = classes[type(config)]
            return entry[0] if isinstance(entry, (tuple, list)) else entry
    raise UnknownModel(f"transformers has no model for {type(config).__name__}; name a class, as in hf:BertForMaskedLM")


def _constructed(cls: Any, config: Any, *, request: ModelRequest, device: torch.device) -> nn.Module:
    try:
        model = inputs.constructed(lambda: cls(config), device)
    except Exception:
        if device.type != "meta":
            raise
        try:  # a few architectures compute values while they are built
            model = inputs.constructed(lambda: cls(config), torch.device("cpu"))
        except Exception as error:
            raise BadInput(f"{request.spec} cannot be built so: {one_line(error)}; check --set") from error
    assert isinstance(model, nn.Module)
    return model


def _task(cls: Any) -> Task:
    name = cls.__name__
    if "MaskedLM" in name:
        return "masked-lm"
    if "CausalLM" in name or "LMHead" in name or "ConditionalGeneration" in name:
        return "language-model"
    return "classification" if "Classification" in name else "features"


def _lengths(config: Any, request: ModelRequest, *, task: Task, main: str) -> tuple[int | None, int | None]:
    limit = getattr(config, "max_position_embeddings", None)
    limit = limit if isinstance(limit, int) and limit > 0 else None
    shape = request.input_shape
    given = request.seq or (shape.dims[0] if shape is not None and shape.kind == "int" else None)
    if request.step == "decode":
        if task != "language-model" or config.is_encoder_decoder:
            raise BadInput(f"{request.spec} cannot decode: it is no causal language model; use --step=infer")
        past = request.past or given or min(DEFAULT_SEQUENCE, (limit or DEFAULT_SEQUENCE + 1) - 1)
        _check_limit(request, past + 1, limit=limit)
        return 1, past
    if main != "input_ids":
        return None, None
    wanted = given or min(DEFAULT_SEQUENCE, limit or DEFAULT_SEQUENCE)
    _check_limit(request, wanted, limit=limit)
    return wanted, None


def _check_limit(request: ModelRequest, wanted: int, *, limit: int | None) -> None:
    if limit is not None and wanted > limit:
        raise BadInput(f"{request.spec} has {limit} positions, this step needs {wanted}; shorten --seq or --past")


def _main_input(
    main: str, model: nn.Module, *, config: Any, request: ModelRequest, device: torch.device, sequence: int | None
) -> torch.Tensor:
    """Token numbers, images of the configured size, or whatever --input describes."""
    if request.input_shape is not None and main != "input_ids":
        return inputs.from_shape(request.input_shape, model, request=request, device=device)
    if main == "pixel_values":
        side: Any = getattr(config, "image_size", None) or 224
        height, width = side if isinstance(side, (tuple, list)) else (side, side)
        shape = InputShape((int(getattr(config, "num_channels", 3)), int(height), int(width)))
        return inputs.from_shape(shape, model, request=request, device=device)
    if sequence is None:
        raise BadInput(f"{request.spec} takes {main}; give its shape, as in --input=80x3000")
    if request.input_shape is not None and (request.input_shape.kind == "float" or len(request.input_shape.dims) > 1):
        raise BadInput(f"--input={request.input_shape}: {request.spec} takes tokens; set their number with --seq")
    return inputs.tokens((request.batch, sequence), model, device=device)


@torch.no_grad()
def _prefilled(model: nn.Module, past: int, *, request: ModelRequest, device: torch.device) -> Any:
    """The cache after `past` tokens, made by the model itself: only it knows the shapes."""
    prompt = inputs.tokens((request.batch, past), model, device=device)
    try:
        cache = getattr(model(input_ids=prompt, use_cache=True), "past_key_values", None)
    except Exception as error:
        raise BadInput(
            f"{request.spec} fails on the prompt before the decoding step: {one_line(error)}; try --step=infer"
        ) from error
    if cache is None:
        raise BadInput(f"{request.spec} keeps no key-value cache, so it cannot decode here; use --step=infer")
    return cache
