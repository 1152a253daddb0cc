"""Models by name, each as a function of one flat vector."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

from torch import nn

from fedsmoo.core.errors import FedsmooError, first_line, unknown
from fedsmoo.core.random.streams import generator_apart, stream
from fedsmoo.core.user_code import is_in_file
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.targets import CLASSES
from fedsmoo.models.base import FlatModel
from fedsmoo.models.live import LiveResNet
from fedsmoo.models.modules.factory import own_factory
from fedsmoo.models.modules.lazy import show
from fedsmoo.models.modules.start import Start, put_start
from fedsmoo.models.resnet import ResNet18GN, ResNet18GNCifar
from fedsmoo.models.small import CNN, CNNGN, MLP, LeNet, Softmax
from fedsmoo.models.text import CharGRU, CharLSTM

Factory = Callable[..., nn.Module]


def features(data: Dataset) -> int:
    return data.x_train[0].numel()


def image_shape(data: Dataset) -> tuple[int, int, int]:
    """Channels, height and width of one input as the model takes it."""
    shape = tuple(data.x_train.shape[1:])
    if data.is_image:
        return shape[2], shape[0], shape[1]
    if len(shape) != 3:
        raise FedsmooError(
            f"this model takes images, but the samples of {data.name!r} have the shape {shape}: use mlp or softmax"
        )
    return shape  # type: ignore[return-value]


def characters(data: Dataset) -> int:
    """How many characters there are to say next."""
    if data.target != CLASSES:
        raise FedsmooError(f"this model says the next character, but the targets of {data.name!r} are {data.target}")
    return data.classes


# name -> (one line, factory(data, **options))
MODELS: dict[str, tuple[str, Factory]] = {
    "softmax": ("softmax regression", lambda d: Softmax(features(d), d.outputs)),
    "mlp": ("two hidden layers of 64", lambda d, hidden=64: MLP(features(d), d.outputs, hidden)),
    "lenet": (
        "the authors' LeNet: two 5x5 convolutions of 64, a 384-192 head",
        lambda d: LeNet(image_shape(d)[0], image_shape(d)[1], d.outputs),
    ),
    "cnn": (
        "the CNN of many papers: lenet's layers, as a plain module",
        lambda d: CNN(image_shape(d)[0], image_shape(d)[1], d.outputs),
    ),
    "cnn_gn": (
        "three 3x3 convolutions with GroupNorm",
        lambda d, width=16, groups=2: CNNGN(image_shape(d)[0], d.outputs, width, groups),
    ),
    "resnet18_gn": (
        "torchvision's ResNet-18 with GroupNorm(2), the paper's model",
        lambda d, groups=2: ResNet18GN(d.outputs, image_shape(d)[0], groups),
    ),
    "resnet18_gn_cifar": (
        "ResNet-18 with GroupNorm(2), a 3x3 stem and no pooling",
        lambda d, groups=2: ResNet18GNCifar(d.outputs, image_shape(d)[0], groups),
    ),
    "char_gru": ("next-character GRU for text", lambda d, hidden=64: CharGRU(characters(d), hidden=hidden)),
    "char_lstm": ("next-character LSTM for text", lambda d, hidden=64: CharLSTM(characters(d), hidden=hidden)),
}


def model_options(name: str) -> dict[str, Any]:
    """Return the options of a model and their defaults."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return {n: p.default for n, p in list(inspect.signature(MODELS[name][1]).parameters.items())[1:]}


def refuse_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a model does not have, or that are no sizes: all of them are whole numbers above 0."""
    known = model_options(name)
    if options and not known:
        raise FedsmooError(f"the model {name} has no options: leave out {', '.join(options)}")
    for option, value in options.items():
        if option not in known:
            raise unknown(f"option of the model {name}", option, known)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise FedsmooError(f"{option} of the model {name} is {value!r}, but must be a whole number above 0")


def make_module(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a module initialised from its own stream; the global generator is left as it was."""
    with generator_apart(int(stream(seed, "model").integers(2**63 - 1))):
        return factory()


def build(
    name: str, data: Dataset, seed: int, live: bool = True, start: Start | None = None, **options: Any
) -> FlatModel:
    """Return a model by name, sized for a data set and initialised from the seed, or from a file."""
    refuse_options(name, options)
    try:
        module = make_module(lambda: MODELS[name][1](data, **options), seed)
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as e:  # PyTorch's own words for an impossible layer
        given = ", ".join(f"{k}={v!r}" for k, v in options.items()) or "these data"
        raise FedsmooError(f"the model {name} cannot be built with {given}: {first_line(e)}") from e
    flat = wrap(module, data, seed, live, start=start)
    flat.random = False  # none of ours draws
    return flat


def wrap(
    module: nn.Module,
    data: Dataset,
    seed: int = 0,
    live: bool = True,
    output: str | None = None,
    start: Start | None = None,
) -> FlatModel:
    """Return a module as a flat model of this data; the module itself is changed where it has to be.

    Args:
        module: whose weights are the start.
        data: what it is called with; lazy layers learn their shapes from it.
        seed: of what lazy layers draw.
        live: the ResNet keeps only the weights that can ever meet a pixel of these images.
        output: which part of what it returns holds the outputs.
        start: a file to take the weights from instead.
    """
    show(module, data, seed)
    if start is not None:
        put_start(module, start)
    if (
        live
        and output is None
        and data.inputs is None
        and isinstance(module, ResNet18GN)
        and data.is_image
        and LiveResNet.fits(module, image_shape(data))
    ):
        return LiveResNet(module)
    return FlatModel(module, output, data.inputs)


def make_model(
    spec: str,
    data: Dataset,
    seed: int,
    options: Mapping[str, Any],
    output: str | None = None,
    start: Start | None = None,
) -> FlatModel:
    """Return a model by name, or from a user's file, as a flat model; the arguments are those of :func:`wrap`."""
    if is_in_file(spec):
        return wrap(make_module(own_factory(spec, data, options), seed), data, seed, output=output, start=start)
    if output is not None:
        raise FedsmooError(f"output is {output!r}, but the model {spec} returns one tensor: leave output out")
    return build(spec, data, seed, start=start, **options)


__all__ = [
    "MODELS",
    "FlatModel",
    "Start",
    "build",
    "make_model",
    "make_module",
    "model_options",
    "refuse_options",
    "wrap",
]
