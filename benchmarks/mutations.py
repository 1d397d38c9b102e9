"""Change one line of a module, as a mistake would: the mutants that `mutants.py` shows to the tests.

A mutant is a syntax tree that differs from the source in one place: an operator, a comparison, a constant, a condition, a
statement, an order. Left alone is what is not behaviour: docstrings, annotations, imports, `__all__`, blocks for type
checkers, `assert`, what an error says, and strings with a blank in them, as wording is no promise.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
SKIPPED = (ast.Import, ast.ImportFrom, ast.Assert, ast.Raise, ast.JoinedStr, ast.Global, ast.Nonlocal)


@dataclass(frozen=True)
class Mutation:
    """One change of a tree: `new` in the place of `old`."""

    parent: ast.AST
    field: str
    place: int | None
    old: ast.AST
    new: ast.AST
    lines: range
    """Lines of the statement; of a compound one, of its header."""
    names: tuple[str, ...] | None
    """What the code defines at import: the function it decorates, a constant, a field. `None` inside a function."""

    def compiled(self, tree: ast.Module, path: str) -> CodeType | None:
        """Code of the tree, changed for good; `None` if it is the same or does not compile."""
        before = ast.dump(tree)
        new = ast.fix_missing_locations(ast.copy_location(self.new, self.old))
        if self.place is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.place] = new
        try:
            return compile(tree, path, "exec", dont_inherit=True) if ast.dump(tree) != before else None
        except (SyntaxError, ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return " -> ".join(" ".join(ast.unparse(node).split())[:70] for node in (self.old, self.new))


def mutations(tree: ast.Module) -> dict[int, list[Mutation]]:
    """All changes of a module, by line."""
    by_line: dict[int, list[Mutation]] = defaultdict(list)
    for mutation in _below(tree, range(0), ()):
        by_line[getattr(mutation.old, "lineno", mutation.lines.start)].append(mutation)
    return by_line


def _below(parent: ast.AST, lines: range, names: tuple[str, ...] | None) -> Iterator[Mutation]:
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns", "type_params", "format_spec") or getattr(parent, "arg", "") == "strict":
            continue
        in_body = name == "body" and isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for place, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or _is_skipped(node):
                continue
            its_lines, its_names = lines, None if in_body else names
            if isinstance(node, ast.stmt):
                body = getattr(node, "body", None)
                end = body[0].lineno if body else (node.end_lineno or 0) + 1
                its_lines = range(node.lineno, max(node.lineno + 1, end))
                if its_names is not None and not isinstance(node, ast.If | ast.With | ast.Try | ast.For):
                    its_names = _defined(node)
            for new in _changes(node, parent, name):
                yield Mutation(
                    parent, name, place if isinstance(value, list) else None, node, new, its_lines, its_names
                )
            yield from _below(node, its_lines, its_names)


def _is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Constant()) | ast.Assign([ast.Name("__all__")]):
            return True
        case ast.If(test):
            return "TYPE_CHECKING" in ast.unparse(test)
    return isinstance(node, SKIPPED)


def _defined(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    return tuple(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def _changes(node: ast.AST, parent: ast.AST, name: str) -> Iterator[ast.AST]:
    """What a mistake would make of a node."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not any(map(_is_text, (left, right))):
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.AugAssign(target, op, value):
            yield ast.Pass()
            if type(op) in ARITHMETIC:
                yield ast.AugAssign(target, ARITHMETIC[type(op)](), value)
        case ast.Compare(left, [op], right):
            yield from (ast.Compare(left, [other()], right) for other in COMPARISONS[type(op)])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(value):
            yield from (ast.Constant(other) for other in _other_values(value, parent, name))
        case ast.Return(value) if value is not None and ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.Call(called, [ast.expr() as first, ast.expr() as second, *rest], keywords):
            same = ast.dump(first) == ast.dump(second) or ast.unparse(called) in ("max", "min")
            if not same and not any(isinstance(argument, ast.Starred) for argument in (first, second)):
                yield ast.Call(called, [second, first, *rest], keywords)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.If(test, body, orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _other_values(value: object, parent: ast.AST, name: str) -> list[object]:
    """A number one larger, a float twice as large, the other truth, another key or result."""
    match value:
        case bool():
            return [not value]
        case int():
            return [0 if value == 1 else value + 1]
        case float():
            return [value * 2 or 1.0]
        case str() if value and " " not in value and (name == "keys" or isinstance(parent, ast.Return)):
            return [f"{value}_"]
    return []
