"""Noise as one operation: every client's own stream, whoever is beside it, compiled or not."""

from __future__ import annotations

import pytest
import torch

from fedsmoo.core.random.draw import draw, drawn
from fedsmoo.core.random.layers import ClientsNoise, ClientsNumbers, Numbers
from fedsmoo.core.random.noise import BLOCK, MASK, Noise, key_of

KEYS = torch.tensor([key_of(1, "noise", 4, client) for client in (3, 8, 5)])
P = 1003


def alone(kind: str, client: int, step: int, like: torch.Tensor, name: str = "x") -> torch.Tensor:
    low, high = KEYS[client].tolist()
    return getattr(Noise((low, high), step), kind)(name, like)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_rows_are_the_streams_of_their_clients(kind, dtype):
    like, steps = torch.empty(3, P, dtype=dtype), torch.tensor([[0.0], [7.0], [2.0]])
    found = draw(kind, KEYS, "x", steps, like)
    assert found.dtype == dtype
    for c, step in enumerate((0, 7, 2)):
        assert torch.equal(found[c], alone(kind, c, step, like[c]))
        assert torch.equal(found[c], draw(kind, KEYS[c], "x", steps[c], like[c]))
    assert torch.equal(draw(kind, KEYS, "x", steps, like[0]), found)  # a vector of all stands for one of each


def test_one_key_fills_any_shape_from_one_stream():
    flat = alone("normal", 0, MASK, torch.empty(6 * 7))
    assert torch.equal(draw("normal", KEYS[0], "x", None, torch.empty(6, 7)), flat.view(6, 7))
    assert draw("normal", KEYS[0], "x", None, torch.empty(1)).item() == flat[0].item()


def test_a_single_number_of_each_client():
    found = draw("uniform", KEYS, "x", None, torch.empty(3, 1))
    assert [v.item() for v in found] == [alone("uniform", c, MASK, torch.empty(1)).item() for c in range(3)]


def test_streams_longer_than_a_block_and_no_clients():
    like = torch.empty(4 * BLOCK + 5)
    assert torch.equal(draw("uniform", KEYS[1:], "x", None, like)[1], alone("uniform", 2, MASK, like))
    assert draw("normal", KEYS[:0], "x", None, like).shape == (0, len(like))


def test_a_name_a_step_and_no_step_are_different_streams():
    def first(name, step):
        return draw("uniform", KEYS[0], name, step, torch.empty(2))[0].item()

    assert len({first("x", None), first("y", None), first("x", torch.tensor([0])), first("x", torch.tensor([1]))}) == 4


def test_compilers_see_one_operation():
    torch.library.opcheck(drawn, (KEYS, torch.zeros(3, dtype=torch.int64), "x", "normal", torch.empty(P)))
    seen = []

    def backend(module, inputs):
        seen.extend(n.target for n in module.graph.nodes if "noise" in str(n.target))
        return module.forward

    def step(w, key, k):
        return w + draw("normal", key, "x", k, w)

    w, k = torch.zeros(3, P), torch.tensor([[1.0]])
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    assert torch.equal(compiled(w, KEYS, k), step(w, KEYS, k))
    assert len(seen) == 1


def test_padding_repeats_the_last_sample_and_its_integers_are_minus_one():
    """Two clients with 3 and 1 of 4 samples, which are the second axis of what is drawn."""
    real, keys = (3, 1), KEYS[:2]
    noise = ClientsNoise(keys, torch.tensor([5, 5]), torch.tensor(real), 4, ((2, 1), (2, 1)))
    many = ClientsNumbers(noise)
    found, whole = many.uniform(torch.empty(2, 2, 4)), many.whole(torch.empty(2, 2, 4))
    for c, count in enumerate(real):
        low, high = keys[c].tolist()
        one = Numbers(Noise((low, high), 5))
        alone, integers = one.uniform(torch.empty(2, count)), one.whole(torch.empty(2, count))
        assert torch.equal(found[c, :, :count], alone)
        assert torch.equal(found[c, :, count:], alone[:, -1:].expand(2, 4 - count))
        assert torch.equal(whole[c, :, :count], integers)
        assert (whole[c, :, count:] == -1).all()
