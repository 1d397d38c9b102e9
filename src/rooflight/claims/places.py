"""Which part of a model a row speaks of: a path, the end of one, `Conv2d-4`, a type of layer, an op, or all of it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from rooflight.claims.result import CannotTell
from rooflight.ledger import LOSS, OPTIMIZER, Ledger, Module, Op, is_inside

Kind = Literal["total", "module", "type", "op"]
_TOTAL = frozenset({"", "total", "model", "all", "sum", "step", "network", "whole model", "the model", "overall"})
_NUMBERED = re.compile(r"(?P<type>[A-Za-z_]\w*?)-(?P<number>\d+)")
_TYPES = {"conv": "Conv", "convs": "Conv", "convolution": "Conv", "convolutions": "Conv", "conv layers": "Conv",
          "fc": "Linear", "linear layers": "Linear", "fully connected": "Linear", "dense": "Linear"}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A part of the model: its modules (of a type, all of that type) and the ops that run in it, views left out."""

    name: str
    kind: Kind
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


def place_of(ledger: Ledger, text: str) -> Place:
    """The part that a row names; raises `CannotTell` where there is none, or more than one."""
    name = " ".join(text.split())
    if name.lower() in _TOTAL or _same(name, ledger.header.model):
        return Place("total", "total", ledger.modules, tuple(op for op in ledger.ops if op.kind != "view"))
    if name in (LOSS, OPTIMIZER):
        return Place(name, "module", (), _ops(ledger, name))
    found = _numbered(ledger, name) or _by_path(ledger, name)
    if found is not None:
        below = tuple(module for module in ledger.modules if is_inside(module.path, found.path))
        return Place(found.path or "total", "module", (found, *(m for m in below if m is not found)),
                     _ops(ledger, found.path))  # fmt: skip
    return _by_type(ledger, name) or _by_op(ledger, name) or _unknown(ledger, name)


def _ops(ledger: Ledger, path: str) -> tuple[Op, ...]:
    return tuple(op for op in ledger.ops if op.kind != "view" and is_inside(op.module, path))


def _numbered(ledger: Ledger, name: str) -> Module | None:
    """`Conv2d-4`: the fourth module without children."""
    match = _NUMBERED.fullmatch(name)
    if match is None or any(module.path == name for module in ledger.modules):
        return None
    known = leaves(ledger)
    number = int(match["number"])
    if not any(module.type.lower() == match["type"].lower() for module in known):
        return None
    if not 0 < number <= len(known):
        raise CannotTell(f"{ledger.header.model} has {len(known)} layers without children, and no {name}")
    found = known[number - 1]
    if found.type.lower() != match["type"].lower():
        raise CannotTell(f"layer {number} of {ledger.header.model} is a {found.type} ({found.path}), and not {name}")
    return found


def _by_path(ledger: Ledger, name: str) -> Module | None:
    """The path itself, or the end of one that only one module has; `features_0` is `features.0`."""
    wanted = _plain(name)
    paths = {module.path: module for module in ledger.modules if module.path}
    if name in paths:
        return paths[name]
    equal = [module for path, module in paths.items() if _plain(path) == wanted]
    ending = [module for path, module in paths.items() if _plain(path).endswith("." + wanted)]
    found = equal or ending or [module for path, module in paths.items() if _squashed(path, name)]
    if len(found) > 1:
        some = ", ".join(module.path for module in found[:3])
        raise CannotTell(f"{name!r} is the end of {len(found)} paths ({some}, ...): write a longer one")
    return found[0] if found else None


def _by_type(ledger: Ledger, name: str) -> Place | None:
    known = leaves(ledger)
    found = [module for module in known if module.type.lower() == name.lower()]
    if not found and (start := _TYPES.get(name.lower())) is not None:
        found = [module for module in known if module.type.startswith(start)]
    if not found:
        return None
    paths = {module.path for module in found}
    ops = tuple(op for op in ledger.ops if op.kind != "view" and op.module in paths)
    return Place(found[0].type, "type", tuple(found), ops)


def _by_op(ledger: Ledger, name: str) -> Place | None:
    wanted = name.lower().removeprefix("aten::").removeprefix("f.")
    packets = {op.packet for op in ledger.ops if op.kind != "view"}
    equal = {packet for packet in packets if packet.removeprefix("aten::").strip("_") == wanted.strip("_")}
    found = equal or {packet for packet in packets if packet.removeprefix("aten::").startswith(wanted)}
    if not wanted or not found:
        return None
    if len(found) > 1:
        raise CannotTell(f"{name!r} is the beginning of {', '.join(sorted(found))}: write one of them")
    (packet,) = found
    return Place(packet, "op", (), tuple(op for op in ledger.ops if op.packet == packet and op.kind != "view"))


def _unknown(ledger: Ledger, name: str) -> Place:
    known = [module.path for module in ledger.modules if module.path]
    if not known:
        raise CannotTell(f"the ledger has no layers, and so no {name!r}", "a ledger of rooflight estimate or measure")
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known[:4])}, ..."
    raise CannotTell(f"{ledger.header.model} has no layer {name!r}: {hint}")


def _plain(path: str) -> str:
    return re.sub(r"[./_\s\[\]-]+", ".", path.lower()).strip(".")


def _squashed(path: str, name: str) -> bool:
    """`conv 2` and `conv-2` are `conv2`, the path itself or its last part."""
    wanted = re.sub(r"[\s_-]+", "", name.lower())
    return bool(wanted) and wanted in (path.lower(), path.lower().rpartition(".")[2])


def _same(one: str, other: str) -> bool:
    return same_model(one, other)


def same_model(one: str, other: str) -> bool:
    """`VGG-16` is `vgg16`."""
    first, second = (re.sub(r"[^a-z0-9]", "", name.lower().rpartition(":")[2]) for name in (one, other))
    return bool(first) and first == second
