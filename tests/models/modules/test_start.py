"""A pretrained start: what a file holds is where a run begins, and what does not fit is said in one line."""

from __future__ import annotations

import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedsmoo import Config, FedsmooError, resume, run, simulate
from fedsmoo.models.modules.start import Start, put_start, read_weights
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.results.finished import open_finished

SETTINGS: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 1, "device": "cpu", "seed": 3}
FACTORY = """
from torch import nn

def net(classes, frozen=False):
    body = nn.Linear(64, 8).requires_grad_(not frozen)
    return nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(8, classes))
"""


def body(classes: int = 10) -> nn.Module:
    torch.manual_seed(9)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FACTORY)
    torch.save(body().state_dict(), "body.pt")
    save_file(body().state_dict(), "body.safetensors")
    torch.save(body(7).state_dict(), "other.pt")
    return tmp_path


def beginning(start: str, skip: str | None = None, model: Any = "mine.py:net", **more: Any) -> dict[str, Tensor]:
    """The state of the model before the first round."""
    result = simulate(model, "digits", "fedavg", start=start, start_skip=skip, **SETTINGS, **more)
    flat = result.simulation.setup.task.model
    return flat.state_dict(flat.initial())


@pytest.mark.parametrize("name", ["body.pt", "body.safetensors"])
@pytest.mark.parametrize("model", ["mine.py:net", "a module"])
def test_a_run_begins_with_what_the_file_holds(files: Path, name: str, model: str) -> None:
    torch.manual_seed(1)
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)) if model == "a module" else model
    found = beginning(name, model=own)
    for key, value in body().state_dict().items():
        assert torch.equal(found[key], value)


def test_a_new_head_begins_as_the_seed_says(files: Path) -> None:
    found, fresh = beginning("other.pt", skip="3.*"), beginning("body.pt", skip="*")
    old = body(7).state_dict()
    assert torch.equal(found["1.weight"], old["1.weight"])
    assert torch.equal(found["3.weight"], fresh["3.weight"])
    assert found["3.weight"].shape == (10, 8)
    assert not torch.equal(fresh["1.weight"], old["1.weight"])


def test_frozen_weights_and_buffers_come_from_the_file_and_are_exported(files: Path) -> None:
    result = simulate("mine.py:net", "digits", "fedavg", start="body.pt", model_options={"frozen": True}, **SETTINGS)
    assert torch.equal(result.model[1].weight, body()[1].weight)
    assert result.simulation.setup.task.model.layout.count == 8 * 10 + 10

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("scale", torch.ones(2))

    module = Table()
    torch.save({**module.state_dict(), "scale": torch.tensor([2.0, 3.0])}, "table.pt")
    put_start(module, Start("table.pt"))
    assert module.scale.tolist() == [2.0, 3.0]


def test_running_statistics_come_from_the_file_too(files: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
    state = {**net.state_dict(), "2.running_mean": torch.arange(4.0), "2.running_var": torch.arange(1.0, 5.0)}
    save_file(state, "norm.safetensors")
    result = simulate(net, "digits", "fedavg", start="norm.safetensors", **{**SETTINGS, "lr": 1e-30})
    flat = result.simulation.setup.task.model
    assert flat.statistics is not None
    first = flat.statistics.split(flat.statistics.first)
    assert torch.equal(first["2.running_mean"], torch.arange(4.0))
    assert torch.equal(first["2.running_var"], torch.arange(1.0, 5.0))


def test_tied_weights_need_one_of_their_names(files: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.out.weight = self.inside.weight

    value = torch.arange(15.0).view(5, 3)
    for names in (["inside.weight"], ["out.weight"], ["inside.weight", "out.weight"]):
        torch.save(dict.fromkeys(names, value), "tied.pt")
        module = Tied()
        put_start(module, Start("tied.pt"))
        assert torch.equal(module.out.weight, value)
        assert module.out.weight is module.inside.weight
    torch.save({"inside.weight": value, "out.weight": value + 1}, "tied.pt")
    with pytest.raises(FedsmooError, match=r"inside.weight and out.weight are one parameter .*, but differ"):
        put_start(Tied(), Start("tied.pt"))


def test_the_model_of_one_run_is_the_start_of_another(files: Path) -> None:
    first = run({**SETTINGS, "algorithm": "fedavg", "model": "mlp"}, out="first")
    second = simulate("mlp", "digits", "fedavg", start="first/model.safetensors", **SETTINGS)
    assert torch.equal(second.simulation.setup.task.model.initial(), first.server.w)


def test_the_content_of_the_file_is_part_of_the_run_and_its_place_is_not(files: Path) -> None:
    Path("elsewhere.pt").write_bytes(Path("body.pt").read_bytes())
    plain, here, there, other = (
        identity(Config(model="mine.py:net", start=s)) for s in (None, "body.pt", "elsewhere.pt", "other.pt")
    )
    assert here == there
    assert len({plain, here, other}) == 3
    assert identity(Config(model="mine.py:net", start="body.pt", start_skip="3.*")) != here
    config = {**SETTINGS, "algorithm": "scaffold", "model": "mine.py:net", "start": "body.pt", "rounds": 3}
    whole = run(config, out="whole")
    run(config, out="part", callback=lambda r: r.round < 1)
    Path("body.pt").rename("moved.pt")
    Path("other.pt").rename("body.pt")
    with pytest.raises(FedsmooError, match=r"^body.pt was edited or removed since part was started: put back"):
        resume("part")
    Path("moved.pt").rename("body.pt")
    assert torch.equal(resume("part").server.w, whole.server.w)


def test_a_finished_run_is_measured_without_its_start(files: Path) -> None:
    config = {**SETTINGS, "algorithm": "fedavg", "model": "mine.py:net", "start": "body.pt"}
    result = run({**config, "model_options": {"frozen": True}}, out="done")
    Path("body.pt").unlink()
    opened = open_finished(Path("done"), device="cpu")
    assert opened.task.evaluate(opened.w) == result.simulation.setup.task.evaluate(result.server.w)


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("run"),))


def damaged(path: Path) -> None:
    """Files that are no start, each under the name of its case in WRONG."""
    state = body().state_dict()
    torch.save({k: v for k, v in state.items() if k != "3.bias"}, "missing.pt")
    torch.save({**state, "fc.bias": torch.zeros(2)}, "strange.pt")
    torch.save({**state, "3.bias": torch.full((10,), float("nan"))}, "nan.pt")
    torch.save({**state, "3.bias": torch.zeros(10, dtype=torch.int64)}, "whole.pt")
    torch.save({"epoch": 3, "state_dict": state}, "checkpoint.pt")
    torch.save(body(), "module.pt")
    torch.save(OrderedDict(a=Evil()), "evil.pt")
    torch.save([torch.zeros(2)], "list.pt")
    (path / "text.pt").write_text("weights")
    (path / "empty.pt").write_bytes(b"")
    (path / "cut.pt").write_bytes((path / "body.pt").read_bytes()[:500])
    (path / "cut.safetensors").write_bytes((path / "body.safetensors").read_bytes()[:300])
    with zipfile.ZipFile("packed.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * 10**6)


WRONG = {
    "none.pt": "start none.pt: there is no such file",
    "missing.pt": "start missing.pt has no 3.bias, which the model has: name what is not to be taken from it in start_",
    "strange.pt": "start strange.pt has fc.bias, which the model has not: name what",
    "other.pt": r"start other.pt: 3.weight has the shape \[7, 8\], but the model's has \[10, 8\]: name what",
    "nan.pt": "start nan.pt: 3.bias holds NaN or infinite values",
    "whole.pt": r"start whole.pt: 3.bias is torch.int64, but the model's is torch.float32",
    "checkpoint.pt": "start checkpoint.pt holds a int under 'epoch', but must hold dense tensors by name",
    "module.pt": "start module.pt cannot be read: it holds more than tensors, which may be code; save model.state_dict",
    "evil.pt": "start evil.pt cannot be read: it holds more than tensors, which may be code",
    "list.pt": r"start list.pt holds no state dict: save model.state_dict\(\)",
    "text.pt": "start text.pt is neither a safetensors file nor a state dict as torch.save writes it",
    "empty.pt": "start empty.pt is neither a safetensors file nor a state dict",
    "cut.pt": "start cut.pt cannot be read: File is not a zip file",
    "cut.safetensors": "start cut.safetensors is neither a safetensors file nor a state dict",
    "packed.pt": "start packed.pt cannot be read: it is compressed, which torch.save never does",
    ".": r"start .: there is no such file",
}


def test_files_that_are_no_start_are_refused_in_one_line_and_nothing_in_them_is_run(files: Path) -> None:
    damaged(files)
    for name, words in WRONG.items():
        with pytest.raises(FedsmooError, match=f"^{words}") as caught:
            simulate("mine.py:net", "digits", "fedavg", start=name, **SETTINGS)
        assert "\n" not in str(caught.value)
    assert not Path("run").exists()


def test_patterns_that_match_nothing_or_stand_alone_are_refused(files: Path) -> None:
    with pytest.raises(
        FedsmooError, match=r"^start_skip: 'head\.\*' matches nothing in the model or the file, such as"
    ):
        beginning("body.pt", skip="head.*")
    with pytest.raises(FedsmooError, match=r"^start_skip is '3\.\*', but there is no start: name a file"):
        simulate("mine.py:net", "digits", "fedavg", start_skip="3.*", **SETTINGS)


def test_both_kinds_of_file_hold_the_same(files: Path) -> None:
    first, second = read_weights(Path("body.pt")), read_weights(Path("body.safetensors"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[n], second[n]) for n in first)
