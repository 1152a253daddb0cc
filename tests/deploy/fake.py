"""Flower's messages without a network: a grid that hands each message to the client app and collects the replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

Twist = Callable[[Message], Message | None]


class FakeGrid(Grid):
    """Nodes 100, 101, ... that hold clients 0, 1, ...; ``twist`` may change or drop a reply to a training message.

    Time passes when somebody sleeps; ``delay`` says how long a node takes for a message.
    """

    def __init__(self, app: ClientApp, clients: int, run_config: dict[str, Any], state: Path) -> None:
        self.app, self.run_config, self.state = app, run_config, state
        self.nodes = {100 + i: i for i in range(clients)}
        self.ids = count()
        self.twist: Twist = lambda reply: reply
        self.greeting: Twist = lambda reply: reply
        self.log: list[tuple[str, int]] = []
        self.keys: dict[int, bytes] = {}
        self.now = 0.0
        self.delay: Callable[[Message], float] = lambda message: 0.0
        self.waiting: dict[str, tuple[float, Message]] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
            ids.append(message.metadata.message_id)
            self.waiting[ids[-1]] = (self.now + self.delay(message), message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        (one,) = message_ids
        due, message = self.waiting.get(one, (float("inf"), None))
        if message is None or due > self.now:
            return []
        del self.waiting[one]
        out = self.answer(message)
        return out[::-1]

    def answer(self, message: Message) -> list[Message]:
        """What a node answers; the twist may change it, drop it or raise."""
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.log.append((kind, node))
        config = {"partition-id": self.nodes[node], "state-folder": str(self.state)}
        context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=self.run_config)
        reply = self.app(message, context)
        reply = self.twist(reply) if kind == "train" else self.greeting(reply)
        return [] if reply is None else reply if isinstance(reply, list) else [reply]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=n, public_key=self.keys.get(n, b"")) for n in self.nodes]

    def send_and_receive(self, *a: Any, **k: Any) -> Iterable[Message]: ...
    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *a: Any, **k: Any) -> Message: ...
