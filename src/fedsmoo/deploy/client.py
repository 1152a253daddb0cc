"""A client's part of a federation, without a network: one request in, one answer out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedsmoo.algorithms.statistics import Recomputed
from fedsmoo.core import Algorithm, FedsmooError, Round, Vectors
from fedsmoo.data.batches.augment import drawing
from fedsmoo.data.batches.plan import make_plan
from fedsmoo.data.check import channel_statistics
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.sources import load
from fedsmoo.deploy.store import ClientStore
from fedsmoo.engines.client_state.memory import refuse_too_large_plan
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.facts import Facts, keys_of
from fedsmoo.engines.failure import explained
from fedsmoo.engines.serial import train_client
from fedsmoo.models import FlatModel, make_module, wrap
from fedsmoo.models.loss import SampleLoss
from fedsmoo.runs.build import make_setup
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import make_clients, with_client_inputs
from fedsmoo.runs.origin.user_files import start_of

OWN_SCALE = (
    "images are normalised by the mean and std of this node's own samples, so that clients and server see them "
    "differently: give all of them the same, from_arrays(..., mean=[...], std=[...])"
)


@functools.lru_cache(maxsize=1)
def _whole(dataset: str, path: str | None, seed: int) -> Dataset:
    return load(dataset, path, seed)  # a federation takes no data from files of code: no options


def whole(config: Config) -> Dataset:
    """Return the data set that the settings name; apps that people have made import it by this name."""
    return _whole(config.dataset, config.data, config.seed)


def share_of(client: int, config: Config) -> Dataset:
    """Return a client's share of a public data set, by the partition in the settings: for trying things out."""
    data = whole(config)
    shares = make_clients(config, data)
    if not 0 <= client < len(shares):
        raise FedsmooError(f"there is no client {client}: the settings divide the data among {len(shares)} clients")
    data = with_client_inputs(config, data, shares)
    index = torch.from_numpy(shares[client])
    weights = None if data.weights is None else data.weights[index]
    mine = replace(data, x_train=data.x_train[index], y_train=data.y_train[index], weights=weights)
    return replace(mine, natural=None, natural_test=None)


def own_scale(data: Dataset, clients: int) -> str | None:
    """Return a warning where a node normalises its images by their own mean and std, as no other node does."""
    own = data.is_image and clients > 1 and (data.mean, data.std) == channel_statistics(data.x_train)
    return OWN_SCALE if own else None


@dataclass(frozen=True)
class Recipe:
    """What a federation trains, beside its settings. Client and server must be given the same.

    ``data(client, config)`` returns a client's own samples as a ``Dataset`` and is called on its node; ``test(config)``
    returns the server's test data; ``model(config, data)`` makes a module instead of the settings' ``model``.
    """

    data: Callable[[int, Config], Dataset] = share_of
    test: Callable[[Config], Dataset] = whole
    model: Callable[[Config, Dataset], nn.Module] | None = None
    algorithm: Algorithm | None = None
    loss: SampleLoss | None = None

    def setup(self, config: Config, data: Dataset) -> Setup:
        """Return the method, the model and the data, ready for training or evaluation.

        Raises:
            FedsmooError: if the model's running statistics are to be recomputed, for which no node has the samples.
        """
        model: FlatModel | None = None
        if (factory := self.model) is not None:
            module = make_module(lambda: factory(config, data), config.seed)
            model = wrap(module, data, config.seed, output=config.output, start=start_of(config))
        setup = make_setup(config, data, self.algorithm, model, self.loss)
        if type(setup.algorithm) is Recomputed:
            raise FedsmooError(
                "statistics is 'recomputed', but nobody in a federation holds samples of all clients: leave it out "
                "(they are averaged), or set it to local"
            )
        return setup


@dataclass(frozen=True)
class RoundRequest:
    """What the server asks of a client in a round.

    ``known`` is the version of its vectors to go on from, 0 for none; those from ``keep`` on may be asked for again.
    """

    session: str
    number: int
    client: int
    lr: float
    share: float
    known: int
    down: Vectors
    keep: int = 0


@dataclass(frozen=True)
class Answer:
    """What a client sends back; ``version`` names the vectors it has kept meanwhile."""

    up: Vectors
    loss: float
    drift: float
    steps: int
    samples: int
    version: int


def answer(config: Config, setup: Setup, request: RoundRequest, root: Path) -> Answer:
    """Train one round, from the version of this client's vectors that the server knows, and keep the new version."""
    setup = replace(setup, algorithm=setup.algorithm.at(request.number))
    algorithm, task, samples = setup.algorithm, setup.task, len(setup.task.data.x_train)
    store = ClientStore(root, request.session, request.client)
    down = with_what_stays(setup, request.down.map(lambda v: v.to(task.device)))
    if not algorithm.own or request.known == 0:
        own = algorithm.first_contact(down)
    else:
        lengths = {n: algorithm.length(n, task.model.layout.size) for n in algorithm.own}
        own = store.load(request.known, lengths).map(lambda v: v.to(task.device))
    draw = drawing(task.data.x_train.shape[1]) if task.augment else None
    indices = {request.client: np.arange(samples)}
    refuse_too_large_plan([samples], 1, config.batch_size, config.epochs, config.local_steps, task.augment)
    plan = make_plan(
        config.seed, request.number, [request.client], indices, config.batch_size, config.epochs,
        config.local_steps, draw, config.batch_size,
    )  # fmt: skip
    steps = int(plan.steps[0])
    facts = {**Facts(task, indices).of_one(request.client, algorithm, down.w), "key": keys_of(plan, task.device)[0]}
    rnd = Round(request.number, request.lr, steps, request.share, **facts)
    with explained("serial", first=request.known == 0):
        w, me, up, loss = train_client(setup, down, own, plan, rnd)
    version = request.number + 1
    if algorithm.own:
        store.save(version, me)
        store.prune(below=request.keep)
    drift = (w - down.w).square().sum().item()
    return Answer(setup.masks.cut(up), loss.item(), drift, steps, samples, version)


def with_what_stays(setup: Setup, down: Vectors) -> Vectors:
    """Return what arrived, with what never travels: masks, and the numbers that stay as they were before round 1."""
    masks, task = setup.masks, setup.task
    if masks.stays is not None:
        first = setup.algorithm.init(task.model.initial().to(task.device, task.dtype))
        down = masks.grown(down, setup.algorithm.sent(masks.beside(first)))
    return masks.beside(down)
