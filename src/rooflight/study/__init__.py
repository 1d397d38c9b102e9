"""A grid of steps and devices: every cell estimated, predicted and, where its device is here, measured.

`cell` says what a cell is and what became of it, `plan` reads a study's file into cells, `store` keeps its folder,
`work` does what a cell asks for, `launch` gives cells to processes or to a cluster, `hypotheses` and `trends` read the
rows.

`rooflight.study(...)` is a function and this folder has its name: Python puts the folder in the function's place as
soon as anything in it is imported, so the folder can be called, too.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from rooflight.study.api import study

        return study(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
