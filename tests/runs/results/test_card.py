"""Models for others: the weights to the bit, a card that hubs can read, and nothing that a stranger wrote as markup."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.runs.results.card import export_model

SMALL = {"algorithm": "fedavg", "model": "softmax", "clients": 4, "cohort": 2, "rounds": 2, "local_steps": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    fedsmoo.run(SMALL, out=folder)
    return folder


def test_an_exported_model_is_the_runs_and_loads_as_one(run: Path, tmp_path: Path) -> None:
    card = export_model(run, tmp_path / "model")
    mine, theirs = load_file(run / "model.safetensors"), load_file(card.parent / "model.safetensors")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(v, theirs[n]) for n, v in mine.items())
    loaded = fedsmoo.load(card.parent)
    assert all(torch.equal(v, mine[n]) for n, v in loaded.model.state_dict().items())


def test_the_card_says_what_the_run_says(run: Path, tmp_path: Path) -> None:
    text = export_model(run, tmp_path / "model").read_text()
    _, head, body = text.split("---\n", 2)
    about = yaml.safe_load(head)
    summary = json.loads((run / "summary.json").read_text())
    (model,) = about["model-index"]
    assert about["library_name"] == "fedsmoo"
    assert model["results"][0]["metrics"] == [{"type": "accuracy", "value": summary["test_accuracy"]}]
    assert model["results"][0]["dataset"]["type"] == "digits"
    assert f"| test accuracy at the end | {summary['test_accuracy']:.2%} |" in body
    assert "| rounds | 2, 2 clients each |" in body
    assert re.search(r"^fedsmoo run .*--algorithm fedavg", body, re.M)


def test_what_cannot_be_exported_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(FedsmooError, match="not an empty folder"):
        export_model(run, tmp_path / "full")
    export_model(run, tmp_path / "copy")
    (tmp_path / "copy" / "summary.json").unlink()
    with pytest.raises(FedsmooError, match="has no finished model"):
        export_model(tmp_path / "copy", tmp_path / "new")
    with pytest.raises(FedsmooError, match="is not a run folder"):
        export_model(tmp_path, tmp_path / "new")
    export_model(run, tmp_path / "other")
    data = bytearray((tmp_path / "other" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "other" / "model.safetensors").write_bytes(data)
    with pytest.raises(FedsmooError, match="SHA-256 differs"):
        export_model(tmp_path / "other", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_card_leaves_no_setting_unsaid(tmp_path: Path) -> None:
    settings = {**SMALL, "algorithm": "fedprox", "algorithm_options": {"mu": 0.5}, "local_steps": None, "holdout": 0.25}

    def callback(record, state):
        if record.round == 1:
            state.set(lr=0.05)

    fedsmoo.run(settings, tmp_path / "run", callback=callback)
    started = json.loads((tmp_path / "run" / "started.json").read_text())
    other = {"data": {"kind": "other"}, "contents": {"data_content": "1a2b3c4d5e6f7a8b"}}
    (tmp_path / "run" / "started.json").write_text(json.dumps({**started, **other}))
    text = export_model(tmp_path / "run", tmp_path / "model").read_text()
    assert "| local training | 5 epochs, batches of 50, learning rate 0.1 |" in text  # the default
    assert "| data | digits (other content 1a2b3c4d), dirichlet-0.1 over 4 clients |" in text
    assert "| other settings | holdout = 0.25, algorithm_options = {'mu': 0.5} |" in text
    assert "| changed on the way | lr=0.05 after round 1 |" in text
    assert not re.search(r"^fedsmoo run", text, re.M)  # which would not change it
    assert started["command"] in text


def test_a_card_whose_run_no_flags_can_say_has_a_command_too(run: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(run, tmp_path / "old"))
    started = json.loads((old / "started.json").read_text())
    started["again"] = "fedsmoo run CONFIG, with the config of this run as CONFIG"  # as earlier versions wrote it
    (old / "started.json").write_text(json.dumps(started))
    card = export_model(old, tmp_path / "model")
    assert re.search(r"^fedsmoo run config.toml$", card.read_text(), re.M)
    fedsmoo.run(card.parent / "config.toml", tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("algorithm", "model", "names"),
    [
        ("fedper", "mlp", ["fc3.bias", "fc3.weight"]),
        ("fedrep", "mlp", ["fc3.bias", "fc3.weight"]),
        ("fedbn", "cnn_gn", None),
    ],
)
def test_the_card_names_what_was_never_trained(
    algorithm: str, model: str, names: list[str] | None, tmp_path: Path
) -> None:
    """Which is what the global model still has from its start, to the last bit."""
    settings = {**SMALL, "algorithm": algorithm, "model": model, "holdout": 0.2, "local_steps": 5}
    result = fedsmoo.run(settings, out=tmp_path / "run")
    first = fedsmoo.simulate(model, "digits", "fedavg", clients=4, cohort=2, rounds=1, local_steps=1, lr=1e-30)
    begun = first.simulation.setup.task.model.state_dict(first.simulation.setup.task.model.initial())
    same = sorted(n for n, v in result.state_dict.items() if torch.equal(v, begun[n]))
    assert same == (names or same) != []
    assert same != sorted(result.state_dict)
    card = export_model(tmp_path / "run", tmp_path / "model").read_text()
    (line,) = re.findall(r"\*\*Not trained: (.*)\.\*\*", card)
    assert sorted(line.replace("`", "").split(", ")) == same
    assert f"| not trained | {line} |" in card


def test_a_card_of_a_run_of_before_counts_what_was_never_trained(run: Path, tmp_path: Path) -> None:
    assert "ot trained" not in export_model(run, tmp_path / "plain").read_text()
    shutil.copytree(run, tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").write_text(json.dumps({**summary, "parameters_staying": 65}))
    assert "**Not trained: 65 of 650 numbers.**" in export_model(tmp_path / "run", tmp_path / "model").read_text()
