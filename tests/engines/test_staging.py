"""Samples in the host's memory, from where batches come through a ring of buffers: the same bits on every path."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedsmoo import simulate
from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.analysis.functions.consistency import client_losses
from fedsmoo.core import FedsmooError
from fedsmoo.data.dataset import Dataset, refuse_too_large
from fedsmoo.engines import devices
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.devices import staged
from fedsmoo.engines.steps.eager import EagerStepper
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.steps.staging import AHEAD, SLOTS, Ring
from fedsmoo.engines.task import Task
from fedsmoo.models import build

from .small import dataset, largest_gap, make_engine, simulation, trace


def stepped(setup: Setup, on_host: bool, stepper) -> Batched:
    return Batched(dataclasses.replace(setup, task=dataclasses.replace(setup.task, staged=on_host)), stepper=stepper)


@pytest.mark.parametrize("method", ["scaffold", "fedsmoo"])
@pytest.mark.parametrize(
    "stepper",
    [EagerStepper, *(partial(ReplayStepper, compile=False, groups=n, passes=False) for n in (1, 2))],
    ids=["eager", "recorded", "groups"],
)
def test_steppers_take_the_same_bits_from_the_ring(method, stepper):
    """Unequal clients, cohorts of changing size, and rounds longer than the ring."""
    found = [simulation(lambda s, h=h: stepped(s, h, stepper), "mlp", ALGORITHMS[method]()) for h in (False, True)]
    assert largest_gap(*map(trace, found)) == 0


def test_the_ring_holds_each_batch_when_its_steps_are_due():
    """What lies in the slots is the sample of the index, for steps taken two at a time and batches loaded ahead."""
    x = torch.arange(40.0)[:, None]
    data = Dataset("numbers", x, torch.arange(40), x[:1], torch.zeros(1, dtype=torch.int64), 40)
    task = Task(build("softmax", data, 0), data, torch.device("cpu"), staged=True)
    index = torch.from_numpy(np.random.default_rng(0).integers(0, 40, (9, 2, 3)))
    ring = Ring(task, 3, 3)  # room for a client more than there are
    for _ in range(2):  # rounds
        ring.begin(index)
        at = 0
        for loads in (1, 2, 2, 2, 1, 1):
            ring.need(at, at + loads)
            assert ring.staged >= at + loads
            for k in range(at, at + loads):
                found = ring.at(torch.tensor([k]))
                assert torch.equal(found.y[:2], index[k])
                assert torch.equal(found.x[:2, :, 0], index[k].float())
            ring.ahead()
            at += loads
            assert ring.staged == min(9, at - loads + SLOTS) >= min(9, at + AHEAD - 1)
    assert ring.slots.y.shape == (SLOTS, 3, 3)


def run_of(where: str, **more):
    net = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    torch.manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, std=0.2)
    settings = {"rounds": 3, "clients": 5, "cohort": 3, "batch_size": 16, "local_epochs": 1, "holdout": 0.2}
    return simulate(net, "digits", "fedavg", samples_in=where, progress=False, **settings | more)


@pytest.mark.parametrize("engine", ["serial", "vmap"])
def test_a_run_with_samples_on_the_host_has_the_bits_of_one_on_the_device(engine):
    """Held-out samples, statistics, evaluation and the method's question for losses all read from there."""
    one, other = (run_of(where, engine=engine, sampling="power_of_choice") for where in ("device", "host"))
    assert torch.equal(one.server.w, other.server.w)
    assert [r.test_accuracy for r in one.history] == [r.test_accuracy for r in other.history]
    assert other.simulation.setup.task.staged
    assert not one.simulation.setup.task.staged


def test_what_looks_at_clients_picks_their_samples_where_these_lie(monkeypatch):
    """Numbers of samples that lie on a GPU cannot pick samples of the host."""
    result, picked, plain = run_of("host", engine="serial"), [], Task.pick
    run = result.simulation

    def pick(task, index, test=False):
        picked.append((len(index), test))
        return plain(task, index, test)

    monkeypatch.setattr(Task, "pick", pick)
    result.evaluate_clients("train")
    result.evaluate_clients("held")
    client_losses(run.setup.task, run.indices, [0, 2])
    sizes = [len(i) for i in run.indices]
    assert picked == [(n, False) for n in (*sizes, *(len(i) for i in run.held), sizes[0], sizes[2])]


def test_auto_goes_by_the_size_of_the_device(monkeypatch):
    data = dataset()
    whole = sum(t.nbytes for t in (data.x_train, data.y_train, data.x_test, data.y_test))
    assert data.nbytes == whole
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(devices, "total_bytes", lambda device: 2 * whole)
    assert [staged(w, data, gpu) for w in ("auto", "device", "host")] == [False, False, True]
    monkeypatch.setattr(devices, "total_bytes", lambda device: 2 * whole - 2)
    assert [staged(w, data, gpu) for w in ("auto", "device", "host")] == [True, False, True]
    assert not staged("auto", data, torch.device("cpu"))
    with pytest.raises(FedsmooError, match=r"big: 2\.0 GiB of samples, but the GPU has 1\.0 GiB free: set samples_in"):
        refuse_too_large("big", 2**31, 2**30)


def test_weights_of_samples_go_to_the_device_alone():
    data = dataclasses.replace(dataset(), weights=torch.ones(len(dataset().x_train)))
    there = data.to("meta", staged=True)
    assert (there.x_train.device.type, there.y_test.device.type, there.weights.device.type) == ("cpu", "cpu", "meta")
    assert data.to("meta").x_train.device.type == "meta"


def test_serial_agrees_with_staged_batches():
    serial = simulation(lambda s: make_engine("serial", s), "mlp", ALGORITHMS["fedavg"]())
    host = simulation(lambda s: stepped(s, True, EagerStepper), "mlp", ALGORITHMS["fedavg"]())
    assert largest_gap(trace(serial), trace(host)) < 1e-12
