"""Gather the facts of a machine that runs depend on; nothing is judged here, and nothing is written."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedsmoo.data.catalog import SPECS
from fedsmoo.data.files.cache import user_cache
from fedsmoo.engines.devices import load_of_machine, usable_cores
from fedsmoo.kernels.runtime import available
from fedsmoo.version import __version__

PACKAGES = ("torch", "triton", "numpy", "scipy", "scikit-learn", "pandas")
# What each extra brings, by a package that nothing else would.
EXTRAS = {
    "report": "plotly", "download": "pooch", "track": "tensorboard", "flower": "flwr", "privacy": "dp-accounting",
}  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """A CUDA device: its name, its memory in bytes, its compute capability."""

    name: str
    memory: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Disk:
    """A folder: the kind of its file system, its free bytes, whether this user may write there."""

    path: Path
    kind: str
    free: int
    writable: bool


@dataclass(frozen=True)
class Machine:
    """What a run finds: versions by package, devices, threads, disks, data sets."""

    python: str
    system: str
    versions: dict[str, str | None]
    extras: dict[str, bool]
    cuda: str | None  # the release of CUDA that torch was built for
    gpus: tuple[Gpu, ...]
    driver: bool  # whether NVIDIA's driver is loaded
    kernels: str  # why the Triton kernels cannot run; empty when they can
    compiler: str | None  # a C compiler
    headers: bool  # of Python, which Triton compiles its launchers against
    cores: int  # that this process may use
    all_cores: int  # of the machine, whose load is that of all programs on it
    threads: int  # that torch uses
    dynamic: str  # OMP_DYNAMIC
    load: float  # processes that wanted to run in the last minute
    cache: Disk
    data: tuple[str, ...]  # data sets that are in the cache
    runs: Disk


def look(runs: Path = Path("runs")) -> Machine:
    """Gather the facts of this machine, and of the folder that runs would be written to."""
    gpus = [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]
    home = user_cache()
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions={"fedsmoo": __version__, **{name: version(name) for name in PACKAGES}},
        extras={extra: version(package) is not None for extra, package in EXTRAS.items()},
        cuda=torch.version.cuda,
        gpus=tuple(Gpu(g.name, g.total_memory, (g.major, g.minor)) for g in gpus),
        driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        kernels=available("cuda")[1],
        compiler=compiler(),
        headers=Path(sysconfig.get_paths()["include"], "Python.h").is_file(),
        cores=usable_cores(),
        all_cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        dynamic=os.environ.get("OMP_DYNAMIC", ""),
        load=load_of_machine(),
        cache=disk(home),
        data=tuple(name for name in SPECS if holds_files(home / name) or (home / f"{name}.npz").is_file()),
        runs=disk(runs),
    )


def holds_files(folder: Path) -> bool:
    """Return whether a data set's folder holds files; one whose download never ended holds none, or parts."""
    return folder.is_dir() and any(p.is_file() and p.suffix != ".part" for p in folder.rglob("*"))


def version(package: str) -> str | None:
    """Return the version of an installed package, or ``None``."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def compiler() -> str | None:
    """Return the C compiler that Triton and ``torch.compile`` would call, or ``None``."""
    return next((c for c in (os.environ.get("CC"), "gcc", "clang", "cc") if c and shutil.which(c)), None)


def disk(path: Path) -> Disk:
    """Describe the place of a folder, or of the nearest one above it that exists."""
    place = path.absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    return Disk(path, file_system(there.resolve()), shutil.disk_usage(there).free, os.access(there, os.W_OK))


def file_system(path: Path, mounts: Iterable[str] | None = None) -> str:
    """Return the kind of file system that a path lies on, by the mount whose folder is nearest above it.

    >>> file_system(Path("/home/a/runs"), ["/dev/sda1 / ext4 rw 0 0", "server:/home /home nfs4 rw 0 0"])
    'nfs4'
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text().splitlines()
        except OSError:
            return "unknown"
    found, depth = "unknown", -1
    for _, folder, kind, *_rest in (line.split(" ") for line in mounts):
        place = Path(folder.replace("\\040", " "))
        if len(place.parts) > depth and path.is_relative_to(place):
            found, depth = kind, len(place.parts)
    return found
