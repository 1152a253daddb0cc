"""The processes of one job, as ``torchrun`` starts them: who I am, and how we talk.

Everything here is a no-op for a run in a single process.
"""

from __future__ import annotations

import atexit
import os
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

_deserted = False  # a connection broke: there is nobody to say goodbye to


def number(name: str, default: int) -> int:
    """A whole number that a launcher left in the environment."""
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as e:
        raise FedsmooError(f"the environment variable {name} is {text!r}, but must be a whole number") from e


def launched() -> bool:
    """Whether a launcher such as ``torchrun`` started more than one of us."""
    return number("WORLD_SIZE", 1) > 1 and "RANK" in os.environ


def world() -> int:
    """How many ranks there are."""
    return number("WORLD_SIZE", 1) if launched() else 1


def is_writer() -> bool:
    """Whether this process writes files and prints: the only one, or rank 0."""
    return not launched() or number("RANK", 0) == 0


def alone(what: str) -> None:
    """Refuse to do in every rank what one process should do once."""
    if launched():
        raise FedsmooError(f"{what} runs in one process, not under torchrun: only 'fedsmoo run' and 'resume' use ranks")


def own_device(device: torch.device) -> torch.device:
    """The device of this rank: ranks of one machine take its GPUs in turn; a GPU named by number is left alone."""
    if not launched() or device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", number("LOCAL_RANK", number("RANK", 0)) % torch.cuda.device_count())


def backend_for(device: torch.device) -> str:
    """NCCL if every rank of this machine has a GPU of its own, else gloo: NCCL refuses two ranks on one GPU."""
    alone = device.type == "cuda" and number("LOCAL_WORLD_SIZE", 1) <= torch.cuda.device_count()
    return "nccl" if alone and dist.is_nccl_available() else "gloo"


class Ended(Exception):
    """Rank 0 has ended the job."""


@dataclass(frozen=True)
class Ranks:
    """This process among ``world`` others, and the few collective calls that the engine makes.

    Every call must be made by all ranks, in the same order. A lost peer becomes one clear error.
    """

    rank: int
    world: int
    backend: str

    def add(self, v: Tensor) -> Tensor:
        """The sum of ``v`` over the ranks, the same bits on each of them."""
        return self._through(v, lambda t: dist.all_reduce(t))

    def share(self, v: Tensor, source: int) -> Tensor:
        """``v`` of one rank, on all of them; the others pass a vector of the same shape to be filled."""
        return self._through(v, lambda t: dist.broadcast(t, source))

    def same(self, value: Any) -> Any:
        """Rank 0's value, on all of them."""
        box = [value]
        with peers(self):
            dist.broadcast_object_list(box, 0)
        return box[0]

    def union(self, values: set[int]) -> set[int]:
        """The values that any rank holds."""
        parts: list[Any] = [None] * self.world
        with peers(self):
            dist.all_gather_object(parts, sorted(values))
        return set().union(*map(set, parts))

    def _through(self, v: Tensor, call: Callable[[Tensor], Any]) -> Tensor:
        """A collective call on a copy of ``v``; gloo goes through the host's memory."""
        t = v.detach().clone() if self.backend == "nccl" else v.detach().to("cpu", copy=True)
        with peers(self):
            call(t)
        return t.to(v.device)


@contextmanager
def peers(ranks: Ranks) -> Iterator[None]:
    """A broken connection in words."""
    try:
        yield
    except (RuntimeError, ValueError) as e:  # gloo and NCCL report a lost peer so
        desert()
        raise FedsmooError(
            f"rank {ranks.rank} of {ranks.world}: another rank of this job was lost, or failed (its own message says "
            "why); the rounds before are kept. Start the job again with fedsmoo resume and the run folder, with any "
            f"number of ranks ({first_line(e)})"
        ) from e


def join(device: torch.device) -> Ranks:
    """Meet the other ranks; a second call returns the same."""
    if not dist.is_initialized():
        backend = backend_for(device)
        if backend == "nccl":
            torch.cuda.set_device(device)
        try:
            dist.init_process_group(backend)
        except (RuntimeError, ValueError) as e:
            raise FedsmooError(
                "cannot meet the other ranks: start the job with torchrun, and see that MASTER_ADDR and MASTER_PORT "
                f"can be reached ({first_line(e)})"
            ) from e
        atexit.register(leave)
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.get_backend())


def leave() -> None:
    """Say goodbye at the end of the process; rank 0 lets the others go first."""
    if dist.is_initialized() and dist.get_rank() == 0 and not _deserted:
        with suppress(RuntimeError, ValueError):
            dist.broadcast_object_list([("end", None)], 0)
    close()


def depart(code: int) -> None:
    """End this process now if it is one of several ranks.

    After the goodbye nothing is left to do, and the libraries' own threads, torn down by a normal exit in no fixed
    order, have been seen to abort a job whose work was done.
    """
    if not dist.is_initialized():
        return
    leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def desert() -> None:
    """Let this process end without a goodbye; the others notice that the connection broke."""
    global _deserted
    _deserted = True


def close() -> None:
    """Close the connections; left to themselves, broken ones abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()
