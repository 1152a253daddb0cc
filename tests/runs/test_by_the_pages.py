"""Whole runs against a plain loop written from the pages alone: settings beside each other, and what is recorded."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsmoo

CLIENTS = [range(33), range(33, 50), range(50, 57), [*range(57, 80), 3, 40]]  # of unequal size; two samples are shared
ROUNDS, LR, DECAY = 4, 0.05, 0.7
SETTINGS: dict[str, Any] = {"lr": LR, "lr_decay": DECAY, "weight_decay": 0.1, "clip": 0.5}
MU = [0.25, 0.5, 0.5, 0.3]  # warmup:2:linear:0.5:0.1:4


def samples() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(100, 6, generator=rng, dtype=torch.float64)
    y = (x[:, :4] + torch.randn(100, 4, generator=rng)).argmax(1)
    return x[:80], y[:80], x[80:], y[80:]


def network() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    rng = torch.Generator().manual_seed(3)
    for p in net.parameters():
        nn.init.normal_(p, std=0.4, generator=rng)
    return net


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    a, b, c, d = w.split([30, 5, 20, 4])
    return F.cross_entropy(F.linear(torch.tanh(F.linear(x, a.view(5, 6), b)), c.view(4, 5), d), y)


HEAD = torch.arange(59) >= 35


def share(kind: str, x: float) -> float:
    """The share of the learning rate where a part x of the round's steps is done; ``end`` is 0.1, ``cycles`` 1."""
    a = {"constant": 1, "linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2, "cyclic": abs(1 - 2 * x)}[kind]
    return 0.1 + 0.9 * a


def moved(kind: str, d: Tensor, kept: dict[str, Any]) -> Tensor:
    """What a local optimiser makes of a direction, as in torch.optim; FedRep has one for each part."""
    if kind in ("momentum", "nesterov"):
        kept["m"] = 0.9 * kept.get("m", 0) + d
        return kept["m"] if kind == "momentum" else d + 0.9 * kept["m"]
    if kind in ("adam", "adamw"):
        t = kept["t"] = kept.get("t", 0) + 1
        m = kept["m"] = 0.9 * kept.get("m", 0) + 0.1 * d
        v = kept["v"] = 0.999 * kept.get("v", 0) + 0.001 * d * d
        return m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    return d


def direction(method: str, w: Tensor, g: Any, sent: dict[str, Tensor], me: dict[str, Tensor], now: Any) -> Tensor:
    """d + q of the method's page, before the clip; ``now`` is (round, part of the steps done, learning rate)."""
    number, part, lr = now
    if method == "fedprox":
        return g(w) + MU[number] * (w - sent["w"])
    if method == "scaffold":
        return g(w) - me["c"] + sent["c"]
    if method == "fedcm":
        return 0.1 * g(w) + 0.9 * sent["D"]
    if method == "ditto":
        me["v"] = me["v"] - lr * (g(me["v"]) + me["v"] - sent["w"])
    if method == "pfedme":
        for _ in range(5):
            me["theta"] = me["theta"] - 0.1 * (g(me["theta"]) + 15 * (me["theta"] - w))
        return 15 * (w - me["theta"])
    if method == "fedrep":
        me["M"] = HEAD if part < 0.8 - 1e-9 else ~HEAD
        return me["M"] * g(w)
    return g(w)


def client(method: str, sent: dict[str, Tensor], me: dict[str, Any], batches: list, number: int, s: dict) -> dict:
    """A client's round: its last model, losses and the sum of its learning rates; ``me`` is changed."""
    optimizer, schedule = s.get("local_optimizer", "sgd"), s.get("local_schedule")
    if s.get("state") != "stays":
        me["kept"] = {}
    me["theta"] = sent["w"]
    w = torch.where(HEAD, me["v"], sent["w"]) if method == "fedrep" else sent["w"]
    w = w + s.get("relaxed", 0) * (w - me.get("last", w))
    losses, rates = [], 0.0
    for k, (x, y) in enumerate(batches):
        lr = LR * DECAY**number * (share(schedule, k / len(batches)) if schedule else 1)
        rates += lr
        losses.append(loss(me["theta"] if method == "pfedme" else w, x, y))
        g = torch.func.grad(lambda v, x=x, y=y: loss(v, x, y))
        d = direction(method, w, g, sent, me, (number, k / len(batches), lr))
        d = d * min(1, 0.5 / d.norm())
        kept = me["kept"].setdefault("head" if method == "fedrep" and me["M"][-1] else "body", {})
        if optimizer == "adamw":
            step = moved(optimizer, d, kept) + 0.1 * w
        else:
            step = moved(optimizer, d + 0.1 * w, kept)
        w = w - lr * step * (me["M"] if method == "fedrep" else 1)
    me["last"] = w
    return {"w": w, "loss": sum(losses) / len(losses), "rates": rates, "steps": len(batches)}


def by_the_pages(method: str, plans: list, s: dict) -> tuple[Tensor, list[dict[str, float]], dict[int, dict]]:
    """The model after the rounds, a record for each of them, and the clients' own vectors."""
    w, zero = torch.cat([p.detach().flatten() for p in network().parameters()]), torch.zeros(59, dtype=torch.float64)
    srv, own, records = {"w": w, "c": zero, "D": zero}, {}, []
    x, y, x_test, y_test = samples()
    for number, plan in enumerate(plans):
        w, ends, sizes, extra = srv["w"], [], [], []
        for i, batches in plan:
            me = own.setdefault(i, {"c": zero, "v": w, "kept": {}})
            end = client(method, srv, me, [(x[b], y[b]) for b in batches], number, s)
            if method == "scaffold":
                extra.append((w - end["w"]) / end["rates"] - srv["c"])
                me["c"] = me["c"] + extra[-1]
            if method == "qfedavg":
                lr = end["rates"] / end["steps"]
                f, d = loss(w, x[list(CLIENTS[i])], y[list(CLIENTS[i])]) + 1e-10, (w - end["w"]) / lr
                extra.append(torch.cat([f * d, (d @ d + f / lr)[None]]))
            if method == "fedrep":
                me["v"] = end["w"]
            ends.append(end)
            sizes.append(len(CLIENTS[i]) if s.get("weighted") else 1)
        mean = [n / sum(sizes) for n in sizes]
        move = sum(p * (e["w"] - w) for p, e in zip(mean, ends, strict=True))
        both = sum(p * e for p, e in zip(mean, extra, strict=True)) if extra else zero
        srv = {**srv, "w": w + (move * ~HEAD if method == "fedrep" else move)}
        if method == "qfedavg":
            srv["w"] = w - both[:-1] / both[-1]
        if method == "scaffold":
            srv["c"] = srv["c"] + len(ends) / len(CLIENTS) * both
        if method == "fedcm":
            srv["D"] = -move / sum(p * e["rates"] for p, e in zip(mean, ends, strict=True))
        plain = [(e["loss"], (e["w"] - w).square().sum(), (e["w"] - srv["w"]).square().sum()) for e in ends]
        found = {name: float(sum(v)) / len(ends) for name, v in zip(NAMES, zip(*plain, strict=True), strict=True)}
        vectors = 35 if method == "fedrep" else 59
        single = (method == "qfedavg") + ("local_schedule" in s)
        found["bytes_up"] = 8 * len(ends) * (vectors * (2 if method == "scaffold" else 1) + single)
        found["bytes_down"] = 8 * len(ends) * vectors * (2 if method in ("scaffold", "fedcm") else 1)
        records.append({**found, "lr": LR * DECAY**number, "test_loss": float(loss(srv["w"], x_test, y_test))})
    return srv["w"], records, own


NAMES = ("train_loss", "drift", "drift_after")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"weighted": True}),
    ("fedavg", {"local_steps": 7, "local_optimizer": "nesterov", "state": "stays", "local_schedule": "cyclic"}),
    ("fedprox", {"mu": "warmup:2:linear:0.5:0.1:4", "local_optimizer": "momentum", "weighted": True}),
    ("scaffold", {"local_optimizer": "adam", "state": "stays", "local_schedule": "cosine", "relaxed": 0.3}),
    ("scaffold", {"local_optimizer": "adamw", "weighted": True, "local_schedule": "linear"}),
    ("fedcm", {"weighted": True, "local_schedule": "linear", "relaxed": 0.2}),
    ("qfedavg", {"weighted": True, "local_schedule": "cosine"}),
    ("ditto", {"local_schedule": "linear", "local_optimizer": "momentum", "state": "stays"}),
    ("pfedme", {"local_optimizer": "nesterov", "local_schedule": "cyclic", "weighted": True}),
    ("fedrep", {"local_optimizer": "adamw", "state": "stays", "relaxed": 0.3}),
    ("fedrep", {"local_optimizer": "momentum", "weighted": True, "local_schedule": "linear"}),
]
OWN = {"scaffold": ("c",), "ditto": ("v",), "pfedme": ("theta",), "fedrep": ("v",)}


@pytest.mark.filterwarnings("ignore:.*has personal models")
@pytest.mark.parametrize("engine", ["serial", "auto"])
@pytest.mark.parametrize(("method", "settings"), CASES, ids=[f"{m}-{'-'.join(map(str, s))}" for m, s in CASES])
def test_a_run_is_what_the_pages_say(method: str, settings: dict[str, Any], engine: str) -> None:
    length = {} if "local_steps" in settings else {"local_epochs": 2}
    run = fedsmoo.simulate(
        network(), samples(), method, client_indices=[list(c) for c in CLIENTS], cohort=3, rounds=ROUNDS, batch_size=8,
        dtype="float64", device="cpu", engine=engine, progress=False, **SETTINGS, **length, **settings,
    )  # fmt: skip
    drawn = [run.simulation.draw_round(number) for number in range(ROUNDS)]
    plans = [
        [(i, [b[:n] for b, n in zip(plan.index[:, c], plan.count[:, c], strict=True) if n]) for c, i in enumerate(who)]
        for who, plan in drawn
    ]
    w, records, own = by_the_pages(method, plans, settings)
    torch.testing.assert_close(run.server.w, w, rtol=1e-10, atol=1e-12)
    for found, expected in zip(run.history, records, strict=True):
        assert {name: getattr(found, name) for name in expected} == pytest.approx(expected, rel=1e-10)
    for i, name in [(i, name) for i in own for name in OWN.get(method, ())]:
        torch.testing.assert_close(run.client_state(i)[name], own[i][name], rtol=1e-10, atol=1e-12)


def test_batches_are_passes_in_new_orders_whose_last_one_is_short() -> None:
    """Epochs are whole passes; steps are cut from as many passes as they need, short batches included."""
    for length, passes in ({"local_epochs": 2}, 2), ({"local_steps": 7}, None):
        run = fedsmoo.simulate(
            network(), samples(), "fedavg", client_indices=[list(c) for c in CLIENTS], cohort=4, rounds=1, batch_size=8,
            device="cpu", engine="serial", progress=False, **length,
        )  # fmt: skip
        who, plan = run.simulation.draw_round(0)
        for c, i in enumerate(who):
            counts = [int(n) for n in plan.count[:, c] if n]
            one = [8] * (len(CLIENTS[i]) // 8) + [len(CLIENTS[i]) % 8] * (len(CLIENTS[i]) % 8 > 0)
            assert counts == (one * passes if passes else (one * 7)[:7])
            first = [int(j) for b, n in zip(plan.index[: len(one), c], counts, strict=False) for j in b[:n]]
            assert sorted(first) == sorted(CLIENTS[i])
