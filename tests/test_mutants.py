"""The mutants that judge the tests: what is changed, and what catches it, in a package of three functions."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
AREA = '''"""Areas."""

__all__ = ["area"]
SCALE: int = 2


def area(width: int, height: int) -> int:
    """Width times height."""
    return SCALE * width * height


def greeting() -> dict[str, str]:
    return {"name": "a text"}


def forgotten(x: int) -> int:
    return x + 1
'''
TESTS = """
from tiny.shapes.area import area, greeting

def test_area():
    assert area(3, 5) == 30

def test_greeting():
    assert greeting() is not area
"""


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("mutations")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A checkout."""
    for name, text in {
        "src/tiny/__init__.py": "",
        "src/tiny/shapes/__init__.py": "",
        "src/tiny/shapes/area.py": AREA,
        "tests/test_area.py": TESTS,
        "budgets.toml": '[shapes]\npaths = ["src/tiny/shapes/*.py"]\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def python(*arguments: str) -> str:
    env = os.environ | {"PYTEST_ADDOPTS": "--cov --randomly-seed=1"}  # as .ci/run has it
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True, env=env).stdout


@pytest.mark.parametrize(("source", "changed"), [
    ("x = a + b", {"a + b -> a - b"}),
    ("x = 'a' + b", set()),
    ("x = a < 3", {"a < 3 -> a <= 3", "a < 3 -> a >= 3", "3 -> 4"}),
    ("x = a and not b", {"a and (not b) -> a or not b", "not b -> b"}),
    ("x = [0, 1, True, 1.5, 'word', 'a text']", {"0 -> 1", "1 -> 0", "True -> False", "1.5 -> 3.0"}),
    ("x = {'key': 'word', 'a key': 'word'}", {"'key' -> 'key_'"}),
    ("def f(x: int = 1) -> int:\n    'About f.'\n    return x", {"1 -> 0", "return x -> return None"}),
    ("x = f(a, b)", {"f(a, b) -> f(b, a)"}),
    ("x = max(a, b) if c else d", {"max(a, b) if c else d -> d if c else max(a, b)"}),
    ("if x:\n    f()", {"if x: f() -> if not x: f()", "f() -> pass"}),
    ("self.x = y\nx = y", {"self.x = y -> pass"}),
    ("x += 1", {"x += 1 -> pass", "x += 1 -> x -= 1", "1 -> 0"}),
    ("raise ValueError(f'{x + 1} is wrong', 1)\nassert x > 1\nimport a\n__all__ = ['a', 1]", set()),
    ("if TYPE_CHECKING:\n    x = 1", set()),
])  # fmt: skip
def test_what_is_changed(mutations: ModuleType, source: str, changed: set[str]) -> None:
    found = mutations.mutations(ast.parse(source))
    assert {str(mutation) for mutations in found.values() for mutation in mutations} == changed


def test_a_mutant_is_caught_and_a_line_that_no_test_asserts_is_not(tiny: Path) -> None:
    printed = python(str(BENCHMARKS / "mutants.py"), "--root", str(tiny), "--contexts", "shapes", "--seed", "4")
    rows = dict(line.split("  ")[1::-1] for line in printed.splitlines() if "shapes/area.py" in line)
    assert rows == {
        "shapes/area.py:4": "tests/test_area.py::test_area",  # a constant, by the function that uses it
        "shapes/area.py:9": "tests/test_area.py::test_area",
        "shapes/area.py:13": "survived",
        "shapes/area.py:17": "not reached",
    }
    assert "'asked': 200, 'count': 4, 'caught': 2, 'percent': 50.0, 'not reached': 1" in printed


def test_what_catches_a_mutant(tiny: Path) -> None:
    """No change is caught by nothing; else by the test that fails, by the end of its time, or by the import."""
    script = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from pathlib import Path
import mutants
file, test = Path({str(tiny / "src/tiny/shapes/area.py")!r}), "tests/test_area.py::test_area"
checkout = mutants.Checkout(Path({str(tiny)!r}))
checkout.preload()
checkout.seconds = {{test: 0.1}}
for change in ("return SCALE", "return 2 * SCALE", "while SCALE: pass #", "return SCALE * width * height\\n\\nimport nowhere #"):
    mutants.START = 2 if "while" in change else 60
    code = compile(file.read_text().replace("return SCALE", change, 1), str(file), "exec")
    print(checkout.failure([test], file, code))
"""
    assert python("-c", script).splitlines() == ["", "tests/test_area.py::test_area", "timeout", "import"]
