"""Running statistics against a literal loop of modules in train mode whose state dicts are averaged, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from fedsmoo import simulate
from fedsmoo.core import FedsmooError
from fedsmoo.data.batches.plan import client_batches
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.statistics.recompute import SAMPLES, drawn_samples
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.simulation import Simulation
from fedsmoo.sweeps.pack import Pack

from .nets import Averaging, Centred, maps, normed

SIZES, BATCH = (10, 6, 7, 4, 11), 4  # last batches of 2, 2, 3, 4 and 3 samples
ENDS = np.cumsum(SIZES)
CLIENTS = [np.arange(e - n, e) for n, e in zip(SIZES, ENDS, strict=True)]
RNG = np.random.default_rng(5)
X = torch.from_numpy(RNG.standard_normal((sum(SIZES) + 12, 8)) * 2 + 1)
Y = torch.from_numpy((X.numpy() @ RNG.standard_normal((8, 3))).argmax(1))
N = sum(SIZES)
DATA = (X[:N], Y[:N], X[N:], Y[N:])
TASK = Config(
    clients=5, cohort=5, rounds=2, local_epochs=1, batch_size=BATCH, lr=0.1, lr_decay=1.0, weight_decay=0.01, clip=None,
    weighted=True, dtype="float64", device="cpu", seed=3, partition="iid", algorithm="fedavg",
)  # fmt: skip
NETS: dict[str, Callable[[], nn.Module]] = {"normed": lambda: normed(8, 3), "maps": maps, "own": Centred}


def made(name: str) -> nn.Module:
    torch.manual_seed(1)
    return NETS[name]().double()


def federation(config: Config, net: nn.Module, **engine: Any) -> Simulation:
    run = assemble(config, data=from_arrays(*DATA), model=FlatModel(copy.deepcopy(net)), indices=CLIENTS)
    if engine:
        run = Simulation(run.setup, Batched(run.setup, **engine), run.training, run.indices)
    return run


def literally(
    net: nn.Module, policy: str, radius: float = 0.0, stay: tuple[str, ...] = ()
) -> tuple[nn.Module, list[nn.Module]]:
    """FedAvg (or FedSAM) on modules themselves, and the clients' own modules after the last round.

    Parameters of which the names begin as ``stay`` says are each client's own.
    """
    net = copy.deepcopy(net)
    mine: list[nn.Module] = [copy.deepcopy(net) for _ in CLIENTS]
    weights = [n / N for n in SIZES]
    first = copy.deepcopy(net)
    for number in range(TASK.rounds):
        for i, samples in enumerate(CLIENTS):
            start = {"averaged": net, "local": mine[i], "recomputed": first}[policy]
            own = copy.deepcopy(start)
            shared = {n: p.detach() for n, p in net.named_parameters() if not n.startswith(stay)}
            own.load_state_dict(shared, strict=False)
            batches = client_batches(TASK.seed, number, i, samples, BATCH, TASK.epochs, None)
            train(own, batches, radius)
            mine[i] = own
        states = [m.state_dict() for m in mine]
        new = {}
        for n, old in net.state_dict().items():
            mean = sum(w * s[n].double() for w, s in zip(weights, states, strict=True))
            mean = old.double() if stay and n.startswith(stay) else mean
            new[n] = mean.to(old.dtype) if old.is_floating_point() else mean.round().to(old.dtype)
        net.load_state_dict(new)
    return net, mine


def train(net: nn.Module, batches: list[np.ndarray], radius: float) -> None:
    """Take local steps; of SAM's two gradients the first changes statistics."""
    net.train()
    for batch in batches:
        x, y = X[batch], Y[batch]
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if radius:
            kept = {n: b.clone() for n, b in net.named_buffers()}
            there = [p.detach().clone() for p in net.parameters()]
            length = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
            with torch.no_grad():
                for p in net.parameters():
                    p += radius * p.grad / length
            net.zero_grad()
            F.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for p, t in zip(net.parameters(), there, strict=True):
                    p.copy_(t)
                for n, b in net.named_buffers():
                    b.copy_(kept[n])
        with torch.no_grad():  # torch.optim.SGD, which imports a compiler
            for p in net.parameters():
                p -= TASK.lr * (p.grad + TASK.weight_decay * p)


def gap(run: Simulation, truth: nn.Module) -> float:
    """How far the server's model and statistics are from a module; counts are whole there."""
    model = run.setup.task.model
    assert model.statistics is not None
    w = model.layout.join({n: p.detach() for n, p in truth.named_parameters()})
    theirs = model.statistics.join(dict(truth.named_buffers()), torch.float64)
    ours = model.statistics.join(model.statistics.split(run.server.statistics), torch.float64)
    return max(float((run.server.w - w).abs().max()), float((ours - theirs).abs().max()))


ENGINES: dict[str, dict[str, Any]] = {
    "vmap": {"oracle": "vmap"},
    "chunks": {"oracle": "vmap", "chunk": 2},
    "recorded": {"stepper": lambda oracle: ReplayStepper(oracle, compile=False)},
}


@pytest.mark.parametrize("engine", ["serial", *ENGINES])
@pytest.mark.parametrize("net", NETS)
def test_averaged_statistics_are_those_of_averaged_state_dicts(net: str, engine: str) -> None:
    if (net, engine) == ("own", "recorded"):
        pytest.skip("batches of other lengths from step to step are not recorded")
    start = made(net)
    run = federation(TASK.replace(engine="serial"), start, **ENGINES.get(engine, {}))
    first = run.server.statistics.clone()
    run.run()
    truth, _ = literally(start, "averaged")
    assert gap(run, truth) < 1e-12
    assert float((run.server.statistics - first).abs().max()) > 0.1


@pytest.mark.parametrize("engine", ["serial", "vmap"])
def test_the_first_gradient_of_a_step_changes_statistics_and_no_other(engine: str) -> None:
    start = made("maps")
    config = TASK.replace(algorithm="fedsam", algorithm_options={"rho": 0.1}, engine=engine)
    run = federation(config, start)
    run.run()
    assert gap(run, literally(start, "averaged", radius=0.1)[0]) < 1e-11


@pytest.mark.parametrize("engine", ["serial", "vmap", "chunks", "recorded"])
def test_local_statistics_stay_with_their_clients(engine: str) -> None:
    start = made("maps")
    run = federation(TASK.replace(engine="serial", statistics="local"), start, **ENGINES.get(engine, {}))
    with pytest.warns(match="set holdout"):
        assemble(TASK.replace(statistics="local"), data=from_arrays(*DATA), model=FlatModel(made("maps")))
    result = run.run()
    truth, mine = literally(start, "local")
    statistics, rows = run.setup.task.model.statistics, dict(run.engine.table.items())
    assert statistics is not None
    assert float((run.server.w - run.setup.task.model.layout.join(dict(truth.named_parameters()))).abs().max()) < 1e-12
    for i, own in enumerate(mine):
        theirs = statistics.join(dict(own.named_buffers()), torch.float64)
        assert float((rows[i]["statistics"] - theirs).abs().max()) < 1e-12
        own.load_state_dict({n: p.detach() for n, p in truth.named_parameters()}, strict=False)
        assert float((result.personal_model(i)(X) - own.eval()(X)).abs().max()) < 1e-11


@pytest.mark.parametrize("engine", ["serial", "vmap", "chunks", "recorded"])
def test_fedbn_is_fedavg_but_for_the_norms_and_their_statistics(engine: str) -> None:
    start = made("maps")
    with torch.no_grad():
        start[2].weight += 0.3
    config = TASK.replace(engine="serial", algorithm="fedbn")
    run = federation(config, start, **ENGINES.get(engine, {}))
    result = run.run()
    truth, mine = literally(start, "local", stay=("2.",))
    assert torch.equal(result.model[2].weight, start[2].weight)
    for n, p in truth.named_parameters():
        assert float((result.model.get_parameter(n) - p).detach().abs().max()) < 1e-12, n
    numbers = run.setup.task.model.layout.count - 6  # a weight and a bias for each of three channels
    assert {(r.bytes_up, r.bytes_down) for r in result.history} == {(5 * 8 * numbers, 5 * 8 * numbers)}
    for i, own in enumerate(mine):
        shared = {n: p.detach() for n, p in truth.named_parameters() if not n.startswith("2.")}
        own.load_state_dict(shared, strict=False)
        assert float((result.personal_model(i)(X) - own.eval()(X)).detach().abs().max()) < 1e-11


def test_personal_models_are_evaluated_with_their_clients_statistics() -> None:
    start = made("maps")
    config = TASK.replace(algorithm="fedbn", holdout=0.3, batch_size=5)
    runs = [federation(config.replace(engine=e), start) for e in ("serial", "vmap")]
    for run in runs:
        result = run.run()
        right = []
        for i, held in enumerate(run.held):
            with torch.no_grad():
                out = result.personal_model(i)(X[held])
            right.append((out.argmax(1) == Y[held]).double().mean().item())
        assert result.personal["personal_accuracy"] == pytest.approx(np.mean(right), abs=1e-12)
        frame = result.evaluate_clients()
        assert frame["personal_accuracy"].tolist() == pytest.approx(right)
        assert frame["accuracy"].mean() == pytest.approx(result.personal["global_accuracy"])


def test_a_model_without_norms_is_refused_by_fedbn() -> None:
    with pytest.raises(FedsmooError, match=r"the model has no norms: name parameters, such as 'fc"):
        simulate("softmax", "digits", "fedbn", clients=4, cohort=2, rounds=1)


def updated(net: nn.Module, run: Simulation) -> nn.Module:
    """The net with statistics by PyTorch's own ``update_bn``, on the batches that are drawn once for a run."""
    net = copy.deepcopy(net)
    update_bn([X[b] for b in drawn_samples(run.indices, BATCH, TASK.seed)], net)
    return net


@pytest.mark.parametrize("policy", ["recomputed", "local"])
@pytest.mark.parametrize("engine", ["serial", "vmap"])
def test_recomputed_statistics_are_pytorch_s_update_bn(engine: str, policy: str) -> None:
    start = made("normed")
    run = federation(TASK.replace(engine=engine, statistics=policy, eval_every=2), start)
    for number in (1, 2):
        record = run.advance()
        if number == 1:
            assert torch.equal(run.server.statistics, run.setup.task.model.statistics.first)
    truth = updated(literally(start, policy)[0], run)
    assert gap(run, truth) < 1e-12
    with torch.no_grad():
        expected = F.cross_entropy(truth.eval()(X[N:]), Y[N:]).item()
    assert record.test_loss == pytest.approx(expected, abs=1e-12)
    model = Result(run.history, run.server, run).model
    assert float((model(X) - truth(X)).abs().max()) < 1e-12


def test_samples_for_statistics_are_whole_batches_of_about_a_thousand() -> None:
    large = [np.arange(0, 3000), np.arange(2000, 5000)]
    batches = drawn_samples(large, 50, 1)
    assert [len(b) for b in batches] == [50] * -(-SAMPLES // 50)
    flat = np.concatenate(batches)
    assert len(set(flat.tolist())) == len(flat)
    assert flat.min() < 2000 < 3000 < flat.max()
    assert [len(b) for b in drawn_samples([np.arange(7)], 10, 1)] == [7]
    assert not np.array_equal(flat, np.concatenate(drawn_samples(large, 50, 2)))


def test_a_run_stopped_between_evaluations_has_statistics_of_its_own_model() -> None:
    start = made("normed")
    run = federation(TASK.replace(engine="serial", statistics="recomputed", eval_every=2), start)
    run.advance()
    model = Result(run.history, run.server, run).model
    assert float((model(X) - updated(model, run).eval()(X)).abs().max()) < 1e-12


@pytest.mark.parametrize("policy", ["averaged", "local", "recomputed"])
def test_runs_in_one_batch_have_statistics_of_their_own(policy: str) -> None:
    """Two runs of other learning rates: in one batch each is what it is alone, in evaluations as well."""
    configs = [TASK.replace(engine="vmap", statistics=policy, lr=lr, holdout=0.3, batch_size=5) for lr in (0.1, 0.02)]
    start = made("maps")
    alone = [federation(c, start) for c in configs]
    results = [run.run() for run in alone]
    packed = Pack([federation(c, start) for c in configs]).run()
    for one, both in zip(results, packed, strict=True):
        for name, v in one.server.items():
            torch.testing.assert_close(getattr(both.server, name), v, rtol=1e-11, atol=1e-12)
        assert both.history[-1].test_loss == pytest.approx(one.history[-1].test_loss, abs=1e-11)
        assert both.history[-1].validation_accuracy == one.history[-1].validation_accuracy
        assert both.personal == one.personal
        kept = both.simulation.setup.task.model.state_dict(both.server.w)  # as a folder would have it
        theirs = one.simulation.setup.task.model.state_dict(one.server.w)
        assert all(torch.allclose(kept[n].double(), v.double(), rtol=1e-11, atol=1e-11) for n, v in theirs.items())
    assert results[0].history[-1].test_loss != pytest.approx(results[1].history[-1].test_loss, abs=1e-3)


@pytest.mark.parametrize("method", ["fedsmoo", "scaffold", "feddyn", "fedntd", "moon", "median", "fedacg", "fedadam"])
def test_methods_of_every_kind_agree_with_serial(method: str) -> None:
    start = made("maps")
    runs = [federation(TASK.replace(algorithm=method, engine=e, rounds=2), start) for e in ("serial", "vmap")]
    ends = [run.run().server for run in runs]
    for name, v in ends[0].items():
        torch.testing.assert_close(getattr(ends[1], name), v, rtol=1e-9, atol=1e-10)


def test_settings_around_a_method_leave_statistics_whole() -> None:
    """Coded messages, and what each costs: statistics travel as they are."""
    start = made("maps")
    plain = federation(TASK.replace(engine="serial", rounds=1), start)
    size = len(plain.server.statistics)
    plain.advance()
    model = plain.setup.task.model.layout.count
    assert plain.history[0].bytes_up == plain.history[0].bytes_down == 5 * 8 * (model + size)
    coded = federation(TASK.replace(engine="vmap", rounds=1, wire="fp16", local_optimizer="momentum"), start)
    coded.advance()
    assert coded.history[0].bytes_up == 5 * (2 * model + 8 * size)
    local = federation(TASK.replace(engine="vmap", rounds=1, statistics="local"), start)
    local.advance()
    assert local.history[0].bytes_up == 5 * 8 * model


@pytest.mark.parametrize("net", [Averaging, Centred])
def test_samples_that_see_each_other_see_no_padding(net: type[nn.Module]) -> None:
    """Equal lengths at once: the gradients of clients with shorter batches are those of ``serial``."""
    torch.manual_seed(2)
    start = net().double()
    for method in ("fedavg", "fedntd"):
        runs = [federation(TASK.replace(algorithm=method, engine=e), start) for e in ("serial", "vmap")]
        assert runs[0].setup.task.model.padding == "equal"
        ends = [run.run().server.w for run in runs]
        assert float((ends[0] - ends[1]).abs().max()) < 1e-12


def test_weights_of_samples_hide_none_from_statistics() -> None:
    """A sample that does not count in the loss is normalised by, as in ``serial``."""
    weights = torch.ones(N)
    weights[::3] = 0
    data = from_arrays(*DATA, weights=weights)
    start = made("normed")
    runs = [
        assemble(TASK.replace(engine=e), data=data, model=FlatModel(copy.deepcopy(start)), indices=CLIENTS)
        for e in ("serial", "vmap")
    ]
    runs.append(Simulation(runs[1].setup, Batched(runs[1].setup, **ENGINES["recorded"]), TASK, CLIENTS))
    ends = [run.run().server for run in runs]
    for end in ends[1:]:
        assert float((end.w - ends[0].w).abs().max()) < 1e-12
        assert float((end.statistics - ends[0].statistics).abs().max()) < 1e-12


def test_exports_hold_statistics_with_counts_as_whole_numbers() -> None:
    result = simulate(made("maps"), DATA, "fedavg", client_indices=CLIENTS, cohort=5, rounds=2, batch_size=4, lr=0.1)
    model, flat = result.model, result.simulation.setup.task.model
    assert model[2].num_batches_tracked.dtype == torch.int64
    assert model[2].num_batches_tracked > 0
    assert not model.training
    state = flat.state_dict(result.server.w)
    assert set(state) == set(maps().state_dict())
    assert torch.equal(state["2.running_var"], model[2].running_var)
    other = maps()
    other.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(other.eval()(X.float()), model(X.float()))
        right = (model(X[N:].float()).argmax(1) == Y[N:]).double().mean().item()
    assert right == pytest.approx(result.accuracy)


REFUSED = [
    ({"batch_size": 3}, r"client 0: the last batch of its 10 samples would be 1 sample.*such as 4,"),
    ({"batch_size": 1}, r"client 0: a batch would be 1 sample.*GroupNorm"),
    ({"privacy": "client", "weighted": False}, r"privacy=client does not hide running statistics"),
    ({"algorithm": "fedbn", "statistics": "recomputed"}, r"statistics is 'recomputed', but FedBN has them local"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_what_cannot_be_is_refused_in_a_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FedsmooError, match=message) as caught:
        federation(TASK.replace(**settings), made("normed"))
    assert "\n" not in str(caught.value)


def test_lone_samples_that_nobody_meets_are_no_matter() -> None:
    federation(TASK.replace(batch_size=3, local_steps=1, local_epochs=None), made("normed"))
    federation(TASK.replace(batch_size=3), made("maps").append(nn.Identity())[:5])  # maps of one sample have a variance


def test_statistics_of_a_model_without_some_are_refused() -> None:
    with pytest.raises(FedsmooError, match="statistics is 'local', but the model has none"):
        simulate("softmax", "digits", "fedavg", clients=4, cohort=2, rounds=1, statistics="local")
    with pytest.raises(FedsmooError, match=r"has no running statistics.*track_running_stats=True"):
        FlatModel(nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3, track_running_stats=False)))


def test_dropout_beside_batch_norm_draws_as_alone() -> None:
    torch.manual_seed(4)
    start = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, 3)).double()
    runs = [federation(TASK.replace(engine="serial"), start), federation(TASK.replace(engine="vmap"), start)]
    runs.append(Simulation(runs[1].setup, Batched(runs[1].setup, **ENGINES["recorded"]), TASK, CLIENTS))
    ends = [run.run().server for run in runs]
    for end in ends[1:]:
        assert float((end.w - ends[0].w).abs().max()) < 1e-12
        assert float((end.statistics - ends[0].statistics).abs().max()) < 1e-12


class Momentless(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3))


def test_what_vmap_cannot_do_is_left_to_serial() -> None:
    """Plain means over all batches (momentum=None) read a count on the host."""
    torch.manual_seed(0)
    start = Momentless().double()
    run = federation(TASK, start)
    assert run.engine.name == "serial"
    assert isinstance(run.engine, Serial)
    run.run()
    assert gap(run, literally(start, "averaged")[0]) < 1e-12
