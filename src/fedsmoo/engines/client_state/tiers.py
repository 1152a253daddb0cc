"""Client state in the device's memory, in the host's, or in a file; clients never met have no row.

Rows outside the device are copied beside the compute: the next cohort's rows are fetched while this one trains, and
this one's are written back while the next one trains. A reader and a writer thread do the host's half of the copying.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.core.errors import unknown
from fedsmoo.engines.client_state.memory import available_bytes, bytes_per_client, reply_bytes
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.contract import Setup

TIERS = {
    "auto": "the first of the others that fits",
    "device": "the compute device's memory",
    "host": "the machine's memory, fetched ahead and written back behind the compute",
    "disk": "a sparse file, memory-mapped",
}
Row = dict[str, Tensor]


class StoredTable(ClientTable):
    """A client table whose rows lie outside the compute device.

    ``make_row(client)`` allocates the storage of a client's row; it is called once, when the row is first written.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        device: torch.device,
        make_row: Callable[[int], Row],
        copies: CopyStreams | None = None,
    ) -> None:
        super().__init__(names)
        self.device, self.make_row = device, make_row
        self.reader, self.writer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.copies = copies or CopyStreams(device)
        self.out: set[int] = set()  # read and not yet written back; engines read and write some clients at a time
        self.fresh: Row = {}  # device copies of the rows written last: [C, P] by name
        self.fresh_at: dict[int, int] = {}
        self.saving: dict[int, Future[None]] = {}
        self.coming: tuple[list[int], Future[Row]] | None = None
        self.changed_since: set[int] = set()  # clients whose rows are newer than those that are coming

    def prefetch(self, clients: Sequence[int]) -> None:
        wanted = [i for i in clients if i not in self.out and i in self.rows]
        self.changed_since = set()
        self.coming = (wanted, self.reader.submit(self._fetch, wanted)) if wanted and self.names else None

    def _fetch(self, clients: list[int]) -> Row:
        """Copy the rows of some clients to the device, ``[C, P]`` by name; runs beside the compute."""
        for job in [self.saving.get(i) for i in clients]:
            if job is not None:
                job.result()
        return {n: self.copies.to_device([self.rows[i][n] for i in clients]) for n in self.names}

    def read(self, clients: Sequence[int], first: Vectors) -> Vectors:
        at, coming = self._arrived()
        self.out.update(clients)
        missing = [i for i in clients if i in self.rows and i not in at and i not in self.fresh_at]
        late = self._fetch(missing) if missing and self.names else {}
        self.copies.join([*coming.values(), *late.values()])

        def row(c: int, i: int, name: str) -> Tensor:
            if i in self.fresh_at:
                return self.fresh[name][self.fresh_at[i]]
            if i in at:
                return coming[name][at[i]]
            if i in self.rows:
                return late[name][missing.index(i)]
            new = getattr(first, name)
            return new if new.dim() == 1 else new[c]

        return Vectors(**{n: torch.stack([row(c, i, n) for c, i in enumerate(clients)]) for n in self.names})

    def peek(self, clients: Sequence[int]) -> Vectors:
        for i in clients:
            self._saved(i)
        return super().peek(clients).map(lambda v: v.to(self.device))

    def _arrived(self) -> tuple[dict[int, int], Row]:
        """Return the prefetched rows and their positions by client; waits for copies under way."""
        if self.coming is None:
            return {}, {}
        clients, future = self.coming
        self.coming = None
        return {i: k for k, i in enumerate(clients) if i not in self.changed_since}, future.result()

    def write(self, clients: Sequence[int], me: Vectors) -> None:
        if not self.names:
            return
        self.fresh = {n: getattr(me, n).clone() for n in self.names}
        self.fresh_at = {i: c for c, i in enumerate(clients)}
        self.out.difference_update(clients)
        self.changed_since.update(clients)
        self.changed.update(clients)
        for i in clients:
            if i not in self.rows:
                self.rows[i] = self.make_row(i)
            self._saved(i)
        host = self.copies.to_host(self.fresh)
        job = self.writer.submit(self._save, list(clients), host)
        self.saving.update(dict.fromkeys(clients, job))

    def _save(self, clients: list[int], host: Callable[[], Row]) -> None:
        block = host()
        for c, i in enumerate(clients):
            for n in self.names:
                self.rows[i][n].copy_(block[n][c])

    def _saved(self, client: int) -> None:
        """Wait until a client's row is written back; raises what the writer thread raised."""
        job = self.saving.get(client)
        if job is not None:
            job.result()
            self.saving.pop(client, None)

    def items(self) -> Iterator[tuple[int, Row]]:
        for i in list(self.saving):
            self._saved(i)
        return super().items()

    def load(self, client: int, row: Row) -> None:
        self._saved(client)
        self.fresh_at.pop(client, None)
        self.changed_since.add(client)
        if client not in self.rows:
            self.rows[client] = self.make_row(client)
        for n in self.names:
            self.rows[client][n].copy_(row[n])


class CopyStreams:
    """Copies between host and device on CUDA streams of their own; plain copies where the device is the CPU.

    Each direction has its stream: a cohort that waits for its rows must not wait until the last one's are written back.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self.inward = torch.cuda.Stream(device) if self.cuda else None
        self.outward = torch.cuda.Stream(device) if self.cuda else None

    def to_device(self, rows: list[Tensor]) -> Tensor:
        """Copy host rows into one ``[C, P]`` on the device; the compute may use it after :meth:`join`."""
        if not self.cuda:
            return torch.stack(rows)
        staging = torch.empty(len(rows), *rows[0].shape, dtype=rows[0].dtype, pin_memory=True)
        for k, row in enumerate(rows):
            staging[k].copy_(row)
        with torch.cuda.stream(self.inward):
            return staging.to(self.device, non_blocking=True)

    def to_host(self, block: Row) -> Callable[[], Row]:
        """Start copying ``[C, P]`` blocks to the host; calling the result waits for the copy and returns it."""
        if not self.cuda:
            return lambda: block
        assert self.outward is not None
        self.outward.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.outward):
            host = {n: torch.empty(v.shape, dtype=v.dtype, pin_memory=True) for n, v in block.items()}
            for n, v in block.items():
                host[n].copy_(v, non_blocking=True)
                v.record_stream(self.outward)
            done = torch.cuda.Event()
            done.record(self.outward)

        def wait() -> Row:
            done.synchronize()
            return host

        return wait

    def join(self, arrived: Sequence[Tensor]) -> None:
        """Make the compute stream wait for copies to the device; the allocator learns that it uses what arrived."""
        if self.inward is None:
            return
        compute = torch.cuda.current_stream(self.device)
        compute.wait_stream(self.inward)
        for v in arrived:
            v.record_stream(compute)


def make_table(tier: str, setup: Setup, clients: int, cohort: int, rounds: int) -> ClientTable:
    """Make the client table of a run on a tier; ``auto`` takes the first that fits.

    Raises:
        FedsmooError: for an unknown tier, or if the rows fit nowhere.
    """
    if tier not in TIERS:
        raise unknown("tier of the client table", tier, TIERS)
    names, task = setup.algorithm.own, setup.task
    if not names:
        return ClientTable(names)
    need = row_bytes(setup) * min(clients, cohort * rounds)
    if tier == "auto":
        tier = first_that_fits(need, cohort * bytes_per_client(setup), task.device)
    if tier == "device" or (tier == "host" and task.device.type == "cpu"):
        return ClientTable(names)
    lengths, dtype = row_lengths(setup), task.dtype
    if tier == "host":
        return StoredTable(names, task.device, lambda i: {n: torch.empty(k, dtype=dtype) for n, k in lengths.items()})
    return StoredTable(names, task.device, disk_rows(lengths, dtype, clients))


def row_lengths(setup: Setup) -> dict[str, int]:
    """Return how many numbers of each name a client keeps between rounds."""
    return {n: setup.algorithm.length(n, setup.task.model.layout.size) for n in setup.algorithm.own}


def row_bytes(setup: Setup) -> int:
    """Return the bytes of one client's own vectors between rounds."""
    return sum(row_lengths(setup).values()) * torch.finfo(setup.task.dtype).bits // 8


def memory_estimate(setup: Setup, table: ClientTable, clients: int, cohort: int, rounds: int) -> tuple[int, str]:
    """Return the bytes that a run needs besides data and activations, and where, in words."""
    rows = row_bytes(setup) * min(clients, cohort * rounds)  # rows of clients never met do not exist
    round_ = cohort * (bytes_per_client(setup) + reply_bytes(setup))
    place = "outside the device" if isinstance(table, StoredTable) else f"on {setup.task.device}"
    kept = f", clients' vectors up to {rows / 1e9:.1f} GB {place}" if rows else ""
    return rows + round_, f"a round's vectors {round_ / 1e9:.1f} GB on {setup.task.device}{kept}"


def free_disk() -> int:
    """Return the free bytes of the disk that holds temporary files."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def first_that_fits(need: int, working: int, device: torch.device) -> str:
    """Return the first tier with room for ``need`` bytes of rows beside ``working`` bytes of a round.

    Raises:
        FedsmooError: if there is none.
    """
    host = available_bytes(torch.device("cpu"))
    if need + working < 0.8 * available_bytes(device):
        return "device"
    if device.type != "cpu" and need < 0.7 * host:
        return "host"
    if need < 0.8 * free_disk():
        return "disk"
    raise FedsmooError(
        f"the clients' own vectors need {need / 1e9:.1f} GB, but the device has {available_bytes(device) / 1e9:.1f} GB "
        f"free, the machine {host / 1e9:.1f} GB and {tempfile.gettempdir()} {free_disk() / 1e9:.1f} GB: use fewer "
        "clients or rounds, a smaller model, a method without client state (fedavg, fedsam), or set TMPDIR to a "
        "larger disk"
    )


def disk_rows(lengths: Mapping[str, int], dtype: torch.dtype, clients: int) -> Callable[[int], Row]:
    """Allocate rows in a sparse temporary file, which the system deletes when the process ends."""
    kind = np.dtype(str(dtype).removeprefix("torch."))
    handle, path = tempfile.mkstemp(prefix="fedsmoo-clients-")
    numbers, ends = sum(lengths.values()), np.cumsum([*lengths.values()])
    row = numbers * kind.itemsize
    os.ftruncate(handle, clients * row)
    table = np.memmap(path, kind, "r+", shape=(clients, numbers))
    Path(path).unlink()  # the mapping keeps it alive, and nothing is left behind
    weakref.finalize(table, os.close, handle)

    def make_row(client: int) -> Row:
        try:
            os.posix_fallocate(handle, client * row, row)  # a full disk is an error here, not a signal later
        except OSError as e:
            raise FedsmooError(f"no room for client {client}'s vectors in {tempfile.gettempdir()}: {e.strerror}") from e
        return {
            n: torch.from_numpy(table[client, end - k : end]) for (n, k), end in zip(lengths.items(), ends, strict=True)
        }

    return make_row
