"""The transcriptions themselves, against closed forms, hand calculations and each other where papers coincide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from .layers import Hyper, Model, Round, descend, norm
from .reference import BOXES, run, trace
from .task import cnn, gradients, small_task, weights_of

HYPER: Hyper = {"lr_server": 1.0, "beta1": 0.9, "beta2": 0.99, "tau": 0.05, "mu": 0.2, "alpha": 0.3, "rho": 0.1}
HYPER |= {"beta": 4.0, "r": 0.1, "lam": 0.5, "lr_own": 0.1, "steps_own": 2, "gamma": 0.4, "rho_server": 0.1}
HYPER |= {"eps": 0.01, "q": 0.5, "head_share": 0.6, "trim": 0.3, "attackers": 0.3, "nu": 1e-6, "steps": 3, "bound": 3.0}
M = 4


def model(*values: float) -> Model:
    """A model of two layers, so that a norm taken layer by layer would show."""
    half = len(values) // 2
    return {
        "a": torch.tensor(values[:half], dtype=torch.float64),
        "b": torch.tensor(values[half:], dtype=torch.float64),
    }


def quadratic_grad(w: Model, batch: tuple[Model, Model]) -> Model:
    """The gradient of 1/2 sum curvature (w - centre)^2; a batch is (curvature, centre)."""
    curvature, centre = batch
    return {name: curvature[name] * (w[name] - centre[name]) for name in w}


def quadratics(seed: int = 1) -> list[tuple[Model, Model]]:
    rng = np.random.default_rng(seed)
    return [(model(*(0.5 + rng.random(4))), model(*rng.standard_normal(4))) for _ in range(M)]


def everyone(rounds: int, lr: float, K: int, clients: list[Any]) -> list[Round]:
    batches = {i: [client] * K for i, client in enumerate(clients)}
    return [Round(lr, list(range(len(clients))), batches) for _ in range(rounds)]


def partial(rounds: int = 5, seed: int = 3) -> list[Round]:
    """Half of the clients at a time, with 1 to 4 steps each and a falling lr."""
    rng, clients = np.random.default_rng(seed), quadratics()
    result = []
    for t in range(rounds):
        cohort = sorted(int(i) for i in rng.choice(M, 2, replace=False))
        result.append(Round(0.2 * 0.9**t, cohort, {i: [clients[i]] * int(rng.integers(1, 5)) for i in cohort}))
    return result


def apart(left: list[Model], right: list[Model]) -> float:
    return max(norm({k: a[k] - b[k] for k in a}) for a, b in zip(left, right, strict=True))


W0 = model(1.0, -2.0, 0.5, 3.0)


def boxes_agree(one: tuple[str, Hyper], other: tuple[str, Hyper], rounds: list[Round]) -> None:
    left = run(one[0], quadratic_grad, W0, rounds, M, HYPER | one[1])
    right = run(other[0], quadratic_grad, W0, rounds, M, HYPER | other[1])
    assert apart(left, right) < 1e-12


ALL_OFF = {"regularise": False, "sam": False, "correct": False}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("FedCM", {"alpha": 1.0}), ("FedAvg", {})),
        (("MoFedSAM", {"rho": 0.0}), ("FedCM", {})),
        (("MoFedSAM", {"alpha": 1.0}), ("FedSAM", {})),
        (("FedSAM", {"rho": 0.0}), ("FedAvg", {})),
        (("FedGamma", {"rho": 0.0}), ("SCAFFOLD", {})),
        (("FedProx", {"mu": 0.0}), ("FedAvg", {})),
        (("FedAvgM", {"beta1": 0.0, "lr_server": 0.7}), ("FedAvg", {"lr_server": 0.7})),
        (("FedLESAM", {"rho": 0.0}), ("FedAvg", {})),
        (("FedLESAMS", {"rho": 0.0}), ("SCAFFOLD", {})),
        (("FedLESAMD", {"rho": 0.0}), ("FedDyn", {})),
        (("FedSMOO", ALL_OFF), ("FedAvg", {})),
        (("FedSMOO", {"sam": False}), ("FedDyn", {})),
        (("FedSMOO", {"r": 0.0}), ("FedDyn", {})),
        (("FedSMOO", {"regularise": False, "correct": False}), ("FedSAM", {})),
        (("FedSpeed", {"form": "released", "rho": 0.0}), ("FedDyn", {})),
        (("FedSpeed", {"form": "released"}), ("FedSMOO", {"correct": False})),
        (("FedACG", {"lam": 0.0}), ("FedProx", {})),
        (("FedACG", {"mu": 0.0}), ("FedNSAM", {"rho": 0.0})),
        (("FedNSAM", {"lam": 0.0}), ("FedSAM", {})),
        (("FedGloSS", {"rho": 0.0, "rho_server": 0.0}), ("FedDyn", {})),
        (("FedSWA", {"rho": 1.0}), ("FedAvg", {})),
        (("Ditto", {}), ("FedAvg", {})),
        (("TrimmedMean", {"trim": 0.0}), ("FedAvg", {})),
        (("NormBounded", {"bound": 1e9}), ("FedAvg", {})),
        (("MultiKrum", {"attackers": 0.0}), ("FedAvg", {})),
        (("RFA", {"nu": 1e9}), ("FedAvg", {})),
        (("SCAFFOLD", {"relaxed": 0.0}), ("SCAFFOLD", {})),
        (("FedDyn", {"weights": dict.fromkeys(range(M), 3.0)}), ("FedDyn", {})),
    ],
)
def test_methods_coincide_where_their_papers_say_so(one: tuple[str, Hyper], other: tuple[str, Hyper]) -> None:
    boxes_agree(one, other, partial())


def test_fedspeed_servers_agree_when_everybody_takes_part() -> None:
    """mean(w_i - beta lam_i) is mean(w_i) - beta mean(lam_i): the paper's server is FedDyn's at full participation."""
    boxes_agree(("FedSpeed", {"rho": 0.0}), ("FedDyn", {}), everyone(4, 0.2, 3, quadratics()))


def test_fedspeed_alpha_zero_ignores_the_perturbed_gradient() -> None:
    boxes_agree(("FedSpeed", {"alpha": 0.0, "rho": 9.0}), ("FedSpeed", {"rho": 0.0}), partial())


def test_options_do_something() -> None:
    """The coincidences above would hold vacuously if an option were ignored."""
    rounds = partial()
    for method, change in [
        ("FedSMOO", {"perturbation": "released"}),
        ("FedSMOO", {"correct": False}),
        ("FedSpeed", {"form": "released"}),
        ("FedNSAM", {"form": "released"}),
        ("FedDC", {"form": "paper"}),
        ("SCAFFOLD", {"relaxed": 0.2}),
        ("FedDyn", {"clip": 0.5}),
        ("FedAvg", {"weights": {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}}),
        ("FedAvg", {"weight_decay": 0.1}),
    ]:
        left = run(method, quadratic_grad, W0, rounds, M, HYPER)
        assert apart(left, run(method, quadratic_grad, W0, rounds, M, HYPER | change)) > 1e-4, (method, change)


def fixed_point(clients: list[tuple[Model, Model]], lr: float, K: int, mu: float) -> tuple[Model, Model]:
    """Where FedAvg (mu = 0) or FedProx stops, and the true optimum.

    K steps of gradient descent on 1/2 a (v - b)^2 + mu/2 (v - w)^2 from w move it by c (b - w) with
    c = (1 - (1 - lr (a + mu))^K) a / (a + mu), so the mean stops where sum c_i (b_i - w) = 0.
    """
    stop, optimum = {}, {}
    for name in W0:
        a = torch.stack([client[0][name] for client in clients])
        b = torch.stack([client[1][name] for client in clients])
        c = (1 - (1 - lr * (a + mu)) ** K) * a / (a + mu)
        stop[name] = (c * b).sum(0) / c.sum(0)
        optimum[name] = (a * b).sum(0) / a.sum(0)
    return stop, optimum


@pytest.mark.parametrize(("method", "mu"), [("FedAvg", 0.0), ("FedProx", 0.2)])
def test_drifting_methods_stop_off_the_optimum_where_theory_says(method: str, mu: float) -> None:
    clients = quadratics()
    stop, optimum = fixed_point(clients, 0.3, 6, mu)
    last = run(method, quadratic_grad, W0, everyone(150, 0.3, 6, clients), M, HYPER)[-1]
    assert apart([last], [stop]) < 1e-10
    assert apart([last], [optimum]) > 1e-2


@pytest.mark.parametrize(("method", "lr"), [("SCAFFOLD", 0.1), ("FedDyn", 0.1), ("FedSpeed", 0.1)])
def test_correcting_methods_reach_the_optimum(method: str, lr: float) -> None:
    clients = quadratics()
    _, optimum = fixed_point(clients, lr, 6, 0.0)
    last = run(method, quadratic_grad, W0, everyone(300, lr, 6, clients), M, HYPER | {"rho": 0.0})[-1]
    assert apart([last], [optimum]) < 1e-8


@pytest.mark.parametrize(
    ("method", "server", "client"),
    [
        ("FedDyn", "lam", "lam_i"),
        ("FedSMOO", "lam", "lam_i"),
        ("FedLESAMD", "lam", "lam_i"),
        ("SCAFFOLD", "c", "c_i"),
        ("FedGamma", "c", "c_i"),
        ("FedLESAMS", "c", "c_i"),
    ],
)
def test_server_vector_is_the_mean_of_all_clients_vectors(method: str, server: str, client: str) -> None:
    """Over all m clients, those never met counting as zero; for equal weights this holds with any cohorts."""
    for state in trace(method, quadratic_grad, W0, partial(), M, HYPER):
        total = {name: sum(v[name] for v in state[client].values()) / M for name in W0}
        assert apart([state[server]], [total]) < 1e-12


def test_feddc_stops_at_the_optimum_when_everybody_takes_part() -> None:
    """There w_i + h_i - w = 0 and -c_i + c = -g_i at every client: nobody moves, and the mean gradient is zero."""
    clients = quadratics()
    _, optimum = fixed_point(clients, 0.05, 2, 0.0)
    last = run("FedDC", quadratic_grad, W0, everyone(400, 0.05, 2, clients), M, HYPER)[-1]
    assert apart([last], [optimum]) < 1e-8


def test_pfedme_s_own_models_minimise_the_penalised_losses() -> None:
    """With steps enough the own model of 1/2 a (t - b)^2 + lam/2 (t - w_i)^2 is (a b + lam w_i) / (a + lam)."""
    clients, h = quadratics(), HYPER | {"lam": 2.0, "lr_own": 0.2, "steps_own": 200}
    state = trace("PFedMe", quadratic_grad, W0, everyone(1, 0.1, 1, clients), M, h)[0]
    for i, (a, b) in enumerate(clients):
        for name in W0:
            expected = (a[name] * b[name] + 2.0 * W0[name]) / (a[name] + 2.0)
            torch.testing.assert_close(state["theta"][i][name], expected, rtol=0, atol=1e-12)


def test_fedcm_momentum_is_an_average_of_past_gradients() -> None:
    """With K = 1: D_t = alpha sum_j (1 - alpha)^j gbar_{t-j}."""
    clients, a = quadratics(), HYPER["alpha"]
    states = trace("FedCM", quadratic_grad, W0, everyone(5, 0.2, 1, clients), M, HYPER)
    models = [W0] + [state["w"] for state in states]
    for name in W0:
        past = [sum(quadratic_grad(w, client)[name] for client in clients) / M for w in models[:5]]
        expected = a * sum((1 - a) ** (4 - t) * g for t, g in enumerate(past))
        torch.testing.assert_close(states[-1]["D"][name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["FedAvgM", "FedAdagrad"])
def test_server_optimisers_are_those_of_torch(method: str) -> None:
    """Fed with -D, SGD with momentum is FedAvgM and Adagrad started at tau^2 is FedAdagrad with beta1 = 0."""
    h = HYPER | {"lr_server": 0.3} | ({"beta1": 0.0} if method == "FedAdagrad" else {})
    rounds = partial(6)
    models = [W0, *run(method, quadratic_grad, W0, rounds, M, h)]
    live = [p.clone().requires_grad_() for p in W0.values()]
    tau = h["tau"]
    if method == "FedAvgM":
        opt: torch.optim.Optimizer = torch.optim.SGD(live, lr=0.3, momentum=0.9)
    else:
        opt = torch.optim.Adagrad(live, lr=0.3, initial_accumulator_value=tau**2, eps=tau)
    for rnd, before, after in zip(rounds, models, models[1:], strict=False):
        moved = run("FedAvg", quadratic_grad, before, [rnd], M, {})[0]
        for p, name in zip(live, W0, strict=True):
            p.grad = before[name] - moved[name]
        opt.step()
        assert apart([{name: p.detach() for name, p in zip(W0, live, strict=True)}], [after]) < 1e-12


def test_adam_and_yogi_first_steps_by_hand() -> None:
    """One client at distance D from w after its round: v starts at tau^2, Yogi moves it by the sign of D^2 - tau^2."""
    h = HYPER | {"tau": 0.5, "beta1": 0.9, "beta2": 0.75, "lr_server": 2.0}
    # Unit curvature, lr 1, one step: w_1 is the centre, so D = centre - w0 = (1, 0.25).
    rounds = [Round(1.0, [0], {0: [(model(1.0, 1.0), model(1.0, 0.25))]})]
    adam = trace("FedAdam", quadratic_grad, model(0.0, 0.0), rounds, 1, h)[0]
    yogi = trace("FedYogi", quadratic_grad, model(0.0, 0.0), rounds, 1, h)[0]
    adam_v = [0.75 * 0.25 + 0.25 * 1.0, 0.75 * 0.25 + 0.25 * 0.0625]
    yogi_v = [0.25 + 0.25 * 1.0, 0.25 - 0.25 * 0.0625]
    for state, v in ((adam, adam_v), (yogi, yogi_v)):
        expected = [2.0 * 0.1 * D / (second**0.5 + 0.5) for D, second in zip((1.0, 0.25), v, strict=True)]
        assert apart([state["v"]], [model(*v)]) < 1e-15
        assert apart([state["w"]], [model(*expected)]) < 1e-15


def one_client_at_a_time(cohorts: list[int]) -> list[Round]:
    """f = w^2 / 2 for everyone, lr 1/2, one step: each round halves w where nothing perturbs it."""
    return [Round(0.5, [i], {i: [(model(1.0, 1.0), model(0.0, 0.0))]}) for i in cohorts]


def test_fedlesam_perturbs_by_what_the_client_received_last_time() -> None:
    """4 -> 2 (client 0), -> 1 (client 1's first contact), then client 0: direction (4 - 1), g = 1 + rho, -> 0.45."""
    w0 = model(4.0, 0.0)
    values = [float(w["a"]) for w in run("FedLESAM", quadratic_grad, w0, one_client_at_a_time([0, 1, 0]), 2, HYPER)]
    assert values == pytest.approx([2.0, 1.0, 0.45], abs=1e-12)


def test_relaxed_start_moves_away_from_the_clients_last_model() -> None:
    """4 -> 2 (client 0) -> 1 (client 1), then client 0 starts at 1 + 0.1 (1 - 2) = 0.9 and ends at 0.45."""
    w0, h = model(4.0, 0.0), HYPER | {"relaxed": 0.1}
    values = [float(w["a"]) for w in run("FedAvg", quadratic_grad, w0, one_client_at_a_time([0, 1, 0]), 2, h)]
    assert values == pytest.approx([2.0, 1.0, 0.45], abs=1e-12)


def test_fedsmoo_first_round_by_hand() -> None:
    """K = 1: mu_1 = s_hat, so s_tilde = 0 and the paper's s stays zero, while the released s has norm r."""
    rounds = everyone(1, 0.2, 1, quadratics())
    paper = trace("FedSMOO", quadratic_grad, W0, rounds, M, HYPER)[0]
    released = trace("FedSMOO", quadratic_grad, W0, rounds, M, HYPER | {"perturbation": "released"})[0]
    assert norm(paper["s"]) == 0.0
    assert norm(released["s"]) == pytest.approx(HYPER["r"], rel=1e-9)
    assert all(norm(mu) == pytest.approx(HYPER["r"], rel=1e-9) for mu in paper["mu_i"].values())
    assert apart([paper["w"]], [released["w"]]) == 0.0


def test_fedsmoo_two_steps_on_a_line() -> None:
    """One client, f = w^2/2 on one axis from w = 4, r = 1, beta = 2, lr = 1/2, K = 2, by hand.

    k=0: s_hat = 1, mu = 1, d = 5, w_1 = 1.5. k=1: 1.5 - 1 > 0, s_hat = 1, mu = 2, d = 2.5 + (1.5 - 4)/2 = 1.25,
    w_2 = 0.875. s_tilde = 2 - 1 = 1, s = 1. lam = 3.125/2 = 1.5625; w = 0.875 - 2 * 1.5625 = -2.25.
    Round 2, same client: k=0: -2.25 - 2 - 1 < 0, s_hat = -1, mu = 2 - 1 - 1 = 0, d = -3.25 - 1.5625 = -4.8125,
    w_1 = 0.15625. k=1: 0.15625 - 0 - 1 < 0, s_hat = -1, mu = -2, d = -0.84375 - 1.5625 + 2.40625/2 = -1.203125,
    w_2 = 0.7578125. s_tilde = -1, s = -1. lam = 1.5625 - 3.0078125/2 = 0.05859375; w = 0.7578125 - 0.1171875.
    """
    batch = (model(1.0, 1.0), model(0.0, 0.0))
    rounds = everyone(2, 0.5, 2, [batch])
    first, second = trace("FedSMOO", quadratic_grad, model(4.0, 0.0), rounds, 1, {"r": 1.0, "beta": 2.0})
    assert float(first["w"]["a"]) == pytest.approx(-2.25, abs=1e-10)
    assert float(first["s"]["a"]) == pytest.approx(1.0, abs=1e-10)
    assert float(second["w"]["a"]) == pytest.approx(0.640625, abs=1e-10)
    assert float(second["s"]["a"]) == pytest.approx(-1.0, abs=1e-10)
    assert float(second["mu_i"][0]["a"]) == pytest.approx(-2.0, abs=1e-10)


def test_descend_clips_the_whole_model_and_decays_after() -> None:
    """||(3, 4)|| = 5: a bound of 2.5 halves it across both layers; the released scope leaves the prox term alone."""
    w, d, prox = model(1.0, 1.0), model(3.0, 0.0), model(0.0, 4.0)
    h = {"clip": 2.5, "weight_decay": 0.5}
    assert apart([descend(w, d, prox, 0.1, h)], [model(1 - 0.1 * (1.5 + 0.5), 1 - 0.1 * (2.0 + 0.5))]) < 1e-15
    loose = descend(w, d, prox, 0.1, h | {"clip_scope": "released"})
    assert apart([loose], [model(1 - 0.1 * (2.5 + 0.5), 1 - 0.1 * (4.0 + 0.5))]) < 1e-15


def test_weighted_mean() -> None:
    rounds = [Round(1.0, [0, 1], {i: [(model(1.0, 1.0), model(float(i), 3.0 * i))] for i in (0, 1)})]
    w = run("FedAvg", quadratic_grad, model(5.0, 5.0), rounds, 2, {"weights": {0: 1.0, 1: 3.0}})[0]
    assert apart([w], [model(0.75, 2.25)]) < 1e-15


def test_network_gradient_is_that_of_finite_differences() -> None:
    net, task = cnn(), small_task()
    loss_grad, w = gradients(net), weights_of(net)
    batch = (task.x[:7], task.y[:7])
    grads = loss_grad(w, batch)
    rng, eps = np.random.default_rng(5), 1e-6
    way = {name: torch.from_numpy(rng.standard_normal(tuple(p.shape))) for name, p in w.items()}

    def loss(sign: float) -> float:
        moved = {name: p + sign * eps * way[name] for name, p in w.items()}
        return float(torch.nn.functional.cross_entropy(torch.func.functional_call(net, moved, (batch[0],)), batch[1]))

    slope = sum(float((grads[name] * way[name]).sum()) for name in w)
    assert slope == pytest.approx((loss(1.0) - loss(-1.0)) / (2 * eps), rel=1e-6)


@pytest.mark.parametrize("method", sorted(BOXES))
def test_every_box_lowers_the_loss_of_the_network(method: str) -> None:
    """Also: all of them run with unequal numbers of steps. Adaptive servers get a step size that suits them."""
    net, task = cnn(), small_task()
    rounds = []
    for t in range(8):
        cohort = [t % 6, (t + 2) % 6, (t + 5) % 6]
        batches = {}
        for i in cohort:
            rows = torch.tensor(task.clients[i])
            batches[i] = [(task.x[part], task.y[part]) for part in rows.split(4)]
        rounds.append(Round(0.1, cohort, batches))
    adaptive = method in ("FedAdam", "FedYogi", "FedAdagrad")
    h = HYPER | {"lr_server": 0.1 if adaptive else 1.0, "alpha": 0.5, "rho": 0.05, "r": 0.05, "beta1": 0.5}

    def loss(w: Model, rows: Any = slice(None)) -> float:
        out = torch.func.functional_call(net, w, (task.x[rows],))
        return float(torch.nn.functional.cross_entropy(out, task.y[rows]))

    h |= {"labels": {i: [int((task.y[list(r)] == c).sum()) for c in range(3)] for i, r in enumerate(task.clients)}}
    h |= {"loss_of": lambda w, i: loss(w, list(task.clients[i]))}
    last = run(method, gradients(net), weights_of(net), rounds, 6, h)[-1]

    assert loss(last) < 0.9 * loss(weights_of(net))
