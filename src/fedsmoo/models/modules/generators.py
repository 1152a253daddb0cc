"""The states of the generators of random numbers that a module may draw from."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn


def generators(module: nn.Module) -> dict[str, Callable[[], Any]]:
    """Return functions that read the states of the generators a model may draw from: global ones, and its own."""
    states: dict[str, Callable[[], Any]] = {
        "Python's random": random.getstate,
        "numpy.random": lambda: array_state(np.random.get_state(legacy=True)),
        "PyTorch's own generator": lambda: torch.get_rng_state().numpy().tobytes(),
    }
    if torch.cuda.is_initialized():
        states["PyTorch's own generator of a GPU"] = lambda: torch.cuda.get_rng_state().numpy().tobytes()
    for place, part in module.named_modules():
        for name, v in vars(part).items():
            own = f"its own generator {f'{place}.{name}'.lstrip('.')}"
            if isinstance(v, np.random.Generator):
                states[own] = lambda v=v: str(v.bit_generator.state)  # type: ignore[misc]
            elif isinstance(v, np.random.RandomState):
                states[own] = lambda v=v: array_state(v.get_state(legacy=True))  # type: ignore[misc]
            elif isinstance(v, random.Random):
                states[own] = v.getstate
    return states


def array_state(state: Any) -> tuple[Any, ...]:
    """NumPy's old state as something that compares."""
    return (state[0], state[1].tobytes(), *state[2:])
