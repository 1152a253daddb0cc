"""The processes (ranks) of one job, as ``torchrun`` starts them, and the collective calls between them.

Everything here is a no-op for a run in a single process.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import first_line
from fedsmoo.engines.distributed.launcher import environment_int, launched, world
from fedsmoo.engines.distributed.watch import AGAIN, Watch, patience

LOOPBACK = ("127.0.0.1", "localhost")
_abandoned = False  # a connection broke: there is nobody to end the job with
_watch: Watch | None = None  # of the other ranks


def own_device(device: torch.device) -> torch.device:
    """Return the device of this rank: ranks of one machine take its GPUs in turn, unless a GPU was named by number."""
    if not launched() or device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", environment_int("LOCAL_RANK", environment_int("RANK", 0)) % torch.cuda.device_count())


def backend_for(device: torch.device) -> str:
    """Return NCCL if every rank of this machine has a GPU of its own, else gloo: NCCL refuses two ranks on one GPU."""
    own_gpu = device.type == "cuda" and environment_int("LOCAL_WORLD_SIZE", 1) <= torch.cuda.device_count()
    return "nccl" if own_gpu and dist.is_nccl_available() else "gloo"


class Ended(Exception):
    """Rank 0 has ended the job."""


@dataclass(frozen=True)
class Ranks:
    """This process among ``world`` processes, and the collective calls that the engine makes.

    Every call must be made by all ranks, in the same order.

    Raises:
        FedsmooError: in all calls, if another rank was lost.
    """

    rank: int
    world: int
    backend: str

    def all_reduce(self, v: Tensor) -> Tensor:
        """Return the sum of ``v`` over the ranks, with the same bits on each of them."""
        return self._through(v, lambda t: dist.all_reduce(t))

    def all_gather(self, v: Tensor) -> list[Tensor]:
        """Return ``v`` of every rank, in their order; all have the same shape."""
        each: list[Tensor] = []

        def gather(t: Tensor) -> None:
            each.extend(torch.empty_like(t) for _ in range(self.world))
            dist.all_gather(each, t)

        self._through(v, gather)
        return [t.to(v.device) for t in each]

    def broadcast(self, v: Tensor, source: int) -> Tensor:
        """Return ``v`` of one rank on all of them; the others pass any vector of the same shape."""
        return self._through(v, lambda t: dist.broadcast(t, source))

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value on all ranks."""
        box = [value]
        with peer_errors(self):
            dist.broadcast_object_list(box, 0)
        return box[0]

    def union(self, values: set[int]) -> set[int]:
        """Return the union of all ranks' sets."""
        return set().union(*map(set, self.gather_objects(sorted(values))))

    def gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's value, in their order."""
        parts: list[Any] = [None] * self.world
        with peer_errors(self):
            dist.all_gather_object(parts, value)
        return parts

    def _through(self, v: Tensor, call: Callable[[Tensor], Any]) -> Tensor:
        """Make a collective call on a copy of ``v``, in the host's memory for gloo."""
        t = v.detach().clone() if self.backend == "nccl" else v.detach().to("cpu", copy=True)
        with peer_errors(self):
            call(t)
        return t.to(v.device)


@contextmanager
def peer_errors(ranks: Ranks) -> Iterator[None]:
    """Turn a broken connection into a FedsmooError."""
    try:
        yield
    except (RuntimeError, ValueError) as e:  # gloo and NCCL report a lost peer so
        abandon_job()
        gone = _watch.who_broke() if _watch is not None else ""
        raise FedsmooError(
            f"rank {ranks.rank} of {ranks.world}: another rank of this job was lost, or failed (its own message says "
            f"why){gone and f': {gone}'}. {AGAIN} ({first_line(e)})"
        ) from e


def join(device: torch.device) -> Ranks:
    """Connect to the other ranks; idempotent.

    Raises:
        FedsmooError: if they cannot be reached.
    """
    if not dist.is_initialized():
        backend = backend_for(device)
        if backend == "nccl":
            torch.cuda.set_device(device)
        seconds = patience()
        try:
            store, own = meet(), meet(serve=False)
            dist.init_process_group(backend, store=store, rank=environment_int("RANK", 0), world_size=world())
        except (RuntimeError, ValueError, OSError) as e:
            raise FedsmooError(
                "cannot meet the other ranks: start the job with torchrun, and see that MASTER_ADDR and MASTER_PORT "
                f"can be reached ({first_line(e)})"
            ) from e
        atexit.register(leave)
        watch_others(Watch(dist.get_rank(), dist.get_world_size(), own, seconds))
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.get_backend())


def meet(serve: bool = True) -> dist.Store:
    """Connect to the store where ranks meet; rank 0 opens it, unless ``torchrun`` has.

    One that is opened at a loopback address listens there only; PyTorch's own would listen on every network.

    Args:
        serve: open it, if that is this rank's part; otherwise it is there.
    """
    host, port = os.environ.get("MASTER_ADDR", ""), environment_int("MASTER_PORT", 0)
    opens = serve and environment_int("RANK", 0) == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    listening = socket.create_server(("127.0.0.1", port)).detach() if opens and host in LOOPBACK else None
    return dist.TCPStore(host, port, world(), opens, wait_for_workers=False, master_listen_fd=listening)


def watch_others(watch: Watch) -> None:
    global _watch
    _watch = watch
    watch.start()


def leave() -> None:
    """Close the connections at the end of the process; rank 0 first tells the others that the job has ended."""
    if dist.is_initialized() and dist.get_rank() == 0 and not _abandoned:
        with suppress(RuntimeError, ValueError):
            dist.broadcast_object_list([("end", None)], 0)
    close()


def exit_rank(code: int) -> None:
    """End this process at once, with an exit code, if it is one of several ranks.

    A normal exit tears down the libraries' own threads in no fixed order, which has been seen to abort finished jobs.
    """
    if not dist.is_initialized():
        return
    leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def abandon_job() -> None:
    """Let this process end without telling the others; they notice that the connection broke."""
    global _abandoned
    _abandoned = True


def close() -> None:
    """Close the connections; left to themselves, broken ones abort the process."""
    if _watch is not None:
        _watch.close()
    if dist.is_initialized():
        dist.destroy_process_group()
