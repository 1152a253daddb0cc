"""Small recurrent models of text: characters in, a guess of the next character at every position out.

The cells are PyTorch's GRU and LSTM (same equations, same parameter layout), written with batched products so that C
clients' models run at once; PyTorch's own recurrent layers cannot be mapped over clients.

Reference: Cho et al., EMNLP 2014 (GRU); Hochreiter and Schmidhuber, Neural Computation 1997 (LSTM).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class CharModel(nn.Module, ABC):
    """Embedding, one recurrent layer, linear read-out: ``int64 [B, T] -> logits [B, T, V]``.

    Args:
        vocabulary: number V of characters.
        hidden: width of the recurrent state.
        embedding: width of a character's vector.
    """

    gates = 1
    states = 1  # vectors that a cell carries from one character to the next

    def __init__(self, vocabulary: int, hidden: int = 64, embedding: int = 16) -> None:
        super().__init__()
        self.hidden = hidden
        bound = hidden**-0.5
        rows = self.gates * hidden
        self.embedding = nn.Parameter(torch.randn(vocabulary, embedding))
        self.weight_ih = nn.Parameter(torch.empty(rows, embedding).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.bias_hh = nn.Parameter(torch.empty(rows).uniform_(-bound, bound))
        self.weight_out = nn.Parameter(torch.empty(vocabulary, hidden).uniform_(-bound, bound))
        self.bias_out = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x: Tensor) -> Tensor:
        """Run one model on a batch: the batched one with a single client."""
        return self.batched({n: p.unsqueeze(0) for n, p in self.named_parameters()}, x.unsqueeze(0)).squeeze(0)

    def batched(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """C models at once: parameters ``[C, ...]``, characters ``[C, B, T]``, logits ``[C, B, T, V]``."""
        clients, batch, length = x.shape
        # What the input adds to the gates depends on the character alone: project the alphabet, then look up.
        table = _affine(parameters["embedding"], parameters["weight_ih"], parameters["bias_ih"])
        index = x.reshape(clients, batch * length, 1).expand(-1, -1, table.shape[-1])
        inputs = table.gather(1, index).unflatten(1, (batch, length))
        state = (table.new_zeros(clients, batch, self.hidden),) * self.states
        outputs = []
        for t in range(length):
            state = self.cell(inputs[:, :, t], _affine(state[0], parameters["weight_hh"], parameters["bias_hh"]), state)
            outputs.append(state[0])
        seen = torch.stack(outputs, 2).flatten(1, 2)
        return _affine(seen, parameters["weight_out"], parameters["bias_out"]).unflatten(1, (batch, length))

    @abstractmethod
    def cell(self, given: Tensor, recalled: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the next state from the input's and the old state's parts of the gates."""


class CharGRU(CharModel):
    """A gated recurrent unit: ``h' = (1 - z) * n + z * h`` with reset gate r, update gate z and candidate n."""

    gates = 3

    def cell(self, given: Tensor, recalled: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = state
        given_r, given_z, given_n = given.chunk(3, -1)
        recalled_r, recalled_z, recalled_n = recalled.chunk(3, -1)
        r, z = torch.sigmoid(given_r + recalled_r), torch.sigmoid(given_z + recalled_z)
        n = torch.tanh(given_n + r * recalled_n)
        return (n + z * (h - n),)


class CharLSTM(CharModel):
    """Long short-term memory: ``c' = f * c + i * g``, ``h' = o * tanh(c')`` with gates i, f, o and candidate g."""

    gates = 4
    states = 2

    def cell(self, given: Tensor, recalled: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        _, c = state
        i, f, g, o = (given + recalled).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight.T + bias`` for each of C models."""
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
