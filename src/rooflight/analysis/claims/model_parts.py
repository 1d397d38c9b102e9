"""Which part of a model a row speaks of: a path, the end of one, `Conv2d-4`, a type of layer, an op, or all of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rooflight.analysis.claims.claim import CannotTell
from rooflight.ledger import OUTSIDE, Ledger, Module, Op, is_inside
from rooflight.summary.functions import is_function, row_names

PartKind = Literal["total", "module", "type", "op"]
_TOTAL = frozenset({"", "total", "model", "all", "sum", "step", "network", "whole model", "the model", "overall"})
_NUMBERED = re.compile(r"(?P<type>[A-Za-z_]\w*?)-(?P<number>\d+)")
_TYPES = {"conv": "Conv", "convs": "Conv", "convolution": "Conv", "convolutions": "Conv", "conv layers": "Conv",
          "fc": "Linear", "linear layers": "Linear", "fully connected": "Linear", "dense": "Linear"}  # fmt: skip


@dataclass(frozen=True)
class ModelPart:
    """A part of the model: its modules (of a type, all of that type) and the ops that run in it, views left out."""

    name: str
    kind: PartKind
    modules: tuple[Module, ...]
    ops: tuple[Op, ...]

    @property
    def module(self) -> Module | None:
        """The one that was named, where it is one."""
        return self.modules[0] if self.kind == "module" and self.modules else None


def leaves(ledger: Ledger) -> list[Module]:
    """Modules without children, in the order of the model: what summary tools number."""
    parents = {module.path.rpartition(".")[0] for module in ledger.modules if module.path}
    return [module for module in ledger.modules if module.path and module.path not in parents]


def part_of(ledger: Ledger, text: str) -> ModelPart:
    """The part that a row names; raises `CannotTell` where there is none, or more than one."""
    name = " ".join(text.split())
    if name.lower() in _TOTAL or same_model(name, ledger.header.model):
        return ModelPart("total", "total", ledger.modules, _ops(ledger, lambda op: True))
    if name in OUTSIDE:
        return ModelPart(name, "module", (), _ops(ledger, lambda op: is_inside(op.module, name)))
    module = _numbered(ledger, name) or _by_path(ledger, name)
    if module is not None:
        return module_part(ledger, module)
    return _by_function(ledger, name) or _by_type(ledger, name) or _by_op(ledger, name) or _unknown(ledger, name)


def module_part(ledger: Ledger, module: Module) -> ModelPart:
    """The module with all that is below it."""
    below = tuple(other for other in ledger.modules if other is not module and is_inside(other.path, module.path))
    ops = _ops(ledger, lambda op: is_inside(op.module, module.path))
    return ModelPart(module.path or "total", "module", (module, *below), ops)


def _ops(ledger: Ledger, is_part: Callable[[Op], bool]) -> tuple[Op, ...]:
    return tuple(op for op in ledger.ops if op.kind != "view" and is_part(op))


def _numbered(ledger: Ledger, name: str) -> Module | None:
    """`Conv2d-4`: the fourth module without children."""
    match = _NUMBERED.fullmatch(name)
    if match is None or any(module.path == name for module in ledger.modules):
        return None
    layers, number = leaves(ledger), int(match["number"])
    if not any(module.type.lower() == match["type"].lower() for module in layers):
        return None
    if not 0 < number <= len(layers):
        raise CannotTell(f"{ledger.header.model} has {len(layers)} layers without children, and no {name}")
    module = layers[number - 1]
    if module.type.lower() != match["type"].lower():
        raise CannotTell(f"layer {number} of {ledger.header.model} is a {module.type} ({module.path}), and not {name}")
    return module


def _by_path(ledger: Ledger, name: str) -> Module | None:
    """The path itself, or the end of one that only one module has; `features_0` is `features.0`, and `conv 2` or
    `conv-2` is `conv2`, the path itself or its last part."""
    plain, squashed = _plain(name), re.sub(r"[\s_-]+", "", name.lower())
    layers = [module for module in ledger.modules if module.path]
    if (exact := next((module for module in layers if module.path == name), None)) is not None:
        return exact
    modules = (
        [module for module in layers if _plain(module.path) == plain]
        or [module for module in layers if _plain(module.path).endswith("." + plain)]
        or [module for module in layers if squashed in (module.path.lower(), module.path.lower().rpartition(".")[2])]
    )
    if len(modules) > 1:
        first = ", ".join(module.path for module in modules[:3])
        raise CannotTell(f"{name!r} is the end of {len(modules)} paths ({first}, ...): write a longer one")
    return modules[0] if modules else None


def _by_type(ledger: Ledger, name: str) -> ModelPart | None:
    layers = leaves(ledger)
    modules = tuple(module for module in layers if module.type.lower() == name.lower())
    if not modules and (start := _TYPES.get(name.lower())) is not None:
        modules = tuple(module for module in layers if module.type.startswith(start))
    if not modules:
        return None
    paths = {module.path for module in modules}
    return ModelPart(modules[0].type, "type", modules, _ops(ledger, lambda op: op.module in paths))


def _by_op(ledger: Ledger, name: str) -> ModelPart | None:
    wanted = name.lower().removeprefix("aten::").removeprefix("f.")
    packets = {op.packet for op in ledger.ops if op.kind != "view"}
    equal = {packet for packet in packets if packet.removeprefix("aten::").strip("_") == wanted.strip("_")}
    meant = equal or {packet for packet in packets if packet.removeprefix("aten::").startswith(wanted)}
    if not wanted or not meant:
        return None
    if len(meant) > 1:
        raise CannotTell(f"{name!r} is the beginning of {', '.join(sorted(meant))}: write one of them")
    (packet,) = meant
    return ModelPart(packet, "op", (), _ops(ledger, lambda op: op.packet == packet))


def _by_function(ledger: Ledger, name: str) -> ModelPart | None:
    """`layer1.0.add()`: a function as our own tables name it, its backward with it."""
    rows = row_names(ledger) if is_function(name) else []
    if name not in rows:
        return None
    return ModelPart(name, "module", (), _ops(ledger, lambda op: rows[op.index] == name))


def _unknown(ledger: Ledger, name: str) -> ModelPart:
    paths = [module.path for module in ledger.modules if module.path]
    if not paths:
        raise CannotTell(f"the ledger has no layers, and so no {name!r}", "a ledger of rooflight estimate or measure")
    near = difflib.get_close_matches(name, paths, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(paths[:4])}, ..."
    raise CannotTell(f"{ledger.header.model} has no layer {name!r}: {hint}")


def _plain(path: str) -> str:
    return re.sub(r"[./_\s\[\]-]+", ".", path.lower()).strip(".")


def same_model(name: str, other: str) -> bool:
    """`VGG-16` is `vgg16`."""
    first, second = (re.sub(r"[^a-z0-9]", "", text.lower().rpartition(":")[2]) for text in (name, other))
    return bool(first) and first == second
