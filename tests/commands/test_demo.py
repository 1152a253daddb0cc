"""``fedsmoo demo``: what it leaves behind, and that its seeds in one batch have the bits of runs by themselves."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file

import fedsmoo

from .conftest import Call


def test_the_demo_leaves_pictures_and_a_page_and_the_bits_of_single_runs(call: Call) -> None:
    answer = call("demo", "--rounds", "1", "--seeds", "0,1", "--out", "d")
    assert answer.code == 0, answer.err
    for name in ("curves.png", "split-clients.png", "split-totals.png"):
        assert Path("d", name).read_bytes().startswith(b"\x89PNG")
        assert name in answer.out
    assert Path("d/report.html").read_bytes().lower().startswith(b"<!doctype html>")
    assert answer.err.splitlines()[-1] == "next: fedsmoo run --algorithm fedsmoo --dataset digits"
    assert (answer.out + answer.err).count("next: ") == 1
    alone = fedsmoo.run(
        str(files("fedsmoo.commands") / "demo.toml"), algorithm="fedsmoo", rounds=1, seed=1, out="alone"
    )
    together = load_file("d/fedsmoo-seed1/model.safetensors")
    assert all(torch.equal(v, together[n]) for n, v in alone.state_dict.items())
