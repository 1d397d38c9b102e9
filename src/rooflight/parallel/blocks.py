"""What of a model repeats: the units a pipeline is cut into and FSDP wraps, its transformer blocks, its heads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from rooflight import summary
from rooflight.ledger import OUTSIDE, PASSES, Ledger, Module, Op

_CONTAINERS = frozenset({"ModuleList", "Sequential"})
_ATTENTION = frozenset({"bmm", "baddbmm"})
_WHOLE = {"_native_multi_head_attention": ("num_head", 1), "_transformer_encoder_layer_fwd": ("num_heads", 2)}
"""Inference ops that are one or two whole branches of a block, weights and all; the argument that tells the heads."""


@dataclass(frozen=True)
class ModelUnit:
    """A piece of the model that runs as a whole, with its ops in each phase."""

    path: str
    type: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    parameter_bytes: int
    output_bytes: int
    """What it hands on, for the whole batch."""


@dataclass(frozen=True)
class Model:
    """A model as a row of units, in the order of the forward pass. Every op but the optimizer's is in one of them."""

    units: tuple[ModelUnit, ...]
    blocks: tuple[int, ...]
    """Which units are its repeated transformer blocks; empty where it has none."""
    heads: int | None
    """Attention heads of a block."""
    heads_kv: int | None


def is_attention(op: Op) -> bool:
    """The part of attention that has no weights: scores and their product with the values."""
    name = op.packet.removeprefix("aten::")
    return name in _ATTENTION or (name not in _WHOLE and "attention" in name)


def whole_branches(op: Op) -> int:
    """How many branches of a block (attention, MLP) this one op is."""
    return _WHOLE.get(op.packet.removeprefix("aten::"), ("", 0))[1]


def model_of(ledger: Ledger) -> Model:
    paths = _unit_paths(ledger)
    home = _homes(ledger, paths)
    ops: dict[str, dict[str, list[int]]] = {path: {"forward": [], "backward": []} for path in paths}
    for index, (op, path) in enumerate(zip(ledger.ops, home, strict=True)):
        if op.phase in PASSES:
            ops[path][op.phase].append(index)
    by_path = {module.path: module for module in ledger.modules}
    weights = _parameter_bytes(ledger, paths)
    units = [
        ModelUnit(
            path,
            by_path[path].type,
            tuple(ops[path]["forward"]),
            tuple(ops[path]["backward"]),
            weights[path],
            by_path[path].output_bytes,
        )
        for path in paths
    ]
    units.sort(key=lambda unit: unit.forward[0] if unit.forward else len(ledger.ops))
    blocks = _blocks(ledger, units)
    heads, heads_kv = _heads(ledger, units, blocks)
    return Model(tuple(units), blocks, heads, heads_kv)


def fsdp_units(ledger: Ledger, model: Model) -> tuple[list[ModelUnit], int]:
    """The units FSDP gathers one at a time, in the order of forward, and the bytes of the weights around them."""
    units = [model.units[number] for number in model.blocks] or _top_level(ledger)
    everything = sum(storage.nbytes for storage in ledger.storages if storage.category == "parameter")
    return units, everything - sum(unit.parameter_bytes for unit in units)


def _top_level(ledger: Ledger) -> list[ModelUnit]:
    """The children of a model without repeated blocks, those that have weights and ops."""
    units = []
    for child in children(ledger.modules)[""]:
        inside = f"{child.path}."
        nbytes = sum(s.nbytes for s in ledger.storages if s.category == "parameter" and s.name.startswith(inside))
        ops = [op for op in ledger.ops if op.module == child.path or op.module.startswith(inside)]
        forward = tuple(op.index for op in ops if op.phase == "forward")
        backward = tuple(op.index for op in ops if op.phase == "backward")
        if nbytes and forward:
            units.append(ModelUnit(child.path, child.type, forward, backward, nbytes, child.output_bytes))
    return sorted(units, key=lambda unit: unit.forward[0])


def children(modules: Iterable[Module]) -> dict[str, list[Module]]:
    """Direct children by path of the parent."""
    below: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        if module.path:
            below[module.path.rpartition(".")[0]].append(module)
    return below


def _unit_paths(ledger: Ledger) -> list[str]:
    """Top-level children; a container is opened, and what little lies around a large one (`transformer.h` in GPT-2)."""
    below = children(ledger.modules)
    sums: Counter[str] = Counter()
    for module in ledger.modules:
        for path in summary.ancestry(module.path):
            sums[path] += module.params

    def is_container(module: Module) -> bool:
        return module.type in _CONTAINERS and len(below[module.path]) > 1

    attended = {op.module for op in ledger.ops if is_attention(op) or whole_branches(op)}
    around_blocks = Counter(
        child.path.rpartition(".")[0]
        for module in ledger.modules
        if is_container(module)
        for child in below[module.path]
        if any(path == child.path or path.startswith(f"{child.path}.") for path in attended)
    )

    def holds_large_container(module: Module) -> bool:
        if module.type in _CONTAINERS:
            return False
        inside = [m for m in ledger.modules if m.path.startswith(f"{module.path}.") and is_container(m)]
        large = sums[module.path] * 4 >= sums[""] and any(sums[m.path] * 2 >= sums[module.path] for m in inside)
        return large or any(around_blocks[m.path] > 1 for m in inside)

    def opened(module: Module, inside_container: bool) -> list[str]:
        # An element of a container is a unit, however it is built.
        if not inside_container and (is_container(module) or holds_large_container(module)):
            return [p for child in below[module.path] for p in opened(child, is_container(module))]
        return [module.path]

    root = next((module for module in ledger.modules if not module.path), None)
    top = root is not None and is_container(root)
    paths = [path for child in below[""] for path in opened(child, top)]
    return paths or [""]


def _homes(ledger: Ledger, paths: list[str]) -> list[str]:
    """The unit of each op. What runs between units (a residual, the loss) belongs to the one before it."""

    @cache
    def unit_of(module: str) -> str | None:
        return None if module in OUTSIDE else _unit_around(module, paths)

    current = next((path for op in ledger.ops if (path := unit_of(op.module)) is not None), paths[0])
    homes = []
    for op in ledger.ops:
        current = unit_of(op.module) or current
        homes.append(current)
    return homes


def _parameter_bytes(ledger: Ledger, paths: list[str]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for storage in ledger.storages:
        if storage.category == "parameter":
            sums[_unit_around(storage.name.rpartition(".")[0], paths) or paths[0]] += storage.nbytes
    return sums


def _unit_around(module: str, paths: list[str]) -> str | None:
    return next((path for path in summary.ancestry(module) if path in paths), None)


def _blocks(ledger: Ledger, units: list[ModelUnit]) -> tuple[int, ...]:
    """Units of one type, at least two, with attention in them; encoder and decoder layers are two types."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, unit in enumerate(units):
        if any(is_attention(ledger.ops[index]) or whole_branches(ledger.ops[index]) for index in unit.forward):
            groups[unit.type].append(number)
    return tuple(sorted(number for numbers in groups.values() if len(numbers) > 1 for number in numbers))


def _heads(ledger: Ledger, units: list[ModelUnit], blocks: tuple[int, ...]) -> tuple[int | None, int | None]:
    for number in blocks[:1]:
        for index in units[number].forward:
            op = ledger.ops[index]
            if whole_branches(op):
                heads = op.args.get(_WHOLE[op.packet.removeprefix("aten::")][0])
                return (heads, heads) if isinstance(heads, int) else (None, None)
            if not is_attention(op):
                continue
            shapes = [tensor.shape for tensor in op.inputs]
            if "attention" in op.name and len(shapes[0]) == 4:
                return shapes[0][1], shapes[1][1]
            batch = ledger.header.batch or 1
            if len(shapes[0]) == 3 and shapes[0][0] % batch == 0:
                return shapes[0][0] // batch, None
    return None, None
