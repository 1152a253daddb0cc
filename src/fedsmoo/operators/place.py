"""The flat gradient of C clients from gradients of single parameters, each brought to its place in one pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedsmoo.kernels.conv.geometry import Geometry
from fedsmoo.operators.convolution import Sizes, by_kernels, conv_weight, geometry, precision_of
from fedsmoo.operators.graph.views import base, dense, in_memory_order, tidy, value
from fedsmoo.operators.groups import grouped

aten, ours = torch.ops.aten, torch.ops.fedsmoo
PARTS = 128  # at most, that are summed where they are placed: one after the other


def length(source: Tensor) -> int:
    """Return how many numbers of a client's flat gradient a source of :func:`place` is."""
    return source.shape[2:].numel()


@torch.library.custom_op("fedsmoo::place", mutates_args=())
def place(sources: list[Tensor]) -> Tensor:
    """Return ``[C, P]``: gradients beside each other, each ``[C, parts, N]`` or ``[parts, C, taps, I, O]``.

    Parts are summed; the latter, a convolution's, is brought to PyTorch's order, outputs, inputs, taps.
    """
    first = sources[0]
    clients = first.shape[0 if first.dim() == 3 else 1]
    if by_kernels(first):
        out = first.new_empty(clients, sum(length(v) for v in sources), dtype=torch.float32)
        place_into(sources, out)
        return out
    rows = []
    for v in sources:
        total = v.sum(1 if v.dim() == 3 else 0, dtype=torch.promote_types(v.dtype, torch.float32))
        rows.append(total if v.dim() == 3 else total.permute(0, 3, 2, 1).flatten(1))
    return torch.cat(rows, 1)


@place.register_fake
def _(sources: list[Tensor]) -> Tensor:
    clients = sources[0].shape[0 if sources[0].dim() == 3 else 1]
    kind = torch.float32
    for v in sources:
        kind = torch.promote_types(kind, v.dtype)
    return sources[0].new_empty(clients, sum(length(v) for v in sources), dtype=kind)


@torch.library.custom_op("fedsmoo::place_into", mutates_args=("out",))
def place_into(sources: list[Tensor], out: Tensor) -> None:
    """Write what :func:`place` returns."""
    if by_kernels(sources[0]):
        from fedsmoo.kernels import place as kernels

        kernels.place(sources, out)
    else:
        out.copy_(place(sources))


@place_into.register_fake
def _(sources: list[Tensor], out: Tensor) -> None:
    pass


def kind_of(x: Tensor, parts: int) -> torch.dtype:
    """Return the type of a weight gradient of images in parts."""
    return x.dtype if parts == 1 else torch.promote_types(x.dtype, torch.float32)


@torch.library.custom_op("fedsmoo::conv_weight_parts", mutates_args=())
def conv_weight_parts(
    x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, parts: int
) -> Tensor:
    """Return ``conv_weight`` as parts that are still to be summed, ``[parts, C, taps, I, O]``.

    Several are in float32 at least; one alone has the type of products, as PyTorch's own.
    """
    if by_kernels(x):
        from fedsmoo.kernels.conv import choose

        g = geometry(kernel, stride, padding, dilation)
        return choose.weight_parts(g, x.contiguous(), dy.contiguous(), precision_of(x), parts).flatten(2, 3)
    return conv_weight(x, dy, kernel, stride, padding, dilation).flatten(1, 2)[None].to(kind_of(x, parts))


@conv_weight_parts.register_fake
def _(x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, parts: int) -> Tensor:
    sizes = parts, x.shape[0], kernel[0] * kernel[1], x.shape[-1], dy.shape[-1]
    return x.new_empty(sizes, dtype=kind_of(x, parts))


def parts_of(g: Geometry, x: Tensor, dy: Tensor) -> int:
    """Return in how many parts a weight gradient is summed."""
    if not by_kernels(x):
        return 1
    from fedsmoo.kernels.conv import choose

    return choose.parts_of(g, x, dy, precision_of(x))


def in_parts(graph: Graph, made: Node) -> Node:
    """Insert a weight gradient as parts that are still to be summed."""
    x, dy = (value(v) for v in made.all_input_nodes[:2])
    kernel, *how = made.args[2:]
    if made.target is ours.grouped_weight.default:
        parts, target = grouped.parts_of(x, dy, kernel, how[-1]), ours.grouped_weight_parts.default  # type: ignore[arg-type]
    else:
        parts, target = parts_of(geometry(kernel, *how), x, dy), ours.conv_weight_parts.default  # type: ignore[arg-type]
    with graph.inserting_before(made):  # not with all others in the end: what it reads can be freed
        found = graph.call_function(target, (*made.args, parts))
    found.meta["val"] = target(*(value(v) if isinstance(v, Node) else v for v in found.args))
    return found


def as_taps(node: Node) -> Node | None:
    """Return the weight gradient ``[C, kh, kw, I, O]`` that a gradient ``[C, N]`` is, in PyTorch's order."""
    node = of_view(node)
    while node.target in (aten._to_copy.default, aten.clone.default) or is_same(node):
        node = node.all_input_nodes[0]
    if node.target is not aten.permute.default or node.args[1] != [0, 4, 3, 1, 2]:
        return None
    (made,) = node.all_input_nodes
    if made.target is aten.view.default:  # of patches, without what made them wide
        (cut,) = made.all_input_nodes
        if cut.target is aten.slice.Tensor and cut.args[1:3] == (1, 0):
            (of,) = cut.all_input_nodes
            made = base(of)
    known = made.target in (ours.conv_weight.default, ours.grouped_weight.default)
    return made if known and len(made.users) == 1 else None


def value_shapes(node: Node) -> Iterator[torch.Size]:
    """Yield the shapes of a node and of what it was made of, by one argument each, back to the first."""
    while node.all_input_nodes:
        yield value(node).shape
        node = node.all_input_nodes[0]


def of_view(node: Node) -> Node:
    """Return what a node ``[C, N]`` is a view of with axes of each client's numbers, in order."""
    return node.all_input_nodes[0] if node.target in (aten.view.default, aten._unsafe_view.default) else node


def is_kept(computed: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether :func:`place` makes numbers of one type from those that were computed in another: kernels read two."""
    return computed == wanted or (computed, wanted) == (torch.bfloat16, torch.float32)


def as_computed(node: Node) -> Node:
    """Return the node of a gradient ``[C, N]`` in the type that it was computed in, in the same order in memory."""
    wanted, node = value(node).dtype, base(node)
    while node.target is aten._to_copy.default and "memory_format" not in node.kwargs:
        (of,) = node.all_input_nodes
        u, v = value(of), value(node)
        if not dense(u) or u.stride() != v.stride() or u.device != v.device or not is_kept(u.dtype, wanted):
            break
        node = base(of)
    return node


def added_up(node: Node) -> Node | None:
    """Return what a node adds up over its second axis as :func:`place` does: autocast on a GPU names the sum's type."""
    if node.target is not aten.sum.dim_IntList or node.args[1:] not in (([1],), ([1], True)):
        return None
    (of,) = node.all_input_nodes
    return of if not node.kwargs.keys() - {"dtype"} and is_kept(value(of).dtype, value(node).dtype) else None


def is_same(node: Node) -> bool:
    """Whether a node is a permutation that leaves all axes where they are."""
    return node.target is aten.permute.default and node.args[1] == sorted(node.args[1])  # type: ignore[arg-type, type-var]


def source_of(graph: Graph, node: Node) -> Node:
    """Insert what :func:`place` takes for a gradient ``[C, N]`` of the graph."""
    made, given = as_taps(node), as_computed(node)
    if made is not None and is_kept(value(made).dtype, value(node).dtype):
        found = in_parts(graph, made)
        numbers, outside = value(node).shape[1], value(made).shape[-1]
        if numbers == value(made).shape[1:].numel():
            return found
        shape = next(v for v in value_shapes(node) if len(v) == 5)
        rows = graph.call_function(aten.slice.Tensor, (found, 3, 0, numbers // outside))
        sizes = [*value(found).shape[:2], shape[3] * shape[4], shape[2], outside]
        return graph.call_function(aten.view.default, (rows, sizes))
    clients, numbers = value(node).shape
    of = added_up(given) if value(node).is_contiguous() and value(given).is_contiguous() else None  # else turned
    sizes = [] if of is None else [*value(of).shape]
    if of is not None and sizes[::2] == [clients, numbers] and len(sizes) == 3 and sizes[1] <= PARTS:
        return of
    if not value(node).is_contiguous():  # clients do not come first in memory
        given = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
        given.meta["val"] = value(node).contiguous()
    return in_memory_order(graph, given, (clients, 1, numbers))


def place_gradients(graph: Graph) -> None:
    """Let the flat gradient, a graph's first result, be written in place, from whatever its parts are made as."""
    for cat in [n for n in graph.output_node().all_input_nodes[:1] if n.target is aten.cat.default]:
        nodes = [v for v in cat.args[0] if isinstance(v, Node)]  # type: ignore[union-attr]
        kinds = {value(v).dtype for v in nodes}
        if (
            cat.args[1:] not in ((-1,), (1,))
            or value(cat).dim() != 2
            or kinds not in ({torch.float32}, {torch.float64})
        ):
            continue
        with graph.inserting_before(cat):
            new = graph.call_function(ours.place.default, ([source_of(graph, v) for v in nodes],))
        new.meta["val"] = value(cat)
        cat.replace_all_uses_with(new)
    tidy(graph)
