"""What stays as it was when a run that was stopped goes on: its engine, its threads; and what cannot, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsmoo.core.untrusted import text
from fedsmoo.engines.choose import ENGINES
from fedsmoo.engines.devices import make_device
from fedsmoo.engines.oracles.products import idle_precision
from fedsmoo.engines.threads import fix_threads
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.files import read_json
from fedsmoo.runs.storage.mend import is_lost, newest_about, started_in
from fedsmoo.runs.storage.names import STARTED

if TYPE_CHECKING:
    from fedsmoo.runs.simulation import Simulation

DIFFER = "what follows may differ in the last bits"


def with_pinned_engine(config: Config, pins: dict[str, Any], device: str | None) -> Config:
    """Return the config with the engine that was chosen when the run started, so that its numbers stay the same, and
    with the precision that its device computes in."""
    if config.engine == "auto" and pins.get("engine") in ENGINES:
        config = config.replace(engine=pins["engine"])
    config = config if device is None else config.replace(device=device)
    place = make_device(config.device)
    # Runs of before took the word, and no CPU computed in it; where one does, the run's folder says so.
    before = config.precision == "bf16" and place.type == "cpu" and pins.get("products") != "bf16"
    return config.replace(precision="fp32") if before or idle_precision(config.precision, place) else config


def pin_engine(simulation: Simulation, config: Config, pins: Mapping[str, Any]) -> list[str]:
    """Compute as when the run began, as its notes (``pins``) say; return what is otherwise."""
    if config.engine == "auto":
        simulation.engine.pin(why="as the run began")
    notes = []
    if config.precision == "bf16" and simulation.setup.task.precision != "bf16":
        notes.append("precision is bf16, but the run is computed in float32 on this CPU: it keeps its name")
    return notes + pin_clients_at_once(simulation, pins.get("chunk"))


def pin_clients_at_once(simulation: Simulation, before: int | None) -> list[str]:
    """Train as many clients at once as ``before``: sums depend on it in the last bits.

    Where the settings say otherwise they win, and the note that is returned says so.
    """
    if simulation.clients_at_once is None or not before:
        return []
    simulation.engine.pin(before)
    then, now = min(before, simulation.largest_cohort), simulation.clients_at_once
    return [] if now == then else [f"clients trained at once were {then}, are {now}: {DIFFER}"]


def use_same_threads(path: Path) -> None:
    """Use as many threads as the run started with: sums of floating-point numbers depend on it."""
    started = started_in(newest_about(path) or {}) if is_lost(path / STARTED) else read_json(path / STARTED)
    threads = started.get("threads")
    if isinstance(threads, int) and threads > 0:
        fix_threads(threads)


def machine_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a line for each difference that may change the last bits of what follows."""
    lines = []
    ranks = () if new["config"]["exact"] else ("ranks",)
    for key in ("engine", *ranks, "packed", "device", "threads"):
        if key in old and old[key] != new[key]:
            lines.append(f"{key} was {old[key]}, is {new[key]}: {DIFFER}")
    then, now = (d["versions"] if isinstance(d.get("versions"), dict) else {} for d in (old, new))
    for name in now:
        if then.get(name) not in (None, now[name]):
            lines.append(f"{name} was {text(then[name], 80)}, is {now[name]}: {DIFFER}")
    return lines
