"""The operators: each turns a node of a syntax tree into texts that could stand there instead, all of them wrong."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

Change = tuple[ast.AST, str]  # the node that is replaced, and the text in its place
BINARY = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
PAIRS = [
    ("min", "max"), ("sum", "mean"), ("any", "all"), ("argmin", "argmax"), ("zeros", "ones"), ("floor", "ceil"),
    ("zeros_like", "ones_like"), ("minimum", "maximum"), ("amin", "amax"), ("sin", "cos"),
    ("rpartition", "partition"), ("intersection", "union"),
]  # fmt: skip
METHODS = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list", "sum": "max"}
# What only makes a program faster or slower, puts a tensor elsewhere, or words something otherwise: no number shows it.
SPEED = {"num_warps", "num_stages", "non_blocking", "pin_memory", "maxsize", "fullgraph", "dynamic", "device", "repr"}
WORDS = {"help", "metadata", "stacklevel", "match", "description", "msg"}
UNORDERED = {"min", "max", "suppress", "minimum", "maximum", "gcd", "union", "intersection", "equal", "allclose"}
MODULES = {
    "torch", "np", "numpy", "tl", "triton", "math", "F", "os", "sys", "json", "dist", "shutil", "time", "struct",
    "hashlib", "re", "pickle", "self", "cls",
}  # fmt: skip
KEEP = {"property", "cached_property", "cache", "lru_cache", "overload", "abstractmethod", "no_grad", "jit", "wraps"}


def arithmetic(node: ast.AST) -> Iterator[Change]:
    """Another operator, or no minus sign."""
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY and not any(map(_text, (node.left, node.right))):
        yield node, f"{_wrap(node.left)} {BINARY[type(node.op)]} {_wrap(node.right)}"
    if isinstance(node, ast.AugAssign) and type(node.op) in BINARY and not _text(node.value):
        yield node, f"{ast.unparse(node.target)} {BINARY[type(node.op)]}= {ast.unparse(node.value)}"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield node, _wrap(node.operand)


def comparison(node: ast.AST) -> Iterator[Change]:
    """Another comparison: one that differs where both sides are equal, or the contrary."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[i] = COMPARED[type(op)]()
            yield node, f"({ast.unparse(changed)})"


def constant(node: ast.AST) -> Iterator[Change]:
    """A number that is off by one, twice as large, or the other truth value."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield node, repr(not node.value)
        elif isinstance(node.value, int):
            yield node, repr(node.value + 1)
        elif isinstance(node.value, float):
            yield node, repr(2 * node.value or 1.0)


def condition(node: ast.AST) -> Iterator[Change]:
    """The contrary of what is asked."""
    tests = node.ifs if isinstance(node, ast.comprehension) else []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    for test in tests:
        bare = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else None
        yield test, _wrap(bare) if bare else f"(not {_wrap(test)})"


def logic(node: ast.AST) -> Iterator[Change]:
    """And for or; or one part left out."""
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield node, f"({word.join(map(_wrap, node.values))})"
        yield node, _wrap(node.values[0])


def dropped_statement(node: ast.AST) -> Iterator[Change]:
    """Nothing instead of a statement; not where a name would be missing afterwards."""
    stored = isinstance(node, ast.Assign) and not any(isinstance(t, ast.Name | ast.Tuple) for t in node.targets)
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    guard = isinstance(node, ast.If) and not node.orelse
    if stored or called or guard or isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break):
        yield node, "pass"


def dropped_call(node: ast.AST) -> Iterator[Change]:
    """A call's first argument, or the object whose method it was, instead of its result."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and not _module(node.func.value):
            yield node, _wrap(node.func.value)
        elif node.args and not isinstance(node.args[0], ast.Starred) and not _text(node.args[0]):
            yield node, _wrap(node.args[0])


def swapped_arguments(node: ast.AST) -> Iterator[Change]:
    """The first two arguments the other way round, where their order counts."""
    starred = isinstance(node, ast.Call) and any(isinstance(a, ast.Starred) for a in node.args[:2])
    if isinstance(node, ast.Call) and len(node.args) > 1 and not starred and called(node) not in UNORDERED:
        changed = copy.deepcopy(node)
        changed.args[:2] = changed.args[1::-1]
        if ast.dump(changed) != ast.dump(node) and not any(map(_text, node.args[:2])):
            yield node, ast.unparse(changed)


def dropped_keyword(node: ast.AST) -> Iterator[Change]:
    """A call without one of its named arguments."""
    if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) > 1:
        parts = sorted([*node.args, *node.keywords], key=lambda n: (n.lineno, n.col_offset))
        for i, part in enumerate(parts):
            if isinstance(part, ast.keyword) and part.arg and part.arg not in SPEED | WORDS:
                yield _without(parts, parts, i), ""


def extreme(node: ast.AST) -> Iterator[Change]:
    """The smallest for the largest, a mean for a sum, and their like."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            yield node.func, f"{_wrap(node.func.value)}.{METHODS[node.func.attr]}"
        if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            yield node.func, FUNCTIONS[node.func.id]


def dropped_entry(node: ast.AST) -> Iterator[Change]:
    """A dictionary, set, list or tuple of several without one of them."""
    if isinstance(node, ast.Dict) and len(node.keys) > 1 and None not in node.keys:
        for i in range(len(node.keys)):
            yield _without(node.keys, node.values, i), ""
    if isinstance(node, ast.Set | ast.List | ast.Tuple) and len(node.elts) > 1:
        for i in range(len(node.elts)):
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                yield node, f"({ast.unparse(node.elts[1 - i])},)"
            else:
                yield _without(node.elts, node.elts, i), ""


def shifted_slice(node: ast.AST) -> Iterator[Change]:
    """A slice that begins one later or ends one earlier; the other end of a sequence."""
    if isinstance(node, ast.Slice):
        step = f":{ast.unparse(node.step)}" if node.step else ""
        low, high = (ast.unparse(e) if e else "" for e in (node.lower, node.upper))
        if low or not high:
            yield node, f"{_wrap(node.lower)} + 1:{high}{step}" if node.lower else f"1:{high}{step}"
        if high:
            yield node, f"{low}:{_wrap(node.upper)} - 1{step}"
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.unparse(node.slice) in ("0", "-1"):
        yield node, f"{ast.unparse(node.value)}[{'-1' if ast.unparse(node.slice) == '0' else '0'}]"


def returned(node: ast.AST) -> Iterator[Change]:
    """Nothing, instead of what a function returns."""
    if isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
        yield node, "return None"


def first_argument(node: ast.AST) -> Iterator[Change]:
    """A function that returns what it was given."""
    if isinstance(node, ast.FunctionDef):
        given = [a.arg for a in node.args.args if a.arg not in ("self", "cls")]
        for inner in ast.walk(node) if given else ():
            if isinstance(inner, ast.Return) and inner.value and not isinstance(inner.value, ast.Constant):
                yield inner, f"return {given[0]}"


def iteration(node: ast.AST) -> Iterator[Change]:
    """A loop that passes over what comes first."""
    if isinstance(node, ast.For | ast.comprehension) and not getattr(node, "is_async", False):
        yield node.iter, f"[*{_wrap(node.iter)}][1:]"


def decorator(node: ast.AST) -> Iterator[Change]:
    """A function without one of its decorators."""
    for d in node.decorator_list if isinstance(node, ast.FunctionDef) else []:
        called = d.func if isinstance(d, ast.Call) else d
        if ast.unparse(called).split(".")[-1] not in KEEP:
            yield d, "(lambda f: f)"


def chosen(node: ast.AST) -> Iterator[Change]:
    """The other branch of a conditional expression, always."""
    if isinstance(node, ast.IfExp):
        yield node, _wrap(node.body)
        yield node, _wrap(node.orelse)


OPERATORS: list[Callable[[ast.AST], Iterator[Change]]] = [
    arithmetic, comparison, constant, condition, logic, dropped_statement, dropped_call, swapped_arguments,
    dropped_keyword, extreme, dropped_entry, shifted_slice, returned, first_argument, iteration, decorator, chosen,
]  # fmt: skip


def called(node: ast.Call) -> str:
    """The name of what is called, without what stands before its last dot."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _without(starts: list[ast.AST], ends: list[ast.AST], i: int) -> ast.AST:
    """What goes with the ``i``-th of several parts: itself and the comma to a neighbour."""
    last = i == len(starts) - 1
    begin = (ends[i - 1].end_lineno, ends[i - 1].end_col_offset) if last else (starts[i].lineno, starts[i].col_offset)
    end = (ends[i].end_lineno, ends[i].end_col_offset) if last else (starts[i + 1].lineno, starts[i + 1].col_offset)
    return ast.Pass(lineno=begin[0], col_offset=begin[1], end_lineno=end[0], end_col_offset=end[1])


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _module(node: ast.AST) -> bool:
    """Whether what stands before a dot is a module or the object itself, as far as names tell."""
    return isinstance(node, ast.Name) and node.id in MODULES


def _wrap(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"
