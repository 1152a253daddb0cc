"""One HTTP connection of the gate's: requests come in piece by piece, with bounds on bytes and silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import h11

from fedsmoo.deploy.access.limits import Limits

Headers = list[tuple[bytes, bytes]]
PIECE = 64 * 2**10


class Refused(Exception):
    """Why a request is not passed on: a code of HTTP's and a line."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Talk:
    """Requests and replies of one connection, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self.reader, self.writer, self.limits = reader, writer, limits
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)

    def next(self) -> None:
        """Make ready for the next request."""
        self.http.start_next_cycle()

    async def _event(self) -> object:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(PIECE))
        return event

    async def request(self) -> h11.Request | None:
        """Wait for the header of a request; ``None`` if there will be none. What is no HTTP raises h11's error."""
        event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def body(self, limit: int, too_long: str | None = None) -> AsyncIterator[bytes]:
        """Yield the body of a request; raises ``Refused`` if it is longer than the limit."""
        length = 0
        while True:
            async with asyncio.timeout(self.limits.pause_seconds):
                event = await self._event()
            if not isinstance(event, h11.Data):
                return
            length += len(event.data)
            if length > limit:
                raise Refused(503, too_long) if too_long else Refused(413, f"more than {limit} bytes")
            yield bytes(event.data)

    async def _send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            self.writer.write(data)
            async with asyncio.timeout(self.limits.pause_seconds):
                await self.writer.drain()

    async def reply(self, code: int, headers: Headers, body: AsyncIterator[bytes]) -> bool:
        """Send a reply; returns whether another request may follow on this connection."""
        if self.http.their_state is not h11.DONE:  # answered before all of the request was there
            headers = [*headers, (b"connection", b"close")]
        await self._send(h11.Response(status_code=code, headers=headers))
        async for piece in body:
            await self._send(h11.Data(data=piece))
        await self._send(h11.EndOfMessage())
        return self.http.our_state is h11.DONE and self.http.their_state is h11.DONE

    async def refuse(self, why: Refused) -> None:
        """Say why a request is refused, unless a reply has begun; the connection ends with it."""
        if self.http.our_state is not h11.SEND_RESPONSE:
            return
        line = f"{why.why}\n".encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(line)).encode())]
        await self._send(h11.Response(status_code=why.code, headers=[*headers, (b"connection", b"close")]))
        await self._send(h11.Data(data=line))
        await self._send(h11.EndOfMessage())
        if self.http.their_state is not h11.DONE:  # a connection that is closed before all was read loses the reply
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    while await self.reader.read(PIECE):
                        pass
        self.writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self.writer.wait_closed()
