"""Reads FX nodes and Inductor's buffers: names of modules and ops, and which nodes a kernel was made of."""

from __future__ import annotations

import re
from typing import Any

from rooflight.measurement.execution.provenance.graphs import family


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


def packet_inside(node: Any) -> str | None:
    """Of an operator that runs another one (as checkpointing does, to have its random numbers again): that one."""
    return next((name for name in map(packet, node.args[:2]) if name is not None), None)


def metadata(node: Any) -> dict[str, Any]:
    """What a node knows of its past; where it was put in later and knows nothing, what its results know."""
    for _ in range(3):
        if node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or len(node.users) == 0:
            break
        picks = [user for user in node.users if getattr(user.target, "__name__", "") == "getitem"]
        if len(picks) != len(node.users):
            break
        node = picks[-1]
    meta: dict[str, Any] = node.meta
    return meta


def is_library(node: Any) -> bool:
    """Does a node stand for work that is left to a library?"""
    return node.op == "call_function" and family(packet(node.target) or "") in _LIBRARY


def merged(before: list[Any], now: list[Any]) -> dict[Any, Any]:
    """Nodes that stand for a library's work but bear the past of another op or none, and those they stand in for.

    A product that was merged with a sum knows of the sum at most: the product is the one of its shape that is gone.
    """
    names = {node.name for node in now}
    gone = [node for node in before if node.name not in names]
    stands_for = {}
    for node in now:
        original = packet(node.meta.get("original_aten"))
        orphan = not (node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack"))
        if is_library(node) and (orphan or original is None or family(original) != family(packet(node.target) or "")):
            lost = next((other for other in gone if _shape(other) == _shape(node)), None)
            if lost is not None:
                gone.remove(lost)
                stands_for[node] = lost
    return stands_for


def _shape(node: Any) -> tuple[Any, ...]:
    return tuple(getattr(node.meta.get("val"), "shape", ()))


_LIBRARY = {"mm", "bmm", "convolution", "convolution_backward", "attention", "attention_backward"}


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
    makers = []
    for source in node.all_input_nodes:
        while getattr(source.target, "__name__", "") == "getitem":
            source = source.all_input_nodes[0]
        makers.append(source)
    return sorted(makers)
