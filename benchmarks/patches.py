"""Find where the source changes other packages or leans on torch's private parts.

usage: patches.py      prints every place; sizes.py holds their numbers under the ceilings of budgets.toml

Three lists, by the syntax tree alone:
- attributes of torch, Python and libraries that the source assigns to: by a statement, by setattr or delattr, by
  mock.patch, or by a function of ours that does so for its argument (`replaced(torch, "save", ...)`);
- classes that extend one of torch's modes, which change what operators do while they are open;
- names of torch with a leading underscore in their path.
One file may patch freely: src/rooflight/quirks.py, where each patch stands with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OURS = "rooflight"
ALLOWED = "src/rooflight/quirks.py"
_SETTERS = {"setattr": 0, "delattr": 0}
_MOCKS = ("patch", "object", "dict", "multiple")


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def _imports(source: str) -> dict[str, str]:
    """Return what a file imports from other packages: its name here, and its full path."""
    names = {}
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    names = {name: path for name, path in names.items() if path.partition(".")[0] not in (OURS, "__future__")}
    for node in ast.walk(_parsed(source)):
        match node:
            case ast.Assign([ast.Name(name)], ast.Attribute() as value) if path := _path(value, names):
                names[name] = path  # kind = torch.Tensor
    return names


def _path(node: ast.expr, imports: Mapping[str, str]) -> str | None:
    """Return the full path of an expression such as `nn.Module.forward`, if it begins with another package."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Subscript):  # sys.modules["torch"].name
        return _path(node.value, imports)
    if not isinstance(node, ast.Name) or node.id not in imports:
        return None
    return ".".join([imports[node.id], *reversed(parts)])


def _sources(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((path, source) for path, source in files.items() if path != ALLOWED)


@dataclass(frozen=True)
class _Exchanger:
    """A function of ours that calls setattr on one of its own arguments, such as `replaced(torch, "save", ...)`."""

    name: str
    argument: int
    inner: frozenset[ast.Call]


def _exchangers(files: Mapping[str, str]) -> Iterator[_Exchanger]:
    for _, source in _sources(files):
        for function in ast.walk(_parsed(source)):
            if isinstance(function, ast.FunctionDef):
                parameters = [argument.arg for argument in function.args.args]
                inner = {call: ast.unparse(call.args[0]) for call in _calls(function, _SETTERS)}
                for argument, name in enumerate(parameters):
                    if own := frozenset(call for call, owner in inner.items() if owner == name):
                        yield _Exchanger(function.name, argument, own)


def _calls(tree: ast.AST, names: Mapping[str, int]) -> Iterator[ast.Call]:
    """Yield the calls of these functions that name an owner and an attribute; `names` has the owner's position."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) > names.get(ast.unparse(node.func), len(node.args)) + 1:
            yield node


def _owner(node: ast.expr, source: str) -> str | None:
    """Return what is changed; None if it is ours. A variable counts, as it may hold a class of another package."""
    if path := _path(node, _imports(source)):
        return path
    text = ast.unparse(node)
    ours = {"self", "cls"} | {child.name for child in _parsed(source).body if isinstance(child, ast.ClassDef)}
    return None if text.partition(".")[0] in ours else f"<{text}>"


def foreign_attributes(files: Mapping[str, str]) -> set[str]:
    """Return the attributes of other packages that the source assigns to, each with its file."""
    exchangers = list(_exchangers(files))
    names = _SETTERS | {exchanger.name: exchanger.argument for exchanger in exchangers}
    inner = {call for exchanger in exchangers for call in exchanger.inner}  # the callers of their functions count
    found = set()
    for file, source in _sources(files):
        imports, tree = _imports(source), _parsed(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                if path := _path(node, imports):
                    found.add(f"{file}: {path}")
            elif isinstance(node, ast.Call) and _is_mock(node, imports):
                found.add(f"{file}: {' '.join(map(ast.unparse, node.args[:2]))}")
        for call in _calls(tree, names):
            owner, name = call.args[names[ast.unparse(call.func)] :][:2]
            if call not in inner and (place := _owner(owner, source)):
                found.add(f"{file}: {place}.{name.value if isinstance(name, ast.Constant) else ast.unparse(name)}")
    return found


def _is_mock(call: ast.Call, imports: Mapping[str, str]) -> bool:
    path = _path(call.func, imports) or ""
    return path.startswith("unittest.mock") and path.rpartition(".")[2] in _MOCKS


def modes(files: Mapping[str, str]) -> set[str]:
    """Return the classes that extend a mode of torch."""
    return {
        f"{file}: {node.name}({path})"
        for file, source in _sources(files)
        for node in ast.walk(_parsed(source))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if (path := _path(base, _imports(source))) and path.startswith("torch.") and path.endswith("Mode")
    }


def private_symbols(files: Mapping[str, str]) -> set[str]:
    """Return the names of torch that have a leading underscore in their path."""
    found = set()
    for source in files.values():
        imports = _imports(source)
        used = set(imports.values())
        for node in ast.walk(_parsed(source)):
            if isinstance(node, ast.Attribute) and (path := _path(node, imports)):
                used.add(path)
        # The names of operators are open, with an underscore or without.
        found |= {p for p in used if p.startswith("torch.") and not p.startswith("torch.ops.") and _is_private(p)}
    return {path for path in found if not any(other.startswith(f"{path}.") for other in found)}


def _is_private(path: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


def main() -> None:
    root = Path(__file__).parents[1]
    files = {str(file.relative_to(root)): file.read_text() for file in (root / "src" / OURS).rglob("*.py")}
    for title, found in (
        ("attributes of other packages that are assigned to", foreign_attributes(files)),
        ("classes that extend a mode of torch", modes(files)),
        ("private names of torch", private_symbols(files)),
    ):
        print(f"{len(found)} {title}", *(f"  {line}" for line in sorted(found)), sep="\n")


if __name__ == "__main__":
    main()
