"""Generate passes over the vectors of many clients: Triton kernels written from a method's traced arithmetic.

A pass reads each vector it needs once, computes in registers, and writes its results. Programs of different clients at
the same place run side by side, so that what all clients were sent is read from memory once.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.fx import Node

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.expressions import triton_expression
from fedsmoo.kernels.runtime import launch

BLOCK, WARPS = 2048, 4
PARTS = 1024  # partial sums that are added up at a time
MOST = 65535  # programs per client that one launch has room for: 134 million numbers
FEW = 64  # programs per client of a pass that is rarely needed


@dataclass(frozen=True)
class Load:
    """What a pass reads from memory: a vector or a number, one per client or one for all clients (``shared``).

    A gradient's numbers from ``split`` on lie in the tensor ``rest``. ``row`` picks a row of the reduced sums; a norm
    is the square ``root`` of its sum.
    """

    name: str
    vector: bool
    shared: bool = False
    rest: str = ""
    split: int = 0
    row: int | None = None
    root: bool = False

    @classmethod
    def of(cls, name: str, shape: Sequence[int], size: int) -> Load:
        """Describe a tensor of this shape: vectors are ``size`` numbers long; a single one is shared by all clients."""
        vector = bool(shape) and shape[-1] == size
        return cls(name, vector, shared=math.prod(shape) == (size if vector else 1))


@dataclass(frozen=True)
class Store:
    """Where a pass writes a vector: all of it, or its numbers from ``begin`` on."""

    name: str
    node: Node
    following: bool = False  # its value in the next step, from the new weights and client vectors of this pass
    begin: int = 0


@dataclass(frozen=True)
class PassSpec:
    """What a pass does.

    Args:
        stores: vectors to write.
        sums: vectors to reduce to their sum (or sum of squares), per client.
        assumed: factors that are speculated to be one.
        unless: factors; clients for which all of them are one are skipped.
        becomes: the new value of an input in the next step, for ``Store.following``.
        counter: the input that counts steps: in the next one it is one more.
        ends: rows of sums that it adds up first, from the partial sums of the pass before; it then ends the step, as
            :func:`fold` does with ``close``. Every program of a client adds up the same numbers in the same order.
    """

    stores: Sequence[Store]
    sums: Sequence[tuple[Node, bool]] = ()
    assumed: frozenset[Node] = frozenset()
    unless: Sequence[Node] = ()
    becomes: Mapping[Node, Node] | None = None
    counter: Node | None = None
    ends: range = range(0)


def number(value: Any, dtype: str) -> str:
    """Return a number as text in a pass that computes in a type: Triton's functions take Python's in float32."""
    if isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else f'float("{value}")'
        return f"tl.full((), {text}, tl.float64)" if dtype == "tl.float64" else text
    raise NotCompiled(f"an argument {value!r}")


class VectorPass:
    """One kernel that does what ``spec`` says for ``clients`` vectors of ``size`` numbers.

    ``load_of`` says where a node's value lies in memory; ``None``: it is computed in the pass.

    Raises:
        NotCompiled: for an operation that has no Triton expression.
        ValueError: for more numbers than a launch has room for.
    """

    def __init__(
        self, spec: PassSpec, load_of: Callable[[Node], Load | None], clients: int, size: int, dtype: torch.dtype
    ) -> None:
        if self.blocks(size) > MOST:
            raise ValueError(f"a pass has room for {MOST * BLOCK:,} parameters, and the model has {size:,}")
        self.spec, self.load_of = spec, load_of
        self.clients, self.size = clients, size
        self.dtype = {torch.float32: "tl.float32", torch.float64: "tl.float64"}[dtype]
        self.names: list[str] = []
        self.lines: list[str] = []
        self.known: dict[tuple[Node, bool], str] = {}
        self.loaded: dict[Load, str] = {}
        self.summed: dict[int, str] = {}  # rows of sums that this pass adds up itself
        self.fresh = count()
        self.kernel = _jit(self._source())

    @staticmethod
    def blocks(size: int) -> int:
        """Return the number of programs per client; each writes its partial value of every sum."""
        return -(-size // BLOCK)

    def __call__(self, tensors: Mapping[str, Tensor]) -> None:
        programs = min(FEW, self.blocks(self.size)) if self.spec.unless else self.blocks(self.size)
        given = {"blocks": self.blocks(self.size), "clients": self.clients, **tensors}
        launch(self.kernel, (self.clients, programs), *(given[n] for n in self.names), num_warps=WARPS)

    def _source(self) -> str:
        r = self.spec
        if r.ends:
            self._end(r.ends)
        guard = " or ".join(f"not ({self._value(f, False)} >= 1.0)" for f in r.unless)
        before, self.lines = self.lines, []
        for node, following in [*((s.node, s.following) for s in r.stores), *((node, False) for node, _ in r.sums)]:
            self._value(node, following)  # read everything before anything is written
        for store in r.stores:
            self._store(store)
        for i, (node, squared) in enumerate(r.sums):
            v = self._value(node, False)
            kept = f"tl.where(inside, {f'{v} * {v}' if squared else v}, 0.0)"
            at = f"{self._name('partials')} + ({i * self.clients} + client) * {self.blocks(self.size)} + block"
            self.lines.append(f"tl.store({at}, tl.sum({kept}))")
        place = [f"at = block * {BLOCK} + tl.arange(0, {BLOCK})", f"inside = at < {self.size}"]
        head = ["client = tl.program_id(0).to(tl.int64)", "block = tl.program_id(1)"]
        if guard:  # mostly nothing is to do: few programs, each of which visits several blocks otherwise
            loop = f"for block in range(block, {self.blocks(self.size)}, tl.num_programs(1)):"
            body = [f"if {guard}:", f"    {loop}", *(f"        {line}" for line in (*place, *self.lines))]
        else:
            body = [*place, *self.lines]
        lines = [f"    {line}" for line in (*head, *before, *body)]
        return "\n".join([f"def vector_pass({', '.join(self.names)}):", *lines, ""])

    def _end(self, rows: range) -> None:
        """Add up the partial sums of the pass before; the first program of a client writes them, and its loss."""
        partials, blocks, clients, sums = (self._name(n) for n in ("partials", "blocks", "clients", "sums"))
        stores = []
        for i, row in enumerate(rows):
            at = f"{partials} + ({i} * {clients} + client) * {blocks}"
            self.summed[row] = self._fresh(f"added({at}, {blocks}, {PARTS})")
            stores.append(f"    tl.store({sums} + {row} * {clients} + client, {self.summed[row]})")
        total, loss = (f"{self._name(n)} + client" for n in ("total", "loss"))
        close = f"    tl.store({total}, tl.load({total}) + tl.load({loss}))"
        self.lines += ["if block == 0:", *stores, close]

    def _name(self, name: str) -> str:
        if name not in self.names:
            self.names.append(name)
        return name

    def _fresh(self, text: str) -> str:
        name = f"v{next(self.fresh)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _value(self, node: Node, following: bool) -> str:
        """Return the variable that holds a node's value, or with ``following`` its value in the next step."""
        if (node, following) in self.known:
            return self.known[node, following]
        if following and self.spec.becomes and node in self.spec.becomes:
            text = self._value(self.spec.becomes[node], False)
        elif following and node is self.spec.counter:
            text = self._fresh(f"{self._value(node, False)} + 1.0")
        elif node in self.spec.assumed:
            text = "1.0"
        elif (load := self.load_of(node)) is not None:
            text = self._load(load)
        else:
            text = self._fresh(triton_expression(node, lambda a: self._term(a, following)))
        self.known[node, following] = text
        return text

    def _term(self, argument: Any, following: bool) -> str:
        if isinstance(argument, Node):
            return self._value(argument, following)
        return number(argument, self.dtype)

    def _load(self, load: Load) -> str:
        if load in self.loaded:
            return self.loaded[load]
        name = self._name(load.name)
        if load.row is not None:
            text = self.summed.get(load.row) or f"tl.load({name} + {load.row * self.clients} + client)"
            text = f"tl.sqrt({text})" if load.root else text
        elif not load.vector:
            text = f"tl.load({name})" if load.shared else f"tl.load({name} + client)"
        else:
            row = "" if load.shared else f" + client * {self.size}"
            inside = f"inside & (at < {load.split})" if load.rest else "inside"
            text = f"tl.load({name}{row} + at, mask={inside}, other=0.0).to({self.dtype})"
            if load.rest:
                begin, rest = load.split, self._name(load.rest)
                at = f"{rest} + client * {self.size - begin} + (at - {begin})"
                fine = f"tl.load({at}, mask=inside & (at >= {begin}), other=0.0)"
                text = f"tl.where(at < {begin}, {text}, {fine})"
        self.loaded[load] = self._fresh(text)
        return self.loaded[load]

    def _store(self, store: Store) -> None:
        value, name, begin = self._value(store.node, store.following), self._name(store.name), store.begin
        at = f"{name} + client * {self.size - begin} + " + (f"(at - {begin})" if begin else "at")
        inside = f"inside & (at >= {begin})" if begin else "inside"
        self.lines.append(f"tl.store({at}, {value}, mask={inside})")


_sources = count()


def _jit(source: str) -> Any:
    """Compile generated source into a Triton kernel; ``linecache`` holds the source, where Triton looks for it."""
    if source not in _kernels:
        name = f"<vector pass {next(_sources)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        scope: dict[str, Any] = {"tl": tl, "added": added, "__name__": __name__}
        exec(compile(source, name, "exec"), scope)
        _kernels[source] = triton.jit(scope["vector_pass"])
    return _kernels[source]


_kernels: dict[str, Any] = {}


@triton.jit
def added(here, blocks, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), here.dtype.element_ty)
    for begin in range(0, blocks, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        acc += tl.load(here + at, mask=at < blocks, other=0.0)
    return tl.sum(acc)


@triton.jit
def fold_kernel(
    partials, sums, total, loss, blocks, clients, first,
    COUNT: tl.constexpr, CLOSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0)
    for r in tl.static_range(COUNT):
        acc = added(partials + (r * clients + client) * blocks, blocks, BLOCK)
        tl.store(sums + (first + r) * clients + client, acc)
    if CLOSE:
        tl.store(total + client, tl.load(total + client) + tl.load(loss + client))


def fold(tensors: Mapping[str, Tensor], clients: int, blocks: int, first: int, rows: int, close: bool) -> None:
    """Add up the partial sums of a pass's programs, in a fixed order, into ``rows`` rows of sums from ``first`` on.

    ``close`` ends a step: its losses are added to the total.
    """
    launch(
        fold_kernel, (clients,), *(tensors[n] for n in ("partials", "sums", "total", "loss")),
        blocks, clients, first, COUNT=rows, CLOSE=close, BLOCK=PARTS, num_warps=WARPS,
    )  # fmt: skip
