"""Self-attention in the order in which samples lie in memory, against PyTorch's own, client by client."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedsmoo.operators import attention
from fedsmoo.operators.layers import LAYERS, Instead

CLIENTS, BATCH, TOKENS, WIDTH, HEADS = 3, 4, 5, 12, 3


class Attending(nn.Module):
    """Attention as modules call it: of samples first, or tokens first, with what else it may be given."""

    def __init__(self, samples_first=True, call=None, **how):
        super().__init__()
        how = {"embed_dim": WIDTH, "num_heads": HEADS, "batch_first": samples_first} | how
        self.inner, self.call = nn.MultiheadAttention(**how), call or {"need_weights": False}
        self.samples_first = samples_first

    def forward(self, x):
        x = x if self.samples_first else x.transpose(0, 1)
        return self.inner(x, x, x, **self.call)[0].sin()


MASK = torch.triu(torch.full((TOKENS, TOKENS), -torch.inf, dtype=torch.float64), 1)
OURS = {
    "samples first": {},
    "tokens first": {"samples_first": False},
    "no biases": {"bias": False},
    "one head": {"num_heads": 1},
}
NOT_OURS = {
    "a mask": {"call": {"need_weights": False, "attn_mask": MASK}},
    "padding": {"call": {"need_weights": False, "key_padding_mask": torch.zeros(BATCH, TOKENS, dtype=torch.float64)}},
    "weights are asked for": {"call": {"need_weights": True}},
    "keys of its own": {"add_bias_kv": True},
    "a zero": {"add_zero_attn": True},
    "other widths of keys": {"kdim": WIDTH, "vdim": WIDTH},  # still of one width
}


def with_numbers(module):
    draw = torch.Generator().manual_seed(0)
    parts = {
        n: torch.randn(CLIENTS, *p.shape, generator=draw, dtype=torch.float64) / 3 for n, p in module.named_parameters()
    }
    return parts, torch.randn(CLIENTS, BATCH, TOKENS, WIDTH, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("name", OURS | NOT_OURS)
def test_gradients_are_pytorch_s(name):
    module = Attending(**(OURS | NOT_OURS)[name]).double()
    parts, x = with_numbers(module)

    def loss(given, x):
        return functional_call(module, given, (x,)).square().sum()

    attention.fold_attention()
    with Instead(LAYERS):
        found = vmap(grad(loss, (0, 1)))(parts, x)
    for c in range(CLIENTS):
        want = grad(loss, (0, 1))({n: p[c] for n, p in parts.items()}, x[c])
        torch.testing.assert_close(found[1][c], want[1], rtol=0, atol=1e-11)
        for n in parts:
            torch.testing.assert_close(found[0][n][c], want[0][n], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("name", "ours"), [*((n, True) for n in OURS), *((n, False) for n in NOT_OURS)])
def test_what_is_no_plain_self_attention_is_left_to_pytorch(name, ours, monkeypatch):
    seen = []
    plain = attention.is_plain
    monkeypatch.setattr(attention, "is_plain", lambda given: seen.append(plain(given)) or seen[-1])
    module = Attending(**(OURS | NOT_OURS)[name]).double()
    with Instead(LAYERS):
        module(with_numbers(module)[1][0])
    assert seen == [ours or name == "other widths of keys"]


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_left_to_pytorch_in_training(training, monkeypatch):
    seen = []
    plain = attention.is_plain
    monkeypatch.setattr(attention, "is_plain", lambda given: seen.append(plain(given)) or seen[-1])
    module = Attending(dropout=0.5).double().train(training)
    with Instead(LAYERS), torch.enable_grad():
        module(with_numbers(module)[1][0])
    assert seen == [not training]


def test_products_in_bf16_round_what_pytorch_s_own_round():
    """Sums may have another order, in last bits; a product that is rounded elsewhere would show in the third digit."""
    module = Attending()
    parts, x = with_numbers(module)
    parts, x = {n: p.float() for n, p in parts.items()}, x.float()

    def loss(given, x):
        with torch.autocast("cpu", torch.bfloat16):
            return functional_call(module, given, (x,)).float().square().sum()

    attention.fold_attention()
    plain = vmap(grad(loss))(parts, x)
    with Instead(LAYERS):
        found = vmap(grad(loss))(parts, x)
    for n, want in plain.items():
        assert float((found[n] - want).norm() / want.norm()) < 1e-5, n
