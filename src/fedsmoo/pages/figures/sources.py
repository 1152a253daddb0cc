"""Find what a figure is drawn from: run folders, result files, or files of measured models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.untrusted import number, text
from fedsmoo.data.files.plain import MAX_BYTES, parse_table, read_plain
from fedsmoo.metrics.quantity import ACCURACY
from fedsmoo.pages import measured
from fedsmoo.pages.gather import flat_config, gather, method_label, settings
from fedsmoo.pages.groups import add_groups
from fedsmoo.pages.metrics import COLUMNS, column, compact_rounds, lead_words
from fedsmoo.runs.storage.names import CONFIG
from fedsmoo.runs.storage.walk import find_runs
from fedsmoo.sweeps.results import FORMAT, SUPERSEDED, from_table


@dataclass(frozen=True)
class Sources:
    """Run folders, runs from files, and files that hold no run."""

    folders: list[Path] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)


def find(paths: Sequence[Path]) -> Sources:
    """Return what lies at the given paths; a folder may hold run folders or result files."""
    folders, runs, others = list[Path](), list[dict[str, Any]](), list[Path]()
    for path in unique(paths):
        if not path.is_file():
            folders += find_runs([path])
            runs += [run for file in sorted(path.glob("*.json")) if is_result(file) for run in read_file(file) or ()]
        elif path.parent.name == measured.FOLDER and (path.parent.parent / CONFIG).is_file():
            folders.append(path.parent.parent)
        elif (found := read_file(path)) is None:
            others.append(path)
        else:
            runs += found
    if not folders and not runs:
        places = ", ".join(map(str, paths))
        raise FedsmooError(f"no run in {places}: give run folders, or result files that 'fedsmoo results export' wrote")
    return Sources(unique(folders), list({run["file"]: run for run in runs}.values()), others)


def unique(paths: Iterable[Path]) -> list[Path]:
    return list({path.resolve(): path for path in paths}.values())


def is_result(path: Path) -> bool:
    with suppress(FedsmooError):
        return read_table(path).get("format") == FORMAT
    return False


def read_table(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of bounded size; ``FedsmooError`` if there is none."""
    content = read_plain(path, limit=MAX_BYTES)
    if content is None:
        raise FedsmooError(f"{path} is no file")
    return parse_table(content, path, "replace")


def read_file(path: Path) -> list[dict[str, Any]] | None:
    """Read the runs of a file; ``None`` if it holds something else, which may well lie beside results."""
    try:
        value = read_table(path)
    except FedsmooError as e:
        raise FedsmooError(f"{path} is cut or damaged: it holds no JSON object") from e
    if str(value.get("format", "")).startswith(FORMAT.rpartition(" ")[0]):
        return [result(path, value)]
    models = value.get("models")
    if isinstance(models, dict) and models and all(isinstance(m, dict) for m in models.values()):
        return [model(path, value, name, found) for name, found in models.items()] or None
    return None


def result(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    """Return a run from its result file in the form of one from its folder."""
    found = from_table(value, path)
    curve, lead, history = dict(found.curve), found.lead, found.history
    none = [i for i, r in enumerate(history) if r.evaluated and number(r.score) is None]
    if lead != ACCURACY:
        curve["test_accuracy"] = [r.score for r in history]
    return {
        "file": str(path.resolve()),
        "name": text(path.stem, 200),
        "method": method_label(value["config"].get("algorithm", "?")),
        "label": label_of(value),
        "superseded": SUPERSEDED in value,
        "config": settings(value["config"], value),
        "rounds": compact_rounds(curve["round"]),
        **{short: json.loads(column(curve[name], digits)) for short, name, digits in COLUMNS},
        "analysis": {},
        **({"none": none} if none else {}),
        **({} if lead == ACCURACY else {"lead": lead_words(lead, lead), "led": lead_words(lead, lead)}),
    }


def label_of(value: dict[str, Any]) -> str | None:
    """Return what a result's sweep calls its method, if anything; one that another took the place of is marked."""
    label = text(value.get("label") or "", 80)
    if SUPERSEDED not in value:
        return label or None
    return f"{label or method_label(value['config'].get('algorithm', '?'))} ({SUPERSEDED})"


def model(path: Path, value: dict[str, Any], name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return one of several models that were measured together: its analysis, and no curve."""
    return {
        "file": f"{path.resolve()}/{name}",
        "name": text(f"{path.stem}/{name}", 200),
        "method": method_label(name),
        "config": flat_config({"dataset": value.get("data", "?"), "algorithm": name, "file": path.stem}),
        "rounds": 0,
        **{short: [] for short, _, _ in COLUMNS},
        "analysis": measured.trusted(found),
    }


def drawable(sources: Sources, where: Sequence[str] = ()) -> dict[str, Any]:
    """Return what figures need of the runs with all of ``where`` (``setting=value`` or ``setting!=value``)."""
    data = gather(sources.folders)
    runs = [*data["runs"], *sources.runs]
    for condition in where:
        key, equals, wanted = (word.strip() for word in condition.partition("="))
        if not equals:
            raise FedsmooError(f"--where {condition}: say setting=value, such as seed=0, or setting!=value")
        other, key = key.endswith("!"), key.removesuffix("!").strip()
        settings = {k for run in runs for k in run["config"]}
        if key not in settings:
            raise unknown("setting", key, sorted(settings))
        values = {run["config"].get(key, "") for run in runs}
        runs = [run for run in runs if (run["config"].get(key) == wanted) != other]
        if not runs:
            raise FedsmooError(f"--where {condition}: no run has that; there is {', '.join(sorted(values))}")
    if altered := next((run["name"] for run in runs if run.get("altered")), None):
        raise FedsmooError(
            f"{altered}: its metrics are not as it wrote them: leave this run out, or carry it out again"
        )
    return {**data, "runs": add_groups(runs)}
