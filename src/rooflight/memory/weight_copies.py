"""Autocast's copies of weights: it keeps them until forward is over, and autograd until backward has used them."""

from __future__ import annotations

from rooflight.ledger import Ledger

CATEGORY = "weight-copy"
"""In what memory is split into. They are saved for backward as activations are, but do not grow with the batch."""


def copies_of_weights(ledger: Ledger) -> set[int]:
    """The numbers of the storages that weights are cast into."""
    if ledger.header.autocast is None:
        return set()
    weights = {one.id for one in ledger.storages if one.category == "parameter"}
    number = {one.id: place for place, one in enumerate(ledger.storages)}
    return {
        number[made.storage]
        for op in ledger.ops
        if op.packet == "aten::_to_copy" and any(one.storage in weights for one in op.inputs)
        for made in op.outputs
        if made.storage in number
    }
