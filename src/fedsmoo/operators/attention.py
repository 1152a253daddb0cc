"""Attention of C clients in one call of PyTorch's fused kernels, which know a batch but no clients.

What ``nn.MultiheadAttention`` computes around them is computed in the order in which samples lie in memory, with heads
as an axis of their own. PyTorch's own function turns the axes of samples and tokens, and back, and takes the heads of
all samples for one axis: copies, with divisions for every number.

``torch.func.vmap`` has no rule for their backward passes, nor for the kernel of a CPU, and would call them once for
each client. The rules here, for the whole process and as long as it lasts, fold the client axis into that of samples.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

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


@cache
def signature() -> inspect.Signature:
    """Return the arguments of PyTorch's function."""
    return inspect.signature(inspect.unwrap(F.multi_head_attention_forward))


def is_plain(given: dict[str, Any]) -> bool:
    """Whether arguments ask for self-attention of a batch alone: no masks, no dropout, no further keys, no weights."""
    x, unset = given["query"], ("bias_k", "bias_v", "key_padding_mask", "attn_mask", "static_k", "static_v")
    if not (x is given["key"] and x is given["value"]) or x.dim() != 3 or given["in_proj_weight"] is None:
        return False
    flags = "add_zero_attn", "need_weights", "use_separate_proj_weight", "is_causal"
    if any(given[name] is not None for name in unset) or any(given[name] for name in flags):
        return False
    fits = x.shape[-1] == given["embed_dim_to_check"] and x.shape[-1] % given["num_heads"] == 0
    return fits and not (given["training"] and given["dropout_p"] > 0)


def multi_head_attention(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Compute ``F.multi_head_attention_forward``."""
    bound = signature().bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    if not is_plain(given):
        return F.multi_head_attention_forward(*args, **kwargs)
    x, bias = given["query"], given["in_proj_bias"]  # [T, B, E]
    turned = x.stride(0) < x.stride(1)
    rows = x.transpose(0, 1) if turned else x
    projected = F.linear(rows, given["in_proj_weight"])
    projected = projected if bias is None else projected + bias
    heads = projected.unflatten(-1, (3, given["num_heads"], -1)).unbind(2)
    there, back = ((0, 2, 1, 3), (0, 2, 1, 3)) if turned else ((1, 2, 0, 3), (2, 0, 1, 3))
    found = F.scaled_dot_product_attention(*(v.permute(there) for v in heads)).permute(back)  # [B, heads, T, ..]
    out = F.linear(found.flatten(2).flatten(0, 1), given["out_proj_weight"], given["out_proj_bias"])
    out = out.unflatten(0, rows.shape[:2])
    return out.transpose(0, 1) if turned else out, None
