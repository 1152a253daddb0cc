"""Results on the disk: what is saved comes back to the last bit, with nothing that could be code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedsmoo
from fedsmoo import FedsmooError
from fedsmoo.cli import main
from fedsmoo.runs.storage.checkpoint import read_manifest
from fedsmoo.runs.storage.files import seal

from .small import QUICK, numbers, run, same


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


def arrays() -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(90, 6, generator=g)
    return x[:60], x[:60, :3].argmax(1), x[60:], x[60:, :3].argmax(1)


def test_a_saved_result_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    result = run(3)
    assert result.save(tmp_path / "kept") == tmp_path / "kept"
    back = fedsmoo.load(tmp_path / "kept")
    assert repr(back) == repr(result)[:-1] + f", in {tmp_path / 'kept'}>"
    assert "SCAFFOLD" in back._repr_html_()
    assert back.frame.equals(result.frame)
    same(back, result)
    x = result.simulation.setup.task.data.x_test
    with torch.no_grad():
        assert torch.equal(back.model(x), result.model(x))
    assert not back.model.training
    assert all(torch.equal(back.state_dict[n], v) for n, v in result.state_dict.items())
    assert back.config == result.config


AROUND: list[dict[str, Any]] = [
    {"compression": "topk"},
    {"privacy": "client", "weighted": False},
    {"attack": "sign-flip"},
    {"relaxed": 0.1},
    {"wire": "int8"},
    {"local_optimizer": "momentum"},
    {"local_schedule": "cosine"},
    {"algorithm": "median"},
]


@pytest.mark.parametrize("around", AROUND, ids=lambda each: next(iter(each)))
def test_what_is_put_around_a_method_is_in_the_name_of_a_loaded_result(around: dict[str, Any], tmp_path: Path) -> None:
    result = run(1, **{"algorithm": "fedavg", **around}, out=tmp_path / "kept")
    back = fedsmoo.load(tmp_path / "kept")
    assert back.label == result.label != "FedAvg"
    assert repr(back) == repr(result)


def test_a_loaded_result_knows_who_was_in_a_cohort_where_clients_keep_nothing(tmp_path: Path) -> None:
    result = run(2, algorithm="fedavg", out=tmp_path / "kept")
    back = fedsmoo.load(tmp_path / "kept")
    met = {client for record in result.history for client in record.cohort}
    expected = [{} if client in met else None for client in range(5)]
    assert [back.client_state(client) for client in range(5)] == expected
    assert [result.client_state(client) for client in range(5)] == expected


def test_a_loaded_result_goes_on_to_the_bits_of_one_long_run(tmp_path: Path) -> None:
    run(2).save(tmp_path / "kept")
    same(fedsmoo.load(tmp_path / "kept").continue_(2), run(4))


@pytest.mark.parametrize("table", ["device", "disk"])
def test_what_was_saved_once_is_saved_again_with_all_vectors_of_clients(table: str, tmp_path: Path) -> None:
    """Rows that did not change since they were saved elsewhere are saved here, too."""
    whole, first = run(6, table=table), run(3, table=table, out=tmp_path / "out")
    for name in ("once", "twice"):
        first.save(tmp_path / name)
        same(fedsmoo.load(tmp_path / name), first)
    fedsmoo.load(tmp_path / "twice").save(tmp_path / "copied")
    same(fedsmoo.load(tmp_path / "copied"), first)
    same(fedsmoo.load(tmp_path / "copied").continue_(3), whole)
    fedsmoo.load(tmp_path / "twice").continue_(1).save(tmp_path / "longer")
    same(fedsmoo.load(tmp_path / "longer").continue_(2), whole)


def test_a_result_that_goes_on_in_a_folder_is_resumed_with_all_vectors_of_clients(tmp_path: Path) -> None:
    first = run(3, out=tmp_path / "first")
    first.continue_(3, out=tmp_path / "second", callback=lambda r: r.round < 4)
    fedsmoo.resume(tmp_path / "second")
    same(fedsmoo.load(tmp_path / "second"), run(6))


def test_a_folder_that_lacks_vectors_of_clients_is_refused(tmp_path: Path) -> None:
    """As an earlier version wrote them: a client that took part would go on as one that never did."""
    run(3).save(tmp_path / "kept")
    manifest = tmp_path / "kept" / "checkpoint" / "000003.json"
    content = read_manifest(manifest)
    gone = content["rows"].pop(next(iter(content["rows"])))
    assert gone
    manifest.write_bytes(seal(content))
    with pytest.raises(FedsmooError, match=r"kept lacks the vectors of client \d, who took part \(1 such"):
        fedsmoo.load(tmp_path / "kept").continue_(1)


@pytest.mark.parametrize("statistics", ["averaged", "local"])
def test_running_statistics_go_on_and_come_back_as_the_rest_does(statistics: str, tmp_path: Path) -> None:
    def normed() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    def made(rounds: int) -> fedsmoo.Result:
        return fedsmoo.simulate(normed(), "digits", "scaffold", rounds=rounds, statistics=statistics, **QUICK)

    short, long = made(2), made(3)
    short.save(tmp_path / "kept")
    back = fedsmoo.load(tmp_path / "kept", model=normed())
    assert all(torch.equal(back.model.state_dict()[n], v) for n, v in short.model.state_dict().items())
    for longer in (short.continue_(1), back.continue_(1)):
        same(longer, long)
        assert all(torch.equal(longer.model.state_dict()[n], v) for n, v in long.model.state_dict().items())


def test_nothing_in_a_saved_result_is_a_pickle(tmp_path: Path) -> None:
    run(2).save(tmp_path / "kept")
    for file in (p for p in (tmp_path / "kept").rglob("*") if p.is_file() and p.name != ".lock"):
        assert file.suffix in (".json", ".jsonl", ".toml", ".safetensors", ".csv"), file
        assert not file.read_bytes().startswith((b"\x80", b"PK")), file  # of a pickle, or a zip archive with some


def test_a_result_that_was_stopped_is_saved_unfinished_and_resumed(tmp_path: Path) -> None:
    part = run(4, callback=lambda record: record.round < 2)
    part.save(tmp_path / "kept")
    assert not (tmp_path / "kept" / "summary.json").exists()
    assert len(fedsmoo.load(tmp_path / "kept").history) == 2
    same(fedsmoo.resume(tmp_path / "kept"), run(4))


def test_runs_of_the_command_line_are_loaded(tmp_path: Path) -> None:
    words = "run --algorithm fedavg --model softmax --rounds 2 --clients 4 --cohort 2 --local-steps 1 --out"
    with pytest.raises(SystemExit) as e:
        main([*words.split(), str(tmp_path / "run")])
    assert not e.value.code
    back = fedsmoo.load(tmp_path / "run")
    assert len(back.history) == 2
    assert back.summary is not None
    assert back.accuracy == back.summary["test_accuracy"]
    kept = back.server.w
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    bare = fedsmoo.load(tmp_path / "run")
    assert torch.equal(bare.server.w, kept)
    with pytest.raises(FedsmooError, match="has no checkpoint, and so no vectors but the model's"):
        bare.client(0)
    with pytest.raises(FedsmooError, match=r"continue_: .* has no checkpoint"):
        bare.continue_(1)


def test_objects_are_given_again_and_must_be_those_of_the_run(tmp_path: Path) -> None:
    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out, y, reduction="none")

    given: dict[str, Any] = {"model": network(), "data": arrays(), "loss": loss, "algorithm": fedsmoo.SCAFFOLD()}
    indices = [list(range(i, 60, 5)) for i in range(5)]
    settings = {n: v for n, v in QUICK.items() if n != "clients"}
    result = fedsmoo.simulate(**given, client_indices=indices, rounds=2, **settings)
    result.save(tmp_path / "kept")
    bare = fedsmoo.load(tmp_path / "kept")
    assert numbers(bare.history) == numbers(result.history)
    assert all(torch.equal(bare.state_dict[n], v) for n, v in result.state_dict.items())
    with pytest.raises(FedsmooError, match=r"give them, load\(path, model=Sequential, loss=loss"):
        bare.model  # noqa: B018
    del given["algorithm"]  # which has a name
    whole = fedsmoo.load(tmp_path / "kept", **given, client_indices=indices)
    same(whole, result)
    longer = fedsmoo.simulate(**given, algorithm="scaffold", client_indices=indices, rounds=3, **settings)
    same(whole.continue_(1), longer)
    other = tuple(reversed(arrays()[1].tolist()))
    x, _, x_test, y_test = arrays()
    changed = {**given, "data": (x, torch.tensor(other), x_test, y_test)}
    with pytest.raises(FedsmooError, match="is not what"):
        fedsmoo.load(tmp_path / "kept", **changed, client_indices=indices).model  # noqa: B018
    given["model"] = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(FedsmooError, match=r"do not fit|parameters differ"):
        fedsmoo.load(tmp_path / "kept", **given, client_indices=indices).model  # noqa: B018
    with pytest.raises(FedsmooError, match=r"load\(path, loss=loss, data=custom, client_indices=client_indices\)"):
        fedsmoo.load(tmp_path / "kept", model=network()).model  # noqa: B018
    with pytest.raises(FedsmooError, match="algorithm is named by the run's settings: leave it out"):
        fedsmoo.load(tmp_path / "kept", algorithm=fedsmoo.FedAvg(), **given, client_indices=indices).model  # noqa: B018
    with pytest.raises(FedsmooError, match="did you mean 'model'"):
        fedsmoo.load(tmp_path / "kept", modle=network())


def test_what_is_no_result_says_so(tmp_path: Path) -> None:
    with pytest.raises(FedsmooError, match="is not a run folder"):
        fedsmoo.load(tmp_path)
    result = run(1)
    result.save(tmp_path / "kept")
    with pytest.raises(FedsmooError, match="already holds a run"):
        result.save(tmp_path / "kept")
    (tmp_path / "kept" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(FedsmooError, match="not as it was written"):
        fedsmoo.load(tmp_path / "kept").model  # noqa: B018
    assert json.loads((tmp_path / "kept" / "summary.json").read_text())["rounds"] == 1
