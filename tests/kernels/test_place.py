"""Gradients brought to their places in the flat gradient, against sums and permutations of PyTorch."""

import pytest
import torch

# what is placed: parts of a few numbers, of many, and convolutions' [parts, C, taps, I, O]
SHAPES = {
    "one number": (2, 1, 1),
    "a norm's, of each sample": (3, 5, 7),
    "more than a block": (2, 1, 1500),
    "one tap": (1, 2, 1, 5, 3),
    "nine taps in parts": (3, 2, 9, 11, 13),
    "more than a tile": (2, 1, 25, 3, 70),
}


def test_place_what_is_part_of_wider_rows(draw):
    """A stem's gradient by patches: each client's has rows that belong to no tap."""
    from fedsmoo.kernels.place import place

    source = draw(2, 3, 1, 80, 20)[:, :, :, :75].view(2, 3, 25, 3, 20)
    out = draw(3, 1500)
    place(source, out)
    torch.testing.assert_close(out, source.sum(0).permute(0, 3, 2, 1).flatten(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_place(shape, kind, draw):
    from fedsmoo.kernels.place import place

    source = draw(*shape).to(kind)
    want = source.double().sum(1) if len(shape) == 3 else source.double().sum(0).permute(0, 3, 2, 1).flatten(1)
    flat = draw(len(want), want.shape[1] + 5)
    before = flat.clone()
    place(source, flat[:, 3:-2])
    torch.testing.assert_close(flat[:, 3:-2].double(), want, rtol=0, atol=1e-5)
    assert torch.equal(flat[:, :3], before[:, :3])
    assert torch.equal(flat[:, -2:], before[:, -2:])
