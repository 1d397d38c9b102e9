"""A measurement in a process of its own that has everything imported already: a fork of this one."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import warnings
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection

import torch

from peers.cases import Case, tiny
from peers.tables import Run
from peers.tools import Tool
from peers.worker import measure, reason
from rooflight.models import build

_SLOW_TO_IMPORT = ("torch._dynamo", "torch.distributed._tools.mem_tracker", "torchinfo", "accelerate.commands.estimate",
                   "rooflight.prediction.api")  # fmt: skip


def prepare(cases: Iterable[Case]) -> None:
    """Import what tools and models need. Nothing may run backward here: autograd refuses to do so after a fork."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in _SLOW_TO_IMPORT:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # said by `asked`, of every case
    for model, options in {case.model: tiny(case) for case in cases}.values():
        build(model, device="meta", **options)


def asked(tool: Tool, case: Case, *, limit_s: float, repeats: int = 1) -> Run:
    """What the tool says on meta tensors, or that it had no time to. Warming up counts against the limit."""
    if not installed(tool.package):
        return Run(failed=f"{tool.package} is not installed")
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(there, tool, case, repeats), daemon=True)
    child.start()
    there.close()
    try:
        run = here.recv() if here.poll(limit_s) else Run(failed=f"not done after {limit_s:.0f} s")
    except EOFError:
        run = Run(failed="the process ended without an answer")
    child.kill()
    child.join()
    here.close()
    return run


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _answer(to: Connection, tool: Tool, case: Case, repeats: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # tools print as they like
    try:
        run = Run(**measure(tool, case, "meta", repeats))
    except Exception as error:
        run = Run(failed=reason(error))
    to.send(run)
    to.close()
