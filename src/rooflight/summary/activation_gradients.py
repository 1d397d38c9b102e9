"""Gradients of activations, which lectures call errors: what backward hands from a layer to the one before it.

A ledger files them with all else that a step makes and loses again; they are told apart by who makes them and who reads
them.
"""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.ledger import Ledger, Op, Storage, Tensor

ACTIVATION_GRADIENT = "activation-gradient"
"""In what memory is split into."""
_ADDED_TO_GRADIENTS = frozenset({"aten::add", "aten::add_", "aten::_to_copy", "aten::clone", "aten::copy_"})
"""Ops that a gradient goes through on its way to where it is kept."""
_SEEDS = frozenset({"aten::ones_like"})
"""Ops that make the gradient with which backward begins."""
_REAL = ("fp64", "fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2")


def activation_gradients(ledger: Ledger) -> set[int]:
    """The places in `ledger.storages` of the floating-point storages that ops of backward make of a gradient, and that
    are neither the gradient of a parameter, nor a part of one on its way (in another precision, or of one of two uses),
    nor an activation that is computed again."""
    places = {storage.id: place for place, storage in enumerate(ledger.storages)}
    made = {
        place
        for place, storage in enumerate(ledger.storages)
        if storage.category == "temporary" and not storage.host and _is_made_in_backward(storage, ledger)
    }
    real: set[int] = set()
    towards = {place for place, storage in enumerate(ledger.storages) if storage.category == "gradient"}
    of_parameters = set(towards)
    for op in reversed(ledger.ops):  # who reads comes after who makes
        real |= {places[tensor.storage] for tensor in op.outputs if tensor.dtype in _REAL and tensor.storage in places}
        if op.phase == "backward":
            towards |= _parts_of_gradients(op, towards, places)
    return (made & real & _from_gradients(ledger, places)) - (towards - of_parameters)


def _from_gradients(ledger: Ledger, places: dict[int, int]) -> set[int]:
    """What ops of backward make of a gradient, beginning with the loss's own. What they make of activations alone, as
    the derivative of a power, is none."""
    found: set[int] = set()
    for op in ledger.ops:
        if op.phase != "backward" or op.recompute:
            continue
        read = {places[tensor.storage] for tensor in op.inputs if tensor.storage in places}
        if op.packet in _SEEDS or not read or read & found:
            found |= {places[tensor.storage] for tensor in op.outputs if tensor.storage in places}
    return found


def _is_made_in_backward(storage: Storage, ledger: Ledger) -> bool:
    if storage.born is None or storage.born >= len(ledger.ops):
        return False
    maker = ledger.ops[storage.born]
    return maker.phase == "backward" and not maker.recompute


def _parts_of_gradients(op: Op, towards: set[int], places: dict[int, int]) -> set[int]:
    """What an op only casts or adds to the gradient of a parameter."""
    if op.packet not in _ADDED_TO_GRADIENTS:
        return set()
    sizes = {tensor.numel for tensor in _in(op.outputs, towards, places)}
    return {places[tensor.storage] for tensor in op.inputs if tensor.storage in places and tensor.numel in sizes}


def _in(tensors: Iterable[Tensor], wanted: set[int], places: dict[int, int]) -> list[Tensor]:
    return [tensor for tensor in tensors if places.get(tensor.storage) in wanted]
