"""The methods of a comparison, as people write them: ``fedavg,fedprox:mu=0.1,fedsmoo:r=0.03,beta=10``.

And of a sweep: what its file says of methods, and no row would have, is refused.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.errors import FedsmooWarning, brief, unknown
from fedsmoo.core.user_code import file_of
from fedsmoo.runs.build import algorithm_class
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.objects import PREFIX, method_settings
from fedsmoo.runs.settings.fields import refuse_twice
from fedsmoo.runs.settings.merge import settings_of
from fedsmoo.runs.settings.toml import naming_file
from fedsmoo.runs.storage.names import fitting_name
from fedsmoo.sweeps import METHODS

Methods = str | Algorithm | Sequence[str | Algorithm] | Mapping[str, Mapping[str, Any]]

COMMAS = re.compile(r""",(?=(?:[^'"]|'[^']*'|"[^"]*")*$)""")  # not those between quotes
OPTION = re.compile(r"\s*([\w.]+)\s*=(.*)", re.DOTALL)  # mu=0.1
METHOD = re.compile(r"(.*?)(?::(\s*[\w.]+\s*=.*))?", re.DOTALL)  # fedavg, fedprox:mu=0.1, mine.py:Mine:mu=0.1


@dataclass(frozen=True)
class Entry:
    """A method of a comparison: its name, and the settings and hyper-parameters that are its own.

    ``said`` is what its label repeats of them: what stands beside the name tells two rows of one method apart.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    method: Algorithm | None = None  # a method of this program, which no setting names

    @property
    def cls(self) -> type[Algorithm]:
        """The method's class."""
        return algorithm_class(self.name) if self.method is None else type(self.method)


def parse_methods(text: str) -> list[Entry]:
    """Read methods, each with options after a colon, separated by commas; a value with a comma stands in quotes.

    >>> [(entry.name, entry.options) for entry in parse_methods("fedavg,fedsmoo:r=0.03,beta=10,mine.py:Mine:k=2")]
    [('fedavg', {}), ('fedsmoo', {'r': '0.03', 'beta': '10'}), ('mine.py:Mine', {'k': '2'})]
    """
    found: list[tuple[str, dict[str, Any]]] = []
    for word in COMMAS.split(text):
        option = OPTION.fullmatch(word)
        if option is None:
            match = METHOD.fullmatch(word)
            assert match is not None  # it matches all text
            name, rest = match.groups()
            found.append((name.strip(), {}))
            option = None if rest is None else OPTION.fullmatch(rest)
        if option is None:
            continue
        if not found:
            raise FedsmooError(f"{text!r} begins with an option: name its method first, such as 'fedprox:mu=0.1'")
        key, value = option[1], unquote(option[2].strip())
        if not value or key in found[-1][1]:
            what = "is given twice" if value else "has no value"
            raise FedsmooError(f"{text!r}: {key} of {found[-1][0]} {what}: write options as 'fedsmoo:r=0.03,beta=10'")
        found[-1][1][key] = value
    return [Entry(name, options, tuple(f"{n}={v}" for n, v in options.items())) for name, options in found]


def unquote(text: str) -> str:
    """Return text without the quotes around it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def methods_of(algorithms: Methods) -> list[Entry]:
    """Return the methods to compare, each with settings of its own."""
    if isinstance(algorithms, Algorithm):
        algorithms = [algorithms]
    if not isinstance(algorithms, Iterable):
        raise FedsmooError(f"algorithms is {brief(algorithms)}, but must name methods, such as 'fedavg,fedsmoo'")
    if isinstance(algorithms, str):
        return parse_methods(algorithms)
    entries: list[Entry] = []
    for each in algorithms:
        mine = algorithms[each] if isinstance(algorithms, Mapping) else {}  # type: ignore[index]
        if not isinstance(mine, Mapping):
            also = f": methods themselves are a list, [{brief(mine)}, ...]" if isinstance(mine, Algorithm | str) else ""
            raise FedsmooError(f"the settings of {each} are {brief(mine)}, but must be a mapping, or {{}}{also}")
        entries += [entry_of(each, mine)] if isinstance(each, Algorithm) else named_entries(each, mine)
    if not entries:
        raise FedsmooError("there is no method to compare: name some, such as 'fedavg,fedsmoo'")
    return entries


def with_method_of(config: Any, algorithms: Methods) -> Methods:
    """Return the methods to compare: where nobody named any, that of a config, too; else it is said to be left out."""
    own = settings_of(config).get("algorithm")
    if not isinstance(own, str):
        return algorithms
    entries = methods_of(algorithms)
    if own.lower() in [entry.name.lower() for entry in entries]:
        return algorithms
    if algorithms == METHODS:
        return f"{METHODS},{own}"
    where = config if isinstance(config, str | PathLike) else "the config"
    named = ", ".join(entry.name for entry in entries)
    note = f"{where}: its algorithm {own!r} is not among the methods named, {named}, and left out"
    warnings.warn(note, FedsmooWarning, stacklevel=3)
    return algorithms


def named_entries(name: Any, mine: Mapping[str, Any]) -> list[Entry]:
    """Return the entry of a name, which may have options after a colon, and settings beside it."""
    if not isinstance(name, str):
        hint = f": write {name.__name__}()" if isinstance(name, type) else ", such as 'fedavg' or FedAvg()"
        raise FedsmooError(f"algorithms holds {brief(name)}, but methods are named or made{hint}")
    entries = parse_methods(name)
    for e in entries:
        refuse_twice(e.name, e.options, mine)
    return [Entry(e.name, {**e.options, **mine}, e.said) for e in entries]


def entry_of(method: Algorithm, mine: Mapping[str, Any]) -> Entry:
    """Return the entry of a method that was made, such as ``FedProx(mu=0.1)``."""
    known = method_settings(method)
    if known["algorithm"].startswith(PREFIX):
        plain = {f.name: f.default for f in dataclasses.fields(method)}
        said = {n: v for n, v in method.options().items() if repr(v) != repr(plain[n])}
        return Entry(type(method).__name__, dict(mine), tuple(f"{n}={v}" for n, v in said.items()), method)
    options = known["algorithm_options"]
    refuse_twice(known["algorithm"], options, mine)
    return Entry(known["algorithm"], {**options, **mine}, tuple(f"{n}={v}" for n, v in options.items()))


def labels(entries: Sequence[Entry]) -> list[str]:
    """Return each method's name in tables: its class's, what stands beside it, and its file's where two would agree."""
    classes = [e.cls for e in entries]
    plain = [" ".join([cls.__name__, *e.said]) for cls, e in zip(classes, entries, strict=True)]
    for k, entry in enumerate(entries):
        if any(classes[j] is classes[k] and plain[j] == plain[k] for j in range(k)):
            raise FedsmooError(f"--algorithms names {entry.name!r} twice")
    shared = [sum(folder_stem(label) == folder_stem(other) for other in plain) > 1 for label in plain]
    files = [file_of(e.name) if e.method is None else None for e in entries]
    out = [f"{a} ({b})" if c and b else a for a, b, c in zip(plain, files, shared, strict=True)]
    for k, label in enumerate(out):
        if folder_stem(label) in map(folder_stem, out[:k]):
            raise FedsmooError(
                f"--algorithms: {entries[k].name} and another would share a folder: give its class a new name"
            )
    return out


def folder_stem(label: str) -> str:
    """Return a label as the name of a folder begins with it.

    >>> folder_stem("FedSMOO"), folder_stem("Mine (new/m.py)"), folder_stem("FedProx mu=0.1")
    ('fedsmoo', 'mine-new-m.py', 'fedprox-mu-0.1')
    """
    return fitting_name(re.sub(r"[^\w.]+", "-", label.lower()).strip("-"))


def folder_name(label: str, seed: int) -> str:
    """Return what the folder of a run in a comparison is called."""
    return f"{folder_stem(label)}-seed{seed}"


def refuse_contradictory_row(
    where: str, name: str, settings: Mapping[str, Any], options: Mapping[str, Any], merged: Mapping[str, Any]
) -> None:
    """Refuse a row whose method would be another one, and an option that its table gives twice.

    ``settings`` and ``options`` are those of the row, and ``merged`` what it comes to.
    """
    if not name:
        return
    if merged["algorithm"] != settings["algorithm"]:
        raise FedsmooError(
            f"{where}: algorithm is {merged['algorithm']!r}, but this row's is {settings['algorithm']!r}: the table "
            "[methods] says which methods there are"
        )
    if isinstance(beside := settings.get("algorithm_options"), dict):
        with naming_file(where):
            refuse_twice("algorithm", beside, options)


def refuse_unlisted_method(table: Mapping[str, Any], base: Mapping[str, Any], where: str) -> None:
    """Refuse an ``algorithm`` for all rows of a sweep whose table of methods does not have it: it would not be run."""
    rows = {str(row.get("algorithm", name)).lower() for name, row in (table.get("methods") or {}).items()}
    given = base.get("algorithm", [])
    for name in given if isinstance(given, list | tuple) else [given]:
        if rows and str(name).lower() not in rows:
            raise FedsmooError(
                f"{where}: algorithm is {name!r}, but the table [methods] has no such row: add it, or leave it out"
            )


def refuse_unknown_hyper(table: dict[str, Any], configs: Sequence[Config], where: str) -> None:
    """Refuse a name in a table ``hyper`` that no method of the sweep has: it would change nothing."""
    methods = {algorithm_class(config.algorithm) for config in configs}
    if "kind" in table:  # one of the paper's tables, which may be asked for with some of its methods only
        methods |= set(ALGORITHMS.values())
    known = {f.name for cls in methods for f in dataclasses.fields(cls)}
    for part in (table, *table.get("columns", {}).values()):
        for name in part.get("hyper", {}):
            if name not in known:
                raise FedsmooError(f"{where}: {unknown('hyper-parameter of these methods', name, known)}")
