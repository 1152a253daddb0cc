"""One small federated workload by ours, loops of PyTorch and other simulators, side by side on two cores, and ours on
the benchmarks that rivals ship.

PYTHONPATH=src python -m benchmarks.rivals.cpu --code code --out results/rivals.json --docs docs/rivals.md

Each rival gets a virtual environment of its own below --envs, with the torch that runs this script; --code has
checkouts `pfl-research`, `blazefl` and `FL-Simulator`, of which nothing is kept here. The ways take turns, so that a
noisy machine is noisy for all of them; every turn has a seed of its own, and every worker a network that is nothing but
a loopback interface. No worker begins after --minutes. A way that cannot be run says why in the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.rivals.common import descendants
from benchmarks.rivals.environments import NotRun, last_line, python_of
from benchmarks.rivals.machine import hardware, source, wait_for_quiet
from benchmarks.rivals.results_table import own_tables, summary, table, write_docs
from benchmarks.rivals.tasks import TASKS, write_workload
from benchmarks.rivals.ways import ABOUT, WAYS, Way
from fedsmoo.version import __version__

ROOT, WORKERS = Path(__file__).parents[2], Path(__file__).parent / "workers"
TIMEOUT = 200.0  # seconds for one worker
# No telemetry, no look for updates; that nothing is sent all the same is the business of the isolated network.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "GLOO_SOCKET_IFNAME": "lo", "PFL_PYTORCH_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu",
}  # fmt: skip


@cache
def isolation() -> tuple[str, ...] | None:
    """A prefix that gives a command a network of its own; none where the system does not allow it."""
    prefix = ("unshare", "--user", "--map-root-user", "--net")
    try:
        allowed = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    except OSError:
        allowed = False
    return prefix if allowed else None


def environment(way: Way, folder: Path, workload: Path) -> dict[str, str]:
    path = [ROOT, *([ROOT / "src"] if way.environment is None else [])]
    mine = {
        "RIVALS_FOLDER": str(folder), "RIVALS_WORKLOAD": str(workload), "OMP_NUM_THREADS": "1",
        "RIVALS_RAY": str(folder / "ray"), "FLWR_HOME": str(folder / "flwr"), "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, path)), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }  # fmt: skip
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHONPATH", "PFL_", "RAY_", "FLWR_"))}
    return {**kept, **QUIET, **mine}


def run_worker(way: Way, python: Path, folder: Path, workload: Path, code: Path) -> dict[str, Any]:
    """One turn of one way: its processes are started, waited for, and ended by their ids if they do not end."""
    given = [str(code / way.code)] if way.code else []
    if way.code and not (code / way.code).is_dir():
        raise NotRun(f"there is no checkout {way.code} below --code")
    prefix = isolation()
    if way.sockets and prefix is None:
        raise NotRun("no isolated network can be made here (unshare --net), and its sockets would be open to others")
    launch = [sys.executable, str(WORKERS.parent / "launch.py"), "isolated" if prefix else "open", str(way.processes)]
    script = WORKERS / way.script
    command = [*(prefix or ()), *launch, str(python), str(script), *given, *way.arguments]
    log = folder / "log.txt"
    with log.open("w") as f:
        started = subprocess.Popen(command, env=environment(way, folder, workload), stdout=f, stderr=subprocess.STDOUT)
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


class Measurement:
    """All turns of all ways, as far as time allows."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.until = args, time.monotonic() + 60 * args.minutes
        self.runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.failed: dict[tuple[str, str], str] = {}

    def turn(self, task: str, seed: int) -> None:
        """Let each way of a workload run once."""
        settings = TASKS[task] | ABOUT.get(task, ("", {}))[1] | {"seed": seed} | self.shorter(task)
        with tempfile.TemporaryDirectory(prefix="rivals-", ignore_cleanup_errors=True) as name:
            workload = Path(name) / "workload.npz"
            write_workload(workload, settings, self.args.cifar)
            for way in self.chosen(task):
                if (task, way) not in self.failed:
                    self.run(task, way, workload)

    def shorter(self, task: str) -> dict[str, int]:
        return {"rounds": self.args.rounds} if task == "digits" and self.args.rounds else {}

    def chosen(self, task: str) -> list[str]:
        only = [part.lower() for part in (self.args.only or "").split(",") if part]
        return [n for n in WAYS[task] if not only or task in only or any(part in n.lower() for part in only)]

    def run(self, task: str, name: str, workload: Path) -> None:
        """A worker in a folder that is gone afterwards, unless time is up."""
        way = WAYS[task][name]
        if time.monotonic() > self.until:
            if (task, name) not in self.runs:
                self.failed[task, name] = "no time was left"
            return
        try:
            python = python_of(way.environment, self.args.envs)
            busy = wait_for_quiet(self.args.patience)
            # A short path, because Ray's sockets live below it.
            with tempfile.TemporaryDirectory(prefix="rivals-", ignore_cleanup_errors=True) as folder:
                found = run_worker(way, python, Path(folder), workload, self.args.code)
        except NotRun as e:
            self.failed[task, name] = str(e)
            print(f"{task}: {name}: not run: {e}", file=sys.stderr, flush=True)
            return
        found |= {"busy_cores_before": round(busy, 2), "load_average_after": round(os.getloadavg()[0], 2)}
        self.runs.setdefault((task, name), []).append(found)
        times = [round(1000 * s, 1) for s in found["seconds_per_round"]]
        print(f"{task}: {name}: {times[-3:]} ms, {found['test_accuracy']:.3f}", file=sys.stderr, flush=True)

    def results(self, task: str) -> dict[str, Any]:
        warm_up, out = TASKS[task]["warm_up"], {}
        for name in self.chosen(task):
            key = task, name
            if key in self.runs:
                out[name] = summary(WAYS[task][name].setup, self.runs[key], warm_up)
            elif key in self.failed:
                out[name] = {"not_run": self.failed[key]}
        return out


def make_report(args: argparse.Namespace) -> dict[str, Any]:
    measured = Measurement(args)
    own = [t for t in ABOUT if measured.chosen(t)]
    for turn in range(args.turns):
        measured.turn("digits", turn)
        for task in own if turn == 0 else ():
            measured.turn(task, 0)
    facts = {
        "settings": TASKS["digits"] | measured.shorter("digits"), "turns": args.turns, "seeds": list(range(args.turns)),
        "hardware": hardware(), "fedsmoo": __version__, **source(), "python": platform.python_version(),
        "revisions": {f.parent.name: f.read_text().strip() for f in sorted(args.code.glob("*/REVISION"))},
        "images": "CIFAR-10" if args.cifar else "drawn",
    }  # fmt: skip
    about = {t: {"about": ABOUT[t][0], "settings": TASKS[t] | ABOUT[t][1], "results": measured.results(t)} for t in own}
    return facts | {"results": measured.results("digits"), "own": about}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--docs", type=Path, help="a page whose tables are renewed")
    parser.add_argument("--again", type=Path, help="measure nothing: make the tables from this JSON")
    parser.add_argument("--envs", type=Path, default=Path(".venv-rivals"), help="where the rivals' environments are")
    parser.add_argument("--code", type=Path, default=Path("code"), help="a folder of checkouts of rivals")
    parser.add_argument("--cifar", type=Path, help="an .npz file of CIFAR-10; without it images are drawn")
    parser.add_argument("--only", help="some of the ways, by parts of their names, or workloads, with commas")
    parser.add_argument("--rounds", type=int, help="timed rounds in a turn of the small workload")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=7, help="after which no worker begins")
    parser.add_argument("--patience", type=float, default=2, help="seconds to wait for a quiet machine, every turn")
    args = parser.parse_args()
    args.envs, args.code = args.envs.absolute(), args.code.absolute()
    report = json.loads(args.again.read_text()) if args.again else make_report(args)
    print(table(report), own_tables(report), sep="\n\n")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    if args.docs:
        write_docs(args.docs, report)


if __name__ == "__main__":
    main()
