"""Random operators under a run's noise: the numbers it says, distributed as PyTorch's, whose generator stays."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.models.draws import Draws, drawing

NOISE = Noise(key_of(1, "noise", 2, 3), 4)
N = 20_000


def drawn(make: Callable[[], Tensor]) -> Tensor:
    """What a function draws from the noise; PyTorch's generator must stay where it is."""
    before = torch.get_rng_state()
    with Draws(NOISE) as draws:
        first = make()
    with Draws(NOISE):
        assert torch.equal(first, make())
    assert draws.count > 0
    assert torch.equal(before, torch.get_rng_state())
    return first


UNIFORM, NORMAL, EXPONENTIAL = stats.uniform, stats.norm, stats.expon
CONTINUOUS: dict[str, tuple[Callable[[], Tensor], object]] = {
    "rand": (lambda: torch.rand(N), UNIFORM()),
    "rand with a generator": (lambda: torch.rand(N, generator=torch.Generator()), UNIFORM()),
    "rand_like": (lambda: torch.rand_like(torch.ones(N, dtype=torch.float64)), UNIFORM()),
    "uniform_": (lambda: torch.empty(N).uniform_(-3, 5), UNIFORM(-3, 8)),
    "randn": (lambda: torch.randn(4, N // 4).flatten(), NORMAL()),
    "randn_like": (lambda: torch.randn_like(torch.ones(N)), NORMAL()),
    "normal_": (lambda: torch.empty(N).normal_(2, 3), NORMAL(2, 3)),
    "normal of numbers": (lambda: torch.normal(2.0, 3.0, (N,)), NORMAL(2, 3)),
    "normal of tensors": (lambda: torch.normal(torch.full((N,), 2.0), torch.full((N,), 3.0)), NORMAL(2, 3)),
    "normal of a mean": (lambda: torch.normal(torch.full((N,), 2.0), 3.0), NORMAL(2, 3)),
    "exponential_": (lambda: torch.empty(N).exponential_(2.0), EXPONENTIAL(scale=0.5)),
    "log_normal_": (lambda: torch.empty(N).log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=math.exp(0.5))),
    "Normal.rsample": (lambda: torch.distributions.Normal(2.0, 3.0).rsample((N,)), NORMAL(2, 3)),
    "Gumbel's softmax": (
        lambda: torch.logit(F.gumbel_softmax(torch.zeros(N, 2), dim=1)[:, 0].double()),
        stats.logistic(),  # the difference of two Gumbels
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_are_distributed_as_pytorch_s(name: str) -> None:
    make, law = CONTINUOUS[name]
    assert stats.kstest(drawn(make).double().numpy(), law.cdf).pvalue > 0.005  # type: ignore[attr-defined]


COUNTS: dict[str, tuple[Callable[[], Tensor], list[float]]] = {
    "bernoulli_": (lambda: torch.empty(N).bernoulli_(0.3), [0.7, 0.3]),
    "bernoulli_ of tensor": (lambda: torch.empty(N).bernoulli_(torch.full((N,), 0.3)), [0.7, 0.3]),
    "bernoulli": (lambda: torch.bernoulli(torch.full((N,), 0.3)), [0.7, 0.3]),
    "bernoulli of p": (lambda: torch.bernoulli(torch.ones(N), 0.3), [0.7, 0.3]),
    "dropout": (lambda: F.dropout(torch.ones(N), 0.2) * 0.8, [0.2, 0.8]),
    "native_dropout": (lambda: torch.native_dropout(torch.ones(N), 0.2, True)[0] * 0.8, [0.2, 0.8]),
    "randint": (lambda: torch.randint(4, (N,)), [0.25] * 4),
    "randint from": (lambda: torch.randint(2, 5, (N,)) - 2, [1 / 3] * 3),
    "randint_like": (lambda: torch.randint_like(torch.ones(N), 4), [0.25] * 4),
    "random_": (lambda: torch.empty(N).random_(3), [1 / 3] * 3),
    "random_ from": (lambda: torch.empty(N).random_(3, 6) - 3, [1 / 3] * 3),
    "geometric_": (lambda: torch.empty(N).geometric_(0.4).clamp(max=4), [0, 0.4, 0.24, 0.144, 0.216]),
    "multinomial": (lambda: torch.multinomial(torch.tensor([3.0, 0, 1, 4]), N, True), [3 / 8, 0, 1 / 8, 1 / 2]),
    "multinomial of rows": (
        lambda: torch.multinomial(torch.tensor([[3.0, 0, 1, 4]]).expand(N, -1), 1).flatten(),
        [3 / 8, 0, 1 / 8, 1 / 2],
    ),
    "randperm": (lambda: torch.stack([torch.randperm(3) for _ in range(500)])[:, 0], [1 / 3] * 3),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_as_likely_as_pytorch_s(name: str) -> None:
    make, chances = COUNTS[name]
    values = drawn(make).double().round().long()
    found = torch.bincount(values, minlength=len(chances)).double() / len(values)
    error = torch.tensor([4 * math.sqrt(p * (1 - p) / len(values)) for p in chances], dtype=torch.float64)
    assert len(found) == len(chances)
    assert ((found - torch.tensor(chances)).abs() <= error).all(), found


def test_types_and_shapes_are_pytorch_s() -> None:
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.rand(2, 3, dtype=torch.float64),
        lambda: torch.rand(2, 3, dtype=torch.bfloat16),
        lambda: torch.randint(5, (4,)),
        lambda: torch.randint(5, (4,), dtype=torch.int32),
        lambda: torch.randint_like(torch.ones(2, 2), 5),
        lambda: torch.randperm(7),
        lambda: torch.multinomial(torch.ones(3, 5), 2),
        lambda: torch.multinomial(torch.ones(5), 9, replacement=True),
        lambda: torch.bernoulli(torch.full((3,), 0.5, dtype=torch.float64)),
        lambda: torch.normal(torch.zeros(2, 1), torch.ones(3)),
    ]
    for call in calls:
        with Draws(NOISE):
            ours = call()
        theirs = call()
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    with Draws(NOISE):
        assert sorted(torch.randperm(100).tolist()) == list(range(100))
        assert torch.multinomial(torch.ones(4), 4).unique().tolist() == [0, 1, 2, 3]
        assert (torch.rand(100_000, dtype=torch.bfloat16) < 1).all()  # 23 bits would round up to 1


def test_dropout_s_mask_and_gradient_by_hand() -> None:
    """The stream "layers" from its beginning, a second layer where the first ended; autograd sees the same masks."""
    x, w = torch.linspace(-1, 1, 35).view(5, 7).double(), torch.full((7,), 0.5, dtype=torch.float64)
    live = w.clone().requires_grad_()
    with Draws(NOISE):
        out = F.dropout(torch.tanh(F.dropout(x * live, 0.25)), 0.5)
        (gradient,) = torch.autograd.grad(out.sum(), live)
    u = [((v >> 9) + 0.5) / 2**23 for v in NOISE.words("layers", 36 + 35).tolist()]
    first = (torch.tensor(u[:35]) < 0.75).view(5, 7).double() / 0.75
    second = (torch.tensor(u[36:]) < 0.5).view(5, 7).double() / 0.5
    t = torch.tanh(x * w * first)
    assert torch.allclose(out, t * second, rtol=1e-14)
    assert torch.allclose(gradient, (second * (1 - t**2) * x * first).sum(0), rtol=1e-12)


def test_rrelu_s_slopes_and_gradient_by_hand() -> None:
    x = torch.linspace(-1, 1, 40, dtype=torch.float64).requires_grad_()
    with Draws(NOISE):
        out = F.rrelu(x, 0.1, 0.3, training=True)
        (gradient,) = torch.autograd.grad(out.sum(), x)
    u = torch.tensor([((v >> 9) + 0.5) / 2**23 for v in NOISE.words("layers", 40).tolist()], dtype=torch.float64)
    slope = torch.where(x <= 0, 0.1 + 0.2 * u, torch.ones_like(u)).detach()
    assert torch.allclose(out, x * slope, rtol=1e-7)
    assert torch.allclose(gradient, slope, rtol=1e-7)
    with Draws(NOISE):
        assert torch.equal(F.rrelu_(x.detach().clone(), 0.1, 0.3, training=True), out)


def test_attention_and_recurrent_layers_with_dropout_draw() -> None:
    """A dropout of almost everything: the attended values are gone, and the second LSTM layer is fed zeros."""
    x = torch.linspace(-1, 1, 48).view(2, 3, 8)
    attention = nn.MultiheadAttention(8, 2, dropout=0.9999999, batch_first=True)
    lstm = nn.LSTM(8, 4, num_layers=2, dropout=0.9999999, batch_first=True)
    alone = nn.LSTM(4, 4, batch_first=True)
    alone.load_state_dict({n.replace("_l1", "_l0"): p for n, p in lstm.state_dict().items() if n.endswith("_l1")})
    with drawing(attention, NOISE) as draws:
        assert torch.allclose(attention(x, x, x)[0], attention.out_proj.bias.expand(2, 3, 8), atol=1e-6)
        assert attention(x, x, x, need_weights=False)[0].shape == x.shape
    assert draws.count == 2
    with drawing(lstm, NOISE) as draws:
        out = lstm(x)[0]
    assert draws.count == 1
    assert torch.allclose(out, alone(torch.zeros(2, 3, 4))[0], atol=1e-6)
    for module in (attention, lstm):
        module.eval()
        with drawing(module, NOISE) as draws:
            module(*[x] * (3 if module is attention else 1))
        assert draws.count == 0


def test_what_cannot_follow_a_seed_is_refused_by_name() -> None:
    with Draws(NOISE):
        with pytest.raises(FedsmooError, match="by poisson, which cannot follow the run's seed"):
            torch.poisson(torch.ones(3))
        with pytest.raises(FedsmooError, match="by rand, which cannot"):
            torch.rand(3, out=torch.empty(3))
        with pytest.raises(FedsmooError, match="random_ without bounds"):
            torch.empty(3).random_()
