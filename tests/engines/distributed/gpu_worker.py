"""One rank on a GPU that it may share: some methods, and what they end with."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from cases import SMALL, outcome

GPU = SMALL.replace(device="cuda", model="mlp", engine="batched")
CASES = {
    **{name: GPU.replace(algorithm=name) for name in ("fedavg", "scaffold", "fedsmoo", "fedlesam-d")},
    "exact": GPU.replace(algorithm="fedsmoo", exact=True, engine="serial"),
}

if __name__ == "__main__":
    ends = {name: outcome(config) for name, config in CASES.items()}
    torch.save(ends, f"{sys.argv[1]}.{os.environ.get('RANK', 'alone')}")
