"""Which part of a table of the paper is wanted, and the sweep that measures it."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.paper.cells import Found
from fedsmoo.paper.experiments import experiment
from fedsmoo.runs.origin.contents import hash_user_files, recorded_hashes
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.origin.method import recorded_method
from fedsmoo.sweeps.grid import Sweep, parse_seeds, with_contents


@dataclass(frozen=True)
class Selection:
    """A table's name, the columns, methods and seeds wanted of it (none: all), and how it is to look."""

    name: str
    columns: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    scale: float = 1.0
    compact: bool = False

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Read the words of a marker in a document: ``accuracy --columns cifar10.dirichlet-0.1 --compact``."""
        try:
            return cls.of_words(shlex.split(text), text)
        except ValueError as e:  # a quote that is not closed, or a scale that is no number
            raise FedsmooError(f"a table's marker says {text!r}: {e}") from e

    @classmethod
    def of_words(cls, words: Sequence[str], text: str) -> Selection:
        """Read the words of a marker, which says ``text``."""
        values: dict[str, Any] = {}
        rest = iter(words[1:])
        for word in rest:
            option = word.removeprefix("--")
            if option == "compact":
                values["compact"] = True
            elif option in ("columns", "methods"):
                values[option] = tuple(split(next(rest, "")))
            elif option == "seeds":
                values["seeds"] = tuple(parse_seeds(next(rest, "")))
            elif option == "scale":
                values["scale"] = float(next(rest, ""))
            else:
                raise FedsmooError(f"a table's marker says {text!r}: {word!r} is not understood there")
        return cls(words[0] if words else "", **values)

    def sweep(self, settings: dict[str, Any] | None = None) -> Sweep:
        """Expand the selection into runs; ``settings`` win over the paper's, and are noted as departures from it."""
        return experiment(self.name, self.columns, self.methods, self.seeds, self.scale, settings)

    def over_measured_seeds(self, found: Found, settings: dict[str, Any] | None = None) -> Sweep:
        """Expand the selection with all seeds that were measured, unless some are chosen."""
        sweep = self.sweep(settings)
        chosen = self.seeds or "seed" in (settings or {})
        seeds = () if chosen else measured_seeds(sweep, found)
        return dataclasses.replace(self, seeds=seeds).sweep(settings) if seeds else sweep


def split(words: str | None) -> list[str]:
    """Split words at commas.

    >>> split("FedAvg, FedSMOO"), split(None)
    (['FedAvg', 'FedSMOO'], [])
    """
    return [w.strip() for w in words.split(",") if w.strip()] if words else []


def measured_seeds(sweep: Sweep, found: Found) -> tuple[int, ...]:
    """Return the seeds that some cell of a sweep of one seed was measured with."""
    (usual,) = {c.config.seed for c in sweep.cells}
    plain = {identity(c.config, without_data(c.held or hash_user_files(c.config))) for c in sweep.cells}
    seeds = set[int]()
    for run in found.values():
        held, changes = without_data(recorded_hashes(run.facts) or {}), run.facts.get("changes")
        if identity(run.config.replace(seed=usual), held, recorded_method(run.facts), changes) in plain:
            seeds.add(run.config.seed)
    return tuple(sorted(seeds))


def on_other_data(sweep: Sweep, found: Found) -> Counter[tuple[str, str]]:
    """Count measured runs that differ from the sweep's in the content of their data alone, by data set and content."""
    cells = {c.identity for c in sweep.cells}
    plain = {identity(c.config, without_data(c.held or hash_user_files(c.config))) for c in sweep.cells}
    others = Counter[tuple[str, str]]()
    for key, run in found.items():
        held = recorded_hashes(run.facts) or {}
        if key not in cells and "data_content" in held and identity(run.config, without_data(held)) in plain:
            others[run.config.dataset, held["data_content"]] += 1
    return others


def without_data(held: Mapping[str, str]) -> dict[str, str]:
    """Leave the data out of what a run's files held."""
    return {k: v for k, v in held.items() if k != "data_content"}


def on_measured_data(sweep: Sweep, found: Found) -> Sweep:
    """Return the sweep on the data of most measured runs, where none of them is on what the data's name says."""
    others = on_other_data(sweep, found)
    if not others or any(c.identity in found for c in sweep.cells):
        return sweep
    content = {name: {"data_content": value} for (name, value), _ in reversed(others.most_common())}
    return with_contents(
        sweep, [{**hash_user_files(c.config), **content.get(c.config.dataset, {})} for c in sweep.cells]
    )
