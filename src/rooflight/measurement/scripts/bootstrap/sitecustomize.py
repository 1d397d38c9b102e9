"""Run by every Python that `rooflight run --ops` starts, before the program: waits for the import of torch.

Python imports a module of this name when it starts. The one that the user has is run as if this were not there. Nothing
else is imported: a process that does not use torch is left alone.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _TorchImport:
    """Finds torch by asking the others, and is told when it has been imported."""

    _asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._asking:
            return None
        from importlib.util import find_spec

        self._asking = True
        try:
            spec = find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        """Whoever only wants to know whether there is a torch asks for its loader too, and does not use it."""
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            del loader.exec_module
            run(module)
            _begin()

        loader.exec_module = exec_module


def _begin() -> None:
    """What goes wrong here is not the program's business; it may also outlive `rooflight run`, and its folder."""
    from time import perf_counter

    began = perf_counter()
    if not os.path.isdir(os.environ.get("ROOFLIGHT_RUN", "")):
        return
    try:
        from rooflight.measurement.scripts.schedule import begin

        begin(began)
    except Exception as error:
        _tell(f"{type(error).__name__}: {error}")


def _tell(reason: str) -> None:
    """This Python cannot run rooflight; the program goes on, and the reason is told when it is over."""
    try:
        with open(os.path.join(os.environ["ROOFLIGHT_RUN"], f"cannot-{os.getpid()}.txt"), "w") as file:
            file.write(f"{sys.executable}\n{reason}")
    except (KeyError, OSError):
        pass


def _run_the_users() -> None:
    """As Python would have, and with the path that it would have had."""
    ours = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if os.environ.get("ROOFLIGHT_RUN"):
    sys.meta_path.insert(0, _TorchImport())
_run_the_users()
