"""Users' own models: `package.module:factory` and `path/to/file.py:factory`; inputs from the factory or --input."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from rooflight.errors import BadInput, UnknownModel, one_line, suggest
from rooflight.ledger import Note
from rooflight.models import arguments, inputs
from rooflight.models.dtypes import DTYPE_NAMES
from rooflight.models.optional_packages import declare_missing_operators
from rooflight.models.workload import DTYPES, ModelRequest, Task, Workload, optimizer_for

_FORMS = "an nn.Module, (module, inputs) or (module, args, kwargs)"


@dataclass(frozen=True)
class _FactoryResult:
    """What a factory returned; `args` is None where it left the inputs to us."""

    model: nn.Module
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any]


def load(place: str, name: str, *, request: ModelRequest) -> Workload:
    """Import the factory, call it, and complete what it returned with inputs."""
    if request.step == "decode":
        raise BadInput(
            "cannot-decode",
            f"{request.spec} cannot decode: write the cache into your factory's inputs and use --step=infer",
        )
    factory = _find(_imported(place), name, spec=request.spec)
    device = inputs.device_of(request)
    values = _call_arguments(factory, request)
    result = _made(factory, values, request=request, device=device)
    request, is_converted = _in_own_type(result.model, request)
    model, home = result.model, _home(result.model, device)
    model = model.to(device) if device.type not in ("meta", home.type) else model
    model = inputs.make_ready(model, request) if is_converted else model.train(request.step == "train")
    home = _home(model, device)
    args, kwargs = _step_inputs(result, model, request=request, home=home, is_converted=is_converted)
    batch = _batch(result, request, takes_batch="batch" in values)
    tokens = next((leaf for leaf in tree_leaves((args, kwargs)) if _is_tokens(leaf)), None)
    task = _task(tokens, args)
    return request.workload(
        model,
        args=args,
        kwargs=kwargs,
        batch=batch,
        sequence=_sequence(tokens, values),
        task=task,
        optimizer=optimizer_for(task),
        notes=() if is_converted else (Note("own-dtype", f"{request.spec} is made in {request.dtype}, and stays so"),),
    )


def _imported(place: str) -> ModuleType:
    """The module, from a file or by its dotted name; the current directory is searched first, as `python -m` does."""
    declare_missing_operators()  # the user's file may import torchvision
    try:
        if place.endswith(".py") or "/" in place:
            return _from_file(Path(place))
        sys.path[:] = dict.fromkeys((str(Path.cwd()), *sys.path))  # first, also where it was searched before
        return importlib.import_module(place)
    except SyntaxError as error:
        where = f"{Path(error.filename or place).name}:{error.lineno}"
        raise UnknownModel(
            "model-not-imported", f"SyntaxError at {where}: {error.msg}; mend the file of {place!r}"
        ) from error
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise UnknownModel(
                "module-not-found",
                f"no module {error.name!r} here or among the installed packages; "
                f"run from the folder that has it, or give path/to/file.py:factory",
            ) from None
        raise UnknownModel("model-not-imported", _raised(error, place)) from error
    except UnknownModel:
        raise
    except SystemExit:
        raise UnknownModel(
            "model-not-imported", f"{place} ends the program while it is imported; put that under `if __name__ == ...`"
        ) from None
    except Exception as error:
        raise UnknownModel("model-not-imported", _raised(error, place)) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownModel("file-not-found", f"no file {path}; give an existing path/to/file.py:factory")
    name = f"rooflight_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownModel("not-a-python-file", f"{path} is no Python file; give path/to/file.py:factory")
    sys.path[:] = dict.fromkeys((str(path.resolve().parent), *sys.path))
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by name while the file still runs.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _raised(error: BaseException, place: str) -> str:
    """Where in the user's code, and what: the last frame that is neither ours nor the import machinery's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else place
    return f"{type(error).__name__} at {where}: {one_line(error)}"


def _is_machinery(filename: str) -> bool:
    ours, torch_folder = Path(__file__).parent, Path(torch.__file__).parent
    path = Path(filename)
    return filename.startswith("<frozen") or path.parent == ours or torch_folder in path.parents


def _find(module: ModuleType, name: str, *, spec: str) -> Any:
    factory = getattr(module, name, None)
    if factory is None:
        names = [name for name, value in vars(module).items() if callable(value) or isinstance(value, nn.Module)]
        raise UnknownModel(
            "unknown-model",
            f"{spec}: the module has no {name!r}; " + suggest(name, names, otherwise="check the name after the colon"),
        )
    if not (isinstance(factory, nn.Module) or callable(factory)):
        raise UnknownModel(
            "not-a-factory",
            f"{spec} is of type {type(factory).__name__}; give a factory, an nn.Module class or an instance",
        )
    return factory


def _call_arguments(factory: Any, request: ModelRequest) -> dict[str, Any]:
    """The keyword arguments to call the factory with; the batch and the sequence where it takes them."""
    if isinstance(factory, nn.Module):
        if request.overrides:
            raise BadInput("unknown-argument", f"{request.spec} is a finished module: --set needs a factory or a class")
        _check_takes_sequence(request, ())
        return {}
    types = arguments.settable(factory)
    _check_takes_sequence(request, types)
    values = arguments.parse(request.overrides, types, owner=request.spec)
    for name, number in (("batch", request.batch), ("seq", request.seq)):
        if name in types and number is not None:
            values.setdefault(name, number)
    declared = inspect.signature(factory).parameters if types else {}
    missing = [name for name in types if name not in values and declared[name].default is inspect.Parameter.empty]
    if missing:
        raise BadInput("missing-argument", f"{request.spec} needs {', '.join(missing)}; add --set={missing[0]}=VALUE")
    return values


def _check_takes_sequence(request: ModelRequest, parameters: Container[str]) -> None:
    if request.seq is not None and "seq" not in parameters:
        raise BadInput(
            "no-sequence-parameter",
            f"{request.spec} takes no --seq: give the length in --input (int:128 for tokens), or give the "
            "factory a parameter `seq`",
        )


def _made(factory: Any, values: dict[str, Any], *, request: ModelRequest, device: torch.device) -> _FactoryResult:
    """Call the factory on the device; where that cannot be (it reads values, or mixes devices), on the CPU."""
    if isinstance(factory, nn.Module):
        return _FactoryResult(factory, None, {})

    def call() -> _FactoryResult:
        return _unpacked(factory(**values), request.spec)

    try:
        result = inputs.constructed(call, device)
        if device.type != "meta" or not _mixed(result):
            return result
    except BadInput:
        raise
    except Exception as error:
        if device.type != "meta":
            raise BadInput("factory-failed", f"{request.spec} failed: {_raised(error, request.spec)}") from error
    return _made(factory, values, request=request, device=torch.device("cpu"))


def _mixed(result: _FactoryResult) -> bool:
    """Part of the model has data and part has not, or the model has data and its inputs have not."""
    state = {tensor.is_meta for tensor in (*result.model.parameters(), *result.model.buffers())}
    given = {leaf.is_meta for leaf in tree_leaves((result.args, dict(result.kwargs))) if isinstance(leaf, Tensor)}
    return len(state) > 1 or (state == {False} and True in given)


def _unpacked(result: Any, spec: str) -> _FactoryResult:
    if isinstance(result, nn.Module):
        return _FactoryResult(result, None, {})
    parts = result if isinstance(result, tuple) else ()
    if len(parts) not in (2, 3) or not isinstance(parts[0], nn.Module):
        raise BadInput(
            "bad-factory-result", f"{spec} returned an object of type {type(result).__name__}; return {_FORMS}"
        )
    given = parts[1] if isinstance(parts[1], (tuple, list)) else (parts[1],)
    if len(parts) == 2 and isinstance(parts[1], Mapping):
        return _FactoryResult(parts[0], (), parts[1])
    kwargs = parts[2] if len(parts) == 3 else {}
    if not isinstance(kwargs, Mapping):
        raise BadInput(
            "bad-factory-result", f"{spec} returned keyword inputs of type {type(kwargs).__name__}; return {_FORMS}"
        )
    return _FactoryResult(parts[0], tuple(given), kwargs)


def _in_own_type(model: nn.Module, request: ModelRequest) -> tuple[ModelRequest, bool]:
    """The request in the type that the model is made in, and whether --dtype asks for another: a model of 16 bits stays
    so unless it does, and buffers of 8 bits stay so unless the rest is converted."""
    names = (DTYPE_NAMES.get(tensor.dtype) for tensor in (*model.parameters(), *model.buffers()))
    own = next((name for name in names if name in DTYPES), request.dtype)
    if request.dtype in (own, DTYPES[0]) and own != DTYPES[0]:
        return replace(request, dtype=own), False
    return request, True


def _home(model: nn.Module, device: torch.device) -> torch.device:
    first = next(iter((*model.parameters(), *model.buffers())), None)
    return device if first is None else first.device


def _step_inputs(
    result: _FactoryResult, model: nn.Module, *, request: ModelRequest, home: torch.device, is_converted: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if request.input_shape is not None:
        # A finished module has data wherever it was made; what only a trace sees needs none, however large.
        device = torch.device("meta") if request.device == "meta" else home
        return (inputs.from_shape(request.input_shape, model, request=request, device=device),), {}
    if result.args is None:
        raise BadInput(
            "missing-input",
            f"{request.spec} brings no inputs; add --input=3x224x224 (or int:128 for tokens), "
            f"or let the factory return (module, inputs)",
        )

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(home, request.torch_dtype if is_converted and leaf.is_floating_point() else leaf.dtype)

    return tree_map(placed, result.args), tree_map(placed, dict(result.kwargs))


def _batch(result: _FactoryResult, request: ModelRequest, *, takes_batch: bool) -> int:
    if result.args is None or takes_batch or request.input_shape is not None:
        return request.batch
    if request.batch != 1:
        raise BadInput(
            "no-batch-parameter",
            f"{request.spec} makes its own inputs; give the factory a `batch` parameter to use --batch",
        )
    first = next((leaf for leaf in tree_leaves((result.args, dict(result.kwargs))) if isinstance(leaf, Tensor)), None)
    return int(first.shape[0]) if first is not None and first.dim() > 0 else 1


def _sequence(tokens: Tensor | None, values: Mapping[str, Any]) -> int | None:
    """The tokens of a sequence, as the inputs show or as the factory was told."""
    if tokens is not None and tokens.dim() > 1:
        return int(tokens.shape[1])
    return values.get("seq")


def _is_tokens(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype in (torch.int64, torch.int32)


def _task(tokens: Tensor | None, args: tuple[Any, ...]) -> Task:
    """The likeliest task: token numbers make a language model, images a classifier, anything else gives features."""
    if tokens is not None:
        return "language-model"
    return "classification" if args and isinstance(args[0], Tensor) and args[0].dim() == 4 else "features"
