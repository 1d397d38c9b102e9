"""Parameters that no op of a step reads: a tower that had no input, a head that was not asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rooflight.formatting import percent
from rooflight.ledger import Note, Op, Storage, tensors_in

_NAMED = 3


def unused_note(sizes: Mapping[str, int], storages: Iterable[Storage], ops: Iterable[Op]) -> Note | None:
    """One line that names them, `None` where all are read. `sizes`: elements of every parameter by its name.

    Parameters that share a storage are read together: tied weights, and the flat weights of recurrent layers. What the
    optimizer reads does not count: it updates whatever it was given.
    """
    stepping = (op for op in ops if op.phase != "optimizer")
    read = {tensor.storage for op in stepping for tensor in tensors_in(op.args.values())}
    unread = {storage.name for storage in storages if storage.category == "parameter" and storage.id not in read}
    unused = {name: size for name, size in sizes.items() if name in unread}
    if not any(unused.values()):
        return None
    count, total = sum(unused.values()), sum(sizes.values())
    places = _places(unused, sizes)
    largest = sorted(places, key=places.__getitem__, reverse=True)
    named = ", ".join(f"{place} ({places[place]:,})" for place in largest[:_NAMED])
    more = f" and {len(largest) - _NAMED} more" if len(largest) > _NAMED else ""
    return Note(
        "unused-parameters",
        f"{count:,} of {total:,} parameters ({percent(count / total)}) were never used in this step: {named}{more}",
    )


def _places(unused: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """The largest modules of which nothing is used, as `vision_tower.*`, and single parameters of others."""
    used_modules = {parent for name in sizes if name not in unused for parent in _parents(name)}
    places: dict[str, int] = {}
    for name, size in unused.items():
        idle = next((f"{parent}.*" for parent in _parents(name) if parent not in used_modules), name)
        places[idle] = places.get(idle, 0) + size
    return places


def _parents(name: str) -> list[str]:
    """The modules that a parameter is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]
