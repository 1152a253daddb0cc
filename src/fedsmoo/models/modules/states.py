"""What the parts of a module keep beside parameters and buffers, from one pass to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

LONG, DEEP = 1000, 4  # parts of a list or dict, and lists inside of lists: of more only the length is compared


def states(module: nn.Module) -> dict[str, Any]:
    """Return what parts of a module keep beside parameters and buffers, by name: numbers, words, sums of tensors."""

    def plain(v: Any, depth: int = 0) -> Any:
        if isinstance(v, Tensor):
            return total(v)
        if isinstance(v, dict | list | tuple | deque) and (len(v) > LONG or depth > DEEP):
            return len(v)
        if isinstance(v, dict):
            return {str(n): plain(part, depth + 1) for n, part in v.items()}
        if isinstance(v, list | tuple | deque):
            return [plain(part, depth + 1) for part in v]
        return v if isinstance(v, int | float | str) else None

    parts = [(where, n, v) for where, part in module.named_modules() for n, v in vars(part).items()]
    return {f"{where}.{n}".lstrip("."): plain(v) for where, n, v in parts if n != "training" and not n.startswith("_")}


def total(t: Tensor) -> tuple[list[int], str] | None:
    """Return the shape of a tensor and the sum of its numbers; ``None`` for one without, such as on the device meta."""
    try:
        kind = torch.complex128 if t.is_complex() else torch.float64
        return list(t.shape), str(t.detach().sum(dtype=kind).item())
    except Exception:  # a tensor of some other kind: nested, quantised, a subclass
        return None


def changing_states(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return what is told of what a module keeps from one pass to the next, found by two over the same samples."""
    name = next((n for n, v in second.items() if repr(first.get(n)) != repr(v)), None)
    if name is None:
        return []
    return [
        f"keeps {name!r} from one pass to the next, which is no part of a run: on another engine and after a resume it "
        "is another one, and clients share it; make it a buffer, or leave it out"
    ]
