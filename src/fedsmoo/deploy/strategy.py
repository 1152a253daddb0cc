"""Flower's view of the server: find nodes, send, and hand replies on to be judged."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable
from logging import INFO, WARNING
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.deploy.client import Answer
from fedsmoo.deploy.judge import Reply, RoundReport
from fedsmoo.deploy.members import fingerprint
from fedsmoo.deploy.server import Coordinator
from fedsmoo.deploy.settings import to_json
from fedsmoo.deploy.waiting import Answers, Exchange
from fedsmoo.deploy.wire import Refusal, brief_value, plain_of, to_arrays

HELLO = "query.hello"
TOO_OLD = (3, 4)  # Flower's codes for a message, or a reply to it, that is past its time
log = logging.getLogger("flwr").log


def raw_bytes(record: ArrayRecord) -> dict[str, bytes]:
    """Return the undecoded arrays of a record; they are read only after their headers were checked."""
    return {str(n): a.data for n, a in record.items()}


def only_record(record: RecordDict, kind: str) -> Any:
    """Return the only record of a kind, an empty one if there is none; raises a ``Refusal`` if there are several."""
    found = list(getattr(record, kind).values())
    if len(found) > 1:
        raise Refusal("incomplete", f"{len(found)} {kind.replace('_', ' ')}, not one")
    return found[0] if found else {}


def arrays_of(vectors: Vectors, wire: str, plain: Collection[str] = ()) -> ArrayRecord:
    return ArrayRecord({n: Array(a) for n, a in to_arrays(vectors, wire, plain).items()})


class FlowerStrategy(Strategy):
    """Flower's view of a :class:`Coordinator`: it finds nodes, sends, and hands replies on to be judged."""

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.coordinator, self.clock, self.sleep = coordinator, clock, sleep
        self.clients: dict[int, int] = {}  # node -> client
        self.keys: dict[int, str] = {}  # node -> fingerprint of its key, of those that are present
        self.refused: dict[int, int] = {}  # node -> the round in which it was not let in
        self.silent: set[int] = set()  # nodes that did not say in time who they are: nobody waits for them again
        self.asked: dict[int, Message] = {}  # client -> this round's message
        self.unreadable: dict[int, Refusal] = {}  # client -> what was wrong with this round's reply, before it was read
        self.begun = False

    def summary(self) -> None:
        c = self.coordinator
        log(INFO, "\t└── %s, %d of %d clients a round, wire %s, %s, from round %d", c.setup.algorithm.label,
            c.config.cohort, c.config.clients, c.wire, c.federation.aggregate, c.number + 1)  # fmt: skip

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **options: Any) -> Result:
        """Carry out rounds as Flower does, but wait for replies as :class:`Exchange` does."""
        patient: Any = PatientGrid(grid, self)
        return super().start(patient, initial_arrays, *args, **options)

    # -- who is there

    def refresh(self, exchange: Exchange) -> dict[int, int]:
        """Return the nodes that are present, by client; new ones are asked who they are."""
        c = self.coordinator
        nodes = {n.node_id: n.public_key for n in exchange.grid.get_nodes()}
        bind = c.federation.client_keys == "bind"
        self.keys = {n: fingerprint(key) if bind else "" for n, key in nodes.items()}
        turned = {n for n, number in self.refused.items() if number == c.number}
        new = sorted(set(nodes) - set(self.clients) - exchange.busy - turned)
        ask = RecordDict({"ask": ConfigRecord({"config": to_json(c.config)})})
        timeout = c.federation.round_timeout
        messages = [Message(ask, dst_node_id=node, message_type=HELLO, ttl=timeout) for node in new]
        missing = min(c.config.cohort, c.config.clients) - len(set(self.clients) & set(nodes))
        waited_for = set(new) - self.silent if missing > 0 else set()
        found = exchange.ask(messages, waited_for, min(max(missing, 0), len(waited_for)), timeout)
        self.silent |= waited_for - {reply.metadata.src_node_id for reply in found.replies}
        self.greet(found)
        self.remember(exchange)
        return {client: node for node, client in self.clients.items() if node in nodes}

    def greet(self, found: Answers) -> None:
        """Let in who answered, in an order that does not depend on who was first."""
        for node, why in found.unreadable.items():
            self.turn_away(node, why)
        for reply in sorted(found.replies, key=lambda r: r.metadata.src_node_id):
            self.meet(reply)

    def meet(self, reply: Message) -> None:
        """Note which client a node holds; a client that another live node holds is not given away."""
        node = reply.metadata.src_node_id
        try:
            if reply.has_error():
                raise Refusal("error", f"code {reply.error.code}: {(reply.error.reason or '').strip()[:200]}")
            facts = only_record(reply.content, "config_records")
            client = facts.get("client")
            if type(client) is not int or not 0 <= client < self.coordinator.config.clients:
                said = facts.get("detail", client)
                raise Refusal("no such client", said if isinstance(said, str) else brief_value(said))
            holder = next((n for n, c in self.clients.items() if c == client and n != node and n in self.keys), None)
            if holder is not None:
                raise Refusal("client taken", f"client {client} is held by node {holder}")
            self.coordinator.meet(client, self.keys.get(node, ""), facts.get("samples"))
        except Refusal as e:
            self.turn_away(node, e)
            return
        self.clients = {n: c for n, c in self.clients.items() if c != client} | {node: client}
        self.silent.discard(node)

    def turn_away(self, node: int, why: Refusal) -> None:
        """Do not let a node in; it is asked again in the next round."""
        self.refused[node] = self.coordinator.number
        log(WARNING, "fedsmoo: node %s is left out: %s", node, why)

    def remember(self, exchange: Exchange) -> None:
        """Take note of answers that came too late: their senders are there again."""
        late, exchange.late = exchange.late, Answers()
        for reply in late.replies:
            client = self.clients.get(reply.metadata.src_node_id)
            if client is None and not reply.has_error():
                self.meet(reply)
            elif client is not None:
                members = self.coordinator.members
                members.known[client] = members.of(client).late()

    # -- a round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        c, exchange = self.coordinator, getattr(grid, "exchange", None) or Exchange(grid, self.clock, self.sleep)
        most = min(c.config.cohort, c.config.clients)
        enough = c.need(most) if self.begun else most  # a federation that has just been started: nodes are connecting
        nodes, until = self.refresh(exchange), self.clock() + c.federation.wait
        while len(nodes) < enough and self.clock() < until:
            self.sleep(1)
            nodes = self.refresh(exchange)
        self.begun, busy = True, exchange.busy
        cohort = c.draw([client for client, node in nodes.items() if node not in busy])
        down = arrays_of(c.sent(), c.wire, plain_of(c.setup.algorithm))
        common: dict[str, Any] = {
            "config": to_json(c.config), "session": c.session, "number": c.number, "lr": c.lr,
            "share": len(cohort) / c.config.clients,
        }  # fmt: skip
        self.asked = {
            i: Message(
                RecordDict(
                    {"down": down, "ask": ConfigRecord({**common, "known": c.known.get(i, 0), "keep": c.kept(i)})}
                ),
                dst_node_id=nodes[i],
                message_type=MessageType.TRAIN,
                ttl=c.federation.round_timeout,
                group_id=str(c.number),
            )
            for i in cohort
        }
        return list(self.asked.values())

    def collect(self, exchange: Exchange, messages: list[Message], timeout: float | None) -> list[Message]:
        """Send a round's messages and wait: for all clients that have always answered, not for others."""
        c = self.coordinator
        clients = {m.metadata.dst_node_id: i for i, m in self.asked.items()}
        waited_for = [node for node, i in clients.items() if c.members.of(i).waited_for]
        seconds = min(timeout or math.inf, c.federation.round_timeout)
        found = exchange.ask(messages, waited_for, c.need(len(messages)), seconds) if messages else Answers()
        self.unreadable = {clients[node]: why for node, why in found.unreadable.items()}
        return found.replies

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers: dict[int, Answer] = {}
        refused: dict[int, Refusal] = {}
        for reply in replies:
            client = self.sender(reply)
            if client is None:
                log(WARNING, "fedsmoo: a reply that nobody was asked for, from node %s", reply.metadata.src_node_id)
                continue
            if client in answers or client in refused:
                log(WARNING, "fedsmoo: client %d answered twice; its first answer counts", client)
                continue
            try:
                answers[client] = self.read(client, reply)
            except Refusal as e:
                refused[client] = e
        report = self.coordinator.close(sorted(self.asked), answers, {**self.unreadable, **refused})
        for client, why in report.refused.items():
            log(WARNING, "fedsmoo: round %d: client %d is left out: %s", report.round, client, why)
        if report.skipped:
            log(WARNING, "fedsmoo: round %d changes nothing: %s", report.round, report.skipped)
        for client, share in report.capped.items():
            most = self.coordinator.federation.max_share
            log(WARNING, "fedsmoo: round %d: client %d counts for %g, not for %.3g", report.round, client, most, share)
        return ArrayRecord({"w": Array(self.coordinator.server.w.cpu().numpy())}), metrics_of(report)

    def sender(self, reply: Message) -> int | None:
        """Return the client that was asked what this answers; error replies are sent by somebody else in its name."""
        to, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
        asked = (i for i, m in self.asked.items() if to and m.metadata.message_id == to)
        return next((i for i in asked if reply.has_error() or self.asked[i].metadata.dst_node_id == node), None)

    def read(self, client: int, reply: Message) -> Answer:
        """Return a client's answer; raises a ``Refusal`` if it is not sound."""
        if reply.has_error():
            reason = "missing" if reply.error.code in TOO_OLD else "error"
            raise Refusal(reason, f"code {reply.error.code}: {(reply.error.reason or '').strip()[:200]}")
        try:
            content = reply.content
            facts, numbers = only_record(content, "config_records"), only_record(content, "metric_records")
            arrays = only_record(content, "array_records")
            raw = Reply(dict(facts), dict(numbers), raw_bytes(arrays) if arrays else {})
            return self.coordinator.judge(client, raw)
        except (Refusal, FedsmooError):
            raise
        except Exception as e:  # whatever somebody sends ends its own round at most
            raise Refusal("unreadable bytes", type(e).__name__) from e

    # -- evaluation is the server's own business: on its test data, in close()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None


class PatientGrid:
    """What Flower's loop sees of a grid: it sends a round's messages and gets the replies, when the strategy says."""

    def __init__(self, grid: Grid, strategy: FlowerStrategy) -> None:
        self.exchange, self.strategy = Exchange(grid, strategy.clock, strategy.sleep), strategy

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.strategy.collect(self.exchange, list(messages), timeout)


def metrics_of(report: RoundReport) -> MetricRecord:
    """Return a round in numbers for Flower's logs; what was left out is counted, reason by reason."""
    numbers: dict[str, Any] = {
        "round": report.round, "asked": len(report.cohort), "accepted": len(report.accepted),
        "left-out": len(report.refused), "skipped": int(report.skipped is not None),
    }  # fmt: skip
    for name in ("train_loss", "drift", "test_accuracy", "test_loss"):
        if (value := getattr(report, name)) is not None:
            numbers[name.replace("_", "-")] = value
    numbers |= {f"test-{n}": v for n, v in report.metrics.items() if v is not None}
    return MetricRecord(numbers | {f"left-out: {reason}": n for reason, n in report.reasons.items()})
