"""Any method as a Flower app: a ``ClientApp`` and a ``Strategy`` with no line that knows a method by name.

    app = client_app(data=my_data)       # in the app's client.py; my_data(client, config) -> Dataset
    app = server_app()                   # in its server.py

Both take the same recipe. What travels is what the method declares: ``down`` to the clients of the cohort, ``up`` back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from logging import ERROR, INFO, WARNING
from typing import Any

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.deploy.client import Answer, Recipe, RoundRequest, answer
from fedsmoo.deploy.judge import MAX_SAMPLES, Reply
from fedsmoo.deploy.server import Coordinator, RoundReport
from fedsmoo.deploy.settings import from_json, parse, state_folder, to_json
from fedsmoo.deploy.store import Missing
from fedsmoo.deploy.wire import Refusal, from_arrays, to_arrays, wire_of

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import Strategy
except ImportError as e:  # pragma: no cover
    raise FedsmooError(f"a federation needs Flower: pip install 'fedsmoo[flower]' ({e})") from e

HELLO = "query.hello"
log = logging.getLogger("flwr").log


def raw_bytes(record: ArrayRecord) -> dict[str, bytes]:
    """Return the undecoded arrays of a record; they are read only after their headers were checked."""
    return {str(n): a.data for n, a in record.items()}


def first(record: RecordDict, kind: str) -> Any:
    """Return the only record of a kind, an empty one if there is none; raises a ``Refusal`` if there are several."""
    found = list(getattr(record, kind).values())
    if len(found) > 1:
        raise Refusal("incomplete", f"{len(found)} {kind.replace('_', ' ')}, not one")
    return found[0] if found else {}


# -- the client


def client_app(recipe: Recipe | None = None, **parts: Any) -> ClientApp:
    """Make a Flower ``ClientApp``. ``parts`` are the fields of a :class:`Recipe`, such as ``data``."""
    chosen, app = recipe or Recipe(**parts), ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        """Say which client this node holds, and how many samples it has."""

        def reply() -> RecordDict:
            config = from_json(str(message.content["ask"]["config"]))
            client = client_of(context)
            facts: dict[str, Any] = {"client": client, "samples": len(chosen.data(client, config).x_train)}
            return RecordDict({"facts": ConfigRecord(facts)})

        return Message(in_words(reply), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train this node's client for one round."""
        return Message(in_words(lambda: train_reply(chosen, message.content, context)), reply_to=message)

    return app


def client_of(context: Context) -> int:
    """Return the client that a node holds, from its configuration."""
    value = context.node_config.get("partition-id")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FedsmooError('this node does not say which client it is: start it with --node-config "partition-id=0"')
    return value


def in_words(reply: Callable[[], RecordDict]) -> RecordDict:
    """Return a reply, or a message with the reason why there is none."""
    try:
        return reply()
    except Missing as e:
        return RecordDict({"facts": ConfigRecord({"refused": "lost state", "detail": str(e)})})
    except (FedsmooError, Refusal) as e:
        log(WARNING, "fedsmoo: %s", e)
        return RecordDict({"facts": ConfigRecord({"refused": "client error", "detail": str(e)})})


def train_reply(chosen: Recipe, content: RecordDict, context: Context) -> RecordDict:
    """Return what a client answers to the server's message of a round."""
    ask: Any = content["ask"]
    config, client = from_json(str(ask["config"])), client_of(context)
    setup = chosen.setup(config, chosen.data(client, config))
    task, wire = setup.task, wire_of(setup.algorithm)
    down = from_arrays(
        raw_bytes(first(content, "array_records")),
        tuple(setup.algorithm.down),
        task.model.layout.size - setup.masks.staying,
        task.dtype,
        wire,
        setup.algorithm.scalars,
    )
    session, number = str(ask["session"]), int(ask["number"])
    request = RoundRequest(session, number, client, float(ask["lr"]), float(ask["share"]), int(ask["known"]), down)
    done = answer(config, setup, request, state_folder(context.node_config, context.run_config))
    facts: dict[str, Any] = {"session": session, "number": number, "client": client, "version": done.version}
    numbers: dict[str, Any] = {"loss": done.loss, "drift": done.drift, "steps": done.steps, "samples": done.samples}
    up = arrays_of(done.up, wire, setup.algorithm.scalars)
    return RecordDict({"facts": ConfigRecord(facts), "numbers": MetricRecord(numbers), "up": up})


def arrays_of(vectors: Vectors, wire: str, scalars: Collection[str] = ()) -> ArrayRecord:
    return ArrayRecord({n: Array(a) for n, a in to_arrays(vectors, wire, scalars).items()})


# -- the server


def server_app(recipe: Recipe | None = None, **parts: Any) -> ServerApp:
    """Make a Flower ``ServerApp`` that runs all rounds that are left, and may be started again."""
    chosen, app = recipe or Recipe(**parts), ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(chosen, grid, context)
        except FedsmooError as e:
            log(ERROR, "fedsmoo: %s", e)
            raise

    return app


def serve(chosen: Recipe, grid: Grid, context: Context) -> None:
    """Carry out all rounds that are left of the federation that a run's settings describe."""
    config, federation = parse(context.run_config)
    coordinator = Coordinator(config, federation, chosen.setup(config, chosen.test(config)))
    if coordinator.finished:
        log(INFO, "fedsmoo: all %d rounds are done; the model is in %s", config.rounds, coordinator.folder)
        return
    FlowerStrategy(coordinator).start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(coordinator.server.w.cpu().numpy())}),
        num_rounds=config.rounds - coordinator.number,
        timeout=federation.round_timeout,
    )
    log(INFO, "fedsmoo: the model and the rounds are in %s", coordinator.folder)


class FlowerStrategy(Strategy):
    """Flower's view of a :class:`Coordinator`: it finds nodes, sends, and hands replies on to be judged."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.clients: dict[int, int] = {}  # node -> client
        self.samples: dict[int, int] = {}  # client -> how many samples it said to have
        self.asked: dict[int, Message] = {}  # client -> this round's message

    def summary(self) -> None:
        c = self.coordinator
        log(INFO, "\t└── %s, %d of %d clients a round, wire %s, from round %d", c.setup.algorithm.label,
            c.config.cohort, c.config.clients, c.wire, c.number + 1)  # fmt: skip

    # -- who is there

    def refresh(self, grid: Grid) -> dict[int, int]:
        """Return the nodes that are present, by client; new ones are asked who they are."""
        here = set(grid.get_node_ids())
        new = sorted(here - set(self.clients))
        ask = RecordDict({"ask": ConfigRecord({"config": to_json(self.coordinator.config)})})
        timeout = self.coordinator.federation.round_timeout
        messages = [Message(ask, dst_node_id=node, message_type=HELLO, ttl=timeout) for node in new]
        replies = grid.send_and_receive(messages, timeout=timeout) if messages else ()
        for reply in sorted(replies, key=lambda r: r.metadata.src_node_id):
            self.meet(reply, here)
        return {client: node for node, client in self.clients.items() if node in here}

    def meet(self, reply: Message, here: set[int]) -> None:
        """Note which client a node holds; a client that another live node holds is not given away."""
        node = reply.metadata.src_node_id
        try:
            facts = {} if reply.has_error() else first(reply.content, "config_records")
            client, samples = facts.get("client"), facts.get("samples")
            if not isinstance(client, int) or not 0 <= client < self.coordinator.config.clients:
                raise Refusal("no such client", str(facts.get("detail", facts))[:300])
            if not isinstance(samples, int) or not 0 < samples <= MAX_SAMPLES:
                raise Refusal("no such client", str(facts.get("detail", facts))[:300])
            holder = next((n for n, c in self.clients.items() if c == client and n != node and n in here), None)
            if holder is not None:
                raise Refusal("client taken", f"client {client} is held by node {holder}")
        except Refusal as e:
            log(WARNING, "fedsmoo: node %s is left out: %s", node, e)
            return
        self.clients = {n: c for n, c in self.clients.items() if c != client} | {node: client}
        self.samples[client] = samples

    # -- a round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        c = self.coordinator
        nodes, until = self.refresh(grid), time.monotonic() + c.federation.wait
        while c.number == 0 and len(nodes) < min(c.config.cohort, c.config.clients) and time.monotonic() < until:
            time.sleep(1)  # a federation that has just been started: nodes are still connecting
            nodes = self.refresh(grid)
        cohort = c.draw(nodes)
        down = arrays_of(c.sent(), c.wire, c.setup.algorithm.scalars)
        common: dict[str, Any] = {
            "config": to_json(c.config), "session": c.session, "number": c.number, "lr": c.lr,
            "share": len(cohort) / c.config.clients,
        }  # fmt: skip
        self.asked = {
            i: Message(
                RecordDict({"down": down, "ask": ConfigRecord({**common, "known": c.known.get(i, 0)})}),
                dst_node_id=nodes[i],
                message_type=MessageType.TRAIN,
                ttl=c.federation.round_timeout,
                group_id=str(c.number),
            )
            for i in cohort
        }
        return list(self.asked.values())

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
            try:
                if client in answers or client in refused:
                    raise Refusal("duplicate", "answered twice")
                answers[client] = self.read(client, reply)
            except Refusal as e:
                if client not in answers:  # the first answer of a client that answers twice counts
                    refused[client] = e
                else:
                    log(WARNING, "fedsmoo: client %d answered twice; its first answer counts", client)
        report = self.coordinator.close(sorted(self.asked), answers, refused)
        for client, why in report.refused.items():
            log(WARNING, "fedsmoo: round %d: client %d is left out: %s", report.round, client, why)
        if report.skipped:
            log(WARNING, "fedsmoo: round %d changes nothing: %s", report.round, report.skipped)
        return ArrayRecord({"w": Array(self.coordinator.server.w.cpu().numpy())}), metrics_of(report)

    def sender(self, reply: Message) -> int | None:
        """Return the client that a reply comes from: error replies are sent by somebody else, so go by the message."""
        to = reply.metadata.reply_to_message_id
        by_message = (c for c, m in self.asked.items() if to and m.metadata.message_id == to)
        by_node = (c for c, m in self.asked.items() if m.metadata.dst_node_id == reply.metadata.src_node_id)
        return next(by_message, None) if reply.has_error() else next(by_node, None)

    def read(self, client: int, reply: Message) -> Answer:
        """Return a client's answer; raises a ``Refusal`` if it is not sound."""
        if reply.has_error():
            raise Refusal("error", f"code {reply.error.code}: {(reply.error.reason or '').strip()[-200:]}")
        content = reply.content
        facts, numbers = first(content, "config_records"), first(content, "metric_records")
        arrays = first(content, "array_records")
        raw = Reply(dict(facts), dict(numbers), raw_bytes(arrays) if arrays else {})
        return self.coordinator.judge(client, self.samples[client], raw)

    # -- evaluation is the server's own business: on its test data, in close()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None


def metrics_of(report: RoundReport) -> MetricRecord:
    """Return a round in numbers for Flower's logs; what was left out is counted, reason by reason."""
    numbers: dict[str, Any] = {
        "round": report.round, "asked": len(report.cohort), "accepted": len(report.accepted),
        "left-out": len(report.refused), "skipped": int(report.skipped is not None),
    }  # fmt: skip
    for name in ("train_loss", "drift", "test_accuracy", "test_loss"):
        if (value := getattr(report, name)) is not None:
            numbers[name.replace("_", "-")] = value
    return MetricRecord(numbers | {f"left-out: {reason}": n for reason, n in report.reasons.items()})
