"""What lies around a step that runs without data: torch, other processes and files, none of which it may touch."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from rooflight.ledger import Note
from rooflight.trace.replacements import replaced
from rooflight.trace.target import Target


@contextmanager
def surroundings_without_data(target: Target, notes: list[Note]) -> Iterator[Callable[[torch.optim.Optimizer], None]]:
    """Gives what sets how an optimizer works through its tensors; `notes` are added to."""
    with ExitStack() as stack:
        stack.enter_context(_nothing_written(notes))
        stack.enter_context(_no_word_of_torchs())
        stack.enter_context(_taken_for_real())
        if dist.is_available() and dist.is_initialized():
            stack.enter_context(_without_collectives(notes))
        yield stack.enter_context(_choosing_as(target))


@contextmanager
def _nothing_written(notes: list[Note]) -> Iterator[None]:
    """A checkpoint of tensors without data would take the place of a real one."""

    def save(*args: Any, **kwargs: Any) -> None:
        note = Note("nothing-saved", "what the step saves (torch.save) is not written: there is no data")
        if note not in notes:
            notes.append(note)

    with replaced(torch, "save", save):
        yield


@contextmanager
def saves_noted(notes: list[Note]) -> Iterator[None]:
    """A real run writes what the step writes."""
    original = torch.save

    def save(*args: Any, **kwargs: Any) -> None:
        note = Note(
            "step-saves", "the step saves (torch.save), and so did every run of it: what it wrote last is there now"
        )
        if note not in notes:
            notes.append(note)
        original(*args, **kwargs)

    with replaced(torch, "save", save):
        yield


@contextmanager
def _no_word_of_torchs() -> Iterator[None]:
    """It logs every failure of an op at length; ours to tell is one line."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def _choosing_as(target: Target) -> Iterator[Callable[[torch.optim.Optimizer], None]]:
    """What leaves the choice to torch takes all tensors at once on a GPU, wherever they are now.

    Torch asks for the types of tensors, too, and does not know ours."""
    chosen: list[dict[str, Any]] = []

    def choose(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = target.kind == "cuda"
                chosen.append(group)

    clipping: Any = sys.modules["torch.nn.utils.clip_grad"]
    original = clipping._has_foreach_support
    clipping._has_foreach_support = lambda tensors, device: True
    try:
        yield choose
    finally:
        clipping._has_foreach_support = original
        for group in chosen:
            group["foreach"] = None


@contextmanager
def _taken_for_real() -> Iterator[None]:
    """Hugging Face's models build masks in full for tensors of a trace, which a step that runs does without."""
    utils: Any = sys.modules.get("transformers.utils.import_utils")
    original = getattr(utils, "is_fake_tensor", None)
    if original is None:
        yield
        return
    utils.is_fake_tensor = lambda x: False
    try:
        yield
    finally:
        utils.is_fake_tensor = original


@contextmanager
def _without_collectives(notes: list[Note]) -> Iterator[None]:
    """A model that is replicated over processes runs as the one replica that it is here."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.forward

    def forward(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        note = Note(
            "ddp-as-one-replica",
            "a DDP model is followed as its one replica: its buckets, and what processes exchange, are no part of this",
        )
        if note not in notes:
            notes.append(note)
        return self.module(*args, **kwargs)

    DistributedDataParallel.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.forward = original  # type: ignore[method-assign]
