"""Is a model compiled, and how to have it compiled."""

from __future__ import annotations

from typing import Any


def is_compiled(model: Any) -> bool:
    """Does any part of the model run through `torch.compile`?"""
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(getattr(module, "forward", None), "_torchdynamo_orig_callable")
        for module in model.modules()
    )


def compiled(model: Any, *, mode: str | None = None) -> Any:
    """The model as `torch.compile` runs it; one that is compiled already is left as it is."""
    import torch

    return model if is_compiled(model) else torch.compile(model, mode=mode)
