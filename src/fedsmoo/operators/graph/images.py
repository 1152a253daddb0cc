"""What stands behind a convolution in a traced graph: a bias and a ReLU as part of it, and a pool as our operators.

Each would read and write whole maps; the sums that biases want are made where a pool's gradient is.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from fedsmoo.operators.graph.views import VIEWS, base, dense, laid_out_as, shown_by, tidy, value
from fedsmoo.operators.pool import NOBODY

aten, ours = torch.ops.aten, torch.ops.fedsmoo
COPIES = {aten.clone.default, aten._to_copy.default}


def called(graph: Graph, target: Any, *given: Any) -> Node:
    """Insert a call, with the fake tensors it returns."""
    node = graph.call_function(target, given)
    node.meta["val"] = target(*(value(v) if isinstance(v, Node) else v for v in given))
    return node


def last(graph: Graph, node: Node) -> Node:
    """Insert images ``[N, CH, H, W]`` as ``[1, N, H, W, CH]``, copied where they lie in another order."""
    there = called(graph, aten.permute.default, node, [0, 2, 3, 1])
    if not value(there).is_contiguous():
        there = graph.call_function(aten.clone.default, (there,), {"memory_format": torch.contiguous_format})
        there.meta["val"] = value(there.all_input_nodes[0]).contiguous()
    return called(graph, aten.unsqueeze.default, there, 0)


def first(graph: Graph, node: Node, like: Node) -> Node:
    """Insert images ``[1, N, H, W, CH]`` in the shape of another node of as many pixels, channels before them."""
    shown = called(graph, aten.permute.default, node, [0, 1, 4, 2, 3])
    return called(graph, aten.view.default, shown, list(value(like).shape))


def sizes(pool: Node) -> list[list[int]] | None:
    """Return kernel, stride and padding of a pool that our operators know."""
    given: Any = [*pool.args[1:5], *([[], [0, 0], [1, 1]][len(pool.args) - 2 :])]
    found = [list(v) * (2 // len(v)) for v in (given[0], given[1] or given[0], *given[2:4])]
    v = value(pool.all_input_nodes[0])
    fits = found[3] == [1, 1] and found[0][0] * found[0][1] < NOBODY and v.dim() == 4 and v.is_floating_point()
    return found[:3] if fits and v.permute(0, 2, 3, 1).is_contiguous() else None


def backwards(pool: Node) -> tuple[Node, list[Node]] | None:
    """Return the maxima of a pool and the backward calls that its indices go to, if these go nowhere else."""
    items = {n.args[1]: n for n in pool.users}
    found, left = [], list(items[1].users) if 1 in items else []
    while left:
        node = left.pop()
        if node.target in VIEWS or node.target in COPIES:
            left += node.users
        elif node.target is aten.max_pool2d_with_indices_backward.default:
            found.append(node)
        else:
            return None
    return (items[0], found) if 0 in items else None


def mask_of(back: Node, x: Node) -> Node | None:
    """Return the backward of a ReLU that a pool's gradient passes and nothing else looks at, of the pool's inputs."""
    seen = shown_by(back)
    if len(seen) != 1:
        return None
    (mask,) = seen
    if mask.target is not aten.threshold_backward.default or mask.args[2] != 0:
        return None
    dy, y = mask.all_input_nodes if len(mask.all_input_nodes) == 2 else (mask, mask)
    return mask if base(dy) is base(back) and base(y) is base(x) and like_images(mask, back) else None


def like_images(node: Node, images: Node) -> bool:
    """Whether a node shows images ``[N, CH, H, W]`` with an axis of clients before that of samples, or as they are."""
    shape = value(node).shape
    return shape[-3:] == value(images).shape[1:] and shape[:-3].numel() == value(images).shape[0]


def fuse_pools(graph: Graph) -> None:
    """Make pools ours, with the ReLU before them and the sums that biases want on the way back."""
    for pool in [n for n in graph.nodes if n.target is aten.max_pool2d_with_indices.default]:
        how, found = sizes(pool), backwards(pool)
        if how is None or found is None or len(found[1]) > 1:
            continue
        maxima, backs = found
        x, masks = pool.all_input_nodes[0], [mask_of(b, pool.all_input_nodes[0]) for b in backs]
        with graph.inserting_before(pool):
            size = list(value(maxima).shape[-2:])
            new = called(graph, ours.pool.default, last(graph, x), size, *how, any(masks))
            y, which = (item(graph, new, i) for i in (0, 1))
            maxima.replace_all_uses_with(first(graph, y, maxima))
        for back, mask in zip(backs, masks, strict=True):
            with graph.inserting_before(mask or back):
                given = last(graph, back.args[0]), which, list(value(x).shape[-2:]), *how  # type: ignore[arg-type]
                made = called(graph, ours.pool_backward.default, *given)
                dx, sums = (item(graph, made, i) for i in (0, 1))
            take_sums(graph, mask or back, back, sums)
            with graph.inserting_after(dx):
                shown = graph.call_function(aten.permute.default, (dx, [0, 1, 4, 2, 3]))
            shown.meta["val"] = value(dx).permute(0, 1, 4, 2, 3)
            with graph.inserting_after(shown):
                there = called(graph, aten.view.default, shown, list(value(mask or back).shape))
            (mask or back).replace_all_uses_with(there)
    tidy(graph)


def item(graph: Graph, call: Node, place: int) -> Node:
    """Insert one result of a call."""
    node = graph.call_function(operator.getitem, (call, place))
    node.meta["val"] = call.meta["val"][place]
    return node


def take_sums(graph: Graph, gradient: Node, images: Node, sums: Node) -> None:
    """Let sums of a gradient ``[C, B, CH, H, W]`` over samples and pixels be those of each sample's, ``[1, N, CH]``."""
    for total in [n for n in shown_by(gradient) if n.target is aten.sum.dim_IntList]:
        (of,) = total.all_input_nodes
        v = value(of)
        if total.args[1:] != ([1, 3, 4],) or not like_images(of, images) or v.dim() != 5:
            continue
        wanted = value(total).dtype  # which autocast on a GPU names
        if total.kwargs.keys() - {"dtype"} or wanted not in (v.dtype, value(sums).dtype):
            continue
        with graph.inserting_before(total):
            each = called(graph, aten.view.default, sums, [*v.shape[:2], v.shape[2]])
            new = called(graph, aten.sum.dim_IntList, each, [1])
        for user in list(total.users):
            if user.target is aten._to_copy.default and value(user).dtype == value(new).dtype:
                user.replace_all_uses_with(new)
        if total.users:
            with graph.inserting_before(total):
                coarse = graph.call_function(aten._to_copy.default, (new,), {"dtype": wanted})
                coarse.meta["val"] = value(new).to(wanted)
            total.replace_all_uses_with(coarse if value(new).dtype != wanted else new)


def bias_of(add: Node, conv: Node) -> Node | None:
    """Return the bias ``[C, O]`` that a node adds to a convolution's outputs, as the model has it."""
    clients, outputs = value(conv).shape[0], value(conv).shape[-1]
    if add.kwargs or len(add.all_input_nodes) != 2:
        return None
    here, node = add.all_input_nodes
    if base(here) is not conv or not dense(value(add)) or value(here).dim() != 5:
        return None
    if value(node).shape != (clients, 1, outputs, 1, 1) or value(here).stride() != value(add).stride():
        return None
    node = base(node)
    if node.target is aten._to_copy.default and value(node.all_input_nodes[0]).dtype == torch.float32:
        node = node.all_input_nodes[0]  # rounded once, with what it is added to
    return node if value(node).shape == (clients, outputs) else None


def laid_alike(node: Node) -> bool:
    """Whether the result of a function of one tensor lies in memory as what it is given."""
    return value(node).stride() == value(node.all_input_nodes[0]).stride()


def fuse_convolutions(graph: Graph) -> None:
    """Make the bias that is added to a convolution's outputs, and the ReLU behind it, part of it."""
    alone = {ours.conv.default: 5, ours.grouped.default: 6}  # how many arguments they have without either
    for conv in [n for n in graph.nodes if len(n.args) == alone.get(n.target)]:
        bias, end, seen = None, conv, shown_by(conv)
        if len(seen) == 1 and next(iter(seen)).target is aten.add.Tensor:
            (add,) = seen
            bias = bias_of(add, conv)
            end, seen = (add, shown_by(add)) if bias is not None else (conv, seen)
        relu = next(iter(seen)) if len(seen) == 1 else conv
        relu = relu if relu.target is aten.relu.default and laid_alike(relu) else conv
        end = end if relu is conv else relu
        if end is conv or not dense(value(end)):
            continue
        with graph.inserting_before(end):
            new = called(graph, conv.target, *conv.args, bias, relu is not conv)
            end.replace_all_uses_with(laid_out_as(graph, new, end))
    tidy(graph)
