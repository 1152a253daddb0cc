"""Corners of run folders and batches: blank lines, near misses, defaults, room for the rows that can come to be."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedsmoo.core import FedsmooError
from fedsmoo.data.batches.cohort import SAMPLINGS
from fedsmoo.engines.choose import ENGINES
from fedsmoo.engines.client_state import tiers
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.distributed.engine import Distributed
from fedsmoo.engines.distributed.ranks import Ranks
from fedsmoo.kernels.runtime import PRECISIONS
from fedsmoo.runs import build as resolve
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin import hashes
from fedsmoo.runs.origin.provenance import device_name
from fedsmoo.runs.results.finished import open_finished
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.reader import parse_records, read_config
from fedsmoo.sweeps import pack
from fedsmoo.sweeps.results import COLUMNS

SMALL = Config(
    algorithm="scaffold",
    model="softmax",
    clients=100,
    cohort=3,
    rounds=2,
    local_steps=1,
    engine="batched",
    device="cpu",
)


def line(number: int) -> bytes:
    values = dict.fromkeys(COLUMNS, 1.0) | {"round": number, "lr": 0.1, "cohort": [0]}
    return json.dumps(values).encode() + b"\n"


def test_blank_lines_between_rounds_are_passed_over_and_torn_ones_only_at_the_end() -> None:
    found = parse_records(line(1) + b"\n\n" + line(2) + b"\n" + line(3), "here")
    assert [r.round for r in found] == [1, 2, 3]
    assert [r.round for r in parse_records(line(1) + line(2)[:-9], "here")] == [1]
    with pytest.raises(FedsmooError, match="here, line 1: not a round's record"):
        parse_records(line(1)[:-9] + b"\n" + line(2), "here")


def test_a_file_of_a_run_is_not_its_folder(tmp_path: Path) -> None:
    Run.begin(SMALL, tmp_path / "a").go()
    with pytest.raises(FedsmooError, match=f"did you mean {tmp_path / 'a'}"):
        read_config(tmp_path / "a" / "metrics.jsonl")
    (tmp_path / "else").write_text("")
    for place in ("else", "nowhere"):
        with pytest.raises(FedsmooError, match="is not a run folder") as caught:
            read_config(tmp_path / place)
        assert "did you mean" not in str(caught.value)
    assert open_finished(tmp_path / "a", "cpu").task.precision == "fp32"
    assert open_finished(tmp_path / "a", "cpu", "tf32").task.precision == "tf32"


def test_runs_share_a_device_where_the_rows_that_can_come_to_be_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of three meet six of a hundred clients: two runs need room for twelve rows beside two rounds."""
    first = assemble(SMALL)
    row, client = tiers.row_bytes(first.setup), pack.bytes_per_client(first.setup)
    need = 2 * 6 * row + 2 * 3 * client
    monkeypatch.setattr(tiers, "free_disk", lambda: 10**15)
    for spare, place in ((1.01, "device"), (0.99, "disk")):
        monkeypatch.setattr(tiers, "available_bytes", lambda device, spare=spare: int(spare * need / 0.8))
        assert pack.shared_tier(first, 2, SMALL) == place
    assert pack.shared_tier(first, 2, SMALL.replace(table="host")) == "host"
    few = SimpleNamespace(setup=first.setup, indices=first.indices[:4])  # who are fewer than the rounds have places
    monkeypatch.setattr(tiers, "available_bytes", lambda device: int(1.01 * (2 * 4 * row + 2 * 3 * client) / 0.8))
    assert pack.shared_tier(few, 2, SMALL) == "device"


def test_the_words_of_a_setting_are_those_that_something_answers_to() -> None:
    answered = {"engine": ENGINES, "sampling": SAMPLINGS, "table": tiers.TIERS, "precision": PRECISIONS}
    for name, words in answered.items():
        assert set(FIELDS[name].metadata["choices"]) == set(words), name
        for word in words:
            assert getattr(Config(**{name: word}), name) == word
        with pytest.raises(FedsmooError, match=name):
            Config(**{name: "none of them"})
    assert set(FIELDS["wire"].metadata["choices"]) == {"exact", "fp16", "int8"}
    assert set(FIELDS["clip_scope"].metadata["choices"]) == {"all", "released"}
    assert set(FIELDS["dtype"].metadata["choices"]) == {"float32", "float64"}


def test_whole_numbers_that_generators_do_not_take_are_refused() -> None:
    assert Config().replace(seed=2**63 - 1).seed == 2**63 - 1
    for name in ("seed", "rounds", "clients"):
        with pytest.raises(FedsmooError, match=f"{name} is {2**63}, but must be at most {2**63 - 1}"):
            Config().replace(**{name: 2**63})
    with pytest.raises(FedsmooError, match="unknown setting"):
        Config().replace(rounds=3, round=4)


def test_runs_that_differ_in_more_than_numbers_are_not_put_in_one_batch() -> None:
    for change in ({"model": "mlp"}, {"algorithm": "fedavg"}, {"cohort": 4}, {"rounds": 3}, {"dataset": "synthetic"}):
        with pytest.raises(FedsmooError, match="cannot share a batch"):
            pack.assemble_pack([SMALL, SMALL.replace(partition="iid", **change)])
    assert len(pack.assemble_pack([SMALL, SMALL.replace(seed=1, lr=0.2)])) == 2


def test_a_file_is_imported_once_for_each_of_its_contents(tmp_path: Path) -> None:
    """So that two runs of a method from a file are of one class."""
    file = tmp_path / "mine.py"
    file.write_text("from fedsmoo import FedAvg\n\nclass Mine(FedAvg):\n    pass\n")
    first, second = (resolve.algorithm_class(f"{file}:Mine") for _ in range(2))
    assert first is second
    file.write_text(file.read_text() + "\n# edited\n")
    assert resolve.algorithm_class(f"{file}:Mine") is not first


def test_a_machine_that_does_not_say_its_processor_is_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, name in (("", "cpu"), ("x86_64", "x86_64")):
        monkeypatch.setattr("platform.processor", lambda said=said: said)
        assert device_name(torch.device("cpu")) == name


def test_a_folder_that_takes_long_to_look_at_is_not_looked_at_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand times as long as looking took, where there are many files and looking is slow."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (1e9, 1e9))
    monkeypatch.setattr(hashes, "REST", 1e9)
    for many, rests in ((1, True), (2, False)):
        monkeypatch.setattr(hashes, "MANY", many)
        monkeypatch.setattr(hashes, "SLOW", 0.0)
        hashed: dict[Path, hashes.Known] = {}
        hashes.content_hash(tmp_path, hashed)
        (known,) = hashed.values()
        assert (known.until > time.monotonic() + 100) == rests


def test_ranks_add_as_they_come_unless_told_otherwise() -> None:
    setup = SimpleNamespace(algorithm=assemble(SMALL).setup.algorithm, task=assemble(SMALL).setup.task)
    engine = SimpleNamespace(name="serial", why="", table=ClientTable(("c",)))
    assert Distributed(setup, engine, Ranks(0, 1, "gloo")).same_bits is False
