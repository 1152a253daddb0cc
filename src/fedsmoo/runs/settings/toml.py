"""Settings in a TOML file: names with tables of options, and a config that was cut is never the defaults."""

from __future__ import annotations

import codecs
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.settings.fields import BROUGHT, checked_setting, refuse_twice
from fedsmoo.runs.settings.training import metrics_as_text

# The first and the last line of the config that a run keeps: one without its end was cut.
FIRST, LAST = "# The settings of a run, whole if its last line is there.", "# The end of the settings."


class LostSettings(FedsmooError):
    """A config file is missing, empty or cut: that never means the defaults."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file; ``[algorithm]``, ``[model]``, ``[loss]`` may be tables with a ``name``."""
    file, _, name = str(path).partition(".py:")
    if name or path.suffix == ".py":
        named = f"{file}.py:{name}" if name else f"{path}:Name"
        raise FedsmooError(
            f"{path} is Python, no config file: say what it is, --algorithm {named} or --model {named}, or name it "
            "among the methods to compare"
        )
    try:
        content = path.read_bytes()
    except OSError as e:
        inside = path / "config.toml"
        hint = f"; did you mean {inside}?" if inside.is_file() else ""
        raise FedsmooError(f"cannot read the config file {path}: {e.strerror}{hint}") from e
    found = named_tables(parse_toml(content, str(path)), str(path))
    for name, value in found.items():
        with naming_file(str(path)):
            checked_setting(Config, name, metrics_as_text(value) if name == "metrics" else value)
    return found


def config_in(table: dict[str, Any], where: str) -> Config:
    """Make the config that a file's table holds; what is wrong in it is said with the name of the file."""
    settings = named_tables(table, where)
    with naming_file(where):
        return Config(**settings)


@contextmanager
def naming_file(where: str) -> Iterator[None]:
    """Say of errors in which file the wrong setting stands."""
    try:
        yield
    except FedsmooError as e:
        raise FedsmooError(f"{where}: {e}") from e


def parse_toml(content: bytes, where: str, errors: str = "strict") -> dict[str, Any]:
    """Return the table in a TOML file's bytes; ``FedsmooError`` if it is damaged. ``errors`` as in ``bytes.decode``.

    A byte-order mark, which some editors put first, is none of its text.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    if not content.strip(b"\0 \r\n\t") or (content.startswith(FIRST.encode()) and LAST.encode() not in content):
        raise LostSettings(f"the config file {where} is {'cut' if content.strip() else 'empty'}")
    try:
        return tomllib.loads(content.decode("utf-8", errors))
    except RecursionError as e:
        raise FedsmooError(f"the config file {where} is not valid TOML: it is nested too deeply") from e
    except ValueError as e:  # also of text that is not UTF-8, and of numbers with thousands of digits
        raise FedsmooError(f"the config file {where} is not valid TOML: {e}") from e


def named_tables(table: dict[str, Any], where: str) -> dict[str, Any]:
    """``algorithm = {name = "fedsmoo", r = 0.1}`` as a name and its options; misspelt keys are refused."""
    out = dict(table)
    for key in BROUGHT:
        if isinstance(out.get(key), dict):
            options, beside = dict(out[key]), out.get(f"{key}_options", {})
            if not isinstance(beside, dict):
                raise FedsmooError(f"{where}: {key}_options is {beside!r}, but must be a table of options")
            own = {k: v for k, v in options.items() if k != "name"}
            with naming_file(where):
                refuse_twice(key, beside, own)
            out[f"{key}_options"] = {**beside, **own}
            out.pop(key)
            if "name" in options:
                out[key] = options["name"]
    for key in out:
        if key not in FIELDS:
            if key in ("methods", "columns", "hyper"):
                raise FedsmooError(f"{where}: {key!r} is of a grid of runs, not of one: 'fedsmoo sweep FILE' trains it")
            raise FedsmooError(f"{where}: {unknown('setting', key, FIELDS)}")
    return out
