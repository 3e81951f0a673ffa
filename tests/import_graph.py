"""Who imports whom in app, engine and kernels, read from the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("app", "engine", "kernels")


@dataclass(frozen=True)
class Import:
    """One import statement of one of our files."""

    file: str  # relative to the repository, with slashes
    line: int
    module: str  # dotted, relative imports resolved
    top_level: bool  # runs when the file is imported
    types_only: bool = False  # under TYPE_CHECKING: runs never, but a reader follows it as any other

    @property
    def library(self) -> str:
        return self.module.split(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def module_name(file: str) -> str:
    """engine/store/bundle.py as routesparse.engine.store.bundle."""
    return "routesparse." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def tree_of(file: str) -> ast.Module:
    """A file's syntax tree: several tests walk through all of them."""
    return ast.parse((ROOT / file).read_text("utf-8"))


def imports_of(file: str) -> Iterator[Import]:
    package = module_name(file) if file.endswith("__init__.py") else module_name(file).rpartition(".")[0]

    def visit(node: ast.AST, top_level: bool, types: bool = False) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(file, child.lineno, alias.name, top_level, types)
            elif isinstance(child, ast.ImportFrom):
                parents = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*parents, child.module or ""]).rstrip(".") if child.level else child.module
                for alias in child.names:
                    yield Import(file, child.lineno, f"{base}.{alias.name}", top_level, types)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from visit(child, False, True)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, top_level and not inside, types)

    yield from visit(tree_of(file), True)


FILES = sorted(
    path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
)
ALL_IMPORTS = [found for file in FILES for found in imports_of(file)]
IMPORTS = [found for found in ALL_IMPORTS if not found.types_only]


def edges(files: Iterable[str]) -> dict[str, set[str]]:
    """File -> our files that it imports, inside functions and for type checkers, too."""
    chosen = set(files)
    names = {module_name(file): file for file in FILES}
    graph: dict[str, set[str]] = {file: set() for file in chosen}
    for found in ALL_IMPORTS:
        # ``from package import name`` is the file of that name where there is one, else the package's __init__.
        target = names.get(found.module) or names.get(found.module.rpartition(".")[0])
        if found.file in chosen and target in chosen and target != found.file:
            graph[found.file].add(target)
    return graph


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan 1972), a component after all that it imports; several files: a circle."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        number[file] = low[file] = len(number)
        stack.append(file)
        for target in sorted(graph[file]):
            if target not in number:
                visit(target)
            if target in stack:
                low[file] = min(low[file], low[target])
        if low[file] == number[file]:
            place = stack.index(file)
            found.append(stack[place:])
            del stack[place:]

    for file in sorted(graph):
        if file not in number:
            visit(file)
    return found


def circle_in(graph: dict[str, set[str]], component: list[str]) -> list[str]:
    """The shortest way from a component's first file back to itself, by breadth."""
    first = min(component)
    ways = [[first]]
    for way in ways:
        for target in sorted(graph[way[-1]] & set(component)):
            if target == first:
                return [*way, first]
            if all(target not in other for other in ways):
                ways.append([*way, target])
    raise AssertionError(f"{component} is no circle")


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """The longest chain of imports, from the file that nobody on it imports down; a circle counts as one file."""
    chain: dict[str, list[str]] = {}
    longest: list[str] = []
    for component in components(graph):
        below = {target for file in component for target in graph[file]} - set(component)
        best = max((chain[target] for target in sorted(below)), key=len, default=[])
        for file in component:
            chain[file] = [" + ".join(sorted(component)), *best]
        longest = max(longest, chain[component[0]], key=len)
    return longest
