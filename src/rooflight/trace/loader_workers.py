"""Data loaders with processes of their own: those work as they do without rooflight, and what they send arrives as it
is. Their work, and taking it off a queue, are no ops of the step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import worker

from rooflight.trace.interception import nothing_handed_over
from rooflight.trace.replacements import replaced

_Workers: Any = dataloader._MultiProcessingDataLoaderIter
_loop = worker._worker_loop


@contextmanager
def workers_left_alone(*, end: bool) -> Iterator[None]:
    """Also those that are started meanwhile: a process that is forked inherits what watches this one. They are ended if
    the step goes back to where it was before."""
    received, made = _Workers._try_get_data, DataLoader._get_iterator
    begun: list[tuple[Any, DataLoader[Any]]] = []

    def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
        with nothing_handed_over():
            return received(self, *args, **kwargs)

    def make(loader: DataLoader[Any]) -> Any:
        iterator = made(loader)
        if isinstance(iterator, _Workers):
            begun.append((weakref.ref(iterator), loader))
        return iterator

    try:
        with (
            replaced(worker, "_worker_loop", _alone),
            replaced(_Workers, "_try_get_data", receive),
            replaced(DataLoader, "_get_iterator", make),
        ):
            yield
    finally:
        for held, loader in begun if end else ():
            if (iterator := held()) is not None:
                iterator._shutdown_workers()
                if loader._iterator is iterator:  # of workers that stay for the next time
                    loader._iterator = None


def _alone(*args: Any) -> None:
    with nothing_handed_over():
        _loop(*args)
