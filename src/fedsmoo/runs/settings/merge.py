"""One config of what a file or a mapping, further settings, and options by their own names say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from fedsmoo.algorithms.choices import CHOICES, choice_class
from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import brief, unknown_setting
from fedsmoo.core.hyper.options import convert, kinds, read_hyper_parameter, read_options
from fedsmoo.models import MODELS, model_options
from fedsmoo.runs.build import algorithm_class, make_algorithm
from fedsmoo.runs.config import FIELDS, Config, changed_settings
from fedsmoo.runs.division import cut_cohort, for_other_partition, refuse_unused_options, resolve_division
from fedsmoo.runs.origin.objects import refuse_objects
from fedsmoo.runs.origin.user_files import kind_of_default, own_options
from fedsmoo.runs.settings.fields import BROUGHT, refuse_twice
from fedsmoo.runs.settings.toml import named_tables, naming_file, read_toml

Source = Config | Mapping[str, Any] | str | PathLike[str] | None  # the path is that of a TOML file


def make_config(
    config: Source = None,
    settings: Mapping[str, Any] | None = None,
    untyped: Callable[[Any], Any] = lambda value: value,
) -> Config:
    """Return the config of a run: what ``config`` says, overridden by ``settings``, with its division resolved.

    Args:
        config: a ``Config``, a mapping, or the path of a TOML file.
        settings: any setting by its name, or a hyper-parameter of the method or model by its own.
        untyped: applied to options of a user's own model, which declares no types for them.

    Raises:
        FedsmooError: if a setting is unknown, wrong, contradicts another, or would change nothing.
    """
    merged, said, chosen = merge(config, settings or {}, untyped)
    refuse_objects(merged, "this config")
    resolved = resolve_division(schedules_as_text(merged), said)
    refuse_unused_options(resolved, chosen)
    return cut_cohort(resolved, said)


def merge(
    config: Source, settings: Mapping[str, Any], untyped: Callable[[Any], Any]
) -> tuple[Config, set[str], set[str]]:
    """Return a config with settings over it, the names of those that either says, and of those that somebody chose."""
    if isinstance(config, Config) and not settings:
        return config, {*changed_settings(config)}, {*changed_settings(config)}
    given = {n: v for n, v in settings.items() if n in FIELDS}
    values = without_overruled(config, given)
    if isinstance(config, str | PathLike) and values.get("algorithm_options"):
        with naming_file(str(config)):  # where an option of the method that is wrong stands
            make_algorithm(str({**given, **values}.get("algorithm", Config.algorithm)), values["algorithm_options"])
    # Run folders write every setting down: what a file leaves at its default is nobody's choice.
    chosen = {n for n, v in values.items() if v != FIELDS[n].default} | {*settings}
    values |= given
    own = {n: v for n, v in settings.items() if n not in FIELDS}
    return Config(**add_options(values, own, untyped)), {*values, *settings}, chosen


def without_overruled(config: Source, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config that hold beside those ``given``: options, and numbers, of other names do not."""
    values = settings_of(config)
    named = {kind: getattr(config, kind) for kind in BROUGHT} if isinstance(config, Config) else values
    for kind in (k for k in BROUGHT if given.get(k) is not None):
        if str(given[kind]).lower() != str(named.get(kind, given[kind])).lower():
            values.pop(f"{kind}_options", None)  # they belong to what the config names, if it names anything
    if given.get("partition") is not None:  # the config's numbers belong to its own partition
        values = for_other_partition(values, str(given["partition"]))
    return values


def settings_of(config: Source) -> dict[str, Any]:
    """Return the settings that a config, a mapping or a TOML file holds, by name."""
    if config is None:
        return {}
    if isinstance(config, Config):
        return changed_settings(config)
    if isinstance(config, Mapping):
        return named_tables(dict(config), "config")
    if isinstance(config, str | PathLike):
        return read_toml(Path(config))
    raise FedsmooError(f"config is {brief(config)}, but must be a Config, a mapping, or the path of a TOML file")


def schedules_as_text(config: Config) -> Config:
    """Return the config with schedules that are tables, as TOML files have them, as the text that stands for them."""
    kinds_of = {n: getattr(config, f"{n}_options") for n in ("algorithm", *CHOICES)}
    if not any(isinstance(v, Mapping) for options in kinds_of.values() for v in options.values()):
        return config
    changes = {}
    for kind, cls in classes_of({n: getattr(config, n) for n in kinds_of}).items():
        tables = {n: v for n, v in kinds_of[kind].items() if n in kinds(cls) and isinstance(v, Mapping)}
        changes[f"{kind}_options"] = {**kinds_of[kind], **read_options(cls, tables)}
    return config.replace(**changes)


def add_options(
    values: dict[str, Any], options: Mapping[str, Any], untyped: Callable[[Any], Any], objects: Collection[str] = ()
) -> dict[str, Any]:
    """Return settings with options added to those of the method, the model, the loss, ..., whichever has one so named.

    ``loss.gamma`` says whose option it is, where several have one of that name. ``objects`` have no options.
    """
    named = {kind: "" if kind in objects else values.get(kind, FIELDS[kind].default) or "" for kind in BROUGHT}
    if not options or not all(isinstance(name, str) for name in named.values()):
        return values  # a name that is no text is refused with the other settings
    classes = classes_of(named)
    known = {kind: {f.name: f.default for f in dataclasses.fields(cls)} for kind, cls in classes.items()}
    known |= own_options(named)
    if named["model"] in MODELS:
        known["model"] = model_options(named["model"])
    found: dict[str, dict[str, Any]] = {}
    for key, value in options.items():
        kind, name = owner_of_option(key, known, named)
        ours = kind in classes
        of = kinds(classes[kind]).get(name) if ours else kind_of_default(known.get(kind, {}).get(name))
        plain, read = (value, read_hyper_parameter) if ours else (untyped(value), convert)
        mine = {name: plain if of is None else read(name, value, *of)}
        refuse_twice(kind, found.setdefault(f"{kind}_options", {}), mine)
        found[f"{kind}_options"] |= mine
    return values | {n: {**(values.get(n) or {}), **own} for n, own in found.items()}


def owner_of_option(key: str, known: Mapping[str, Mapping[str, Any]], named: Mapping[str, str]) -> tuple[str, str]:
    """Return whose option a key is, such as ``"model"``, and its name there; refuse one that nobody or several have.

    A model from a file may take any (``**options``): what nobody else has is its.
    """
    kind, dot, name = key.partition(".")
    if dot and kind in named:
        return kind, name
    having = [kind for kind, options in known.items() if key in options]
    if len(having) > 1:
        both = " and ".join(f"{kind}.{key}" for kind in having)
        raise FedsmooError(f"{key}: several have an option of that name; write which one: {both}")
    if not having and named["model"] in ("", *MODELS):
        owners = {(k != "algorithm") * f"{k} " + named[k]: options for k, options in known.items()}
        raise unknown_setting(key, owners, [n for n in FIELDS if not n.endswith("_options")])
    return having[0] if having else "model", key


def classes_of(named: Mapping[str, str]) -> dict[str, Any]:
    """Return the classes of a method and of what is put around it, by the setting that names each."""
    classes: dict[str, Any] = {kind: choice_class(kind, named[kind]) for kind in CHOICES}
    classes = {"algorithm": algorithm_class(named["algorithm"]) if named["algorithm"] else None} | classes
    return {kind: cls for kind, cls in classes.items() if cls is not None}
