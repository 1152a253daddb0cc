"""Who a client is, from one run of the server to the next; who is left out, and who is not waited for."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

import httpx
from flwr.app import ConfigRecord, Message, RecordDict

from fedsmoo.core import FedsmooError
from fedsmoo.deploy.flower import client_app
from fedsmoo.deploy.members import Member, Members, fingerprint
from fedsmoo.deploy.settings import Federation
from fedsmoo.deploy.store import ServerStore
from fedsmoo.deploy.wire import Refusal

from .fake import FakeGrid
from .replay import replayed, reports
from .test_methods import SMALL, federate
from .test_trouble import CONFIG, edit, same

HOSTILE = 2
QUICK = CONFIG.replace(local_epochs=None, local_steps=1)


def key(name: str) -> bytes:
    return f"-----BEGIN PUBLIC KEY-----\n{name}\n-----END PUBLIC KEY-----\n".encode()


def a_grid(tmp_path: Path, config=CONFIG, first: int = 100) -> FakeGrid:
    """Nodes with a key each; their numbers are others after a new start of Flower's server."""
    grid = FakeGrid(client_app(), config.clients, {}, tmp_path / "state")
    grid.nodes = {first + i: i for i in range(config.clients)}
    grid.keys = {first + i: key(f"node {i}") for i in range(config.clients)}
    return grid


def test_a_client_is_bound_to_its_key_across_runs_of_the_server(tmp_path, caplog):
    """The key counts, not Flower's number of the node; another key for a known client is refused with a line."""
    federate(CONFIG, tmp_path, grid=a_grid(tmp_path))
    grid = a_grid(tmp_path, first=500)
    grid.keys[502] = key("a stranger's")
    with caplog.at_level(logging.WARNING, "flwr"):
        federate(CONFIG.replace(rounds=3), tmp_path, grid=grid)
    assert [r["accepted"] for r in reports(tmp_path / "server")] == [[0, 1, 2, 3, 4]] * 2 + [[0, 1, 3, 4]]
    assert ("train", 502) not in grid.log
    came, bound = (fingerprint(key(name))[:16] for name in ("a stranger's", "node 2"))
    assert f'another key: client 2 came with key {came}, not with {bound} as at first; forget="2"' in caplog.text


def test_a_key_is_exchanged_by_saying_so_once(tmp_path):
    federate(CONFIG, tmp_path, grid=a_grid(tmp_path))
    grid = a_grid(tmp_path)
    grid.keys[102] = key("the new one")
    federate(CONFIG.replace(rounds=3), tmp_path, grid=grid, forget="2")
    assert reports(tmp_path / "server")[2]["accepted"] == [0, 1, 2, 3, 4]
    federate(CONFIG.replace(rounds=4), tmp_path, grid=a_grid(tmp_path))  # with the old key again
    assert reports(tmp_path / "server")[3]["accepted"] == [0, 1, 3, 4]
    with pytest.raises(FedsmooError, match="must be numbers of clients, such as '1,2'"):
        Federation(forget="two")


def test_a_key_is_bound_before_the_first_round_is_done(tmp_path):
    """The server is killed in its first round: what it knows of clients is on the disk already."""
    grid = a_grid(tmp_path)

    def end(reply):
        raise KeyboardInterrupt

    grid.twist = end
    with pytest.raises(KeyboardInterrupt):
        federate(CONFIG, tmp_path, grid=grid)
    other = a_grid(tmp_path)
    other.keys[102] = key("a stranger's")
    federate(CONFIG.replace(lr=0.01), tmp_path, grid=other)  # settings may change until a round is done
    assert [r["accepted"] for r in reports(tmp_path / "server")] == [[0, 1, 3, 4]] * 2


def test_nobody_says_to_be_somebody_elses_client(tmp_path):
    """A registered node that comes back as another client, whose own node is away."""
    federate(CONFIG, tmp_path, grid=a_grid(tmp_path))
    grid = a_grid(tmp_path)
    del grid.nodes[102]
    grid.nodes[103] = 2
    federate(CONFIG.replace(rounds=3), tmp_path, grid=grid)
    assert reports(tmp_path / "server")[2]["accepted"] == [0, 1, 4]


def test_nodes_without_keys_and_settings_that_ignore_them(tmp_path):
    """Flower's simulation has no keys: its nodes have other numbers in every run, and come back as who they say."""
    federate(CONFIG, tmp_path, grid=FakeGrid(client_app(), CONFIG.clients, {}, tmp_path / "state"))
    again = FakeGrid(client_app(), CONFIG.clients, {}, tmp_path / "state")
    again.nodes = {700 + i: i for i in range(CONFIG.clients)}
    again.keys = {700 + i: b"\x8a" * 32 for i in range(CONFIG.clients)}  # as Flower's simulation makes them up
    federate(CONFIG.replace(rounds=3), tmp_path, grid=again)
    unbound = a_grid(tmp_path)
    federate(CONFIG.replace(rounds=4), tmp_path, grid=unbound, client_keys="ignore")
    assert [r["accepted"] for r in reports(tmp_path / "server")] == [[0, 1, 2, 3, 4]] * 4


@pytest.mark.parametrize("samples", [10**9, 0, -1, 1.5, "300", [300], None, True])
def test_counts_that_cannot_be_are_not_let_in(samples, tmp_path):
    grid = a_grid(tmp_path)

    def greeting(reply: Message) -> Message:
        if reply.metadata.src_node_id == 102:
            facts = {**reply.content["facts"], "samples": samples}
            reply.content = RecordDict({"facts": ConfigRecord({k: v for k, v in facts.items() if v is not None})})
        return reply

    grid.greeting = greeting
    coordinator, _ = federate(CONFIG.replace(weighted=True), tmp_path, grid=grid)
    assert [r["accepted"] for r in reports(tmp_path / "server")] == [[0, 1, 3, 4]] * 2
    assert 2 not in coordinator.members.known


def test_a_count_is_said_once(tmp_path):
    federate(CONFIG, tmp_path, grid=a_grid(tmp_path))
    grid = a_grid(tmp_path)

    def greeting(reply: Message) -> Message:
        if reply.metadata.src_node_id == 102:
            facts = {**reply.content["facts"], "samples": reply.content["facts"]["samples"] + 1}
            reply.content = RecordDict({"facts": ConfigRecord(facts)})
        return reply

    grid.greeting = greeting
    federate(CONFIG.replace(rounds=3), tmp_path, grid=grid)
    assert reports(tmp_path / "server")[2]["accepted"] == [0, 1, 3, 4]


def test_who_offends_is_left_out_twice_as_long_every_time(tmp_path):
    """The first offence is let pass; then the rounds that go without are 1, 3, 7... The others' rounds go on."""
    config = QUICK.replace(rounds=14)
    grid = a_grid(tmp_path, config)
    grid.twist = lambda r: edit(r, drop=("w",)) if r.metadata.src_node_id == 100 + HOSTILE else r
    coordinator, _ = federate(config, tmp_path, grid=grid)
    told = reports(tmp_path / "server")
    assert [r["round"] for r in told if HOSTILE in r["cohort"]] == [1, 2, 4, 8]
    assert all(r["accepted"] == [0, 1, 3, 4] for r in told)
    assert same(coordinator.server, replayed(config, told))
    again, _ = federate(config.replace(rounds=16), tmp_path, grid=a_grid(tmp_path, config))  # it is not forgotten
    assert [HOSTILE in r["accepted"] for r in reports(tmp_path / "server")[14:]] == [False, True]
    assert again.members.of(HOSTILE).offences == 3


def test_backing_off_in_numbers():
    member, out = Member(), []
    for _ in range(9):
        member = member.offended(100)
        out.append(member.until - 101)
    assert out == [0, 1, 3, 7, 15, 31, 63, 63, 63]
    assert member.good().offences == 6
    waited = []
    for _ in range(3):
        member = member.silent()
        needed = 0
        while not member.waited_for:
            member, needed = member.late(), needed + 1
        waited.append(needed)
    assert waited == [1, 3, 7]
    assert Members.from_plain(json.loads(json.dumps(Members({7: member}).plain()))).known == {7: member}


def seconds_of_rounds(grid: FakeGrid, config, tmp_path, **settings) -> list[float]:
    """How long each round took, on the grid's clock."""
    begun: list[float] = []
    plain = grid.push_messages

    def push(messages):
        if any(m.metadata.message_type == "train" for m in messages):
            begun.append(grid.now)
        return plain(messages)

    grid.push_messages = push
    federate(config, tmp_path, grid=grid, **settings)
    return [b - a for a, b in zip(begun, [*begun[1:], grid.now], strict=True)]


def test_a_silent_node_costs_one_timeout_and_not_every_round(tmp_path):
    """Nodes answer in 8 s, one never; a round may take 600."""
    config = QUICK.replace(rounds=14)
    grid = a_grid(tmp_path, config)
    silent = 100 + HOSTILE
    grid.delay = lambda m: (
        0.0 if m.metadata.message_type != "train" else 8.0 if m.metadata.dst_node_id != silent else 10.0**9
    )
    took = seconds_of_rounds(grid, config, tmp_path, round_timeout=600.0)
    assert took[0] >= 600
    assert sum(took[1:]) < 13 * 8 * 2.5
    told = reports(tmp_path / "server")
    assert all(r["accepted"] == [0, 1, 3, 4] for r in told)
    asked = [r["round"] for r in told if HOSTILE in r["cohort"]]
    assert asked[0] == 1
    assert len(asked) < 4, "it is asked again when its message is too old to be answered"


def test_a_slow_node_that_was_late_once_is_waited_for_again(tmp_path):
    """It takes 50 s where others take 8, and once more than the timeout; its late answer brings it back."""
    config = QUICK.replace(rounds=14)
    grid = a_grid(tmp_path, config)
    times = iter([50.0, 700.0])

    def delay(m: Message) -> float:
        if m.metadata.message_type != "train":
            return 0.0
        return 8.0 if m.metadata.dst_node_id != 100 + HOSTILE else next(times, 50.0)

    grid.delay = delay
    federate(config, tmp_path, grid=grid, round_timeout=600.0)
    told = [HOSTILE in r["accepted"] for r in reports(tmp_path / "server")]
    assert told[:2] == [True, False]
    assert all(told[-3:])


def test_a_node_that_never_says_who_it_is_costs_the_start_alone(tmp_path):
    """All clients should take part, and one node does not even say which one it is."""
    config = QUICK.replace(rounds=6)
    grid = a_grid(tmp_path, config)
    grid.delay = lambda m: 10.0**9 if m.metadata.dst_node_id == 102 else 0.0
    took = seconds_of_rounds(grid, config, tmp_path, round_timeout=600.0)
    assert max(took) < 10
    assert [r["accepted"] for r in reports(tmp_path / "server")] == [[0, 1, 3, 4]] * 6


def test_a_silent_newcomer_does_not_hold_up_the_others(tmp_path):
    """Another node is there that never says who it is: enough clients are known, so nobody waits for it."""
    config = SMALL.replace(algorithm="fedavg", clients=5, cohort=5, rounds=4)
    grid = a_grid(tmp_path, config)
    grid.nodes[999] = 0
    grid.delay = lambda m: 10.0**9 if m.metadata.dst_node_id == 999 else 0.0
    took = seconds_of_rounds(grid, config, tmp_path, round_timeout=600.0)
    assert max(took) < 10
    assert [r["accepted"] for r in reports(tmp_path / "server")] == [[0, 1, 2, 3, 4]] * 4


@pytest.mark.parametrize(("status", "ends"), [(500, False), (403, True), (None, True)])
def test_trouble_of_the_server_is_no_clients(status, ends, tmp_path):
    """A message that Flower's server cannot hand out costs its sender; a stopped run, or no server, ends it."""
    grid, plain = a_grid(tmp_path), FakeGrid.pull_messages
    request = httpx.Request("POST", "https://server")

    def pull(ids):
        if grid.waiting[ids[0]][1].metadata.dst_node_id == 102 and grid.log[4:]:
            if status is None:
                raise httpx.ConnectError("gone", request=request)
            raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))
        return plain(grid, ids)

    grid.pull_messages = pull
    if ends:
        with pytest.raises(httpx.HTTPError):
            federate(CONFIG, tmp_path, grid=grid)
    else:
        federate(CONFIG, tmp_path, grid=grid)
        assert [r["accepted"] for r in reports(tmp_path / "server")] == [[0, 1, 3, 4]] * 2


def test_a_message_that_breaks_the_reading_of_it_costs_its_sender_alone(tmp_path):
    grid = a_grid(tmp_path)

    def burst(reply: Message) -> Message:
        if reply.metadata.src_node_id == 102:
            raise ValueError("\x1b[2J not an object")
        return reply

    grid.twist = burst
    federate(CONFIG, tmp_path, grid=grid)
    told = reports(tmp_path / "server")
    assert [r["accepted"] for r in told] == [[0, 1, 3, 4]] * 2
    assert told[0]["refused"]["2"] == "unreadable bytes: ValueError: \ufffd[2J not an object"


def test_the_server_waits_for_nodes_after_a_new_start(tmp_path):
    """Nodes that are still connecting: no round is spent without them."""
    federate(CONFIG, tmp_path, grid=a_grid(tmp_path))
    grid = a_grid(tmp_path)
    there, plain = dict(grid.nodes), grid.sleep
    grid.nodes = {}

    def sleep(seconds: float) -> None:
        plain(seconds)
        grid.nodes = there if grid.now > 30 else {}

    grid.sleep = sleep
    federate(CONFIG.replace(rounds=3), tmp_path, grid=grid)
    assert reports(tmp_path / "server")[2]["accepted"] == [0, 1, 2, 3, 4]


def test_what_clients_say_reaches_logs_and_reports_harmlessly(tmp_path, caplog):
    """Escape sequences, newlines, endless words and reasons of a client's own making; losses that overflow."""
    evil = "\x1b[31m\nfedsmoo: all is well\r\u202e" + "x" * 10_000
    config = CONFIG.replace(rounds=3)
    grid = a_grid(tmp_path, config)

    def twist(reply: Message) -> Message:
        if reply.metadata.src_node_id == 101:
            reply.content = RecordDict({"facts": ConfigRecord({"refused": evil, "detail": evil})})
        if reply.metadata.src_node_id == 102:
            return edit(reply, {"session": evil})
        if reply.metadata.src_node_id == 103:
            return edit(reply, numbers={"loss": 1e300})
        return reply

    grid.twist = twist
    grid.greeting = lambda r: r if r.metadata.src_node_id != 104 else odd_greeting(r, evil)
    with caplog.at_level(logging.INFO, "flwr"):
        coordinator, _ = federate(config, tmp_path, grid=grid, min_replies=1)
    for line in [*(tmp_path / "server" / "rounds.jsonl").read_text().splitlines(), *coordinator.counts[1]]:
        assert line.isprintable()
        assert len(line) < 2000
    for record in caplog.records:
        if "fedsmoo" in record.getMessage():
            assert record.getMessage().isprintable(), record.getMessage()
            assert "x" * 1000 not in record.getMessage()
    assert coordinator.counts == {
        1: {"client error": 3}, 2: {"another federation": 2}, 3: {"wrong metrics": 2}
    }  # fmt: skip
    for line in (tmp_path / "server" / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} in a report"))


def odd_greeting(reply: Message, evil: str) -> Message:
    reply.content = RecordDict({"facts": ConfigRecord({"client": 10**6, "detail": evil})})
    return reply


def test_refusals_quote_nothing_that_moves_a_cursor():
    text = str(Refusal("reason", "a\x1b[2Jb\nc\u202ed\x00" + "y" * 1000))
    assert text.startswith("reason: a\ufffd[2Jb\ufffdc\ufffdd\ufffdyyy")
    assert len(text) <= 320


def test_members_are_part_of_the_state(tmp_path):
    federate(CONFIG, tmp_path, grid=a_grid(tmp_path))
    found = ServerStore(tmp_path / "server").load()
    assert found is not None
    assert found[1]["members"]["2"]["key"] == fingerprint(key("node 2"))
