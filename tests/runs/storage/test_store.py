"""The store of checkpoints by itself: how much it writes, what it keeps, what is on the disk before it has a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.runs.storage.checkpoint import Checkpoints, Mark, manifests_in, newest

MARK = Mark(0, "")


def state(*clients: int, value: float = 1.0, size: int = 10) -> tuple[Vectors, ClientTable]:
    """A server of two vectors and a table of two names, of ten float64 numbers each."""
    table = ClientTable(("a", "b"))
    server = Vectors(w=torch.full((size,), value).double(), lam=torch.zeros(size).double())
    write(table, clients, value, size)
    return server, table


def write(table: ClientTable, clients: tuple[int, ...], value: float, size: int = 10) -> None:
    rows = torch.full((len(clients), size), value).double()
    table.write(clients, Vectors(a=rows, b=-rows))


def test_how_much_a_save_writes_is_counted_in_bytes(tmp_path: Path) -> None:
    """A vector has 80 bytes: two of the server's, and two of each client that changed since the save before the last.

    Checkpoints take turns and share no file, so that the first two hold every client.
    """
    server, table = state(1, 4, 6)
    store = Checkpoints(tmp_path / "checkpoint", {})
    assert store.bytes_to_write(server, table) == 80 * (2 + 3 * 2)
    assert store.bytes_to_write(server, table) == 80 * (2 + 3 * 2)  # asking changes nothing
    store.save(1, server, table, MARK)
    assert store.bytes_to_write(server, table) == 80 * (2 + 3 * 2)
    store.save(2, server, table, MARK)
    assert store.bytes_to_write(server, table) == 80 * 2
    write(table, (4,), 2.0)
    assert store.bytes_to_write(server, table) == 80 * (2 + 2)
    store.save(3, server, table, MARK)
    write(table, (6,), 3.0)
    assert store.bytes_to_write(server, table) == 80 * (2 + 2 * 2)  # client 4 changed since save 2, too


def test_the_newest_two_are_kept_and_hold_every_client(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    server, table = state(0, 1, 2, 3)
    store = Checkpoints(folder, {"of": "a test"})
    for number in (1, 2, 3, 10):
        write(table, (number % 4,), float(number))
        store.save(number, server, table, MARK, b"lines\n")
        saved, problems = newest(folder)
        assert (saved.round, problems, saved.about) == (number, [], {"of": "a test"})
        kept = dict(saved.rows())
        assert kept.keys() == {0, 1, 2, 3}
        for client, row in table.items():
            assert all(torch.equal(kept[client][n], v) for n, v in row.items())
    assert [int(p.stem) for p in manifests_in(folder)] == [10, 3]
    used = {n for p in folder.iterdir() for n in [p.name] if n.startswith(("000001", "000002")) and "rows" not in n}
    assert used == set()


def test_a_checkpoint_may_be_refused_for_another_reason(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    server, table = state(0)
    store = Checkpoints(folder, {})
    for number in (1, 2):
        store.save(number, server, table, MARK)

    def accept(saved) -> None:
        if saved.round == 2:
            raise FedsmooError("not this one")

    saved, problems = newest(folder, accept)
    assert saved.round == 1
    assert problems == ["checkpoint of round 2 cannot be used: not this one"]
    (folder / "000001-server.safetensors").unlink()
    saved, problems = newest(folder, accept)
    assert saved is None
    assert "000001-server.safetensors is missing" in problems[1]


def test_removing_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "checkpoint", {})
    store.remove()  # nothing yet
    store.save(1, *state(0), MARK)
    store.remove()
    assert not (tmp_path / "checkpoint").exists()


def test_files_are_on_the_disk_before_they_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync, replace = os.fsync, os.replace

    def noting(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    def checking(source, target) -> None:
        assert os.stat(source).st_ino in synced, target
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "replace", checking)
    Checkpoints(tmp_path / "checkpoint", {}).save(1, *state(0, 1), MARK, b"lines\n")
    assert len(list((tmp_path / "checkpoint").iterdir())) == 4  # server, rows, metrics, manifest
    assert (tmp_path / "checkpoint").stat().st_ino in synced


def test_a_vector_under_two_names_is_saved_under_both(tmp_path: Path) -> None:
    """Files hold no tensor twice; a method may keep one under two names, on the server as on a client."""
    one = torch.arange(4.0)
    table = ClientTable(("a", "b"))
    table.load(3, {"a": one, "b": one})
    table.changed.add(3)
    Checkpoints(tmp_path / "checkpoint", {}).save(1, Vectors(w=one, c=one), table, MARK)
    saved, problems = newest(tmp_path / "checkpoint")
    assert problems == []
    assert {n: v.tolist() for n, v in saved.server().items()} == {"w": one.tolist(), "c": one.tolist()}
    assert {n: v.tolist() for n, v in dict(saved.rows())[3].items()} == {"a": one.tolist(), "b": one.tolist()}
