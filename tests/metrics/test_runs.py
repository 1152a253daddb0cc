"""Whole runs with other targets, metrics and no test part, on every engine."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor, nn
from torch.nn import functional as F

import fedsmoo
from fedsmoo import FedsmooError, simulate
from fedsmoo.data.check import from_arrays
from fedsmoo.runs.storage.reader import read_run

from .own import OWN

ENGINES = ("serial", "vmap", "batched")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 4))
TRUE = RNG.standard_normal((4, 2))
Y = X @ TRUE + 0.1 * RNG.standard_normal((90, 2))
SEVERAL = (X @ RNG.standard_normal((4, 5)) > 0.3).astype(int)
SETTINGS: dict[str, Any] = {"clients": 3, "cohort": 3, "rounds": 2, "local_steps": 2, "batch_size": 8, "device": "cpu"}
PLAIN: dict[str, Any] = {"weight_decay": 0.0, "clip": None, "lr_decay": 1.0, "dtype": "float64"}


def parts(y: np.ndarray, **more: Any) -> fedsmoo.Dataset:
    return from_arrays(X[:60], y[:60], X[60:], y[60:], **more)


def linear(inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


@pytest.mark.parametrize("engine", ENGINES)
def test_federated_least_squares_finds_what_numpy_finds(engine: str) -> None:
    """FedSGD on equal clients is gradient descent: it ends at the solution of the normal equations."""
    clients = [range(20), range(20, 40), range(40, 60)]
    run = simulate(
        linear(4, 2), parts(Y), "fedavg", client_indices=clients, cohort=3, rounds=400, local_steps=1, batch_size=20,
        lr=0.5, engine=engine, eval_every=400, device="cpu", **PLAIN,
    )  # fmt: skip
    with_bias = np.column_stack([X, np.ones(90)])
    solution = np.linalg.lstsq(with_bias[:60], Y[:60], rcond=None)[0]
    np.testing.assert_allclose(run.model.weight.detach().numpy(), solution[:4].T, atol=1e-9)
    np.testing.assert_allclose(run.model.bias.detach().numpy(), solution[4], atol=1e-9)
    guess = with_bias[60:] @ solution
    assert (run.lead.name, run.lead.higher) == ("mse", False)
    assert run.score == pytest.approx(sk.mean_squared_error(Y[60:], guess), abs=1e-9)
    assert run.history[-1].test_loss == pytest.approx(run.score, abs=1e-12)
    assert run.history[-1].test_accuracy is None


@pytest.mark.parametrize("engine", ENGINES)
def test_several_labels_on_every_engine(engine: str) -> None:
    names = ["f1", "auc", "f1-micro", "accuracy", "loss"]
    run = simulate("mlp", parts(SEVERAL, target="labels"), "fedavg", engine=engine, metrics=names, lr=1.0, **SETTINGS)
    with torch.no_grad():
        out = run.model(torch.from_numpy(X[60:]).float())
    said, there = (out > 0).numpy().astype(int), SEVERAL[60:]
    assert out.shape == (30, 5)
    expected = {
        "f1": sk.f1_score(there, said, average="macro"),
        "auc": sk.roc_auc_score(there, out.double().numpy(), average="macro"),
        "f1-micro": sk.f1_score(there, said, average="micro"),
        "accuracy": sk.accuracy_score(there, said),
        "loss": F.binary_cross_entropy_with_logits(out, torch.from_numpy(there).float()).item(),
    }
    assert run.metrics == pytest.approx(expected, abs=1e-6)
    assert list(run.metrics) == names
    assert run.history[-1].test_accuracy == run.metrics["accuracy"] == run.accuracy
    assert run.score == run.metrics["f1"]


class Tokens(nn.Module):
    """A class for every token, from its own embedding."""

    def __init__(self, tokens: int, classes: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(tokens, 6), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))


@pytest.mark.parametrize("engine", ["serial", "vmap"])
def test_only_labelled_positions_of_sequences_count(engine: str) -> None:
    x = RNG.integers(7, size=(40, 5))
    y = np.where(RNG.random((40, 5)) < 0.5, x % 3, -100)
    y[3] = -100  # a whole sequence without a label
    torch.manual_seed(0)
    run = simulate(
        Tokens(7, 3), (x[:30], y[:30], x[30:], y[30:]), "fedavg", engine=engine, metrics="accuracy,perplexity",
        partition="iid", **SETTINGS,
    )  # fmt: skip
    with torch.no_grad():
        out = run.model(torch.from_numpy(x[30:]))
    at, labels = y[30:] != -100, torch.from_numpy(y[30:][y[30:] != -100])
    assert run.accuracy == pytest.approx(float((out[at].argmax(1) == labels).double().mean()), abs=1e-12)
    assert run.metrics["perplexity"] == pytest.approx(F.cross_entropy(out[at].double(), labels).exp().item(), abs=1e-9)


def worst_error(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs - targets).abs().max())


worst_error.lower_is_better = True  # type: ignore[attr-defined]


def test_own_functions_see_all_outputs_and_targets() -> None:
    def bias(outputs: Tensor, targets: Tensor) -> Tensor:
        assert outputs.shape == targets.shape == (30, 2)
        return (outputs - targets).mean()

    run = simulate("softmax", parts(Y), "fedavg", metrics=[worst_error, "mse", bias], **SETTINGS)
    error = run.model(torch.from_numpy(X[60:]).float()).detach() - torch.from_numpy(Y[60:])
    assert run.metrics["worst_error"] == pytest.approx(error.abs().max().item(), rel=1e-6)
    assert run.metrics["bias"] == pytest.approx(error.mean().item(), rel=1e-5)
    assert (run.lead.name, run.lead.higher) == ("worst_error", False)
    assert run.history[-1].lower == ["worst_error"]
    assert run.history[-1].reached(100.0)
    assert not run.history[-1].reached(1e-9)


@pytest.mark.parametrize("name", ["test_loss", "drift", "round", "seed", "validation_mse"])
def test_own_functions_do_not_take_the_place_of_other_numbers_of_a_round(name: str) -> None:
    """In frames, curves and a callback's numbers the metric stood where the loss was, and trackers left it out."""

    def function(outputs: Tensor, targets: Tensor) -> float:
        return 7.0

    function.__name__ = name
    with pytest.raises(FedsmooError, match=f"{name!r} would take the place of a number of a round: rename it"):
        simulate("softmax", parts(Y), "fedavg", metrics=["mse", function], holdout=0.2, **SETTINGS)


MEASURED = (
    OWN
    + """
def far(outputs, targets):
    return (outputs[:, 0] - targets).abs().max()
"""
)


def test_a_kept_run_is_resumed_and_read_with_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(MEASURED)
    given = {"model": "softmax", "dataset": "own.py:data", "algorithm": "fedavg", "metrics": "-own.py:far,r2"}
    settings = {**SETTINGS, **given, "rounds": 4, "target": 1e9, "holdout": 0.2}
    whole = fedsmoo.run(settings, tmp_path / "whole")
    part = (
        fedsmoo.run(settings, tmp_path / "part", stop=lambda: len(seen) == 2, callback=lambda r: seen.append(r))
        if (seen := []) is not None
        else None
    )
    assert part is not None
    assert len(part.history) == 2
    again = fedsmoo.resume(tmp_path / "part")
    assert [r.metrics for r in again.history] == [r.metrics for r in whole.history]
    stored = read_run(tmp_path / "whole")
    assert [(r.metrics, r.validation_metrics, r.lower) for r in stored.history] == [
        (r.metrics, r.validation_metrics, r.lower) for r in whole.history
    ]
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    assert list(json.loads(lines[-1])["metrics"]) == ["far", "r2"]
    summary, last = stored.summary, [r.metrics["far"] for r in whole.history]
    assert (summary["metric"], summary["lower_is_better"], summary["score"]) == ("far", True, last[-1])
    assert summary["best_score"] == min(last)
    assert summary["score_last10"] == pytest.approx(np.mean(last))
    first, reached = whole.history[0], summary["target_reached"]
    assert (reached["round"], reached["bytes"]) == (1, first.bytes_up + first.bytes_down)
    assert summary["test_accuracy"] is None
    best = min(whole.history, key=lambda r: r.validation_metrics["far"])
    assert (summary["validated_round"], summary["validated_score"]) == (best.round, best.metrics["far"])
    assert whole.validated == best


def test_files_of_plain_runs_know_nothing_of_metrics(tmp_path: Path) -> None:
    fedsmoo.run({**SETTINGS, "model": "softmax", "algorithm": "fedavg"}, tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert not {"metrics", "lower", "validation_metrics", "personal_score"} & line.keys()
    assert "metrics" not in (tmp_path / "run" / "config.toml").read_text()
    assert not {"metric", "metrics", "score"} & read_run(tmp_path / "run").summary.keys()


def test_without_a_test_part_the_training_loss_leads(tmp_path: Path) -> None:
    data = from_arrays(X, Y[:, 0])
    run = simulate("softmax", data, "fedavg", out=tmp_path / "run", target=1e9, **SETTINGS)
    assert run.lead.title == "training loss"
    assert run.score == run.history[-1].train_loss
    assert [(r.test_accuracy, r.test_loss) for r in run.history] == [(None, None)] * 2
    assert run.target_reached is not None
    assert "training loss" in repr(run)
    summary = read_run(tmp_path / "run").summary
    assert (summary["metric"], summary["test_loss"]) == ("train_loss", None)
    held = simulate("softmax", data, "fedavg", holdout=0.2, metrics=["mae", "mse"], **SETTINGS)
    assert held.lead.title == "training loss"
    assert held.validated is not None
    assert held.validated.validation == min(r.validation_metrics["mae"] for r in held.history)


@pytest.mark.parametrize("engine", ENGINES)
def test_personal_models_are_measured_by_what_leads(engine: str) -> None:
    """FedPer on numbers: each client's mean absolute error on what it holds out, with its own head and the global."""
    run = simulate("mlp", parts(Y), "fedper", engine=engine, metrics="mae", holdout=0.3, **SETTINGS)
    found = {"personal": [], "global": []}
    for client, held in enumerate(run.simulation.held or ()):
        x, y = torch.from_numpy(X[held]).float(), torch.from_numpy(Y[held])
        for name, model in (("personal", run.personal_model(client)), ("global", run.model)):
            found[name].append((model(x).detach() - y).abs().mean().item())
    for name, values in found.items():
        assert run.personal[f"{name}_score"] == pytest.approx(np.mean(values), rel=1e-5)
        assert run.personal[f"{name}_deviation"] == pytest.approx(np.std(values), rel=1e-4)
        assert run.personal[f"{name}_worst_tenth"] == pytest.approx(max(values), rel=1e-5)
    assert "personal_accuracy" not in run.personal


def test_runs_are_divided_by_default_whatever_the_targets() -> None:
    run = simulate("softmax", parts(Y), "fedavg", **SETTINGS)
    assert len(run.simulation.indices) == 3
    assert len(simulate("softmax", parts(SEVERAL, target="labels"), "fedavg", **SETTINGS).simulation.indices) == 3


NUMBERS, LABELS = parts(Y), parts(SEVERAL, target="labels")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_several_labels_are_said_above_what_their_loss_makes_of_outputs(engine: str, loss: str) -> None:
    """Outputs that are trained on 0 and 1 themselves say a label above a half, logits above 0."""
    names = "f1,f1-micro,accuracy,auc"
    held: dict[str, Any] = {"holdout": 0.3, "loss": loss, "lr": 0.5, "local_steps": 20}
    run = simulate("softmax", LABELS, "fedavg", engine=engine, metrics=names, **{**SETTINGS, **held})
    with torch.no_grad():
        out = run.model(torch.from_numpy(X[60:]).float()).numpy()
    said, there = out > (0.5 if loss == "mse" else 0), SEVERAL[60:]
    want = {
        "f1": sk.f1_score(there, said, average="macro", zero_division=0),
        "f1-micro": sk.f1_score(there, said, average="micro"),
        "accuracy": sk.accuracy_score(there, said),
        "auc": sk.roc_auc_score(there, out),
    }
    assert run.metrics == pytest.approx(want, abs=1e-9)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"metrics": "acuracy"}, "unknown metric 'acuracy': did you mean 'accuracy'"),
    ({"metrics": "mse"}, "metric 'mse' is not for classes, which the targets are: use accuracy, f1"),
    ({"data": NUMBERS, "metrics": "accuracy"}, "metric 'accuracy' is not for numbers, which the targets are: use mse"),
    ({"data": NUMBERS, "metrics": "top-5"}, "metric 'top-5' is for classes, but the targets are numbers"),
    ({"metrics": "top-10"}, "metric 'top-10' of 10 classes is always 1: choose a smaller number"),
    ({"metrics": "accuracy,accuracy"}, "metrics: 'accuracy' is there twice"),
    ({"metrics": "-accuracy"}, "whether more of accuracy is better is known: write 'accuracy'"),
    ({"metrics": "no.py:f"}, "metric 'no.py:f': there is no file 'no.py'"),
    ({"metrics": [3]}, "metrics: a int is neither a name nor a function of (outputs, targets)"),
    ({"metrics": lambda out: 0.0}, "metric 'lambda' must be a function of (outputs, targets)"),
    ({"metrics": lambda out, y: out}, "metric 'lambda' returned a Tensor of the shape [359, 10], but must return one"),
    ({"metrics": lambda out, y: "good"}, "metric 'lambda' returned a str, but must return one number"),
    ({"metrics": lambda out, y: 1 / 0}, "ZeroDivisionError: division by zero"),
    ({"data": (X, Y, None, None), "metrics": "mse"}, "has no test part to measure them on: leave them out"),
    (
        {"data": NUMBERS, "algorithm": "fedntd"},
        "FedNTD trains on one class a sample, but the targets of 'custom' are n",
    ),
    (
        {"data": LABELS, "algorithm": "moon"},
        "MOON trains on one class a sample, but the targets of 'custom' are labels",
    ),
    ({"data": NUMBERS, "algorithm": "fedlc"}, "FedLC trains on one class a sample"),
    ({"data": NUMBERS, "algorithm": "fedgmt"}, "FedGMT trains on one class a sample"),
    ({"data": LABELS, "algorithm": "fedgmt"}, "FedGMT trains on one class a sample"),
    (
        {"data": NUMBERS, "attack": "label-flip"},
        "trains on one class a sample, but the targets of 'custom' are numbers",
    ),
    (
        {"data": NUMBERS, "model": nn.Linear(4, 3)},
        "mse cannot compare outputs of the shape [8, 3] with targets of [8, 2]",
    ),
    (
        {"data": LABELS, "model": nn.Linear(4, 4)},
        "bce cannot compare outputs of the shape [8, 4] with targets of [8, 5]",
    ),
    (
        {"data": NUMBERS, "loss": "cross_entropy"},
        "loss is 'cross_entropy', but the targets are numbers: use mse or mae",
    ),
    ({"data": NUMBERS, "target": -0.5}, "target is -0.5, but no mean squared error is ever that low"),
    ({"target": 80}, "target is 80, but is an accuracy between 0 and 1"),
    ({"metrics": "f1", "target": 80}, "target is 80, but is an F1 score between 0 and 1"),
    ({"data": NUMBERS, "model": "char_gru"}, "this model says the next character, but the targets of 'custom' are num"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_wrong_metrics_and_targets_are_one_clear_line(given: dict[str, Any], message: str) -> None:
    arguments = {"model": "softmax", "data": "digits", "algorithm": "fedavg", **SETTINGS, "rounds": 1, **given}
    with pytest.raises(FedsmooError) as error:
        simulate(**arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """The likelihood of a mean and a deviation, one number more than the targets have: what metrics cannot read."""
    mean, log = outputs[:, :2], outputs[:, 2:]
    return (log + (targets - mean).square() / (2 * (2 * log).exp())).mean(1)


def pixels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the class of each pixel, which numbers stand for."""
    return F.cross_entropy(outputs, targets.long(), reduction="none").mean((1, 2))


def test_outputs_that_only_the_loss_can_read_are_measured_by_it() -> None:
    """A run of them ended at its first evaluation, in words that did not say what to do."""
    settings = {**SETTINGS, "lr": 0.01, "dtype": "float64"}
    with pytest.raises(FedsmooError) as error:
        simulate(linear(4, 3), NUMBERS, "fedavg", loss=spread, **settings)
    assert str(error.value) == (
        "the metric mse cannot be computed from outputs [2, 3] and targets [2, 2] of 2 samples: set "
        'metrics="loss", or a function of outputs and targets of your own, metrics=[f]'
    )
    run = simulate(linear(4, 3), NUMBERS, "fedavg", loss=spread, metrics="loss", **settings)
    x, y = run.simulation.setup.task.data.x_test.double(), run.simulation.setup.task.data.y_test.double()
    assert run.score == pytest.approx(spread(run.model(x), y).mean().item(), rel=1e-12)
    rng = np.random.default_rng(1)
    maps = from_arrays(*(
        part for n in (60, 30) for part in (rng.standard_normal((n, 1, 5, 5)), rng.integers(3, size=(n, 5, 5)))
    ), target="numbers")  # fmt: skip
    run = simulate(nn.Conv2d(1, 3, 3, padding=1), maps, "fedavg", loss=pixels, metrics="loss", **settings)
    said = run.model(maps.x_test.double())
    assert run.score == pytest.approx(F.cross_entropy(said, maps.y_test.long()).item(), rel=1e-12)


def plain(outputs: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    return F.cross_entropy(outputs, labels, ignore_index=ignore_index, reduction="none")


@pytest.mark.parametrize(
    "loss",
    [partial(plain, ignore_index=3), nn.CrossEntropyLoss(ignore_index=3, reduction="none")],
    ids=["partial", "torch"],
)
@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_metrics_leave_out_what_the_loss_ignores(loss: Any, engine: str) -> None:
    """Class 3 of four, for which the model has no output: it is measured on the others, as its clients are."""
    y = np.random.default_rng(7).integers(4, size=90)
    data = from_arrays(X[:60], y[:60], X[60:], y[60:])
    run = simulate(
        linear(4, 3), data, "fedavg", loss=loss, metrics=["accuracy", "f1"], engine=engine, holdout=0.3, **SETTINGS
    )
    kept = y[60:] != 3
    said = run.model(torch.from_numpy(X[60:]).float()).argmax(1).numpy()[kept]
    assert run.score == pytest.approx(sk.accuracy_score(y[60:][kept], said))
    assert run.history[-1].metrics["f1"] == pytest.approx(sk.f1_score(y[60:][kept], said, average="macro"))
    for i, row in run.evaluate_clients().iterrows():
        held = run.simulation.held[i]
        mine = held[y[held] != 3]
        said = run.model(torch.from_numpy(X[mine]).float()).argmax(1).numpy()
        assert row["accuracy"] == pytest.approx(sk.accuracy_score(y[mine], said))


def test_personal_models_leave_it_out_in_a_batch_as_alone() -> None:
    y = np.random.default_rng(7).integers(4, size=90)
    data, loss = from_arrays(X[:60], y[:60], X[60:], y[60:]), nn.CrossEntropyLoss(ignore_index=2, reduction="none")
    more = {"loss": loss, "holdout": 0.3, "partition": "iid", "progress": False, **SETTINGS}
    one, all_, plain_ = (
        simulate(linear(4, 4), data, "ditto", **{**more, **change}).history[-1].personal_accuracy
        for change in ({"engine": "serial"}, {"engine": "batched"}, {"engine": "serial", "loss": "cross_entropy"})
    )
    assert one == pytest.approx(all_)
    assert one != pytest.approx(plain_)
