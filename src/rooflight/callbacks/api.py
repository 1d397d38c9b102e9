"""`rooflight.log_training`: one line in a training script of transformers or Lightning."""

from __future__ import annotations

from typing import Any

from rooflight.callbacks.meter import TrainingMeter
from rooflight.errors import BadInput

_LIGHTNING = ("lightning", "pytorch_lightning")


def log_training(trainer: Any, *, every: int = 10) -> None:
    """Log MFU, tokens or samples per second, how busy the GPU is, and memory, every so many steps of a training.

    `trainer`: a `Trainer` of transformers or of Lightning, before its `train` or `fit`; values go to whatever it logs
    to, under `rooflight/`. They are those of one process: rank 0 logs. `every`: optimizer steps between two entries.
    The useful FLOPs of a step come from one estimate of the model on the first batch, which takes a few seconds; a
    device without a known peak (every CPU) has no MFU. What goes wrong is told once and never stops the training.

        >>> trainer = transformers.Trainer(model, args, train_dataset=data)
        >>> rooflight.log_training(trainer, every=50)
        >>> trainer.train()
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise BadInput("out-of-range", f"every={every!r}: say after how many steps, 1 or more")
    # The libraries are imported by whoever has made a trainer: looking for them here would take seconds.
    libraries = [base.__module__.partition(".")[0] for base in type(trainer).__mro__]
    if "transformers" in libraries:
        from rooflight.callbacks.trainer import add_to_trainer

        add_to_trainer(trainer, TrainingMeter(every))
    elif library := next((name for name in _LIGHTNING if name in libraries), None):
        from rooflight.callbacks.lightning import add_to_lightning

        add_to_lightning(trainer, TrainingMeter(every), library=library)
    else:
        raise BadInput(
            "unknown-trainer",
            f"log_training takes a Trainer of transformers or Lightning, not {type(trainer).__name__}: in a loop of "
            "your own, put `with rooflight.region('step'):` around the step",
        )
