"""Trackers against their own clients, in the modes that keep everything on this machine."""

from __future__ import annotations

import re
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from patience import PATIENCE, wait_for

import fedsmoo
from fedsmoo.cli import main
from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.tracking import TRACKERS, logged_numbers, trackers

SMALL = Config(
    algorithm="fedavg", model="softmax", clients=6, cohort=2, rounds=4, local_steps=1, batch_size=8,
    partition="iid", engine="serial", device="cpu",
)  # fmt: skip


def tracked(name: str, folder: Path) -> list[dict[str, float]]:
    """A run stopped after two rounds and resumed, tracked in both halves; returns the numbers of its rounds."""
    run, seen = Run.begin(SMALL, folder), []
    with trackers([name], SMALL, folder, "FedAvg") as log:
        second = int(time.time())
        run.go(lambda r: (seen.append(r), log.round(r)), stop=lambda: len(seen) == 2)
    wait_for(lambda: int(time.time()) > second, "the next second, after which W&B names a folder")
    run = reopen(folder)
    with trackers([name], SMALL, folder, "FedAvg", done=2) as log:
        summary = run.go(lambda r: (seen.append(r), log.round(r))).summary
        log.summary(summary)
    assert [r.round for r in seen] == [1, 2, 3, 4]
    return [logged_numbers(r) for r in seen]


def test_tensorboard_event_files_hold_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = tracked("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for name in ("test_accuracy", "train_loss", "bytes_up"):
        scalars = events.Scalars(name)
        assert [s.step for s in scalars] == [1, 2, 3, 4]
        assert [s.value for s in scalars] == pytest.approx([e[name] for e in expected], rel=1e-6)
    assert events.Scalars("summary/rounds")[0].value == 4


def test_each_client_has_a_curve_and_nothing_else_changes(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plain = fedsmoo.run(SMALL, out=tmp_path / "plain", eval_every=3)
    result = fedsmoo.run(SMALL, out=tmp_path / "run", eval_every=3, track=["tensorboard", "clients"])
    assert torch.equal(result.server.w, plain.server.w)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    rows = result.evaluate_clients()
    for client in range(6):
        for name in ("accuracy", "loss"):
            curve = events.Scalars(f"clients/{client}/{name}")
            assert [s.step for s in curve] == [3, 4]  # the rounds that are evaluated
            assert curve[-1].value == pytest.approx(rows.loc[client, name], rel=1e-6)
    with pytest.raises(FedsmooError, match="need a tracker to go to"):
        fedsmoo.run(SMALL, out=tmp_path / "alone", track=["clients"])
    assert not (tmp_path / "alone").exists()


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB; checksum, length and kind before each piece."""
    at, record = 7, b""  # a header of seven bytes comes first
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block too small for a header
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        piece = data[at + 7 : at + 7 + length]
        at += 7 + length
        if at > len(data):  # still being written
            return
        record = piece if kind in (1, 2) else record + piece  # whole, first; middle, last
        if kind in (1, 4):
            yield record


def test_wandb_offline_holds_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", str(PATIENCE))
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", str(PATIENCE))
    expected = tracked("wandb", tmp_path / "run")
    files = sorted((tmp_path / "run").rglob("*.wandb"))
    assert len(files) == 2  # one for each half, of the same run
    assert len({f.stem for f in files}) == 1
    rows: dict[int, float] = {}
    artefacts: list[str] = []

    def ended(path: Path) -> bool:
        """Read what is there; whether it is all: a service process may still write when the client has returned."""
        last = False
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            last |= record.HasField("exit")
            if record.HasField("artifact"):
                artefacts.extend(entry.path for entry in record.artifact.manifest.contents)
            if record.HasField("history"):
                values = {(i.key or "/".join(i.nested_key)): i.value_json for i in record.history.item}
                rows[int(values["_step"])] = float(values["test_loss"])
        return last

    for path in files:
        wait_for(lambda path=path: ended(path), f"the last record in {path}")
    assert sorted({*artefacts}) == ["config.toml", "metrics.jsonl", "model.safetensors", "summary.json"]
    assert sorted(rows) == [1, 2, 3, 4]
    assert [rows[k] for k in sorted(rows)] == pytest.approx([e["test_loss"] for e in expected])


def test_a_wandb_run_has_one_name_when_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict] = []

    def init(**given: object) -> SimpleNamespace:
        opened.append(given)
        return SimpleNamespace(finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        with trackers(["wandb"], SMALL, tmp_path / folder, "FedAvg"):
            pass
    first, again, other = (given["id"] for given in opened)
    assert first == again == (tmp_path / "a" / "wandb-id.txt").read_text()
    assert re.fullmatch("[0-9a-f]{12}", first)
    assert other != first
    assert {given["resume"] for given in opened} == {"allow"}


def test_mlflow_local_store_holds_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer releases ask before they use plain files
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    expected = tracked("mlflow", tmp_path / "run")
    client = mlflow.MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("fedsmoo").experiment_id])
    assert len(found) == 1
    assert found[0].data.params["algorithm"] == "fedavg"
    history = client.get_metric_history(found[0].info.run_id, "test_loss")
    assert [(m.step, m.value) for m in sorted(history, key=lambda m: m.step)] == [
        (k + 1, pytest.approx(e["test_loss"])) for k, e in enumerate(expected)
    ]
    assert found[0].data.metrics["final_rounds"] == 4
    kept = {f.path for f in client.list_artifacts(found[0].info.run_id)}
    assert kept == {"config.toml", "metrics.jsonl", "summary.json", "model.safetensors"}


def test_an_unknown_or_missing_tracker_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(FedsmooError, match="unknown tracker 'tensorbord': did you mean 'tensorboard'"),
        trackers(["tensorbord"], SMALL, tmp_path, "FedAvg"),
    ):
        pass
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(FedsmooError, match="pip install wandb"), trackers(["wandb"], SMALL, tmp_path, "FedAvg"):
        pass


def test_a_login_that_is_missing_is_one_line_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def login() -> None:
        raise ValueError("No API key configured.\nmore\n")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(login=login))
    small = ["--model", "softmax", "--clients", "4", "--cohort", "2", "--rounds", "1", "--local-steps", "1"]
    with pytest.raises(SystemExit) as ended:
        main(["run", *small, "--track", "wandb", "--out", "here"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "fedsmoo: --track wandb cannot log in: No API key configured. Do so with 'wandb login', or keep the numbers on "
        "this machine with WANDB_MODE=offline\n"
    )
    assert not Path("here").exists()


def test_what_a_client_raises_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError("no such host\nand more")

    monkeypatch.setitem(TRACKERS, "mlflow", refuse)
    with (
        pytest.raises(FedsmooError, match=r"--track mlflow cannot be opened: OSError: no such host\. .*resume"),
        trackers(["mlflow"], SMALL, tmp_path, "FedAvg"),
    ):
        pass
