"""The settings of a federation: those of any run, and a few that only a network needs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.core.user_code import is_in_file
from fedsmoo.data.own import is_own
from fedsmoo.deploy.combine import KINDS
from fedsmoo.deploy.store import checked_name
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.division import refuse_unused_options, resolve_division
from fedsmoo.runs.settings.fields import AROUND, BROUGHT, checked_setting, setting

LOST = ("refuse", "restart")
BOUND = ("bind", "ignore")
APPS = "give it to client_app and server_app"
# What to do instead of naming a file of code.
INSTEAD = {
    "algorithm": APPS,
    "model": APPS,
    "loss": APPS,
    **dict.fromkeys(AROUND, "put it around the method that you give to client_app and server_app"),
    "dataset": "give data to client_app and test to server_app",
    "partition": "give data to client_app, or make a split file with 'fedsmoo data split'",
    "sampling": "only the server can, from its own settings",
}

# What a federation would do otherwise than it says.
SIMULATED = {
    **dict.fromkeys(
        ("probe", "target", "exact", "chunk", "table", "samples_in"), "a federation does not look at it, leave it out"
    ),
    "privacy": "its noise follows from the seed, which clients know and could take away again",
    "compression": "a federation sends vectors whole, or rounded with wire",
    "attack": "a federation has attackers of its own",
    "holdout": "the clients of a federation hold out samples themselves",
}


@dataclass(frozen=True)
class Federation:
    """How a federation is run, beside what it trains."""

    name: str = setting("federation", "names the federation; a server started again under it goes on")
    server_folder: str = setting("", "where the server keeps its state (default: a folder in FLWR_HOME)")
    state_folder: str = setting("", "where clients keep their vectors; a node's own setting goes first")
    min_replies: int = setting(0, "good replies below which a round is skipped (0: half of those asked)")
    norm_bound: float = setting(100.0, "a reply this many times larger than is usual is left out (0: never)")
    max_update: float = setting(
        0.0, "norm of a model's change above which a reply is left out (0: by norm-bound alone)"
    )
    max_samples: int = setting(1_000_000, "samples above which a client is not let in", within="(0, inf)")
    max_share: float = setting(0.5, "most that one of three or more clients counts for in a mean", within="(0, 1]")
    aggregate: str = setting("mean", "what is made of the replies", KINDS)
    trim: float = setting(0.2, "share of values that trimmed-mean leaves out at each end", within="[0, 0.5)")
    client_keys: str = setting("bind", "a client is known by its node's key, or by what it says alone", BOUND)
    forget: str = setting("", "clients, such as '1,2', whose keys and samples are taken anew in this run")
    keep_states: int = setting(3, "states of the server that are kept", within="(0, inf)")
    round_timeout: float = setting(600.0, "seconds to wait for the replies of a round")
    wait: float = setting(600.0, "seconds to wait for the first cohort to be there")
    lost_state: str = setting("refuse", "a client that lost its vectors: leave it out, or let it start anew", LOST)

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            object.__setattr__(self, name, checked_setting(type(self), name, value))
        checked_name(self.name)
        for name in ("round_timeout", "wait"):
            if not getattr(self, name) > 0:
                raise FedsmooError(f"{name.replace('_', '-')} is {getattr(self, name)}, but must be above 0")
        if self.min_replies < 0 or self.norm_bound < 0 or self.max_update < 0:
            raise FedsmooError("min-replies, norm-bound and max-update must not be negative")
        if self.aggregate != "trimmed-mean" and self.trim != type(self).trim:
            raise FedsmooError(f"trim is {self.trim}, but aggregate is {self.aggregate!r}: it is of trimmed-mean alone")
        self.forgotten()

    def forgotten(self) -> list[int]:
        """Return the clients of ``forget``."""
        words = [word.strip() for word in self.forget.split(",") if word.strip()]
        if not all(word.isascii() and word.isdigit() for word in words):
            raise FedsmooError(f"forget is {self.forget!r}, but must be numbers of clients, such as '1,2'")
        return [int(word) for word in words]


def home() -> Path:
    """Return the folder in which Flower, and so we, keep things."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


def server_folder(federation: Federation) -> Path:
    return Path(federation.server_folder or home() / "fedsmoo" / federation.name)


def state_folder(node: Mapping[str, Any], run: Mapping[str, Any]) -> Path:
    """Return where a node keeps clients' vectors: its own setting, else the run's, else a folder in ``FLWR_HOME``."""
    return Path(str(node.get("state-folder") or run.get("state-folder") or home() / "fedsmoo-clients"))


def parse(values: Mapping[str, Any]) -> tuple[Config, Federation]:
    """Read the settings in an app's run config: ``local-epochs = 1``, ``algorithm-options.r = 0.1``; "" is not given.

    >>> config, federation = parse({"algorithm": "feddyn", "algorithm-options.beta": 5.0, "min-replies": 2})
    >>> config.algorithm_options, federation.min_replies
    ({'beta': 5.0}, 2)
    """
    settings, extra = split_settings(values)
    config = Config(**settings)
    refuse_code(config, BROUGHT[:-1])  # cohorts are drawn on the server, whose own file it is
    for name, why in SIMULATED.items():
        if getattr(config, name) != FIELDS[name].default:
            raise FedsmooError(f"{name} is for simulated runs: {why}")
    if config.sampling in ("weighted", "power_of_choice"):
        raise FedsmooError(f"sampling {config.sampling!r} is for simulated runs: a server knows no client beforehand")
    if config.split is None:
        config = resolve_division(config, settings)
        refuse_unused_options(config, settings)
        if config.partition == "natural" and "clients" not in settings:  # the server counts on it, and has no data
            raise FedsmooError(f"{config.dataset!r} has clients of its own: say how many there are, with clients")
    federation, asked = Federation(**extra), min(config.cohort, config.clients)
    if federation.min_replies > asked:
        raise FedsmooError(
            f"min-replies is {federation.min_replies}, but a round asks {asked} clients: none would count"
        )
    return config, federation


def split_settings(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a run and those of a federation, by name; refuse unknown ones, and one given twice."""
    own = {f.name for f in dataclasses.fields(Federation)}
    settings: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in values.items():
        if value == "":
            continue
        same = next(k for k in values if k.replace("-", "_") == key.replace("-", "_") and values[k] != "")
        if values[same] != value:
            raise FedsmooError(f"{same} and {key} are one setting, given twice: choose one")
        name, _, option = key.partition(".")
        name = name.replace("-", "_")
        if name in own and not option:
            extra[name] = value
        elif name in FIELDS and option:
            settings.setdefault(name, {})[option.replace("-", "_")] = value
        elif name in FIELDS:
            settings[name] = value
        else:
            raise unknown("setting in the app's config", key, [n.replace("_", "-") for n in [*FIELDS, *own]])
    return settings, extra


def to_json(config: Config) -> str:
    """Return a config as it travels to clients; how cohorts are drawn is for the server alone to know."""
    plain = config.replace(sampling=FIELDS["sampling"].default, sampling_options={})
    config = plain if is_in_file(config.sampling) else config
    return json.dumps({k: v for k, v in config.to_dict().items() if v is not None})


def from_json(text: str) -> Config:
    """Read a config that came from the server; it may name what is installed, but not point at files to be run."""
    config = Config(**json.loads(text))
    refuse_code(config, BROUGHT)
    return config


def refuse_code(config: Config, kinds: Sequence[str]) -> None:
    """Refuse settings that point at files of code: clients run none that a server names."""
    for kind in kinds:
        if is_own(config.dataset) if kind == "dataset" else is_in_file(getattr(config, kind)):
            raise FedsmooError(f"a federation cannot take its {kind} from a file: {INSTEAD[kind]}")
