"""Flower's messages without a network: a grid that hands each message to the client app and collects the replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

Twist = Callable[[Message], Message | None]


class FakeGrid(Grid):
    """Nodes 100, 101, ... that hold clients 0, 1, ...; ``twist`` may change or drop a reply to a training message."""

    def __init__(self, app: ClientApp, clients: int, run_config: dict[str, Any], state: Path) -> None:
        self.app, self.run_config, self.state = app, run_config, state
        self.nodes = {100 + i: i for i in range(clients)}
        self.ids = count()
        self.twist: Twist = lambda reply: reply
        self.log: list[tuple[str, int]] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        out = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.log.append((kind, node))
            config = {"partition-id": self.nodes[node], "state-folder": str(self.state)}
            context = Context(
                run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=self.run_config
            )
            reply = self.app(message, context)
            reply = self.twist(reply) if kind == "train" else reply
            out += [] if reply is None else reply if isinstance(reply, list) else [reply]
        return out[::-1]  # not in the order of the clients: who relies on it is wrong

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *a: Any, **k: Any) -> Message: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...
