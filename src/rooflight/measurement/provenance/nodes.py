"""Reads FX nodes and Inductor's buffers: names of modules and ops, and which nodes a kernel was made of."""

from __future__ import annotations

import re
from typing import Any


def without_wrappers(path: str) -> str:
    """The path without the wrappers that `torch.compile` puts around modules."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def module_path(source: str) -> str:
    """From Dynamo's way of naming a module, `L['self'].layer1[0]._modules['conv']`, to `layer1.0.conv`."""
    rest = re.sub(r"^[LG]\[['\"]\w+['\"]\]", "", source)
    rest = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", rest)
    return without_wrappers(".".join(part for part in rest.split(".") if part not in ("", "_modules")))


def packet(target: Any) -> str | None:
    schema = getattr(target, "_schema", None)
    return None if schema is None else str(schema.name)


def fused_nodes(schedule: Any) -> list[Any]:
    """The FX nodes of a fused kernel; a schedule also holds marks that are no nodes."""
    items = [node for item in schedule for node in (item.get_nodes() if hasattr(item, "get_nodes") else [item])]
    buffers = [item.node for item in items if getattr(item, "node", None) is not None]
    return [origin for buffer in buffers for origin in made_of(buffer)]


def made_of(buffer: Any) -> list[Any]:
    """The FX nodes of an Inductor buffer. An input that is only copied into another layout is copied for its users."""
    nodes = [node for node in buffer.origins if node.op == "call_function"]
    return nodes or [user for node in buffer.origins for user in node.users if user.op == "call_function"]


def sources(node: Any) -> list[Any]:
    """The nodes that make a node's inputs, not those that only pick one of several results; the latest is last."""
    found = []
    for source in node.all_input_nodes:
        while getattr(source.target, "__name__", "") == "getitem":
            source = source.all_input_nodes[0]
        found.append(source)
    return sorted(found)
