"""Measure finished runs, and keep each measurement beside its run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsmoo.analysis.measurement import Measurement, Values
from fedsmoo.core import FedsmooError
from fedsmoo.runs.finished import SavedRun, open_run
from fedsmoo.runs.origin.provenance import device_name

FOLDER = "analysis"  # inside a run folder


def analyse(
    folders: Sequence[Path], measurement: Measurement, device: str = "auto", precision: str = "fp32"
) -> Iterator[tuple[SavedRun, Values]]:
    """Measure the runs in some folders, one after the other, and write each result into ``analysis/NAME.json``.

    Yields a run and its values, which are empty where there was nothing to measure; runs that are measured together
    yield once, with the first of them.

    Raises:
        FedsmooError: if a run cannot be opened or measured, or what was found cannot be written.
    """
    if measurement.together is None:
        for folder in folders:
            run = open_run(folder, device, precision)
            for one in (measurement, *(cls() for cls in measurement.also)):
                values = one.measure(run)
                if values:
                    keep(run, one.name, values)
                if one is measurement:
                    found = values
            yield run, found
        return
    least, most = measurement.together
    if not least <= len(folders) <= most:
        number = str(least) if least == most else f"{least} or {most}"
        raise FedsmooError(f"a {measurement.name} goes through {number} runs, but {len(folders)} are given")
    first, *others = [open_run(folder, device, precision) for folder in folders]
    values = measurement.measure(first, *others)
    keep(first, measurement.name, values)
    yield first, values


def keep(run: SavedRun, name: str, values: Values) -> Path:
    """Write a measurement beside its run, with what it was measured on."""
    facts: dict[str, Any] = {"device": device_name(run.task.device), "precision": run.task.precision}
    path = run.path / FOLDER / f"{name}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({**values, **facts}, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as e:
        raise FedsmooError(f"cannot write {path}: {e.strerror}") from e
    except ValueError as e:
        raise FedsmooError(f"{run.path}: the {name} has numbers that are not finite; has the run diverged?") from e
    return path
