"""Schedules in settings: three spellings of one run, sweeps, batches of runs, resumed runs, measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedsmoo
from fedsmoo import FedSMOO, Schedule
from fedsmoo.core import FedsmooError
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.identity import differences, identity
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.runs.storage.reader import read_config
from fedsmoo.sweeps.grid import expand
from fedsmoo.sweeps.pack import Pack, assemble_pack, packable

SMALL: dict[str, Any] = {
    "model": "softmax", "rounds": 4, "clients": 10, "cohort": 3, "local_steps": 2, "device": "cpu", "dtype": "float64",
}  # fmt: skip
TEXT = "cosine:0.01:0.3:4"
TABLE = {"from": 0.01, "to": 0.3, "rounds": 4, "shape": "cosine"}


def spelt(folder: Path) -> list[Config]:
    """One run by a setting, a table of a file, an option of a config, and an object."""
    file = folder / "run.toml"
    file.write_text('[algorithm]\nname = "fedsmoo"\nr = {from = 0.01, to = 0.3, rounds = 4, shape = "cosine"}\n')
    return [
        make_config({}, {**SMALL, "r": TEXT}),
        make_config(file, SMALL),
        make_config({**SMALL, "algorithm_options": {"r": TABLE}}),
        make_config(Config(**SMALL, algorithm_options={"r": Schedule(0.01, 0.3, 4, "cosine")})),
        *expand({**SMALL, "hyper": {"r": TABLE}}, "here").configs,
        *expand({**SMALL, "algorithm": "fedsmoo", "algorithm_options": {"r": TEXT}}, "here").configs,
    ]


def test_a_schedule_is_one_run_however_it_is_spelt(tmp_path):
    configs = spelt(tmp_path)
    assert all(c.algorithm_options == {"r": TEXT} for c in configs)
    assert len({identity(c) for c in configs}) == 1
    other = configs[0].replace(algorithm_options={"r": "cosine:0.01:0.3:5"})
    assert identity(other) != identity(configs[0]) != identity(Config(**SMALL))
    assert len(differences(configs[0], other)) == 1


def test_an_object_with_a_schedule_is_the_run_of_its_settings(tmp_path):
    by_hand = fedsmoo.simulate(algorithm=FedSMOO(r=Schedule(0.01, 0.3, 4, "cosine")), out=tmp_path / "run", **SMALL)
    again = read_config(tmp_path / "run")
    assert identity(again) == identity(make_config({}, {**SMALL, "r": TEXT}))
    assert torch.equal(by_hand.server.w, assemble(again).run().server.w)


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(tmp_path):
    config = make_config(SMALL, {"r": TEXT, "beta": "steps:10:2:4"})
    whole = fedsmoo.run(config, tmp_path / "whole")
    fedsmoo.run(config, tmp_path / "cut", callback=lambda r: r.round < 2)
    resumed = fedsmoo.resume(tmp_path / "cut")
    assert resumed.history[-1].round == 4
    assert torch.equal(whole.server.w, resumed.server.w)


def test_runs_with_schedules_share_a_batch_with_one_that_has_a_number():
    """Each run as it is alone; at first two of the numbers are equal, later all differ."""
    configs = [make_config(SMALL, {"engine": "batched", "r": r}) for r in (TEXT, 0.01, "steps:0.1:2:0.4", "warmup:3:1")]
    assert packable(configs)
    alone = [assemble(c).run().server.w for c in configs]
    together = [r.server.w for r in Pack(assemble_pack(configs)).run()]
    assert max(float((a - b).abs().max()) for a, b in zip(alone, together, strict=True)) < 1e-12
    assert float((alone[0] - alone[1]).abs().max()) > 1e-4


def test_runs_at_different_rounds_of_a_schedule_share_a_batch():
    configs = [make_config(SMALL, {"engine": "batched", "r": TEXT, "seed": s}) for s in (0, 1)]
    alone = [assemble(c).run().server.w for c in configs]
    ahead, behind = assemble_pack(configs)
    ahead.advance()
    ahead.advance()
    together = [r.server.w for r in Pack([ahead, behind]).run()]
    assert max(float((a - b).abs().max()) for a, b in zip(alone, together, strict=True)) < 1e-12


def test_a_sweep_lists_schedules_and_numbers(tmp_path):
    found = expand({**SMALL, "hyper": {"r": [0.1, TABLE, "steps:0.1:2:0.4"]}}, "here")
    assert [c.algorithm_options["r"] for c in found.configs] == [0.1, TEXT, "steps:0.1:2:0.4"]
    assert len({c.identity for c in found.cells}) == 3
    with pytest.raises(FedsmooError, match="r: unknown part of a schedule 'form'"):
        expand({**SMALL, "hyper": {"r": {"form": 0.1, "to": 1, "rounds": 2}}}, "here")


def test_a_measurement_takes_the_number_of_the_last_round(tmp_path):
    config = make_config(SMALL, {"r": "linear:0.1:0.4:3", "probe": "consistency:2"})
    assert "cosine" in fedsmoo.run(config, tmp_path / "run").history[-1].probes
    (found,) = fedsmoo.analyse("consistency", tmp_path / "run")
    assert found.values["radius"] == 0.4
