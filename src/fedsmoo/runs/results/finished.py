"""A finished run, opened for measurements: its task, its final model and its clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedsmoo.core import Algorithm, FedsmooError, Vectors
from fedsmoo.core.errors import as_word
from fedsmoo.core.user_code import Judge, judged
from fedsmoo.data.division.holdout import hold_out
from fedsmoo.engines.devices import make_device, staged
from fedsmoo.engines.task import Task
from fedsmoo.models.buffers import cast
from fedsmoo.models.loss import make_loss
from fedsmoo.runs.build import make_algorithm, make_method, named_model
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import make_clients, with_client_inputs
from fedsmoo.runs.origin.objects import refuse_objects
from fedsmoo.runs.origin.trust import permit
from fedsmoo.runs.origin.user_files import load_data
from fedsmoo.runs.storage.checkpoint import newest
from fedsmoo.runs.storage.files import read_json, sha256_of_plain
from fedsmoo.runs.storage.names import CHECKPOINT, MODEL, SUMMARY
from fedsmoo.runs.storage.reader import read_config, read_run
from fedsmoo.runs.watch.changes import Change, changes_in, method_at


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: what its folder holds, ready to be measured."""

    path: Path
    config: Config
    task: Task
    w: Tensor
    indices: list[np.ndarray]
    judge: Judge  # of the code that it names

    def __repr__(self) -> str:
        return f"<FinishedRun: {self.path}>"

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def algorithm(self) -> Algorithm:
        """The run's method, as it was in the last round."""
        with judged(self.judge):
            method = make_algorithm(self.config.algorithm, self.config.algorithm_options)
        return method_at(method, self.changes, self.config.rounds - 1)

    @property
    def changes(self) -> list[Change]:
        """What callbacks changed on the way."""
        return changes_in(read_run(self.path).history)

    @property
    def method(self) -> Algorithm:
        """The run's method inside what other settings put around it, its schedules as they were given."""
        return make_method(self.config)

    def vectors(self) -> tuple[Vectors, dict[int, dict[str, Tensor]]]:
        """Return the server's and the clients' vectors of the newest checkpoint."""
        saved, _ = newest(self.path / CHECKPOINT)
        if saved is None:
            raise FedsmooError(f"{self.path} has no checkpoint: run with checkpoints kept to measure duals afterwards")
        server = saved.server().map(lambda v: v.to(self.w))
        return server, {i: {n: v.to(self.w) for n, v in row.items()} for i, row in saved.rows()}


def refuse_damaged_model(path: Path) -> None:
    """Raise ``FedsmooError`` if a model is not the one that the run wrote; older summaries hold no hash of it."""
    expected = read_json(path / SUMMARY).get("model_sha256")
    if expected is not None and (path / MODEL).is_file() and sha256_of_plain(path / MODEL) != expected:
        raise FedsmooError(f"{path / MODEL} is not as it was written (its SHA-256 differs)")


def open_finished(path: Path, device: str = "auto", precision: str | None = None, trust: bool = False) -> FinishedRun:
    """Open the run in a folder.

    Args:
        path: a folder that ``fedsmoo run`` finished.
        device: where to measure.
        precision: of matrix products on a GPU (default: float32).
        trust: run the code that it names although the user has not run it before.
    """
    config = read_config(path)
    refuse_objects(config, f"the run in {path}")
    judge = permit(config, f"to measure the run in {path}", trust)
    with judged(judge):
        return open_trusted(path, config, make_device(device), precision, judge)


def open_trusted(path: Path, config: Config, place: torch.device, precision: str | None, judge: Judge) -> FinishedRun:
    """Open a run whose code is the user's own."""
    data = load_data(config)
    model = named_model(config.replace(start=None, start_skip=None), data)  # what it trained has all of the start
    dtype = getattr(torch, config.dtype)
    cast(model.module, dtype)
    refuse_damaged_model(path)
    try:
        state = load_file(path / MODEL)
        w = model.flatten(state).to(place, dtype)
        model.keep(state)
    except FileNotFoundError as e:
        hint = f"the run has not finished, go on with 'fedsmoo resume {as_word(path)}'"
        raise FedsmooError(f"{path} has no {MODEL}: {hint}") from e
    except OSError as e:
        raise FedsmooError(f"{path / MODEL} cannot be read: {e}") from e
    except (SafetensorError, KeyError, RuntimeError) as e:
        raise FedsmooError(f"{path / MODEL} is not a model of this run: {e}") from e
    model.module.to(place)
    loss = make_loss(config.loss, config.loss_options, data.target)
    indices = make_clients(config, data)
    data = with_client_inputs(config, data, indices)
    host = staged(config.samples_in, data, place)
    task = Task(model, data.to(place, host), place, dtype, loss, precision=precision or "fp32", staged=host)
    if config.holdout:
        indices, _ = hold_out(indices, config.holdout, config.seed)
    return FinishedRun(path, config, task, w, indices, judge)
