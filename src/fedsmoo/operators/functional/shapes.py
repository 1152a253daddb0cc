"""What shapes a function takes, said in words before an operator meets others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedsmoo.core import FedsmooError


def check(name: str, x: Tensor, axes: str, **weights: tuple[Tensor | None, str]) -> None:
    """Refuse inputs and weights that do not have the axes that are named, or not the same number of clients."""
    for called, (v, wanted) in {"inputs": (x, axes), **weights}.items():
        if v is None:
            continue
        named = [axis for axis in wanted.split() if axis != "..."]
        if v.dim() < len(named) or (v.dim() > len(named) and "..." not in wanted):
            raise FedsmooError(f"{name}: {called} must be [{wanted}], not of shape {list(v.shape)}")
        if len(v) != len(x):
            raise FedsmooError(f"{name}: inputs are of {len(x)} clients, {called} of {len(v)}: axis 0 is the clients'")


def fit(name: str, **given: tuple[Tensor | None, Sequence[int]]) -> None:
    """Refuse tensors that do not have the sizes that inputs ask for: kernels would read what lies behind them."""
    for called, (v, sizes) in given.items():
        if v is not None and v.shape != tuple(sizes):
            raise FedsmooError(f"{name}: {called} must be {list(sizes)} for these inputs, not {list(v.shape)}")
