"""Data with clients of its own is divided among them unless somebody names a partition, whoever asks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.data.sources import load
from fedsmoo.deploy.client import share_of
from fedsmoo.deploy.settings import parse
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import make_clients
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.storage.folder import config_text
from fedsmoo.runs.storage.reader import read_config
from fedsmoo.sweeps.grid import expand

from .conftest import TINY, Call, otherwise
from .test_bad_input import one_line

SMALL = ["--model", "softmax", "--cohort", "2", "--rounds", "1", "--local-steps", "1", "--engine", "serial"]
RUN = ["run", "--algorithm", "fedavg", *TINY, "--out", "made"]
PLAY = "ANNA:\n" + 30 * "the sun is up\n" + "\nBEN:\n" + 20 * "so am I\n" + "\nCLARA:\n" + 40 * "no\n"


def speakers(path: Path) -> list[int]:
    """Training windows of each speaker, by a literal count: full windows of 80, a fifth of them held out."""
    said = [block.partition(":\n")[2] for block in path.read_text().split("\n\n")]
    said = [words + "\n\n" for words in said[:-1]] + [said[-1]]
    counts = [(len(words) - 1) // 80 for words in said]
    return [n - max(1, n // 5) for n in counts if n >= 2]


@pytest.fixture
def play(tmp_path: Path) -> Path:
    (tmp_path / "play.txt").write_text(PLAY)
    return tmp_path / "play.txt"


@pytest.mark.parametrize("arguments", [["--dataset", "synthetic"], ["--set", "dataset=synthetic(1,1)"]])
def test_a_run_on_synthetic_data_has_its_30_clients(arguments: list[str], call: Call) -> None:
    assert call("run", *arguments, *SMALL, "--out", "made").code == 0
    config = read_config(Path("made"))
    assert (config.partition, config.clients) == ("natural", 30)
    assert call("run", "made/config.toml", "--out", "again").code == 0, "what a run kept is what it was"
    assert Path("made/model.safetensors").read_bytes() == Path("again/model.safetensors").read_bytes()


def test_a_play_has_one_client_for_each_speaker(play: Path, call: Call) -> None:
    name = f"text:{play}"
    assert call("run", "--dataset", name, *SMALL[2:], "--model", "char_gru", "--out", "made").code == 0
    assert (read_config(Path("made")).partition, read_config(Path("made")).clients) == ("natural", len(speakers(play)))
    assert call("data", "split", name, "--out", "s.json").out == f"s.json: 2 clients of {name}, natural, seed 0\n"
    assert [len(i) for i in json.loads(Path("s.json").read_text())["indices"]] == speakers(play)
    with pytest.raises(FedsmooError, match="has clients of its own: say how many there are, with clients"):
        parse({"dataset": name, "model": "char_gru"})
    config = parse({"dataset": name, "model": "char_gru", "clients": 2})[0]
    assert config.partition == "natural"
    assert [len(share_of(i, config).x_train) for i in range(2)] == speakers(play)
    (from_sweep,) = expand({"dataset": name, "model": "char_gru"}, "here").configs
    assert from_sweep.partition == "natural"
    result = fedsmoo.simulate("char_gru", name, "fedavg", cohort=2, rounds=1, local_steps=1)
    assert [len(i) for i in result.simulation.indices] == speakers(play)


def test_a_data_set_of_ones_own_with_natural_clients_uses_them() -> None:
    data = replace(load("digits"), natural=(torch.arange(5), torch.arange(5, 30)))
    result = fedsmoo.simulate("softmax", data, "fedavg", cohort=2, rounds=1, local_steps=1)
    assert [len(i) for i in result.simulation.indices] == [5, 25]
    named = fedsmoo.simulate("softmax", data, "fedavg", cohort=2, rounds=1, local_steps=1, partition="iid", clients=3)
    assert [len(i) for i in named.simulation.indices] == [480, 479, 479]
    for wrong in (7, 100):
        with pytest.raises(FedsmooError, match=f"clients is {wrong}, but 'digits' has 2 natural clients"):
            fedsmoo.simulate("softmax", data, "fedavg", rounds=1, clients=wrong)
    with pytest.raises(FedsmooError, match=r"u is 0\.3, but the partition 'natural' has no u"):
        fedsmoo.simulate("softmax", data, "fedavg", rounds=1, u=0.3)


def test_a_named_partition_wins(call: Call) -> None:
    arguments = ["run", "--dataset", "synthetic", "--partition", "dirichlet", "--clients", "4", *SMALL]
    assert call(*arguments, "--out", "made").code == 0
    assert [read_config(Path("made")).partition, read_config(Path("made")).clients] == ["dirichlet", 4]


def test_the_default_elsewhere_and_folders_from_before_keep_their_runs(call: Call) -> None:
    """The hashes are those of the release before, when the default was dirichlet for all data."""
    assert identity(Config()) == "63060340d03bd1bc"
    assert identity(Config(dataset="cifar10", model="resnet18_gn", rounds=800)) == "0fda984b94273e35"
    old = Config(dataset="synthetic", partition="dirichlet", model="softmax", clients=4, cohort=2, rounds=1)
    assert identity(old) == "31119c562e21b838"
    Path("made").mkdir()
    Path("made/config.toml").write_text(config_text(old.replace(local_steps=1, engine="serial")))
    assert 'partition = "dirichlet"' in Path("made/config.toml").read_text()
    assert call("resume", "made").code == 0
    assert read_config(Path("made")).partition == "dirichlet"
    assert call("run", "made/config.toml", "--out", "again").code == 0
    assert Path("made/model.safetensors").read_bytes() == Path("again/model.safetensors").read_bytes()


def test_a_split_of_natural_data_runs(call: Call) -> None:
    arguments = ["data", "split", "synthetic", "--partition", "iid", "--clients", "4", "--out", "s.json"]
    assert call(*arguments).code == 0
    assert call("run", "--dataset", "synthetic", "--split", "s.json", *SMALL, "--out", "made").code == 0
    config = read_config(Path("made"))
    assert (config.clients, len(make_clients(config, load("synthetic")))) == (4, 4)


IDLE = [
    (["--partition", "pathological", "--u", "0.6"], "u is 0.6, but the partition 'pathological' has no u"),
    (["--partition", "pathological", "--u", "0.1"], "u is 0.1, but the partition 'pathological' has no u"),
    (["--c", "3"], "c is 3, but the partition 'dirichlet' has no c: leave it out, or name the partition that has it"),
    (["--partition", "iid", "--c", "2"], "c is 2, but the partition 'iid' has no c"),
    (["--partition", "iid", "--set", "refill=true"], "refill is True, but the partition 'iid' has no refill"),
    (["--set", "refill=true", "--replacement", "false"], "refill is of a division with replacement"),
    (["--dataset", "synthetic"], "clients is 4, but 'synthetic(0.5,0.5)' has 30 natural clients: leave it out, or"),
    (["--dataset", "synthetic", "--clients", "100"], "clients is 100, but 'synthetic(0.5,0.5)' has 30 natural"),
    (["--dataset", "synthetic", "--u", "0.3"], "u is 0.3, but the partition 'natural' has no u"),
]


@pytest.mark.parametrize(("words", "message"), IDLE, ids=[" ".join(w) for w, _ in IDLE])
def test_an_option_of_another_partition_is_refused(words: list[str], message: str, call: Call) -> None:
    one_line(call(*otherwise(RUN, *words)), message)
    assert not Path("made").exists()


def test_a_flag_s_partition_leaves_the_file_s_number_behind(call: Call) -> None:
    Path("a.toml").write_text('partition = "dirichlet"\nu = 0.6\n')
    assert call("run", "a.toml", *RUN[1:], "--partition", "pathological").code == 0
    assert read_config(Path("made")).u == 0.1
    assert call("run", "a.toml", *RUN[1:-1], "kept", "--partition", "dirichlet").code == 0
    assert read_config(Path("kept")).u == 0.6
    Path("b.toml").write_text('partition = "pathological"\nu = 0.6\n')
    one_line(call("run", "b.toml", *RUN[1:-1], "none"), "u is 0.6, but the partition 'pathological' has no u")


def test_an_axis_that_no_partition_of_a_sweep_has_is_refused() -> None:
    with pytest.raises(FedsmooError, match=r"here: u is 0\.6, but no partition of the sweep has it"):
        expand({"partition": "pathological", "u": [0.1, 0.6]}, "here")
    both = expand({"partition": ["dirichlet", "pathological"], "u": [0.1, 0.6]}, "here").configs
    assert [(c.partition, c.u) for c in both[:2]] == [("dirichlet", 0.1), ("dirichlet", 0.6)]
    assert len(both) == 3, "pathological is one run, whatever u is"


def test_a_split_of_refilled_decks_uses_each_sample_once_first(call: Call) -> None:
    """Alone, a client that draws all of a class from a deck has every sample of it once."""
    arguments = ["data", "split", "digits", "--clients", "1", "--partition", "pathological-1", "--out", "s.json"]
    assert call(*arguments, "--refill").code == 0
    held = np.cumsum(json.loads(Path("s.json").read_text())["indices"][0])
    labels = load("digits").y_train.numpy()
    counts = np.bincount(held, minlength=len(labels))[labels == labels[held[0]]]
    assert counts.sum() == 1438
    assert counts.max() - counts.min() <= 1


def test_a_split_of_a_text_is_shown_wherever_the_text_lies(play: Path, call: Call) -> None:
    """A split keeps the name of the file, not its place."""
    (play.parent / "far").mkdir()
    play.rename(play.parent / "far" / "play.txt")
    assert call("data", "split", "text:far/play.txt", "--out", "s.json").code == 0
    one_line(call("data", "show", "s.json"), "text play.txt: no such file")
    assert "2 clients hold" in call("data", "show", "s.json", "--data", "far/play.txt").out


def test_the_index_names_no_rule_where_a_split_says_who_holds_what(call: Call) -> None:
    """It named the default, dirichlet-0.1, which was not used."""
    assert call("data", "split", "digits", "--partition", "iid", "--clients", "4", "--out", "s.json").code == 0
    assert call("run", "--split", "s.json", "--algorithm", "fedavg", *SMALL, "--out", "runs/a").code == 0
    assert call("run", "--algorithm", "fedavg", *TINY, "--out", "runs/b").code == 0
    found = {row["path"]: row for row in json.loads(call("runs", "runs", "--json").out)}
    assert [found["a"][n] for n in ("partition", "u", "replacement", "clients")] == [None, None, None, 4]
    assert [found["b"][n] for n in ("partition", "u", "clients")] == ["dirichlet", 0.1, 4]
