"""The reference: every setting, every command with its options, and every public name, from what the code declares."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import click
import typer
from cells import cell, code, table

import fedsmoo
from fedsmoo.cli import app
from fedsmoo.commands.describe import KINDS, OWN, allowed_values, entries
from fedsmoo.commands.options import flag_of
from fedsmoo.runs.config import FIELDS, Config

GROUPS = {
    "what": ("What is trained", "The method, the model, the loss, and where the weights start."),
    "data": ("Data and clients", "Which samples there are, and which client holds which."),
    "training": ("Training", "Rounds, cohorts, local steps, and what is put around a method."),
    "machine": ("Machine", "Who carries out the steps, and where. None of these is part of the method."),
}


def type_name(kind: Any) -> str:
    """Return a type in words.

    >>> type_name(int | None), type_name(dict[str, Any])
    ('whole number', 'table')
    """
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(type_name(k) for k in get_args(kind) if k is not type(None))
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "table"}
    return words.get(get_origin(kind) or kind, str(kind))


def default_of(name: str) -> str:
    """Return the default of a setting as one would type it in TOML; nothing where there is none."""
    value = FIELDS[name].default
    if value is None or value is dataclasses.MISSING or name.endswith("_options"):
        return ""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def settings_page() -> str:
    """Return the page of all settings: from the fields of `Config`."""
    hints, parts = get_type_hints(Config), [SETTINGS]
    assert {f.metadata["group"] for f in FIELDS.values()} == set(GROUPS)
    for group, (title, about) in GROUPS.items():
        rows = []
        for name, field in FIELDS.items():
            if field.metadata["group"] == group and not name.endswith("_options"):
                meaning = cell(field.metadata["help"] + allowed_values(field.metadata))
                rows.append([f"`{name}`", type_name(hints[name]), code(default_of(name)), meaning])
        parts.append(f"## {title}\n\n{about}\n\n{table(['setting', 'type', 'default', 'what it does'], rows)}")
    return "\n".join([*parts, names()])


def names() -> str:
    """Return what settings may name, with options: what ``fedsmoo list`` prints."""
    parts = [f"## What settings can name\n\nAs `fedsmoo list` prints it; the {METHODS}.\n"]
    for kind in KINDS[1:]:  # methods have pages of their own
        rows = []
        for name, line, fields in entries(kind):
            options = "<br>".join(f"`{f} = {d}` {cell(m)}".strip() for f, d, m in fields)
            rows.append([f"`{name}`", cell(line), options])
        parts.append(f"### {kind.capitalize()}\n\n{table(['name', '', 'options'], rows)}")
        if kind in OWN:
            parts.append(f"Your own: `{OWN[kind].replace(', ', '`, ', 1)}.\n" if ", " in OWN[kind] else own(OWN[kind]))
    return "\n".join(parts)


def own(text: str) -> str:
    """Return how to bring a thing of one's own: the flag in letters of code, the rest in words."""
    flag, _, rest = text.partition(" of ")
    return f"Your own: `{flag}` of {rest}.\n"


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and all below it, with their names."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))
    else:
        yield path, command


def commands_page() -> str:
    """Return the page of the command line: every command with its arguments and options."""
    parts = [COMMANDS]
    for path, command in commands(typer.main.get_command(app), ("fedsmoo",)):
        context = click.Context(command, info_name=" ".join(path))
        usage = command.get_usage(context).removeprefix("Usage: ")
        parts += [
            f"## {' '.join(path)}\n\n{plain(command.help or '')}\n\n```text\n{usage}\n```\n",
            options(command, context),
        ]
    return "\n".join(parts)


def options(command: click.Command, context: click.Context) -> str:
    """Return the table of a command's arguments and options; settings, if it takes them, are a page of their own."""
    flags = {flag_of(name) for name in FIELDS}
    settings = [p for p in command.params if p.opts[0] in flags]
    rows = []
    for parameter in command.params:
        if parameter in settings and len(settings) > 20:
            continue
        words = [*parameter.opts, *parameter.secondary_opts]
        name = parameter.make_metavar(context) if isinstance(parameter, click.Argument) else ", ".join(words)
        default = parameter.default
        shown = "" if default in (None, False, ()) or callable(default) else str(default)
        rows.append([code(name), cell(plain(getattr(parameter, "help", "") or "")), code(shown)])
    text = table(["argument or option", "what it does", "default"], rows) if rows else ""
    if len(settings) > 20:
        text += "\nEvery [setting](settings.md) is an option, too: `lr` is `--lr`, `local_steps` is `--local-steps`.\n"
    return text


def plain(text: str) -> str:
    """Return a help text without what marks it up for a terminal."""
    return re.sub(r"\\\[|\[/?(?:bold|dim)\]", lambda m: "[" if m[0] == "\\[" else "", text).replace("\b", "").strip()


# The public names by what they are for; methods have pages of their own.
SECTIONS = {
    "Run": ("simulate", "run", "resume", "sweep", "compare", "load", "Config"),
    "Look at what came out": ("Result", "Record", "RoundState", "plot", "analyse", "report"),
    "Write a method": (
        "Algorithm", "Vectors", "Round", "Around", "Schedule", "option", "derived", "norm", "unit", "stream",
    ),
    "Bring data": (
        "Dataset", "read_data", "IID", "Dirichlet", "Pathological", "ClassWise", "Quantity", "Shards", "Sizes",
        "Noise", "Rotation",
    ),
    "Errors": ("FedsmooError",),
}  # fmt: skip


def python_page() -> str:
    """Return the page of the public names, which mkdocstrings fills from docstrings."""
    methods = {c.__name__ for c in fedsmoo.ALGORITHMS.values()}
    listed = [name for names in SECTIONS.values() for name in names]
    rest = set(fedsmoo.__all__) - set(listed) - methods - {"ALGORITHMS", "Relaxed", "__version__"}
    if rest or len(set(listed)) < len(listed):
        raise SystemExit(f"website/reference.py: public names in no section, or in two: {', '.join(sorted(rest))}")
    parts = [PYTHON.format(count=len(methods))]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [f"::: fedsmoo.{name}\n" for name in names]
    return "\n".join(parts)


METHODS = "[methods](../methods/index.md) are pages of their own"
SETTINGS = """# Settings

Everything that defines a run. A setting is an option of `fedsmoo run` (`--local-steps 5`), a line of a TOML file
(`local_steps = 5`), a keyword of `fedsmoo.simulate` and `fedsmoo.run` (`local_steps=5`), and a field of
`fedsmoo.Config`. What a setting names can have options of its own: `--set r=0.05`, a table in TOML
(`algorithm = { name = "fedsmoo", r = 0.05 }`), keywords in Python.
"""
COMMANDS = """# Command line

`fedsmoo COMMAND --help` prints the same. `fedsmoo --version` prints the version, and
`fedsmoo --install-completion` teaches your shell to complete commands and options.
"""
PYTHON = """# Python

All of this is `import fedsmoo`. The {count} methods are [pages of their own](../methods/index.md);
`fedsmoo.ALGORITHMS` maps the names of the command line to their classes, and `fedsmoo.Relaxed` starts
[any method elsewhere](../algorithms/relaxed.md).
"""
