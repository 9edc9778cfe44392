"""The structure of the product, read off its source: imports, circles, sizes, names."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("adapters", "engine", "proxy")

Graph = Mapping[str, frozenset[str]]
"""Module -> the modules it imports, those that only types need included."""


@dataclass(frozen=True)
class Module:
    """One file of the product."""

    name: str
    path: Path
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # of the tree, in the order of ast.walk
    lines: int


def modules(root: Path) -> dict[str, Module]:
    """Return the product's modules by their full names."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(("wellspoken", *parts)).removesuffix(".__init__")
            text = path.read_text("utf-8")
            tree = ast.parse(text)
            found[name] = Module(name, path, tree, tuple(ast.walk(tree)), text.count("\n"))
    return found


def imports(found: Mapping[str, Module]) -> Graph:
    """Return which module imports which, wherever in the file the import stands."""
    return {
        name: frozenset(_imported(module.nodes, found)) - {name} for name, module in found.items()
    }


def _imported(nodes: Iterable[ast.AST], known: Mapping[str, Module]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known:
                    yield name
                elif node.module in known:
                    yield node.module


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other, however far round (Tarjan, 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            at = stack.index(name)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return found


def functions(
    found: Mapping[str, Module],
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return every function and method with its module, but those whose names Python sets."""
    for name, module in found.items():
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if not (node.name.startswith("__") and node.name.endswith("__")):
                    yield name, node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return a function's lines without its decorators and its docstring."""
    first = node.body[0]
    text = first.value if isinstance(first, ast.Expr) else None
    doc = isinstance(text, ast.Constant) and isinstance(text.value, str)
    said = (first.end_lineno or 0) - first.lineno + 1 if doc else 0
    return (node.end_lineno or 0) - node.lineno + 1 - said


IRREGULAR = frozenset(
    "begun bound broken brought built chosen done drawn fed found given gone had heard held hidden"
    " kept known laid led left lost made meant met paid said seen sent shown sold spent spoken"
    " spelt taken thrown told understood unknown worn written".split()
)
VERBS = frozenset({"bleed", "embed", "feed", "need", "proceed", "seed", "speed", "exceed"})
"""Words in -ed that are no participles."""


def is_participle(name: str) -> bool:
    """Say whether a function's name begins with what was done, not with what it does."""
    first = name.strip("_").partition("_")[0]
    return first in IRREGULAR or (len(first) > 3 and first.endswith("ed") and first not in VERBS)


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether a method is read like data, whose name says a state."""
    names = [getattr(each, "id", getattr(each, "attr", "")) for each in node.decorator_list]
    return not {"property", "cached_property", "setter"}.isdisjoint(names)


def doubles(found: Mapping[str, Module]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return class names and module names that stand more than once, with where."""
    classes: dict[str, list[str]] = defaultdict(list)
    files: dict[str, list[str]] = defaultdict(list)
    for name, module in found.items():
        files[module.path.stem].append(name)
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(name)
    return (
        {key: where for key, where in classes.items() if len(where) > 1},
        {key: where for key, where in files.items() if len(where) > 1},
    )


def setters(
    found: Mapping[str, Module], records: Mapping[str, str]
) -> dict[str, dict[str, set[str]]]:
    """Return the functions that set each field of some classes after their construction.

    `records`: class -> what a variable or attribute that holds one is called, wherever it stands.
    """
    made: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in records}
    named = {spelled: name for name, spelled in records.items()}

    def visit(node: ast.AST, within: str, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{within}.{child.name}", child.name)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{within}.{child.name}", owner)
            else:
                visit(child, within, owner)
                if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
                    base = getattr(child.value, "id", getattr(child.value, "attr", ""))
                    record = owner if base == "self" else named.get(base.strip("_"), "")
                    if record in made and not within.endswith("__init__"):
                        made[record][child.attr].add(within)

    for name, module in found.items():
        visit(module.tree, name, "")
    return made
