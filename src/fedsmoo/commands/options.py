"""Command-line flags derived from the settings: one flag per field of ``Config``, help beside it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.hyper.options import WORDS
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.settings.fields import kind_of

PANELS = {"what": "What is trained", "data": "Data and clients", "training": "Training", "machine": "Machine"}
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "BOOLEAN"}  # the last is that of a switch, and not printed
# Settings with too many names to print.
LISTED = {name: f"fedsmoo list {name}s" for name in ("algorithm", "model", "dataset")} | {"loss": "fedsmoo list losses"}
SWITCHES = {f"--{n.replace('_', '-')}" for n in FIELDS if kind_of(Config, n)[0] is bool}  # settings: true or false


def with_settings(command: Callable[..., Any], leave_out: Sequence[str] = ()) -> Callable[..., Any]:
    """Give a command one flag per setting; those that were given arrive together as ``flags``."""
    flags = [n for n, f in FIELDS.items() if n not in leave_out and not n.endswith("_options")]

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        given = {n: arguments.pop(n) for n in flags}
        return command(**arguments, flags={n: v for n, v in given.items() if v is not None})

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    parameters = [*own, *(_parameter(FIELDS[n]) for n in flags)]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _parameter(spec: dataclasses.Field[Any]) -> inspect.Parameter:
    """Make a flag. Values are taken as text and checked by ``Config``, so that its one-line errors serve here too."""
    option = typer.Option(
        flag_of(spec.name),
        help=setting_help(spec),
        show_default=False,
        metavar=METAVARS[kind_of(Config, spec.name)[0]],
        rich_help_panel=PANELS[spec.metadata["group"]],
        autocompletion=completer(spec.metadata["choices"]),
    )
    return inspect.Parameter(
        spec.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def completer(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what a shell asks for the words that a setting's value may be completed to."""

    def suggested(incomplete: str) -> list[str]:
        return [word for word in choices if word.startswith(incomplete)]

    return suggested


def setting_help(spec: dataclasses.Field[Any]) -> str:
    """Return what ``--help`` says of a setting: its meaning, the words it may be, and its default."""
    meta, default = spec.metadata, spec.default
    off = f"or {off_of(flag_of(spec.name))}" if flag_of(spec.name) in SWITCHES else None
    names = " | ".join(meta["choices"]) or LISTED.get(spec.name) or off
    words = f" ({names})" if names else ""
    kept = "" if default is None else f" [default: {str(default).lower() if isinstance(default, bool) else default}]"
    return (meta["help"] + words + kept).replace("[", r"\[")  # else Rich takes it for a style, and says nothing of it


def flag_of(name: str) -> str:
    """Return the flag of a setting.

    >>> flag_of("local_steps")
    '--local-steps'
    """
    return "--" + name.replace("_", "-")


def off_of(flag: str) -> str:
    """Return the flag that turns a switch off.

    >>> off_of("--weighted")
    '--no-weighted'
    """
    return f"--no-{flag.removeprefix('--')}"


def with_switches(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with a value at every switch.

    The word after a switch is its value only if it is a truth value: any other is the command's next argument.

    >>> with_switches(["--weighted", "--no-augment", "--exact", "yes", "mine.toml"])
    ['--weighted=true', '--augment=false', '--exact=yes', 'mine.toml']
    >>> with_switches(["--sampling", "weighted", "--wire", "exact"])
    ['--sampling', 'weighted', '--wire', 'exact']
    """
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":  # after this come arguments only
            return [*out, word, *rest]
        flag = f"--{word.removeprefix('--no-')}" if word.startswith("--no-") else word
        if flag not in SWITCHES:
            out.append(word)
        elif flag != word:
            out.append(f"{flag}=false")
        else:
            said = bool(rest) and rest[0].lower() in (*WORDS, "none")
            out.append(f"{flag}={rest.pop(0) if said else 'true'}")
    return out


ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML file with settings; flags override it.", show_default=False)
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, or an option of the method, model, loss, ...; may be said again.",
    ),
]


def gather_config(file: Path | None, sets: Sequence[str] | None, flags: dict[str, Any]) -> Config:
    """Return the config that a file, flags and ``--set`` describe, the later winning."""
    from fedsmoo.runs.settings.merge import make_config

    refuse_two_words(flags, sets or ())
    return make_config(file, {**flags, **dict(map(split_word, sets or ()))}, parse_word)


def split_word(word: str) -> tuple[str, str]:
    """Take ``KEY=VALUE`` apart."""
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise FedsmooError(f"--set {word!r} must be KEY=VALUE, such as --set lr=0.05")
    if key in FIELDS and key.endswith("_options"):  # tables, which a word cannot be
        raise unknown("setting", key, [name for name in FIELDS if not name.endswith("_options")])
    return key, value


def refuse_two_words(flags: Mapping[str, Any], sets: Sequence[str]) -> None:
    """Refuse a setting that is given twice, by a flag and ``--set`` or by two of these, with different values."""
    said = {name: f"--{name.replace('_', '-')} {value}" for name, value in flags.items()}
    values = {name: str(value) for name, value in flags.items()}
    for word in sets:
        key, _, value = word.partition("=")
        if values.get(key, value) != value:
            raise FedsmooError(f"{key} is given twice, as {said[key]} and as --set {word}: choose one")
        said[key], values[key] = f"--set {word}", value


def parse_word(text: str) -> Any:
    """Read a word as the number or truth value it spells, else as text: a user's own model declares no types.

    >>> [parse_word(t) for t in ("3", "0.5", "true", "relu")]
    [3, 0.5, True, 'relu']
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
