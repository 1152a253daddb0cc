"""Dropout of one client on a CPU, drawn from a run's own noise, where a model draws nothing else.

:class:`fedsmoo.models.draws.Draws` is told of every operation of a pass, which costs a small model as much as the pass.
Here PyTorch tells us of one operator only, ``bernoulli_``, in which all its layers of dropout end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import local
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedsmoo.core.random.layers import Numbers
from fedsmoo.core.random.noise import Noise
from fedsmoo.models.draws import Draws, drawing, outside_kernels

DROPS = torch.ops.aten.bernoulli_.float
ATEN = torch.library.Library("aten", "IMPL")  # whose rules last as long as it does
HERE = torch._C.DispatchKey.BackendSelect  # below autograd, and in every call of an operator
T = TypeVar("T")

_current = local()  # what a thread's dropout draws from: ``numbers``
_counters: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # that the last pass of a module used
_plain: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # whether it drew by dropout alone


def draw_through(module: nn.Module, noise: Noise, run: Callable[[], T]) -> T:
    """Return ``run()``, a pass through a module whose random layers draw from ``noise``.

    A module that drew by dropout alone in its last pass is expected to do so again. If it does not, PyTorch's own
    generator has gone on: then the pass is made again, with all its draws followed.
    """
    if _plain.get(module):
        before = torch.get_rng_state()
        found, numbers = dropping(module, noise, run)
        if torch.equal(before, torch.get_rng_state()):
            _counters[module] = numbers.position
            return found
        torch.set_rng_state(before)
    with drawing(module, noise, _counters.get(module, 0)) as draws:
        found = run()
    note(module, draws)
    return found


def note(module: nn.Module, draws: Draws) -> None:
    """Keep in mind how a module drew."""
    assert isinstance(draws.numbers, Numbers)
    _counters[module], _plain[module] = draws.numbers.position, draws.operators == {(DROPS, "cpu")}


def dropping(module: nn.Module, noise: Noise, run: Callable[[], T]) -> tuple[T, Numbers]:
    """Return ``run()`` with masks of dropout from ``noise``, and the numbers that these were made of."""
    replace_dropout()
    numbers = Numbers(noise, _counters.get(module, 0))
    _current.numbers = numbers
    try:
        with outside_kernels(module):
            return run(), numbers
    finally:
        _current.numbers = None


@cache
def replace_dropout() -> None:
    """Have ``bernoulli_`` ask us first, from now on: outside of :func:`dropping` it is PyTorch's own."""
    below = torch._C._dispatch_keyset_full_after(HERE)

    def drawn(keys: Any, t: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
        numbers = getattr(_current, "numbers", None)
        if numbers is None or t.device.type != "cpu":
            return DROPS.redispatch(keys & below, t, p, generator=generator)
        return t.copy_(numbers.below(t, p))

    ATEN.impl("bernoulli_.float", drawn, "BackendSelect", with_keyset=True)
