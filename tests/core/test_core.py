"""Vectors, layouts, errors, and the local step by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from fedsmoo.algorithms import FedAvg, FedDyn, FedProx, FedSWA
from fedsmoo.core import Algorithm, Layout, LocalRule, Round, Vectors, local, norm, option, unit
from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.gradient import StepGradient
from fedsmoo.core.hyper.options import in_interval, interval_in_words
from fedsmoo.core.local import clipped, local_step
from fedsmoo.core.round import Missing
from fedsmoo.core.user_code import short_name


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_vectors_are_replaced_not_changed() -> None:
    v = Vectors(w=tensor(1, 2), c=tensor(3, 4))
    new = v.replace(c=tensor(5, 6), d=tensor(7, 8))
    assert v.c.tolist() == [3, 4]
    assert new.names() == ("w", "c", "d")
    assert new.pick(("d", "w")).names() == ("d", "w")
    assert v.map(lambda x: 2 * x).c.tolist() == [6, 8]
    assert dict(v.items())["w"] is v.w
    assert repr(v) == "Vectors(w=(2,), c=(2,))"


def test_a_missing_vector_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match="no vector named 's' here; there are: w, c"):
        _ = Vectors(w=tensor(1), c=tensor(1)).s
    with pytest.raises(AttributeError, match="there are: none"):
        _ = Vectors().w


@pytest.mark.parametrize(
    "use",
    [
        lambda missing: torch.add(missing, tensor(1)),
        lambda missing: torch.add(tensor(1), missing),
        lambda missing: torch.add(tensor(1), other=missing),
        lambda missing: tensor(1) * missing,
        lambda missing: missing / 2,
        lambda missing: missing.mean(),
    ],
)
def test_what_a_run_cannot_tell_is_refused_with_its_reason_wherever_it_stands(
    use: Callable[[Missing], object], recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(FedsmooError, match="nobody counted samples"):
        use(Missing("nobody counted samples"))
    assert not recwarn.list  # PyTorch's, of a way that it will give up


def test_names_of_ours_stay_and_those_in_files_are_short() -> None:
    assert [short_name(n) for n in ("fedsmoo", "hub/name", "a/mine.py:Own")] == ["fedsmoo", "hub/name", "mine.py-Own"]


def test_norms_and_units_are_over_the_last_axis() -> None:
    v = torch.stack([tensor(3, 4), tensor(0, 0), tensor(0, -2)])
    assert norm(v).tolist() == [[5], [0], [2]]
    assert torch.allclose(unit(v), torch.stack([tensor(0.6, 0.8), tensor(0, 0), tensor(0, -1)]), rtol=0, atol=1e-11)
    assert torch.equal(unit(v)[0], unit(v[0]))
    assert unit(torch.zeros(3)).tolist() == [0, 0, 0]  # float32 too: the epsilon is above its smallest number


def test_a_layout_splits_and_joins_with_and_without_client_axis() -> None:
    layout = Layout({"a.weight": (2, 3), "a.bias": (2,), "scale": ()})
    assert layout.size == 9
    assert layout.offsets == {"a.weight": 0, "a.bias": 6, "scale": 8}
    v = torch.arange(9.0)
    parts = layout.split(v)
    assert parts["a.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert parts["a.bias"].tolist() == [6, 7]
    assert parts["scale"].item() == 8
    assert torch.equal(layout.join(parts), v)
    many = torch.stack([v, v + 10])
    assert layout.split(many)["a.weight"].shape == (2, 2, 3)
    assert layout.split(many)["scale"].tolist() == [8, 18]
    assert torch.equal(layout.join(layout.split(many)), many)
    assert layout == Layout(dict(layout.shapes))
    assert hash(layout) == hash(Layout(dict(layout.shapes)))
    assert layout != Layout({"scale": (), "a.weight": (2, 3), "a.bias": (2,)})


def test_unknown_names_get_the_nearest_match_only_if_there_is_one() -> None:
    assert "did you mean 'SCAFFOLD'" in str(unknown("algorithm", "scafold", ["fedavg", "SCAFFOLD"]))
    assert str(unknown("x", "zzz", ["b", "a"])) == "unknown x 'zzz'; known: a, b"


def test_clip_scales_to_the_limit_and_leaves_the_rest() -> None:
    rows = torch.stack([tensor(3, 4), tensor(0.3, 0.4), tensor(0, 0)])
    assert torch.allclose(clipped(rows, 1.0), torch.stack([tensor(0.6, 0.8), tensor(0.3, 0.4), tensor(0, 0)]))
    assert clipped(rows, None) is rows


def step(algorithm: Algorithm, rule: LocalRule, me: Vectors | None = None) -> list[float]:
    """One local step from w = (2, 0), sent (1, 0), with the gradient (3, 4) everywhere and lr = 0.1."""
    down = Vectors(w=tensor(1, 0))
    grad = StepGradient(lambda v: (tensor(3, 4), tensor(0)), Round(0, 0.1, 1, 1.0))
    w, _ = local_step(algorithm, rule, tensor(2, 0), grad, down, me or Vectors())
    return w.tolist()


def test_a_plain_step() -> None:
    assert step(FedAvg(), LocalRule()) == pytest.approx([2 - 0.3, -0.4])


def test_weight_decay_is_added_after_the_clip() -> None:
    # clip: (3, 4) -> (0.6, 0.8); then 0.5 * (2, 0)
    assert step(FedAvg(), LocalRule(weight_decay=0.5, clip=1.0)) == pytest.approx([2 - 0.1 * (0.6 + 1.0), -0.08])


@pytest.mark.parametrize("shape", [(4 * 64 + 7,), (9,), (3, 300)])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_step_on_a_cpu_has_the_bits_of_whole_vectors_and_writes_into_none_of_them(
    shape: tuple[int, ...], clip: float | None, decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large models are stepped in blocks, here of 64 numbers; C models start as one, which is expanded."""
    monkeypatch.setattr(local, "BLOCK", 64)
    draw = torch.Generator().manual_seed(0)
    w, d = torch.randn(shape[-1], generator=draw).expand(shape), torch.randn(shape, generator=draw)
    scaled = d if clip is None else d * (clip / d.norm(dim=-1, keepdim=True)).clamp(max=1.0)
    whole = w - 0.1 * (scaled + decay * w if decay else scaled)
    rule, algorithm, before = LocalRule(decay, clip), FedAvg(), (w.clone(), d.clone())
    grad = StepGradient(lambda v: (d, torch.zeros(())), Round(0, 0.1, 1, 1.0))
    assert local.can_step_blockwise(algorithm, rule, w, d, grad.rnd)
    found, _ = local_step(algorithm, rule, w, grad, Vectors(w=w), Vectors())
    assert torch.equal(found, whole)
    assert torch.equal(w, before[0])
    assert torch.equal(d, before[1])


def test_a_method_that_updates_otherwise_and_numbers_of_each_client_are_not_stepped_in_place() -> None:
    w, rnd = torch.zeros(3), Round(0, 0.1, 1, 1.0)
    assert not local.can_step_blockwise(FedSWA(), LocalRule(), w, w, rnd)
    assert not local.can_step_blockwise(FedAvg(), LocalRule(torch.zeros(1)), w, w, rnd)
    assert not local.can_step_blockwise(FedAvg(), LocalRule(), w, w, Round(0, torch.zeros(1), 1, 1.0))
    assert not local.can_step_blockwise(FedAvg(), LocalRule(), w, w.double(), rnd)
    assert not local.can_step_blockwise(FedAvg(), LocalRule(), w, w.clone().requires_grad_(), rnd)


def test_both_scopes_of_the_clip() -> None:
    """The pull is mu (w_i - w) = (5, 0): clipped together, (8, 4) / sqrt(80); apart, (0.6, 0.8) + (5, 0)."""
    prox = FedProx(mu=5.0)
    together = step(prox, LocalRule(clip=1.0))
    assert together == pytest.approx([2 - 0.1 * 8 / 80**0.5, -0.1 * 4 / 80**0.5])
    assert step(prox, LocalRule(clip=1.0, clip_scope="released")) == pytest.approx([2 - 0.1 * 5.6, -0.08])
    assert step(prox, LocalRule()) == pytest.approx([2 - 0.8, -0.4])


def test_the_dual_is_inside_the_clip_in_both_scopes() -> None:
    """FedDyn: g - lam = (3, 4) - (3, 0) = (0, 4) -> (0, 1); the pull is (w_i - w) / beta = (0.5, 0)."""
    me = Vectors(lam=tensor(3, 0))
    got = step(FedDyn(beta=2.0), LocalRule(clip=1.0, clip_scope="released"), me)
    assert got == pytest.approx([2 - 0.1 * 0.5, -0.1])


def test_init_holds_the_model_and_zeros_and_copies() -> None:
    w = tensor(1, 2)
    server = FedDyn().init(w)
    assert server.names() == ("w", "lam")
    assert server.lam.tolist() == [0, 0]
    w.zero_()
    assert server.w.tolist() == [1, 2]


@pytest.mark.parametrize("within", ["0..1", "[0; 1)", "[0, 1", "0, 1", "[1, 0]", "[a, b]", "[0, 1, 2]", "["])
def test_what_is_not_an_interval_is_refused_where_it_is_written(within: str) -> None:
    with pytest.raises(FedsmooError, match=r"is not an interval: write it as '\[0, 1\)'"):
        option(0.5, "a share", within=within)


def test_an_interval_may_be_written_without_a_space() -> None:
    assert interval_in_words("[0,1)") == "at least 0 and below 1"
    assert [in_interval(x, "[0,1)") for x in (-1, 0, 0.5, 1)] == [False, True, True, False]


def test_a_layout_may_be_longer_than_its_parameters():
    """Rounded up to a multiple: what lies behind the parameters is zero when joined, and of no name when split."""
    layout = Layout({"a": [2, 2], "b": (1,)}, align=4)
    assert (layout.count, layout.size) == (5, 8)
    assert Layout({"a": (4,)}, align=4).size == 4
    parts = {"a": torch.arange(12.0).view(3, 2, 2) + 1, "b": torch.full((3, 1), 9.0)}
    joined = layout.join(parts)
    assert joined.tolist() == [[4 * c + k for k in range(1, 5)] + [9.0, 0.0, 0.0, 0.0] for c in range(3)]
    assert all(torch.equal(v, parts[n]) for n, v in layout.split(joined).items())
    assert layout == Layout({"a": (2, 2), "b": (1,)}, align=4) != Layout({"a": (2, 2), "b": (1,)})


@pytest.mark.parametrize(
    ("within", "there", "not_there"),
    [("[0, 1)", (0, 0.5), (-0.1, 1, 2)), ("(0, 1]", (0.5, 1), (0, 1.1)), ("(0, inf)", (1e300,), (0, math.inf)),
     ("[0, inf]", (0, math.inf), (-1, math.nan)), ("(2, 3)", (2.5,), (2, 3, math.nan))],
)  # fmt: skip
def test_the_ends_of_an_interval_belong_to_it_or_not(within, there, not_there):
    assert all(in_interval(v, within) for v in there)
    assert not any(in_interval(v, within) for v in not_there)
