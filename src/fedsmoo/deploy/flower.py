"""Any method as a Flower app: a ``ClientApp`` and a ``Strategy`` with no line that knows a method by name.

    app = client_app(data=my_data)       # in the app's client.py; my_data(client, config) -> Dataset
    app = server_app()                   # in its server.py

Both take the same recipe. What travels is what the method declares: ``down`` to the clients of the cohort, ``up`` back.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import ERROR, INFO, WARNING
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.untrusted import text
from fedsmoo.deploy.client import Recipe, RoundRequest, answer, own_scale
from fedsmoo.deploy.server import Coordinator
from fedsmoo.deploy.settings import Federation, from_json, parse, server_folder, state_folder
from fedsmoo.deploy.store import Missing, alone
from fedsmoo.deploy.wire import Refusal, from_arrays, plain_of, wire_of
from fedsmoo.runs.config import Config

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as e:  # pragma: no cover
    raise FedsmooError(f"a federation needs Flower: pip install 'fedsmoo[flower]' ({e})") from e

from fedsmoo.deploy.strategy import FlowerStrategy, arrays_of, log, only_record, raw_bytes

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
            data = chosen.data(client, config)
            if note := own_scale(data, config.clients):
                log(WARNING, "fedsmoo: client %d: %s", client, note)
            facts: dict[str, Any] = {"client": client, "samples": len(data.x_train)}
            return RecordDict({"facts": ConfigRecord(facts)})

        return Message(reply_or_reason(reply), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train this node's client for one round."""
        return Message(reply_or_reason(lambda: train_reply(chosen, message.content, context)), reply_to=message)

    return app


def client_of(context: Context) -> int:
    """Return the client that a node holds, from its configuration."""
    value = context.node_config.get("partition-id")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise FedsmooError('this node does not say which client it is: start it with --node-config "partition-id=0"')
    return value


def reply_or_reason(reply: Callable[[], RecordDict]) -> RecordDict:
    """Return a reply, or a message with the reason why there is none."""
    try:
        return reply()
    except Missing as e:
        return RecordDict({"facts": ConfigRecord({"refused": "lost state", "detail": str(e)})})
    except (FedsmooError, Refusal) as e:
        log(WARNING, "fedsmoo: %s", text(e))
        return RecordDict({"facts": ConfigRecord({"refused": "client error", "detail": str(e)})})


def train_reply(chosen: Recipe, content: RecordDict, context: Context) -> RecordDict:
    """Return what a client answers to the server's message of a round."""
    ask: Any = content["ask"]
    config, client = from_json(str(ask["config"])), client_of(context)
    setup = chosen.setup(config, chosen.data(client, config))
    task, wire = setup.task, wire_of(setup.algorithm)
    down = from_arrays(
        raw_bytes(only_record(content, "array_records")),
        tuple(setup.algorithm.down),
        task.model.layout.size - setup.masks.staying,
        task.dtype,
        wire,
        plain_of(setup.algorithm),
    )
    session, number = str(ask["session"]), int(ask["number"])
    known = int(ask["known"])
    keep = int(ask.get("keep", known))
    request = RoundRequest(session, number, client, float(ask["lr"]), float(ask["share"]), known, down, keep)
    done = answer(config, setup, request, state_folder(context.node_config, context.run_config))
    facts: dict[str, Any] = {"session": session, "number": number, "client": client, "version": done.version}
    numbers: dict[str, Any] = {"loss": done.loss, "drift": done.drift, "steps": done.steps, "samples": done.samples}
    up = arrays_of(done.up, wire, plain_of(setup.algorithm))
    return RecordDict({"facts": ConfigRecord(facts), "numbers": MetricRecord(numbers), "up": up})


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
    with alone(server_folder(federation)):
        carry_out(chosen, grid, config, federation)


def carry_out(chosen: Recipe, grid: Grid, config: Config, federation: Federation) -> None:
    """Go on from the last finished round; the model is written again if a stop came before it, or while it was."""
    coordinator = Coordinator(config, federation, chosen.setup(config, chosen.test(config)))
    for line in coordinator.store.skipped:
        log(WARNING, "fedsmoo: %s; the state before it is used", line)
    if coordinator.finished:
        coordinator.export()
        log(INFO, "fedsmoo: all %d rounds are done; the model is in %s", coordinator.number, coordinator.folder)
        return
    FlowerStrategy(coordinator).start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(coordinator.server.w.cpu().numpy())}),
        num_rounds=config.rounds - coordinator.number,
        timeout=federation.round_timeout,
    )
    log(INFO, "fedsmoo: the model and the rounds are in %s", coordinator.folder)
