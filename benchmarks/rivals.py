"""One small federated workload by our engine, a plain PyTorch loop, Flower and pfl-research, side by side on the CPU.

PYTHONPATH=src python benchmarks/rivals.py --out results/rivals.json --docs docs/rivals.md

Each rival gets a virtual environment of its own below --envs, with the torch that runs this script. The ways take
turns, several times, so that a noisy machine is noisy for all of them; every turn has a seed of its own, and every
worker a network that is nothing but a loopback interface. A way that cannot be run says why in the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsmoo.data.digits import digits
from fedsmoo.data.division.partition import parse
from fedsmoo.models import build
from fedsmoo.version import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "rivals"))
from common import descendants  # noqa: E402
from machine import hardware, source, wait_for_quiet  # noqa: E402
from results_table import summary, table, write_docs  # noqa: E402

SETTINGS: dict[str, Any] = {
    "algorithm": "fedavg", "model": "mlp 64-64-64-10", "dataset": "digits", "partition": "iid", "clients": 100,
    "cohort": 10, "local_epochs": 5, "batch_size": 10, "lr": 0.1, "weight_decay": 1e-3, "clip": 10.0,
    "dtype": "float32", "cores": 2, "warm_up": 3, "rounds": 20,
}  # fmt: skip
TIMEOUT = 300.0  # seconds for one worker; minutes for an installation
ATTEMPTS = 3
# No telemetry, no look for updates; that nothing is sent all the same is the business of the isolated network.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "GLOO_SOCKET_IFNAME": "lo", "PFL_PYTORCH_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One way to run the workload: a worker script, the environment it needs, and how it is set up, in words."""

    script: str
    setup: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None  # its own, or none for the one that runs this script
    requirement: str | None = None
    processes: int = 1
    sockets: bool = False  # whether its processes talk over sockets, which must not be open to others


# One thread is the fastest for every way that is one process: products this small are not worth sharing.
WAYS = {
    "fedsmoo, batched engine": Way("ours.py", "one process", ("batched",)),
    "plain PyTorch loop": Way("ours.py", "one process, client after client", ("plain",)),
    "pfl-research, one process": Way(
        "pfl_worker.py", "SimulatedBackend, FederatedAveraging", (), "pfl", "pfl==0.6.0"
    ),
    "pfl-research, two processes": Way(
        "pfl_worker.py", "the same, the cohort shared by two processes", (), "pfl", "pfl==0.6.0", 2, True
    ),
    "Flower simulation": Way(
        "flower_worker.py", "Ray backend, two actors of one core, its own FedAvg", (), "flower",
        "flwr[simulation]==1.41.0", 1, True,
    ),
}  # fmt: skip


class NotRun(Exception):
    """Why a way could not be run."""


def torch_version() -> str:
    return torch.__version__.partition("+")[0]


# -- environments


def python_of(way: Way, envs: Path) -> Path:
    """The interpreter for a way; its environment is made if it is not there yet."""
    if way.environment is None or way.requirement is None:
        return Path(sys.executable)
    folder = envs / way.environment
    python, done = folder / "bin" / "python", folder / "installed.txt"
    wanted = f"{way.requirement} torch=={torch_version()}"
    if done.is_file() and done.read_text().strip() == wanted:
        return python
    envs.mkdir(parents=True, exist_ok=True)
    (envs / ".gitignore").write_text("*\n")
    pin = f"torch=={torch_version()}"  # a range could bring another build, and gigabytes of it
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, pin], [*pip, way.requirement, pin]):
        patiently(command)
    done.write_text(wanted + "\n")
    return python


def patiently(command: list[str]) -> None:
    """A step of an installation, three times at most."""
    for attempt in range(ATTEMPTS):
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT * 2)
        except subprocess.TimeoutExpired:
            problem = f"no end after {TIMEOUT * 2:.0f} s"
            continue
        if result.returncode == 0:
            return
        problem = last_line(result.stderr)
        print(f"attempt {attempt + 1}: {problem}", file=sys.stderr)
    raise NotRun(f"installation failed {ATTEMPTS} times: {problem}")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


# -- the workload, and a worker


def write_workload(path: Path, settings: dict[str, Any]) -> None:
    """Data, split and first weights in one file, the same for all."""
    data = digits()
    seed = settings["seed"]
    rule = parse(settings["partition"], replacement=False)
    clients = rule.split(data.y_train.numpy(), data.classes, settings["clients"], seed)
    start = build("mlp", data, seed).module.state_dict()
    parts = {n: getattr(data, n).numpy() for n in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(
        path, **parts, samples=np.concatenate(clients), ends=np.cumsum([len(c) for c in clients]),
        settings=json.dumps(settings), **{f"start.{n}": v.numpy() for n, v in start.items()},
    )  # type: ignore[arg-type]  # fmt: skip


@cache
def isolation() -> tuple[str, ...] | None:
    """A prefix that gives a command a network of its own; none where the system does not allow it."""
    prefix = ("unshare", "--user", "--map-root-user", "--net")
    try:
        allowed = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    except OSError:
        allowed = False
    return prefix if allowed else None


def environment(way: Way, folder: Path) -> dict[str, str]:
    mine = {
        "RIVALS_FOLDER": str(folder), "RIVALS_WORKLOAD": str(folder / "workload.npz"), "OMP_NUM_THREADS": "1",
        "RIVALS_RAY": str(folder / "ray"), "FLWR_HOME": str(folder / "flwr"), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    if way.environment is None:
        mine["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHONPATH", "PFL_", "RAY_", "FLWR_"))}
    return {**kept, **QUIET, **mine}


def run_worker(way: Way, python: Path, folder: Path) -> dict[str, Any]:
    """One turn of one way: its processes are started, waited for, and ended by their ids if they do not end."""
    prefix = isolation()
    if way.sockets and prefix is None:
        raise NotRun("no isolated network can be made here (unshare --net), and its sockets would be open to others")
    launch = [sys.executable, str(HERE / "rivals" / "launch.py"), "isolated" if prefix else "open", str(way.processes)]
    command = [*(prefix or ()), *launch, str(python), str(HERE / "rivals" / way.script), *way.arguments]
    log = folder / "log.txt"
    with log.open("w") as f:
        started = subprocess.Popen(command, env=environment(way, folder), stdout=f, stderr=subprocess.STDOUT)
        try:
            code = started.wait(TIMEOUT)
        except subprocess.TimeoutExpired as e:
            raise NotRun(f"no end after {TIMEOUT:.0f} s") from e
        finally:
            if started.poll() is None:
                for pid in descendants(started.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                started.wait()
    answers = [folder / f"answer-{r}.json" for r in range(way.processes)]
    if code or not all(a.is_file() for a in answers):
        raise NotRun(f"the worker ended with {code}: {last_line(log.read_text(errors='replace'))}")
    found = [json.loads(a.read_text()) for a in answers]
    memory = [a["memory_bytes"] for a in found]
    return found[0] | {"memory_bytes": None if None in memory else sum(memory)}


# -- the report


def measure(names: list[str], settings: dict[str, Any], envs: Path, turns: int, patience: float) -> dict[str, Any]:
    """All turns of all ways."""
    pythons: dict[str, Path] = {}
    runs: dict[str, list[dict[str, Any]]] = {n: [] for n in names}
    failed: dict[str, str] = {}
    for name in names:
        try:
            pythons[name] = python_of(WAYS[name], envs)
        except NotRun as e:
            failed[name] = str(e)
    for turn in range(turns):
        for name in names:
            if name not in failed:
                try:
                    runs[name].append(one_turn(WAYS[name], pythons[name], settings | {"seed": turn}, patience))
                    last = statistics.median(runs[name][-1]["seconds_per_round"][settings["warm_up"] :])
                    print(f"turn {turn + 1}: {name}: {last:.4f} s a round", file=sys.stderr)
                except NotRun as e:
                    failed[name] = str(e)
                    print(f"turn {turn + 1}: {name}: not run: {e}", file=sys.stderr)
    return {n: {"not_run": failed[n]} if n in failed else summary(WAYS[n].setup, runs[n], settings) for n in names}


def one_turn(way: Way, python: Path, settings: dict[str, Any], patience: float) -> dict[str, Any]:
    """A worker in a folder that is gone afterwards; another try if it fails."""
    for attempt in range(ATTEMPTS):
        busy = wait_for_quiet(patience)
        # A short path, because Ray's sockets live below it.
        with tempfile.TemporaryDirectory(prefix="rivals-", ignore_cleanup_errors=True) as folder:
            write_workload(Path(folder) / "workload.npz", settings)
            try:
                out = run_worker(way, python, Path(folder))
            except NotRun as e:
                if attempt == ATTEMPTS - 1:
                    raise NotRun(f"{ATTEMPTS} attempts: {e}") from e
                continue
            return out | {"busy_cores_before": round(busy, 2), "load_average_after": round(os.getloadavg()[0], 2)}
    raise AssertionError


def make_report(args: argparse.Namespace) -> dict[str, Any]:
    settings = SETTINGS | {"rounds": args.rounds}
    names = [n for n in WAYS if not args.only or any(part.lower() in n.lower() for part in args.only.split(","))]
    facts = {
        "settings": settings,
        "turns": args.turns,
        "seeds": list(range(args.turns)),
        "hardware": hardware(),
        "fedsmoo": __version__,
        **source(),
        "python": platform.python_version(),
    }
    return facts | {"results": measure(names, settings, args.envs.absolute(), args.turns, args.patience)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--docs", type=Path, help="a page whose table is renewed")
    parser.add_argument("--again", type=Path, help="measure nothing: make the table from this JSON")
    parser.add_argument("--envs", type=Path, default=Path(".venv-rivals"), help="where the rivals' environments are")
    parser.add_argument("--only", help="some of the ways, by parts of their names, with commas")
    parser.add_argument("--rounds", type=int, default=SETTINGS["rounds"], help="timed rounds in a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet machine, every turn")
    args = parser.parse_args()
    if args.again:
        report = json.loads(args.again.read_text())
    else:
        report = make_report(args)
    print(table(report))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    if args.docs:
        write_docs(args.docs, report)


if __name__ == "__main__":
    main()
