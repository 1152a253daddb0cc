"""Translate traced operations on vectors and numbers into expressions of Triton's language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from fedsmoo.compiler import NotCompiled

aten = torch.ops.aten


def _nan_kept(function: str) -> str:
    return f"tl.{function}({{}}, {{}}, propagate_nan=tl.PropagateNan.ALL)"


# Operation: its Triton, by position of arguments.
TRITON: dict[Any, str] = {
    aten.mul.Tensor: "({} * {})",
    aten.div.Tensor: "({} / {})",
    aten.neg.default: "({} * -1.0)",  # Triton's minus subtracts from zero, which loses the sign of one
    aten.reciprocal.default: "(1.0 / {})",
    aten.square.default: "({0} * {0})",
    aten.sqrt.default: "tl.sqrt({})",
    aten.rsqrt.default: "(1.0 / tl.sqrt({}))",
    aten.exp.default: "tl.exp({})",
    aten.log.default: "tl.log({})",
    aten.abs.default: "tl.abs({})",
    aten.sigmoid.default: "(1.0 / (1.0 + tl.exp(-{})))",
    aten.maximum.default: _nan_kept("maximum"),
    aten.minimum.default: _nan_kept("minimum"),
    aten.where.self: "tl.where({} != 0, {}, {})",
    aten.gt.Tensor: "({} > {})",
    aten.gt.Scalar: "({} > {})",
    aten.ge.Tensor: "({} >= {})",
    aten.ge.Scalar: "({} >= {})",
    aten.lt.Tensor: "({} < {})",
    aten.lt.Scalar: "({} < {})",
    aten.le.Tensor: "({} <= {})",
    aten.le.Scalar: "({} <= {})",
    aten.zeros_like.default: "0.0",
    aten.ones_like.default: "1.0",
}
SAME = {  # only the shape changes, and in a pass everything broadcasts
    aten.alias.default, aten.clone.default, aten.detach.default, aten.expand.default, aten.lift_fresh_copy.default,
    aten.squeeze.dim, aten.unsqueeze.default, aten.view.default,
}  # fmt: skip

ARITHMETIC = {
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default, aten.minimum.default,
}  # fmt: skip
CLAMPS = {aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default}


def triton_expression(node: Node, term: Callable[[Any], str]) -> str:
    """Return the Triton expression of an operation; ``term`` gives that of an argument.

    Raises:
        NotCompiled: for an operation that has none.
    """
    target, args = node.target, node.args
    if target in SAME:
        return term(args[0])
    if target in ARITHMETIC:
        if is_boolean(node):  # PyTorch adds booleans as "or", the device as "exclusive or"
            raise NotCompiled(f"{target} of booleans")
        plain, term = term, lambda a: f"tl.where({plain(a)}, 1.0, 0.0)" if is_boolean(a) else plain(a)
    if target in (aten.add.Tensor, aten.sub.Tensor):
        scaled = term(args[1])
        if (alpha := node.kwargs.get("alpha", 1)) != 1:
            scaled = f"({scaled} * {term(alpha)})"
        return f"({term(args[0])} {'+' if target is aten.add.Tensor else '-'} {scaled})"
    if target is aten.rsub.Scalar and len(args) == 2:
        return f"({term(args[1])} - {term(args[0])})"
    if target is aten.pow.Tensor_Scalar and args[1] == 2:
        return TRITON[aten.square.default].format(term(args[0]))
    if target in CLAMPS:
        low, high = clamp_limits(node)
        text = term(args[0])
        text = text if low is None else TRITON[aten.maximum.default].format(text, term(low))
        return text if high is None else TRITON[aten.minimum.default].format(text, term(high))
    if target in TRITON and not node.kwargs.get("rounding_mode"):
        return TRITON[target].format(*(term(a) for a in args))
    raise NotCompiled(str(target))


def is_boolean(argument: Any) -> bool:
    """Return whether an argument is a boolean rather than a number."""
    return isinstance(argument, Node) and argument.meta["val"].dtype is torch.bool


def clamp_limits(node: Node) -> tuple[Any, Any]:
    """Return the lower and the upper limit of a clamp, ``None`` where it has none."""
    low, high = (*node.args[1:], None, None)[:2]
    if node.target is aten.clamp_max.default:
        return None, low
    return node.kwargs.get("min", low), node.kwargs.get("max", high)
