"""Gradients of embeddings without a sort, against sums by PyTorch in float64."""

import pytest
import torch

# clients, places, rows, numbers of a row
SHAPES = {
    "one of each": (1, 1, 1, 1),
    "primes": (3, 101, 37, 5),
    "in parts": (2, 1100, 9, 20),
    "two blocks of numbers": (1, 40, 50, 131),
    "blocks found by buckets": (2, 150, 700, 3),
}


def wanted(dy, index, rows):
    out = torch.zeros(len(dy), rows, dy.shape[2], dtype=torch.float64, device=dy.device)
    for sums, i, v in zip(out, index, dy, strict=True):
        sums.index_add_(0, i.long(), v.double())
    return out


@pytest.mark.parametrize("often", [False, True], ids=["rows alike", "some rows often"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sums_of_each_row(shape, often, draw, monkeypatch):
    from fedsmoo.kernels import embedding

    monkeypatch.setattr(embedding, "PLACES", 64)  # several steps of a search
    clients, places, rows, width = shape
    torch.manual_seed(0)
    share = torch.rand(clients, places)
    dy = draw(clients, places + 1, width)[:, 1:]  # clients lie apart
    index = ((rows**share if often else rows * share).long() - int(often)).clamp(0, rows - 1).to(dy.device)
    found = embedding.embedding_weight(dy, index, rows, BR=16)
    assert (found.shape[1] > 1) == (shape == SHAPES["in parts"])
    exact = wanted(dy, index, rows)
    torch.testing.assert_close(found.double().sum(1), exact, rtol=0, atol=2e-6 * max(1.0, float(exact.abs().max())))


@pytest.mark.parametrize("rows", [90, 3])
def test_numbers_of_bfloat16_are_summed_in_float32(rows, draw):
    from fedsmoo.kernels.embedding import embedding_weight

    dy = draw(2, 600, 7).bfloat16()
    index = torch.arange(600, device=dy.device).expand(2, -1).to(torch.int32) * 7 % rows
    found, exact = embedding_weight(dy, index, rows), wanted(dy, index, rows)
    assert found.dtype == torch.float32  # in parts
    torch.testing.assert_close(found.double().sum(1), exact, rtol=0, atol=1e-4)
    one = embedding_weight(dy[:, :90], index[:, :90], rows)
    assert one.dtype == torch.bfloat16
    torch.testing.assert_close(one.double(), wanted(dy[:, :90], index[:, :90], rows)[:, None], rtol=2**-8, atol=0.02)


def test_one_part_may_be_written_into_a_longer_vector(draw):
    from fedsmoo.kernels.embedding import embedding_weight

    dy, whole = draw(3, 40, 5), draw(3, 11 * 5 + 4)
    index = (torch.arange(120, device=dy.device) * 3 % 11).view(3, 40)
    before, flat = whole.clone(), whole[:, 3:-1]
    found = embedding_weight(dy, index, 11, flat)
    assert found.data_ptr() == flat.data_ptr()
    torch.testing.assert_close(flat.double(), wanted(dy, index, 11).flatten(1), rtol=0, atol=1e-5)
    assert torch.equal(whole[:, :3], before[:, :3])
    assert torch.equal(whole[:, -1:], before[:, -1:])


def test_a_place_that_reads_no_row_is_in_no_sum(draw):
    from fedsmoo.kernels.embedding import embedding_weight

    dy, index = draw(1, 4, 2), torch.tensor([[0, 5, -1, 2]])
    found = embedding_weight(dy, index.to(dy.device), 5)[0, 0]
    assert torch.equal(found[[0, 2]], dy[0, [0, 3]])
    assert not found[[1, 3, 4]].any()


def test_the_operator_takes_them_when_they_are_switched_on(draw, monkeypatch):
    from fedsmoo.kernels import embedding as kernels
    from fedsmoo.operators import embedding

    calls, way = [], kernels.embedding_weight
    monkeypatch.setattr(kernels, "embedding_weight", lambda *given: [calls.append(given), way(*given)][1])
    monkeypatch.setattr(embedding, "by_kernels", lambda x: True)
    for places, rows in ((20, 6), (1000, 6)):
        dy = draw(2, places, 3)
        index = torch.arange(places, device=dy.device).expand(2, -1) % rows
        plain = embedding.embedding_weight(dy, index, rows, False)
        assert not calls  # nobody has timed them yet
        with monkeypatch.context() as on:
            on.setattr(kernels, "ON", True)
            found = embedding.embedding_weight(dy, index, rows, False)
            embedding.embedding_weight(dy, index, rows, True)  # divided by counts: as before
        assert len(calls) == 1
        calls.clear()
        assert (found.shape, found.stride(), found.dtype) == (plain.shape, plain.stride(), plain.dtype)
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-4)
