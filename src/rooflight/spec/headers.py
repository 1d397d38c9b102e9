"""What the header of a ledger tells of its step; older ones hold less."""

from __future__ import annotations

from rooflight.ledger import Header

POSITIONAL = "input "
"""With its number, the name of an input that has no other."""


def inputs_of(header: Header) -> list[str]:
    """Names of what a live module was called with; an older or shorter header does not tell."""
    return [name for name, _ in header.inputs] or [POSITIONAL]


def is_live(header: Header) -> bool:
    """Was it a module that nobody can build by its name? Older ledgers tell by the name: classes have capitals."""
    return header.live or (":" not in header.model and header.model != header.model.lower())


def length_of(header: Header) -> int | None:
    """The length as it was asked for; where no one tells, that of a model that takes it from --seq alone."""
    if header.seq is not None or header.step == "decode" or header.input is not None:
        return header.seq
    is_factory = ":" in header.model and not header.model.startswith("hf:")
    return None if is_factory else header.sequence


def batch_given(header: Header) -> int | None:
    """Of a live module, where its inputs do not tell the batch that it has: someone gave it."""
    first = {tensor.shape[0] for _, tensor in header.inputs if tensor.shape}
    return None if first == {header.batch} else header.batch


_FIRST_WITH_TF32 = 80
"""Compute capability times ten."""


def tf32_of(header: Header, asked: bool | None) -> bool | None:
    """As asked for, or as torch's switches were where they are not torch's own. What was traced for a GPU without TF32
    does not tell."""
    modes, (kind, _, capability) = header.math, header.target.partition(":")
    untold = kind == "cpu" or (capability.isdigit() and int(capability) < _FIRST_WITH_TF32)
    if asked is not None or modes is None or untold or modes.tf32_conv != modes.tf32_matmul:
        return asked
    return modes.tf32_conv
