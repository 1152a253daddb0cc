"""Measure finished runs: ``fedsmoo.analyse``, which keeps each measurement beside its run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsmoo.analysis.measurement import Measurement, Values, measurements
from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.core.hyper.options import convert, kinds
from fedsmoo.runs.origin.provenance import device_name
from fedsmoo.runs.results.finished import FinishedRun, open_finished
from fedsmoo.runs.storage.fence import PART
from fedsmoo.runs.storage.files import make_folder, remove_old, write_durably
from fedsmoo.runs.storage.walk import Folders, require_runs

FOLDER = "analysis"  # inside a run folder


@dataclass(frozen=True)
class Analysed:
    """A run and what was measured of it: nothing where there was nothing to measure."""

    run: FinishedRun
    values: Values
    rows: list[list[str]]  # what stands in a table: the run's name and a word for each column


def refuse_unknown_probes(probe: str | None) -> None:
    """Refuse what is no probe, or says no rounds, of a run that has not begun."""
    if probe is not None:
        from fedsmoo.analysis.probes import Schedule  # late: most runs have none

        Schedule.parse(probe)


def analyse(
    measurement: str | Measurement,
    runs: Folders,
    *,
    device: str = "auto",
    precision: str = "fp32",
    trust: bool = False,
    **options: Any,
) -> list[Analysed]:
    """Measure finished runs, one after the other, and keep each result beside its run as ``analysis/NAME.json``.

    Args:
        measurement: ``hessian``, ``landscape``, ``sharpness``, ``consistency``, ``fairness`` or another by name.
        runs: run folders, or folders that hold some.
        device: where to measure: ``cpu``, ``cuda`` or ``auto``.
        precision: of matrix products on a GPU: ``fp32``, ``tf32`` or ``bf16``.
        trust: run the code that a run names although you have not run it before; it is yours from now on.
        options: the measurement's own, such as ``samples=1000``.

    Returns:
        A run and its values for each run; runs that are measured together are one, with the first of them.

    Raises:
        FedsmooError: if there is no such measurement, option or run, a run cannot be opened or measured, or what was
            found cannot be written.
    """
    one = make_measurement(measurement, options)
    found = measure_runs(require_runs(runs), one, device, precision, trust)
    return [Analysed(run, values, one.rows(run.name, values) if values else []) for run, values in found]


def make_measurement(measurement: str | Measurement, options: Mapping[str, Any]) -> Measurement:
    """Return a measurement with some options, by its name or changed from another; raises for unknown names."""
    if not isinstance(measurement, Measurement) and measurement not in measurements():
        raise unknown("measurement", measurement, measurements())
    cls = measurements()[measurement] if isinstance(measurement, str) else type(measurement)
    names = [f.name for f in dataclasses.fields(cls)]
    for name in options:
        if name not in names:
            raise unknown(f"option of {cls.name}", name, names)
    kind = kinds(cls)
    values = {n: convert(n, v, *kind[n]) if n in kind else v for n, v in options.items()}
    return cls(**values) if isinstance(measurement, str) else dataclasses.replace(measurement, **values)


def measure_runs(
    folders: Sequence[Path],
    measurement: Measurement,
    device: str = "auto",
    precision: str = "fp32",
    trust: bool = False,
) -> Iterator[tuple[FinishedRun, Values]]:
    """Measure the runs in some folders, and write each result; yields a run and its values."""
    if measurement.together is None:
        for folder in folders:
            run = open_finished(folder, device, precision, trust)
            for one in (measurement, *(cls() for cls in measurement.also)):
                values = one.measure(run)
                if values:
                    write_measurement(run, one.name, values)
                if one is measurement:
                    found = values
            yield run, found
        return
    least, most = measurement.together
    if not least <= len(folders) <= most:
        number = str(least) if least == most else f"{least} or {most}"
        raise FedsmooError(f"a {measurement.name} goes through {number} runs, but {len(folders)} are given")
    first, *others = [open_finished(folder, device, precision, trust) for folder in folders]
    values = measurement.measure(first, *others)
    write_measurement(first, measurement.name, values)
    yield first, values


def write_measurement(run: FinishedRun, name: str, values: Values) -> Path:
    """Write a measurement beside its run, with what it was measured on."""
    facts: dict[str, Any] = {"device": device_name(run.task.device), "precision": run.task.precision}
    path = run.path / FOLDER / f"{name}.json"
    try:
        make_folder(path.parent)
        for left in path.parent.glob(f"*{PART}"):
            remove_old(left)
        write_durably(path, json.dumps({**values, **facts}, allow_nan=False) + "\n")
    except OSError as e:
        raise FedsmooError(f"cannot write {path}: {e.strerror}") from e
    except ValueError as e:
        raise FedsmooError(f"{run.path}: the {name} has numbers that are not finite; has the run diverged?") from e
    return path
