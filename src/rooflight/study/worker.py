"""`python -m rooflight.study.worker FOLDER`: a process that does units of work, one after the other.

Requests come in and news go out as lines of JSON. It ends at once when whoever started it does, even in the middle of
a computation: nothing that is finished is lost by that, and nobody wants the rest.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from rooflight.study.cell import Side

if TYPE_CHECKING:
    from rooflight.study.store import Store


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    side: Side
    cells: tuple[str, ...]
    threads: int | None = None
    """Of torch; `None`: as many as it likes."""
    alone: str = ""
    """What nobody else may use meanwhile, as a GPU of this machine: waited for."""


class News(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`began` a unit, `told` the journal something, `finished` the unit; `broken`: the folder cannot be used."""

    what: Literal["began", "told", "finished", "broken"]
    why: str = ""


Tell = Callable[[News], None]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    ours = os.dup(1)
    os.dup2(2, 1)  # what models print is no news
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    def tell(one: News) -> None:
        try:
            os.write(ours, msgspec.json.encode(one) + b"\n")
        except OSError:
            os._exit(0)  # nobody listens any more

    from rooflight.study.store import StoreBroken, open_study

    try:
        store = open_study(Path(sys.argv[1]))
        for request in _requests(requests):
            _do(store, request, tell)
            tell(News(what="finished"))
    except StoreBroken as error:
        tell(News(what="broken", why=str(error)))


def _listen(requests: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _requests(waiting: queue.SimpleQueue[bytes]) -> Iterator[Request]:
    while True:
        yield msgspec.json.decode(waiting.get(), type=Request)


def _do(store: Store, request: Request, tell: Tell) -> None:
    import torch

    from rooflight.study.work import run_side

    if request.threads is not None:
        torch.set_num_threads(request.threads)
    cells = [store.by_id[name] for name in request.cells]
    with store.locks.holding(request.alone) if request.alone else nullcontext():
        tell(News(what="began"))
        run_side(store, cells, request.side, told=lambda: tell(News(what="told")))


if __name__ == "__main__":
    main()
