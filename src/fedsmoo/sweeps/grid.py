"""A TOML file with lists becomes a grid of runs.

::

    rounds = 100
    lr = [0.01, 0.1]                    # a list: one run for each value
    seed = [0, 1, 2]
    hyper = { beta = [1, 10] }          # hyper-parameters, for the methods that have them

    [methods.FedAvg]                    # an axis of methods: a name and what differs for it
    [methods.FedDyn]
    lr_decay = 0.9995
    [methods."FedSMOO without SAM"]
    algorithm = "fedsmoo"
    sam = false

    [columns."dirichlet-0.1"]           # an axis of tasks
    partition = "dirichlet-0.1"

Settings at the top hold for all; a column's win over them, a method's over both, and those in a column's table ``last``
over all; options of a model, a loss, ... do so one by one. Without ``methods`` it is ``algorithm``, perhaps a list.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown_setting
from fedsmoo.core.user_code import short_name
from fedsmoo.data.catalog import SPECS
from fedsmoo.data.division.partition import to_rule
from fedsmoo.data.own import is_own
from fedsmoo.models import MODELS, refuse_options
from fedsmoo.runs.build import algorithm_class, make_algorithm
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.division import cut_cohort, make_partition, refuse_idle_everywhere, resolve_division
from fedsmoo.runs.origin.contents import hash_user_files
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.origin.method import Method, own_method_of_config
from fedsmoo.runs.origin.samples import other_content_label
from fedsmoo.runs.settings.fields import BROUGHT, checked_setting
from fedsmoo.runs.settings.merge import schedules_as_text
from fedsmoo.runs.settings.toml import named_tables, naming_file
from fedsmoo.runs.storage.names import fitting_name
from fedsmoo.sweeps.methods import refuse_contradictory_row, refuse_unknown_hyper, refuse_unlisted_method

WORDS = ("title", "kind", "base", "select", "methods", "columns", "hyper", "note")  # what is not a setting


@dataclass(frozen=True)
class Cell:
    """One run of a sweep, and where it stands in a table."""

    config: Config
    method: str
    column: str
    held: Mapping[str, str] | None = None  # what its files hold, where that was looked at

    @property
    def identity(self) -> str:
        return identity(self.config, self.held, own_method_of_config(self.config))

    @property
    def name(self) -> str:
        """What the run's folder is called."""
        return run_name(self.config, self.held, own_method_of_config(self.config))

    @property
    def label(self) -> str | None:
        """What its sweep calls its method, if that is not the method's own name."""
        return None if self.method.lower() == label(self.config).lower() else self.method

    @property
    def called(self) -> str:
        """Its label in brackets, to stand behind the name of its folder; empty if it has none."""
        return f" ({self.label})" if self.label else ""

    @property
    def unread_data(self) -> str | None:
        """Where data of a known name lies that was not read yet: of two places, the content may differ."""
        return self.config.data if self.held is None and self.config.dataset in SPECS else None


def without_duplicates(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells without duplicates: the same run in the same place of the table."""
    return list({(c.method, c.column, c.identity, c.unread_data): c for c in cells}.values())


@dataclass(frozen=True)
class Sweep:
    """A grid of runs, with what its file says about it."""

    title: str
    cells: list[Cell]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def configs(self) -> list[Config]:
        """Each run once, in the order of the file."""
        return list({(c.identity, c.unread_data): c.config for c in self.cells}.values())

    def folders(self, root: Path) -> dict[Path, Cell]:
        """Return each run by its folder below ``root``."""
        return {root / c.name: c for c in self.cells}

    @property
    def labels(self) -> dict[str, str]:
        """What the file calls the method of each run, by the run's name; own names of methods are left out."""
        out: dict[str, str] = {}
        for cell in self.cells:
            if cell.label is not None:
                out.setdefault(cell.name, cell.label)
        return out


def with_contents(sweep: Sweep, held: Sequence[Mapping[str, str]]) -> Sweep:
    """Return the sweep with what each run's files hold; data that is not what its name says is named in the notes."""
    other = {
        other_content_label(cell.config.dataset, here["data_content"])
        for cell, here in zip(sweep.cells, held, strict=True)
        if here.get("data_content") != hash_user_files(cell.config).get("data_content")
    }
    note = f"Not the paper's data, so not comparable with its numbers: {', '.join(sorted(other))}."
    cells = [dataclasses.replace(cell, held=here) for cell, here in zip(sweep.cells, held, strict=True)]
    notes = [*sweep.about.get("notes", []), *([note] if other else [])]
    return dataclasses.replace(sweep, cells=without_duplicates(cells), about={**sweep.about, "notes": notes})


def expand(table: dict[str, Any], where: str, overrides: dict[str, Any] | None = None) -> Sweep:
    """Expand a table into its runs; ``overrides`` are settings that win over all of it."""
    refuse_misshapen(table, where)
    base = named_tables({k: v for k, v in table.items() if k not in WORDS}, where)
    overrides = named_tables(dict(overrides or {}), "settings")
    hyper = dict(table.get("hyper", {}))
    columns = table.get("columns") or {"": {}}
    methods = table.get("methods") or {"": {}}
    cells = []
    for column, task in columns.items():
        own = {**hyper, **task.get("hyper", {})}
        plain = named_tables({k: v for k, v in task.items() if k not in ("hyper", "last")}, f"{where}, {column!r}")
        for name, changes in methods.items():
            settings = {k: v for k, v in changes.items() if k in FIELDS}
            options = {k: v for k, v in changes.items() if k not in FIELDS}
            if name:
                settings.setdefault("algorithm", name.lower())
            place = f"{where}, {name}" if name else where
            merged = merge_layers(base, plain, settings, task.get("last", {}), overrides)
            refuse_contradictory_row(place, name, settings, options, merged)
            cells += [Cell(config, name or label(config), column) for config in grid(merged, own, options, place)]
    refuse_unlisted_method(table, base, where)
    cells = without_duplicates(cells)
    if not cells:
        raise FedsmooError(f"{where} describes no run")
    configs = [cell.config for cell in cells]
    refuse_unknown_hyper(table, configs, where)
    refuse_idle_everywhere(configs, where)
    title = str(table.get("title", Path(where).stem)).replace("{rounds}", str(cells[0].config.rounds))
    return Sweep(title, cells, {k: table[k] for k in WORDS if k in table})


def merge_layers(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables of settings, the later winning, options one by one; a new name drops the options of the old one."""
    out: dict[str, Any] = {}
    for table in tables:
        for kind in BROUGHT:
            options, before, named = f"{kind}_options", out.get(kind), table.get(kind)
            if kind != "algorithm" and isinstance(named, str) and isinstance(before, str) and named != before:
                out.pop(options, None)
            elif isinstance(out.get(options), dict) and isinstance(table.get(options), dict):
                table = {**table, options: {**out[options], **table[options]}}
        out |= table
    return out


def named_by_tables(*tables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting that may name a user's file, and what it names, at whatever depth of the tables."""
    for table in tables:
        for key, value in table.items():
            if key in BROUGHT:
                for each in as_list(value):
                    yield key, each.get("name") if isinstance(each, dict) else each
            elif isinstance(value, dict):
                if key == "methods":
                    yield from (("algorithm", str(name).lower()) for name in value)
                yield from named_by_tables(*(each for each in (value, *value.values()) if isinstance(each, dict)))


def refuse_misshapen(table: dict[str, Any], where: str) -> None:
    """Refuse a sweep in which another value stands where a table of settings should be."""
    parts: dict[str, Any] = {n: table.get(n, {}) for n in ("methods", "columns", "hyper", "algorithm_options")}
    for word in ("methods", "columns"):
        if word in table and table[word] == {}:
            raise FedsmooError(f"{where}: {word} is empty: give it tables, such as [{word}.NAME], or leave it out")
        entries = parts[word] if isinstance(parts[word], dict) else {}
        parts |= {f"{word}.{name}": entry for name, entry in entries.items()}
        for name, entry in entries.items():
            if word == "columns" and isinstance(entry, dict):
                parts |= {f"{word}.{name}.{n}": entry.get(n, {}) for n in ("hyper", "last")}
    for name, value in parts.items():
        if not isinstance(value, dict):
            raise FedsmooError(f"{where}: {name} is {value!r}, but must be a table of settings")


def grid(settings: dict[str, Any], hyper: dict[str, Any], options: dict[str, Any], where: str) -> Iterator[Config]:
    """Yield a config for every combination of the lists among settings and hyper-parameters."""
    for plain in product(settings):
        spec = checked_setting(Config, "algorithm", plain.get("algorithm", Config.algorithm))
        known = [f.name for f in dataclasses.fields(algorithm_class(spec))]
        for name in options:
            if name not in known:
                raise FedsmooError(f"{where}: {unknown_setting(name, {spec: known}, FIELDS)}")
        mine = {k: v for k, v in hyper.items() if k in known}
        for values in product({**mine, **plain.pop("algorithm_options", {}), **options}):
            with naming_file(where):
                make_algorithm(spec, values)  # a wrong option is said now, not when its turn comes
            config = resolve_division(schedules_as_text(Config(**plain, algorithm_options=values)), plain)
            if config.model in MODELS:
                refuse_options(config.model, config.model_options)
            yield cut_cohort(config, plain)


def product(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a dictionary for each choice from the lists in one, the last list running fastest."""
    axes = {name: as_list(value) for name, value in values.items()}
    for name, listed in axes.items():
        if not listed:
            raise FedsmooError(f"{name} is an empty list: give at least one value")
        for k, value in enumerate(listed):
            if value in listed[:k]:
                raise FedsmooError(f"{name} lists {value!r} twice: it would be the same run, counted as two")
    for choice in itertools.product(*axes.values()):
        yield dict(zip(axes, choice, strict=True))


def as_list(value: Any) -> list[Any]:
    """Return the values that a setting takes one after the other: those of a list, or of what Python has in its place.

    >>> as_list([0.1, 0.2]), as_list(range(2)), as_list("fedavg")
    ([0.1, 0.2], [0, 1], ['fedavg'])
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()  # plain numbers, which a config can hold
    return list(value) if isinstance(value, list | tuple | range) else [value]


def parse_seeds(text: str) -> list[int]:
    """Read seeds separated by commas; raises a ``FedsmooError`` for what is no number or named twice."""
    try:
        seeds = [int(s) for s in text.split(",")]
    except ValueError as e:
        raise FedsmooError(f"seeds {text!r} must be whole numbers separated by commas, such as 0,1,2") from e
    if len(set(seeds)) != len(seeds):
        raise FedsmooError(f"seeds {text!r} names a seed twice")
    return seeds


def listed_seeds(seeds: Any) -> list[int]:
    """Return seeds that are given as numbers or separated by commas; one number may be a seed or a count: refused."""
    if not isinstance(seeds, Iterable):
        raise FedsmooError(f"seeds is {seeds}: write [{seeds}] for this seed, or range({seeds}) for so many")
    return parse_seeds(seeds if isinstance(seeds, str) else ",".join(map(str, seeds)))


def label(config: Config) -> str:
    """Return the method's name in tables."""
    return algorithm_class(config.algorithm).__name__


def run_name(
    config: Config,
    held: Mapping[str, str] | None = None,
    own: Method | None = None,
    changes: Sequence[Any] | None = None,
) -> str:
    """Return a folder's name that says what the run is: two configs have one name only if they are the same run.

    ``held``, ``own`` and ``changes`` are as in :func:`identity`.
    """
    method = Path(config.algorithm).name.replace(":", "-")
    people = f"{config.cohort}of{config.clients}"
    if config.split is not None:
        division = "split"
    elif config.partition == "natural":
        division, people = "natural", str(config.cohort)  # of how many, the data says
    else:
        rule = make_partition(config)
        said = [str(v) for k, v in to_rule(rule).items() if k in ("name", "u", "c")]
        division = short_name("-".join(said)) if len(said) > 1 else rule.name[:40]  # of many sizes the first
    dataset = short_name(config.dataset) if is_own(config.dataset) else config.dataset
    stem = f"{method}-{dataset}-{division}-{people}-{config.model}-seed{config.seed}".lower()
    stem = "".join(ch if ch.isalnum() or ch in "-_." else "-" for ch in stem)
    return f"{fitting_name(stem)}-{identity(config, held, own, changes)[:8]}"
