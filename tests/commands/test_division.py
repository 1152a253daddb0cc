"""Who holds what, as the command line and a sweep file say it: the number in a partition's name, and iid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.storage.folder import config_text
from fedsmoo.runs.storage.reader import read_config
from fedsmoo.sweeps.grid import expand

from .conftest import TINY, Call
from .test_bad_input import one_line

RUN = ["run", "--algorithm", "fedavg", *TINY, "--out", "made"]
SPLIT = ["data", "split", "digits", "--clients", "4", "--out", "made"]


@pytest.mark.parametrize("command", [RUN, SPLIT], ids=["run", "split"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partition", "dirichlet-0.6", "--u", "0.1"], "u is 0.1, but the partition 'dirichlet-0.6' says 0.6"),
        (
            ["--partition", "pathological-2", "--c", "5"],
            "c is 5, but the partition 'pathological-2' says 2: leave c out",
        ),
    ],
)
def test_a_number_beside_a_name_that_says_another_is_refused(
    command: list[str], words: list[str], message: str, call: Call
) -> None:
    one_line(call(*command, *words), message)
    assert not Path("made").exists()


def test_a_sweep_over_u_beside_a_name_that_says_it_is_refused() -> None:
    with pytest.raises(FedsmooError, match=r"u is 1\.0, but the partition 'dirichlet-0\.1' says 0\.1"):
        expand({"partition": "dirichlet-0.1", "u": [0.1, 1, 100]}, "here")
    assert [c.u for c in expand({"partition": "dirichlet", "u": [0.1, 1, 100]}, "here").configs] == [0.1, 1, 100]


@pytest.mark.parametrize(
    ("partition", "kept"),
    [("dirichlet-0.6", (0.6, 3, True)), ("pathological-2", (0.1, 2, True)), ("iid", (0.1, 3, False))],
)
def test_a_run_keeps_the_numbers_it_was_divided_by(partition: str, kept: tuple, call: Call) -> None:
    """And its config is one that runs; what the name says is the same run as before it was kept."""
    assert call(*RUN, "--partition", partition).code == 0
    config = read_config(Path("made"))
    assert (config.u, config.c, config.replacement) == kept
    assert identity(config) == identity(config.replace(u=0.1, c=3))
    assert call("run", "made/config.toml", "--out", "again").code == 0


def test_a_folder_from_before_goes_on(call: Call) -> None:
    """There the config held the defaults beside the name."""
    old = Config(algorithm="fedavg", model="softmax", clients=4, cohort=2, rounds=2, local_steps=1, engine="serial")
    Path("made").mkdir()
    Path("made/config.toml").write_text(config_text(old.replace(partition="dirichlet-0.6")))
    assert read_config(Path("made")).u == 0.1
    assert call("resume", "made").code == 0
    assert call(*RUN[:-1], "now", "--partition", "dirichlet-0.6").code == 0
    assert Path("made/model.safetensors").read_bytes() == Path("now/model.safetensors").read_bytes()


@pytest.mark.parametrize(("words", "holders"), [([], 1438), (["--replacement"], None), (["--no-replacement"], 1438)])
def test_an_iid_split_is_without_replacement_unless_asked_for(
    words: list[str], holders: int | None, call: Call
) -> None:
    assert call(*SPLIT, "--partition", "iid", *words).code == 0
    content = json.loads(Path("made").read_text())
    assert content["rule"] == {"name": "iid", "replacement": holders is None}
    held = np.concatenate([np.cumsum(i) for i in content["indices"]])
    assert (np.unique(held).size == 1438) is (holders == 1438)


def test_an_iid_run_of_before_is_another_run() -> None:
    before, now = Config(partition="iid"), expand({"partition": "iid"}, "here").configs[0]
    assert identity(before) != identity(now)
    assert identity(before) == expand({"partition": "iid", "replacement": True}, "here").cells[0].identity


def test_a_partition_on_the_command_line_wins_over_the_file_s_number(call: Call) -> None:
    Path("kept.toml").write_text('partition = "dirichlet"\nu = 0.5\n')
    assert call("run", "kept.toml", *RUN[1:], "--partition", "dirichlet-0.2").code == 0
    assert read_config(Path("made")).u == 0.2


def test_hyper_parameters_on_the_command_line_are_kept_as_what_they_are(call: Call) -> None:
    words = ["run", "--algorithm", "fedsmoo", *TINY, "--set", "r=0.3", "--set", "sam=false", "--out", "made"]
    assert call(*words).code == 0
    assert read_config(Path("made")).algorithm_options == {"r": 0.3, "sam": False}


def test_a_split_takes_options_of_its_partition_and_data(call: Call) -> None:
    """Options of a partition of ours, of one's own and of one's own data; other settings are refused in a line."""
    made = call(*SPLIT, "--partition", "classwise-0.5", "--set", "least=40")
    assert made.code == 0, made.err
    sizes = [len(held) for held in json.loads(Path("made").read_text())["indices"]]
    assert min(sizes) >= 40
    Path("own.py").write_text(
        "import numpy as np\n"
        "def cut(labels, classes, clients, seed, first=1):\n"
        "    return [np.arange(i * first, (i + 1) * first) for i in range(clients)]\n"
        "def data(classes: int = 2):\n"
        "    x = np.zeros((30, 2), np.float32)\n"
        "    return x, np.arange(30) % classes, x[:9], np.arange(9) % classes\n"
    )
    words = ["--partition", "own.py:cut", "--set", "first=3", "--set", "classes=5", "--clients", "4"]
    assert call("data", "split", "own.py:data", *words, "--out", "own.json").code == 0
    assert json.loads(Path("own.json").read_text())["indices"][1] == [3, 1, 1]  # 3, 4, 5 as differences
    for word in ("clients=9", "r=1"):
        said = f"--set {word.split('=')[0]}: of a division, --set takes options of its partition and data set alone"
        one_line(call(*SPLIT[:-1], "other", "--set", word), said)
    one_line(call(*SPLIT[:-1], "other", "--set", "leest=4"), "unknown setting 'leest'")
