"""Every error and every note has a code, written where it is made, beside its sentence."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import rooflight
from rooflight.errors import BadInput, NotPutBack

SOURCE = Path(rooflight.__file__).parent
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def families(trees: dict[str, ast.Module]) -> tuple[set[str], set[str]]:
    """The names of all classes of errors, and of those whose constructor sets the code itself."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    errors = {"RooflightError"}
    while more := {c.name for c in classes if any(ast.unparse(base) in errors for base in c.bases)} - errors:
        errors |= more
    own = {c.name for c in classes if c.name in errors and any(is_constructor(part) for part in c.body)}
    return errors, own - {"RooflightError"}


def is_constructor(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def codes_of(trees: dict[str, ast.Module]) -> Iterator[tuple[str, ast.expr | None]]:
    """The first argument of every error that the source makes, with its place."""
    errors, own = families(trees)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in errors - own:
                yield f"{path}:{node.lineno}", node.args[0] if node.args else None
            if isinstance(node, ast.ClassDef) and node.name in own:
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__":
                        yield f"{path}:{call.lineno}", call.args[0]


def test_every_error_of_the_source_has_a_literal_code_or_hands_one_on():
    found = dict(codes_of(trees()))
    assert len(found) > 500
    wrong = []
    for place, code in found.items():
        literal = code.value if isinstance(code, ast.Constant) else None
        handed_on = isinstance(code, ast.Attribute) and code.attr == "code"
        if not handed_on and not (isinstance(literal, str) and CODE.fullmatch(literal)):
            wrong.append(place)
    assert wrong == []


def test_every_code_of_a_note_that_is_written_out_is_a_code():
    literal = [
        (f"{path}:{node.lineno}", str(node.args[0].value))
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Note" and isinstance(node.args[0], ast.Constant)
    ]
    assert len(literal) > 100
    without = [place for place, code in literal if not CODE.fullmatch(str(code))]
    assert [place.partition(":")[0] for place in without] == ["files.py"]  # where older ledgers are read


def test_an_error_knows_its_code_and_the_options_of_its_line():
    error = BadInput("option-conflict", "--step=train and --past exclude each other: leave --past out")
    assert (error.code, error.options) == ("option-conflict", ("--step", "--past"))
    again = error.reworded(f"plan.toml: {error.text}")
    assert (type(again), again.code) == (BadInput, "option-conflict")
    assert again.text == f"plan.toml: {error.text}"
    copy = pickle.loads(pickle.dumps(again))
    assert (copy.code, str(copy)) == (again.code, str(again))


def test_rewording_keeps_what_an_error_knows():
    again = NotPutBack(["conv1"]).reworded("elsewhere")
    assert (again.code, again.what, str(again)) == ("not-put-back", ("conv1",), "elsewhere")
