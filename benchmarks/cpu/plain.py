"""Federated averaging as anybody would write it in PyTorch: what tests and times of engines are held against."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.data.batches.plan import Plan
from fedsmoo.data.dataset import Dataset


def plain_round(model: nn.Module, data: Dataset, plan: Plan, lr: float, weight_decay: float, clip: float) -> nn.Module:
    """FedAvg as a user would write it: one client after the other, an optimiser each, the mean of their weights."""
    trained = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}
    clients = plan.index.shape[1]
    for c in range(clients):
        local = copy.deepcopy(model).train()
        mine = [p for p in local.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(mine, lr=lr, weight_decay=weight_decay)
        for k in range(len(plan.index)):
            n = int(plan.count[k, c])
            if n == 0:
                break
            index = torch.from_numpy(plan.index[k, c, :n]).to(data.y_train.device)
            optimiser.zero_grad()
            plain_loss(local, data, index).backward()
            torch.nn.utils.clip_grad_norm_(mine, clip)
            optimiser.step()
        for name, p in local.named_parameters():
            if p.requires_grad:
                trained[name] += p.detach() / clients
    out = copy.deepcopy(model)
    out.load_state_dict(trained, strict=False)
    return out


def plain_loss(model: nn.Module, data: Dataset, index: Tensor) -> Tensor:
    """The mean loss of some samples; of a sentence, the mean over its labelled positions."""
    x, y = data.x_train[index], data.y_train[index]
    out = model(x) if data.inputs is None else model(**dict(zip(data.inputs, x.unbind(1), strict=True)))
    if not isinstance(out, Tensor):
        out = out[0] if isinstance(out, tuple) else out["logits"]
    if y.dim() == 1:
        return F.cross_entropy(out, y)
    each = F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    return (each.sum(1) / (y != -100).sum(1)).mean()
