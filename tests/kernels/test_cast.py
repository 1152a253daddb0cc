"""Weights out of clients' rows in the order and type of products, against views and copies of PyTorch."""

import weakref

import pytest
import torch

# outputs, inputs, taps and the rows of the result; without taps, so many numbers as they are
WEIGHTS = [(16, 3, 25, 80), (70, 9, 9, 81), (0, 0, 0, 4500), (5, 6, 1, 6), (0, 0, 0, 7), (72, 11, 4, 44)]


def entries(start):
    """Return the fields of each weight, beginning with a place in the rows and one in the result, and their ends."""
    found, there = [], 0
    for outside, inside, taps, rows in WEIGHTS:
        found.append((start, there, taps, inside or 1, outside or rows, rows if taps else 1))
        start += outside * inside * taps if taps else rows
        there += -(-(outside * rows if taps else rows) // 8) * 8
    return found, start, there


@pytest.mark.parametrize("way", ["kernel", "kernel with other tiles", "operator"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=str)
def test_cast(kind, way, draw):
    from fedsmoo.kernels.cast import TODAY, Tile, Weight, cast
    from fedsmoo.operators import cast as operators

    fields, end, width = entries(3)
    w = draw(2, end + 2)
    w.copy_(w.to(kind))  # the interpreter rounds otherwise than a GPU
    if "kernel" in way:
        out = draw(2, width).to(kind)
        cast(w, [Weight(*f) for f in fields], out, TODAY if way == "kernel" else Tile(64, 16, 4))
    else:
        out = operators.cast(w.double(), [n for f in fields for n in f], kind)
    for start, there, taps, inside, outside, rows in fields:
        if taps == 0:
            assert torch.equal(out[:, there : there + outside], w[:, start : start + outside].to(kind))
            continue
        given = w[:, start : start + outside * inside * taps].view(2, outside, inside, taps).permute(0, 3, 2, 1)
        found = out[:, there : there + rows * outside].view(2, rows, outside)
        assert torch.equal(found[:, : taps * inside], given.flatten(1, 2).to(kind))
        assert not found[:, taps * inside :].any()


def test_weights_and_rows_begin_where_whole_pieces_do():
    from fedsmoo.operators.cast import rounded, width

    assert [rounded(n) for n in (1, 16, 17)] == [16, 16, 32]
    assert width([0, 0, 9, 3, 5, 27, 135, 144, 0, 1, 10, 1]) == 160


def test_tables_stay_as_long_as_captured_graphs_may_read_them():
    """As those of gradients that are placed: a replay reads them by their addresses."""
    from fedsmoo.kernels.cast import Weight, tables

    def made(outside):
        return tables((Weight(0, 0, 0, 1, outside, 1),), torch.device("cpu"))

    kept = [weakref.ref(t) for t in made(1)]
    for outside in range(2, 600):
        made(outside)
    assert all(ref() is not None for ref in kept)
