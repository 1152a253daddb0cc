"""The generalisation bound of the paper's theorem, as far as it can be computed from a model.

    G  <=  G~_eps + O( sqrt( (L^2 L_n^2 d ln(d L) V + ln(L D / p)) / ((D - 1) eps^2) ) )
    V  =   prod_l ||W_l||^2  *  sum_l ||W_l||_F^2 / ||W_l||^2

G is the error under the perturbation s, G~_eps the empirical margin error: the share of samples whose margin at w + s
is at most eps. L layers of at most d units, inputs of norm L_n, D samples, confidence 1 - p; ``||.||`` is the spectral
norm and ``||.||_F`` Frobenius'. What it means, and what it does not, is in docs/analysis.md.

Reference: Sun et al., ICML 2023, Theorem 4.4; after Neyshabur, Bhojanapalli, Srebro, "A PAC-Bayesian approach to
spectrally-normalized margin bounds for neural networks", ICLR 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsmoo.analysis.functions.hessian import top_eigenvalues
from fedsmoo.analysis.functions.objective import Objective, labels_that_count, refuse_no_classes
from fedsmoo.core import FedsmooError, unit


@dataclass(frozen=True)
class Layer:
    """A weight layer's name and norms; ``units`` is the larger of its inputs and outputs."""

    name: str
    spectral: float
    frobenius: float
    units: int


def weight_layers(module: nn.Module, x: Tensor, operator: bool = True) -> list[Layer]:
    """Return the norms of a network's linear and convolutional layers, as it stands.

    Args:
        module: the network with its weights.
        x: a batch of inputs, which tells on what maps each convolution works.
        operator: a convolution as the linear map of its whole input; otherwise its kernel as a matrix
            ``[out, in * k * k]``, a cheaper stand-in that is smaller by up to k.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def keep(name: str):
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
            shapes[name] = tuple(inputs[0].shape[1:])

        return hook

    layers = {n: m for n, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    if not layers:
        raise FedsmooError("the bound knows linear and convolutional layers only; this model has none")
    known = {id(p) for m in (*layers.values(), *norms_of(module)) for p in m.parameters()}
    others = [n for n, p in module.named_parameters() if p.dim() > 1 and id(p) not in known]
    if others:
        raise FedsmooError(
            f"the bound knows linear and convolutional layers only: without {others[0]}, which is of neither, it would "
            "be of another model"
        )
    hooks = [m.register_forward_hook(keep(n)) for n, m in layers.items()]
    try:
        with torch.no_grad():
            module(x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return [measure_layer(n, m, shapes[n], operator) for n, m in layers.items() if n in shapes]


def norms_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a network whose weights are scales, whatever shape they have."""
    return [m for m in module.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]


def measure_layer(name: str, layer: nn.Linear | nn.Conv2d, shape: tuple[int, ...], operator: bool) -> Layer:
    """Return one layer's norms. The Frobenius norm is that of the stored weights, as in the theorem."""
    weight = layer.weight.detach()
    matrix = weight.flatten(1)
    frobenius = matrix.norm().item()
    if isinstance(layer, nn.Conv2d) and operator:
        spectral = convolution_norm(layer, shape)
    else:
        spectral = torch.linalg.matrix_norm(matrix, 2).item()
    return Layer(name, spectral, frobenius, max(matrix.shape))


def convolution_norm(layer: nn.Conv2d, shape: tuple[int, ...]) -> float:
    """Return the largest singular value of a convolution on inputs of a shape: Lanczos on ``A' A``."""
    weight = layer.weight.detach()

    def products(v: Tensor) -> Tensor:
        x = v.view(1, *shape).requires_grad_()
        with torch.enable_grad():
            out = layer._conv_forward(x, weight, None)  # with its stride, groups, and way of padding
            (back,) = torch.autograd.grad(out, x, out.detach())
        return back.flatten()

    values, _, _ = top_eigenvalues(products, weight.new_zeros(math.prod(shape)), tol=1e-6)
    return math.sqrt(max(float(values[0]), 0.0))


def log_capacity(layers: list[Layer]) -> float:
    """``ln V``; a logarithm because the product of many layers overflows."""
    if any(layer.spectral == 0 for layer in layers):
        return -math.inf
    product = sum(2 * math.log(layer.spectral) for layer in layers)
    return product + math.log(sum((layer.frobenius / layer.spectral) ** 2 for layer in layers))


def margins(outputs: Tensor, y: Tensor) -> Tensor:
    """``out[y] - max over j != y of out[j]`` for every sample."""
    right = outputs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    others = outputs.scatter(-1, y.unsqueeze(-1), -math.inf).amax(-1)
    return right - others


def margin_error(objective: Objective, w: Tensor, s: Tensor, eps: float) -> float:
    """``G~_eps``: the share of samples whose margin at the perturbed model w + s is at most eps, or is no number."""
    refuse_no_classes(objective.task, "the margin")
    there = labels_that_count(objective.task, objective.y)
    beyond = margins(objective.outputs(w + s)[there], objective.y[there]) > eps
    return (~beyond).double().mean().item()


def sam_perturbation(objective: Objective, w: Tensor, r: float) -> Tensor:
    """``r * unit(f'(w))``: the global perturbation that FedSMOO's clients agree on in the limit."""
    return r * unit(objective.gradient(w))


def bound_term(layers: list[Layer], samples: int, input_norm: float, eps: float, p: float = 0.05) -> float:
    """Return the theorem's second term, with the constant of its O taken as 1, as a natural logarithm."""
    if eps <= 0 or not 0 < p < 1 or samples < 2:
        raise FedsmooError(f"the bound needs eps > 0, 0 < p < 1 and 2 samples; these are {eps:g}, {p:g} and {samples}")
    depth, units = len(layers), max(layer.units for layer in layers)
    first = 2 * math.log(depth * input_norm) + math.log(units * math.log(max(units * depth, 2))) + log_capacity(layers)
    second = math.log(max(math.log(depth * samples / p), 1e-300))
    top = max(first, second)
    total = top + math.log(math.exp(first - top) + math.exp(second - top))
    return 0.5 * (total - math.log((samples - 1) * eps**2))
