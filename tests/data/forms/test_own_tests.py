"""Clients with test samples of their own are asked on those: results, fairness, personal models."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedsmoo
from fedsmoo import FedsmooError, read_data, simulate
from fedsmoo.analysis.functions.fairness import fairness
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.forms.flower import partitions
from fedsmoo.data.forms.frames import frame_part
from fedsmoo.data.forms.options import Options
from fedsmoo.runs.results.result import Result

RNG = np.random.default_rng(2)
SIZES = ((12, 5), (9, 0), (14, 8))  # training and test samples of each client; one has none
FEW = {"rounds": 3, "cohort": 3, "local_steps": 3, "batch_size": 4, "lr": 0.3, "dtype": "float64"}


def client(k: int, train: int, test: int):
    def draw(n: int):
        y = np.arange(n) % 3
        return np.eye(3)[(y + k) % 3] + 0.7 * RNG.standard_normal((n, 3)), y

    return (draw(train), draw(test)) if test else draw(train)


CLIENTS = [client(k, *sizes) for k, sizes in enumerate(SIZES)]


def run(method: str | fedsmoo.Algorithm = "fedavg", **settings) -> Result:
    torch.manual_seed(0)
    return simulate(nn.Linear(3, 3), CLIENTS, method, **{**FEW, **settings})


def accuracy(module: nn.Module, x: np.ndarray, y: np.ndarray) -> float:
    return (module(torch.from_numpy(x)).argmax(1).numpy() == y).mean()


def test_clients_are_evaluated_on_their_own_test_samples():
    result = run()
    assert len(result.simulation.setup.task.data.x_test) == 13
    model = result.model.double()
    wanted = [accuracy(model, *CLIENTS[0][1]), np.nan, accuracy(model, *CLIENTS[2][1])]
    for on in ("test", "auto"):
        found = result.evaluate_clients(on)
        assert found["samples"].tolist() == [5, 0, 8]
        assert found["accuracy"].tolist() == pytest.approx(wanted, nan_ok=True)
    assert result.evaluate_clients("train")["samples"].tolist() == [12, 9, 14]
    counted = fairness(result.simulation.setup.task, result.server.w, result.simulation.indices)
    assert counted.clients.tolist() == pytest.approx(wanted, nan_ok=True)
    assert counted.mean == pytest.approx(np.nanmean(wanted))
    assert counted.own[1] == pytest.approx(accuracy(model, *CLIENTS[1]))


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_personal_models_are_asked_on_them(engine):
    """Without a holdout, in every evaluated round, as clients counted by hand afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)  # no word of a holdout that is missing
        result = run("ditto", engine=engine)
    last, model = result.history[-1], result.model.double()
    found = [accuracy(result.personal_model(k).double(), *CLIENTS[k][1]) for k in (0, 2)]
    assert last.personal_accuracy == pytest.approx(np.mean(found))
    assert last.personal_deviation == pytest.approx(np.std(found))
    assert last.global_accuracy == pytest.approx(np.mean([accuracy(model, *CLIENTS[k][1]) for k in (0, 2)]))


def test_clients_of_another_division_have_none():
    result = run(partition="iid", clients=3)
    with pytest.raises(FedsmooError, match="on='test': the clients have no test samples of their own"):
        result.evaluate_clients("test")
    held = run(holdout=0.3)
    assert held.evaluate_clients("test")["samples"].tolist() == [5, 0, 8]
    assert held.evaluate_clients()["samples"].tolist() == [len(i) for i in held.simulation.held]


def test_test_samples_of_clients_are_checked():
    data = read_data(CLIENTS)
    outside = (torch.tensor([0, 13]), torch.tensor([]), torch.tensor([]))
    for wrong, said in (
        (outside, "client 0 points outside the test part"),
        ((torch.tensor([-1, 0]), *outside[1:]), "client 0 points outside the test part"),
        (
            (torch.tensor([0, 12]), torch.tensor([]), torch.tensor([3, 13], dtype=torch.int16)),
            "client 2 points outside",
        ),
        ((torch.tensor([]), torch.tensor([4, -1]), torch.tensor([5])), "client 1 points outside"),
        (outside[:2], "natural_test is of 2 clients"),
    ):
        broken = fedsmoo.Dataset(**{**data.__dict__, "natural_test": wrong})
        with pytest.raises(FedsmooError, match=said):
            read_data(broken)


@pytest.mark.parametrize("count", [True, 0, -1, "three", 2.0, None])
def test_partitions_are_as_many_as_a_whole_number_says(count):
    with pytest.raises(FedsmooError, match=r"num_partitions is .* but must be a number of clients from 1"):
        partitions(SimpleNamespace(num_partitions=count), Options(), "given")


def test_one_column_that_is_learnt_has_no_axis_of_its_own():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "t": [0.5, 1.5, 2.5], "u": [1.0, 0.0, 2.0]})
    assert np.shape(frame_part(frame, Options(y=("t",)), "given").y) == (3,)
    assert np.shape(frame_part(frame, Options(y=("t", "u")), "given").y) == (3, 2)


@pytest.mark.parametrize("kind", ["int64", "float64", "float32"])
def test_a_client_is_the_same_whichever_numbers_name_it(kind):
    """A table writes 1 where another writes 1.0: its test samples are still the client's own."""
    train, test = (pd.DataFrame({"a": RNG.random(6), "y": [0, 1] * 3, "client": [7, 7, 10, 10, 2, 2]}) for _ in "ab")
    test["client"] = test["client"].astype(kind)
    data = read_data((train, test))
    assert [i.tolist() for i in data.natural] == [[4, 5], [0, 1], [2, 3]]
    assert [i.tolist() for i in data.natural_test] == [[4, 5], [0, 1], [2, 3]]


def test_clients_with_very_large_numbers_are_not_one():
    """No whole number of 64 bits is that large: all of them would be the smallest one."""
    train = pd.DataFrame({"a": RNG.random(6), "y": [0, 1] * 3, "client": [1e30, 1e30, 2e30, 2e30, 3.0, 3.0]})
    assert [i.tolist() for i in read_data(train).natural] == [[4, 5], [0, 1], [2, 3]]


def test_clients_of_the_test_part_that_do_not_train_are_said():
    train, test = (pd.DataFrame({"a": RNG.random(4), "y": [0, 1] * 2, "client": [1, 1, 2, 2]}) for _ in "ab")
    test["client"] = ["x", "x", "y", "y"]
    with pytest.warns(FedsmooWarning, match=r"none of its clients trains \(the first are 'x' and 1\)"):
        data = read_data((train, test))
    assert data.natural_test is None
    assert len(data.x_test) == 4
