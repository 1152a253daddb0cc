"""Augmentation against a plain picture-by-picture reference, and the law of its draws."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from fedsmoo.core.random.streams import stream
from fedsmoo.data.batches import augment

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def reference(image, flip, dy, dx, pad):
    """One picture as the usual pipeline does it: normalise, flip, pad by zeros, cut a window out."""
    out = (image.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(STD)
    if flip:
        out = out[:, ::-1]
    h, w, c = out.shape
    big = np.zeros((h + 2 * pad, w + 2 * pad, c), np.float32)
    big[pad : pad + h, pad : pad + w] = out
    return big[pad + dy : pad + dy + h, pad + dx : pad + dx + w].transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("shape", "size", "pad"), [((64,), (32, 32), 4), ((3, 5, 7), (8, 6), 2), ((2, 3), (16, 16), 2)]
)
def test_equals_a_per_image_reference_exactly(shape, size, pad):
    rng = stream(0, "test", *size)
    x = rng.integers(0, 256, (*shape, *size, 3), dtype=np.uint8)
    drawn = augment.draws(rng, shape, pad)
    got = augment.prepare(torch.from_numpy(x), drawn, MEAN, STD).numpy()
    for at in np.ndindex(*shape):
        want = reference(x[at], drawn["flip"][at], int(drawn["dy"][at]), int(drawn["dx"][at]), pad)
        assert np.array_equal(got[at], want)


def test_every_flip_and_shift_of_a_small_picture():
    image = stream(1, "test").integers(0, 256, (8, 8, 3), dtype=np.uint8)
    cases = [(f, dy, dx) for f in (False, True) for dy in range(-4, 5) for dx in range(-4, 5)]
    drawn = {n: np.array([c[i] for c in cases]) for i, n in enumerate(("flip", "dy", "dx"))}
    x = torch.from_numpy(image).expand(len(cases), -1, -1, -1)
    got = augment.prepare(x, drawn, MEAN, STD).numpy()
    assert all(np.array_equal(g, reference(image, *c, pad=4)) for g, c in zip(got, cases, strict=True))


def test_no_draws_only_normalises_and_keeps_the_layout_asked_for():
    x = torch.from_numpy(stream(2, "test").integers(0, 256, (4, 8, 8, 3), dtype=np.uint8))
    want = (x.double() / 255 - torch.tensor(MEAN).double()) / torch.tensor(STD).double()
    last = augment.prepare(x, None, MEAN, STD, torch.float64, channels_first=False)
    first = augment.prepare(x, None, MEAN, STD, torch.float64)
    assert torch.allclose(last, want, atol=1e-6)
    assert torch.equal(first, last.permute(0, 3, 1, 2))
    as_tensors = augment.prepare(x, None, torch.tensor(MEAN), torch.tensor(STD))
    assert torch.equal(as_tensors, augment.prepare(x, None, MEAN, STD))


def test_other_inputs_pass_through():
    features, text = torch.rand(3, 60), torch.randint(0, 9, (3, 5))
    assert augment.prepare(features, None, None, None, torch.float64).dtype == torch.float64
    assert augment.prepare(text, None, None, None) is text


def test_compiles_without_graph_break():
    x = torch.from_numpy(stream(3, "test").integers(0, 256, (2, 4, 8, 8, 3), dtype=np.uint8))
    drawn = {n: torch.from_numpy(d) for n, d in augment.draws(stream(3, "draws"), (2, 4)).items()}
    compiled = torch.compile(augment.prepare, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, drawn, MEAN, STD), augment.prepare(x, drawn, MEAN, STD))


def test_draws_are_uniform_in_what_they_should_be():
    n = 200_000
    drawn = augment.draws(stream(0, "uniformity"), (n,))
    # A crop happens in half of the cases, and one crop in 81 leaves the picture where it was.
    still = (drawn["dy"] == 0) & (drawn["dx"] == 0)
    moves = np.bincount((drawn["dy"] + 4).astype(int) * 9 + drawn["dx"] + 4, minlength=81)
    expected = np.full(81, n / 162)
    expected[40] += n / 2
    assert chisquare(moves, expected).pvalue > 1e-3
    # Flips are fair, and independent of the shifts.
    flip = drawn["flip"]
    table = [np.sum(flip & still), np.sum(flip & ~still), np.sum(~flip & still), np.sum(~flip & ~still)]
    stay = n / 2 * (0.5 + 1 / 162)
    assert chisquare(table, [stay, n / 2 - stay, stay, n / 2 - stay]).pvalue > 1e-3


def test_draws_follow_their_stream_and_are_small():
    a, b = augment.draws(stream(5, "x"), (3, 4)), augment.draws(stream(5, "x"), (3, 4))
    other = augment.draws(stream(6, "x"), (3, 4))
    assert all(np.array_equal(a[k], b[k]) for k in a)
    assert any(not np.array_equal(a[k], other[k]) for k in a)
    assert sum(v.nbytes for v in a.values()) == 3 * 12
    assert augment.padding(32) == 4
    assert augment.padding(64) == 8
