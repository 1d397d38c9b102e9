"""Memory that one GPU needs for parameters, gradients and optimizer state, by how they are cut up.

A replica is a replica: the model has its parameters once, however many GPUs hold a copy. ZeRO (Rajbhandari et al. 2020)
cuts the optimizer state (stage 1), the gradients too (2), the parameters too (3) into one part for each data parallel
rank. With Adam in mixed precision a parameter has 2 bytes of weight, 2 of gradient and 12 of state (fp32 copy, mean,
variance): 4 + 12/N bytes a parameter in stage 1, 2 + 14/N in stage 2, 16/N in stage 3.

Activations are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflight import summary
from rooflight.ledger import Ledger
from rooflight.parallel.layout import DataMode


@dataclass(frozen=True)
class ModelStates:
    """What a model keeps from step to step, in bytes."""

    parameters: int
    """How many: those of the model, once."""
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    def share(self, part: float) -> ModelStates:
        """What a rank holds that has this part of the weights (tensor or pipeline parallel)."""
        return ModelStates(
            self.parameters, self.parameter_bytes * part, self.gradient_bytes * part, self.optimizer_bytes * part
        )


def states_of(ledger: Ledger) -> ModelStates:
    """The states of the step as it was traced: its dtypes, its optimizer."""
    sizes = summary.sizes(ledger)
    return ModelStates(summary.params(ledger), sizes.param_bytes, sizes.gradient_bytes, sizes.optimizer_state_bytes)


ZERO_STAGE: dict[DataMode, int] = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}


def per_gpu(states: ModelStates, mode: DataMode, ranks: int) -> ModelStates:
    """What one of `ranks` data parallel ranks holds."""
    stage = ZERO_STAGE[mode]
    return ModelStates(
        states.parameters,
        states.parameter_bytes / (ranks if stage >= 3 else 1),
        states.gradient_bytes / (ranks if stage >= 2 else 1),
        states.optimizer_bytes / (ranks if stage >= 1 else 1),
    )
