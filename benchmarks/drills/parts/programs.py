"""Programs that are disturbed: each works in a folder, and goes on there with what is left to the same end."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import torch

import fedsmoo
from fedsmoo.core.vectors import Vectors
from fedsmoo.data.sources import load
from fedsmoo.deploy.store import ROUNDS as REPORTS
from fedsmoo.deploy.store import ClientStore, ServerStore
from fedsmoo.paper import update
from fedsmoo.runs import build
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.lease import leased
from fedsmoo.runs.storage.names import CHECKPOINT, LABEL, METRICS, MODEL, SUMMARY
from fedsmoo.runs.storage.verify import verify
from fedsmoo.sweeps.queue import open_run
from fedsmoo.sweeps.results import SUPERSEDED, export, from_json

SMALL = {
    "model": "softmax", "clients": 6, "cohort": 2, "rounds": 3, "local_steps": 1, "batch_size": 8, "partition": "iid",
    "engine": "serial", "device": "cpu",
}  # fmt: skip
TIMES = ("seconds_train", "seconds_eval")
Truth = dict[str, Any]  # what a program leaves, by name, without times


def runs_in(root: Path) -> Truth:
    """Return the models and the rounds of the finished runs below a folder."""
    out: Truth = {}
    for summary in sorted(root.rglob(SUMMARY)):
        folder = summary.parent
        rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
        out[f"{folder.relative_to(root)} {METRICS}"] = [{k: row[k] for k in row if k not in TIMES} for row in rows]
        out[f"{folder.relative_to(root)} {MODEL}"] = (folder / MODEL).read_bytes()
        if (folder / LABEL).exists():
            out[f"{folder.relative_to(root)} {LABEL}"] = (folder / LABEL).read_text()
    return out


def results_in(folder: Path) -> Truth:
    """Return the numbers in the result files of a folder."""
    found = {path.name: from_json(path) for path in sorted(folder.glob("*.json"))}
    return {n: {k: v for k, v in r.curve.items() if k not in TIMES} for n, r in found.items()}


def damage_in(root: Path) -> Iterator[str]:
    """Yield a line for each file of a finished run that is not what its checksum says."""
    for summary in sorted(root.rglob(SUMMARY)):
        yield from verify(summary.parent).damaged


@dataclass(frozen=True)
class Program:
    """What is disturbed, and what it leaves."""

    name: str
    go: Callable[[Path], Any]  # carries it out in a folder, or goes on with what is there
    truth: Callable[[Path], Truth]  # what has to be there in the end
    prepare: Callable[[Path], Any] = lambda root: None  # what is there before
    kept: Callable[[Path], dict[str, bytes]] = lambda root: {}  # what must not change once it is there
    sound: Callable[[Path], str] = lambda root: ""  # why what a disturbance left may not be, before going on
    refused: Callable[[Path], str] = lambda root: ""  # why what is left may not be, where it ended with an error
    removes: str | None = None  # the folder of what is removed once it is not needed any more


def run(root: Path, keep: bool = True) -> None:
    """Carry out a run as the owner of its folder, or go on with it."""
    folder = root / "run"
    with leased(folder) as held:
        if not (folder / SUMMARY).exists():
            config = Config(**SMALL | {"algorithm": "scaffold", "rounds": 4, "clients": 4})
            open_run(folder, config, {folder: held}).go(save_every=1, keep=keep)


def sweep(root: Path) -> None:
    """Carry out a sweep with names for its methods, and export what it finds."""
    methods = {"Plain": {"algorithm": "fedavg"}, "Smooth": {"algorithm": "fedsmoo"}}
    fedsmoo.sweep({**SMALL, "methods": methods}, root / "runs", to=root / "results", save_every=1, wait=False)


def finished(root: Path) -> dict[str, bytes]:
    """Return the summaries: a finished run stays finished."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob(SUMMARY))}


@cache
def some_runs() -> Path:
    """Return a folder with two finished runs and, beside, a result of one of them with other numbers."""
    root = Path(mkdtemp())
    atexit.register(shutil.rmtree, root)
    for seed in (0, 1):
        fedsmoo.run({**SMALL, "seed": seed, "algorithm": "fedavg"}, root / "runs" / str(seed), save_every=0)
    for path in export([root / "runs"], root / "results")[:1]:
        path.write_text(path.read_text().replace('"test_accuracy": [0.', '"test_accuracy": [1.'))
    for path in sorted((root / "results").iterdir())[1:]:
        path.unlink()
    return root


def copied(root: Path) -> None:
    """Put those runs and that result into a folder."""
    shutil.copytree(some_runs(), root, dirs_exist_ok=True)


def exported(root: Path) -> Truth:
    """Return the results, and the numbers of those that were set aside: one kept twice is no loss."""
    aside = results_in_table(root / "results" / SUPERSEDED)
    return {**results_in(root / "results"), "aside": sorted({json.dumps(c["test_accuracy"]) for c in aside})}


def results_in_table(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text())["curve"] for path in sorted(folder.glob("*.json"))]


DOCUMENTS = ("a.md", "b.md", "c.md")
MARKED = "# Page\n\n<!-- table: accuracy -->\n<!-- /table -->\n\nEnd.\n"


def documents(root: Path) -> None:
    """Put pages with an empty table into a folder."""
    for name in DOCUMENTS:
        (root / name).write_text(MARKED)
    (root / "results").mkdir()
    (root / "results" / "notes.txt").write_text("No run was measured.\n")


def update_tables(root: Path) -> None:
    update([root / name for name in DOCUMENTS], root / "results")


def pages(root: Path) -> Truth:
    return {name: (root / name).read_text() for name in DOCUMENTS}


def torn_page(root: Path) -> str:
    """Say which page is neither the old one nor the new one."""
    known = {MARKED, new_page()}
    return next((f"{name} is neither" for name, text in pages(root).items() if text not in known), "")


def some_pages(root: Path) -> str:
    """Say that some pages are new and others old."""
    return "some pages are new, others old" if len({*pages(root).values()}) > 1 else ""


@cache
def new_page() -> str:
    with TemporaryDirectory() as folder:
        documents(Path(folder))
        update_tables(Path(folder))
        return (Path(folder) / DOCUMENTS[0]).read_text()


ROUNDS, SIZE = 6, 5  # more rounds than states are kept


def federation(root: Path) -> None:
    """Keep the states of a server and of two clients, round by round, or go on after the newest round."""
    server, clients = ServerStore(root / "server"), [ClientStore(root / "clients", "s", c) for c in (0, 1)]
    state = server.load()
    w, done = (state[0].w, state[1]["round"]) if state is not None else (torch.zeros(SIZE), 0)
    server.begin(done)
    for number in range(done + 1, ROUNDS + 1):
        for client, store in enumerate(clients):
            mine = store.load(number - 1, {"c": SIZE}).c if number > 1 else torch.zeros(SIZE)
            store.save(number, Vectors(c=mine + client + number))
            store.prune(number - server.keep)
            w = w + mine / number
        server.record(json.dumps({"round": number}))
        server.save(number, Vectors(w=w), {"round": number})


def states(root: Path) -> Truth:
    """Return the vectors of the server, the reports of its rounds, and the vectors that it will ask its clients for."""
    state = ServerStore(root / "server").load()
    if state is None:
        return {}
    mine = [ClientStore(root / "clients", "s", c).load(state[1]["round"], {"c": SIZE}) for c in (0, 1)]
    reports = (root / "server" / REPORTS).read_text()
    return {"w": state[0].w.tolist(), **state[1], "mine": [me.c.tolist() for me in mine], "reports": reports}


RUN = Program("run", run, runs_in, kept=finished)
RUN_WITHOUT_CHECKPOINTS = Program(
    "run that removes its checkpoints", lambda r: run(r, False), runs_in, kept=finished, removes=CHECKPOINT
)
SWEEP = Program(
    "sweep with export", sweep, lambda r: runs_in(r) | results_in(r / "results"), kept=finished, removes=CHECKPOINT
)
EXPORT = Program(
    "results export --supersede",
    lambda r: export([r / "runs"], r / "results", "measured again", lambda line: None),
    exported,
    copied,
)
TABLES = Program("table --update", update_tables, pages, documents, sound=torn_page, refused=some_pages)
FEDERATION = Program("state of a federation", federation, states)
PROGRAMS = (RUN, RUN_WITHOUT_CHECKPOINTS, SWEEP, EXPORT, TABLES, FEDERATION)


def warm() -> None:
    """Import all that programs import late, read the data once, and keep it: no child has to do so again."""
    torch.set_num_threads(1)
    data = load("digits")
    build.load = lambda *_: data  # type: ignore[assignment]
    for program in PROGRAMS:
        with TemporaryDirectory() as folder:
            program.prepare(Path(folder))
            program.go(Path(folder))


def carried_out(program: Program, folder: Path) -> Truth:
    """Prepare and carry out a program in a new folder; returns what it left."""
    folder.mkdir(parents=True)
    program.prepare(folder)
    program.go(folder)
    return program.truth(folder)


def difference(program: Program, root: Path, truth: Truth) -> str:
    """Go on with a program in what a disturbance left; returns in what its end is unlike the undisturbed one."""
    if why := program.sound(root):
        return why
    before = program.kept(root)
    try:
        program.go(root)
        left = program.truth(root)
        damaged = list(damage_in(root))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    after = program.kept(root)
    changed = [f"{name} was finished, and is another" for name in before if before[name] != after.get(name)]
    unlike = [f"{name} is another" for name in {*truth, *left} if truth.get(name) != left.get(name)]
    return "; ".join([*damaged, *changed, *unlike])
