"""Where a result comes from: the command that made it, the code, the machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedsmoo.core.user_code import is_in_file
from fedsmoo.data.division.partition import to_rule
from fedsmoo.engines.distributed.launcher import world
from fedsmoo.runs.config import DIVISION, FIELDS, Config
from fedsmoo.runs.division import make_partition
from fedsmoo.runs.origin.contents import input_hashes
from fedsmoo.runs.origin.imports import imported_facts
from fedsmoo.runs.origin.typed import command
from fedsmoo.runs.settings.fields import BROUGHT
from fedsmoo.runs.simulation import Simulation
from fedsmoo.version import __version__

HERE = Path(__file__).resolve().parents[2]  # the package
MARKED = re.compile(r"(?P<commit>.*?)[-+](?P<mark>dirty|clean)")


def provenance(simulation: Simulation) -> dict[str, Any]:
    """Engine, hardware, versions, code and command behind a run."""
    task, stays = simulation.setup.task, simulation.setup.masks.stays
    return {
        "engine": simulation.engine.name,
        "engine_why": simulation.engine.why,
        "chunk": simulation.clients_at_once,
        "ranks": world(),
        "device": device_name(task.device),
        "device_type": task.device.type,
        "products": task.products,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "parameters": task.model.layout.count,
        "parameters_full": task.model.full_size,
        **({"parameters_staying": n} if (n := simulation.setup.masks.staying) else {}),
        **({} if stays is None else {"staying": task.model.layout.names_in(stays.cpu())}),
        **({"samples_in": "host"} if task.staged else {}),
        "seed": simulation.training.seed,
        "versions": versions(),
        **code_facts(),
        "command": command(),
        "finished": now(),
    }


def checkpoint_facts(config: Config, simulation: Simulation) -> dict[str, Any]:
    """Return what a checkpoint says of its run: settings, task, and what decides the last bit of its numbers."""
    facts = provenance(simulation)
    kept = {k: facts[k] for k in ("engine", "chunk", "ranks", "device", "products", "threads", "versions")}
    return (
        {"config": config.to_dict(), "task": task_hash(simulation), "packed": simulation.runs_in_batch, **kept}
        | input_hashes(config, simulation.setup.task.data)
        | imported_facts(config)
    )


def task_hash(simulation: Simulation) -> str:
    """Return a hash of who holds which samples, and of their labels."""
    digest = hashlib.sha256()
    for samples in simulation.indices:
        digest.update(samples.tobytes() + b"|")
    digest.update(simulation.setup.task.data.y_train.cpu().numpy().tobytes())
    return digest.hexdigest()


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def command_to_repeat(config: Config) -> str:
    """Return the command that makes one run by itself, whatever sweep, comparison or program it was part of.

    >>> command_to_repeat(Config(algorithm="fedavg", lr=0.05, clip=None))
    'fedsmoo run --lr 0.05 --clip none --algorithm fedavg --partition dirichlet'
    """
    tables = [getattr(config, f"{kind}_options") for kind in BROUGHT]
    options = {name: value for table in tables for name, value in table.items()}
    said = all(isinstance(v, bool | int | float | str) for v in options.values())
    twice = len(options) < sum(len(table) for table in tables)
    own = [kind for kind in BROUGHT[1:] if is_in_file(getattr(config, kind)) and getattr(config, f"{kind}_options")]
    if not said or twice or own or options.keys() & FIELDS.keys():
        return "fedsmoo run config.toml  # the one in the folder of this run"
    unused = settings_without_effect(config)
    kept = {"replacement"} if config.partition == "iid" else set()  # which without a word means another thing there
    flags = [
        (n, getattr(config, n))
        for n, f in FIELDS.items()
        if not n.endswith("_options") and n not in unused and (getattr(config, n) != f.default or n in kept)
    ]
    words = [w for n, v in flags for w in (f"--{n.replace('_', '-')}", flag_value(v))]
    words += [w for n, v in options.items() for w in ("--set", f"{n}={flag_value(v)}")]
    return shlex.join(["fedsmoo", "run", *words])


def settings_without_effect(config: Config) -> set[str]:
    """Return settings that have no effect with a config's division, and that the command line refuses there."""
    if config.split is not None:
        return set(DIVISION)
    if config.partition == "natural":
        return set(DIVISION) - {"partition"}
    return set(DIVISION) - {"partition", "clients", *to_rule(make_partition(config))}


def flag_value(value: Any) -> str:
    """Return a value as a flag takes it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def code_facts() -> dict[str, Any]:
    """Return what a result file says about the code that made it."""
    return dict(zip(("commit", "dirty"), commit_of_code(), strict=True))


def commit_of_code() -> tuple[str | None, bool | None]:
    """Return the commit of this code, and whether files differ from it; ``None`` where that is not known.

    ``FEDSMOO_COMMIT`` wins, for machines to which the files came without their history: a commit, with ``+dirty`` or
    ``+clean`` (or ``-dirty``, ``-clean``) behind it where somebody knows.
    """
    given, found = os.environ.get("FEDSMOO_COMMIT"), commit_of_checkout()
    if not given:
        return found
    marked = MARKED.fullmatch(given)
    if marked:
        return marked["commit"], marked["mark"] == "dirty"
    same = found[0] is not None and found[0].startswith(given)
    return given, found[1] if same else None


@cache  # the code that runs is that of the start, whatever is edited or committed meanwhile
def commit_of_checkout() -> tuple[str | None, bool | None]:
    """Return the commit of the package's checkout, and whether it was edited; ``None`` when it is installed."""
    return git_state(HERE)


def git_state(package: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout that a package's folder belongs to, and whether it is dirty.

    Dirty is a checkout with an edited tracked file, or with a new file in the package. A package that merely lies
    inside somebody's repository, untracked, has no commit.
    """
    try:
        if not git(package, "ls-files", "__init__.py"):
            return None, None
        commit = git(package, "rev-parse", "HEAD").strip()
        edited = git(package, "status", "--porcelain", "--untracked-files=no")
        new = git(package, "ls-files", "--others", "--exclude-standard", ".")
        return commit, bool(edited.strip() or new.strip())
    except (OSError, subprocess.SubprocessError):  # no git here, or none that may look
        return read_head(package), None


def git(folder: Path, *words: str) -> str:
    """Ask git about a folder's own repository; changes nothing."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    told = subprocess.run(
        ["git", "-C", str(folder), *words], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    return told.stdout


def read_head(package: Path) -> str | None:
    """Read the commit of the checkout ``REPOSITORY/src/PACKAGE`` from git's files, where git itself is missing."""
    place = package.parents[1] / ".git"
    with suppress(OSError):
        if place.is_file():  # a second work tree
            place = Path(place.read_text().strip().removeprefix("gitdir: "))
        common = place / (place / "commondir").read_text().strip() if (place / "commondir").is_file() else place
        text = (place / "HEAD").read_text().strip()
        if not text.startswith("ref: "):
            return text
        ref = text.removeprefix("ref: ")
        with suppress(FileNotFoundError):  # not there, or packed away by git at this moment
            return (common / ref).read_text().strip()
        lines = (common / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in lines if line.endswith(" " + ref)), None)
    return None


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"


@cache
def cpu_name() -> str:
    """Return the processor's model where the system says so, else its kind."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that computes: ours, torch's, and those of the libraries below."""
    found = {"fedsmoo": __version__, "torch": torch.__version__, "python": platform.python_version()}
    for name in ("numpy", "triton"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})
