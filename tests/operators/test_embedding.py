"""Embeddings of C clients at once, in a traced graph: numbers of PyTorch's own, client by client."""

import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.nn import functional as F

from fedsmoo.operators.embedding import embedding_weight
from fedsmoo.operators.graph.views import alike
from fedsmoo.operators.norm import GroupNorm, GroupNormBackward
from fedsmoo.operators.recurrence import Recurrence, RecurrenceBackward
from fedsmoo.operators.recurrence import forward as recurrence
from fedsmoo.operators.trace import called, traced

CLIENTS, WIDTH = 3, 5
# rows, the indices' shape, whether clients share them, options of F.embedding, and whether gradients are our operator's
CASES = {
    "one": (11, (1,), False, {}, 1),
    "words with padding": (11, (4, 11), False, {"padding_idx": 2}, 1),
    "places, the same for all": (11, (6,), True, {}, 1),
    "divided by counts": (3, (13,), False, {"scale_grad_by_freq": True, "padding_idx": 0}, 1),
    "few rows": (8, (5, 7), False, {"padding_idx": 7}, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    rows, shape, shared, options, ours = CASES[name]
    torch.manual_seed(0)
    whole = torch.randn(CLIENTS, 3 + rows * WIDTH, dtype=torch.float64)  # weights lie in a longer vector
    index = torch.randint(rows, shape if shared else (CLIENTS, *shape))
    factor = torch.randn(*shape, WIDTH, dtype=torch.float64)

    def value(v, index):
        w = v[3:].view(rows, WIDTH)
        return (factor * F.embedding(index, w, **options).sin()).sum()

    many = vmap(grad_and_value(value), (0, None if shared else 0))
    graph = traced(many, whole, index)
    names = called(graph)
    assert names.count("fedsmoo.embedding_weight.default") == ours
    assert not any("aten.embedding" in n for n in names)
    for c, (got, loss) in enumerate(zip(*graph(whole, index), strict=True)):
        mine = whole[c].clone().requires_grad_()
        alone = value(mine, index if shared else index[c])
        torch.testing.assert_close(loss, alone.detach(), rtol=0, atol=1e-13)
        torch.testing.assert_close(got, torch.autograd.grad(alone, mine)[0], rtol=0, atol=1e-13)


def test_weights_that_clients_share_are_read_once():
    w, index = torch.randn(7, WIDTH, dtype=torch.float64), torch.randint(7, (CLIENTS, 4))
    graph = traced(vmap(lambda i: F.embedding(i, w)), index)
    torch.testing.assert_close(graph(index), w[index], rtol=0, atol=0)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize("wrong", [-1, -7, 7])
def test_an_index_that_is_no_row_is_an_error(wrong, kind):
    w, index = torch.randn(CLIENTS, 7, WIDTH, dtype=torch.float64), torch.zeros(CLIENTS, 4, dtype=kind)
    graph = traced(vmap(lambda i, v: F.embedding(i, v)), index, w)
    assert torch.equal(graph(index, w), w[:, :1].expand(-1, 4, -1))
    index[1, 2] = wrong
    with pytest.raises(IndexError, match="out of"):
        graph(index, w)


def test_what_the_operator_says_of_itself_is_true():
    given = torch.randn(2, 6, 3), torch.randint(4, (2, 6)), 4, False
    torch.library.opcheck(embedding_weight._opoverload, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_what_recurrences_say_of_themselves_is_true(kind):
    wide = {"lstm": 4, "gru": 3, "tanh": 1}[kind] * 5
    gx, w, b, h = torch.randn(3, 2, 4, wide), torch.randn(2, wide, 5), torch.randn(2, wide), torch.randn(2, 4, 5)
    given = (kind, gx, w, b, h, h.clone())
    torch.library.opcheck(recurrence._opoverload, given, test_utils=("test_schema", "test_faketensor"))


def test_maps_are_alike_in_shape_order_type_and_without_gaps():
    graph = torch.fx.Graph()

    def node(v):
        made = graph.placeholder("x")
        made.meta["val"] = v
        return made

    x, gaps = torch.empty(2, 3, 4), torch.empty(2, 3, 5)[..., :4]
    assert alike(node(x), node(torch.empty(2, 3, 4)))
    for a, b in ((x, x.double()), (gaps, gaps), (x, torch.empty(2, 4, 3)), (x, torch.empty(3, 2, 4).transpose(0, 1))):
        assert not alike(node(a), node(b))


@pytest.mark.parametrize("function", [GroupNorm, GroupNormBackward, Recurrence, RecurrenceBackward])
def test_functions_of_autograd_are_asked_of_their_class(function):
    made = {n: v for n, v in vars(function).items() if n in ("forward", "setup_context", "backward", "vmap")}
    assert len(made) >= 3
    assert all(isinstance(v, staticmethod) for v in made.values())
