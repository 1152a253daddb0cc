"""Lazy modules, which know their shapes only once they have met a sample: they are shown one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from fedsmoo.core.errors import FedsmooError, first_line
from fedsmoo.core.random.streams import generator_apart, stream
from fedsmoo.data.batches.augment import prepare
from fedsmoo.data.dataset import Dataset
from fedsmoo.models.modules.inputs import arguments, refuse_unknown_inputs

SHOWN = 2  # samples


def unready(module: nn.Module) -> tuple[str, object] | None:
    """Return the place and the first part of a module that does not know its shape yet; ``None`` if all do."""
    for name, part in module.named_modules():
        if isinstance(part, LazyModuleMixin) and part.has_uninitialized_params():  # type: ignore[misc]
            return name, part
    return None


def show(module: nn.Module, data: Dataset, seed: int) -> None:
    """Call a lazy module on samples of the data, in eval mode; its new weights are drawn from the seed.

    Raises:
        FedsmooError: if the samples do not fit.
    """
    if unready(module) is None:
        return
    refuse_unknown_inputs(module, data.inputs)
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    x = prepare(data.x_train[:SHOWN].cpu(), None, data.mean, data.std, own)
    args, named = arguments(x, data.inputs)
    training = module.training
    try:
        with generator_apart(int(stream(seed, "lazy").integers(2**63 - 1))), torch.no_grad():
            module.eval()(*args, **named)
    except FedsmooError:
        raise
    except Exception as e:  # the user's own code
        raise FedsmooError(
            f"the model {type(module).__name__} has lazy layers, and cannot learn their shapes from samples of "
            f"{data.name!r}, {list(x.shape[1:])}: {first_line(e)}"
        ) from e
    finally:
        module.train(training)


def refuse_unready(module: nn.Module) -> None:
    """Refuse a module with a part that has no parameters yet."""
    if found := unready(module):
        name, part = found
        raise FedsmooError(
            f"{type(part).__name__} at {name or 'the top'!r} does not know its shape yet, and a pass over a sample "
            "does not call it: say its number of inputs (nn.Linear for nn.LazyLinear), or leave it out"
        )
