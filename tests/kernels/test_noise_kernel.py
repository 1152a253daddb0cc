"""The noise kernel against the published vectors and the numbers of a CPU."""

from __future__ import annotations

import pytest
import torch

from fedsmoo.core.random.draw import drawn
from fedsmoo.core.random.noise import key_of

# Random123's answer for philox4x32-10 of counter 0 and key 0.
WORDS = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
NAME = "privacy"


@pytest.mark.parametrize("kind", ["normal", "uniform", "words"])
@pytest.mark.parametrize("count", [1, 6, 515])
def test_the_kernel_gives_the_numbers_of_a_cpu(kind, count, device):
    from fedsmoo.kernels.noise import by_kernel

    keys = torch.tensor([key_of(2, "noise", 1, i) for i in range(3)])
    steps, like = torch.tensor([0, 0xFFFFFFFF, 5]), torch.empty(count)
    like = like.long() if kind == "words" else like  # whole words of 32 bits, which float32 does not hold
    found = by_kernel(keys.to(device), steps.to(device), NAME, kind, like.to(device)).cpu()
    assert torch.equal(found, drawn(keys, steps, NAME, kind, like))
    wide = by_kernel(keys.to(device), steps.to(device), NAME, kind, like.double().to(device)).cpu()
    assert torch.equal(wide, found.double())


@pytest.mark.parametrize("kind", ["normal", "uniform", "words"])
def test_rows_may_begin_at_counters_of_their_own(kind, device):
    """Which is what comes from there on in the whole stream: four numbers a counter."""
    from fedsmoo.kernels.noise import by_kernel

    keys = torch.tensor([key_of(2, "noise", 1, i) for i in range(3)])
    steps, starts = torch.tensor([0, 3, 5]), torch.tensor([0, 2, 129])
    like = torch.empty(0, dtype=torch.int64 if kind == "words" else torch.float32)
    whole = drawn(keys, steps, NAME, kind, like.new_empty(4 * 129 + 9))
    expected = torch.stack([row[4 * start :][:9] for row, start in zip(whole, starts.tolist(), strict=True)])
    given = keys.to(device), steps.to(device), NAME, kind, like.new_empty(9).to(device), starts.to(device)
    assert torch.equal(by_kernel(*given).cpu(), expected)
    assert torch.equal(drawn(keys, steps, NAME, kind, like.new_empty(9), starts), expected)


def test_the_kernel_has_the_published_words(device):
    """Of the published vectors the one whose counter the kernel can be given: uniforms hold 23 bits of each word."""
    from fedsmoo.kernels.noise import by_kernel

    zeros = torch.zeros(1, 2, dtype=torch.int64, device=device)
    found = by_kernel(zeros, zeros[:, 0], "", "uniform", torch.empty(4, device=device))[0]
    assert [int((u * 2**24).item()) >> 1 for u in found.double()] == [w >> 9 for w in WORDS]


@pytest.mark.parametrize("bound", [0.9, "one of them", 1.0])
def test_masks_are_comparisons_of_uniform_numbers(bound, device):
    from fedsmoo.kernels.noise import by_kernel

    keys = torch.tensor([key_of(2, "noise", 1, i) for i in range(3)])
    steps, like = torch.tensor([0, 3, 5]), torch.empty(515, dtype=torch.bool)
    uniforms = drawn(keys, steps, NAME, "uniform", torch.empty(515))
    bound = uniforms[1, 7].item() if isinstance(bound, str) else bound  # which is not less than itself
    given = NAME, "below", like.to(device), None, bound
    found = by_kernel(keys.to(device), steps.to(device), *given).cpu()
    assert torch.equal(found, uniforms < bound)
    assert torch.equal(drawn(keys, steps, NAME, "below", like, None, bound), found)
