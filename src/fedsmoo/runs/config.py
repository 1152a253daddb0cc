"""The settings of a run: a dataclass with help beside each field, from which the command line derives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fedsmoo.core.errors import unknown
from fedsmoo.data.names import has_natural_clients
from fedsmoo.metrics.quantity import ACCURACY
from fedsmoo.runs.settings.fields import BROUGHT, OWN, options_of, refuse_beyond, setting
from fedsmoo.runs.settings.training import Training

RULE_OPTIONS = ("u", "c", "replacement", "refill")  # of the partitions whose options are settings
DIVISION = ("clients", "partition", *RULE_OPTIONS)  # what a split file fixes


@dataclass(frozen=True)
class Config(Training):
    """Everything that defines a run, in plain values: what a TOML file holds and a run folder keeps."""

    algorithm: str = setting("fedsmoo", "method: a name, or path/to/file.py:Class", group="what")
    algorithm_options: dict[str, Any] = setting(None, "hyper-parameters of the method", group="what", free=("batch",))
    model: str = setting("mlp", "model: a name, or path/to/file.py:factory", group="what")
    model_options: dict[str, Any] = setting(None, "options of the model", group="what")
    loss: str = setting(
        "auto", f"loss of a sample: a name, {OWN}:function, or auto: by the data's targets", group="what", quiet=True
    )
    output: str | None = setting(
        None, "which of several outputs of the model is trained: a name or a position", group="what", quiet=True
    )
    start: str | None = setting(
        None, "weights to start from: a safetensors file, or a state dict of PyTorch", group="what", quiet=True
    )
    start_skip: str | None = setting(
        None, "what is not taken from the start, such as fc.*: it begins as the seed says", group="what", quiet=True
    )
    loss_options: dict[str, Any] = setting(None, "options of the loss", group="what", quiet=True)
    dataset: str = setting("digits", f"data set: a name, text:, leaf: or table:PATH, or {OWN}:function", group="data")
    dataset_options: dict[str, Any] = setting(None, "options of a data set of your own", group="data", quiet=True)
    data: str | None = setting(
        None, "folder or .npz that holds the data set (default: the cache)", group="data", free=("run", "line")
    )
    partition: str = setting(
        None,
        "how samples are divided: iid, dirichlet, pathological, natural, classwise-0.5 and others (fedsmoo list "
        f"partitions), or {OWN}:function (default: natural for data that has clients of its own, else dirichlet)",
        group="data",
        free=("batch",),
    )
    partition_options: dict[str, Any] = options_of("the partition", group="data")
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
        "auto",
        "who runs the steps",
        ("auto", "serial", "threads", "batched", "vmap"),
        group="machine",
        free=("run", "line"),
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
    samples_in: str = setting(
        "auto",
        "where samples lie; from the host, batches are copied ahead of steps (auto: what takes over half of a GPU)",
        ("auto", "device", "host"),
        group="machine",
        free=("run", "line"),
        quiet=True,
    )
    device: str = setting("auto", "cpu, cuda, cuda:1, or auto", group="machine", free=("run", "line"))
    precision: str = setting(
        "tf32",
        "matrix products on a GPU; bf16 on some CPUs, too",
        ("fp32", "tf32", "bf16"),
        group="machine",
        free=("run",),
    )
    dtype: str = setting("float32", "numbers of the vectors", ("float32", "float64"), group="machine")

    def __post_init__(self) -> None:
        if self.partition is None:  # recorded as what it comes to, so that a run's folder says who held what
            object.__setattr__(self, "partition", default_partition(self.dataset, self.dataset_options))
        super().__post_init__()
        if self.metrics is None and ":" not in self.dataset:  # the data sets of ours have classes
            ACCURACY.refuse_target(self.target)

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults, as one would type them."""
        return f"Config({', '.join(f'{n}={v!r}' for n, v in changed_settings(self).items())})"

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
        values = ((n, as_plain(getattr(self, n))) for n in FIELDS)
        return {n: v for n, v in values if not FIELDS[n].metadata["quiet"] or differs(n, v)}

    def options(self) -> dict[str, Any]:
        """Return all options under one name each: those of the method as they are, others as ``model.hidden``."""
        rest = {f"{kind}.{n}": v for kind in BROUGHT[1:] for n, v in getattr(self, f"{kind}_options").items()}
        return {**self.algorithm_options, **rest}


@dataclass(frozen=True)
class Held:
    """Holds any value, for ``asdict`` to turn dataclasses inside it, such as schedules, into tables."""

    value: Any


def as_plain(value: Any) -> Any:
    """Return a copy of a setting as plain values, as ``dataclasses.asdict`` makes it; at once for most."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    return {} if type(value) is dict and not value else dataclasses.asdict(Held(value))["value"]


FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Config)}


def default_partition(dataset: Any, options: Any) -> str:
    """Return the partition of a data set that nobody chose one for: its own clients, where it has some."""
    named = options if isinstance(options, dict) else {}
    return "natural" if isinstance(dataset, str) and has_natural_clients(dataset, named) else "dirichlet"


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings of a config that are not at their defaults: what somebody chose."""
    plain: dict[str, Any] = {n: {} if n.endswith("_options") else f.default for n, f in FIELDS.items()}
    plain["partition"] = default_partition(config.dataset, config.dataset_options)
    return {n: v for n, v in config.to_dict().items() if v != plain[n]}


def free_within(what: str) -> tuple[str, ...]:
    """Return the settings in which a ``run``, the runs of a ``batch`` or of a ``line`` may differ: see `setting`."""
    return tuple(name for name, f in FIELDS.items() if what in f.metadata["free"])


def differs(name: str, value: Any) -> bool:
    """Return whether a value of a setting is not its default; no options are none."""
    if name == "loss" and value == "cross_entropy":  # what "auto" is wherever it is accepted
        return False
    return value not in ((FIELDS[name].default, {}) if name.endswith("_options") else (FIELDS[name].default,))
