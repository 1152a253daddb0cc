"""Wrong inputs from Python, odd but plausible: one line each, and never a run on something else than was meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedsmoo import Dirichlet, FedAvg, FedSMOO, FedsmooError, simulate
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.sources import load

NO_FLOATS = "dtype, but got Long and Float; samples are whole numbers: convert them if the model multiplies them"
ALL_AT_ONCE = {"model": "softmax", "engine": "auto", "cohort": 3}
FEW: dict[str, Any] = {"cohort": 2, "rounds": 1, "local_steps": 1, "batch_size": 8, "engine": "serial"}
X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
Y = np.arange(40) % 3
ARRAYS = (X[:30], Y[:30], X[30:], Y[30:])
DIGITS = load("digits")
PARTS = ("x_train", "y_train", "x_test", "y_test")


def arrays(**changes: Any) -> tuple:
    return tuple({**dict(zip(PARTS, ARRAYS, strict=True)), **changes}.values())


def data_is(what: str) -> str:
    return f"data is {what}, but must be a Dataset, (x_train, y_train, x_test, y_test), or another form of data (help("


NO_LIST = "client_indices: client 0 is not a list of whole numbers"
FLOATS = "labels must be whole numbers, but are"
ONE_HOT = "but each sample needs one class, [30] (of one-hot labels: y.argmax(1)"
NO_NUMBERS = "cannot be read as an array of numbers"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"data": None}, data_is("None")),
    ({"data": 5}, data_is("5")),
    ({"data": []}, "data has 0 parts, but must be a Dataset, (x_train, y_train, x_test, y_test), or another"),
    ({"data": ARRAYS[:3]}, "data has 3 parts"),
    ({"data": (a for a in ARRAYS)}, "data is <generator"),
    ({"data": {"x_train": 1}}, "data: client x_train is 1, but must be data of one client"),
    ({"data": X[:4]}, "data is array("),
    ({"data": pd.DataFrame(X)}, "data: which column is to be learnt? Say it as y='NAME': there are 0, 1, 2, 3, 4, 5"),
    ({"data": Path("digits")}, data_is("PosixPath('digits')")),
    ({"data": Dataset}, "data is <class"),
    ({"data": "digit"}, "unknown data set 'digit': did you mean 'digits'?"),
    ({"dataset": "cifar10"}, "dataset is 'cifar10', but data says it all: leave dataset out"),
    (
        {"loss": nn.CrossEntropyLoss(reduction="none"), "loss_options": {"label_smoothing": 0.1}},
        "loss_options is {'label_smoothing': 0.1}, but loss says it all: leave loss_options out",
    ),
    ({"client_indices": 5}, "client_indices is 5, but must be a list with each client's samples"),
    ({"client_indices": []}, "client_indices: no clients"),
    ({"client_indices": "abc"}, "client_indices is 'abc'"),
    ({"client_indices": {0: [1], 1: [2]}}, "client_indices is {0: [1], 1: [2]}"),
    ({"client_indices": ([i] for i in range(3))}, "client_indices is <generator"),
    ({"client_indices": [1, 2, 3]}, NO_LIST),
    ({"client_indices": [None, [1]]}, NO_LIST),
    ({"client_indices": [[0, [1]], [2]]}, NO_LIST),
    ({"client_indices": [[0.0, 1.0], [2.0]]}, NO_LIST),
    ({"client_indices": [np.arange(30) > 3] * 2}, NO_LIST),
    ({"client_indices": [[0], [30]]}, "client 1 points to sample 30, but the training part has samples 0 to 29"),
    ({"client_indices": [[0], [1]], "clients": 3}, "both client_indices and clients=3 say who holds"),
    ({"model": None}, "model is None, but must be an nn.Module or a model's name"),
    ({"model": nn.Linear}, "write Linear(...)"),
    ({"model": "mlpp"}, "unknown model 'mlpp': did you mean 'mlp'?"),
    ({"model": nn.Linear(6, 3), "model_options": {"hidden": 3}}, "model_options is {'hidden': 3}, but model says it"),
    (
        {"algorithm": {"x": np.zeros((99, 9))}},
        "algorithm is {'x': array([[0., 0... 0., 0., 0.]])}, but must be a method",
    ),
    ({"algorithm": 3}, "algorithm is 3, but must be a method or its name"),
    ({"algorithm": ["fedavg"]}, "algorithm is ['fedavg'], but must be a method"),
    ({"algorithm": FedAvg}, "write FedAvg()"),
    ({"algorithm": FedSMOO(), "algorithm_options": {"r": 5}}, "algorithm_options is {'r': 5}, but algorithm says it"),
    ({"algorithm": "fedsmoo", "algorithm_options": {"rr": 5}}, "did you mean 'r'?"),
    (
        {"algorithm": FedSMOO(), "beta": 3},
        "beta is a hyper-parameter of FedSMOO, no setting of simulate: write FedSMOO",
    ),
    ({"algorithm": "fedsmoo", "r": "big"}, "r is 'big', but must be a number"),
    ({"algorithm": "fedavg", "mu": 0.1}, "unknown setting 'mu'"),
    (
        {"algorithm": "fedprox", "mu": 0.1, "algorithm_options": {"mu": 0.2}},
        "mu is given twice, by its name and in alg",
    ),
    ({"model": nn.Linear(6, 3), "hidden": 3}, "unknown setting 'hidden'"),
    ({"callback": 3}, "callback is 3, but must be a function"),
    ({"loss": None}, "loss is None, but must be a function"),
    ({"loss": "hinge"}, "unknown loss 'hinge'"),
    (
        {"loss": nn.CrossEntropyLoss},
        "loss is the class CrossEntropyLoss, but must be a function or an object: write Cross",
    ),
    (
        {"loss": nn.CrossEntropyLoss(), **ALL_AT_ONCE},
        "but must be one per sample, [8]: of PyTorch's losses write reduction='none'",
    ),
    ({"data": arrays(x_train=X[:30].astype(int), x_test=X[30:].astype(int)), **ALL_AT_ONCE}, NO_FLOATS),
    (
        {"data": arrays(x_train=X[:30].astype(int), x_test=X[30:].astype(int))},
        "got Long and Float; if samples are whole numbers that the model multiplies, make floats of them",
    ),
    ({"model": nn.Linear(6, 3, device="meta")}, "'weight' of Linear is on the device 'meta' and has no values: make"),
    ({"model": nn.LazyLinear(3, device="meta")}, "'weight' of LazyLinear is on the device 'meta' and has no values"),
    (
        {"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, affine=False, device="meta"))},
        "the buffer '1.running_mean' of Sequential is on the device 'meta' and has no values: make the model on",
    ),
    ({"model": nn.Linear(6, 1)}, "the model has 1 output, but the labels of 'custom' go up to 2"),
    ({"loss": "mse"}, "loss is 'mse', but the targets are classes: use cross_entropy"),
    ({"partition": 3}, "partition is 3, but must be a rule or its name"),
    ({"partition": Dirichlet}, "write Dirichlet()"),
    ({"partition": Dirichlet(replacement=False, refill=True)}, "refill is of a division with replacement"),
    ({"partition": "natural"}, "the data set 'custom' has no natural clients"),
    ({"partition": "pathological", "u": 0.3}, "u is 0.3, but the partition 'pathological' has no u"),
    ({"c": 2}, "c is 2, but the partition 'dirichlet' has no c"),
    ({"epochs": 3}, "unknown setting 'epochs': did you mean 'local_epochs'?"),
    ({"clients": [4]}, "clients is [4], but must be a whole number"),
    ({"lr": None}, "lr is none, but must be a number"),
    ({"augment": True}, "augment: the samples of 'custom' are not uint8 images"),
    (
        {"data": arrays(y_train=Y[:30].astype(np.float32))},
        f"custom: y_train: {FLOATS} float32: convert classes with y.astype(int) or y.long()",
    ),
    (
        {"data": arrays(y_test=torch.tensor(Y[30:]).double())},
        f"custom: y_test: {FLOATS} float64: convert classes with y.astype(int) or y.long()",
    ),
    (
        {"data": arrays(y_train=[0.0, 1.0, 2.0] * 10)},
        f"custom: y_train: {FLOATS} float64: convert classes with y.astype(int) or y.long()",
    ),
    ({"data": arrays(y_train=np.eye(3, dtype=int)[Y[:30]])}, f"labels have shape [30, 3], {ONE_HOT}"),
    ({"data": arrays(y_train=np.eye(6, dtype=int)[Y[:30]])}, f"labels have shape [30, 6], {ONE_HOT}"),
    ({"data": arrays(y_train=Y[:30] - 1)}, "labels run from -1 to 1, but must lie between 0 and 2"),
    ({"data": arrays(y_train=Y[:30] + 10**9)}, "labels go up to 1000000002, but there are only 40 of them"),
    ({"data": arrays(y_train=np.full(30, 2**63, np.uint64))}, "labels go beyond 9223372036854775807"),
    ({"data": arrays(y_test=Y[30:] + 3)}, "the test part has samples of class 3, but the training part has none"),
    ({"data": arrays(y_train=Y[:29])}, "30 samples but 29 labels"),
    ({"data": arrays(y_train=None)}, NO_NUMBERS),
    ({"data": arrays(y_train=np.array(["cat", "dog", "cow"] * 10))}, NO_NUMBERS),
    ({"data": arrays(x_train=X[:30].astype(object))}, NO_NUMBERS),
    ({"data": arrays(x_train=(row for row in X[:30]))}, NO_NUMBERS),
    ({"data": arrays(x_train=[[1.0, 2.0], [3.0]])}, NO_NUMBERS),
    ({"data": arrays(x_train=np.where(X[:30] > 2, np.nan, X[:30]))}, "hold NaN or infinite values"),
    ({"data": arrays(x_train=np.ma.masked_greater(X[:30], 1))}, "custom: x_train: some values are masked"),
    ({"data": arrays(x_train=torch.tensor(X[:30]).to_sparse())}, "give a dense one"),
    ({"data": arrays(x_train=torch.empty(30, 6, device="meta"))}, "one without values"),
    ({"data": arrays(x_train=X[:30] + 1j)}, "complex numbers are not supported"),
    ({"data": arrays(x_test=X[30:, :5])}, "training samples have shape [6], test samples [5]"),
    ({"data": arrays(x_test=X[30:].astype(int))}, "training samples are torch.float32, test samples torch.int64"),
    ({"data": arrays(x_train=X[:0], y_train=Y[:0])}, "it is empty"),
    ({"data": replace(DIGITS, y_train=DIGITS.y_train.float())}, "labels are torch.float32, but must be whole numbers"),
    ({"data": replace(DIGITS, y_train=DIGITS.y_train[:9])}, "1438 samples but 9 labels"),
    ({"data": replace(DIGITS, y_train=DIGITS.y_train[:, None])}, "labels have shape [1438, 1], but each sample needs"),
    ({"data": replace(DIGITS, x_train=DIGITS.x_train.numpy())}, "x_train is a ndarray, but must be a tensor"),
    ({"data": replace(DIGITS, classes=5)}, "labels run from 0 to 9, but must lie between 0 and 4"),
    ({"data": replace(DIGITS, natural=(torch.tensor([9999]),))}, "natural client 0 points outside the data"),
    (
        {"data": replace(DIGITS, natural=(torch.tensor([0]), torch.tensor([], dtype=torch.int64)))},
        "natural client 1 is empty",
    ),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[f"{n}-{next(iter(g))}" for n, (g, _) in enumerate(WRONG)])
def test_a_wrong_input_is_one_line(given: dict[str, Any], message: str) -> None:
    clients = {} if "client_indices" in given else {"clients": 4}
    with pytest.raises(FedsmooError) as caught:
        simulate(**{"model": "softmax", "data": ARRAYS, "algorithm": "fedavg", **FEW, **clients, **given})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


GOOD: dict[str, Any] = {
    "lists": tuple(a.tolist() for a in ARRAYS),
    "frames": tuple(f(a) for f, a in zip((pd.DataFrame, pd.Series) * 2, ARRAYS, strict=True)),
    "gradients": arrays(x_train=torch.tensor(X[:30], requires_grad=True)),
    "unsigned": arrays(y_train=Y[:30].astype(np.uint64), y_test=Y[30:].astype(np.uint8)),
    "columns": arrays(y_train=Y[:30, None], y_test=torch.tensor(Y[30:, None])),
    "masks without a masked value": arrays(x_train=np.ma.array(X[:30])),
}


@pytest.mark.parametrize("form", list(GOOD))
def test_the_same_arrays_in_another_form_are_the_same_run(form: str) -> None:
    want = simulate("softmax", ARRAYS, "fedavg", clients=4, **FEW)
    found = simulate("softmax", GOOD[form], "fedavg", clients=4, **FEW)
    assert torch.equal(found.server.w, want.server.w)
    assert found.accuracy == want.accuracy


def test_indices_may_be_lists_ranges_arrays_or_tensors() -> None:
    forms = (
        [[0, 1], [2, 3]],
        [range(2), range(2, 4)],
        np.arange(4).reshape(2, 2),
        [torch.arange(2), torch.arange(2, 4)],
    )
    models = [simulate("softmax", ARRAYS, "fedavg", client_indices=f, **FEW).server.w for f in forms]
    assert all(torch.equal(w, models[0]) for w in models)


def test_truth_values_are_two_classes_and_numbers() -> None:
    data = from_arrays(X > 0, Y > 0, X > 0, Y > 0)
    assert (data.classes, data.x_train.dtype) == (2, torch.float32)
    assert data.y_train.tolist() == [int(y > 0) for y in Y]
    assert torch.equal(data.x_train, torch.tensor((X > 0) * 1.0, dtype=torch.float32))


def npz(path: Path, **changes: Any) -> str:
    np.savez(path / "own.npz", **dict(zip(PARTS, arrays(**changes), strict=True)))
    return str(path / "own.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"y_train": Y[:30].astype(np.float32)},
            f"data set own: y_train: {FLOATS} float32: convert classes with y.astype(int) or y.long()",
        ),
        ({"y_train": np.array(["a"] * 30)}, f"data set own: y_train: {NO_NUMBERS}"),
        ({"y_train": np.eye(3, dtype=int)[Y[:30]]}, f"labels have shape [30, 3], {ONE_HOT}"),
        ({"y_train": Y[:30] * 10**9}, "labels go up to 2000000000"),
        ({"x_test": X[30:].astype(int)}, "training samples are torch.float32, test samples torch.int64"),
    ],
)
def test_a_wrong_npz_is_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FedsmooError) as caught:
        load("own", npz(tmp_path, **changes))
    assert message in str(caught.value)


def test_columns_of_labels_in_an_npz_are_labels(tmp_path: Path) -> None:
    """As [N, 1] every prediction was compared with every label, and accuracies went beyond 1."""
    plain = load("own", npz(tmp_path))
    column = load("own", npz(tmp_path, y_train=Y[:30, None], y_test=Y[30:, None]))
    assert torch.equal(column.y_test, plain.y_test)
    run = simulate("softmax", column, "fedavg", clients=4, **FEW)
    right = (run.model(column.x_test).argmax(1).numpy() == Y[30:]).mean()
    assert run.accuracy == pytest.approx(right)


@pytest.mark.parametrize(("least", "told"), [(0, False), (1, True)])
def test_classes_numbered_from_1_get_a_line(least: int, told: bool, recwarn: pytest.WarningsRecorder) -> None:
    simulate(
        nn.Linear(6, 4), (X[:30], Y[:30] + least, X[30:], Y[30:] + least), "fedavg", partition="iid", clients=3, **FEW
    )
    line = (
        "data set custom: labels are 1 to 3, none is 0, and a model needs 4 outputs; if classes are numbered from 1, "
        "take 1 off every label"
    )
    assert (line in [str(w.message) for w in recwarn]) == told


def test_classes_of_a_file_numbered_from_1_get_one_line(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    np.savez(tmp_path / "a.npz", **dict(zip(PARTS, (X[:30], Y[:30] + 1, X[30:], Y[30:] + 1), strict=True)))
    made = "import numpy as np\n\n\ndef {}():\n    a = np.load({!r})\n    return {}\n"
    four = "a['x_train'], a['y_train'], a['x_test'], a['y_test']"
    whole = f"__import__('fedsmoo').data.check.from_arrays({four})"
    for name, returned in (("four", four), ("whole", whole)):
        (tmp_path / f"{name}.py").write_text(made.format(name, str(tmp_path / "a.npz"), returned))
        recwarn.clear()
        load(f"{tmp_path / name}.py:{name}")
        (line,) = (str(w.message) for w in recwarn)
        assert line.endswith("labels are 1 to 3, none is 0, and a model needs 4 outputs; if classes are numbered from "
                             "1, take 1 off every label")  # fmt: skip
