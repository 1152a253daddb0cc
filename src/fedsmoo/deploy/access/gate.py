"""A gate before a Flower server: TLS on the outside, and only what nodes need gets through.

Flower serves nodes (``/v1/fleet``), its control commands (``/v1/control``) and its own programs (``/v1/runtime``) on
one port. Whoever reaches the control commands can submit code that every node runs. So the server itself listens on
127.0.0.1 only, and this gate is what the network sees.

A stranger cannot keep nodes out. A request that nobody signed is refused when its header is there. One that is signed
with a key which the server has not let in yet has to be short, and waits in a line of its own; what it holds before is
one of a bounded number of connections, of which the oldest makes way for the next. Nodes have no part in these bounds.
"""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import h11
import httpx

from fedsmoo.core.untrusted import text
from fedsmoo.deploy.access.limits import Guest, Guests, Limits, address_group
from fedsmoo.deploy.access.signature import signer
from fedsmoo.deploy.access.talk import Refused, Talk

OPEN = b"/v1/fleet/"
# Headers that belong to one connection and are not passed on.
HOP = {
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"te",
    b"trailer",
    b"upgrade",
    b"proxy-authorization",
    b"host",
}
GONE = (OSError, TimeoutError, h11.ProtocolError, httpx.HTTPError, httpx.InvalidURL)
MOST = 1000  # kinds of refusals that are counted in a minute
FIRST_OF_ALL = "this key has not been let in yet: try again"


def is_allowed(path: bytes) -> bool:
    """Whether a request path goes to nodes' own interface, with nothing in it that a server might read differently.

    >>> [is_allowed(path) for path in (b"/v1/fleet/pull-messages", b"/v1/control/start-run", b"/v1/fleet/../control/x")]
    [True, False, False]
    """
    return path.startswith(OPEN) and not any(odd in path for odd in (b"..", b"//", b"%", b"\\", b";"))


class Gate:
    """Accepts connections and passes on what nodes ask. ``to`` is the server's own address, such as 127.0.0.1:8000."""

    def __init__(self, to: str, outside: ssl.SSLContext, inside: ssl.SSLContext, limits: Limits | None = None) -> None:
        self.limits, self.outside = limits or Limits(), outside
        self.guests = Guests(self.limits)
        self.let_in: set[bytes] = set()  # keys of nodes: the server has answered a request that they signed
        self.line = asyncio.Semaphore(self.limits.asking)
        self.refused: Counter[tuple[str, str]] = Counter()
        self.tasks: set[asyncio.Task[None]] = set()
        self.server = httpx.AsyncClient(
            base_url=f"https://{to}", verify=inside, timeout=self.limits.node_seconds, trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )  # fmt: skip

    # -- connections

    async def listen(self, listening: socket.socket) -> None:
        """Accept connections until cancelled."""
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        self._keep(self._report())
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError:  # no descriptors are left, or the caller has gone already
                await asyncio.sleep(0.05)
                continue
            self._keep(self._receive(connection, address_group(str(address[0]))))

    def _keep(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _receive(self, connection: socket.socket, address: str) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        guest = Guest(address, task.cancel)
        self._end(self.guests.enter(guest))
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        transport: asyncio.Transport | None = None
        try:
            protocol = asyncio.StreamReaderProtocol(reader)
            seconds = self.limits.stranger_seconds
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self.outside, ssl_handshake_timeout=seconds
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            talk = Talk(reader, writer, self.limits)
            while await self._answer(guest, talk):
                talk.next()
        except GONE:
            self._count(address, "broken off or too slow")
        except asyncio.CancelledError:
            self._count(address, "too many connections")
        finally:
            self.guests.leave(guest)
            if transport is not None:
                transport.abort()  # before there is one, asyncio closes the socket

    def _end(self, guest: Guest | None) -> None:
        """End the connection of somebody who has to make way."""
        if guest is not None:
            self.guests.leave(guest)
            guest.end()

    # -- requests

    async def _answer(self, guest: Guest, talk: Talk) -> bool:
        """Answer one request; returns whether another one may follow."""
        seconds = self.limits.stranger_seconds if guest.key is None else self.limits.idle_seconds
        async with asyncio.timeout(seconds) as clock:
            request = await talk.request()
            if request is None:
                return False
            try:
                key = self._examine(request)
                if key in self.let_in:
                    self._end(self.guests.vouch(guest, key))
                    clock.reschedule(asyncio.get_running_loop().time() + self.limits.node_seconds)
                    return await self._pass_on(request, key, talk, talk.body(self.limits.node_bytes))
                body = b"".join([piece async for piece in talk.body(self.limits.stranger_bytes, FIRST_OF_ALL)])
                async with self.line:
                    again = await self._pass_on(request, key, talk, body)
                if key in self.let_in:
                    self._end(self.guests.vouch(guest, key))
                return again
            except Refused as e:
                self._count(guest.address, e.why)
                await talk.refuse(e)
                return False

    def _examine(self, request: h11.Request) -> bytes:
        """Return the key that a request is signed with; raises ``Refused`` if it is none of a node's."""
        if not is_allowed(bytes(request.target).partition(b"?")[0]):
            raise Refused(403, "only nodes may come through here")
        if request.method != b"POST":
            raise Refused(405, "nodes only post")
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers}
        key = signer(headers, datetime.datetime.now(datetime.UTC))
        if key is None:
            raise Refused(401, "no valid signature of a node")
        return key

    async def _pass_on(self, request: h11.Request, key: bytes, talk: Talk, body: bytes | AsyncIterator[bytes]) -> bool:
        """Ask the server and hand its answer on; returns whether another request may follow."""
        drop = HOP | ({b"content-length"} if isinstance(body, bytes) else set())
        headers = [(k, v) for k, v in request.headers if k not in drop]
        target = bytes(request.target).decode("latin-1")
        ask = self.server.build_request("POST", target, headers=headers, content=body)
        try:
            reply = await self.server.send(ask, stream=True)
        except httpx.HTTPError as e:
            raise Refused(502, f"the server does not answer: {type(e).__name__}") from e
        try:
            if reply.is_success:
                self.let_in.add(key)
            elif reply.status_code == httpx.codes.UNAUTHORIZED:
                self.let_in.discard(key)
            kept = [(k, v) for k, v in reply.headers.raw if k.lower() not in HOP]
            return await talk.reply(reply.status_code, kept, reply.aiter_raw())
        finally:
            await reply.aclose()

    def _count(self, address: str, why: str) -> None:
        """Count a refusal for the report; of very many kinds, only those that were there already."""
        if len(self.refused) < MOST or (address, why) in self.refused:
            self.refused[address, why] += 1

    async def _report(self) -> None:
        """Say once a minute whom the gate refused, in a line for the ten who came most often."""
        while True:
            await asyncio.sleep(60)
            for (address, why), n in self.refused.most_common(10):
                print(f"gate: {text(address, 60)}: {n} times in a minute: {why}", file=sys.stderr, flush=True)
            self.refused.clear()


async def run_gate(listening: socket.socket, make: partial[Gate]) -> None:
    """Run a gate on a socket until it is cancelled; it is made within its own event loop."""
    gate = make()
    try:
        await gate.listen(listening)
    finally:
        for task in list(gate.tasks):
            task.cancel()
        with suppress(httpx.HTTPError):
            await gate.server.aclose()
