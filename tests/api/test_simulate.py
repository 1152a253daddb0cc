"""The Python entry point, with a module, arrays, indices and a loss of one's own."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsmoo
from fedsmoo import Config, FedDyn, FedSMOO, FedsmooError, Pathological, simulate
from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core.random.streams import stream
from fedsmoo.data.batches.augment import draws
from fedsmoo.data.check import from_arrays
from fedsmoo.models import FlatModel
from fedsmoo.runs.build import assemble
from fedsmoo.sweeps.pack import Pack, assemble_pack

FEW = {"clients": 4, "cohort": 2, "rounds": 3, "local_steps": 2, "batch_size": 8, "engine": "batched"}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 1)
ARRAYS = (X[:30], Y[:30], X[30:], Y[30:])


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def test_names_all_the_way() -> None:
    result = simulate("softmax", "digits", "fedavg", **FEW)
    assert [r.round for r in result.history] == [1, 2, 3]
    assert all(len(r.cohort) == 2 for r in result.history)
    assert result.accuracy == result.history[-1].test_accuracy


@pytest.mark.parametrize("engine", ["serial", "vmap", "auto"])
def test_a_module_and_arrays_of_one_s_own(engine: str) -> None:
    mine = net()
    before = copy.deepcopy(mine.state_dict())
    result = simulate(mine, ARRAYS, FedSMOO(r=0.05, beta=5.0), **FEW | {"engine": engine})
    trained = result.model
    assert type(trained) is nn.Sequential
    assert all(torch.equal(v, before[k]) for k, v in mine.state_dict().items())  # what was given is left as it was
    w = torch.cat([p.detach().flatten() for p in trained.parameters()])
    assert torch.equal(w, result.server.w)
    assert not torch.equal(w, torch.cat([p.flatten() for p in before.values()]))
    logits = trained(torch.from_numpy(X[30:]))
    assert float((logits.argmax(1).numpy() == Y[30:]).mean()) == pytest.approx(result.accuracy)
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(Y[30:])).item()
    assert result.history[-1].test_loss == pytest.approx(loss, rel=1e-5)


def test_a_module_starts_where_it_is_both_times() -> None:
    mine = net()
    first = simulate(mine, ARRAYS, "fedavg", **FEW)
    _ = first.model
    second = simulate(mine, ARRAYS, "fedavg", **FEW)
    assert torch.equal(first.server.w, second.server.w)


class Body(nn.Module):
    """A frozen layer below a trained one, with a forward for many clients at once."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.below, self.above = nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.below(x).tanh())

    def batched(self, p: dict[str, Tensor], x: Tensor) -> Tensor:
        hidden = torch.baddbmm(p["below.bias"][:, None], x, p["below.weight"].mT).tanh()
        return torch.baddbmm(p["above.bias"][:, None], hidden, p["above.weight"].mT)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine", ["serial", "vmap", "batched"])
def test_a_frozen_layer_is_part_of_the_data(engine: str, dtype: str) -> None:
    """Training above a frozen layer is training on what that layer makes of the data."""
    mine = Body()
    with torch.no_grad():
        seen = [mine.below(torch.from_numpy(x)).tanh() for x in (X[:30], X[30:])]
    settings = FEW | {"engine": engine, "dtype": dtype, "weight_decay": 0.01}
    result = simulate(mine, ARRAYS, "fedsmoo", **settings)
    alone = simulate(mine.above, (seen[0], Y[:30], seen[1], Y[30:]), "fedsmoo", **settings | {"engine": "serial"})
    torch.testing.assert_close(result.server.w, alone.server.w, rtol=1e-5, atol=1e-6)
    assert result.history[-1].test_loss == pytest.approx(alone.history[-1].test_loss, rel=1e-5)
    assert result.history[-1].bytes_up == alone.history[-1].bytes_up  # nobody sends what nobody changes
    trained = result.model
    assert torch.equal(trained.below.weight, mine.below.weight.to(trained.below.weight))
    assert not torch.equal(trained.above.weight, mine.above.weight.to(trained.above.weight))
    assert (trained.below.weight.requires_grad, trained.above.weight.requires_grad) == (False, True)


def test_runs_in_one_batch_must_share_what_is_frozen() -> None:
    config = Config(clients=4, cohort=2, rounds=1, local_steps=1, partition="iid", engine="batched", device="cpu")

    def pack(*seeds: int) -> Pack:
        return Pack([assemble(config, data=from_arrays(*ARRAYS), model=FlatModel(Body(s))) for s in seeds])

    assert [len(r.history) for r in pack(3, 3).run()] == [1, 1]
    with pytest.raises(FedsmooError, match=r"different frozen parameters.*--pack 1"):
        pack(3, 4).run()


def test_float64_on_the_cpu() -> None:
    mine = net()
    result = simulate(mine, ARRAYS, "scaffold", dtype=torch.float64, **FEW)
    assert result.server.w.dtype == torch.float64
    assert next(result.model.parameters()).dtype == torch.float64
    assert next(mine.parameters()).dtype == torch.float32
    single = simulate(mine, ARRAYS, "scaffold", dtype="float32", **FEW)
    gap = float((single.server.w.double() - result.server.w).abs().max())
    assert 0 < gap < 1e-4


def test_client_indices_instead_of_a_partition() -> None:
    indices = [[0, 1, 2], np.arange(3, 20), list(range(20, 30))]
    result = simulate(net(), ARRAYS, "fedavg", client_indices=indices, **FEW | {"clients": 3, "cohort": 3})
    assert [len(i) for i in result.simulation.indices] == [3, 17, 10]
    assert {c for r in result.history for c in r.cohort} == {0, 1, 2}


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[0], []], "client_indices: client 1"),
        ([[0.5]], "client_indices: client 0"),
        ([[0], [30]], "client_indices: client 1 points to sample 30"),
        ([[-1]], "client_indices: client 0 points to sample -1"),
    ],
)
def test_wrong_client_indices(indices: list, message: str) -> None:
    with pytest.raises(FedsmooError, match=message):
        simulate(net(), ARRAYS, "fedavg", client_indices=indices, **FEW | {"clients": len(indices), "cohort": 1})


def test_a_partition_object_and_its_name_are_the_same() -> None:
    named = simulate("softmax", "digits", "fedavg", partition="pathological-2", **FEW)
    made = simulate("softmax", "digits", "fedavg", partition=Pathological(c=2), **FEW)
    assert all(np.array_equal(a, b) for a, b in zip(named.simulation.indices, made.simulation.indices, strict=True))
    assert torch.equal(named.server.w, made.server.w)
    labels = named.simulation.setup.task.data.y_train.numpy()
    assert all(len(np.unique(labels[i])) <= 2 for i in named.simulation.indices)


def test_the_number_in_a_partition_s_name_counts() -> None:
    """dirichlet-100 is nearly even and dirichlet-0.01 nearly one class a client."""
    spread = []
    for name in ("dirichlet-100", "dirichlet-0.01"):
        run = simulate("softmax", "digits", "fedavg", partition=name, **FEW).simulation
        labels = run.setup.task.data.y_train.numpy()
        spread.append(np.mean([np.bincount(labels[i], minlength=10).max() / len(i) for i in run.indices]))
    assert spread[0] < 0.2 < 0.8 < spread[1]


def test_u_counts_beside_the_partition_that_is_the_default() -> None:
    """Without a partition's name, u says the concentration: 100 is as good as even, 0.01 one class a client."""
    even, uneven = (simulate("softmax", "digits", "fedavg", u=u, **FEW).simulation for u in (100, 0.01))
    named = simulate("softmax", "digits", "fedavg", partition="dirichlet-100", **FEW).simulation
    assert all(np.array_equal(a, b) for a, b in zip(even.indices, named.indices, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(even.indices, uneven.indices, strict=True))


def test_iid_is_without_replacement_unless_asked_for() -> None:
    for options, different in (({}, 1438), ({"replacement": True}, 909)):  # 1438 (1 - 1/e) of them, about
        run = simulate("softmax", "digits", "fedavg", partition="iid", **options, **FEW).simulation
        assert np.unique(np.concatenate(run.indices)).size == pytest.approx(different, abs=60 if options else 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"partition": "dirichlet-0.6", "u": 0.1}, r"u is 0\.1, but the partition 'dirichlet-0\.6' says 0\.6: leave u"),
        ({"partition": "pathological-2", "c": 5}, "c is 5, but the partition 'pathological-2' says 2: leave c out"),
        ({"partition": Pathological(2), "c": 2}, r"both partition=Pathological\(c=2\) and c=2 say who holds"),
        ({"partition": Pathological(2), "replacement": False}, "and replacement=False say who holds which samples"),
        ({"client_indices": [[0]] * 4, "partition": "iid"}, "both client_indices and partition='iid' say who holds"),
        ({"client_indices": [[0], [1]]}, "both client_indices and clients=4 say who holds"),
    ],
)
def test_two_words_on_who_holds_what_are_refused(given: dict, message: str) -> None:
    with pytest.raises(FedsmooError, match=message):
        simulate("softmax", "digits", "fedavg", **given, **FEW)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_loss_per_sample_of_one_s_own(engine: str) -> None:
    """Squared distance to the one-hot label: the first round's loss is known from the starting model."""

    def brier(out: Tensor, y: Tensor) -> Tensor:
        return (out.softmax(-1) - (y[:, None] == torch.arange(out.shape[-1])).float()).square().sum(-1)

    indices = [np.arange(30)]
    settings = FEW | {"clients": 1, "cohort": 1, "rounds": 1, "local_steps": 1, "batch_size": 30, "engine": engine}
    result = simulate(net(), ARRAYS, "fedavg", client_indices=indices, loss=brier, **settings)
    expected = brier(net()(torch.from_numpy(X[:30])), torch.from_numpy(Y[:30])).mean().item()
    assert result.history[0].train_loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("engine", ["serial", "vmap", "auto"])
def test_a_loss_of_one_number_is_refused(engine: str) -> None:
    """Its mean would count the padding of a short batch as samples, and the test loss would be a sum of means."""
    settings = FEW | {"engine": engine, "rounds": 1}
    with pytest.raises(
        FedsmooError, match=r'has the shape \[\].*one loss per sample, \[2\].*reduction="none"'
    ) as caught:
        simulate(net(), ARRAYS, "fedavg", loss=F.cross_entropy, **settings)
    assert "\n" not in str(caught.value)
    each = simulate(net(), ARRAYS, "fedavg", loss=partial(F.cross_entropy, reduction="none"), **settings)
    plain = simulate(net(), ARRAYS, "fedavg", **settings)
    torch.testing.assert_close(each.server.w, plain.server.w)
    assert each.history[-1].test_loss == pytest.approx(plain.history[-1].test_loss, rel=1e-6)


def test_losses_of_other_shapes_are_refused() -> None:
    one = nn.Sequential(nn.Linear(6, 1))
    cases = [
        (lambda out, y: (out - y[:, None]).square(), r"has the shape \[2, 1\]"),
        (lambda out, y: float(out.sum()), "has the type float"),
        (
            lambda out, y: out.missing,
            r"outputs \[2, 1\] and labels \[2\]: \S+test_simulate.py:\d+ in <lambda>: Attr",
        ),
    ]
    for loss, message in cases:
        with pytest.raises(FedsmooError, match=message):
            simulate(one, ARRAYS, "fedavg", loss=loss, **FEW | {"engine": "serial"})


def test_a_loss_that_vmap_cannot_take_says_so_in_one_line() -> None:
    def looks_inside(out: Tensor, y: Tensor) -> Tensor:
        return out[:, 0] if float(out.detach().sum()) > 0 else out[:, 1]

    with pytest.raises(FedsmooError, match="the vmap engine cannot train this model on these data"):
        simulate(net(), ARRAYS, "fedavg", loss=looks_inside, **FEW | {"engine": "vmap"})
    assert len(simulate(net(), ARRAYS, "fedavg", loss=looks_inside, **FEW | {"engine": "auto"}).history) == 3


def test_a_module_that_does_not_fit_the_data_says_so_in_one_line() -> None:
    with pytest.raises(FedsmooError, match="cannot train this model on these data") as caught:
        simulate(nn.Linear(5, 3), ARRAYS, "fedavg", **FEW | {"engine": "serial"})
    assert "\n" not in str(caught.value)


def test_a_callback_sees_every_round_and_may_stop() -> None:
    seen = []

    def watch(record) -> bool:
        seen.append(record)
        return record.round < 2

    result = simulate("softmax", "digits", "fedavg", callback=watch, **FEW | {"rounds": 50})
    assert [r.round for r in seen] == [1, 2]
    assert result.history == seen
    assert len(simulate("softmax", "digits", "fedavg", callback=lambda r: None, **FEW).history) == 3


def test_a_run_stopped_before_its_first_evaluation_has_no_accuracy_and_says_so() -> None:
    result = simulate("softmax", "digits", "fedavg", callback=lambda r: r.round < 2, eval_every=3, **FEW)
    with pytest.raises(FedsmooError, match=r"none of the 2 rounds so far was evaluated.*eval_every"):
        _ = result.accuracy
    assert all(r.test_accuracy is None for r in result.history)


@pytest.mark.parametrize(("side", "pad"), [(32, 4), (64, 8), (8, 1)])
def test_images_are_shifted_by_an_eighth_of_their_height(side: int, pad: int) -> None:
    x = np.zeros((120, side, side, 3), np.uint8)
    config = Config(model="softmax", clients=2, cohort=2, partition="iid", batch_size=60, device="cpu", augment=True)
    y = np.arange(120) % 4
    run = assemble(config.replace(engine="serial"), data=from_arrays(x, y, x[:4], y[:4]))
    drawn = run.plan(0, [0, 1]).draws
    assert all((drawn[n].min(), drawn[n].max()) == (-pad, pad) for n in ("dy", "dx"))
    alone = draws(stream(0, "augment", 0, 1), (len(drawn["dy"]), 60), pad)  # 4 for 32x32, as it always was
    assert all(np.array_equal(drawn[n][:, 1], alone[n]) for n in ("flip", "dy", "dx"))


def test_the_history_as_a_frame() -> None:
    frame = simulate("softmax", "digits", "fedavg", eval_every=2, **FEW).frame
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == 3
    assert {"round", "test_accuracy", "test_loss", "train_loss", "drift", "cohort", "bytes_up", "bytes_down"} <= set(
        frame
    )
    assert {"seconds_train", "seconds_eval", "lr"} <= set(frame)
    assert frame.test_accuracy.isna().tolist() == [True, False, False]  # every second round, and the last


def test_client_state_on_request() -> None:
    result = simulate("softmax", "digits", FedDyn(), **FEW | {"rounds": 1})
    met = result.history[0].cohort
    for i in range(4):
        state = result.client_state(i)
        if i in met:
            assert set(state) == {"lam"}
            assert float(state["lam"].norm()) > 0
        else:
            assert state is None


def test_the_seed_decides_everything_and_the_global_generators_nothing() -> None:
    first = simulate("mlp", "digits", "fedavg", seed=5, **FEW)
    torch.manual_seed(99)
    np.random.seed(99)
    second = simulate("mlp", "digits", "fedavg", seed=5, **FEW)
    other = simulate("mlp", "digits", "fedavg", seed=6, **FEW)
    assert torch.equal(first.server.w, second.server.w)
    assert not torch.equal(first.server.w, other.server.w)


def test_lr_decays_after_every_round() -> None:
    result = simulate("softmax", "digits", "fedavg", lr=0.5, lr_decay=0.9, **FEW)
    assert [r.lr for r in result.history] == pytest.approx([0.5, 0.45, 0.405])


def test_relaxed_is_a_setting_of_any_method() -> None:
    result = simulate("softmax", "digits", FedDyn(), relaxed=0.2, **FEW)
    met = result.history[0].cohort[0]
    assert set(result.client_state(met)) == {"lam", "w_last"}
    assert result.simulation.setup.algorithm.label == "FedDyn+relaxed"


BAD = [
    ({"algorithm": "fedsmo"}, "unknown algorithm 'fedsmo': did you mean 'fedsmoo'"),
    ({"model": "mpl"}, "unknown model 'mpl': did you mean 'mlp'"),
    ({"data": "digit"}, "did you mean 'digits'"),
    ({"partition": "dirchlet"}, "unknown partition 'dirchlet'"),
    ({"partition": "pathological-11"}, "c is 11, but the training labels have only 10 classes"),
    ({"bathc_size": 5}, "unknown setting 'bathc_size': did you mean 'batch_size'"),
    ({"rounds": "many"}, "rounds is 'many', but must be a whole number"),
    ({"device": "tpu9"}, "device 'tpu9' cannot be used here"),
    ({"dtype": "float16"}, "unknown value of dtype 'float16'"),
    ({"data": (X[:0], Y[:0], X, Y)}, "empty"),
    ({"data": (np.where(X > 2, np.nan, X), Y, X, Y)}, "NaN"),
    ({"data": (X, Y - 1, X, Y)}, "labels run from -1"),
    ({"data": (X, Y + 0.0, X, Y)}, "labels must be whole numbers"),
    ({"data": (X, Y[:5], X, Y)}, "40 samples but 5 labels"),
    ({"model": nn.BatchNorm1d(64, track_running_stats=False)}, "GroupNorm"),
    ({"augment": True}, "are not uint8 images"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_input_is_one_clear_line(settings: dict, message: str) -> None:
    call = {"model": "softmax", "data": "digits", "algorithm": "fedavg"} | FEW | settings
    with pytest.raises(FedsmooError) as caught:
        simulate(**call)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_diverges_stops_with_the_round_and_keeps_what_it_had() -> None:
    seen = []
    x = np.full((8, 6), 1e18, np.float32)
    with pytest.raises(
        FedsmooError, match=r"round (\d+): .*no longer finite.*Try a smaller lr \(now 1e\+18\)"
    ) as caught:
        simulate(net(), (x, Y[:8], X, Y), "fedavg", partition="iid", callback=seen.append, lr=1e18, clip=None,
                 lr_decay=1.0, **FEW | {"rounds": 30})  # fmt: skip
    number = int(str(caught.value).split(":")[0].removeprefix("round "))
    assert [r.round for r in seen] == list(range(1, number))
    assert all(math.isfinite(r.train_loss) for r in seen)


def test_the_methods_are_exported_under_their_papers_names() -> None:
    for cls in ALGORITHMS.values():
        assert getattr(fedsmoo, cls.__name__) is cls
    assert all(hasattr(fedsmoo, name) for name in fedsmoo.__all__)


def test_a_class_instead_of_a_method_gets_a_hint() -> None:
    with pytest.raises(FedsmooError, match=r"write FedSMOO\(\)"):
        fedsmoo.simulate("softmax", "digits", fedsmoo.FedSMOO, clients=4, cohort=2, rounds=1)
    with pytest.raises(FedsmooError, match="callback is 3"):
        fedsmoo.simulate("softmax", "digits", "fedavg", clients=4, cohort=2, rounds=1, callback=3)


def test_runs_of_a_batch_stop_alike() -> None:
    config = Config(model="softmax", clients=4, cohort=2, rounds=3, local_steps=1, engine="batched", device="cpu")
    runs = assemble_pack([config, config.replace(seed=1)])
    Pack(runs).run([lambda r: np.False_, lambda r: None])
    assert [len(r.history) for r in runs] == [1, 3]


@pytest.mark.parametrize("every", [1, 5])
def test_the_example_of_the_first_steps_stops_at_its_accuracy(every: int) -> None:
    """Also where most rounds have no accuracy."""
    text = (Path(__file__).parents[2] / "docs" / "first-steps.md").read_text()
    code = next(block for block in text.split("```python\n") if "callback=" in block).partition("```")[0]
    assert "callback=lambda r: not r.reached(0.9)" in code
    names: dict[str, Any] = {}
    exec(code.replace("0.9", "0.5").replace("rounds=20", f"rounds=20, eval_every={every}"), names)
    accuracies = [r.test_accuracy for r in names["result"].history]
    assert len(accuracies) < 20
    assert len(accuracies) % every == 0
    assert [a is not None and a >= 0.5 for a in accuracies] == [False] * (len(accuracies) - 1) + [True]
