"""Go on with a run that was stopped or killed, from its newest sound checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, as_path, as_word
from fedsmoo.core.user_code import judged
from fedsmoo.data.files.plain import read_plain
from fedsmoo.engines.distributed.launcher import is_writer
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import edited_files, hash_files_but_data, recorded_hashes
from fedsmoo.runs.origin.identity import config_of, differences, identity, identity_facts
from fedsmoo.runs.origin.imports import edited_imports
from fedsmoo.runs.origin.method import own_method_of_config
from fedsmoo.runs.origin.objects import refuse_objects
from fedsmoo.runs.origin.pins import machine_differences, pin_engine, use_same_threads, with_pinned_engine
from fedsmoo.runs.origin.provenance import checkpoint_facts
from fedsmoo.runs.origin.samples import refuse_other_data
from fedsmoo.runs.origin.trust import permit
from fedsmoo.runs.record import Callback, Record, refuse_wrong_arguments
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.run import Run, carry_out, serve_rank_0
from fedsmoo.runs.settings.fields import BROUGHT
from fedsmoo.runs.settings.toml import LostSettings
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.checkpoint import Checkpoint, Checkpoints, Mark, newest
from fedsmoo.runs.storage.fence import fenced_by
from fedsmoo.runs.storage.files import DiskError, read_json, reason, write_durably
from fedsmoo.runs.storage.folder import RunFolder, forget_failure, note_resumed
from fedsmoo.runs.storage.lease import Lease, leased, unless_taken
from fedsmoo.runs.storage.mend import mend, newest_about
from fedsmoo.runs.storage.names import CHECKPOINT, CONFIG, METRICS, STARTED, SUMMARY
from fedsmoo.runs.storage.reader import parse_records, read_config
from fedsmoo.runs.tracking import refuse_unknown_trackers


def resume(
    folder: str | PathLike[str],
    *,
    device: str | None = None,
    track: Sequence[str] = (),
    save_every: int | None = None,
    callback: Callback | None = None,
    stop: Callable[[], bool] | None = None,
    begun: Callable[[Run], Any] | None = None,
    trust: bool = False,
) -> Result:
    """Continue the run in a folder from its newest sound checkpoint, to the numbers it would have had without the stop.

    Args:
        folder: of a run that was stopped or killed.
        device: go on on another one.
        trust: run the code that the folder names although you have not run it before; it is yours from now on.
        track, save_every, callback, stop, begun: as of :func:`fedsmoo.run`.

    Raises:
        FedsmooError: if there is no such run, it has finished, another process is at work on it, its settings, files
            or data are not what they were, or it names code that you have not run before.
    """
    path = as_path(folder, "folder")
    use_same_threads(path)
    refuse_unknown_trackers(track)
    refuse_wrong_arguments(save_every, callback)
    config = read_settings(path)  # refuses a folder without a run before a lease is taken on it
    refuse_edited_code(path, config)
    with judged(permit(config, f"the run in {path}", trust)):
        if not is_writer():
            return serve_rank_0(load_stopped(path, device).simulation)
        with leased(path) as lease:
            return carry_out(reopen(path, device, lease=lease), track, save_every, callback, stop, begun)


def read_settings(path: Path) -> Config:
    """Read the config of a run, from its newest manifest where it is lost; ``FedsmooError`` if there is no run."""
    try:
        return read_config(path)
    except LostSettings:
        about = newest_about(path)
        if about is None:
            raise
        return config_of(about["config"])


def reopen(
    path: Path,
    device: str | None = None,
    simulation: Simulation | None = None,
    lease: Lease | None = None,
    **facts: Any,
) -> Run:
    """Open a stopped run for writing, at its newest sound checkpoint, or at its start if it has none.

    ``simulation`` is one made from the same config, at its start, that takes the place of a new one. Who goes on with
    the run, and from where, is added to what its folder notes, with further facts.
    """
    with unless_taken(lease), fenced_by(lease):
        mended = mend(path)
    with unless_taken(lease):
        old = load_stopped(path, device, simulation)
    with unless_taken(lease), fenced_by(lease):
        restore_metrics(path / METRICS, old.lines)
        folder = RunFolder.reopen(path, old.saved.metrics if old.saved else Mark(0, ""))
        forget_failure(path)
        known = identity_facts(old.config, old.simulation.setup.algorithm, old.facts)
        about = {**old.facts, "started": note_resumed(path, old.simulation, facts, known)}
    run = Run(old.config, old.simulation, folder, Checkpoints(path / CHECKPOINT, about), mended + old.notes, lease)
    if old.saved is not None:
        run.checkpoints.adopt(old.saved)
    return run


@dataclass(frozen=True)
class StoppedRun:
    """A run that was stopped, as its folder tells it; nothing was written yet."""

    config: Config
    simulation: Simulation
    saved: Checkpoint | None
    lines: bytes  # the metrics that belong to it
    facts: dict[str, Any]
    notes: list[str]


def load_stopped(path: Path, device: str | None = None, simulation: Simulation | None = None) -> StoppedRun:
    """Load the run in a folder at its newest sound checkpoint, or at its start; nothing on the disk changes.

    Raises:
        FedsmooError: if the run has finished, or its settings, files, data or checkpoints are not what they were.
    """
    config = read_config(path)
    refuse_objects(config, f"the run in {path}")
    if (path / SUMMARY).is_file():
        raise FedsmooError(
            f"the run in {path} has finished: there is nothing to resume; 'fedsmoo report {as_word(path)}' shows it"
        )
    saved, lines, notes = newest_with_metrics(path)
    pins = saved.about if saved else read_json(path / STARTED)
    old = config_of(saved.about["config"]) if saved else config
    refuse_changed(path, old, config, recorded_hashes(pins))
    simulation = simulation or assemble(with_pinned_engine(config, pins, device))
    notes += pin_engine(simulation, config, pins)
    facts = checkpoint_facts(config, simulation)
    refuse_other_data(pins, simulation.setup.task.data, path)
    if edited := edited_imports(config, pins):
        raise files_changed(path, edited)
    if saved is not None:
        if saved.about["task"] != facts["task"]:
            raise FedsmooError(f"the data or its division among clients is not what {path} was started with")
        history = parse_records(lines, str(path / METRICS))
        restore(simulation, saved, history, path)
    return StoppedRun(config, simulation, saved, lines, facts, notes + machine_differences(pins, facts))


def newest_with_metrics(path: Path) -> tuple[Checkpoint | None, bytes, list[str]]:
    """Return a run's newest sound checkpoint, if there is one, the metrics that belong to it, and notes for people."""
    metrics = read_plain(path / METRICS) or b""
    saved, notes = newest(path / CHECKPOINT, lambda s: refuse_incomplete(s, metrics, path))
    if saved is None and notes:
        raise FedsmooError(
            f"no checkpoint of {path} can be used; nothing was changed. {'; '.join(notes)}. Put the damaged files back "
            f"if there is a copy of them; else 'fedsmoo run {as_word(path / CONFIG)} --out NEW' starts the same run "
            "again"
        )
    lines = metrics_until(saved, metrics) if saved else b""
    if saved is None and metrics:
        notes.append("no checkpoint was written yet: the run starts again at its first round")
    if not metrics.startswith(lines):
        notes.append(f"{path / METRICS} was cut or changed: its rounds are taken from the checkpoint's copy")
    return saved, lines, notes


def restore(simulation: Simulation, saved: Checkpoint, history: Sequence[Record], path: Path) -> None:
    """Go on from a checkpoint; refuse one without the vectors of clients that took part, who would begin anew."""
    met = {i for record in history for i in record.cohort} if simulation.engine.table.names else set()
    if missing := sorted(met - {int(i) for i in saved.manifest["rows"]}):
        raise FedsmooError(
            f"{path} lacks the vectors of client {missing[0]}, who took part ({len(missing)} such clients): an earlier "
            "fedsmoo left out those that it had saved elsewhere; use the folder from which this one was saved"
        )
    simulation.restore(saved.server(), saved.rows(), history)


def refuse_changed(path: Path, old: Config, new: Config, held: Mapping[str, str] | None) -> None:
    """Refuse to resume with other settings than a run was started with, or with files that were edited since."""
    now = hash_files_but_data(new, held)
    methods = own_method_of_config(old), own_method_of_config(new)
    if identity(old, held, methods[0]) == identity(new, now, methods[1]):
        return
    changed = "; ".join(differences(old, new, held=now, now=now, methods=methods))
    if changed:
        raise FedsmooError(
            f"{path} was started with other settings ({changed}): put config.toml back, or start a new run; "
            "nothing was changed"
        )
    raise files_changed(path, edited_files(new, held))


def refuse_edited_code(path: Path, config: Config) -> None:
    """Refuse files that were edited since a run was started, if its settings still name them; none of them is run."""
    about = newest_about(path)
    old, notes = (config, read_json(path / STARTED)) if about is None else (config_of(about["config"]), about)
    same = all(getattr(old, name) == getattr(config, name) for name in (*BROUGHT, "metrics", "split", "start", "data"))
    if files := edited_files(config, recorded_hashes(notes)) if same else []:
        raise files_changed(path, files)


def files_changed(path: Path, files: Sequence[str]) -> FedsmooError:
    """Return the error for files that are not what they were."""
    changed, held = ("was", "it held") if len(files) == 1 else ("were", "they held")
    return FedsmooError(
        f"{', '.join(files)} {changed} edited or removed since {path} was started: put back what {held}, or start a "
        "new run; nothing was changed"
    )


def metrics_until(saved: Checkpoint, metrics: bytes) -> bytes:
    """Return the metrics up to a checkpoint, from the metrics file or else from the copy; empty if neither has them."""
    mark = saved.metrics
    for lines in (metrics[: mark.bytes], saved.lines()):
        if hashlib.sha256(lines).hexdigest() == mark.sha256:
            return lines
    return b""


def refuse_incomplete(saved: Checkpoint, metrics: bytes, path: Path) -> None:
    """Refuse a checkpoint without settings, or whose metrics are neither in the metrics file nor in a copy."""
    if not metrics_until(saved, metrics):
        raise FedsmooError(f"{path / METRICS} is not as it was when the checkpoint was written")
    if not isinstance(saved.about.get("config"), dict) or not isinstance(saved.about.get("task"), str):
        raise FedsmooError("it does not say of which run it is")


def restore_metrics(path: Path, lines: bytes) -> None:
    """Make a metrics file start with the given lines; what it held instead is kept beside it unless it was cut."""
    held = read_plain(path) or b""
    if held.startswith(lines):
        return
    try:
        if not lines.startswith(held):
            write_durably(path.with_name(path.name + ".changed"), held)
        write_durably(path, lines)
    except OSError as e:
        raise DiskError(f"cannot write {path}: {reason(e)}") from e
