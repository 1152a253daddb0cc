"""The sums that close a pass: all parts, however many, each into its row and client."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("blocks", [1, 3, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize("close", [False, True])
def test_every_part_is_added_once(device, blocks, close):
    """Whole numbers, so that the sum is exact in any order: row r of client c holds r + 2 c + 3 b + 1 at block b."""
    from fedsmoo.compiler.codegen import fold

    rows, clients, first = 2, 3, 1
    r, c = torch.arange(rows)[:, None, None], torch.arange(clients)[None, :, None]
    parts = (r + 2 * c + 3 * torch.arange(blocks) + 1).double()
    tensors = {"partials": parts, "sums": torch.full((4, clients), -7.0).double(), "total": torch.arange(3.0).double()}
    tensors = {n: t.contiguous().to(device) for n, t in {**tensors, "loss": torch.full((3,), 0.5).double()}.items()}
    fold(tensors, clients, blocks, first, rows, close)
    expected = [
        [blocks * (i + 2 * k + 1) + 3 * blocks * (blocks - 1) // 2 for k in range(clients)] for i in range(rows)
    ]
    assert tensors["sums"].tolist() == [[-7.0] * 3, *expected, [-7.0] * 3]
    assert tensors["total"].tolist() == ([0.5, 1.5, 2.5] if close else [0.0, 1.0, 2.0])
