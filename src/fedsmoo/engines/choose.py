"""Choose the engine of a run: the named one, or one by a rule. Nothing is timed: load must not decide about bits."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.core.random.streams import generator_apart
from fedsmoo.data.batches.augment import drawing
from fedsmoo.data.batches.plan import make_plan
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.batched import Batched, group_by_length_if_coupled
from fedsmoo.engines.client_state.memory import ran_out
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Engine, RoundInputs, Setup
from fedsmoo.engines.devices import synchronize
from fedsmoo.engines.facts import Facts, keys_of
from fedsmoo.engines.failure import of_the_method, of_the_model
from fedsmoo.engines.looking.fitting import outputs_of
from fedsmoo.engines.oracles.drawing import unlike_alone
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.task import Task
from fedsmoo.engines.threads import Threads
from fedsmoo.models.base import FlatModel

ENGINES = {
    "auto": "one of the others, by a rule of the model, the cohort and the device; a run says which, and why",
    "serial": "one client after the other: the readable reference",
    "threads": "several clients at the same time, each in a thread of a CPU",
    "batched": "all clients of a cohort at once, by the model's hand-batched forward (vmap if it has none)",
    "vmap": "all clients of a cohort at once, by torch.func.vmap over any module",
}
ANY_MODEL = ("serial", "threads")  # engines that take any
# What a CPU trains faster one client in a thread (measured: benchmarks/cpu/engines.py and models.py, docs/models.md).
CONVOLUTIONS = (nn.modules.conv._ConvNd,)
ALONE = "use engine=serial, or padded sequences whose last outputs the model picks"
FEW = 3  # clients: with fewer, what a batch saves is less than what it costs
SMALL_IMAGE = 12 * 12  # pixels
LARGE = 100_000  # parameters: the vectors of a batch of such models leave a CPU's cache
# Samples in a batch times units, and that times positions: beyond both, PyTorch's LSTM of one client is faster than
# ours of many.
LSTM_WORK, LSTM_SERIES = 400, 10_000


@dataclass(frozen=True)
class Choice:
    """An engine's name, and why it was taken, in a few words."""

    engine: str
    why: str


def choose(task: Task, cohort: int, batch_size: int = 1) -> Choice:
    """Choose an engine by the rule of ``engine=auto``: the first line that fits decides."""
    model = task.model
    if task.device.type == "cuda":
        return Choice("batched", "a GPU trains all clients at once")
    if cohort == 1:
        return Choice("serial", "a cohort of 1")
    if reason := fills_a_core(task, batch_size):
        return Choice("threads", f"{reason}, on a CPU")
    if cohort < FEW:
        return Choice("serial", f"a cohort of {cohort}")
    if model.batched is not None and not model.random:
        return Choice("batched", "the model has a hand-batched forward")
    return Choice("vmap", "a small model")


def fills_a_core(task: Task, batch_size: int) -> str:
    """Return why one client is enough work for a core, so that a batch of clients gains nothing; empty if it is not."""
    model = task.model
    if has_layer(model, CONVOLUTIONS) and pixels(task.data) > SMALL_IMAGE:
        return "convolutions on images over 12x12"
    if model.layout.count > LARGE:
        return f"over {LARGE:,} parameters"
    units = max((m.hidden_size for m in model.module.modules() if isinstance(m, nn.LSTM)), default=0)
    if units * batch_size > LSTM_WORK and (steps := longest(task)) * units * batch_size > LSTM_SERIES:
        return f"an LSTM of {units} units on batches of {batch_size}, over {steps} positions"
    return ""


def has_layer(model: FlatModel, layers: tuple[type[nn.Module], ...]) -> bool:
    """Return whether a model has a layer of one of these types."""
    return any(isinstance(part, layers) for part in model.module.modules())


def pixels(data: Dataset) -> int:
    """Return the number of positions of a sample: all its numbers, divided by the channels."""
    shape = data.x_train.shape[1:]
    channels = 1 if len(shape) < 2 else shape[-1] if data.is_image else shape[0]
    return shape.numel() // max(channels, 1)


def packs(task: Task) -> bool:
    """Return whether a model gives packed sequences to a recurrent layer: as many rows as a batch has tokens."""
    return any(isinstance(given, PackedSequence) for _, given in recurrent_inputs(task))


def longest(task: Task) -> int:
    """Return the most positions that a recurrent layer of a model goes through."""
    found = [1]
    for layer, given in recurrent_inputs(task):
        if isinstance(given, PackedSequence):
            found.append(len(given.batch_sizes))
        elif given.dim() > 1:
            found.append(given.shape[1 if layer.batch_first and given.dim() == 3 else 0])
    return max(found)


def recurrent_inputs(task: Task) -> list[tuple[nn.RNNBase, Any]]:
    """Return the recurrent layers of a model in the order in which they are called, and what each is given."""
    layers = [part for part in task.model.module.modules() if isinstance(part, nn.RNNBase)]
    found: list[tuple[nn.RNNBase, Any]] = []
    hooks = [part.register_forward_pre_hook(lambda layer, given: found.append((layer, given[0]))) for part in layers]
    try:
        if layers:
            outputs_of(task, task.data.x_train[:2])
    finally:
        for hook in hooks:
            hook.remove()
    return found


def make_engine(
    name: str, setup: Setup, chunk: int | None, cohort: int, batch_size: int, table: ClientTable | None = None
) -> Engine:
    """Make an engine by name; ``auto`` follows the rule, or takes ``serial`` where that engine cannot run the model.

    Raises:
        FedsmooError: for an unknown name, or if no engine can run the model with the method.
    """
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    group_by_length_if_coupled(setup)
    choice = choose(setup.task, cohort, batch_size) if name == "auto" else Choice(name, f"engine={name}")
    if name == "auto" and choice.engine not in ANY_MODEL and setup.task.model.random:
        reason = unlike_alone(setup.task)
        choice = Choice("serial", reason) if reason else choice
    if choice.engine not in ANY_MODEL and packs(setup.task):
        if name != "auto":
            raise FedsmooError(f"packed sequences cannot be trained in a batch of clients: {ALONE}")
        choice = Choice("serial", "packed sequences, of which clients have different numbers")
    if name == "auto" and setup.task.device.type != "cuda":
        choice = checked_by_trial(choice, setup, min(cohort, FEW), batch_size)
    return build_engine(choice, setup, chunk, batch_size, table)


def build_engine(
    choice: Choice, setup: Setup, chunk: int | None, batch_size: int, table: ClientTable | None = None
) -> Engine:
    """Make the engine of a choice."""
    if choice.engine == "serial":
        return Serial(setup, table, choice.why)
    if choice.engine == "threads":
        return Threads(setup, table, choice.why, batch_size)
    oracle = "vmap" if choice.engine == "vmap" else "auto"
    return Batched(setup, table, oracle, chunk, batch_size, choice.why)


def checked_by_trial(choice: Choice, setup: Setup, clients: int, batch_size: int) -> Choice:
    """Return the choice if one step of a few clients shows that it can run the model with the method, else ``serial``.

    Raises:
        FedsmooError: if neither can.
    """
    if choice.engine in ANY_MODEL:  # the first round says what is wrong, if anything is
        return choice
    failed = first_error(build_engine(choice, setup, None, batch_size), setup, clients, batch_size)
    if failed is None:
        return choice
    alone = first_error(Serial(setup), setup, clients, batch_size)
    if alone is not None:
        reasons = f"{choice.engine}: {failed}; serial: {alone}"
        x = setup.task.inputs(setup.task.data.x_train[:1])
        whole = (
            "" if x.is_floating_point() else "; samples are whole numbers: convert them if the model multiplies them"
        )
        raise FedsmooError(f"no engine can run this model with this method. {reasons}{whole}")
    return Choice("serial", f"{choice.engine} cannot run it: {shorten(failed, 120, placeholder=' ...')}")


def first_error(engine: Engine, setup: Setup, clients: int, batch_size: int) -> str | None:
    """Return what the model raises in one local step of a few clients, in a line; ``None`` if that works.

    Rows are written to the engine's own table. Errors of a user's method (as FedsmooError), our own bugs, and memory
    that ran out are raised: none of them says that another engine would do better.
    """
    try:
        with generator_apart():
            engine.run_round(one_step_inputs(setup, clients, batch_size))
            synchronize(setup.task.device)  # errors of a GPU are raised where it is waited for
    except FedsmooError:
        raise
    except Exception as e:  # vmap cannot take every module
        if method := of_the_method(e):
            raise FedsmooError(method) from e
        found = None if ran_out(e) else of_the_model(e)
        if found is None:
            raise
        return found
    return None


def one_step_inputs(setup: Setup, clients: int, batch_size: int) -> RoundInputs:
    """Return a round of one local step on the first training samples, the same for every client."""
    task, cohort = setup.task, list(range(clients))
    samples = [np.arange(min(batch_size, len(task.data.x_train)))] * clients
    draw = drawing(task.data.x_train.shape[1]) if task.augment else None
    plan = make_plan(0, 0, cohort, samples, batch_size, steps=1, draw=draw)
    w = task.model.initial().to(task.device, task.dtype)
    algorithm = setup.algorithm.at(0)
    down, lr = setup.masks.sent(algorithm, algorithm.init(w)), 1e-3  # by which methods may divide
    facts = {**Facts(task, samples).of(cohort, algorithm, w), "key": keys_of(plan, task.device)}
    return RoundInputs(0, down, cohort, plan, lr, 1.0, [1 / clients] * clients, algorithm, facts=facts)
