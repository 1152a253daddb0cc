"""The weights of C clients in the type and order that products read: one operator for all of a graph's."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedsmoo.operators.convolution import Sizes, by_kernels
from fedsmoo.operators.graph.views import VIEWS, value, with_values

aten, ours = torch.ops.aten, torch.ops.fedsmoo
PIECE = 16  # numbers, a multiple of which each weight and each row begins at: kernels load and store whole pieces
TURNED = [0, 3, 4, 2, 1]  # [C, O, I, kh, kw] -> [C, kh, kw, I, O]


class Taken(NamedTuple):
    """A node that is a weight in another type or order, and the fields of ``fedsmoo.kernels.cast.Weight`` but one."""

    node: Node
    start: int
    taps: int
    inside: int
    outside: int
    rows: int


@torch.library.custom_op("fedsmoo::cast", mutates_args=())
def cast(w: Tensor, weights: Sizes, kind: torch.dtype) -> Tensor:
    """Return ``[C, T]``: weights out of rows ``[C, P]``, six numbers for each: see ``fedsmoo.kernels.cast.Weight``."""
    fields = sizes(weights)
    out = w.new_empty(len(w), width(weights), dtype=kind)
    if by_kernels(w):
        from fedsmoo.kernels import cast as kernels  # late: it imports Triton

        kernels.cast(w, [kernels.Weight(*f) for f in fields], out)
        return out
    out.zero_()
    for start, there, taps, inside, outside, rows in fields:
        if taps == 0:
            out[:, there : there + outside] = w[:, start : start + outside]
        else:
            given = w[:, start : start + outside * inside * taps].unflatten(1, (outside, inside, taps))
            into = out[:, there : there + rows * outside].unflatten(1, (rows, outside))
            into[:, : taps * inside] = given.permute(0, 3, 2, 1).flatten(1, 2)
    return out


def sizes(weights: Sizes) -> list[Sizes]:
    """Return the six numbers of each weight."""
    return [weights[i : i + 6] for i in range(0, len(weights), 6)]


def rounded(n: int) -> int:
    """Return a length in whole pieces."""
    return -(-n // PIECE) * PIECE


def width(weights: Sizes) -> int:
    """Return the length of a client's row of the result."""
    return rounded(max(there + rows * outside for _, there, _, _, outside, rows in sizes(weights)))


@cast.register_fake
def _(w: Tensor, weights: Sizes, kind: torch.dtype) -> Tensor:
    return w.new_empty(len(w), width(weights), dtype=kind)


def is_part(node: Node, rows: Node) -> bool:
    """Whether a node shows, of each client's row, numbers that follow each other, in whichever order of axes."""
    of = node
    while of is not rows:
        if (of.target not in VIEWS and of.target is not aten.slice.Tensor) or not of.all_input_nodes:
            return False
        of = of.all_input_nodes[0]
    v = value(node)
    if v.dim() < 2 or v.shape[0] != value(rows).shape[0] or v.stride(0) != value(rows).stride(0):
        return False
    filled = 1
    for size, stride in sorted(zip(v.shape[1:], v.stride()[1:], strict=True), key=lambda p: p[1]):
        if size > 1 and stride != filled:
            return False
        filled *= size
    return True


def is_cast(node: Node, rows: Node) -> bool:
    """Whether a node is a part of rows in another type, in the same order in memory."""
    if node.target is not aten._to_copy.default or "memory_format" in node.kwargs or len(node.all_input_nodes) != 1:
        return False
    (of,) = node.all_input_nodes
    same = value(node).device == value(of).device and value(node).is_floating_point()
    return same and is_part(of, rows) and value(node).stride()[1:] == value(of).stride()[1:]


def padded(node: Node) -> Node | None:
    """Return the call that adds rows of zeros to a convolution's weights, ``[C, taps * I, O]``, if nothing else is."""
    if len(node.users) != 1:
        return None
    (shown,) = node.users
    if shown.target is not aten.view.default or value(shown).dim() != 3 or len(shown.users) != 1:
        return None
    (pad,) = shown.users
    shape = value(node).shape
    flat = value(shown).shape == (shape[0], shape[1:4].numel(), shape[4])
    zero = pad.target is aten.constant_pad_nd.default and pad.args[2:] in ((), (0,), (0.0,))
    return pad if zero and flat and pad.args[1][:3] == [0, 0, 0] and len(pad.args[1]) == 4 else None  # type: ignore[index, arg-type]


def turned(node: Node, rows: Node) -> Taken | None:
    """Return a convolution's weights in the order of its operator: a copy of a part of rows, in any type."""
    (shown,) = node.all_input_nodes[:1] or (node,)
    if node.target is not aten.clone.default or shown.target is not aten.permute.default or shown.args[1] != TURNED:
        return None
    (of,) = shown.all_input_nodes
    part = of.all_input_nodes[0] if is_cast(of, rows) else of
    if not is_part(part, rows) or not value(node).is_contiguous():
        return None
    clients, outside, inside, *kernel = value(part).shape
    taps = kernel[0] * kernel[1]
    if value(part).stride()[1:] != value(part).new_empty(clients, outside, inside, *kernel).stride()[1:]:
        return None
    pad = padded(node)
    found = node if pad is None else pad
    return Taken(found, int(value(part).storage_offset()), taps, inside, outside, value(found).shape[1:-1].numel())


def straight(node: Node, rows: Node) -> Taken | None:
    """Return a part of rows in another type."""
    if not is_cast(node, rows) or all(u.target is aten.permute.default and u.args[1] == TURNED for u in node.users):
        return None
    (part,) = node.all_input_nodes
    return Taken(node, int(value(part).storage_offset()), 0, 1, value(node).shape[1:].numel(), 1)


def cast_once(graph: Graph) -> None:
    """Let one operator make all weights that a graph takes in another type or order out of its first input."""
    rows = next(n for n in graph.nodes if n.op == "placeholder")
    if not isinstance(rows.meta.get("val"), Tensor) or value(rows).dim() != 2 or not value(rows).is_contiguous():
        return
    found = [t for n in graph.nodes if n.op == "call_function" if (t := turned(n, rows) or straight(n, rows))]
    for kind in dict.fromkeys(value(t.node).dtype for t in found):
        mine, weights, there = [t for t in found if value(t.node).dtype == kind], [], 0
        for t in mine:
            weights += [t.start, there, *t[2:]]
            there += rounded(t.rows * t.outside)
        with graph.inserting_after(rows):
            whole = graph.call_function(ours.cast.default, (rows, weights, kind))
        whole.meta["val"] = ours.cast.default(value(rows), weights, kind)
        for t, (_, at, *_) in zip(mine, sizes(weights), strict=True):
            v = value(t.node)
            strides = [value(whole).stride(0), *v.stride()[1:]]
            with graph.inserting_before(t.node):
                new = graph.call_function(aten.as_strided.default, (whole, list(v.shape), strides, at))
            new.meta["val"] = aten.as_strided.default(value(whole), list(v.shape), strides, at)
            t.node.replace_all_uses_with(new)
            forget(new)
    graph.eliminate_dead_code()
    with_values(graph)


def forget(node: Node) -> None:
    """Forget the fake tensors of views of a node: its memory lies otherwise than before."""
    for user in node.users:
        if user.target in VIEWS and user.meta.pop("val", None) is not None:
            forget(user)
