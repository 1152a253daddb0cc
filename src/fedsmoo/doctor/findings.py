"""Judge a machine: a line for each thing, whether it is well, and what to type if it is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedsmoo.data.catalog import SPECS
from fedsmoo.doctor.machine import Disk, Machine
from fedsmoo.engines.devices import is_crowded
from fedsmoo.runs.traffic import human_bytes

TORCH = "torch==2.13.0"  # the newest that this version was tested with
NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "fuse.sshfs", "wekafs")
LITTLE = 2**30  # bytes of disk that a long run fills with checkpoints


@dataclass(frozen=True)
class Finding:
    """What was found of one thing: in words, whether it is well, and the next command to type if it is not."""

    about: str
    well: bool
    says: str
    next: str = ""


def judge(machine: Machine) -> list[Finding]:
    """Return a line for each thing that a run depends on."""
    return [*packages(machine), *devices(machine), *speed(machine), *places(machine)]


def packages(m: Machine) -> Iterator[Finding]:
    """Judge what is installed."""
    yield Finding("fedsmoo", True, f"{m.versions['fedsmoo']}, Python {m.python}, {m.system}")
    others = ", ".join(f"{n} {v or 'missing'}" for n, v in m.versions.items() if n not in ("fedsmoo", "triton"))
    missing = [n for n, v in m.versions.items() if v is None and n != "triton"]
    yield Finding("packages", not missing, others, f"pip install {' '.join(missing)}" if missing else "")
    have = [extra for extra, there in m.extras.items() if there]
    lacking = [extra for extra, there in m.extras.items() if not there]
    says = (", ".join(have) or "none") + (f"; not installed: {', '.join(lacking)}" if lacking else "")
    yield Finding(
        "extras", "report" not in lacking, says, f"pip install 'fedsmoo[{','.join(lacking)}]'" if lacking else ""
    )


def devices(m: Machine) -> Iterator[Finding]:
    """Judge the GPUs, and what their kernels need."""
    if not m.gpus:
        yield without_gpu(m)
        return
    for gpu in m.gpus:
        release = ".".join(map(str, gpu.capability))
        yield Finding("GPU", True, f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB, compute capability {release}")
    slow = "models of convolutions train by plain PyTorch, several times slower"
    if m.versions["triton"] is None:
        yield Finding("Triton", False, f"not installed: {slow}", "pip install triton")
    elif m.kernels:
        yield Finding("Triton", False, f"{m.versions['triton']}, but {m.kernels}: {slow}")
    else:
        yield Finding("Triton", True, str(m.versions["triton"]))
    steps = "without one GPU steps are not compiled, and are launched one operation at a time"
    if m.compiler is None:
        yield Finding("compiler", False, f"no C compiler: {steps}", "apt-get install gcc libc6-dev")
    elif not m.headers:
        yield Finding(
            "compiler", False, f"{m.compiler}, but Python.h is not there: {steps}", "apt-get install python3-dev"
        )
    else:
        yield Finding("compiler", True, m.compiler)


def without_gpu(m: Machine) -> Finding:
    """Say why there is no GPU, and what that costs."""
    if m.driver and m.cuda is None:
        return Finding(
            "GPU", False, "there is one, but torch was built without CUDA", f"pip install --force-reinstall {TORCH}"
        )
    if m.driver:
        return Finding(
            "GPU", False, f"torch was built for CUDA {m.cuda}, but finds none of this machine's", "nvidia-smi"
        )
    small = "small models train well on a CPU, those of the paper's tables do not"
    return Finding("GPU", False, f"none: {small}", "fedsmoo table accuracy --no-run")


def speed(m: Machine) -> Iterator[Finding]:
    """Judge threads and load: what makes a run slow, or its numbers those of another machine."""
    words = f"{m.threads} of {m.cores} cores"
    if m.dynamic.strip().lower() not in ("", "false", "0", "no"):
        yield Finding("threads", False, f"OMP_DYNAMIC={m.dynamic} is refused by every run", "unset OMP_DYNAMIC")
    elif m.threads > m.cores:
        why = "they wait for each other"
        yield Finding("threads", False, f"{m.threads} on {m.cores} cores: {why}", f"export OMP_NUM_THREADS={m.cores}")
    else:
        yield Finding("threads", True, words)
    busy = is_crowded(m.load, m.all_cores)
    says = f"{m.load:.1f} on {m.all_cores} cores" + (
        ": others compute here, and seconds are not to be compared" if busy else ""
    )
    alone = "top" if m.threads == 1 or m.gpus else "export OMP_NUM_THREADS=1"  # threads wait for those that wait
    yield Finding("load", not busy, says, alone if busy else "")


def places(m: Machine) -> Iterator[Finding]:
    """Judge the folders that are written, and which data sets are there."""
    yield place("cache", m.cache, "export FEDSMOO_DATA=FOLDER")
    absent = [name for name in SPECS if name not in m.data]
    says = (", ".join(m.data) or "digits and made ones alone") + (f"; not here: {', '.join(absent)}" if absent else "")
    yield Finding("data", bool(m.data), says, f"fedsmoo data get {absent[0]}" if absent else "")
    yield place("runs", m.runs, "fedsmoo run --out FOLDER")


def place(about: str, disk: Disk, elsewhere: str) -> Finding:
    """Judge a folder that is written."""
    says = f"{disk.path} ({disk.kind}, {human_bytes(disk.free)} free)"
    if not disk.writable:
        return Finding(about, False, f"{says}: it cannot be written", elsewhere)
    if disk.free < LITTLE:
        return Finding(about, False, f"{says}: a disk that fills stops a run", elsewhere)
    if disk.kind.startswith(NETWORK):
        return Finding(about, False, f"{says}: a network's file system, every checkpoint waits for it", elsewhere)
    return Finding(about, True, says)
