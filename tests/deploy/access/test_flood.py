"""Strangers that hold on to the gate do not keep nodes out."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

import httpx
from patience import wait_for

from fedsmoo.deploy.access.limits import Guest, Guests, Limits
from fedsmoo.deploy.access.signature import signer

from .standin import Flood, Node, Place

HALF = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nhalf"


def signed(node: Node) -> bytes:
    """Half a request that is signed with a key of one's own."""
    lines = "".join(f"{k}: {v}\r\n" for k, v in node.headers().items())
    return HALF.replace(b"host: x\r\n", b"host: x\r\n" + lines.encode())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("gate"))
    with place.open():
        yield place


FLOODS = {
    "half a request": (HALF, True),
    "half a request, signed by a stranger": (signed(Node()), True),
    "half a header": (HALF[:40], True),
    "nothing": (b"", True),
    "no handshake": (b"", False),
    "no TLS": (HALF, False),
}


@pytest.mark.parametrize("name", FLOODS)
def test_nodes_come_through_while_strangers_hold_all_they_can(name: str, place: Place) -> None:
    """A node that comes for the first time, one that the gate knows, and one that keeps its connection."""
    beginning, tls = FLOODS[name]
    old, new = Node(), Node()
    place.server.registered |= {old.public, new.public}
    assert place.post(old).status_code == 200
    with place.client() as kept, Flood(place, 110, beginning, tls).going_on():
        for _ in range(2):
            assert kept.post("/v1/fleet/pull-messages", content=b"abc", headers=old.headers()).text == "3"
        assert place.post(old, body=bytes(2**20)).text == str(2**20)
        assert place.post(new).status_code == 200


def test_connections_from_one_address_are_bounded(place: Place) -> None:
    """Two hundred that hold a connection each: the oldest ones are ended."""
    node = Node()
    place.server.registered.add(node.public)
    with Flood(place, 200, HALF[:40]).going_on() as flood:
        wait_for(lambda: flood.opened > flood.size, "the first to be ended")
        assert place.post(node).status_code == 200


def test_what_strangers_ask_does_not_reach_the_server(place: Place) -> None:
    place.server.seen.clear()
    with place.client() as client:
        unsigned = client.post("/v1/fleet/pull-messages", content=b"x")
        wrong = client.post("/v1/fleet/pull-messages", headers={**Node().headers(), "flwr-timestamp": "2026-01-01"})
        got = client.get("/v1/fleet/pull-messages")
        control = client.post("/v1/control/start-run", content=b"x", headers=Node().headers())
    assert [r.status_code for r in (unsigned, wrong, got, control)] == [401, 401, 405, 403]
    assert place.server.seen == []
    assert place.post(Node()).status_code == 401  # signed, but with a key that the server does not know
    assert place.server.seen == ["/v1/fleet/pull-messages"]


def test_bodies_and_headers_are_bounded(place: Place) -> None:
    stranger, node = Node(), Node()
    place.server.registered.add(node.public)
    place.server.seen.clear()
    assert place.post(stranger, body=bytes(100_000)).status_code == 503
    with place.client() as client, pytest.raises(httpx.TransportError):
        client.post("/v1/fleet/pull-messages", headers={"x": "y" * 2**20})
    assert place.server.seen == []
    assert place.post(node).status_code == 200
    assert place.post(node, body=bytes(65 * 2**20)).status_code == 413


def test_who_is_silent_is_ended(tmp_path: Path) -> None:
    """Before, within and after the header, and within a body that nobody has let in."""
    place = Place(tmp_path)
    place.server.server_close()
    with place.inside(Limits(stranger_seconds=0.3)):
        flood = [Flood(place, 1, beginning, tls) for beginning, tls in FLOODS.values()]
        held = [f.one() for f in flood]
        assert None not in held
        for f, s in zip(flood, held, strict=True):
            wait_for(lambda f=f, s=s: f.closed(s), "the end of the connection")
            s.close()
    with place.inside(Limits()):  # there is no server
        assert place.post(Node()).status_code == 502


def guest(address: str) -> Guest:
    return Guest(address, lambda: None)


def test_the_oldest_of_the_busiest_address_makes_way() -> None:
    guests = Guests(Limits(strangers=5, per_address=3, per_node=2))
    a, b = [guest("a") for _ in range(4)], [guest("b") for _ in range(4)]
    assert [guests.enter(g) for g in a[:3]] == [None] * 3
    assert guests.enter(a[3]) is a[0]  # three of one address
    guests.leave(a[0])
    assert [guests.enter(g) for g in b[:2]] == [None] * 2
    assert guests.enter(b[2]) is a[1]  # five of all
    guests.leave(a[1])
    assert [guests.vouch(g, b"key") for g in (a[2], a[3], b[0])] == [None, None, a[2]]
    assert guests.vouch(a[3], b"key") is None  # it is one already
    guests.leave(a[2])
    assert guests.groups == {b"key": [a[3], b[0]], "b": b[1:3]}
    for g in (*a, *b):
        guests.leave(g)
    assert guests.groups == {}


def test_a_signature_counts_for_its_key_and_its_time_only() -> None:
    now = datetime.datetime.now(datetime.UTC)
    node, other = Node(), Node()
    good = node.headers(now)
    assert signer(good, now) == node.public
    assert signer(good, now + datetime.timedelta(hours=1)) is None
    for name in good:
        assert signer({k: v for k, v in good.items() if k != name}, now) is None
        assert signer({**good, name: other.headers(now + datetime.timedelta(seconds=1))[name]}, now) is None
        for odd in ("", "x", "\udcff", "A" * 5000, "2026-01-01T00:00:00", "bm8=", "é"):
            assert signer({**good, name: odd}, now) is None
