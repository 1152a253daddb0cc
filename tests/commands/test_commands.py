"""What the commands do: run folders, tables, lists, and files of the user's own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import fedsmoo
from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.models import MODELS
from fedsmoo.models.small import Softmax

from .conftest import TINY, Call, tiny

SOURCE = Path(__file__).parents[2] / "src"

METHOD = '''"""Made up for this test, 2024."""
from dataclasses import dataclass
from fedsmoo import FedAvg, option

@dataclass(frozen=True)
class Louder(FedAvg):
    """FedAvg with louder gradients.

    client   w_i <- w_i - lr gain g(w_i)
    """

    gain: float = option(2.0, "how much louder")

    def direction(self, w, grad, down, me):
        return self.gain * grad(w), me
'''
MODEL = """
from torch import nn

def net(width=3, bias=True, name="x"):
    assert isinstance(width, int) and isinstance(bias, bool) and name in ("x", "relu")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width, bias=bias), nn.Tanh(), nn.Linear(width, 10))

def wrong():
    return 3
"""


def test_a_run_leaves_a_complete_folder(call: Call) -> None:
    answer = call("run", "--algorithm", "scaffold", *TINY, "--seed", "3", "--target", "0.01", "--out", "here")
    assert answer.code == 0, answer.err
    folder = Path("here")
    config = tomllib.loads((folder / "config.toml").read_text())
    assert (config["algorithm"], config["seed"], config["rounds"], config["lr"]) == ("scaffold", 3, 2, 0.1)
    assert config["batch_size"] == 50  # defaults are written out too
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["round"] for r in lines] == [1, 2]
    for r in lines:
        assert 0 <= r["test_accuracy"] <= 1
        assert r["test_loss"] > 0
        assert r["train_loss"] > 0
        assert r["drift"] > 0
        assert len(r["cohort"]) == 2
        assert r["bytes_up"] == r["bytes_down"] == 2 * 2 * 650 * 4
        assert r["seconds_train"] >= 0
        assert r["seconds_eval"] >= 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seed"] == 3
    assert summary["rounds"] == 2
    assert summary["test_accuracy"] == lines[-1]["test_accuracy"]
    assert summary["test_accuracy_last10"] == pytest.approx(np.mean([r["test_accuracy"] for r in lines]))
    assert summary["bytes_up"] == sum(r["bytes_up"] for r in lines)
    assert set(summary["versions"]) >= {"fedsmoo", "torch", "python"}
    assert summary["engine"] == "serial"
    assert f"{100 * summary['test_accuracy']:.2f}%" in answer.out
    assert "SCAFFOLD on digits, 4 clients, 2 per round, 2 rounds" in answer.out
    assert re.search(r"^  to 1% +round 1, 20.8 kB, \d+\.\d s$", answer.out, re.M)  # what a round sent, both ways
    assert "here" in answer.out
    assert len(answer.out.splitlines()) < 25  # one screen


@pytest.mark.parametrize(
    ("rounds", "every", "words"),
    [
        (1, 1, ""),
        (4, 1, "(mean of the last 4 evaluations; the last "),
        (9, 3, "(mean of the last 3 evaluations; the last "),
        (12, 1, "(mean of the last ten evaluations; the last "),
    ],
)
def test_the_mean_at_the_end_says_over_what(rounds: int, every: int, words: str, call: Call) -> None:
    given = ["--algorithm", "fedavg", *tiny("--rounds", str(rounds)), "--eval-every", str(every)]
    answer = call("run", *given, "--out", "here")
    line = next(line for line in answer.out.splitlines() if "test accuracy" in line)
    summary = json.loads(Path("here/summary.json").read_text())
    mean, last = (f"{100 * summary[n]:.2f}%" for n in ("test_accuracy_last10", "test_accuracy"))
    assert line.removeprefix("  test accuracy   ") == (f"{mean} {words}{last})" if words else last)


def test_the_round_chosen_by_validation_stands_beside_the_mean(call: Call) -> None:
    answer = call("run", "--algorithm", "fedavg", *tiny("--rounds", "5"), "--holdout", "0.2", "--out", "here")
    lines = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda r: (r["validation_accuracy"], -r["round"]))
    words = f"{100 * best['test_accuracy']:.2f}%  (in round {best['round']}, the best on the samples held out)"
    assert f"  by validation   {words}" in answer.out.splitlines()


def test_the_saved_model_is_the_trained_one(call: Call) -> None:
    call("run", "--algorithm", "fedavg", *TINY, "--out", "here")
    state = load_file("here/model.safetensors")
    settings = {"clients": 4, "cohort": 2, "rounds": 2, "local_steps": 1, "engine": "serial"}
    result = fedsmoo.simulate("softmax", "digits", "fedavg", partition="dirichlet", **settings)
    assert all(torch.equal(state[n], p) for n, p in result.model.state_dict().items())
    model = Softmax(64, 10)
    model.load_state_dict(state)
    with safe_open("here/model.safetensors", "pt") as file:
        assert file.metadata()["fedsmoo"].startswith(fedsmoo.__version__)


def test_a_file_flags_and_set_in_this_order(call: Call) -> None:
    Path("c.toml").write_text(
        'rounds = 1\nlr = 0.5\nclients = 4\ncohort = 2\nlocal_steps = 1\n[algorithm]\nname = "feddyn"\nbeta = 3'
    )
    answer = call("run", "c.toml", "--lr", "0.25", "--set", "batch_size=7", "--set", "beta=4", "--out", "a")
    assert answer.code == 0, answer.err
    config = tomllib.loads(Path("a/config.toml").read_text())
    assert (config["rounds"], config["lr"], config["batch_size"]) == (1, 0.25, 7)
    assert float(config["algorithm_options"]["beta"]) == 4
    # Another method: the file's options for its own method do not apply.
    answer = call("run", "c.toml", "--algorithm", "fedavg", "--out", "b")
    assert answer.code == 0, answer.err
    assert "algorithm_options" not in tomllib.loads(Path("b/config.toml").read_text())


def test_a_run_repeats_from_its_own_config(call: Call) -> None:
    call("run", "--algorithm", "fedsmoo", *TINY, "--clip", "none", "--set", "r=0.05", "--out", "a")
    answer = call("run", "a/config.toml", "--out", "b")
    assert answer.code == 0, answer.err
    first, second = (load_file(f"{d}/model.safetensors") for d in "ab")
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_default_folders_are_numbered(call: Call) -> None:
    for _ in range(2):
        assert call("run", "--algorithm", "fedavg", *TINY).code == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["fedavg-digits-seed0", "fedavg-digits-seed0-2"]


def test_a_method_and_a_model_of_the_user_s_own(call: Call) -> None:
    Path("mine.py").write_text(METHOD)
    Path("nets.py").write_text(MODEL)
    tiny = [*TINY[2:], "--algorithm", "mine.py:Louder", "--model", "nets.py:net"]
    sets = ["--set", "gain=3", "--set", "width=5", "--set", "bias=false", "--set", "name=relu"]
    answer = call("run", *tiny, *sets, "--out", "a")
    assert answer.code == 0, answer.err
    assert "Louder on digits" in answer.out
    assert load_file("a/model.safetensors")["1.weight"].shape == (5, 64)
    # Three times louder with a third of the learning rate is FedAvg.
    exact = ["--clip", "none", "--weight-decay", "0", "--dtype", "float64"]
    plainly = [*TINY[2:], "--algorithm", "fedavg", "--model", "nets.py:net", *sets[2:]]
    call("run", *tiny, *sets, "--lr", "0.1", *exact, "--out", "b")
    call("run", *plainly, "--lr", "0.3", *exact, "--out", "c")
    louder, plain = (load_file(f"{d}/model.safetensors") for d in "bc")
    assert all(torch.allclose(louder[n], plain[n], rtol=0, atol=1e-12) for n in plain)
    assert "Louder" in call("show", "mine.py:Louder").out


def test_compare_ends_with_a_table_and_a_picture(call: Call) -> None:
    answer = call("compare", "--algorithms", "fedavg, fedsmoo", "--seeds", "0,1", *TINY, "--set", "fedsmoo.r=0.05",
                  "--out", "both")  # fmt: skip
    assert answer.code == 0, answer.err
    assert "FedAvg" in answer.out
    assert "FedSMOO" in answer.out
    assert "±" in answer.out
    for column in ("last 2 (%)", "− best", "rounds to", "seconds"):
        assert column in answer.out
    assert "two seeds carry no claim" in answer.out
    assert Path("both/curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    folders = {p.name for p in Path("both").iterdir() if p.is_dir()}
    assert folders == {"fedavg-seed0", "fedavg-seed1", "fedsmoo-seed0", "fedsmoo-seed1"}
    config = tomllib.loads(Path("both/fedsmoo-seed1/config.toml").read_text())
    assert float(config["algorithm_options"]["r"]) == 0.05
    means = [json.loads(Path(f"both/fedavg-seed{s}/summary.json").read_text())["test_accuracy_last10"] for s in (0, 1)]
    assert f"{100 * np.mean(means):.2f}" in answer.out


@pytest.mark.parametrize(
    ("kind", "names"), [("algorithms", ALGORITHMS), ("models", MODELS), ("partitions", ["dirichlet"])]
)
def test_list(kind: str, names, call: Call) -> None:
    answer = call("list", kind)
    assert answer.code == 0
    assert all(any(line.split()[:1] == [n] for line in answer.out.splitlines()) for n in names)
    everything = call("list").out
    assert all(n in everything for n in [*names, "digits", "synthetic", "bernoulli", "vmap"])


def test_list_gives_fields_with_defaults_and_meaning(call: Call) -> None:
    out = call("list", "algorithms").out
    assert "beta = 10.0" in out
    assert "penalty of the dynamic regulariser" in out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_show_prints_the_box_and_the_vectors(name: str, call: Call) -> None:
    out = call("show", name).out
    algorithm = ALGORITHMS[name]()
    assert "w_i <-" in out or "server   " in out
    for place in ("down", "up", "own", "local", "server"):
        line = next(line for line in out.partition("vectors\n")[2].splitlines() if line.split()[:1] == [place])
        assert all(n in line for n in getattr(algorithm, place))
    assert all(field in out for field in algorithm.options())


def test_help_of_every_command(call: Call) -> None:
    for command in ([], ["run"], ["compare"], ["list"], ["show"], ["data"]):
        answer = call(*command, "--help")
        assert answer.code == 0
        assert "Usage" in answer.out
    out = call("run", "--help").out
    assert "--algorithm" in out
    assert "--local-epochs" in out
    assert call("--version").out.strip() == f"fedsmoo {fedsmoo.__version__}"


def shell(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The real program, its output piped."""
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")}
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedsmoo", *arguments]
    return forked.run(command, env=environment, cwd=cwd)


def test_the_program_piped_has_no_colours(tmp_path: Path) -> None:
    done = shell("run", "--algorithm", "fedavg", *TINY, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    help_text = shell("run", "--help", cwd=tmp_path)
    assert help_text.returncode == 0
    assert "\x1b" not in help_text.stdout


def test_the_program_refuses_in_one_line(tmp_path: Path) -> None:
    done = shell("run", "--algorithm", "fedsmo", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fedsmoo: unknown algorithm 'fedsmo': did you mean 'fedsmoo'?")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
