"""The models of docs/models.md: each trains to the same vectors on every engine, and by a plain loop of PyTorch."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.cpu.plain import plain_round
from benchmarks.cpu.zoo import ZOO, Tried
from fedsmoo import run, simulate
from fedsmoo.cli import main
from fedsmoo.models.loss import make_loss
from fedsmoo.runs.results.result import Result

ROOT = Path(__file__).parents[2]

SETTINGS: dict[str, Any] = {
    "clients": 3, "cohort": 3, "rounds": 1, "local_steps": 2, "batch_size": 5, "partition": "iid", "dtype": "float64",
    "device": "cpu", "weight_decay": 0.01, "clip": None, "lr": 0.1, "lr_decay": 1.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def trained(row: Tried, engine: str, **settings: Any) -> Result:
    pytest.importorskip(row.missing or "torch")
    result = simulate(row.module(), row.data(16), "fedavg", engine=engine, **{**SETTINGS, **settings})
    assert result.simulation.engine.name == engine
    return result


@pytest.mark.parametrize("row", ZOO, ids=lambda r: r.name)
def test_every_engine_trains_it_to_the_same_vectors(row: Tried) -> None:
    serial = trained(row, "serial")
    flat = serial.simulation.setup.task.model
    for engine in ("vmap", "threads", *(["batched"] if flat.batched else [])):
        assert float((trained(row, engine).server.w - serial.server.w).abs().max()) < 1e-12
    if flat.random:
        return
    assert float((by_a_plain_loop(row, serial) - serial.server.w).abs().max()) < 1e-12


def by_a_plain_loop(row: Tried, like: Result) -> Tensor:
    """The vector after the same rounds of FedAvg, on the same batches, by autograd and torch.optim alone."""
    first = like.simulation
    task = first.setup.task
    module: nn.Module = task.model.export(task.model.initial().double())
    data = dataclasses.replace(task.data, x_train=task.inputs(task.data.x_train))
    for t in range(SETTINGS["rounds"]):
        _, plan = first.draw_round(t)
        module = plain_round(module, data, plan, SETTINGS["lr"], SETTINGS["weight_decay"], math.inf)
    return task.model.flatten({n: p.detach() for n, p in module.named_parameters()})


def test_the_page_has_the_rows_that_are_tried_here() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    made = text.partition("<!-- gpu:models -->")[2].partition("<!-- /gpu -->")[0]
    assert re.findall(r"^\| ([^|]+) \|", made, re.M)[1:] == [row.name for row in ZOO]
    assert len(ZOO) >= 12


def row_of(name: str) -> Tried:
    return next(row for row in ZOO if row.name == name)


@pytest.mark.parametrize("name", ["LoRA by hand", "BERT with LoRA"])
def test_of_lora_only_what_trains_is_a_vector_travels_and_is_counted(name: str) -> None:
    row = row_of(name)
    pytest.importorskip(row.missing or "torch")
    module = row.module()
    adapters = sum(p.numel() for p in module.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in module.parameters())
    assert adapters < whole / 4
    result = simulate(module, row.data(16), "scaffold", engine="vmap", **{**SETTINGS, "dtype": "float32"})
    assert len(result.server.w) == len(result.client_state(0)["c"]) == adapters
    assert all(r.bytes_up == r.bytes_down == 3 * 2 * 4 * adapters for r in result.history)  # 3 clients, w and c
    before, after = module.state_dict(), result.model.state_dict()
    assert before.keys() == after.keys()
    moved = {n for n in before if not torch.equal(before[n], after[n])}
    assert moved
    assert moved <= {n for n, p in module.named_parameters() if p.requires_grad}


def test_of_peft_s_models_a_result_gives_one_back() -> None:
    peft = pytest.importorskip("peft")
    row = row_of("BERT with LoRA")
    result = simulate(row.module(), row.data(16), "fedavg", **SETTINGS)
    adapters = peft.get_peft_model_state_dict(result.model)
    assert isinstance(result.model, peft.PeftModel)
    assert sum(v.numel() for v in adapters.values()) == len(result.server.w)


def test_tied_weights_are_one_part_of_the_vector_and_have_both_names_in_exports() -> None:
    row = row_of("GPT-2")
    result = trained(row, "vmap")
    names = list(result.simulation.setup.task.model.layout.shapes)
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names
    model = result.model
    state = model.state_dict()
    assert torch.equal(state["lm_head.weight"], state["transformer.wte.weight"])
    assert model.lm_head.weight is model.transformer.wte.weight
    fresh = row.module().double()
    fresh.load_state_dict(state)
    x = row.data(16).x_test[:2]
    with torch.no_grad():
        assert torch.equal(fresh.eval()(x).logits, model(x).logits)


def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces of Python one after the other, its files and the commands that name them, and the masked loss."""
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.S | re.M):
        if name := re.match(r"# (my_\w+\.py)\n", block):
            Path(name[1]).write_text(block)
        else:
            exec(block, scope)
        if "LoraConfig" in block:
            assert len(scope["result"].server.w) < scope["result"].simulation.setup.task.model.full_size / 4
    few = ["--local-steps", "1", "--device", "cpu", "--clients", "4", "--cohort", "2"]
    mlp = run({"model": "mlp", "rounds": 1, "clients": 4, "cohort": 2, "local_steps": 1}, out="runs/a")
    assert mlp.history
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 7)).state_dict(), "body.pt")
    for line in re.findall(r"^fedsmoo (run .*)$", text, re.M):
        with pytest.raises(SystemExit) as ended:
            main([*shlex.split(line.replace("--rounds 20", "--rounds 1")), *few])
        assert not ended.value.code
    out, y = torch.randn(2, 4, 3), torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])
    found = make_loss("my_masked_loss.py:first_half")(out, y)
    expected = [nn.functional.cross_entropy(out[i, :2], y[i, :2]).item() for i in range(2)]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
