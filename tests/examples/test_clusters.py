"""The scripts of examples/clusters, with schedulers that are not there, and Optuna over a packed sweep."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from fedsmoo.cli import app
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.reader import read_run, state
from fedsmoo.sweeps.sweep import open_sweep

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "examples" / "clusters"
SMALL = {"model": "softmax", "clients": 4, "cohort": 2, "rounds": 2, "local_steps": 1}


def parsed(words: list[str]) -> dict[str, object]:
    """What the command line takes words for; it ends the test where it refuses them."""
    group = typer.main.get_command(app)
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    return dict(command.make_context(words[0], words[1:]).params)


def test_the_sweep_script_shares_a_grid_among_jobs(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(
        "".join(f"{n} = {v!r}\n" for n, v in SMALL.items()).replace("'", '"') + "algorithm = 'fedavg'\nseed = [0, 1]\n"
    )
    main = runpy.run_path(str(CLUSTERS / "slurm_sweep.py"))["main"]
    words = [str(grid), "--out", str(tmp_path / "runs"), "--jobs", "2", "--minutes", "5", "--cluster", "debug"]
    assert main(words) == [(2, 0, 0), (2, 0, 0)]  # the second finds all of it done
    folders = [p.parent for p in (tmp_path / "runs").glob("*/config.toml")]
    assert len(folders) == 2
    assert {state(folder) for folder in folders} == {"finished"}


def told(tmp_path: Path, run: Path) -> list[str]:
    """The words that the batch script gives to ``srun``, by programs that stand for Slurm's."""
    for name, text in (("scontrol", "echo node7; echo node8"), ("srun", 'printf "%s\\n" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2",
           "SLURM_JOB_ID": "42", "SLURM_GPUS_ON_NODE": "8", "RUN": str(run)}  # fmt: skip
    script = CLUSTERS / "slurm_torchrun.sbatch"
    return subprocess.run(["bash", str(script)], env=env, check=True, capture_output=True, text=True).stdout.split()


def test_the_batch_script_starts_a_run_and_resumes_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = told(tmp_path, run)
    k = words.index("fedsmoo")
    assert words[: k - 1] == [
        "torchrun", "--nnodes=2", "--nproc-per-node=8", "--rdzv-id=42", "--rdzv-backend=c10d",
        "--rdzv-endpoint=node7:29500",
    ]  # fmt: skip
    given = parsed(words[k + 1 :])
    names = ("algorithm", "dataset", "model", "cohort", "clients", "rounds", "device", "precision")
    config = Config().replace(**{n: int(v) if str(v).isdigit() else v for n in names if (v := given[n])})
    assert (config.cohort, config.clients, config.rounds) == (50, 500, 800)
    run.mkdir()
    (run / "config.toml").touch()
    words = told(tmp_path, run)
    assert words[words.index("fedsmoo") + 1 :] == ["resume", str(run)]
    assert parsed(words[words.index("fedsmoo") + 1 :])["folder"] == str(run)


def test_the_manifest_is_a_sweep_of_workers_without_root() -> None:
    config, claim, job = yaml.safe_load_all((CLUSTERS / "kubernetes.yaml").read_text())
    assert [d["kind"] for d in (config, claim, job)] == ["ConfigMap", "PersistentVolumeClaim", "Job"]
    pod = job["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    mounts = {m["name"]: m["mountPath"] for m in worker["volumeMounts"]}
    held = {v["name"]: v for v in pod["volumes"]}
    assert held.keys() == mounts.keys()
    assert held["config"]["configMap"]["name"] == config["metadata"]["name"]
    assert held["runs"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    given = parsed(worker["args"])
    assert str(given["out"]).startswith(mounts["runs"])
    assert given["file"] == f"{mounts['config']}/grid.toml"
    threads = {e["name"]: e["value"] for e in worker["env"]}["OMP_NUM_THREADS"]
    assert threads == worker["resources"]["limits"]["cpu"]
    assert len(open_sweep(tomllib.loads(config["data"]["grid.toml"])).cells) == 8
    assert len(open_sweep(CLUSTERS / "grid.toml").cells) == 8
    assert job["spec"]["completions"] == job["spec"]["parallelism"]


def test_workers_are_started_as_often_as_asked_and_their_failure_is_told(tmp_path: Path) -> None:
    fake = tmp_path / "fake"
    fake.write_text('#!/bin/sh\necho "$@" >>"$LOG"\nexit ${CODE:-0}\n')
    fake.chmod(0o755)
    env = {**os.environ, "FEDSMOO": str(fake), "LOG": str(tmp_path / "log")}
    words = [str(CLUSTERS / "workers.sh"), "grid.toml", str(tmp_path / "runs"), "3"]
    assert subprocess.run(words, env=env).returncode == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == [f"sweep grid.toml --out {tmp_path / 'runs'}"] * 3
    assert parsed(lines[0].split())["file"] == "grid.toml"
    assert subprocess.run(words, env={**env, "CODE": "2"}).returncode == 2


def test_every_command_of_the_page_is_one() -> None:
    text = (ROOT / "docs" / "clusters.md").read_text()
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()]
    scripts = [w for line in lines for w in shlex.split(line, comments=True) if w.startswith("examples/")]
    assert len(scripts) >= 6
    for name in scripts:
        assert (ROOT / name).exists(), name
    for words in re.findall(r"fedsmoo (sweep [^\"\n]*)", "\n".join(lines)):
        assert parsed(words.split())["file"]


def test_optuna_searches_in_packs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = runpy.run_path(str(ROOT / "examples" / "optuna_packed.py"))["search"]
    study = search(tmp_path / "runs", batches=1, pack=2, **SMALL, engine="batched")
    assert [t.state.name for t in study.trials] == ["COMPLETE", "COMPLETE"]
    runs = [read_run(p.parent) for p in sorted((tmp_path / "runs").glob("*/config.toml"))]
    found = {(r.config.lr, r.config.algorithm_options["r"]): r for r in runs}
    for trial in study.trials:
        run = found[trial.params["lr"], trial.params["r"]]
        assert trial.value == max(r.validation_accuracy for r in run.history)
        assert len(run.facts["pack"]) == 2  # one batch
