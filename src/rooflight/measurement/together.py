"""A step that several processes take together: rank 0 measures it, and the others take every step that it takes.

How often that is only rank 0 knows, so it announces each step in the store that the processes share; collectives of our
own would be mixed up with the step's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch.distributed as dist

from rooflight.measurement.ranks import shared_store
from rooflight.trace.program_stage import ProgramStage
from rooflight.trace.stage import Recording

_GO, _STOP = "go", "stop"
_measurements = count()


@contextmanager
def together(stage: ProgramStage) -> Iterator[bool]:
    """Whether this process measures. Where it is one of several, each of its runs is announced to the others."""
    if not _is_one_of_several():
        yield True
        return
    announced = _Announcements()
    if dist.get_rank():
        stage.announced = announced
        yield False
        return
    step = stage.step

    def run(*args: Any, **kwargs: Any) -> Any:
        announced.say(_GO)
        return step(*args, **kwargs)

    stage.step = run
    try:
        yield True
    finally:
        stage.step = step
        announced.say(_STOP)


def follow(stage: ProgramStage) -> Recording:
    """Take every step that rank 0 takes, and write down the ops of the third: the first two set things up (an
    optimizer's state, the buckets of DDP)."""
    recording = Recording((), (), (), (), ())
    steps = 0
    while stage.announced.next() == _GO:
        steps += 1
        if steps == 3:
            recording = stage.record()
        else:
            stage.run()
    return recording


class _Announcements:
    """What rank 0 says, one after the other."""

    def __init__(self) -> None:
        self._store: dist.Store = shared_store()
        self._name = f"rooflight/{next(_measurements)}"
        self._said = 0

    def _key(self) -> str:
        self._said += 1
        return f"{self._name}/{self._said}"

    def say(self, word: str) -> None:
        self._store.set(self._key(), word)

    def next(self) -> str:
        return self._store.get(self._key()).decode()


def _is_one_of_several() -> bool:
    return shared_store() is not None and dist.get_world_size() > 1
