"""Settings of PyTorch for the whole process are as they were, whichever of several threads leaves them last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from patience import PATIENCE
from torch import nn
from torch.backends import cuda
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from fedsmoo.core.random.noise import Noise
from fedsmoo.engines.oracles.cpu.library import Library, Way
from fedsmoo.models.draws import drawing, outside_kernels
from fedsmoo.models.hidden import unmoved
from fedsmoo.models.modules.process import Setting

Enter = Callable[[], AbstractContextManager[Any]]


def kernels() -> tuple[bool, ...]:
    """Which kernels of attention PyTorch may take."""
    return (
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled(), cuda.math_sdp_enabled()
    )  # fmt: skip


def by_turns(first: Enter, second: Enter, between: Callable[[], object]) -> None:
    """One thread enters, another one enters, the first one leaves, the other one leaves; look whenever some are in."""
    one, other = first(), second()
    with ThreadPoolExecutor(1) as mine, ThreadPoolExecutor(1) as theirs:
        mine.submit(one.__enter__).result(PATIENCE)
        between()
        theirs.submit(other.__enter__).result(PATIENCE)
        between()
        mine.submit(one.__exit__, None, None, None).result(PATIENCE)
        between()
        theirs.submit(other.__exit__, None, None, None).result(PATIENCE)


def outside() -> AbstractContextManager[None]:
    return outside_kernels(nn.Linear(2, 2))


def whole() -> AbstractContextManager[None]:
    return Library().taken(Way(whole=True))


@pytest.mark.parametrize(("first", "second"), [(outside, outside), (outside, whole), (whole, outside)])
def test_kernels_of_attention_are_left_out_until_the_last_thread_leaves(first: Enter, second: Enter) -> None:
    before, seen = kernels(), list[bool]()
    by_turns(first, second, lambda: seen.append(cuda.flash_sdp_enabled()))
    assert seen == [False] * 3
    assert kernels() == before


def test_a_thread_that_draws_has_plain_products_though_another_one_leaves() -> None:
    seen = list[tuple[bool, ...]]()
    by_turns(outside, outside, lambda: seen.append(kernels()))
    assert seen == [(False, False, False, True)] * 3


def test_no_note_of_a_mode_is_left_behind_by_threads_that_draw() -> None:
    def draws() -> AbstractContextManager[Any]:
        return drawing(nn.Linear(2, 2), Noise((0, 0)))

    by_turns(draws, draws, lambda: None)
    assert not is_in_torch_dispatch_mode()


def test_modules_can_be_moved_after_two_threads_looked_at_models() -> None:
    plain, looks, leave = nn.Module._apply, threading.Event(), threading.Event()

    def other() -> bool:
        with unmoved(nn.Linear(2, 2)):
            looks.set()
            return leave.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        with unmoved(nn.Linear(3, 3)):
            left = pool.submit(other)
            looks.wait(0.5)  # which it must not: it waits for this thread
        leave.set()
        assert left.result(PATIENCE)
    assert nn.Module._apply is plain
    nn.Linear(2, 2).to(torch.float64)


def test_a_setting_that_cannot_be_made_is_not_taken() -> None:
    tries = list[int]()

    def fails() -> AbstractContextManager[None]:
        tries.append(1)
        raise KeyError

    setting = Setting(fails)
    for _ in range(2):
        with pytest.raises(KeyError), setting.taken():
            pass
    assert tries == [1, 1]
    assert setting.users == 0
