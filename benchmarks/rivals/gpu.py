r"""One round on one GPU by our engine, plain loops, pfl-research and BlazeFL, and each rival's own CIFAR-10 benchmark.

PYTHONPATH=src:wheels python3 -m benchmarks.rivals.gpu --code code --out rivals.json
PYTHONPATH=src python3 -m benchmarks.rivals.gpu --device cpu --tiny --only "plain loop" --out rivals.json   # a trial

Every way is a process of its own. All start side by side and warm up, which is mostly compiling; then they are timed
one at a time, the others waiting. --code is a folder with checkouts `pfl-research` and `blazefl`; ways whose package or
code is not there say so. Images are drawn, not CIFAR-10: a pattern for each class in noise, so that accuracy shows
whether all do the same work. The plan of all ways takes two to three minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.rivals.common import descendants
from benchmarks.rivals.gpu_table import on_gpu
from benchmarks.rivals.tasks import TASKS, write_workload
from fedsmoo.runs.origin.provenance import code_facts, device_name

ROOT, WORKERS = Path(__file__).parents[2], Path(__file__).parent / "workers"
RESULTS = ROOT / "results" / "gpu"
TINY = {
    "paper": {"samples": 200, "clients": 4, "cohort": 2, "local_epochs": 1, "batch_size": 10, "rounds": 1},
    "pfl": {"samples": 2500, "rounds": 1}, "blazefl": {"samples": 2000, "cohort": 2, "clients": 20, "rounds": 1},
}  # fmt: skip
COMPILED = "loop, torch.compile(mode='reduce-overhead')"
CAPTURED = "loop, torch.compile, the whole step captured as a CUDA graph"


@dataclass(frozen=True)
class Way:
    """One way to run a workload: a worker script with its arguments, and what it needs to be there."""

    task: str
    name: str
    script: str
    arguments: tuple[str, ...] = ()
    precision: str = "tf32"
    package: str | None = None
    code: str | None = None  # a folder below --code, given to the script as its first argument
    settings: dict[str, Any] = field(default_factory=dict)

    def missing(self, code: Path) -> str | None:
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.code is not None and not (code / self.code).is_dir():
            return f"there is no {self.code} in {code}"
        return None


def ways() -> list[Way]:
    """All of them, those that compile longest first."""
    both, found = ("tf32", "bf16"), list[Way]()
    more = {"rounds": 7, "scored": 2}  # of ways whose rounds are short
    for p in both:
        found += [
            Way("paper", "fedsmoo", "ours.py", ("auto",), p, settings=more),
            Way("paper", COMPILED, "ours.py", ("compiled",), p, settings=more | {"rounds": 3}),
            Way("paper", CAPTURED, "ours.py", ("captured",), p, settings=more | {"rounds": 3}),
            Way("paper", "plain loop", "ours.py", ("plain",), p),
            Way("paper", "pfl-research", "pfl_worker.py", (), p, "pfl"),
        ]
    found += [
        Way("paper", "BlazeFL, four threads", "blazefl_worker.py", ("threads",), "tf32", "blazefl", None,
            {"parallel": 4}),
        Way("pfl", "fedsmoo", "ours.py", ("auto",), "tf32"),
        Way("pfl", "fedsmoo", "ours.py", ("auto",), "bf16"),
        Way("pfl", "pfl-research, as it ships", "pfl_own.py", (), "tf32", "pfl", "pfl-research"),
        Way("blazefl", "fedsmoo", "ours.py", ("auto",), "tf32", settings=more),
        Way("blazefl", "fedsmoo", "ours.py", ("auto",), "bf16", settings=more),
        Way("blazefl", "BlazeFL, as it ships, one thread", "blazefl_own.py", ("SINGLE_THREADED",), "tf32",
            "torchvision", "blazefl", {"rounds": 1}),
        Way("blazefl", "BlazeFL, as it ships, ten processes", "blazefl_own.py", ("MULTI_PROCESS",), "tf32",
            "torchvision", "blazefl", {"parallel": 10, "rounds": 1}),
    ]  # fmt: skip
    return found


class Running:
    """A worker: started, told when to go on, and asked for its answer."""

    def __init__(self, way: Way, folder: Path, workload: Path, args: argparse.Namespace) -> None:
        folder.mkdir()
        code, settings = args.code, {"precision": way.precision} | way.settings | (TINY[way.task] if args.tiny else {})
        self.way, self.folder, self.answer = way, folder, folder / "answer.json"
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        own = {
            "RIVALS_FOLDER": folder, "RIVALS_WORKLOAD": workload, "RIVALS_ANSWER": self.answer, "RIVALS_TURNS": folder,
            "RIVALS_SETTINGS": json.dumps(settings), "PFL_PYTORCH_DEVICE": args.device, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_CACHE_DIR": folder / "inductor",
            "TRITON_CACHE_DIR": folder / "triton", "TORCHINDUCTOR_COMPILE_THREADS": "4",
        }  # fmt: skip
        given = [str(code / way.code)] if way.code else []
        with (folder / "log.txt").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKERS / way.script), *given, *way.arguments],
                env=os.environ | {n: str(v) for n, v in own.items()}, stdout=log, stderr=subprocess.STDOUT, cwd=folder,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def warm(self) -> bool:
        return (self.folder / "ready").exists()

    def result(self) -> dict[str, Any]:
        """What it wrote, or why it wrote nothing."""
        if self.answer.is_file():
            return json.loads(self.answer.read_text())
        if not self.ended:
            for pid in descendants(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            return {"not_run": "not warm, or not done, in the time that was given"}
        lines = [line.strip() for line in (self.folder / "log.txt").read_text(errors="replace").splitlines()]
        return {"not_run": next((line[:300] for line in reversed(lines) if line), "no message")}


def wait(condition: Callable[[], bool], until: float) -> None:
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)


def measure(chosen: list[Way], args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Start all ways, time one after the other, and return a row for each."""
    began, files = time.monotonic(), dict[str, Path]()
    running: list[Running] = []
    rows = {w: {"not_run": why} for w in range(len(chosen)) if (why := chosen[w].missing(args.code))}
    for i, way in enumerate(chosen):
        if i in rows:
            continue
        if way.task not in files:
            settings = TASKS[way.task] | {"device": args.device, "seed": 0} | (TINY[way.task] if args.tiny else {})
            files[way.task] = folder / f"{way.task}.npz"
            write_workload(files[way.task], settings)
        running.append(Running(way, folder / str(i), files[way.task], args))
    wait(lambda: all(r.warm or r.ended for r in running), began + args.patience)
    print(f"warm after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    late = [r for r in running if not r.warm]  # these would still compile while others are timed
    for r in [*late, *(r for r in running if r not in late)]:
        if r not in late:
            (r.folder / "go").touch()
            wait(lambda r=r: r.ended, began + args.limit)  # type: ignore[misc]
        rows[chosen.index(r.way)] = r.result()
    return [row(way, rows[i], TASKS[way.task]["warm_up"]) for i, way in enumerate(chosen)]


def row(way: Way, found: dict[str, Any], warm_up: int) -> dict[str, Any]:
    out = {"task": way.task, "way": way.name, "precision": way.precision}
    if "not_run" in found:
        return out | {"not_run": found["not_run"]}
    timed = found["seconds_per_round"][warm_up:]
    first = found["seconds_per_round"][0]
    kept = {n: found[n] for n in ("test_accuracy", "test_loss", "versions", "engine") if n in found}
    return out | {"seconds_per_round": min(timed), "seconds_per_round_all": timed, "seconds_first_round": first} | kept


def rounds() -> dict[str, Any]:
    """The paper's round of FedAvg as ``benchmarks/gpu/round.py`` measured it, by precision."""
    files = {"bf16": "round.json", "tf32": "round_tf32.json"}
    found = {p: json.loads((RESULTS / name).read_text()) for p, name in files.items()}
    return {p: next(r for r in rows if r["algorithm"] == "fedavg") for p, rows in found.items()}


def merged(rows: list[dict[str, Any]], before: Path) -> list[dict[str, Any]]:
    """Return the rows with those of an earlier run that were not run this time."""
    kept = json.loads(before.read_text())["rows"] if before.is_file() else []
    keys = [tuple(r[n] for n in ("task", "way", "precision")) for r in rows if "not_run" not in r]
    old = [r for r in kept if tuple(r[n] for n in ("task", "way", "precision")) not in keys]
    done = [tuple(r[n] for n in ("task", "way", "precision")) for r in old]
    new = [r for r in rows if tuple(r[n] for n in ("task", "way", "precision")) not in done]
    return [*old, *new]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--code", type=Path, default=Path("code"), help="a folder of checkouts of rivals")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="some ways, by parts of their names, or workloads, with commas")
    parser.add_argument("--merge", type=Path, help="an earlier --out, whose rows stay where this run has none")
    parser.add_argument("--tiny", action="store_true", help="sizes for a trial on a CPU")
    parser.add_argument("--patience", type=float, default=100, help="seconds for all to become warm")
    parser.add_argument("--limit", type=float, default=145, help="seconds for everything")
    args = parser.parse_args()
    args.code = args.code.resolve()
    only = [part for part in args.only.split(",") if part]
    chosen = [w for w in ways() if not only or any(part in (w.task, w.name) or part in w.name for part in only)]
    with tempfile.TemporaryDirectory(prefix="rivals-", ignore_cleanup_errors=True) as folder:
        rows = measure(chosen, args, Path(folder))
        for r in rows:
            print(json.dumps(r), flush=True)
    rows = merged(rows, args.merge) if args.merge else rows
    facts = {"code": code_facts(), "hardware": device_name(torch.device(args.device)), "tiny": args.tiny}
    facts |= {"versions": {"torch": torch.__version__}, "settings": TASKS, "rows": rows}
    args.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(on_gpu(facts, json.loads((RESULTS / "authors.json").read_text()), rounds()))


if __name__ == "__main__":
    main()
