"""Logging to what people already use: TensorBoard, Weights & Biases, MLflow, each only when asked for and installed."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import as_word, brief, first_line, unknown
from fedsmoo.engines.distributed.launcher import world
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import Record
from fedsmoo.runs.storage.names import CONFIG, METRICS, MODEL, SUMMARY


class Tracker(Protocol):
    """Where a run's numbers are logged besides its folder."""

    def log(self, values: dict[str, float], step: int) -> None: ...
    def summary(self, summary: dict[str, Any]) -> None: ...
    def files(self, paths: Sequence[Path]) -> None: ...
    def close(self) -> None: ...


def logged_numbers(record: Record) -> dict[str, float]:
    """Return the plain numbers of a round's record, by name."""
    said = {n: v for n, v in record.numbers().items() if n not in ("round", "accuracy")}  # test_accuracy says it, too
    return {n: float(v) for n, v in {**said, **record.probes}.items() if v is not None}


def summary_numbers(summary: dict[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in summary.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def flat_settings(config: Config) -> dict[str, Any]:
    """Return settings as a flat dictionary, options of the method and model with a dot."""
    out: dict[str, Any] = {}
    for key, value in config.to_dict().items():
        if isinstance(value, dict):
            out.update({f"{key.removesuffix('_options')}.{k}": v for k, v in value.items()})
        else:
            out[key] = value
    return out


def import_optional(module: str, package: str) -> Any:
    """Import an optional module; a ``FedsmooError`` says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise FedsmooError(
            f"--track {package} needs the package {package}: install it with 'pip install {package}'"
        ) from e


class TensorBoard:
    """Event files under ``RUN/tensorboard``; a resumed run hides the rounds that it does again."""

    def __init__(self, config: Config, folder: Path, label: str, done: int) -> None:
        import_optional("tensorboard", "tensorboard")
        writer = import_optional("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self.writer = writer(str(folder / "tensorboard"), purge_step=done + 1 if done else None)
        self.writer.add_text("config", "\n".join(f"    {k} = {v}" for k, v in flat_settings(config).items()))

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def summary(self, summary: dict[str, Any]) -> None:
        for name, value in summary_numbers(summary).items():
            self.writer.add_scalar(f"summary/{name}", value, summary["rounds"])

    def files(self, paths: Sequence[Path]) -> None:
        """Name the files, which lie beside the events: TensorBoard keeps none itself."""
        self.writer.add_text("files", "\n".join(f"    {path.name}" for path in paths))

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A Weights & Biases run; ``WANDB_MODE=offline`` keeps it on this machine, under the run's folder."""

    def __init__(self, config: Config, folder: Path, label: str, done: int) -> None:
        wandb = import_optional("wandb", "wandb")
        ident = folder / "wandb-id.txt"
        name = ident.read_text().strip() if ident.is_file() else uuid.uuid4().hex[:12]
        self.run = wandb.init(
            project="fedsmoo",
            name=folder.name,
            dir=str(folder),
            id=name,
            resume="allow",
            config={**flat_settings(config), "label": label},
            settings=wandb.Settings(silent=True),
        )
        ident.write_text(name)

    @staticmethod
    def ready() -> None:
        """Log in, which asks at a terminal and else refuses, unless everything stays on this machine."""
        wandb = import_optional("wandb", "wandb")
        if os.environ.get("WANDB_MODE", "online") not in ("online", "shared"):
            return
        try:
            wandb.login()
        except Exception as e:
            raise FedsmooError(
                f"--track wandb cannot log in: {first_line(e).rstrip('.')}. Do so with 'wandb login', or keep the "
                "numbers on this machine with WANDB_MODE=offline"
            ) from e

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def summary(self, summary: dict[str, Any]) -> None:
        self.run.summary.update(summary_numbers(summary))

    def files(self, paths: Sequence[Path]) -> None:
        artifact = import_optional("wandb", "wandb").Artifact(f"run-{self.run.id}", type="model")
        for path in paths:
            artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """An MLflow run, at ``MLFLOW_TRACKING_URI`` or wherever MLflow keeps runs by default."""

    def __init__(self, config: Config, folder: Path, label: str, done: int) -> None:
        self.mlflow = import_optional("mlflow", "mlflow")
        ident = folder / "mlflow-id.txt"
        self.mlflow.set_experiment("fedsmoo")
        if ident.is_file():
            self.run = self.mlflow.start_run(run_id=ident.read_text().strip())
            return
        self.run = self.mlflow.start_run(run_name=folder.name, tags={"algorithm": label})
        ident.write_text(self.run.info.run_id)
        self.mlflow.log_params(flat_settings(config))

    def log(self, values: dict[str, float], step: int) -> None:
        self.mlflow.log_metrics(values, step=step)

    def summary(self, summary: dict[str, Any]) -> None:
        self.mlflow.log_metrics({f"final_{k}": v for k, v in summary_numbers(summary).items()})

    def files(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self.mlflow.log_artifact(str(path))

    def close(self) -> None:
        self.mlflow.end_run()


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
CLIENTS = "clients"  # among trackers: a curve for each client besides
ARTEFACTS = (CONFIG, METRICS, SUMMARY, MODEL)


class AllTrackers:
    """Several trackers, or none, as one."""

    def __init__(self, each: Sequence[Tracker], folder: Path, by_client: bool = False) -> None:
        self.each, self.folder, self.by_client = each, folder, by_client

    def round(self, record: Record, clients: Callable[[], dict[str, float]] = dict) -> None:
        """Log a round; ``clients`` measures how each client is served, and is called where that was asked for."""
        values = logged_numbers(record)
        if self.by_client and record.evaluated:
            values |= clients()
        for tracker in self.each:
            tracker.log(values, record.round)

    def summary(self, summary: dict[str, Any]) -> None:
        """Log what a run came to, and the files that hold it."""
        paths = [self.folder / name for name in ARTEFACTS if (self.folder / name).is_file()]
        for tracker in self.each:
            tracker.summary(summary)
            tracker.files(paths)


def tracker_class(name: str) -> Any:
    """Return a tracker's class by its name."""
    if name not in TRACKERS:
        raise unknown("tracker", name, (*TRACKERS, CLIENTS))
    return TRACKERS[name]


def refuse_unknown_trackers(names: Sequence[str]) -> None:
    """Refuse an unknown tracker, and one that needs a login first, before a run has a folder."""
    if isinstance(names, str):  # whose letters would be names
        raise FedsmooError(f"track is {names!r}, but must be a list: write [{names!r}]")
    if not isinstance(names, list | tuple):
        raise FedsmooError(f"track is {brief(names)}, but must be a list, such as ['tensorboard']")
    if CLIENTS in names and len(names) == 1:
        raise FedsmooError("track clients: curves of clients need a tracker to go to: tensorboard, wandb or mlflow")
    if CLIENTS in names and world() > 1:
        raise FedsmooError("track clients: clients are measured in a run of one process only")
    for kind in [tracker_class(name) for name in names if name != CLIENTS]:
        if hasattr(kind, "ready"):
            kind.ready()


def open_tracker(name: str, config: Config, folder: Path, label: str, done: int) -> Tracker:
    """Open a tracker by name; whatever its own client raises becomes a ``FedsmooError`` of one line."""
    try:
        return tracker_class(name)(config, folder, label, done)
    except FedsmooError:
        raise
    except Exception as e:
        raise FedsmooError(
            f"--track {name} cannot be opened: {type(e).__name__}: {first_line(e).rstrip('.')}. The run can go on "
            f"without it, or once it can be: fedsmoo resume {as_word(folder)}"
        ) from e


@contextmanager
def trackers(names: Sequence[str], config: Config, folder: Path, label: str, done: int = 0) -> Iterator[AllTrackers]:
    """Open the trackers with these names while the block runs; ``done`` rounds were logged before."""
    with ExitStack() as stack:
        each = []
        for name in (name for name in names if name != CLIENTS):
            each.append(open_tracker(name, config, folder, label, done))
            stack.callback(each[-1].close)
        yield AllTrackers(each, folder, CLIENTS in names)
