"""How much of the gate anybody may hold: connections of strangers make way for others, those of nodes do not."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """Numbers that a stranger runs into. A node is who holds a key that the server has let in."""

    strangers: int = 512  # connections of strangers, from everywhere
    per_address: int = 128  # and from one address
    per_node: int = 32  # connections of one key
    asking: int = 8  # requests of strangers that the server has at a time
    stranger_seconds: float = 10.0  # for a stranger's handshake, and again for a request, all of it
    stranger_bytes: int = 64 * 2**10  # of a stranger's request: enough for a node to say who it is
    header_bytes: int = 16 * 2**10
    node_bytes: int = 64 * 2**20  # of a node's request: Flower sends pieces of 5 MiB
    pause_seconds: float = 30.0  # the longest silence within a node's request or answer
    node_seconds: float = 600.0  # for a node's request, all of it
    idle_seconds: float = 75.0  # between two requests of a node


@dataclass(eq=False)
class Guest:
    """A connection: where it comes from, whose key it has shown, if any, and how to end it."""

    address: str
    end: Callable[[], object]
    key: bytes | None = None

    @property
    def group(self) -> str | bytes:
        return self.address if self.key is None else self.key


@dataclass
class Guests:
    """Everybody who is connected, oldest first: strangers by their address, nodes by their key."""

    limits: Limits
    groups: dict[str | bytes, list[Guest]] = field(default_factory=dict)

    def enter(self, guest: Guest) -> Guest | None:
        """Add a stranger; returns who has to leave for it, if anybody: the oldest of the address that has most."""
        mine = self._add(guest)
        if len(mine) > self.limits.per_address:
            return mine[0]
        strangers = [group for name, group in self.groups.items() if isinstance(name, str)]
        if sum(map(len, strangers)) > self.limits.strangers:
            return max(strangers, key=len)[0]
        return None

    def vouch(self, guest: Guest, key: bytes) -> Guest | None:
        """Move a guest to the nodes; returns who has to leave for it, if anybody: the oldest with this key."""
        if guest.key == key:
            return None
        self.leave(guest)
        guest.key = key
        mine = self._add(guest)
        return mine[0] if len(mine) > self.limits.per_node else None

    def _add(self, guest: Guest) -> list[Guest]:
        mine = self.groups.setdefault(guest.group, [])
        mine.append(guest)
        return mine

    def leave(self, guest: Guest) -> None:
        """Forget a guest; one who was forgotten already is no error."""
        mine = self.groups.get(guest.group, [])
        if guest in mine:
            mine.remove(guest)
            if not mine:
                del self.groups[guest.group]


def address_group(address: str) -> str:
    """Return what counts as one address: for IPv6 the network of a household, which has 2^64 of them.

    >>> address_group("203.0.113.9"), address_group("2001:db8:1:2:3:4:5:6")
    ('203.0.113.9', '2001:db8:1:2::')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False).network_address)
