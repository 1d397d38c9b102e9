"""`hf:NAME-or-folder`: Hugging Face architectures from their configuration alone, with random weights.

NAME is a folder with a config.json, a model type (`gpt2`, `llama`, `bert`: its default configuration), a class
(`BertForMaskedLM`), or a name on the hub, which is looked up in the local cache, and downloaded only if asked. Released
models by their own names (`qwen3-8b`) are built here, too, from the configurations of `released.toml`.
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
from rooflight.ledger import Note
from rooflight.models import arguments, huggingface_inputs, inputs
from rooflight.models.huggingface_defaults import COMPLETED
from rooflight.models.optional_packages import imported
from rooflight.models.registry import WHERE_LISTED
from rooflight.models.released import RELEASED, ReleasedModel
from rooflight.models.workload import ModelRequest, Task, Workload

DEFAULT_SEQUENCE = 128
RELEASED_SEQUENCE = 2048
"""Of released models that write text, as of those built in."""


def load(name: str, request: ModelRequest) -> Workload:
    """Build the model that the configuration describes, with inputs of its kind."""
    with _offline(not request.download):
        library = imported("transformers")
        config, cls = _configured(library, name, request=request)
        model = _built(library, config, cls, request=request)
    notes = (_default_note(model, request),) if _is_default(library, name) else ()
    return _workload(model, request=request, notes=tuple(filter(None, notes)))


def load_released(entry: ReleasedModel, request: ModelRequest) -> Workload:
    """Build a released model from the configuration that is written here."""
    with _offline(True):
        library = imported("transformers")
        types = _config_types(library)
        if entry.type not in types:
            raise UnknownModel(
                "package-too-old",
                f"{entry.name} needs a transformers that knows {entry.type}: pip install -U transformers",
            )
        config = _with_overrides(types[entry.type], entry.config, request=request)
        cls = getattr(library, entry.cls) if entry.cls else None
        model = _built(library, config, cls, request=request)
    return _workload(model, request=request, usual_sequence=RELEASED_SEQUENCE)


def _built(library: Any, config: Any, cls: Any, *, request: ModelRequest) -> nn.Module:
    device = inputs.device_of(request)
    model = _constructed(cls or _class_for(library, config), config, request=request, device=device)
    return inputs.make_ready(model, request)


def _workload(
    model: nn.Module, *, request: ModelRequest, notes: tuple[Note, ...] = (), usual_sequence: int = DEFAULT_SEQUENCE
) -> Workload:
    task = _task(type(model))
    generates = task == "language-model" and not model.config.is_encoder_decoder  # type: ignore[union-attr]
    usual = usual_sequence if generates else DEFAULT_SEQUENCE
    step = huggingface_inputs.step_inputs(model, task, request=request, usual_sequence=usual)
    return request.workload(
        model,
        args=(),
        kwargs=step.kwargs,
        sequence=step.sequence,
        past=step.past,
        task=task,
        optimizer="adamw",
        notes=(*notes, *step.notes),
    )


def _config_types(library: Any) -> Any:
    return library.models.auto.configuration_auto.CONFIG_MAPPING


def _is_default(library: Any, name: str) -> bool:
    """Nobody but the library says how large it is: the name is a type of model, or a class."""
    return (name in _config_types(library) or hasattr(library, name)) and not Path(name).is_dir()


def _default_note(model: nn.Module, request: ModelRequest) -> Note | None:
    """The library's default is mostly a model that nobody has released."""
    count = sum(parameter.numel() for parameter in model.parameters())
    kind = str(model.config.model_type)  # type: ignore[union-attr]
    like = [entry for entry in RELEASED.values() if entry.type == kind]
    if any(entry.has(count) for entry in like) or request.overrides:
        return None
    completed = COMPLETED.get(kind)
    lacked = f" with {', '.join(completed.fields)} of {completed.of}" if completed else ""
    told = f"{request.spec} is the library's default configuration{lacked} ({_size(count)} parameters), "
    if not like:
        told += "which need not be a released model: those are given as hf:FOLDER, with their config.json"
    else:
        told += f"not one of the released models: {', '.join(entry.name for entry in like)}"
    return Note("default-configuration", told)


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


def _size(count: int) -> str:
    """As people speak of the sizes of models: in millions and billions."""
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


def _configured(library: Any, name: str, *, request: ModelRequest) -> tuple[Any, Any]:
    """The configuration with the user's overrides, and the model's class where the name or the file says it."""
    types = _config_types(library)
    if name in types and not Path(name).is_dir():
        return _default(types[name], request=request), None
    named: Any = getattr(library, name, None) if name.isidentifier() else None
    if inspect.isclass(named) and issubclass(named, library.PreTrainedModel):
        kind = getattr(named, "config_class", None)
        if kind is not None:
            return _default(kind, request=request), named
    fields = _fields(library, name, request=request, known=list(types))
    model_type = fields.get("model_type")
    if model_type not in types:
        raise UnknownModel(
            "unknown-model",
            f"{request.spec}: config.json has no model_type known here; "
            + suggest(str(model_type), types, otherwise=WHERE_LISTED),
        )
    config = _with_overrides(types[model_type], fields, request=request)
    cls = getattr(library, (fields.get("architectures") or [""])[0] or "-", None)
    return config, cls


def _default(kind: Any, *, request: ModelRequest) -> Any:
    """The library's default of a type, and what that lacks to be run."""
    completed = COMPLETED.get(kind.model_type)
    return _with_overrides(kind, completed.fields if completed else {}, request=request)


def _fields(library: Any, name: str, *, request: ModelRequest, known: list[str]) -> dict[str, Any]:
    """The entries of config.json, from a folder, the local cache or (if asked) the hub."""
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UnknownModel(
            "no-model-config", f"{request.spec}: the folder has no config.json: give one that save_pretrained wrote"
        )
    try:
        fields, _ = library.PreTrainedConfig.get_config_dict(
            str(folder) if folder.is_dir() else name, local_files_only=not request.download
        )
    except Exception as error:
        if request.download or folder.is_dir():
            raise UnknownModel("no-model-config", f"{request.spec} cannot be read: {one_line(error)}") from error
        near = suggest(name, known, otherwise="")
        raise UnknownModel(
            "unknown-model",
            f"{request.spec} is no architecture known here and is not in the local cache: "
            f"add --download, or give a folder with config.json{'; ' + near if near else ''}",
        ) from None
    if not fields:
        raise UnknownModel(
            "no-model-config", f"{request.spec} has an empty config.json: give a folder that save_pretrained wrote"
        )
    return dict(fields)


def _with_overrides(kind: Any, fields: Mapping[str, Any], *, request: ModelRequest) -> Any:
    """The configuration, built anew with the overrides so that what follows from them is derived."""
    try:
        config = kind.from_dict(dict(fields))
        if not request.overrides:
            return config
        known = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
        types = {name: arguments.type_of(value) for name, value in {**_flat(known), **_aliases(config)}.items()}
        values = arguments.parse(request.overrides, types, owner=request.spec)
        return kind.from_dict({**fields, **_nested(values, known)})
    except RooflightError:
        raise
    except Exception as error:
        raise BadInput(
            "model-not-built", f"{request.spec} cannot be configured so: {one_line(error)}; {_how_to_mend(request)}"
        ) from error


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a configuration, and of those within it by their path: `text_config.num_hidden_layers`."""
    within = {name: value for name, value in fields.items() if isinstance(value, dict)}
    return {**fields, **{f"{name}.{key}": value for name, part in within.items() for key, value in part.items()}}


def _nested(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The other way round; what was not set within a configuration stays as it was."""
    fields = {name: value for name, value in values.items() if "." not in name}
    for path, value in values.items():
        name, dot, key = path.partition(".")
        if dot:
            fields[name] = {**fields.get(name, known[name]), key: value}
    return fields


def _aliases(config: Any) -> dict[str, Any]:
    """Other names under which the configuration answers (`num_hidden_layers` for gpt2's `n_layer`)."""
    return {name: getattr(config, name, None) for name in config.attribute_map}


def _class_for(library: Any, config: Any) -> Any:
    """The class with the most telling head that this architecture has.

    Encoders such as BERT are in the list of causal models too, as decoders in an encoder-decoder pair: they count as
    masked language models unless their configuration says `is_decoder`.
    """
    auto = library.models.auto.modeling_auto
    masked = type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    of_parts = hasattr(config, "text_encoder")  # MusicGen: these two are its decoder alone
    unfit = {
        "SEQ_TO_SEQ_CAUSAL_LM": not config.is_encoder_decoder,
        "SPEECH_SEQ_2_SEQ": not config.is_encoder_decoder,
        "CAUSAL_LM": masked or of_parts,
        "": of_parts,
        "CTC": getattr(config, "vocab_size", None) is None,
    }
    for head in _HEADS:
        classes = getattr(auto, f"MODEL_FOR_{head}_MAPPING" if head else "MODEL_MAPPING", {})
        if type(config) in classes and not unfit.get(head, False):
            entry = classes[type(config)]
            return entry[0] if isinstance(entry, (tuple, list)) else entry
    raise UnknownModel(
        "unknown-model",
        f"transformers has no model for {type(config).__name__}; name a class, as in hf:BertForMaskedLM",
    )


_HEADS = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "CAUSAL_LM",
    "MASKED_LM",
    "CTC",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "OBJECT_DETECTION",
    "UNIVERSAL_SEGMENTATION",
    "SEMANTIC_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "MASK_GENERATION",
    "",
    "MULTIMODAL_LM",
    "TEXT_TO_WAVEFORM",
    "TEXT_TO_SPECTROGRAM",
    "TIME_SERIES_PREDICTION",
    "PRETRAINING",
)
"""As transformers' tables of classes are called, the most telling first; the one without a name holds models without a
head. Text with images comes before text alone, so that nothing of a model is left out."""


def _constructed(cls: Any, config: Any, *, request: ModelRequest, device: torch.device) -> nn.Module:
    def make() -> nn.Module:
        model = cls(config)
        assert isinstance(model, nn.Module)
        return model

    try:
        try:
            return inputs.constructed(make, device)
        except Exception as error:
            if not inputs.lacks_values(error):
                raise
            return inputs.constructed(make, torch.device("cpu"))
    except ImportError as error:
        raise BadInput("model-not-built", f"{request.spec} cannot be built here: {one_line(error)}") from error
    except Exception as error:
        if device.type != "meta":
            raise
        raise BadInput(
            "model-not-built", f"{request.spec} cannot be built so: {one_line(error)}; {_how_to_mend(request)}"
        ) from error


def _how_to_mend(request: ModelRequest) -> str:
    name = request.spec.partition(":")[2]
    if request.overrides or "/" in name or Path(name).is_dir():
        return "check --set and config.json"
    return (
        "the library's default configuration lacks something: give a folder with the config.json of a released model, "
        "as in hf:FOLDER, or --set FIELD=VALUE"
    )


def _task(cls: Any) -> Task:
    """By the name of its class; those that are looked for stand in front of what every class is for."""
    return next((task for word, task in _TASKS.items() if word in cls.__name__), "features")


_TASKS: Mapping[str, Task] = {
    "MaskedLM": "masked-lm",
    "CausalLM": "language-model",
    "LMHead": "language-model",
    "ConditionalGeneration": "language-model",
    "ForVisionText2Text": "language-model",
    "SpeechToText": "language-model",
    "EncoderDecoder": "language-model",
    "Classification": "classification",
    "ForCTC": "classification",
    "ForObjectDetection": "classification",
    "SemanticSegmentation": "classification",
}
