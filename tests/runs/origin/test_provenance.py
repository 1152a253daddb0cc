"""Where a result comes from: command, commit, machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsmoo.cli import main
from fedsmoo.commands.options import gather_config
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin import provenance as origin
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.origin.provenance import command_to_repeat, git_state
from fedsmoo.runs.origin.typed import command
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.sweeps.queue import Worker, work
from fedsmoo.sweeps.results import from_folder, from_json, to_json

TINY = Config(
    algorithm="fedavg", model="softmax", rounds=2, clients=6, cohort=2, local_steps=1, device="cpu", engine="serial"
)
PACKAGE = Path(origin.__file__).parents[2]


def facts(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_a_run_of_the_command_line_keeps_its_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--algorithm", "fedavg", "--model", "softmax", "--rounds", "1", "--clients", "4", "--cohort", "2",
             "--local-steps", "1", "--device", "cpu", "--out", str(tmp_path / "a run")]  # fmt: skip
    with pytest.raises(SystemExit):
        main(words)
    for file in ("summary.json", "started.json"):
        said = json.loads((tmp_path / "a run" / file).read_text())["command"]
        assert shlex.split(said) == ["fedsmoo", *words]


def test_a_run_of_python_code_never_passes_for_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["driver", "352"])
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "drive it.py", "352"])
    Run.begin(TINY, tmp_path / "a").go()
    assert facts(tmp_path / "a")["command"] == "python: 'drive it.py' 352"
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3"])
    assert command() == "python: a notebook or a prompt"


def test_every_run_of_a_sweep_says_how_to_make_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    packed = [
        TINY.replace(seed=s, engine="batched", algorithm="fedsmoo", algorithm_options={"r": 0.05}) for s in (0, 1)
    ]
    report = work(packed, tmp_path / "runs", Worker(pack=2))
    for folder, config in zip(report.finished, packed, strict=True):
        found = from_folder(folder)
        made = {**json.loads((folder / "started.json").read_text()), **facts(folder)}
        assert (made["packed"], made["pack"]) == (2, [p.name for p in report.finished])
        with pytest.raises(SystemExit):
            main([*shlex.split(made["again"])[1:], "--out", f"alone{config.seed}"])
        alone = from_folder(tmp_path / f"alone{config.seed}")
        assert alone.identity == found.identity
        assert alone.curve["test_accuracy"] == found.curve["test_accuracy"]
        assert (facts(tmp_path / f"alone{config.seed}")["packed"], alone.facts.get("pack")) == (1, None)


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(partition="iid", replacement=True),
        Config(partition="iid", replacement=False, clip=None, weighted=True, precision="bf16"),
        Config(partition="dirichlet", u=0.6, local_steps=3, algorithm_options={"correct": False, "r": 1e-4}),
        Config(dataset="synthetic(1,1)", partition="natural", clients=30),
        Config(dataset="synthetic(1,1)", partition="dirichlet", u=0.6),
        Config(partition="pathological-6", c=6, u=0.7, model="cnn_gn", eval_every=5, dataset="cifar10", data="a b.npz"),
        Config(algorithm="fedadam", algorithm_options={"lr_server": 0.03}, model_options={"hidden": 32}, augment=False),
    ],
)
def test_the_command_for_one_run_means_its_config(config: Config) -> None:
    words = shlex.split(command_to_repeat(config))
    assert words[:2] == ["fedsmoo", "run"]
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    flags = {k.removeprefix("--").replace("-", "_"): v for k, v in pairs if k != "--set"}
    assert set(flags) <= set(FIELDS)
    read = gather_config(None, [v for k, v in pairs if k == "--set"], flags)
    assert identity(read) == identity(config)
    assert (read.engine, read.data) == (config.engine, config.data)


def test_values_are_written_as_flags_take_them() -> None:
    assert [origin.flag_value(v) for v in (None, True, False, 0.5, "Mine")] == ["none", "true", "false", "0.5", "Mine"]


def test_options_that_no_flag_can_say_refer_to_the_config() -> None:
    words = shlex.split(command_to_repeat(Config(model="m.py:net", model_options={"sizes": [1, 2]})), comments=True)
    assert words == ["fedsmoo", "run", "config.toml"]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package of two files."""
    package = tmp_path / "src" / "fedsmoo"
    package.mkdir(parents=True)
    for file in (package / "__init__.py", package / "a.py", tmp_path / "README"):
        file.write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_checkout_says_its_commit_and_whether_it_was_edited(checkout: Path) -> None:
    package, commit = checkout / "src" / "fedsmoo", git(checkout, "rev-parse", "HEAD").strip()
    assert git_state(package) == (commit, False)
    (checkout / "results.json").write_text("{}")  # what runs leave is no change of the code
    assert git_state(package) == (commit, False)
    (package / "b.py").write_text("x = 2\n")
    assert git_state(package) == (commit, True)
    (package / "b.py").unlink()
    (checkout / "README").write_text("edited\n")
    assert git_state(package) == (commit, True)
    git(checkout, "commit", "-q", "-a", "-m", "second")
    assert git_state(package) == (git(checkout, "rev-parse", "HEAD").strip(), False)
    git(checkout, "worktree", "add", "-q", "other")
    assert git_state(checkout / "other" / "src" / "fedsmoo") == (git(checkout, "rev-parse", "HEAD").strip(), False)


def test_a_package_inside_somebody_elses_repository_has_no_commit(checkout: Path) -> None:
    inside = checkout / "vendor" / "src" / "fedsmoo"
    shutil.copytree(checkout / "src" / "fedsmoo", inside)
    assert git_state(inside) == (None, None)
    assert git_state(checkout / "src") == (None, None)


def test_without_git_the_commit_is_read_and_nothing_is_known_of_edits(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(checkout, "rev-parse", "HEAD").strip()
    git(checkout, "worktree", "add", "-q", "other")
    monkeypatch.setenv("PATH", "")
    for place in (checkout, checkout / "other"):
        assert git_state(place / "src" / "fedsmoo") == (commit, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("abc123", ("abc123", None)), ("abc123-dirty", ("abc123", True)), ("abc123+dirty", ("abc123", True)),
     ("abc123+clean", ("abc123", False)), ("fff", ("fff", True)), ("", ("fff000", True))],
)  # fmt: skip
def test_a_commit_that_is_given_wins(given: str, expected: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "commit_of_checkout", lambda: ("fff000", True))
    monkeypatch.setenv("FEDSMOO_COMMIT", given)
    assert origin.commit_of_code() == expected


def test_a_run_from_an_edited_checkout_says_so_to_its_result_file(tmp_path: Path) -> None:
    source = tmp_path / "repository"
    shutil.copytree(PACKAGE, source / "src" / "fedsmoo", ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "-q", "repository")
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "first")
    (source / "src" / "fedsmoo" / "version.py").write_text(
        (source / "src" / "fedsmoo" / "version.py").read_text() + "\n# edited\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "FEDSMOO_COMMIT"} | {"PYTHONPATH": str(source / "src")}
    words = ["run", "--algorithm", "fedavg", "--model", "softmax", "--rounds", "1", "--clients", "4", "--cohort", "2",
             "--local-steps", "1", "--device", "cpu", "--engine", "serial", "--out", "made"]  # fmt: skip
    subprocess.run([sys.executable, "-m", "fedsmoo", *words], cwd=tmp_path, env=env, check=True, capture_output=True)
    result = from_folder(tmp_path / "made")
    assert result.facts["commit"] == git(source, "rev-parse", "HEAD").strip()
    assert result.facts["dirty"] is True
    (tmp_path / "result.json").write_text(to_json(result))
    read = from_json(tmp_path / "result.json").facts
    assert read["command"] == shlex.join(["fedsmoo", *words])
    assert {"torch", "python", "numpy", "fedsmoo"} <= set(read["versions"])
    assert read["cores"] == os.cpu_count()
    assert read["cpu"]
    assert read["data"]["kind"] == "official"


def test_who_went_on_with_a_run_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setenv("FEDSMOO_COMMIT", "aaa+clean")
    Run.begin(TINY, tmp_path / "run").go(callback=lambda r: seen.append(1), stop=lambda: True)
    assert "sessions" not in json.loads((tmp_path / "run" / "started.json").read_text())
    monkeypatch.setenv("FEDSMOO_COMMIT", "bbb+dirty")
    reopen(tmp_path / "run").go()
    result = from_folder(tmp_path / "run")
    assert [(s["round"], s["commit"], s["dirty"]) for s in result.facts["sessions"]] == [
        (0, "aaa", False),
        (1, "bbb", True),
    ]


def test_a_library_that_imports_ipython_makes_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "mine.py"])
    for name in ("ipykernel", "IPython"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(get_ipython=lambda: None))
    assert command() == "python: mine.py"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: object()))
    assert command() == "python: a notebook or a prompt"
