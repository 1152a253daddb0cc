"""Clients that are hostile, late, forgetful or twice there, and servers that start again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedsmoo.core import FedsmooError
from fedsmoo.deploy.client import Recipe
from fedsmoo.deploy.flower import FlowerStrategy, client_app
from fedsmoo.deploy.server import Coordinator
from fedsmoo.deploy.settings import Federation

from .fake import FakeGrid
from .replay import replayed, reports
from .test_methods import SMALL, federate

CONFIG = SMALL.replace(algorithm="fedsmoo", clients=5, cohort=5, rounds=2)
HOSTILE = 2  # the client that misbehaves


def same(a, b) -> bool:
    return all(torch.equal(v, getattr(b, n)) for n, v in a.items())


def edit(reply: Message, facts=None, numbers=None, arrays=None, drop=()) -> Message:
    """A reply with some of its entries changed; ``arrays`` are exchanged one by one."""
    content = reply.content
    up = {n: a for n, a in content["up"].items() if n not in drop} | (arrays or {})
    merged = {**content["facts"], **(facts or {})}
    parts = {
        "facts": ConfigRecord({k: v for k, v in merged.items() if v is not None}),
        "numbers": MetricRecord({**content["numbers"], **(numbers or {})}),
        "up": ArrayRecord(up),
    }
    reply.content = RecordDict(parts)
    return reply


def vector(reply: Message, change: Callable[[np.ndarray], np.ndarray], name: str = "w") -> Message:
    return edit(reply, arrays={name: Array(change(reply.content["up"][name].numpy()))})


def with_value(v: np.ndarray, value: float) -> np.ndarray:
    v = v.copy()
    v[7] = value
    return v


def lying_header(a: Array, shape: str) -> Array:
    """The same bytes under a header that promises far more."""
    data = a.data.replace(b"(650,), }", shape.encode())
    assert len(data) == len(a.data)
    assert data != a.data
    return Array(a.dtype, a.shape, a.stype, data)


def failed(reply: Message, code: int = 5) -> Message:
    out = Message(Error(code=code, reason="node went away"), reply_to=reply)
    out.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return out


# name -> (what becomes of the reply, the reason under which it is counted)
BAD: dict[str, tuple[Callable[[Message], Message | list[Message] | None], str]] = {
    "missing": (lambda r: None, "missing"),
    "error reply": (failed, "error"),
    "past its time": (lambda r: failed(r, 3), "missing"),
    "nan": (lambda r: vector(r, lambda v: with_value(v, math.nan)), "not finite"),
    "infinity": (lambda r: vector(r, lambda v: with_value(v, -math.inf)), "not finite"),
    "nan in the other vector": (lambda r: vector(r, lambda v: with_value(v, math.nan), "s_tilde"), "not finite"),
    "too large": (lambda r: vector(r, lambda v: 1e6 * v), "out of proportion"),
    "the other vector too large": (lambda r: vector(r, lambda v: 1e6 * v, "s_tilde"), "out of proportion"),
    "too short": (lambda r: vector(r, lambda v: v[:-1]), "wrong shape"),
    "two axes": (lambda r: vector(r, lambda v: v.reshape(65, 10)), "wrong shape"),
    "double precision": (lambda r: vector(r, lambda v: v.astype(np.float64)), "wrong type"),
    "whole numbers": (lambda r: vector(r, lambda v: v.astype(np.int32)), "wrong type"),
    "other byte order": (lambda r: vector(r, lambda v: v.astype(">f4")), "wrong type"),
    "vector left out": (lambda r: edit(r, drop=("s_tilde",)), "wrong names"),
    "vector too many": (lambda r: edit(r, arrays={"x": r.content["up"]["w"]}), "wrong names"),
    "no vectors": (lambda r: edit(r, drop=("w", "s_tilde")), "wrong names"),
    "not an array": (
        lambda r: edit(r, arrays={"w": Array("float32", (650,), "numpy.ndarray", b"x")}), "unreadable bytes"
    ),
    "a pickle": (
        lambda r: edit(r, arrays={"w": Array("object", (1,), "numpy.ndarray", b"\x80\x04K\x01.")}), "unreadable bytes"
    ),
    "header of a petabyte": (
        lambda r: edit(r, arrays={"w": lying_header(r.content["up"]["w"], "(9**9,) }")}), "unreadable bytes"
    ),
    "last round's": (lambda r: edit(r, {"number": -1}), "stale round"),
    "next round's": (lambda r: edit(r, {"number": r.content["facts"]["number"] + 1}), "stale round"),
    "another federation's": (lambda r: edit(r, {"session": "other-123"}), "another federation"),
    "another client's": (lambda r: edit(r, {"client": 0}), "wrong client"),
    "without its round": (lambda r: edit(r, {"number": None}), "incomplete"),
    "loss not a number": (lambda r: edit(r, numbers={"loss": math.nan}), "wrong metrics"),
    "more samples than it has": (lambda r: edit(r, numbers={"samples": 10**9}), "wrong counts"),
    "fewer steps than asked": (lambda r: edit(r, numbers={"steps": 0}), "wrong counts"),
}  # fmt: skip


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The same rounds with the client absent."""
    folder = tmp_path_factory.mktemp("without")
    return replayed(CONFIG, [{"accepted": [0, 1, 3, 4], "skipped": None}] * 2), folder


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_changes_nothing_but_the_counters(name, without, tmp_path):
    twist, reason = BAD[name]
    grid = FakeGrid(client_app(), CONFIG.clients, {}, tmp_path / "state")
    grid.twist = lambda reply: twist(reply) if reply.metadata.src_node_id == 100 + HOSTILE else reply
    coordinator, _ = federate(CONFIG, tmp_path, grid=grid)
    assert same(coordinator.server, without[0])
    assert coordinator.counts == {HOSTILE: {reason: 2}}
    told = reports(tmp_path / "server")
    assert [r["accepted"] for r in told] == [[0, 1, 3, 4]] * 2
    assert all(r["refused"][str(HOSTILE)].startswith(reason) for r in told)
    assert HOSTILE not in coordinator.known


def test_there_are_twenty():
    assert len(BAD) >= 20


def test_a_client_that_answers_twice_counts_once(tmp_path):
    grid = FakeGrid(client_app(), CONFIG.clients, {}, tmp_path / "state")

    def again(reply):
        second = Message(RecordDict(dict(reply.content)), reply_to=reply)
        second.metadata.__dict__.update(reply.metadata.__dict__)
        return [reply, vector(second, lambda v: 2 * v)]

    grid.twist = lambda reply: again(reply)[::-1] if reply.metadata.src_node_id == 102 else reply
    coordinator, _ = federate(CONFIG, tmp_path, grid=grid)
    assert same(coordinator.server, replayed(CONFIG, [{"accepted": [0, 1, 2, 3, 4], "skipped": None}] * 2))


def test_a_reply_nobody_asked_for_is_ignored(tmp_path):
    config = CONFIG.replace(cohort=3)
    grid = FakeGrid(client_app(), config.clients, {}, tmp_path / "state")

    def forged(reply):
        other = Message(RecordDict(dict(reply.content)), reply_to=reply)
        other.metadata.__dict__.update(reply.metadata.__dict__)
        other.metadata.__dict__["_src_node_id"] = 999
        return [reply, other]

    grid.twist = forged
    coordinator, _ = federate(config, tmp_path, grid=grid)
    assert coordinator.counts == {}
    assert same(coordinator.server, replayed(config, reports(tmp_path / "server")))


def test_too_few_good_replies_skip_the_round(tmp_path):
    grid = FakeGrid(client_app(), CONFIG.clients, {}, tmp_path / "state")
    grid.twist = lambda reply: reply if reply.metadata.src_node_id < 102 else None
    coordinator, _ = federate(CONFIG, tmp_path, grid=grid, min_replies=3)
    assert [r["skipped"] for r in reports(tmp_path / "server")] == ["2 good replies, 3 needed"] * 2
    assert same(coordinator.server, coordinator.setup.algorithm.init(coordinator.setup.task.model.initial()))
    assert coordinator.known == {}


def test_a_lost_reply_does_not_advance_the_clients_vectors(tmp_path):
    """The client has trained and kept a new version, but the server never saw it: both go on from the one before."""
    config = CONFIG.replace(rounds=4)
    grid = FakeGrid(client_app(), config.clients, {}, tmp_path / "state")
    lost = {(1, 102), (2, 103)}  # (round, node)
    grid.twist = lambda r: None if (r.content["facts"]["number"], r.metadata.src_node_id) in lost else r
    coordinator, _ = federate(config, tmp_path, grid=grid)
    told = reports(tmp_path / "server")
    assert [r["accepted"] for r in told] == [[0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3, 4]]
    assert same(coordinator.server, replayed(config, told))


def test_versions_are_kept_until_acknowledged(tmp_path):
    grid = FakeGrid(client_app(), CONFIG.clients, {}, tmp_path / "state")
    grid.twist = lambda r: None if r.content["facts"]["number"] in (1, 2) and r.metadata.src_node_id == 102 else r
    coordinator, _ = federate(CONFIG.replace(rounds=3), tmp_path, grid=grid, keep_states=1)
    folder = tmp_path / "state" / coordinator.session
    versions = {c: sorted(int(p.stem) for p in (folder / str(c)).iterdir()) for c in range(5)}
    assert versions == {0: [2, 3], 1: [2, 3], 2: [1, 2, 3], 3: [2, 3], 4: [2, 3]}
    assert coordinator.known == {0: 3, 1: 3, 2: 1, 3: 3, 4: 3}


@pytest.mark.parametrize("policy", ["refuse", "restart"])
def test_lost_vectors_are_never_zeros(policy, tmp_path):
    config = CONFIG.replace(rounds=4)
    grid = FakeGrid(client_app(), config.clients, {}, tmp_path / "state")

    def forget(reply):
        if reply.content["facts"].get("number") == 1 and reply.metadata.src_node_id == 102:
            for path in (tmp_path / "state").rglob("2/*.safetensors"):
                path.unlink()
        return reply

    grid.twist = forget
    coordinator, _ = federate(config, tmp_path, grid=grid, lost_state=policy)
    told = reports(tmp_path / "server")
    assert told[2]["refused"]["2"].startswith("lost state: version 2 of this client's vectors is not in")
    later = [2] if policy == "restart" else []
    assert told[3]["accepted"] == sorted([0, 1, 3, 4, *later])
    assert coordinator.counts[2] == {"lost state": 1 if policy == "restart" else 2}


def test_a_restarted_server_goes_on_to_the_same_bits(tmp_path):
    config = CONFIG.replace(rounds=4, cohort=3)
    whole, _ = federate(config, tmp_path / "a")
    half = Recipe().setup(config, Recipe().test(config))
    federation = Federation(name="test", server_folder=str(tmp_path / "b" / "server"))
    grid = FakeGrid(client_app(), config.clients, {}, tmp_path / "b" / "state")
    FlowerStrategy(Coordinator(config, federation, half), grid.clock, grid.sleep).start(grid, ArrayRecord(), 2)
    # a report of a round that the crash cut off before the state was saved
    with (tmp_path / "b" / "server" / "rounds.jsonl").open("a") as f:
        f.write(json.dumps({"round": 3}) + "\n")
    again, _ = federate(config, tmp_path / "b", grid=grid)
    assert same(whole.server, again.server)
    assert [r["round"] for r in reports(tmp_path / "b" / "server")] == [1, 2, 3, 4]
    assert (tmp_path / "b" / "server" / "model.safetensors").exists()
    with pytest.raises(FedsmooError, match="other settings \\(lr\\)"):
        federate(config.replace(lr=0.2), tmp_path / "b", grid=grid)


def test_absent_clients_are_replaced_by_others_that_are_there(tmp_path):
    config = SMALL.replace(algorithm="scaffold", rounds=3)
    grid = FakeGrid(client_app(), config.clients, {}, tmp_path / "state")
    grid.nodes = {100 + i: i for i in (0, 2, 4)}
    coordinator, _ = federate(config, tmp_path, grid=grid)
    told = reports(tmp_path / "server")
    assert [r["accepted"] for r in told] == [[0, 2, 4]] * 3
    assert same(coordinator.server, replayed(config, told))


def test_a_client_cannot_be_taken_over_while_its_node_is_there(tmp_path):
    grid = FakeGrid(client_app(), CONFIG.clients, {}, tmp_path / "state")

    def usurp(reply):
        grid.nodes[50] = 2  # from the first round on, another node says that it is client 2
        return reply

    grid.twist = usurp
    federate(CONFIG, tmp_path, grid=grid)
    assert ("query.hello", 50) in grid.log
    assert ("train", 50) not in grid.log
    assert [r["accepted"] for r in reports(tmp_path / "server")] == [[0, 1, 2, 3, 4]] * 2


def test_the_settings_of_an_app(tmp_path):
    from fedsmoo.deploy.settings import from_json, parse, to_json

    config, federation = parse({"algorithm": "fedsmoo", "algorithm-options.r": 0.2, "local-epochs": 2, "name": "x"})
    assert config.algorithm_options == {"r": 0.2}
    assert from_json(to_json(config)) == config
    assert federation.name == "x"
    with pytest.raises(FedsmooError, match="did you mean 'local-epochs'"):
        parse({"local-epoch": 1})
    with pytest.raises(FedsmooError, match="cannot name a federation"):
        parse({"name": "../up"})
    with pytest.raises(FedsmooError, match="from a file"):
        from_json(json.dumps({"algorithm": "evil.py:Evil"}))
