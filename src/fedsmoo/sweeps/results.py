"""Measured results: a small JSON file per run, from which tables are made, and run folders read the same way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import brief
from fedsmoo.core.untrusted import to_stderr
from fedsmoo.data.files.plain import MAX_BYTES, parse_json, read_plain
from fedsmoo.metrics.quantity import Quantity
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin.contents import recorded_hashes, refuse_damaged
from fedsmoo.runs.origin.identity import config_of, identity
from fedsmoo.runs.origin.method import Method, is_users_code, recorded_method
from fedsmoo.runs.origin.provenance import now
from fedsmoo.runs.record import HELD_OUT, Record, lead_of, scores_of
from fedsmoo.runs.results.columns import is_metric, metric_columns, records_of, refuse_cut, round_digits
from fedsmoo.runs.storage.fence import PART
from fedsmoo.runs.storage.files import make_folder, read_json, remove_old, write_durably
from fedsmoo.runs.storage.reader import NUMBERS, OPTIONAL, are_numbers, read_run, right_kind, state
from fedsmoo.runs.storage.walk import run_folders
from fedsmoo.sweeps.grid import run_name

Note = Callable[[str], Any]  # says a line to a person
Read = Callable[[Path], "Measured | None"]
FORMAT, SECONDS = "fedsmoo result 1", ("seconds_train", "seconds_eval")
# Enough digits for every table: an accuracy on ten thousand samples is exact, a loss has six.
DIGITS = {"test_accuracy": 8, "seconds_train": 4, "seconds_eval": 4, **dict.fromkeys(HELD_OUT, 8)}
DIGITS |= dict.fromkeys(("test_loss", "train_loss", "drift", "drift_after"), 6)
COLUMNS = (
    "test_accuracy", "test_loss", "train_loss", "drift", "bytes_up", "bytes_down", "seconds_train", "seconds_eval",
)  # fmt: skip
LATER = ("drift_after", *HELD_OUT)  # columns that older files, and runs without a holdout, do not have
FACTS = (
    "engine", "engine_why", "chunk", "ranks", "device", "device_type", "products", "threads", "packed", "parameters",
    "parameters_full", "versions", "commit", "command", "finished", "contents", "label", "dirty", "again",
    "cpu", "cores", "pack", "data", "sessions", "method", "changes", "lower",
)  # fmt: skip
SUPERSEDED = "superseded"  # the folder of results that others took the place of, and their mark


@dataclass(frozen=True)
class Measured:
    """One finished run: its config, its curve by column, and what made it."""

    config: Config
    curve: dict[str, list[Any]]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Which run it is; of a method whose code is not known here, by its options as they were written."""
        return identity(self.config, *self._origin)

    @property
    def name(self) -> str:
        """What its file is called."""
        return run_name(self.config, *self._origin)

    @property
    def _origin(self) -> tuple[dict[str, str] | None, Method | None, list[Any] | None]:
        return recorded_hashes(self.facts), recorded_method(self.facts), self.facts.get("changes")

    def agrees(self, other: Measured) -> bool:
        """Return whether two measurements have the same numbers in the columns of both; seconds always differ.

        As text, in which what is no number equals itself.
        """
        both = (self.curve.keys() & other.curve.keys()) - set(SECONDS)
        return all(json.dumps(self.curve[k]) == json.dumps(other.curve[k]) for k in both)

    @property
    def history(self) -> list[Record]:
        """The rounds, without who took part in them."""
        names = ("round", *COLUMNS, *(n for n in self.curve if n in LATER or is_metric(n)))
        return records_of({n: self.curve[n] for n in names}, self.facts.get("lower") or [])

    @cached_property
    def led(self) -> tuple[Quantity, list[float]]:
        """The metric that leads, and its values in the evaluated rounds, made of the columns once for both."""
        return lead_of(history := self.history), scores_of(history)

    lead = property(lambda self: self.led[0], doc="The metric that leads.")
    scores = property(lambda self: self.led[1], doc="Its values in the evaluated rounds.")


def from_folder(path: Path) -> Measured:
    """Return a run folder's result, rounded as in the file, so that both give the same tables."""
    run = read_run(path)
    run.refuse_damaged()
    curve: dict[str, list[Any]] = {"round": [r.round for r in run.history]}
    refuse_cut(curve["round"], run.config.rounds, path)
    for name in (*COLUMNS, *(n for n in LATER if any(getattr(r, n) is not None for r in run.history))):
        curve[name] = [round_digits(getattr(r, name), DIGITS.get(name, 17)) for r in run.history]
    curve |= {name: [round_digits(v, 8) for v in values] for name, values in metric_columns(run.history).items()}
    facts = {**run.facts, "label": run.label, "lower": next((r.lower for r in run.history if r.lower), None)}
    if not is_users_code(run.config.algorithm):
        facts.pop("method", None)  # the package knows its own
    told = {k: facts[k] for k in FACTS if facts.get(k) is not None}
    if hessian := run.files.table("analysis/hessian.json"):
        values = hessian.get("eigenvalues")
        top = max((v for v in values if type(v) in NUMBERS), default=None) if isinstance(values, list) else None
        told["hessian"] = {"top": top, "trace": t if type(t := hessian.get("trace")) in NUMBERS else None}
    return Measured(run.config, curve, told)


def to_json(result: Measured) -> str:
    """Write a result as the text of its file: one line a field, so that differences can be read."""
    curve = {k: v[0] if k.startswith("bytes") and len(set(v)) == 1 else v for k, v in result.curve.items()}
    config = result.config.replace(data=None).to_dict()  # where the data lay concerns nobody else
    seconds = [s for s in result.curve["seconds_train"] if s is not None]
    lines = {
        "format": FORMAT,
        "config": {k: v for k, v in config.items() if v is not None or FIELDS[k].default is not None},
        **{k: result.facts[k] for k in (*FACTS, "hessian") if k in result.facts},
        "rounds": len(result.curve["round"]),
        "seconds_per_round": round_digits(sum(seconds) / max(len(seconds), 1), 4),
    }
    return json_in_lines({**lines, "curve": curve})


def json_in_lines(value: dict[str, Any]) -> str:
    """Write a result as JSON with a line for each field, and for each column of its curve."""
    text = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items() if k != "curve"]
    curve = value["curve"].items()
    inner = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in curve)
    return "{\n" + ",\n".join([*text, '  "curve": {\n' + inner + "\n  }"]) + "\n}\n"


def from_json(path: Path) -> Measured:
    """Return the result in a file; ``FedsmooError`` if it is damaged or something else."""
    return from_table(read_json(path), path)


def from_table(value: dict[str, Any], path: Path) -> Measured:
    """Return the result in a table that was read from a file."""
    if value.get("format") != FORMAT:
        raise FedsmooError(f"{path} is not a result of this version ({FORMAT!r})")
    if not isinstance(value.get("config"), dict) or not isinstance(value.get("curve"), dict):
        raise FedsmooError(f"{path} is cut or damaged: it has no config or no curve; export the run again")
    found = value["curve"].get("round")
    rounds = len(found) if isinstance(found, list) else 0
    curve = {k: v if isinstance(v, list) else [v] * rounds for k, v in value["curve"].items()}
    names = ("round", *COLUMNS, *(n for n in curve if n in LATER or is_metric(n)))
    if any(len(curve.get(n, ())) != rounds for n in names):
        raise FedsmooError(f"{path} is damaged: the columns of its curve differ in length; export the run again")
    types: dict[str, set[type]] = {"round": {int}, **dict.fromkeys(COLUMNS[-4:], NUMBERS)}
    if not all(are_numbers(curve[n], types.get(n, OPTIONAL)) for n in names):
        raise FedsmooError(f"{path} is damaged: its curve holds what is no number; export the run again")
    if unknown := [n for n in value["config"] if n not in FIELDS]:
        raise FedsmooError(f"{path} has a setting {brief(unknown[0])}, which this version does not know")
    config, facts = config_of(value["config"]), {k: v for k in (*FACTS, "hessian") if (v := value.get(k)) is not None}
    refuse_cut(curve["round"], config.rounds, path)
    if wrong := [k for k, v in facts.items() if not right_kind(k, v)]:
        raise FedsmooError(f"{path} is damaged: {wrong[0]} is {brief(facts[wrong[0]])}; export the run again")
    refuse_damaged(config, facts, str(path))
    return Measured(config, curve, facts)


def export(folders: Sequence[Path], to: Path, supersede: str | None = None, note: Note = to_stderr) -> list[Path]:
    """Write the results of finished runs; returns their files.

    A file that holds other numbers of the same run is replaced only with a reason, ``supersede``, and is kept with it
    in a folder beside; without one, nothing at all is written.
    """
    if supersede is not None and not supersede.strip():
        raise FedsmooError("supersede needs a reason, which is kept with the old result")
    found: dict[Path, Found] = {}
    for folder, result in read_all(((from_folder, folder) for folder in finished_runs(folders)), note):
        path, value = to / f"{result.name}.json", Found(str(folder), result)
        found[path] = choose_measurement(found[path], value, note) if path in found else value
    tables = {path: read_existing(path) for path in found if path.is_file()}
    old = {path: from_table(table, path) for path, table in tables.items()}
    other = [p for p, was in old.items() if not was.agrees(found[p].result)]
    if other and supersede is None:
        raise FedsmooError(
            f"{', '.join(map(str, other))}: holds another measurement of the same run, {score_in_words(old[other[0]])} "
            f"where {found[other[0]].where} has {score_in_words(found[other[0]].result)}; nothing was written. A "
            f"reason to supersede it (--supersede REASON) replaces it and keeps it in {to / SUPERSEDED}"
        )
    for left in [*to.glob(f"*.json{PART}"), *(to / SUPERSEDED).glob(f"*.json{PART}")]:
        remove_old(left)
    for path, value in found.items():
        if path in old and path not in other and old[path].curve != value.result.curve:
            note(f"{path} has the same numbers, measured earlier with its own seconds: it is kept")
            continue
        try:
            make_folder(to)
            if path in other:
                set_aside(tables[path], path, str(supersede), value.result)
            write_durably(path, to_json(value.result))
        except OSError as e:
            raise FedsmooError(f"cannot write {path}: {e.strerror}; choose another folder") from e
    return list(found)


def read_existing(path: Path) -> dict[str, Any]:
    """Read a result that another may supersede."""
    try:
        table = read_json(path)
        from_table(table, path)
        return table
    except FedsmooError as e:
        raise FedsmooError(f"{e}, once that file is moved away; nothing was written") from e


def set_aside(table: dict[str, Any], path: Path, reason: str, by: Measured) -> Path:
    """Keep a superseded result, as it was read, in a folder beside its file, with the reason inside; returns its file.

    By now another process may have replaced it.
    """
    value, folder = dict(table), path.parent / SUPERSEDED
    why = {"reason": reason, "date": now(), "by": {k: by.facts[k] for k in ("commit", "finished") if k in by.facts}}
    make_folder(folder)
    copies = (folder / (path.name if k == 1 else f"{path.stem}-{k}.json") for k in itertools.count(1))
    place = next(p for p in copies if not p.exists())
    write_durably(place, json_in_lines({"format": value.pop("format"), SUPERSEDED: why, **value}))
    return place


def finished_runs(folders: Iterable[Path]) -> list[Path]:
    """Return the run folders with a summary, at or below the given ones."""
    return [path for path in run_folders(folders) if state(path) == "finished"]


@dataclass(frozen=True)
class Found:
    """A result and where it lies."""

    where: str
    result: Measured


def collect(
    runs: Sequence[Path] = (), results: Path | Sequence[Path] = (), note: Note = to_stderr, whole: bool = False
) -> dict[str, Measured]:
    """Collect everything measured, by identity; of several measurements of one run the first counts, with a note.

    ``results`` are result files or folders of them. What cannot be read is left out, with a note; ``whole``: an error.
    """
    out: dict[str, Found] = {}
    folders = [results] if isinstance(results, Path) else results
    files = [path for each in folders for path in (sorted(each.glob("*.json")) if each.is_dir() else [each])]
    places = [*((from_file, path) for path in files), *((from_folder, path) for path in finished_runs(runs))]
    for place, result in read_all(places, note, whole):
        key, value = result.identity, Found(str(place), result)
        out[key] = choose_measurement(out[key], value, note) if key in out else value
    return {key: value.result for key, value in out.items()}


def read_all(places: Iterable[tuple[Read, Path]], note: Note, whole: bool = False) -> Iterator[tuple[Path, Measured]]:
    """Yield the results that can be read, each by its own function; notes say why not others, or ``whole`` raises."""
    for read, place in places:
        try:
            result = read(place)
            if result is not None and result.name:  # which says whether the config describes a run
                yield place, result
        except FedsmooError as e:
            if whole:
                raise
            note(f"left out: {e}")


def from_file(path: Path) -> Measured | None:
    """Return the result in a file; ``None`` if it holds something else, or one that was superseded."""
    value = parse_json(read_plain(path, limit=MAX_BYTES) or b"null", path)
    return from_table(value, path) if is_current_result(value) else None


def is_current_result(content: Any) -> bool:
    """Return whether a file's content is a result that was not superseded; other files may lie beside them."""
    return isinstance(content, dict) and content.get("format") == FORMAT and SUPERSEDED not in content


def choose_measurement(a: Found, b: Found, note: Note) -> Found:
    """Choose which of two measurements of one run counts: the first; of equal ones, the one that was read last."""
    if a.result.curve == b.result.curve:
        return b
    first, second = sorted((a, b), key=lambda each: str(each.result.facts.get("finished", "")))
    if not a.result.agrees(b.result):
        scores = "; ".join(score_in_words(each.result) for each in (first, second))
        same = f"{first.where} and {second.where} are the same run with different numbers ({scores})"
        note(f"{same}: the first measured counts, {first.where}")
    return first


def score_in_words(result: Measured) -> str:
    """Say a result in one number, so that two can be told apart."""
    scores, lead = result.scores, result.lead
    top = lead.best(scores)
    best = "no accuracy" if top is None else f"best {lead.text(top)}"
    return f"{best} in {len(result.curve['round'])} rounds"
