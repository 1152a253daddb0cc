"""A model with a random layer, as a user's file has it."""

from torch import nn


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(64, 10))
