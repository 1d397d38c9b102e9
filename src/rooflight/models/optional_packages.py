"""Packages that bring models and need not be installed: torchvision, timm, transformers."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch

from rooflight.errors import UnknownModel, one_line


def imported(package: str) -> Any:
    """The optional package, or one line that says how to install it."""
    declare_missing_operators()
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise UnknownModel(
                "package-missing", f"{package} needs {error.name}, which is missing: pip install {error.name}"
            ) from error
        raise UnknownModel("package-missing", f"{package} is not installed: pip install {package}") from None
    except Exception as error:  # a package built for another torch fails in ways of its own
        raise UnknownModel(
            "package-not-importable",
            f"{package} cannot be imported beside torch {torch.__version__}: {one_line(error)}; install the release "
            "that was made for it",
        ) from error


_declared: list[object] = []
"""A declaration lives as long as its library."""


def declare_missing_operators() -> None:
    """Declare what `import torchvision` asks for, where its own library cannot; call it before that import.

    A torchvision wheel built for CUDA, beside a CPU build of torch (or one of another version), fails at import with
    "operator torchvision::nms does not exist", and takes timm and transformers with it. Its networks need none of these
    operators: declaring the two that the import asks for is enough. Where the library loads, nothing is changed.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations or hasattr(torch.ops.torchvision, "nms"):
        return
    folder = Path(next(iter(spec.submodule_search_locations)))
    for compiled in (*folder.glob("_C*.so"), *folder.glob("_C*.pyd")):
        try:
            torch.ops.load_library(str(compiled))
        except (OSError, ImportError):
            continue
        if hasattr(torch.ops.torchvision, "nms"):
            return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
