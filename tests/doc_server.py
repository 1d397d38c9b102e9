"""Runs `rooflight` commands in children of one process that has imported torch already, each as if from a shell.

Importing torch takes longer than most commands of the documentation do. A child is forked before anything was run, so
it begins with what a fresh process has after its imports, and nothing else; it ends as any Python process does.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module


def serve() -> None:
    """Asked in lines of JSON: arguments, folder, and files for what is printed; answered with the exit code."""
    from rooflight.commands import main

    for name in (
        "torch",
        *(f"rooflight.{folder}.api" for folder in ("comparison", "estimation", "prediction", "study")),
    ):
        import_module(name)

    # Unbuffered, so that a child does not inherit the beginning of the next line.
    while line := _line():
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(asked)
            main.main()
            return
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _line() -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            return b""
        found += more
    return found


def _become(asked: dict[str, str]) -> None:
    os.chdir(asked["folder"])
    sys.argv = ["rooflight", *asked["arguments"]]
    for number, file in ((0, os.devnull), (1, asked["printed"]), (2, asked["errors"])):
        opened = os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    serve()
