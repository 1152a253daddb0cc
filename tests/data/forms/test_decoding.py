"""Items are decoded once, into files that are mapped into memory; what changed is decoded again; engines only index."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fedsmoo
from fedsmoo import FedsmooError, read_data, simulate
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.dataset import refuse_too_large

RNG = np.random.default_rng(1)
X, Y = RNG.standard_normal((300, 7)).astype(np.float32), np.arange(300) % 4
SAME = read_data(((X[:200], Y[:200]), (X[200:], Y[200:]))).fingerprint


class Files(Dataset):
    """Rows of a file, read when they are asked for."""

    reads: ClassVar[list[int]] = []

    def __init__(self, path, lo, hi, transform=None):
        self.path, self.lo, self.hi, self.transform = str(path), lo, hi, transform

    def __len__(self):
        return self.hi - self.lo

    def __getitem__(self, i):
        self.reads.append(i)
        x = np.load(self.path, mmap_mode="r")[self.lo + i]
        return (x if self.transform is None else self.transform(x)), int(Y[self.lo + i])


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def halves(file: Path, transform=None) -> tuple[Files, Files]:
    return Files(file, 0, 200, transform), Files(file, 200, 300, transform)


def reads_of(value) -> tuple[int, fedsmoo.Dataset]:
    Files.reads.clear()
    data = read_data(value)
    return len(Files.reads), data


def is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor lies in a file that is mapped into memory, by what the system says."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        lo, hi = (int(n, 16) for n in line.split()[0].split("-"))
        if lo <= tensor.data_ptr() < hi:
            return ".npy" in line
    return False


needs_maps = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not say what is mapped")


def copies(file: Path) -> list[Path]:
    return sorted((file.parent / "cache" / "decoded").iterdir())


@needs_maps
def test_a_second_read_opens_what_the_first_decoded(file):
    first, data = reads_of(halves(file))
    second, again = reads_of(halves(file))
    assert first >= 300 > second  # a few are looked at, to see that they are still the same
    assert data.fingerprint == again.fingerprint == SAME
    assert "fingerprint" in again.__dict__  # kept beside the samples: they are not read to be hashed
    assert is_mapped(data.x_train)
    assert is_mapped(again.x_test)
    again.x_train.zero_()  # of this process alone
    assert read_data(halves(file)).fingerprint == SAME
    assert len(copies(file)) == 1


def test_a_file_that_changed_is_decoded_again(file):
    read_data(halves(file))
    np.save(file, X + 1)
    assert torch.equal(read_data(halves(file)).x_train, torch.from_numpy(X[:200] + 1))


def test_items_that_changed_without_a_trace_are_decoded_again(file, monkeypatch):
    """The key of a copy knows the state of a data set and the files it names, but not every global that it reads."""
    read_data(halves(file))
    monkeypatch.setitem(globals(), "Y", (Y + 1) % 4)
    assert read_data(halves(file)).y_train.tolist() == ((np.arange(200) + 1) % 4).tolist()


class Words(Dataset):
    """Pairs of samples of 1, 2, ..., 6 tokens."""

    reads: ClassVar[list[int]] = []

    def __len__(self):
        return 12

    def __getitem__(self, i):
        self.reads.append(i)
        return np.arange(1, 2 + i // 2), i % 2


def test_sequences_are_padded_alike_in_every_block_and_their_copy_is_opened(file, monkeypatch):
    monkeypatch.setattr("fedsmoo.data.forms.decoding.decode.BLOCK", 2)
    with pytest.warns(FedsmooWarning, match="padded to 6"):
        first = read_data((Words(), Words()))
    reads = len(Words.reads)
    again = read_data((Words(), Words()))
    assert len(Words.reads) < 2 * reads  # some are looked at: have they changed?
    for data in (first, again):
        assert data.x_train.tolist() == [[*range(1, 2 + i // 2), *[0] * (5 - i // 2)] for i in range(12)]


def test_a_damaged_copy_is_decoded_again(file):
    read_data(halves(file))
    (copy,) = copies(file)
    content = bytearray((copy / "x_train.npy").read_bytes())
    content[-1] ^= 1
    (copy / "x_train.npy").write_bytes(content)
    reads, data = reads_of(halves(file))
    assert reads >= 300
    assert data.fingerprint == SAME
    (copy / "facts.json").write_text("{")
    assert read_data(halves(file)).fingerprint == SAME


@needs_maps
def test_what_has_no_key_is_decoded_each_time_and_mapped_all_the_same(file):
    for _ in range(2):
        reads, data = reads_of(halves(file, lambda x: x))  # a function without a name cannot be written down
        assert reads >= 300
        assert data.fingerprint == SAME
        assert is_mapped(data.x_train)
    assert copies(file) == []


def test_a_folder_that_cannot_be_written_or_is_full_costs_time_alone(file, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.warns(FedsmooWarning, match="cannot be kept in .*: No space left"):
        assert read_data(halves(file)).fingerprint == SAME
    (file.parent / "plain").write_text("")
    monkeypatch.setenv("FEDSMOO_DATA", str(file.parent / "plain"))
    with pytest.warns(FedsmooWarning, match="cannot be kept in"):
        assert read_data(halves(file)).fingerprint == SAME


def test_decoding_is_announced_in_a_line_where_it_takes_a_while_and_there_is_no_terminal(file, monkeypatch, capsys):
    read_data(halves(file))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("fedsmoo.data.forms.decoding.decode.MANY", 300)
    read_data(halves(file, np.negative))
    assert capsys.readouterr() == ("", "decoding data: 300 samples, once\n")
    read_data(halves(file, np.negative))
    assert capsys.readouterr() == ("", "")


def noisy(x):
    return x * random.choice((-1.0, 1.0))


def test_random_transforms_are_refused(file):
    with pytest.raises(FedsmooError, match="is another one each time it is read: leave random transforms out"):
        read_data(halves(file, noisy))


class Watched(Tensor):
    """Samples that note every copy that is made of them, by how many values it has."""

    made: ClassVar[list[tuple[str, int]]] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = function(*args, **(kwargs or {}))
            if not isinstance(out, Tensor):
                return out
            whole = next(a for a in args if isinstance(a, cls))
            if out.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
                return out.as_subclass(cls)
            cls.made.append((function.__name__, out.numel()))
            return out.as_subclass(Tensor)


@pytest.mark.parametrize("engine", ["serial", "vmap", "batched"])
def test_engines_take_samples_by_index_and_never_copy_the_whole(engine):
    count = 20_000
    x = torch.randn(count, 5).as_subclass(Watched)
    y = torch.arange(count) % 3
    data = fedsmoo.Dataset("watched", x, y, torch.randn(30, 5), y[:30], 3)
    Watched.made.clear()
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    simulate(model, data, "scaffold", clients=10, cohort=3, rounds=2, local_steps=2, batch_size=8, engine=engine)
    assert ("__getitem__", 3 * 8 * 5) in Watched.made or ("__getitem__", 8 * 5) in Watched.made
    assert max(numel for _, numel in Watched.made) <= x.numel() // 4


def test_samples_that_do_not_fit_on_a_gpu_are_refused():
    refuse_too_large("mine", 2**30, 2**30)
    with pytest.raises(FedsmooError, match=r"data set mine: 3\.0 GiB of samples, but the GPU has 1\.0 GiB free: set"):
        refuse_too_large("mine", 3 * 2**30, 2**30)


class Columns(Files):
    """The same rows, whose labels have an axis of one number."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x, torch.tensor([y])


@pytest.mark.filterwarnings("error")
def test_labels_with_an_axis_of_their_own_are_kept_as_well(file):
    """What the check makes of them lies in the very file that it is to replace: nothing may be lost on the way."""
    both = Columns(file, 0, 200), Columns(file, 200, 300)
    (first, data), (again, kept) = reads_of(both), reads_of(both)
    assert data.fingerprint == kept.fingerprint == SAME
    assert data.y_train.tolist() == kept.y_train.tolist() == Y[:200].tolist()
    assert first >= 300 > again
