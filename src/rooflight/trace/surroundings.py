"""What a step without data may not touch: files, other processes, and the choices that torch makes by its devices."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.utils.clip_grad as clip_grad

from rooflight.ledger import Note
from rooflight.trace.replacements import replaced
from rooflight.trace.target import Target

_NOT_SAVED = Note("nothing-saved", "what the step saves (torch.save) is not written: there is no data")
_SAVES = Note("step-saves", "the step saves (torch.save), and so did every run of it: what it wrote last is there now")
_ONE_REPLICA = Note(
    "ddp-as-one-replica",
    "a DDP model is followed as its one replica: its buckets, and what processes exchange, are no part of this",
)


@contextmanager
def surroundings_without_data(target: Target, notes: list[Note]) -> Iterator[Callable[[torch.optim.Optimizer], None]]:
    """Yield a function that sets whether an optimizer takes all its tensors at once. Notes are added to `notes`."""
    with ExitStack() as stack:
        # A checkpoint of tensors without data would take the place of a real one.
        stack.enter_context(replaced(torch, "save", lambda *args, **kwargs: _add(notes, _NOT_SAVED)))
        stack.enter_context(no_failures_logged())
        # transformers builds full masks for tensors of a trace, and none for a step that runs.
        if hasattr(utils := sys.modules.get("transformers.utils.import_utils"), "is_fake_tensor"):
            stack.enter_context(replaced(utils, "is_fake_tensor", lambda x: False))
        if dist.is_available() and dist.is_initialized():
            stack.enter_context(_without_collectives(notes))
        # torch asks for the types of tensors, and does not know ours.
        stack.enter_context(replaced(clip_grad, "_has_foreach_support", lambda tensors, device: True))

        def choose(optimizer: torch.optim.Optimizer) -> None:
            for group in optimizer.param_groups:  # restored with all that the step reaches
                if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                    group["foreach"] = target.kind == "cuda"

        yield choose


def _add(notes: list[Note], note: Note) -> None:
    if note not in notes:
        notes.append(note)


@contextmanager
def saves_noted(notes: list[Note]) -> Iterator[None]:
    """A real run writes what the step writes."""
    original = torch.save

    def save(*args: Any, **kwargs: Any) -> None:
        _add(notes, _SAVES)
        original(*args, **kwargs)

    with replaced(torch, "save", save):
        yield


@contextmanager
def no_failures_logged() -> Iterator[None]:
    """torch logs every operator that fails on fake tensors at length; rooflight's error is one line."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def _without_collectives(notes: list[Note]) -> Iterator[None]:
    """A model that is replicated over processes runs as one replica."""
    from torch.nn.parallel import DistributedDataParallel

    def forward(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        _add(notes, _ONE_REPLICA)
        return self.module(*args, **kwargs)

    with replaced(DistributedDataParallel, "forward", forward):
        yield
