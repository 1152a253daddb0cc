"""Command-line flags derived from the settings: one flag per field of ``Config``, help beside it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.core.algorithm import kinds
from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.runs.build import algorithm_class
from fedsmoo.runs.config import FIELDS, Config, converted, read_toml
from fedsmoo.runs.division import refuse_unused_options, resolve_division

PANELS = {"what": "What is trained", "data": "Data and clients", "training": "Training", "machine": "Machine"}


def with_settings(command: Callable[..., Any], leave_out: Sequence[str] = ()) -> Callable[..., Any]:
    """The command with one flag per setting; those that were given arrive together as ``flags``."""
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
    """One flag. Values are taken as text and checked by ``Config``, so that its one-line errors serve here too."""
    meta = spec.metadata
    text = meta["help"] + (f" [{' | '.join(meta['choices'])}]" if meta["choices"] else "")
    if spec.default is not None:
        text += f" [default: {spec.default}]"
    option = typer.Option(
        "--" + spec.name.replace("_", "-"),
        help=text,
        show_default=False,
        metavar="VALUE",
        rich_help_panel=PANELS[meta["group"]],
    )
    return inspect.Parameter(
        spec.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML file with settings; flags override it.", show_default=False)
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, or a hyper-parameter of the method or model."),
]


def gather(file: Path | None, sets: Sequence[str] | None, flags: dict[str, Any]) -> Config:
    """The config that a file, flags and ``--set`` describe, the later winning."""
    values = read_toml(file) if file is not None else {}
    for kind in ("algorithm", "model"):
        named = flags.get(kind)
        if named is not None and named.lower() != str(values.get(kind, "")).lower():
            values.pop(f"{kind}_options", None)  # they belong to the file's method, or model
    refuse_two_words(flags, sets or ())
    if flags.get("partition") is not None:  # the file's numbers belong to its own partition
        kept = {"dirichlet": "u", "pathological": "c"}.get(flags["partition"])  # dirichlet-0.6 says its own
        values = {name: value for name, value in values.items() if name not in ("u", "c") or name == kept}
    words = {word.partition("=")[0] for word in sets or ()}
    # Run folders write every setting down: what a file leaves at its default is nobody's choice.
    chosen = {n for n, v in values.items() if v != FIELDS[n].default} | {*flags} | words
    values.update(flags)
    config = resolve_division(assign(Config(**values), sets or ()), {*values, *words})
    refuse_unused_options(config, chosen)
    return config


def refuse_two_words(flags: Mapping[str, Any], sets: Sequence[str]) -> None:
    """Refuse a setting that is given twice, by a flag and ``--set`` or by two of these, with different values."""
    said = {name: f"--{name.replace('_', '-')} {value}" for name, value in flags.items()}
    values = {name: str(value) for name, value in flags.items()}
    for word in sets:
        key, _, value = word.partition("=")
        if values.get(key, value) != value:
            raise FedsmooError(f"{key} is given twice, as {said[key]} and as --set {word}: choose one")
        said[key], values[key] = f"--set {word}", value


def assign(config: Config, sets: Sequence[str]) -> Config:
    """``KEY=VALUE`` words applied to a config: settings by name, else hyper-parameters of the method or model."""
    from fedsmoo.models import MODELS, model_options

    for word in sets:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise FedsmooError(f"--set {word!r} must be KEY=VALUE, such as --set lr=0.05")
        if key in FIELDS and not key.endswith("_options"):
            config = config.replace(**{key: value})
            continue
        cls: Any = algorithm_class(config.algorithm)
        hyper, kind = [f.name for f in dataclasses.fields(cls)], kinds(cls)
        options = model_options(config.model) if config.model in MODELS else {}
        if key in hyper:
            value = converted(key, value, *kind[key]) if key in kind else value
            config = config.replace(algorithm_options={**config.algorithm_options, key: value})
        elif key in options:
            number = converted(key, value, type(options[key]), optional=False)
            config = config.replace(model_options={**config.model_options, key: number})
        elif config.model not in MODELS:
            config = config.replace(model_options={**config.model_options, key: plain(value)})
        else:
            raise unknown("setting", key, [n for n in (*FIELDS, *hyper, *options) if not n.endswith("_options")])
    return config


def plain(text: str) -> Any:
    """A word as the number or truth value it spells, else as text: a user's own model says no types.

    >>> [plain(t) for t in ("3", "0.5", "true", "relu")]
    [3, 0.5, True, 'relu']
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
