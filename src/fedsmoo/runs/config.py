"""The settings of a run: a dataclass with help beside each field, from which the command line derives."""

from __future__ import annotations

import copy
import dataclasses
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from fedsmoo.core.errors import FedsmooError, Named, unknown
from fedsmoo.core.hyper.options import converted, refuse_outside
from fedsmoo.core.hyper.schedule import Schedule
from fedsmoo.core.user_code import is_in_file
from fedsmoo.data.names import has_natural_clients

WIRES = ("exact", "fp16", "int8")
LARGEST = 2**63 - 1  # whole number of a setting
DIVISION = ("clients", "partition", "u", "c", "replacement", "refill")  # what a split file fixes
# The first and the last line of the config that a run keeps: one without its end was cut.
FIRST, LAST = "# The settings of a run, whole if its last line is there.", "# The end of the settings."
OWN, SAMPLINGS = "path/to/file.py", ("uniform", "bernoulli", "weighted", "round_robin", "power_of_choice")
# What a user may bring in a file, each beside a setting with its options: algorithm, algorithm_options.
AROUND = ("local_optimizer", "local_schedule", "privacy", "compression", "attack")
BROUGHT = ("algorithm", "model", "dataset", "partition", "loss", *AROUND, "sampling")


class LostSettings(FedsmooError):
    """A config file is missing, empty or cut: that never means the defaults."""


def setting(
    default: Any,
    help: str,
    choices: tuple[str, ...] = (),
    group: str = "training",
    within: str = "",
    free: tuple[str, ...] = (),
    quiet: bool = False,
) -> Any:
    """Declare a field: its meaning, the words or the interval it may take, and the panel of ``--help`` it is listed in.

    ``free`` names what may differ in it: a ``run``, which is the same whatever it is; the runs of one ``batch``; the
    runs of one ``line`` of a table or a page, which shows their mean. A ``quiet`` setting is written into files only
    where it is not the default, so that files of before and after there was one agree.
    """
    about = {"help": help, "choices": choices, "group": group, "within": within, "free": free, "quiet": quiet}
    return field(default=default, metadata=about)


def around(help: str, names: str) -> Any:
    """Declare what may be put around any method; the first of the names is the method as it is."""
    words = tuple(names.split())
    return setting(words[0], f"{help}: a name, or {OWN}:Class", words, quiet=True)


def options_of(what: str, group: str = "training") -> Any:
    """Declare the options of something that another setting names; runs that differ in them may share a batch."""
    return setting(None, f"options of {what}", group=group, free=("batch",), quiet=True)


@dataclass(frozen=True)
class Training(Named):
    """The numbers of a run; what it trains, and on what, are objects beside it."""

    rounds: int = setting(100, "communication rounds", within="(0, inf)")
    cohort: int = setting(10, "clients in a round (n)", within="(0, inf)")
    sampling: str = setting("uniform", f"how a cohort is drawn: a name, or {OWN}:function", SAMPLINGS)
    local_epochs: int | None = setting(None, "passes over a client's samples in a round (default 5)", within="(0, inf)")
    local_steps: int | None = setting(None, "local steps in a round, instead of local_epochs", within="(0, inf)")
    batch_size: int = setting(50, "samples in a minibatch", within="(0, inf)")
    lr: float = setting(0.1, "local learning rate", within="(0, inf)", free=("batch",))
    lr_decay: float = setting(
        0.998, "factor of the local learning rate after every round", within="(0, 1]", free=("batch",)
    )
    weight_decay: float = setting(1e-3, "weight decay of a local step", within="[0, inf)", free=("batch",))
    clip: float | None = setting(10.0, "norm at which a local direction is clipped; none: never", within="(0, inf]")
    clip_scope: str = setting("all", "released: add the proximal term after the clip", ("all", "released"))
    local_optimizer: str = around("what a client makes of its directions", "sgd momentum nesterov adam adamw")
    local_schedule: str = around("learning rate within a round", "constant linear cosine cyclic")
    privacy: str = around("what hides a client: bounded changes and noise", "off client")
    compression: str = around("what clients send of their vectors", "off topk randomk qsgd sign")
    attack: str = around("what attackers among the clients do", "off sign-flip scaled gaussian label-flip alie")
    weighted: bool = setting(False, "weight the mean by the clients' sample counts")
    relaxed: float = setting(
        0.0, "relaxed initialisation (FedInit) of any method; 0: off", within="[0, inf)", free=("batch",)
    )
    wire: str = setting("exact", "numbers that travel: exact, or rounded with error feedback", choices=WIRES)
    augment: bool | None = setting(None, "random flips and crops (default: where the data set's images allow)")
    seed: int = setting(0, "seed of all random streams", within="[0, inf)", free=("batch", "line"))
    eval_every: int = setting(1, "rounds between evaluations on the test part", within="(0, inf)", free=("line",))
    holdout: float = setting(0.0, "share of each client's samples kept for validation", group="data", within="[0, 1)")
    target: float | None = setting(
        None, "test accuracy (0..1) whose first round, bytes and seconds are reported", free=("run", "batch", "line")
    )
    probe: str | None = setting(
        None, "measure every so many rounds, such as hessian:50,sharpness:10,consistency:10", free=("run", "line")
    )

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, checked(type(self), f.name, getattr(self, f.name)))
        if self.local_epochs is not None and self.local_steps is not None:
            raise FedsmooError("both local_epochs and local_steps are given: choose one")
        refuse_no_accuracy(self.target)

    @property
    def epochs(self) -> int | None:
        """Local passes in force: 5, as in the paper, if neither they nor steps are given."""
        return (self.local_epochs or 5) if self.local_steps is None else None


@dataclass(frozen=True)
class Config(Training):
    """Everything that defines a run, in plain values: what a TOML file holds and a run folder keeps."""

    algorithm: str = setting("fedsmoo", "method: a name, or path/to/file.py:Class", group="what")
    algorithm_options: dict[str, Any] = setting(None, "hyper-parameters of the method", group="what", free=("batch",))
    model: str = setting("mlp", "model: a name, or path/to/file.py:factory", group="what")
    model_options: dict[str, Any] = setting(None, "options of the model", group="what")
    loss: str = setting("cross_entropy", f"loss of a sample: a name, or {OWN}:function", group="what", quiet=True)
    loss_options: dict[str, Any] = setting(None, "options of a loss of your own", group="what", quiet=True)
    dataset: str = setting("digits", f"data set: a name, text:PATH, or {OWN}:function", group="data")
    dataset_options: dict[str, Any] = setting(None, "options of a data set of your own", group="data", quiet=True)
    data: str | None = setting(
        None, "folder or .npz that holds the data set (default: the cache)", group="data", free=("run", "line")
    )
    partition: str = setting(
        None,
        f"how samples are divided: iid, dirichlet, pathological, natural, or {OWN}:function (default: natural for "
        "text and synthetic, which have clients of their own, else dirichlet)",
        group="data",
        free=("batch",),
    )
    partition_options: dict[str, Any] = options_of("a partition of your own", group="data")
    local_optimizer_options: dict[str, Any] = options_of("the local optimiser")
    local_schedule_options: dict[str, Any] = options_of("the learning rate within a round")
    privacy_options: dict[str, Any] = options_of("what hides a client")
    compression_options: dict[str, Any] = options_of("the compression")
    attack_options: dict[str, Any] = options_of("the attack")
    sampling_options: dict[str, Any] = setting(None, "options of a sampling of your own", group="training", quiet=True)
    u: float = setting(
        0.1, "dirichlet: concentration; smaller is more heterogeneous", group="data", within="(0, inf)", free=("batch",)
    )
    c: int = setting(3, "pathological: classes per client", group="data", within="(0, inf)", free=("batch",))
    replacement: bool = setting(True, "clients draw with replacement, as in the paper; iid: if given", group="data")
    refill: bool = setting(
        False, "with replacement: deal classes from refilled decks, as released code does", group="data"
    )
    split: str | None = setting(None, "a split file instead of a partition rule", group="data", free=("batch",))
    clients: int = setting(100, "clients in all (m)", group="data", within="(0, inf)")
    engine: str = setting(
        "auto", "who runs the steps", ("auto", "serial", "batched", "vmap"), group="machine", free=("run", "line")
    )
    exact: bool = setting(
        False, "same bits with any number of ranks (torchrun), as serial; slower", group="machine", free=("run", "line")
    )
    chunk: int | None = setting(
        None,
        "clients trained at once (default: what half of the device's memory holds)",
        group="machine",
        within="(0, inf)",
        free=("run", "line"),
    )
    table: str = setting(
        "auto", "where client state lives", ("auto", "device", "host", "disk"), group="machine", free=("run", "line")
    )
    device: str = setting("auto", "cpu, cuda, cuda:1, or auto", group="machine", free=("run", "line"))
    precision: str = setting(
        "tf32", "matrix products on a GPU", ("fp32", "tf32", "bf16"), group="machine", free=("run",)
    )
    dtype: str = setting("float32", "numbers of the vectors", ("float32", "float64"), group="machine")

    def __post_init__(self) -> None:
        if self.partition is None:  # recorded as what it comes to, so that a run's folder says who held what
            object.__setattr__(self, "partition", default_partition(self.dataset))
        super().__post_init__()

    def replace(self, **changes: Any) -> Config:
        """Return a copy with some settings changed; unknown names are refused with the nearest match."""
        for name in changes:
            if name not in FIELDS:
                raise unknown("setting", name, FIELDS)
        changed = dataclasses.replace(self, **changes)
        refuse_beyond({n: getattr(changed, n) for n in changes})
        return changed

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values; quiet ones at their defaults are left out."""
        return {n: v for n, v in dataclasses.asdict(self).items() if not FIELDS[n].metadata["quiet"] or differs(n, v)}

    def options(self) -> dict[str, Any]:
        """Return all options under one name each: those of the method as they are, others as ``model.hidden``."""
        rest = {f"{kind}.{n}": v for kind in BROUGHT[1:] for n, v in getattr(self, f"{kind}_options").items()}
        return {**self.algorithm_options, **rest}


FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Config)}


def default_partition(dataset: Any) -> str:
    """Return the partition of a data set that nobody chose one for: its own clients, where it has some."""
    return "natural" if isinstance(dataset, str) and has_natural_clients(dataset) else "dirichlet"


def free_within(what: str) -> tuple[str, ...]:
    """Return the settings in which a ``run``, the runs of a ``batch`` or of a ``line`` may differ: see `setting`."""
    return tuple(name for name, f in FIELDS.items() if what in f.metadata["free"])


def differs(name: str, value: Any) -> bool:
    """Return whether a value of a setting is not its default; no options are none."""
    return value not in ((FIELDS[name].default, {}) if name.endswith("_options") else (FIELDS[name].default,))


def refuse_no_accuracy(target: float | None) -> None:
    """Refuse a target that no accuracy reaches, such as one in per cent."""
    if target is not None and not 0 < target <= 1:
        raise FedsmooError(f"target is {target:g}, but is an accuracy between 0 and 1, such as 0.8")


def refuse_beyond(values: dict[str, Any]) -> None:
    """Refuse whole numbers that generators, tensors and SQL do not take.

    Apart from the check of every value, so that folders which hold such a number can still be read.
    """
    for name, value in values.items():
        if isinstance(value, int) and value > LARGEST:
            raise FedsmooError(f"{name} is {value}, but must be at most {LARGEST}")


@cache
def kind_of(cls: type, name: str) -> tuple[type, bool]:
    """Return the plain type of a field, and whether it may be none."""
    hint = get_type_hints(cls)[name]
    options = [t for t in get_args(hint) if t is not type(None)]
    if get_origin(hint) is not dict and options:
        return options[0], True
    return get_origin(hint) or hint, get_origin(hint) is dict


def checked(cls: type, name: str, value: Any) -> Any:
    """Return a value in its field's own type, text (from a command line) converted; ``FedsmooError`` if it is wrong."""
    kind, optional = kind_of(cls, name)
    spec = next(f for f in dataclasses.fields(cls) if f.name == name)
    if kind is dict:
        if value is not None and not isinstance(value, dict):
            raise FedsmooError(f"{name} is {value!r}, but must be a table of options")
        return {n: str(v) if isinstance(v, Schedule) else copy.deepcopy(v) for n, v in (value or {}).items()}
    value = converted(name, value, kind, optional)
    if value is not None and not (name in BROUGHT and is_in_file(value)):
        refuse_outside(name, value, spec.metadata)
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file; ``[algorithm]``, ``[model]``, ``[loss]`` may be tables with a ``name``."""
    try:
        content = path.read_bytes()
    except OSError as e:
        inside = path / "config.toml"
        hint = f"; did you mean {inside}?" if inside.is_file() else ""
        raise FedsmooError(f"cannot read the config file {path}: {e.strerror}{hint}") from e
    return named_tables(parse_toml(content, str(path)), str(path))


def parse_toml(content: bytes, where: str, errors: str = "strict") -> dict[str, Any]:
    """Return the table in a TOML file's bytes; ``FedsmooError`` if it is damaged. ``errors`` as in ``bytes.decode``."""
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
            out[f"{key}_options"] = {**beside, **{k: v for k, v in options.items() if k != "name"}}
            out.pop(key)
            if "name" in options:
                out[key] = options["name"]
    for key in out:
        if key not in FIELDS:
            raise FedsmooError(f"{where}: {unknown('setting', key, FIELDS)}")
    return out
