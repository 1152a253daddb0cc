"""Philox against its published vectors and plain integers; uniforms exact, normals by the formula, both as they should
be distributed."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch
from scipy import stats

from fedsmoo.core.random.layers import Numbers
from fedsmoo.core.random.noise import (
    BLOCK,
    MASK,
    Noise,
    below_on_host,
    crc,
    key_of,
    normal,
    philox,
    uniform,
    words_on_host,
)

# Random123's known answers for philox4x32-10: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
STREAM = Noise(key_of(3, "noise", 5, 7), step=2)


def by_integers(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Philox-4x32-10 as the paper writes it, one counter at a time."""
    (a, b), (c0, c1, c2, c3) = key, counter
    for r in range(10):
        k0, k1 = (a + r * 0x9E3779B9) % 2**32, (b + r * 0xBB67AE85) % 2**32
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_the_published_vectors(counter: tuple, key: tuple, expected: tuple) -> None:
    found = philox(key, tuple(torch.tensor([c]) for c in counter))  # type: ignore[arg-type]
    assert tuple(int(w) for w in found) == expected == by_integers(key, counter)


def test_words_are_those_of_index_name_and_step() -> None:
    words = STREAM.words("layers", 11, start=2**32 - 1)
    place = zlib.crc32(b"layers"), 2
    expected = [w for c in ((2**32 - 1, 0), (0, 1), (1, 1)) for w in by_integers(STREAM.key, (*c, *place))]
    assert words.tolist() == expected[:11]


def test_a_draw_across_blocks_is_one_stream() -> None:
    whole = STREAM.words("x", 4 * BLOCK + 10)
    assert torch.equal(whole[4 * BLOCK :], STREAM.words("x", 10, start=BLOCK))
    assert len(STREAM.words("x", 0)) == 0


def test_on_another_device_there_are_as_many_words_of_the_same_type() -> None:
    """On one that keeps shapes alone; that a GPU's numbers are the same is asked on a GPU."""
    words = STREAM.words("layers", 11, "meta", start=2**32 - 1)
    assert (words.device.type, words.shape, words.dtype) == ("meta", (11,), torch.int64)
    below = Numbers(STREAM).below(torch.empty(3, 5, device="meta"), 0.4)
    assert (below.device.type, below.shape, below.dtype) == ("meta", (3, 5), torch.bool)


def test_any_other_name_is_another_stream() -> None:
    others = [
        STREAM.words("y", 4),
        Noise(STREAM.key, 3).words("x", 4),
        *(Noise(key_of(*k), 2).words("x", 4) for k in [(4, "noise", 5, 7), (3, "other", 5, 7), (3, "noise", 7, 5)]),
    ]
    assert len({tuple(w.tolist()) for w in [*others, STREAM.words("x", 4)]}) == 6


def test_uniforms_are_exact_middles() -> None:
    words = STREAM.words("u", 1000)
    expected = [((w >> 9) + 0.5) / 2**23 for w in words.tolist()]
    assert STREAM.uniform("u", torch.empty(10, 100)).flatten().tolist() == expected
    ends = uniform(torch.tensor([0, 2**32 - 1]))
    assert ends.tolist() == [2.0**-24, 1 - 2.0**-24]


def test_normals_are_box_and_muller_s_in_float64_then_rounded() -> None:
    words = STREAM.words("n", 40).tolist()
    expected = []
    for a, b in zip(words[::2], words[1::2], strict=True):
        r, t = math.sqrt(-2 * math.log((a + 0.5) / 2**32)), 2 * math.pi * b / 2**32
        expected += [r * math.cos(t), r * math.sin(t)]
    assert STREAM.normal("n", torch.empty(39)).tolist() == pytest.approx(np.float32(expected[:39]).tolist(), rel=2e-7)
    assert torch.isfinite(normal(torch.tensor([0, 0, 2**32 - 1, 2**32 - 1]))).all()


def test_types_have_the_same_numbers() -> None:
    for draw in (STREAM.uniform, STREAM.normal):
        assert torch.equal(draw("t", torch.empty(99)).double(), draw("t", torch.empty(99, dtype=torch.float64)))


def test_a_fixed_stream_is_distributed_as_it_should_be() -> None:
    like = torch.empty(50_000, dtype=torch.float64)
    assert stats.kstest(STREAM.uniform("ks", like).numpy(), "uniform").pvalue > 0.01
    z = STREAM.normal("ks", like).numpy()
    assert stats.kstest(z, "norm").pvalue > 0.01
    assert abs(np.corrcoef(z[:-1:2], z[1::2])[0, 1]) < 3 / math.sqrt(25_000)


def test_the_host_s_words_are_philox_s() -> None:
    """In NumPy's unsigned numbers, and in PyTorch's signed ones: keys and steps by row, counters over 32 bits."""
    rng = np.random.default_rng(0)
    keys, index = torch.from_numpy(rng.integers(0, 2**32, (3, 2))), torch.from_numpy(rng.integers(0, 2**40, (3, 50)))
    steps = torch.tensor([[0], [MASK], [7]])
    place = torch.full_like(index, crc("layers")), steps.expand_as(index)
    expected = torch.stack(philox((keys[:, :1], keys[:, 1:]), (index & MASK, index >> 32, *place)), -1).flatten(1)
    found = words_on_host((keys[:, :1].numpy(), keys[:, 1:].numpy()), index.numpy(), crc("layers"), steps.numpy())
    assert found.dtype == np.uint32
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("bound", [0.0, 2.0**-24, 2.0**-23, 0.1, 0.5, 0.9, 1 - 2.0**-24, 1.0, 3 * 2.0**-24, 7 / 9])
def test_the_host_compares_words_as_uniform_numbers_are(bound: float) -> None:
    """Words at both sides of the bound among them: those whose uniform numbers are next to it."""
    near = np.arange(-3, 4) * 512 + int(bound * 2**32)
    words = np.concatenate([near.clip(0, MASK), [0, 511, 512, MASK - 512, MASK], STREAM.on_host("b", 500)])
    expected = uniform(torch.from_numpy(words.astype(np.int64))) < bound
    assert below_on_host(words.astype(np.uint32), bound).tolist() == expected.tolist()


def test_words_made_ahead_are_those_of_each_draw() -> None:
    """Draws of several kinds and sizes, one after the other: with too little made ahead, too much, and nothing."""

    def draws(ahead: int) -> list[list[float]]:
        numbers, out = Numbers(STREAM, ahead), []
        for size in (1, 5, 8, 30):
            like = torch.empty(size)
            out += [numbers.uniform(like), numbers.below(like, 0.4), numbers.normal(like), numbers.whole(like)]
        return [v.tolist() for v in out]

    assert draws(0) == draws(7) == draws(55) == draws(1000)
    alone, u = STREAM.words("layers", 5, start=4), draws(9)[4]  # behind one number each, of whole ones two words
    assert u == uniform(alone).tolist()
