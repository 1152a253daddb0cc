"""Results as somebody at a prompt meets them: interrupted, continued, by client, drawn and printed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsmoo
from fedsmoo import FedsmooError, Record
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.runs.results.html import table
from fedsmoo.runs.results.summary import summarise
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.runs.watch.state import says_stop

from .small import QUICK, numbers, run, same


@pytest.mark.parametrize("algorithm", ["scaffold", "fedsmoo", fedsmoo.FedSAM(rho=fedsmoo.Schedule(0.0, 0.1, 4))])
@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_continued_is_one_long_run_to_the_last_bit(algorithm: Any, engine: str) -> None:
    parts = run(2, algorithm, engine=engine).continue_(1).continue_(2)
    same(parts, run(5, algorithm, engine=engine))
    assert parts.config is not None
    assert parts.config.rounds == 5


def test_a_result_that_was_continued_stays_as_it_was() -> None:
    first = run(2)
    model, w = first.model, first.server.w.clone()
    first.continue_(1)
    assert len(first.history) == 2
    assert torch.equal(first.server.w, w)
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), model.parameters(), strict=True))
    for ask in (lambda: first.client_state(0), lambda: first.continue_(1), lambda: first.save("x")):
        with pytest.raises(FedsmooError, match="was continued to 3 rounds"):
            ask()


def test_what_cannot_be_continued_says_so() -> None:
    result = run(1)
    with pytest.raises(FedsmooError, match="all 1 rounds are done: say how many more"):
        result.continue_()
    with pytest.raises(FedsmooError, match="rounds is 0, but must be how many more"):
        result.continue_(0)


def interrupting(after: int, how: Any) -> Any:
    def callback(record: Record) -> None:
        if record.round == after:
            how()

    return callback


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def raised() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", [ctrl_c, raised])
def test_an_interrupt_returns_what_there_is_and_it_goes_on(how: Any) -> None:
    with pytest.warns(FedsmooWarning, match="interrupted after round 2 of 4"):
        part = run(4, callback=interrupting(2, how))
    assert part.interrupted
    assert len(part.history) == 2
    assert "interrupted" in repr(part)
    same(part, run(2))
    whole = part.continue_()
    assert not whole.interrupted
    same(whole, run(4))


def test_a_second_interrupt_stops_at_once_and_says_what_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of round 3 SCAFFOLD's clients have written their rows, and the server has not moved yet."""
    from fedsmoo.runs.simulation import Simulation

    complete = Simulation.complete

    def torn(self: Simulation, *given: Any) -> Record:
        if len(self.history) == 2:
            ctrl_c()
            ctrl_c()
        return complete(self, *given)

    monkeypatch.setattr(Simulation, "complete", torn)
    with pytest.warns(FedsmooWarning, match="interrupted after round 2"):
        part = run(4)
    assert len(part.history) == 2
    assert part.model is not None
    for ask in (lambda: part.client_state(0), lambda: part.continue_()):
        with pytest.raises(FedsmooError, match="in the middle of round 3"):
            ask()
    with pytest.warns(FedsmooWarning, match="interrupted after round 2"):
        plain = run(4, "fedavg")
    monkeypatch.setattr(Simulation, "complete", complete)
    same(plain.continue_(), run(4, "fedavg"))  # a method without vectors of clients has nothing that could be torn


def test_an_interrupt_before_the_first_round_is_one() -> None:
    class Never(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                raise KeyboardInterrupt
            return self.inner(x.flatten(1))

    with pytest.raises(KeyboardInterrupt):
        fedsmoo.simulate(Never(), "digits", "fedavg", rounds=1, engine="serial", **QUICK)


def test_an_interrupted_run_is_kept_and_resumed(tmp_path: Path) -> None:
    with pytest.warns(FedsmooWarning, match="interrupted"):
        part = run(4, callback=interrupting(2, ctrl_c), out=tmp_path / "run")
    assert part.interrupted
    assert part.folder == tmp_path / "run"
    assert part.summary is None
    same(fedsmoo.resume(tmp_path / "run"), run(4))


def test_a_continued_run_may_be_kept(tmp_path: Path) -> None:
    whole = run(2).continue_(2, out=tmp_path / "run")
    same(whole, run(4))
    stored = read_run(tmp_path / "run")
    assert stored.state == "finished"
    assert stored.config.rounds == 4
    assert numbers(stored.history) == numbers(whole.history)
    alone = fedsmoo.run(stored.config, tmp_path / "alone")
    assert stored.identity == read_run(tmp_path / "alone").identity
    assert torch.equal(alone.server.w, whole.server.w)


def test_vectors_of_clients_by_parameter_name() -> None:
    result = run(3)
    met = {i for r in result.history for i in r.cohort}
    for client in range(5):
        named, flat = result.client(client), result.client_state(client)
        if client not in met:
            assert named is None
            continue
        assert named is not None
        assert flat is not None
        shapes = {n: tuple(p.shape) for n, p in result.model.named_parameters()}
        assert {n: tuple(v.shape) for n, v in named["c"].items()} == shapes
        joined = torch.cat([named["c"][n].flatten() for n, _ in result.model.named_parameters()])
        assert torch.equal(joined, flat["c"])
    server = result.by_name(result.server)
    assert all(torch.equal(server["w"][n], p) for n, p in result.model.named_parameters())


def test_every_client_is_evaluated_on_its_own_samples() -> None:
    """Against PyTorch, client by client."""
    result = run(3, "fedavg")
    frame = result.evaluate_clients()
    data, model = result.simulation.setup.task.data, result.model
    assert list(frame.columns) == ["samples", "accuracy", "loss"]
    for client, samples in enumerate(result.simulation.indices):
        x, y = data.x_train[samples], data.y_train[samples]
        with torch.no_grad():
            out = model(x)
        assert frame.loc[client, "samples"] == len(samples)
        assert frame.loc[client, "accuracy"] == pytest.approx((out.argmax(1) == y).double().mean().item())
        assert frame.loc[client, "loss"] == pytest.approx(nn.functional.cross_entropy(out, y).item(), rel=1e-5)
    with pytest.raises(FedsmooError, match="no samples are held out"):
        result.evaluate_clients("held")
    with pytest.raises(FedsmooError, match="did you mean 'train'"):
        result.evaluate_clients("trian")


def test_personal_models_are_evaluated_beside_the_global_one() -> None:
    result = run(3, fedsmoo.Ditto(), holdout=0.3)
    frame = result.evaluate_clients()
    data, held = result.simulation.setup.task.data, result.simulation.held
    assert held is not None
    for client, samples in enumerate(held):
        for prefix, model in (("", result.model), ("personal_", result.personal_model(client))):
            with torch.no_grad():
                right = model(data.x_train[samples]).argmax(1) == data.y_train[samples]
            expected = right.double().mean().item() if len(samples) else np.nan
            assert frame.loc[client, f"{prefix}accuracy"] == pytest.approx(expected, nan_ok=True)
    assert list(result.evaluate_clients("train")["samples"]) == [len(i) for i in result.simulation.indices]


def test_curves_are_the_records_numbers() -> None:
    result = run(3, eval_every=2, callback=lambda record, state: state.log("double", 2 * record.train_loss))
    axes = result.plot()
    assert list(axes.lines[0].get_xdata()) == [2, 3]
    assert list(axes.lines[0].get_ydata()) == [100 * r.test_accuracy for r in result.history if r.test_accuracy]
    assert axes.get_ylabel() == "test accuracy (%)"
    assert list(result.plot("double").lines[0].get_ydata()) == [2 * (r.train_loss or 0) for r in result.history]
    same_axes = result.plot("train_loss", ax=axes)
    assert same_axes is axes
    axes.set_xscale("log")  # whose ticks have no whole numbers to be asked for
    assert result.plot("train_loss", ax=axes).get_xscale() == "log"
    axes.set_xticks([1, 3])
    assert list(result.plot("train_loss", ax=axes).get_xticks()) == [1, 3]
    with pytest.raises(FedsmooError, match="did you mean 'test_accuracy'"):
        result.plot("accuracy")
    assert list(run(1).plot().get_xticks()) == [0, 1, 2]


def test_results_of_one_method_are_its_seeds_and_labels_may_be_given() -> None:
    a, b = run(2, "fedavg"), run(2, "fedavg", seed=1)
    axes = fedsmoo.plot([a, b], "train_loss")
    mean = [((x.train_loss or 0) + (y.train_loss or 0)) / 2 for x, y in zip(a.history, b.history, strict=True)]
    assert len(axes.lines) == 1
    assert list(axes.lines[0].get_ydata()) == pytest.approx(mean)
    axes = fedsmoo.plot({"one": a, "two": [b]})
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["one", "two"]
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 2
    assert len({line.get_linestyle() for line in axes.lines}) == 2  # told apart in print, too
    with pytest.raises(FedsmooError, match="there is no curve in 3"):
        fedsmoo.plot([3])


def test_a_result_prints_in_a_line_and_as_a_table() -> None:
    result = run(2, "fedavg")
    assert repr(result) == f"<Result: FedAvg, 2 rounds, test accuracy {result.accuracy:.2%}>"
    html = result._repr_html_()
    assert f"{result.accuracy:.2%}" in html
    assert html.count("<tr>") == html.count("</tr>") >= 6
    named = fedsmoo.simulate(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "digits", "fedavg", rounds=1, **QUICK)
    assert "python:Sequential@" in named._repr_html_()
    assert "<script" not in fedsmoo.runs.results.html.table(["a"], [["<script>"]])


def test_a_summary_has_the_last_the_best_and_the_mean_of_the_last_ten() -> None:
    accuracies = [0.9, 0.1, *(0.3 + k / 100 for k in range(10))]
    history = [
        Record(k + 1, v, 2 - v, 1.0, 0.1, 0.1, [0], 10, 20, 1.0, 0.5, metrics={"accuracy": v, "f1": v / 2})
        for k, v in enumerate(accuracies)
    ]
    found = summarise(history, None)
    assert (found["test_accuracy"], found["best_accuracy"], found["best_score"]) == (0.39, 0.9, 0.9)
    assert found["test_accuracy_last10"] == found["score_last10"] == pytest.approx(0.345, rel=1e-12)
    assert found["metrics"] == {"accuracy": 0.39, "f1": 0.195}
    assert (found["bytes_up"], found["bytes_down"], found["seconds_eval"]) == (120, 240, 6.0)


def test_one_row_of_a_table_is_bold() -> None:
    rows = table(["method", "n"], [["a", "1"], ["<b>", "2"]], bold=1).split("<tr>")[2:]
    assert "<b>" not in rows[0]
    assert "<b>&lt;b&gt;</b>" in rows[1]
    assert "<b>2</b>" in rows[1]


def test_a_word_to_stop_is_false_of_any_kind() -> None:
    words = (False, np.False_, torch.tensor(False), True, np.True_, torch.tensor(True), None, 0, torch.tensor(0))
    assert [says_stop(w) is True for w in words] == [True] * 3 + [False] * 6


def test_what_is_logged_has_a_name_of_its_own() -> None:
    for name, why in (("train_loss", "is there already"), ("mine", "is there already"), ("", "is no name")):
        with pytest.raises(FedsmooError, match=f"state.log: .*{name}.* {why}"):
            run(1, callback=lambda record, state, name=name: [state.log("mine", 1), state.log(name, 2)])
