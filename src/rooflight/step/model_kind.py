"""What a model mostly does, told by its ops: which timed steps a prediction is set beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from rooflight.step.costed_step import Step

ModelKind = Literal["convnet", "transformer", "hybrid", "mlp", "recurrent"]
_RECURRENT = ("lstm", "gru", "rnn")


def kind_of(step: Step) -> ModelKind:
    """Recurrent layers make it so; attention is a fused kernel, or a softmax beside batched products; a convolutional
    network has half of its multiply-adds or more in convolutions, and is a hybrid if it attends, too."""
    names = {op.packet.removeprefix("aten::") for op in step.kinds}
    if any(word in name for name in names for word in _RECURRENT):
        return "recurrent"
    attends = any("attention" in name or "transformer_encoder" in name for name in names) or (
        bool(names & {"_softmax", "_safe_softmax"}) and bool(names & {"bmm", "baddbmm"})
    )
    counts = np.bincount(step.kind_of, minlength=len(step.kinds)).tolist()
    convolved = everything = 0
    for op, count in zip(step.kinds, counts, strict=True):
        macs = count * (op.cost.macs or 0) if op.cost is not None else 0
        everything += macs
        convolved += macs if "conv" in op.packet else 0
    mostly_convolves = 2 * convolved >= everything and everything > 0
    if attends:
        return "hybrid" if mostly_convolves else "transformer"
    return "convnet" if mostly_convolves else "mlp"
