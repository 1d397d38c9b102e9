"""The ceilings of size (benchmarks/sizes.py) and the count of what is patched (benchmarks/patches.py)."""

from __future__ import annotations

import tomllib

import pytest
from patches import ALLOWED, foreign_attributes, modes, private_symbols
from raised import bars, ceilings, raised
from sizes import Row, lowered, rooms, rows, tokens

from tests.fixtures.paths import ROOT

BUDGETS = {
    "src": {"paths": ["src/*.py"], "lines": 10, "tokens": 20},
    "one": {"paths": ["src/one/*.py"], "lines": 3},
    "others": {"rest_of": "src", "lines": 0},
}


def test_comments_and_docstrings_are_free_and_long_strings_are_not() -> None:
    assert tokens('"""A module."""\n\nx = 1  # one\n') == 3
    assert tokens('def f():\n    """Do nothing."""\n    return "0123456789012345678901"\n') == 5 + 1 + 24 // 8


def test_a_folder_that_no_room_names_counts_in_the_rest() -> None:
    now = {"src/one/a.py": "x = 1\n" * 4, "src/two/b.py": "y = 2\n", "tests/c.py": "z = 3\n"}
    counted = {(row.room, row.unit): row for row in rows(now, {"src/one/a.py": "x = 1\n"}, BUDGETS)}
    values = {key: (row.now, row.base, row.above) for key, row in counted.items()}
    assert values == {
        ("src", "lines"): (5, 1, False),
        ("src", "tokens"): (15, 3, False),
        ("one", "lines"): (4, 1, True),
        ("others", "lines"): (1, 0, True),
    }


def test_ceilings_fall_and_never_rise() -> None:
    text = '[src]\npaths = ["src/*.py"]\nlines = 10\nfiles = 4\n\n["a, b"]\nlines = 30\n'
    counted = [Row("src", "lines", 8, 8, 10), Row("src", "files", 5, 5, 4), Row("a, b", "lines", 7, 7, 30)]
    assert tomllib.loads(lowered(text, counted)) == {
        "src": {"paths": ["src/*.py"], "lines": 8, "files": 4},
        "a, b": {"lines": 7},
    }


def test_a_ceiling_or_bar_that_rises_or_goes_is_found() -> None:
    before = ceilings("[a]\nlines = 5\ntokens = 9\n\n[b]\nlines = 1\n")
    assert raised(before, ceilings("[a]\nlines = 6\ntokens = 8\n")) == ["a: lines", "b: lines"]
    head = (
        '[units.error]\nbetter = "lower"\nfloor = 0\n[units.rows]\nbetter = "higher"\nfloor = 0\n[g]\nmade_by = "m.f"\n'
    )
    figures = head + "[g.error]\nmean = {}\n[g.rows]\nright = {}\n"
    assert raised(bars(figures.format(0.1, 7)), bars(figures.format(0.2, 6))) == ["g: mean", "g: right"]
    assert raised(bars(figures.format(0.1, 7)), bars(figures.format(0.1, 8))) == []


def test_every_python_file_of_the_source_is_in_one_room() -> None:
    budgets = tomllib.loads((ROOT / "budgets.toml").read_text())
    paths = (str(file.relative_to(ROOT)) for file in (ROOT / "src").rglob("*.py"))
    files = rooms(dict.fromkeys(paths, ""), budgets)
    source = files.pop("src")
    for path in source:
        assert sum(path in held for held in files.values()) == 1, path


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("torch.save = ours", "torch.save"),
        ("nn.Module.__call__ = ours", "torch.nn.Module.__call__"),
        ("other = torch.Tensor; other.item = ours", "torch.Tensor.item"),
        ("del threading.Thread.start", "threading.Thread.start"),
        ("setattr(torch.Tensor, 'item', ours)", "torch.Tensor.item"),
        ("with replaced(torch, 'load', ours): pass", "torch.load"),
        ("setattr(kind, name, ours)", "<kind>.name"),
        ("with patch.object(torch, 'save'): pass", "torch 'save'"),
        ("self.save = ours", None),
        ("setattr(self, name, ours)", None),
        ("Ours.save = ours", None),
    ],
)
def test_a_patch_is_found_in_each_of_its_forms(statement: str, found: str | None) -> None:
    source = (
        "import threading\nimport torch\nfrom torch import nn\nfrom unittest.mock import patch\n"
        "class Ours:\n    pass\n"
        "def replaced(owner, name, by):\n    setattr(owner, name, by)\n"
        f"def f(self, name, ours):\n    kind = type(name)\n    {statement}\n"
    )
    assert foreign_attributes({"src/a.py": source}) == ({f"src/a.py: {found}"} if found else set())
    assert foreign_attributes({ALLOWED: source}) == set()


def test_modes_and_private_names_of_torch_are_found() -> None:
    source = (
        "import torch\nfrom torch._C import _autograd\nfrom torch.overrides import TorchFunctionMode\n"
        "class Watch(TorchFunctionMode):\n    pass\n"
        "torch._foreach_add_(a, b)\ntorch.nn.Module.__call__\n"
    )
    assert modes({"src/a.py": source}) == {"src/a.py: Watch(torch.overrides.TorchFunctionMode)"}
    assert private_symbols({"src/a.py": source}) == {"torch._C._autograd", "torch._foreach_add_"}
