"""A sweep small enough to be carried out many times."""

from __future__ import annotations

from pathlib import Path

TWELVE = """
model = "softmax"
rounds = 12
local_steps = 1
batch_size = 8
clients = 6
cohort = 2
partition = "iid"
engine = "serial"
device = "cpu"
lr = [0.05, 0.1]
seed = [0, 1, 2]

[methods.FedAvg]
[methods.FedSMOO]
lr_decay = 0.9995
"""


def twelve(folder: Path, **changes: str) -> Path:
    text = TWELVE
    for key, value in changes.items():
        text = "\n".join(f"{key} = {value}" if line.startswith(f"{key} =") else line for line in text.splitlines())
    path = folder / "twelve.toml"
    path.write_text(text + "\n")
    return path
