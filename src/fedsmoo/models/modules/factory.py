"""Models from a user's file: a class or a function that returns an ``nn.Module``, told about the data if it asks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.user_code import call, refuse_options, user_object
from fedsmoo.data.dataset import Dataset


def sample_shape(data: Dataset) -> tuple[int, ...]:
    """Return the shape of one sample as a model takes it: images with the channels first, one of several inputs."""
    shape = tuple(data.x_train.shape[1:])
    if data.inputs is not None:
        return shape[1:]
    return (shape[2], *shape[:2]) if data.is_image else shape


def vocabulary(data: Dataset) -> int:
    """Return how many tokens a model of text must know: from 0 to the largest in the samples, and every class.

    Raises:
        FedsmooError: if the samples are no whole numbers.
    """
    if data.is_image or data.x_train.is_floating_point():
        raise FedsmooError(
            f"the model asks for a vocabulary, but the samples of {data.name!r} are no text: they are "
            f"{'images' if data.is_image else 'numbers'}"
        )
    largest = max(int(x.max()) for x in (data.x_train, data.x_test) if x.numel())
    return max(largest + 1, data.classes if data.y_train.dim() > 1 else 0)


# What a factory is given if it has a parameter of that name without a default.
FACTS: dict[str, Callable[[Dataset], Any]] = {
    "data": lambda data: data,
    "shape": sample_shape,
    "classes": lambda data: data.classes,
    "outputs": lambda data: data.outputs,
    "vocabulary": vocabulary,
    "samples": lambda data: len(data.x_train),
}


def asked(factory: Callable[..., Any], options: Mapping[str, Any]) -> list[str]:
    """Return the facts that a factory asks for: parameters without a default that no option sets."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # written in C, and silent about it
        return []
    return [
        n for n in FACTS if n in parameters and parameters[n].default is inspect.Parameter.empty and n not in options
    ]


def own_factory(spec: str, data: Dataset, options: Mapping[str, Any]) -> Callable[[], nn.Module]:
    """Return what makes the module of ``path/to/file.py:factory``, from its options and what it asks about the data.

    The file is imported now, so that what it draws meanwhile is not drawn from a seed that is set around the making.
    """
    factory = user_object(spec, "model")
    if isinstance(factory, nn.Module) or not callable(factory):
        raise FedsmooError(
            f"model {spec!r} is a {type(factory).__name__}, but must be a class of modules, or a function that returns "
            "one"
        )
    refuse_options(factory, f"model {spec!r}", (), options)
    facts = {name: FACTS[name](data) for name in asked(factory, options)}

    def make() -> nn.Module:
        module = call(factory, f"model {spec!r} cannot be made", **{**facts, **options})
        if not isinstance(module, nn.Module):
            raise FedsmooError(f"model {spec!r} made a {type(module).__name__}, not an nn.Module")
        return module

    return make
