"""A model of one's own, twice: any nn.Module, and the same with a forward for many clients at once, which is faster.

``python examples/own_model.py`` trains both to the same weights; ``fedsmoo run --model examples/own_model.py:Tall
--set width=16`` trains the second from the command line.
"""

import torch
from torch import nn

from fedsmoo import simulate


class Plain(nn.Module):
    """A layer, a nonlinearity, a layer. It returns logits: cross-entropy applies the softmax."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x):  # [B, 1, 8, 8], a batch of digits
        return self.last(torch.tanh(self.first(x.flatten(1))))


class Tall(Plain):
    """The same, with ``batched``: every parameter and the inputs have a leading axis of C clients."""

    def batched(self, p, x):  # p["first.weight"] is [C, width, 64], x [C, B, 1, 8, 8]
        h = torch.tanh(torch.baddbmm(p["first.bias"][:, None], x.flatten(2), p["first.weight"].mT))
        return torch.baddbmm(p["last.bias"][:, None], h, p["last.weight"].mT)


def main():
    task = {"clients": 20, "cohort": 5, "rounds": 10, "dtype": "float64", "engine": "batched", "device": "cpu"}
    results = []
    for kind in (Plain, Tall):
        torch.manual_seed(0)
        results.append(simulate(kind(), "digits", "fedsmoo", **task))
        print(f"{kind.__name__:<6} {results[-1].accuracy:.4f}   engine: {results[-1].simulation.engine.name}")
    return results


if __name__ == "__main__":
    main()
