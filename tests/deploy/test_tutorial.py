"""docs/flower.md, command by command, in an empty folder; only the ports are exchanged for free ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from patience import PATIENCE
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

from .processes import environment, family, free_ports

DOC = Path(__file__).parents[2] / "docs" / "flower.md"
slow = [
    pytest.mark.deploy,
    pytest.mark.skipif(not os.environ.get("FEDSMOO_TEST_DEPLOY"), reason="make test-deploy runs this"),
]


def commands() -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", DOC.read_text(), re.S | re.M)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_tutorial_has_its_steps():
    text = "\n".join(commands())
    for step in ("deploy init", "deploy keys", "flower-superlink", "deploy gate", "register", "flwr run", "kill"):
        assert step in text
    assert text.count("flower-supernode ") == 3
    assert "--insecure" not in text


@pytest.mark.deploy
@slow[1]
def test_every_command(tmp_path):
    text = "\n".join(commands())
    for old, new in zip(("8000", "8443", "9094", "9095", "9096"), free_ports(5), strict=True):
        text = text.replace(old, str(new))
    script = tmp_path / "tutorial.sh"
    script.write_text(f"set -eu\ncd {tmp_path}\n{text}\n")
    env = environment(tmp_path / "home")
    with family():
        done = subprocess.run(
            ["bash", script], env=env, cwd=tmp_path, timeout=2 * PATIENCE, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:]
    rounds = [json.loads(x) for x in (tmp_path / "home/fedsmoo/laptop/rounds.jsonl").read_text().splitlines()]
    assert [r["accepted"] for r in rounds] == [[0, 1, 2]] * 2
    assert load_file(tmp_path / "home/fedsmoo/laptop/model.safetensors")
