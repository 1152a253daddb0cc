"""All mutations of the sources, and a draw of some: the same ones of a function for as long as its text is the same."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutation.operators import OPERATORS, SPEED, WORDS, called

ROOMS = (
    "core", "algorithms", "compiler", "engines", "data", "runs", "sweeps", "paper", "analysis", "kernels", "metrics",
    "operators",
)  # fmt: skip
QUIET = {"warn", "warning", "debug", "info", "print", "Tile"}  # given what people read; tile sizes are for speed alone


@dataclass(frozen=True)
class Mutant:
    """One change of one place: ``text`` instead of the bytes ``begin:end`` of a file."""

    id: str
    file: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    begin: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.begin] + self.text.encode() + source[self.end :]


def mutants(root: Path) -> Iterator[Mutant]:
    """Every mutation of every file of the rooms."""
    for room in ROOMS:
        for path in sorted((root / "src/fedsmoo" / room).glob("**/*.py")):
            yield from of_file(path.read_bytes(), path.relative_to(root).as_posix())


def changed(root: Path, since: str) -> set[tuple[str, int]]:
    """The lines of the sources that a commit did not have, each as file and number."""
    words = ["git", "-C", str(root), "diff", "--unified=0", "--no-color", "--no-ext-diff", since, "--", "src/fedsmoo"]
    lines, file = set(), ""
    for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif found := re.match(r"@@ \S+ \+(\d+),?(\d*) @@", line):
            first, many = int(found[1]), int(found[2] or 1)
            lines |= {(file, first + i) for i in range(many)}
    return lines


def drawn(root: Path, seed: int, count: int, rooms: tuple[str, ...] = ROOMS, since: str | None = None) -> list[Mutant]:
    """``count`` mutations: as many of each operator, of each the ones whose hashed content is smallest.

    What an operator lacks others fill up. A line is mutated once, so that kin do not count twice. ``since``: only of
    lines that this commit did not have.
    """
    among = changed(root, since) if since else None

    def rank(m: Mutant) -> str:
        return hashlib.sha256(f"{seed} {m.id}".encode()).hexdigest()

    taken: dict[tuple[str, int], Mutant] = {}
    quota, had = count // len(OPERATORS), Counter[str]()
    every = [m for m in mutants(root) if m.file.split("/")[2] in rooms and (among is None or (m.file, m.line) in among)]
    ordered = sorted(every, key=rank)
    for wanted in (quota, count):
        for m in ordered:
            free = len(taken) < count and had[m.operator] < wanted and (m.file, m.line) not in taken
            if free and _readable(m.applied((root / m.file).read_bytes())):
                taken[m.file, m.line] = m
                had[m.operator] += 1
    return sorted(taken.values(), key=lambda m: (m.file, m.line))


def of_file(source: bytes, name: str) -> Iterator[Mutant]:
    """Every mutation of one file."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    seen: Counter[str] = Counter()
    for node, function in _places(tree):
        for operator in OPERATORS:
            for part, text in operator(node):
                begin = starts[part.lineno - 1] + part.col_offset
                end = starts[part.end_lineno - 1] + part.end_col_offset
                old = source[begin:end].decode()
                if part is not node and isinstance(part, ast.expr) and _idle(part):
                    continue
                content = f"{name} {function} {operator.__name__} {old} -> {text}"
                seen[content] += 1
                id = hashlib.sha256(f"{content} {seen[content]}".encode()).hexdigest()[:12]
                first, last = lines[part.lineno - 1], lines[part.end_lineno - 1]
                after = first[: part.col_offset] + text.encode() + last[part.end_col_offset :]
                whole = b" ".join(line.strip() for line in lines[part.lineno - 1 : part.end_lineno])
                shown = (whole.decode()[:200], " ".join(after.decode().split())[:200])
                if text != old:
                    yield Mutant(id, name, part.lineno, function, operator.__name__, *shown, begin, end, text)


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The nodes that may be mutated, each with the function it lies in, named as Python names code."""

    def inside(node: ast.AST, function: str, depth: str) -> Iterator[tuple[ast.AST, str]]:
        for child, idle in _children(node):
            name, below = function, depth
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{depth}{child.name}"
                below = f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
            if idle or _idle(child):
                continue
            yield child, name
            if not isinstance(child, ast.Raise):
                yield from inside(child, name, below)

    yield from inside(tree, "", "")


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """The children of a node, and whether a change in them could only be seen by a reader."""
    for field, value in ast.iter_fields(node):
        hints = field in ("annotation", "returns", "type_params", "decorator_list", "bases")
        sequence = isinstance(node, ast.Subscript) and field == "slice" and isinstance(value, ast.Tuple)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child, hints or sequence or _unpacked(node, child)


def _unpacked(node: ast.AST, child: ast.AST) -> bool:
    """A tuple on either side of an assignment: its length is not a matter of numbers."""
    pair = isinstance(child, ast.Tuple) and isinstance(node, ast.Assign | ast.For | ast.comprehension | ast.Return)
    return pair and not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name))


def _idle(node: ast.AST) -> bool:
    """Imports, texts, type hints, ``__all__`` and what is for type checkers and readers only."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.expr_context):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call) and called(node) in QUIET:
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in SPEED | WORDS
    if isinstance(node, ast.FunctionDef):
        return node.name == "__repr__" or any("overload" in ast.dump(d) for d in node.decorator_list)
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "__slots__")


def _readable(text: bytes) -> bool:
    with warnings.catch_warnings(action="error"):  # Python's doubts about a line count as errors
        try:
            compile(text, "mutant", "exec")
        except (SyntaxError, SyntaxWarning):
            return False
    return True
