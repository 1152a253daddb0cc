"""What a page shows of run folders, as plain data: nothing in them is trusted, imported or executed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core.hyper.options import WORDS
from fedsmoo.core.untrusted import number, text
from fedsmoo.pages import measured
from fedsmoo.pages.groups import add_groups, switches
from fedsmoo.pages.metrics import curves
from fedsmoo.pages.standing import may_be_of_it, standing
from fedsmoo.paper.cells import sessions
from fedsmoo.runs.config import FIELDS
from fedsmoo.runs.origin.contents import SAMPLES
from fedsmoo.runs.origin.samples import data_label, seedless_fingerprint
from fedsmoo.runs.storage.names import METRICS
from fedsmoo.runs.storage.reader import StoredRun, read_run
from fedsmoo.runs.storage.walk import entries_of, stamp
from fedsmoo.runs.watch.changes import changes_in_words

SUMMARY_NUMBERS = ("parameters", "parameters_full", "seconds_train", "seconds_eval")
LED = re.compile(r'\{"rounds":(\d+|\[[^\]]*\]),"lead":')  # curves of a run that the accuracy does not lead
SUMMARY_TEXTS = ("engine", "device", "commit", "started", "finished")
COMMANDS = ("command", "again")  # what was typed, and what makes this run alone: whole, to be run again
LONGEST = 20_000
LATER = {"holdout": FIELDS["holdout"].default}  # which the oldest files lack; what came after it is quiet


def gather(folders: Sequence[Path]) -> dict[str, Any]:
    """Return everything that a page shows of some run folders."""
    data = gather_texts(folders)
    return {**data, "runs": [{**run, **json.loads(run.pop("curves"))} for run in data["runs"]]}


def gather_texts(folders: Sequence[Path], cache: dict[Path, Any] | None = None) -> dict[str, Any]:
    """Return everything that a page shows, the curves of each run as text: see :mod:`fedsmoo.pages.metrics`.

    Args:
        folders: the run folders.
        cache: saves reading again what has not changed.
    """
    runs = [_cached(f, cache) for f in folders]
    names = shortest_names(folders)
    out = [{**run, "name": text(name, 200)} for run, name in zip(runs, names, strict=True)]
    partitions: list[dict[str, Any]] = []
    for run in out:
        counts = run.pop("counts", None)
        run["partition"] = None
        if counts is not None:
            if counts not in partitions:
                partitions.append(counts)
            run["partition"] = partitions.index(counts)
    return {
        "runs": add_groups(out), "partitions": partitions, "paper": measured.printed(),
        "standing": standing(candidates(folders, out)),
    }  # fmt: skip


def candidates(folders: Sequence[Path], runs: Sequence[dict[str, Any]]) -> tuple[tuple[Path, str], ...]:
    """Return the folders that may be cells of the paper's table 1, each with a stamp of its files."""
    return tuple((f, fingerprint(f)) for f, run in zip(folders, runs, strict=True) if may_be_of_it(run))


def _cached(folder: Path, cache: dict[Path, Any] | None) -> dict[str, Any]:
    if cache is None:
        return read_folder(folder)
    stamp = fingerprint(folder)
    if folder not in cache or cache[folder][0] != stamp:
        cache[folder] = (stamp, read_folder(folder))
    return cache[folder][1]


def fingerprint(folder: Path) -> str:
    """Return text that changes when one of a run's files does."""
    beside = entries_of(folder / measured.FOLDER)
    return f"{stamp(entries_of(folder))} {' '.join(beside)} {stamp(beside, beside)}"


def shortest_names(folders: Sequence[Path]) -> list[str]:
    """Return the folders' names, with as many parents as it takes to tell them apart."""
    parts = [f.resolve().parts for f in folders]
    for take in range(1, max((len(p) for p in parts), default=1) + 1):
        names = ["/".join(p[-take:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [str(f) for f in folders]


def read_folder(folder: Path) -> dict[str, Any]:
    """Return one run as the page needs it."""
    run = read_run(folder, strict=True)
    config, facts = run.settings, run.facts
    sound = False
    with run.files.leaving_out():  # what a finished run did not write is no curve of it: this is said instead
        sound = run.sound_metrics() is not None
    found = curves(run, sound)
    return {
        "method": method_label(config.get("algorithm", "?")),
        "label": text(run.label, 80) if run.label else None,
        "config": settings(config, {**facts, "changes": changes(run)}),
        "state": run.state,
        "curves": found,
        "summary": {
            **{k: number(facts.get(k)) for k in SUMMARY_NUMBERS},
            **{k: text(facts[k]) for k in SUMMARY_TEXTS if isinstance(facts.get(k), str)},
            **({"dirty": True} if any(each.get("dirty") is True for each in sessions(facts)) else {}),
            **{k: text(facts[k], LONGEST) for k in COMMANDS if isinstance(facts.get(k), str)},
        },
        "analysis": measured.read_all(run.files),
        "counts": measured.partition(run.files, config),
        "skipped": run.skipped[:20],  # complete only now that all files were read
        **({} if sound else {"altered": True}),
        **({"led": json.loads(found)["lead"]} if LED.match(found) else {}),
    }


def method_label(name: Any) -> str:
    """Return the method's name in tables; a user's own method keeps the name it was given."""
    known = ALGORITHMS.get(str(name).lower())
    return known.__name__ if known is not None else text(str(name).rpartition("/")[2], 80)


def flat_config(config: dict[str, Any]) -> dict[str, str]:
    """Return settings as text, the options of method and model under dotted names."""
    out: dict[str, str] = {}
    for key, value in list(config.items())[:200]:
        if isinstance(value, dict):
            prefix = key.removesuffix("_options")
            known = switches(method_label(config.get("algorithm", "?"))) if prefix == "algorithm" else {}
            for name, word in list(value.items())[:50]:
                full = text(f"{prefix}.{name}", 80)
                on_or_off = known.get(full) in ("True", "False")  # --set keeps the word that was typed
                out[full] = text(WORDS.get(str(word).lower(), word) if on_or_off else word, 200)
        else:
            out[text(key, 80)] = text("none" if value is None else value, 200)
    return out


def settings(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, str]:
    """Return settings as text, with hashes of the run's files and what callbacks changed on the way.

    Data that is not what its name says is renamed.
    """
    flat = {**flat_config(one_way(config)), **hashes(facts), **changed(facts.get("changes"))}
    return flat | ({"dataset": text(data_label(flat["dataset"], facts), 200)} if "dataset" in flat else {})


def one_way(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings in one way of writing: ``dirichlet-0.6`` is u = 0.6, and older files lack some.

    >>> one_way({"algorithm": "fedavg", "partition": "dirichlet-0.6", "u": 0.1})["u"]
    '0.6'
    """
    if "algorithm" not in config:
        return config
    kind, _, said = str(config.get("partition")).partition("-")
    number = {"dirichlet": "u", "pathological": "c"}.get(kind)
    return LATER | config | ({"partition": kind, number: said} if number and said else {})


def changes(run: StoredRun) -> Any:
    """Return what callbacks changed in a run: from its summary or, before there is one, from its rounds."""
    if run.summary or b'"changes": {' not in (run.files.content(METRICS) or b""):
        return run.facts.get("changes")
    return [[row["round"], row["changes"]] for row in run.rows() if row.get("changes")]


def changed(found: Any) -> dict[str, str]:
    """Return what callbacks changed as a setting: a run in which some were made is no other seed of one without.

    >>> changed([[3, {"lr": 0.01}], "<b>"])
    {'changes': 'lr=0.01 after round 3'}
    """
    each = found[:20] if isinstance(found, list) else []
    sound = [one for one in each if isinstance(one, list) and len(one) == 2 and isinstance(one[1], dict)]
    return {"changes": text(words, 200)} if (words := changes_in_words(sound)) else {}


def hashes(facts: dict[str, Any]) -> dict[str, str]:
    """Return hashes of a user's own files and data when the run began, as settings of it: edited, they are others."""
    contents, samples = facts.get("contents"), seedless_fingerprint(facts)
    known = [(k, v) for k, v in contents.items() if k != SAMPLES] if isinstance(contents, dict) else []
    return {text(k, 80): text(v, 80)[:8] for k, v in known[:10]} | ({"samples": samples} if samples else {})
