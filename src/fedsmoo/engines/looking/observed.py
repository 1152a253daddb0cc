"""Looking on while a model computes: a function is told of every operator that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Tell = Callable[[Any, Any, Any], None]  # (operator, its arguments, what it returned)


class Observed(TorchDispatchMode):
    """Calls ``tell(operator, arguments, result)`` after every operator of PyTorch for as long as this lasts."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self.tell = tell

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operator would import the whole compiler, which takes more than a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.tell(func, args, result)
        return result
