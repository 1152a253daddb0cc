r"""One round on one GPU by our engine, plain loops and simulators of others, and the benchmarks that these ship.

PYTHONPATH=src:wheels python3 -m benchmarks.rivals.gpu --code code --out rivals.json
PYTHONPATH=src:wheels python3 -m benchmarks.rivals.gpu --only fedjax,FedJAX,DrJAX --merge rivals.json --out rivals.json
PYTHONPATH=src python3 -m benchmarks.rivals.gpu --device cpu --tiny --only "plain loop" --out rivals.json   # a trial

Every way is a process of its own. All start side by side and warm up, which is mostly compiling; then they are timed
one at a time, the others waiting. --code is a folder with checkouts `pfl-research` and `blazefl`; ways whose package or
code is not there say so. Images are drawn, not CIFAR-10: a pattern for each class in noise, so that accuracy shows
whether all do the same work. With --merge an earlier file stays as it is, but for rows that are measured anew and say
of which commit they are. The plan of all ways takes four to five minutes.
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
    "fedjax": {"samples": 400, "clients": 10, "cohort": 2, "rounds": 1},
}  # fmt: skip
COMPILED = "loop, torch.compile(mode='reduce-overhead')"
CAPTURED = "loop, torch.compile, the whole step captured as a CUDA graph"
BY_VMAP, IN_TURN = "DrJAX, clients by vmap", "DrJAX, clients in turn"


@dataclass(frozen=True)
class Way:
    """One way to run a workload: a worker script with its arguments, and what it needs to be there."""

    task: str
    name: str
    script: str
    arguments: tuple[str, ...] = ()
    precision: str = "tf32"
    package: str | None = None  # what must be there to be imported; several with spaces
    code: str | None = None  # a folder below --code, given to the script as its first argument
    settings: dict[str, Any] = field(default_factory=dict)
    flags: str = ""  # for XLA

    def missing(self, code: Path) -> str | None:
        for name in (self.package or "").split():
            if importlib.util.find_spec(name) is None:
                return f"{name} is not installed"
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
    return [*found, *ways_of_jax()]


def ways_of_jax() -> list[Way]:
    """Those of FedJAX and DrJAX, and of others on FedJAX's benchmark; what is likely to be slow is timed last."""
    found = list[Way]()
    # PyTorch only reads the data and scores the model, on the CPU: the GPU is JAX's.
    alone, more = {"device": "cpu"}, {"device": "cpu", "rounds": 3, "scored": 2}
    for p in ("tf32", "bf16"):
        found += [
            Way("fedjax", "fedsmoo", "ours.py", ("auto",), p),
            Way("fedjax", "plain loop", "ours.py", ("plain",), p),
            Way("fedjax", "FedJAX", "fedjax_worker.py", (), p, "fedjax jax", settings=alone),
            Way("fedjax", IN_TURN, "drjax_worker.py", ("turn",), p, "drjax jax", settings=alone),
            Way("fedjax", BY_VMAP, "drjax_worker.py", (), p, "drjax jax", settings=alone),
            Way("paper", IN_TURN, "drjax_worker.py", ("turn",), p, "drjax jax", settings=more),
            Way("paper", "FedJAX", "fedjax_worker.py", (), p, "fedjax jax", settings=more),
        ]
    # By itself XLA gives channels last to convolutions of bf16 alone.
    last = "--xla_gpu_force_conv_nhwc=true"
    found += [
        Way("paper", f"{IN_TURN}, channels last", "drjax_worker.py", ("turn",), "tf32", "drjax jax", None, more, last),
        Way("paper", "FedJAX, channels last", "fedjax_worker.py", (), "tf32", "fedjax jax", None, more, last),
        *(Way("paper", BY_VMAP, "drjax_worker.py", (), p, "drjax jax", settings=more | {"rounds": 1})
          for p in ("tf32", "bf16")),
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
            # JAX: which processor, memory as it is needed beside others, and errors whose last line says what it is.
            "JAX_PLATFORMS": "cpu" if args.device == "cpu" else "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_TRACEBACK_FILTERING": "off", "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {way.flags}".strip(),
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
        found = rows[chosen.index(r.way)] = r.result()
        if args.logs and "not_run" in found:
            args.logs.mkdir(parents=True, exist_ok=True)
            name = f"{r.way.task}-{r.way.name}-{r.way.precision}".replace(", ", "-").replace(" ", "-")
            (args.logs / f"{name}.txt").write_bytes((r.folder / "log.txt").read_bytes())
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


def key(row: dict[str, Any]) -> tuple[str, ...]:
    return row["task"], row["way"], row["precision"]


def unlike(report: dict[str, Any], before: dict[str, Any], tasks: set[str]) -> str | None:
    """Why rows of a report do not belong beside those of an earlier one."""
    for name in ("hardware", "tiny"):
        if report[name] != before[name]:
            return f"{name} is {report[name]} here, {before[name]} there"
    other = [t for t in sorted(tasks) if report["settings"][t] != before["settings"].get(t, report["settings"][t])]
    return f"{other[0]} has other settings there" if other else None


def merged(report: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return an earlier report with the rows of this one, each with the commit it was measured at.

    The earlier rows stay as they are, but for those that were measured again.
    """
    again = {key(r) for r in report["rows"] if "not_run" not in r}
    old = [r for r in before["rows"] if key(r) not in again]
    kept = {key(r) for r in old}
    new = [r | {"code": report["code"]} for r in report["rows"] if key(r) not in kept]
    return before | {"settings": report["settings"] | before["settings"], "rows": [*old, *new]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--code", type=Path, default=Path("code"), help="a folder of checkouts of rivals")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="some ways, by parts of WORKLOAD:NAME, with commas")
    parser.add_argument("--merge", type=Path, help="an earlier --out, whose rows stay where this run has none")
    parser.add_argument("--logs", type=Path, help="a folder for what ways said that could not be run")
    parser.add_argument("--tiny", action="store_true", help="sizes for a trial on a CPU")
    parser.add_argument("--patience", type=float, default=150, help="seconds for all to become warm")
    parser.add_argument("--limit", type=float, default=300, help="seconds for everything")
    args = parser.parse_args()
    args.code = args.code.resolve()
    only = [part.strip() for part in args.only.split(",") if part.strip()]
    chosen = [w for w in ways() if not only or any(part in f"{w.task}:{w.name}" for part in only)]
    facts = {"code": code_facts(), "hardware": device_name(torch.device(args.device)), "tiny": args.tiny}
    facts |= {"versions": {"torch": torch.__version__}, "settings": TASKS}
    before = json.loads(args.merge.read_text()) if args.merge and args.merge.is_file() else None
    if before and (why := unlike(facts, before, {w.task for w in chosen})):
        parser.error(f"--merge {args.merge}: {why}")
    with tempfile.TemporaryDirectory(prefix="rivals-", ignore_cleanup_errors=True) as folder:
        facts["rows"] = measure(chosen, args, Path(folder))
        for r in facts["rows"]:
            print(json.dumps(r), flush=True)
    facts = merged(facts, before) if before else facts
    args.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(on_gpu(facts, json.loads((RESULTS / "authors.json").read_text()), rounds()))


if __name__ == "__main__":
    main()
