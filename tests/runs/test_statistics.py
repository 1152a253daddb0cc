"""Runs of models with running statistics on the disk: resumed to the bit, verified, opened and measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.deploy.client import Recipe
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.results.finished import open_finished
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.runs.storage.verify import verify

NORMED = f"{Path(__file__).parents[1] / 'engines' / 'statistics' / 'nets.py'}:normed"
SETTINGS = {
    "algorithm": "fedavg", "model": NORMED, "dataset": "digits", "clients": 6, "cohort": 3, "rounds": 4, "lr": 0.1,
    "local_steps": 2, "batch_size": 16, "device": "cpu", "seed": 2, "eval_every": 3, "partition": "iid",
}  # fmt: skip

STATISTICS = 2 * 6 + 1  # of NORMED: means, variances, and a count


@pytest.mark.parametrize("engine", ["serial", "vmap"])
@pytest.mark.parametrize("policy", ["averaged", "local", "recomputed"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(policy: str, engine: str, tmp_path: Path) -> None:
    settings = SETTINGS | {"statistics": policy, "engine": engine, "holdout": 0.2}
    whole = fedsmoo.run(settings, tmp_path / "whole")
    fedsmoo.run(settings, tmp_path / "cut", save_every=1, callback=lambda r: r.round < 2)
    resumed = fedsmoo.resume(tmp_path / "cut")
    for name, v in whole.server.items():
        assert torch.equal(getattr(resumed.server, name), v), name
    rows = dict(resumed.simulation.engine.table.items())
    for client, row in whole.simulation.engine.table.items():
        assert all(torch.equal(rows[client][n], v) for n, v in row.items())
    for a, b in zip(whole.history, resumed.history, strict=True):
        assert (a.test_loss, a.validation_accuracy, a.train_loss) == (b.test_loss, b.validation_accuracy, b.train_loss)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert one == two
    assert not verify(tmp_path / "cut").damaged


def test_a_finished_run_is_measured_with_its_statistics(tmp_path: Path) -> None:
    result = fedsmoo.run(SETTINGS | {"eval_every": 1}, tmp_path / "run")
    state = load_file(tmp_path / "run" / "model.safetensors")
    assert state["2.num_batches_tracked"].dtype == torch.int64
    assert torch.equal(state["2.running_mean"], result.model[2].running_mean)
    assert float(state["2.running_mean"].abs().max()) > 0.01
    opened = open_finished(tmp_path / "run", device="cpu")
    assert opened.task.evaluate(opened.w).loss == pytest.approx(result.history[-1].test_loss, rel=1e-6)


def test_settings_are_quiet_where_nothing_is_said(tmp_path: Path) -> None:
    fedsmoo.run(SETTINGS | {"rounds": 1}, tmp_path / "run")
    assert "\nstatistics =" not in (tmp_path / "run" / "config.toml").read_text()


def test_a_federation_by_flower_cannot_recompute_statistics() -> None:
    config = Config(**SETTINGS, statistics="recomputed")
    with pytest.raises(FedsmooError, match=r"'recomputed', but nobody in a federation holds samples of all clients"):
        Recipe().setup(config, Recipe().test(config))


@pytest.mark.parametrize("policy", ["averaged", "local", "recomputed"])
@pytest.mark.parametrize("asks", [{"sampling": "power_of_choice"}, {"algorithm": "qfedavg"}], ids=["cohort", "method"])
def test_losses_that_clients_are_asked_for_do_not_depend_on_evaluations(asks: dict, policy: str) -> None:
    """They are those of the present model with its own statistics, not with those of the last evaluated one."""
    settings = SETTINGS | asks | {"statistics": policy, "u": 0.3, "partition": "dirichlet", "holdout": 0.2}
    always, seldom = (assemble(make_config(settings, {"eval_every": n})).run() for n in (1, 4))
    assert [r.cohort for r in seldom.history] == [r.cohort for r in always.history]
    assert torch.equal(seldom.server.w, always.server.w)
    cut = assemble(make_config(settings, {"eval_every": 4, "rounds": 2})).run()
    longer = dataclasses.replace(cut, config=make_config(settings, {"rounds": 2})).continue_(2, progress=False)
    assert torch.equal(longer.server.w, always.server.w)


@pytest.mark.parametrize(("policy", "sent"), [("averaged", 1), ("local", 0)])
def test_clients_that_are_asked_for_their_loss_are_sent_the_statistics_it_is_computed_with(
    policy: str, sent: int
) -> None:
    """Five candidates of which three take part: five were sent the model, and the server's statistics if it has any."""
    chosen = {"sampling": "power_of_choice", "candidates": 5, "statistics": policy}
    run = assemble(make_config(SETTINGS, chosen))
    record, parameters = run.advance(), run.setup.task.model.layout.count
    assert record.bytes_down == 5 * 4 * (parameters + sent * STATISTICS)
    assert record.bytes_up == 3 * 4 * (parameters + sent * STATISTICS) + 5 * 4


@pytest.mark.parametrize("policy", ["local", "recomputed"])
def test_probes_measure_a_model_with_its_own_statistics_where_it_is_not_evaluated(policy: str) -> None:
    settings = SETTINGS | {"statistics": policy, "probe": "hessian:2,sharpness:2", "holdout": 0.2}
    always, seldom = (assemble(make_config(settings, {"eval_every": n})).run() for n in (1, 4))
    assert [r.probes for r in seldom.history] == [r.probes for r in always.history]
    assert seldom.history[1].probes


def same_state(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[n]) for n, v in a.items())


def test_a_sweeps_run_without_a_checkpoint_is_loaded_with_its_statistics(tmp_path: Path) -> None:
    """Its model and what clients score had the statistics of a model before its first round."""
    result = fedsmoo.run(SETTINGS, tmp_path / "run", save_every=0)
    loaded = fedsmoo.load(tmp_path / "run")
    assert same_state(loaded.model.state_dict(), result.model.state_dict())
    assert loaded.evaluate_clients().equals(result.evaluate_clients())
    assert loaded.by_name(loaded.server)["statistics"].keys() == result.by_name(result.server)["statistics"].keys()


@pytest.mark.parametrize("policy", ["averaged", "local", "recomputed"])
def test_a_state_dict_has_the_statistics_of_its_own_model(policy: str) -> None:
    """Of a result that went on it had those of the later model, of one that was stopped those of the last evaluated."""
    config = make_config(SETTINGS, {"statistics": policy, "eval_every": 4})
    cut = dataclasses.replace(assemble(config).run(lambda record: record.round < 2), config=config)
    before = cut.model.state_dict()
    assert same_state(cut.state_dict, before)
    longer = cut.continue_(progress=False)
    assert same_state(cut.state_dict, before)
    assert same_state(longer.state_dict, longer.model.state_dict())
    assert not same_state(cut.state_dict, longer.state_dict)


@pytest.mark.parametrize("policy", ["averaged", "local", "recomputed"])
def test_the_last_sound_model_of_a_run_that_diverged_is_kept_with_its_statistics(policy: str, tmp_path: Path) -> None:
    sound = []

    def look(record, state) -> None:
        sound[:] = [state.model.state_dict()]
        if record.round == 2:
            state.set(lr=1e38)

    with pytest.raises(FedsmooError, match=r"round 3: .* no longer finite"):
        fedsmoo.run(SETTINGS | {"statistics": policy}, tmp_path / "run", callback=look, save_every=1)
    assert same_state(load_file(tmp_path / "run" / "model.safetensors"), sound[0])
    assert same_state(fedsmoo.load(tmp_path / "run").model.state_dict(), sound[0])


PICKY = """
import torch
from torch import nn


class Picky(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, x):
        if bool((x > 50).any()):
            raise ValueError("a sample above 50")
        return super().forward(x)
"""


@pytest.mark.parametrize(("policy", "kept"), [("averaged", True), ("recomputed", False)])
def test_what_went_wrong_first_is_said_where_statistics_cannot_be_had_either(
    policy: str, kept: bool, tmp_path: Path
) -> None:
    """A sample that the model refuses ended the run, and the statistics of the model before, with a traceback."""
    (tmp_path / "net.py").write_text(PICKY)
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4 % 3
    x[12] = 60
    data = (x[:30], y[:30], x[30:], y[30:])
    np.savez(tmp_path / "a.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), data, strict=True)))
    settings = {"model": f"{tmp_path}/net.py:Picky", "dataset": "mine", "data": str(tmp_path / "a.npz"), "rounds": 6}
    settings |= {"sampling": "round_robin", "clients": 6, "cohort": 2, "engine": "serial", "statistics": policy}
    with pytest.raises(FedsmooError, match=r"net\.py:\d+ in forward: ValueError: a sample above 50"):
        fedsmoo.run(SETTINGS | settings, tmp_path / "run")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) > 0
    assert (tmp_path / "run" / "model.safetensors").is_file() == kept
