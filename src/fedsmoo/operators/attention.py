"""Attention of C clients in one call of PyTorch's fused kernels, which know a batch but no clients.

``torch.func.vmap`` has no rule for their backward passes, nor for the kernel of a CPU, and would call them once for
each client. The rules here, for the whole process and as long as it lasts, fold the client axis into that of samples.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

ATEN = torch.library.Library("aten", "IMPL")  # whose rules last as long as it does
# Operators, and how many of their results have a row for each sample.
FOLDED = {
    "_scaled_dot_product_flash_attention_for_cpu": 2,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 4,
    "_scaled_dot_product_cudnn_attention_backward": 3,
}
MASKS = ("attn_mask", "attn_bias")


@cache
def fold_attention() -> None:
    """Give ``vmap`` rules for PyTorch's attention kernels, once."""
    for name, rows in FOLDED.items():
        op = getattr(getattr(torch.ops.aten, name, None), "default", None)
        if op is not None:  # not every release has all of them
            ATEN.impl(name, rule(op, rows), "FuncTorchBatched", with_keyset=True)


def rule(op: Any, rows: int) -> Any:
    """Return the rule of an operator."""
    from torch._functorch.autograd_function import custom_function_call_vmap_helper
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    names = [a.name for a in op._schema.arguments]
    positional = sum(not a.kwarg_only for a in op._schema.arguments)
    defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}

    def folded(info: Any, dims: Any, *values: Any) -> Any:
        clients, at = info.batch_size, names.index("query")
        samples = values[at].movedim(dims[at], 0).shape[1] if dims[at] is not None else values[at].shape[0]
        given = [
            fold(v, d, clients, samples, name in MASKS) if isinstance(v, Tensor) else v
            for name, v, d in zip(names, values, dims, strict=True)
        ]
        found = op(*given[:positional], **dict(zip(names[positional:], given[positional:], strict=True)))
        is_row = [i < rows and isinstance(v, Tensor) and v.dim() > 0 for i, v in enumerate(found)]
        out = [v.unflatten(0, (clients, -1)) if row else v for v, row in zip(found, is_row, strict=True)]
        return tuple(out), tuple(0 if row else None for row in is_row)

    def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        values = defaults | dict(zip(names, args, strict=False)) | kwargs
        level: Any = retrieve_current_functorch_interpreter()
        return custom_function_call_vmap_helper(level, folded, op, *(values[n] for n in names))

    return run


def fold(v: Tensor, dim: int | None, clients: int, samples: int, is_mask: bool) -> Tensor:
    """Return a tensor with its client axis folded into that of samples; what has no samples stays as it is.

    A mask may be of all samples alike: ``[T, S]``, or with an axis of 1.
    """
    if dim is None:
        if v.dim() < 3 or (is_mask and len(v) == 1):
            return v
        return v.expand(clients, *v.shape).flatten(0, 1)
    v = v.movedim(dim, 0)
    if is_mask and v.dim() == 3:
        v = v[:, None, None]
    if is_mask and v.shape[1] == 1:
        v = v.expand(-1, samples, *v.shape[2:])
    return v.flatten(0, 1) if v.dim() > 3 else v
