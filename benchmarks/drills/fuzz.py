"""Read hostile files: configs, summaries, metrics, manifests, splits, arrays and results, changed at random.

A case holds if what reads such a file gives an answer or a ``FedsmooError`` of one line, within some seconds of the
processor and 200 MB of memory, and imports nothing. Hypothesis makes cases (``hostile_files.py``); bombs come first.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from benchmarks.drills.parts import hostile_files as hostile
from benchmarks.drills.parts.limits import forget_peak, limited, peak, refuse_code
from benchmarks.drills.parts.outcome import Outcome, judged
from fedsmoo.core import FedsmooError
from fedsmoo.core.user_code import judged as asked
from fedsmoo.data.division.partition import from_rule
from fedsmoo.data.division.splitfile import import_split, load_split, read_split, save_split
from fedsmoo.data.sources import load
from fedsmoo.pages.figures import sources
from fedsmoo.pages.figures.partition import describe
from fedsmoo.pages.gather import gather
from fedsmoo.paper.reproduce import PaperTable, opened
from fedsmoo.paper.selection import Selection
from fedsmoo.runs.origin.method import vectors_that_travel
from fedsmoo.runs.resume import read_settings
from fedsmoo.runs.storage.checkpoint import newest
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.runs.storage.verify import verify
from fedsmoo.runs.traffic import ledger
from fedsmoo.sweeps.index import query
from fedsmoo.sweeps.results import collect, export, from_json

CASES, SAMPLE = 10_000, 300
UNHURRIED: dict[str, Any] = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}
MEGABYTES = 200
ROUND = {"round": 1, "test_accuracy": 0.5, "test_loss": 1.5, "train_loss": 2.0, "drift": 0.25, "lr": 0.1, "cohort": [0]}
ROUND |= {"bytes_up": 40, "bytes_down": 80, "seconds_train": 0.5, "seconds_eval": 0.25, "probes": {"sharpness": 0.5}}
CONFIG = {"algorithm": "fedsmoo", "rounds": 2, "clients": 4, "cohort": 2, "model": "softmax", "lr": 0.1, "u": 0.1}
CONFIG |= {"algorithm_options": {"r": 0.1}, "partition": "dirichlet", "dataset": "digits", "seed": 0, "clip": 10.0}
FINGERPRINT = {"kind": "official", "by": "checksums of the files"} | dict.fromkeys(("train", "test", "order"), "0" * 64)
STARTED = {"engine": "serial", "threads": 1, "contents": {"split_content": "0" * 16}, "sessions": [{"round": 0}]}
STARTED |= {"method": {"options": {"r": 0.1}, "defaults": {"r": 0.1}, "vectors": [1, 1, 0]}, "identity": "0" * 16}
SUMMARY = {"rounds": 2, "test_accuracy": 0.5, "parameters": 650, "parameters_full": 650, "versions": {"torch": "2"}}
SUMMARY |= {"finished": "then", "bytes_up": 80, "model_sha256": "0" * 64, "metrics_sha256": "0" * 64}
HESSIAN = {"eigenvalues": [1.0, 2.0], "trace": 3.0, "samples": 5}
MANIFEST = {"format": "fedsmoo checkpoint 1", "round": 1, "epoch": 0, "server": "s", "rows": {"0": "r"}, "files": {}}
MANIFEST |= {"about": {"config": CONFIG, "task": "0"}, "metrics": {"bytes": 1, "sha256": "0" * 64}}
MANIFEST |= {"files": {"s": "0" * 64, "r": "0" * 64}}


@dataclass(frozen=True)
class Kind:
    """A kind of file: what cases are made of, and what reads them in a folder of their own."""

    name: str
    cases: st.SearchStrategy[Any]
    write: Callable[[Path, Any], Any]
    read: Callable[[Path], Any]
    bombs: tuple[Any, ...] = ()


def write_run(folder: Path, **files: bytes) -> None:
    """Write a run folder that is sound but for some files."""
    run = folder / "runs" / "a"
    (run / "analysis").mkdir(parents=True, exist_ok=True)
    (run / "checkpoint").mkdir(exist_ok=True)
    whole = {"config.toml": hostile.as_toml(CONFIG), "metrics.jsonl": hostile.as_json(ROUND) + b"\n"}
    whole |= {"summary.json": hostile.as_json(SUMMARY), "started.json": hostile.as_json(STARTED)}
    for name, content in {**whole, **files}.items():
        (run / name).write_bytes(content)


def each(*steps: Callable[[], Any]) -> None:
    """Take steps of which each may say in a line that it cannot."""
    for step in steps:
        try:
            step()
        except FedsmooError as e:
            if not str(e).strip():
                raise AssertionError("an error without a word") from e


def read_folder(folder: Path) -> None:
    """Read a run folder in every way that there is."""
    root, run = folder / "runs", folder / "runs" / "a"
    strict = read_run(run, strict=True)
    each(
        lambda: json.dumps(gather([run]), allow_nan=False),
        lambda: list(strict.rows()),
        lambda: strict.identity,
        lambda: read_run(run).history,
        lambda: ledger(vectors_that_travel(strict.config, strict.method) or (1, 1, 0), strict.history, 1, 1),
        lambda: query(root),
        lambda: export([root], folder / "results", note=len),
        lambda: collect([root], note=len),
        lambda: verify(run),
        lambda: read_settings(run),
    )
    for file in (folder / "results").glob("*.json"):
        file.unlink()


def read_manifest(folder: Path) -> None:
    """Read the checkpoints of a run."""
    run = folder / "runs" / "a"
    (run / "config.toml").unlink()
    each(lambda: verify(run), lambda: newest(run / "checkpoint"), lambda: read_settings(run))


def read_splits(folder: Path) -> None:
    """Read a split: what it holds, in numbers, and its rule."""
    data = load("digits")
    path = folder / "split.json"
    each(
        lambda: describe(load_split(path, data), data),
        lambda: import_split(path, data),
        lambda: from_rule(read_split(path)["rule"]).split(data.y_train.numpy(), data.classes, 4, 0),
    )


def read_arrays(folder: Path) -> None:
    """Read arrays as a data set and as a split."""
    data = load("digits")
    steps = [lambda p=path: import_split(p, data) for path in sorted(folder.glob("a.np?"))]
    each(*steps, lambda: load("faces", folder / "faces.npz"))


def write_arrays(folder: Path, members: list[bytes]) -> None:
    """Write some arrays as a data set, as an archive of index lists, and one alone."""
    names = ("x_train", "y_train", "x_test", "y_test", "classes")
    (folder / "faces.npz").write_bytes(hostile.npz(dict(zip(names, members, strict=True))))
    (folder / "a.npz").write_bytes(hostile.npz({f"arr_{k}": m for k, m in enumerate(members[:3])}))
    (folder / "a.npy").write_bytes(members[0])


def write_archive(folder: Path, content: bytes) -> None:
    """Write the bytes of an archive, or some that were one."""
    for name in ("faces.npz", "a.npz"):
        (folder / name).write_bytes(content)


def write_either(folder: Path, case: Any) -> None:
    (write_arrays if isinstance(case, list) else write_archive)(folder, case)


SELECTION = Selection("accuracy", ("10%-of-100 cifar10.dirichlet-0.1",), ("FedAvg",))


def read_result(folder: Path) -> None:
    """Read a result: alone, in a table, and for a figure."""
    path = folder / "results" / "r.json"

    def table() -> None:
        made: PaperTable = opened(SELECTION, folder / "none", folder / "results", False, {}, len)
        for form in ("text", "csv"):
            made.render(form)

    def alone() -> None:
        result = from_json(path)
        assert (len(result.identity), result.name.endswith(result.identity[:8])) == (16, True)
        assert len(result.history) >= len(result.scores)

    each(alone, table, lambda: sources.read_file(path), lambda: sources.drawable(sources.find([path])))


def result_document() -> dict[str, Any]:
    """A sound result of the run that the table asks for."""
    (cell,) = SELECTION.sweep().cells
    columns = ("test_accuracy", "test_loss", "train_loss", "drift", "seconds_train", "seconds_eval")
    curve = {"round": [1, 2], **{name: [0.25, 0.5] for name in columns}, "bytes_up": 40, "bytes_down": 80}
    config = {k: v for k, v in cell.config.to_dict().items() if v is not None}
    facts = {"label": "x", "engine": "serial", "device": "cpu", "sessions": [], "hessian": {"top": 1.0, "trace": 2.0}}
    return {"format": "fedsmoo result 1", "config": config, **facts, "versions": {"torch": "2"}, "curve": curve}


def split_document(folder: Path) -> dict[str, Any]:
    """A sound split of digits."""
    data = load("digits")
    indices = [np.arange(4 * k, 4 * k + 4) for k in range(4)]
    save_split(folder / "sound.json", indices, data, {"name": "dirichlet", "u": 0.1, "replacement": True}, 0)
    document = json.loads((folder / "sound.json").read_text())
    return {k: v for k, v in document.items() if k != "sha256"}


def one_of_files() -> st.SearchStrategy[tuple[str, bytes]]:
    """One of the facts in JSON beside a run, changed."""
    known = {"summary.json": SUMMARY, "started.json": STARTED, "failed.json": {"error": "no"}}
    known |= {"analysis/hessian.json": HESSIAN, "analysis/partition.json": {"counts": [[1, 2]], "class_names": ["a"]}}
    return st.one_of(*(hostile.json_cases(d).map(lambda content, n=name: (n, content)) for name, d in known.items()))


def metrics() -> st.SearchStrategy[bytes]:
    """Rounds, some of which were changed."""
    sound = st.integers(1, 9).map(lambda t: hostile.as_json({**ROUND, "round": t}))
    return st.lists(st.one_of(sound, hostile.json_cases(ROUND)), min_size=1, max_size=6).map(b"\n".join)


def kinds(folder: Path) -> list[Kind]:
    """Return the kinds of files; ``folder`` is for what they are made from."""
    deep, wide = b"[" * hostile.DEEP, b"[" + b"[]," * 3_000_000 + b"[]]"
    zeros = hostile.npz({n: hostile.npy((2**28,), "|u1", hostile.ZEROS) for n in ("x_train",)}, zipfile.ZIP_DEFLATED)
    good = [hostile.plain_npy(v) for v in (np.zeros((4, 3)), [0, 1, 0, 1], np.zeros((4, 3)), [0, 1, 0, 1], ["a", "b"])]
    huge = [hostile.npy(shape, descr, bytes(64)) for shape, descr in hostile.HEADERS]
    huge += [hostile.npy((4,), "|O", content) for content in hostile.PICKLES]
    bombs = [zeros, *([*good[:k], bomb, *good[k + 1 :]] for bomb in huge for k in (0, 1, 4))]
    bombs += [[good[0], hostile.plain_npy(label), *good[2:]] for label in ([2**62] * 4, [np.nan] * 4, ["a"] * 4)]
    config = st.one_of(hostile.trees(CONFIG).map(hostile.as_toml), hostile.torn(hostile.as_toml(CONFIG)))
    split = split_document(folder)
    splits = st.one_of(hostile.trees(split).map(hostile.split_file), hostile.torn(hostile.split_file(split)))
    arrays = st.one_of(st.lists(hostile.ARRAYS, min_size=5, max_size=5), hostile.torn(hostile.npz({"arr_0": good[1]})))
    sealed = st.one_of(hostile.trees(MANIFEST).map(hostile.sealed), hostile.torn(hostile.sealed(MANIFEST)))
    many, dots = b'{"a": ' + wide + b"}", b"a" + b".a" * 100_000 + b" = 1"
    lines = (deep, wide, b"\n" * 10**7, b"x\n" * 10**6)
    manifests = (deep, hostile.sealed({"a": hostile.nested(1, 900)}))
    return [
        Kind("config", config, in_run("config.toml"), read_folder, (b"x = " + deep, dots, b"")),
        Kind("summary", one_of_files(), lambda f, c: in_run(c[0])(f, c[1]), read_folder, (("summary.json", many),)),
        Kind("metrics", metrics(), in_run("metrics.jsonl"), read_folder, lines),
        Kind("manifest", sealed, in_run("checkpoint/000001.json"), read_manifest, manifests),
        Kind("split", splits, lambda f, c: (f / "split.json").write_bytes(c), read_splits, (deep, wide)),
        Kind("npz", arrays, write_either, read_arrays, tuple(bombs)),
        Kind("result", hostile.json_cases(result_document()), write_result, read_result, (many, deep)),
    ]


def in_run(name: str) -> Callable[[Path, bytes], None]:
    """Return what writes a run folder with other bytes in one of its files."""
    return lambda folder, content: write_run(folder, **{name: content})


def write_result(folder: Path, content: bytes) -> None:
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / "r.json").write_bytes(content)


def tried(kind: Kind, case: Any, folder: Path) -> str:
    """Read one case; empty if that held, else what went wrong."""
    kind.write(folder, case)
    forget_peak()
    before = peak()
    try:
        with limited(), asked(refuse_code):
            kind.read(folder)
    except FedsmooError:
        pass
    except Exception as e:
        return f"{kind.name}: {type(e).__name__}: {str(e)[:200]!r} for {repr(case)[:300]}"
    used = peak() - before
    return f"{kind.name}: {used} MB for {repr(case)[:300]}" if used > MEGABYTES else ""


def outcome_of(kind: Kind, count: int, seed: int) -> Outcome:
    """Try the bombs of a kind, and so many cases of it that follow from a seed."""
    lines = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        lines += [tried(kind, bomb, place) for bomb in kind.bombs]

        @seeded(seed)
        @settings(max_examples=count, phases=[Phase.generate], **UNHURRIED)
        @given(kind.cases)
        def trying(case: Any) -> None:
            lines.append(tried(kind, case, place))

        trying()
    return judged(f"a hostile {kind.name}, read", lines)


def one_kind(place: int, count: int, seed: int) -> Outcome:
    """Return the outcome of the kind at a place of the list; in a process of its own, whose memory is watched."""
    os.environ["FEDSMOO_DATA"] = tempfile.mkdtemp()
    with tempfile.TemporaryDirectory() as folder:
        return outcome_of(kinds(Path(folder))[place], count, seed)


def drill(full: bool, seed: int) -> Iterator[Outcome]:
    """Read hostile files of every kind, or of ``FUZZ_KINDS=config,result``: ten thousand of each, or a sample."""
    chosen = os.environ.get("FUZZ_KINDS", "").split(",")
    with tempfile.TemporaryDirectory() as folder:
        places = [k for k, kind in enumerate(kinds(Path(folder))) if chosen == [""] or kind.name in chosen]
    workers = min(len(places), max(1, (os.cpu_count() or 1) - 2)) if full else 1
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(one_kind, count=CASES if full else SAMPLE, seed=seed), places)
