"""What the server remembers of each client, from one of its runs to the next: its key, its samples, its manners.

A client is bound to the key that it came with first and to the number of samples that it said it had. Who sends what no
honest client sends is left out for a while, twice as long every time. Who does not answer in time is not waited for
until it has shown that it answers again, twice as often every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedsmoo.deploy.wire import Refusal

PEM = b"-----BEGIN PUBLIC KEY-----"
MISFORTUNES = ("missing", "error", "lost state", "client error")  # what happens to honest clients
WORST = 6  # doublings: nobody is left out for more than 63 rounds at a time, nor unwaited for after 63 replies


def fingerprint(public_key: bytes) -> str:
    """Return what a key is known by; empty for nodes without one, such as those of Flower's simulation."""
    return hashlib.sha256(public_key).hexdigest() if public_key.startswith(PEM) else ""


@dataclass(frozen=True)
class Member:
    """A client, as the server knows it."""

    key: str = ""  # fingerprint of the key that it is bound to; empty: none yet
    samples: int = 0  # how many it said it had; 0: not said yet
    offences: int = 0
    until: int = 0  # it is left out of the rounds, counted from 0, below this one
    missed: int = 0  # rounds that it was asked in and did not answer in time
    streak: int = 0  # answers since

    @property
    def waited_for(self) -> bool:
        """Whether a round waits for it: it has answered often enough since it last did not."""
        return self.streak >= 2**self.missed - 1

    def offended(self, number: int) -> Member:
        """Return the member after a bad reply: the first counts for nothing, others keep it out 1, 3, 7... rounds."""
        offences = min(self.offences + 1, WORST + 1)
        return replace(self, offences=offences, until=number + 2 ** (offences - 1), streak=self.streak + 1)

    def silent(self) -> Member:
        """Return the member after a round that it did not answer in time."""
        return replace(self, missed=min(self.missed + 1, WORST), streak=0)

    def late(self) -> Member:
        """Return the member after an answer to a round that is over."""
        return replace(self, streak=self.streak + 1)

    def good(self) -> Member:
        """Return the member after an answer that was used."""
        return replace(self, streak=self.streak + 1, offences=max(self.offences - 1, 0))


@dataclass
class Members:
    """All clients that the server has met."""

    known: dict[int, Member] = field(default_factory=dict)

    def of(self, client: int) -> Member:
        return self.known.get(client, Member())

    def meet(self, client: int, key: str, samples: Any, limit: int) -> bool:
        """Let a client in, or raise a ``Refusal``; returns whether something is known of it that was not before."""
        member = self.of(client)
        remedy = f'forget="{client}" in the settings of one run takes what it says then'
        if member.key != key and member.key:
            came = f"with key {key[:16]}" if key else "without a key"
            raise Refusal(
                "another key", f"client {client} came {came}, not with {member.key[:16]} as at first; {remedy}"
            )
        holder = next((c for c, m in self.known.items() if key and m.key == key and c != client), None)
        if holder is not None:
            raise Refusal("another client's key", f"says it is client {client}, but its key is client {holder}'s")
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise Refusal("wrong counts", f"client {client} does not say how many samples it has")
        if samples > limit:
            raise Refusal("wrong counts", f"client {client} says it has more than max-samples, {limit}")
        if member.samples not in (0, samples):
            said = f"client {client} says it has {samples} samples, not {member.samples} as at first"
            raise Refusal("wrong counts", f"{said}; {remedy}")
        self.known[client] = replace(member, key=key, samples=samples)
        return self.known[client] != member

    def forget(self, clients: Iterable[int]) -> None:
        """Forget the keys and the samples of clients; their manners are remembered."""
        for client in clients:
            if client in self.known:
                self.known[client] = replace(self.known[client], key="", samples=0)

    def left_out(self, number: int) -> set[int]:
        """Return the clients that a round goes without, for what they did."""
        return {client for client, member in self.known.items() if number < member.until}

    def conclude(self, number: int, good: Iterable[int], refused: Mapping[int, Refusal]) -> None:
        """Remember how clients behaved in a round."""
        for client in good:
            self.known[client] = self.of(client).good()
        for client, why in refused.items():
            member = self.of(client)
            if why.reason == "missing":
                member = member.silent() if member.waited_for else member  # nobody was kept waiting
            elif why.reason not in MISFORTUNES:
                member = member.offended(number)
            self.known[client] = member

    def plain(self) -> dict[str, Any]:
        """Return all as JSON takes it."""
        return {str(client): asdict(member) for client, member in sorted(self.known.items())}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Members:
        return cls({int(client): Member(**member) for client, member in values.items()})
