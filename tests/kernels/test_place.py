"""Gradients brought to their places in the flat gradient, against sums and permutations of PyTorch."""

import weakref

import pytest
import torch

# what is placed: parts of a few numbers, of many, and convolutions' [parts, C, taps, I, O]
SHAPES = {
    "one number": (2, 1, 1),
    "a norm's, of each sample": (2, 7, 16),
    "more than a tile of numbers": (2, 1, 4500),
    "one tap": (1, 2, 1, 5, 3),
    "nine taps in parts": (3, 2, 9, 11, 13),
    "more than a tile": (6, 2, 25, 3, 72),
    "an embedding of one": (2, 2, 1, 1, 5),
}


def wanted(source):
    """The numbers of one gradient, ``[C, N]``, by PyTorch."""
    v = source.double()
    return v.sum(1) if v.dim() == 3 else v.sum(0).permute(0, 3, 2, 1).flatten(1)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, None], ids=str)
def test_place_many_gradients(kind, draw):
    """More than one launch takes; ``None``: every other one in bfloat16."""
    from fedsmoo.kernels.place import place

    kinds = [kind or (torch.float32, torch.bfloat16)[i % 2] for i in range(40)]
    shapes = [*SHAPES.values(), *[(2, 3, 9 + i % 8) for i in range(33)]]
    sources = [draw(*shape).to(k) for shape, k in zip(shapes, kinds, strict=True)]
    want = torch.cat([wanted(v) for v in sources], 1)
    flat = draw(2, want.shape[1] + 5)
    before = flat.clone()
    place(sources, flat[:, 3:-2])
    torch.testing.assert_close(flat[:, 3:-2].double(), want, rtol=0, atol=1e-5)
    assert torch.equal(flat[:, :3], before[:, :3])
    assert torch.equal(flat[:, -2:], before[:, -2:])


@pytest.mark.parametrize("tile", [(16, 16, 4), (64, 64, 8), (16, 256, 4, True), (32, 64, 8, True, True)])
def test_tiles_of_any_size_place_the_same(tile, draw):
    from fedsmoo.kernels.place import Tile, place

    shapes = [*SHAPES.values(), (2, 3, 24), (2, 2, 9, 16, 8)]  # the last ones' rows are pieces of 16 bytes
    sources = [draw(*shape).to((torch.float32, torch.bfloat16)[i % 2]) for i, shape in enumerate(shapes)]
    found, plain = (draw(2, sum(wanted(v).shape[1] for v in sources)) for _ in range(2))
    place(sources, plain)
    place(sources, found, Tile(*tile))
    assert torch.equal(found, plain)


def test_place_what_is_part_of_wider_rows(draw):
    """A stem's gradient by patches: each client's has rows that belong to no tap."""
    from fedsmoo.kernels.place import place

    source = draw(2, 3, 1, 80, 20)[:, :, :, :75].view(2, 3, 25, 3, 20)
    out = draw(3, 1500)
    place([source], out)
    torch.testing.assert_close(out.double(), wanted(source), rtol=0, atol=1e-5)


def test_tables_stay_as_long_as_captured_graphs_may_read_them():
    """A replay reads a table by its address, and nobody but this cache keeps it: cohorts of any size, deep models."""
    from fedsmoo.kernels.place import Entry, tables

    def made(clients):  # a stride of parts follows how many there are
        return tables((Entry(0, 1, 9, 2, 2, 36 * clients, 36, 4),), torch.device("cpu"), (32, 64))

    kept = [weakref.ref(t) for t in made(1)]
    addresses = [ref().data_ptr() for ref in kept]
    for clients in range(2, 600):
        made(clients)
    assert all(ref() is not None for ref in kept)
    assert [t.data_ptr() for t in made(1)] == addresses
