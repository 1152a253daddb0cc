"""A model as a function of one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.layout import Layout
from fedsmoo.core.random.layers import ClientsNoise
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.models import buffers
from fedsmoo.models.draws import AnyNoise
from fedsmoo.models.dropout import draw_through
from fedsmoo.models.modules.call import call_holding, call_with, has_two_names, holding, norms_of, places_of
from fedsmoo.models.modules.copies import copied, refuse_lost
from fedsmoo.models.modules.inputs import arguments, asks_whether_traced, refuse_unknown_inputs, unseen
from fedsmoo.models.modules.lazy import refuse_unready
from fedsmoo.models.modules.modes import has_own_modes
from fedsmoo.models.modules.outputs import picked, unrounded

# parameters {name: [C, *shape]}, inputs [C, B, ...] -> outputs [C, B, ...]: C models at once, each on its own batch
BatchedForward = Callable[[Mapping[str, Tensor], Tensor], Tensor]
# Where a model draws that is random in evaluation, too: the same numbers every time, so that evaluations compare.
EVALUATION = Noise(key_of(0, "evaluation"))


class FlatModel:
    """An ``nn.Module`` seen as a function of its flat parameter vector ``w``.

    Parameters with ``requires_grad=False`` are frozen: no part of ``w``, no client trains or sends them, and they stay
    as they were when the model was wrapped; so do buffers, but for ``statistics``, which clients have of their own and
    whose vector is another one. A module may bring its own hand-batched forward, as a method
    ``batched(parameters, x)`` that takes every parameter with a leading client axis; without one the engines use
    ``torch.func.vmap``.

    What the module returns may hold more than its outputs, which ``output`` names (see
    :func:`fedsmoo.models.modules.outputs.picked`); ``inputs`` are names by which it is called with parts of a sample.

    As in every training loop of PyTorch the module is in train mode for local steps and in eval mode for evaluation:
    :meth:`train` and :meth:`eval`, called before.
    """

    def __init__(self, module: nn.Module, output: str | None = None, inputs: tuple[str, ...] | None = None) -> None:
        buffers.refuse_batch_norm(module)
        refuse_unready(module)
        refuse_lost(module)
        refuse_unknown_inputs(module, inputs)
        self.module, self.output, self.inputs = module, output, inputs
        # Whether it draws random numbers (dropout): in local steps, and in evaluation, too. None: models.examine says.
        self.random: bool | None = None
        self.random_in_evaluation = self.examined = False
        self.mixes_in_evaluation = False  # whether an answer there depends on the other samples of a batch
        # Whether its passes are made again in a backward pass (activation checkpointing), and write to their inputs.
        self.recomputes = self.writes_inputs = False
        self._training: bool | None = None
        self._listening = False
        self._heard: list[Tensor] | None = None
        self._asks, self._places = asks_whether_traced(module), places_of(module)
        self._twice = self._places is not None and has_two_names(module)
        self._own_modes = has_own_modes(module)
        trained = {n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
        self.layout = Layout(trained, words={"norms": norms_of(module)})
        self._frozen = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}
        if self.layout.size == 0:
            what = "only frozen parameters (requires_grad=False)" if self._frozen else "no parameters"
            raise FedsmooError(f"the model {type(module).__name__} has {what}: nothing to train")
        if self._frozen and type(self).forward is not FlatModel.forward:
            raise FedsmooError(
                f"{next(iter(self._frozen))!r} of {type(module).__name__} is frozen (requires_grad=False), but this "
                "model's vector holds every parameter: put it inside a module of your own, or unfreeze it"
            )
        kept = buffers.copies(module)
        self.buffers = tuple(kept)  # their names
        self._frozen |= kept
        self.statistics: buffers.Statistics | None = None  # what of the buffers changes; see models.examine
        self.padding, self.fewest, self.lengths = "free", 1, (0, 0)  # see engines.statistics
        self.looked_at = False  # with its loss, by a task
        self.batched: BatchedForward | None = self._by_hand if hasattr(module, "batched") else None

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Keep what is frozen where a run computes, so that no step copies or converts it."""
        every = {**buffers.copies(self.module), **self._frozen}  # with those that the first pass has registered
        self.buffers = tuple(n for n in every if n in self.buffers or n not in self._frozen)
        self._frozen = buffers.all_like(every, device, dtype)
        buffers.place(self.module, self._frozen)

    def _with_frozen(self, parameters: Mapping[str, Tensor], batched: bool = False) -> dict[str, Tensor]:
        """Return all tensors of the module: those given, and the frozen ones (for every client, if batched)."""
        if not self._frozen:
            return dict(parameters)
        first = next(iter(parameters.values()))
        frozen = buffers.all_like(self._frozen, first.device, first.dtype)
        if batched:
            frozen = {n: p.expand(len(first), *p.shape) for n, p in frozen.items()}
        return {**frozen, **parameters}

    def buffer_copies(self, like: Tensor) -> dict[str, Tensor]:
        """Return copies of the buffers, as a pass with parameters like these reads them."""
        copied = {id(self._frozen[n]): self._frozen[n].clone() for n in self.buffers}
        return buffers.all_like({n: copied[id(self._frozen[n])] for n in self.buffers}, like.device, like.dtype)

    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Take what is frozen from a state dict of the module, as far as that holds it."""
        once = {id(t): state[n].detach().clone() for n, t in self._frozen.items() if n in state}
        self._frozen |= {n: once[id(t)] for n, t in self._frozen.items() if n in state}

    def keep_statistics(self, names: Collection[str]) -> None:
        """Take buffers for statistics, which passes in train mode change."""
        if names:
            self.statistics = buffers.Statistics({n: self._frozen[n] for n in self.buffers}, names)
            self.batched = None  # which could not say what became of them

    def hold(self, statistics: Tensor) -> None:
        """Have statistics in evaluations, exports and state dicts from now on."""
        assert self.statistics is not None
        self._frozen |= self.statistics.split(statistics)

    @contextmanager
    def holding(self, other: FlatModel) -> Iterator[None]:
        """Have the statistics of a model like this one, inside this context."""
        before = {} if self.statistics is None else {n: self._frozen[n] for n in self.statistics.names}
        self._frozen |= {n: other._frozen[n] for n in before}
        try:
            yield
        finally:
            self._frozen |= before

    def same_frozen(self, other: FlatModel) -> bool:
        """Return whether two models have the same frozen tensors, so that one can stand in for the other."""
        mine, theirs = self.constants, other.constants
        return mine.keys() == theirs.keys() and all(
            torch.equal(p, buffers.like(theirs[n], p.device, p.dtype)) for n, p in mine.items()
        )

    @property
    def constants(self) -> dict[str, Tensor]:
        """What is frozen for good: parameters and buffers, without statistics."""
        return {n: t for n, t in self._frozen.items() if self.statistics is None or n not in self.statistics.names}

    def same_function(self, other: FlatModel, w: Tensor, x: Tensor) -> bool:
        """Whether two models answer alike at the weights ``w``: modules may hold tensors that are no parameters."""
        self.eval()
        other.eval()
        stats = {} if self.statistics is None else self.statistics.split(self.statistics.first.to(w))
        with torch.no_grad():
            mine, theirs = (model.forward({**model.layout.split(w), **stats}, x) for model in (self, other))
        return torch.equal(mine, theirs)

    @property
    def full_size(self) -> int:
        """How many numbers the exported model has; more than ``layout.count`` where dead or frozen weights are left
        out."""
        return sum(p.numel() for p in self.module.parameters())

    def initial(self) -> Tensor:
        """Return the module's present parameters as a flat vector, without the frozen ones."""
        return self.layout.join({n: p.detach() for n, p in self.module.named_parameters()})

    def train(self, on: bool = True) -> None:
        """Put the module in train mode, or in eval mode; for the sake of speed, only where it is not."""
        if self._training is not on:
            (self.module.train if on else self.module.eval)()  # a user's own may do more than the other
            self._training = on

    def eval(self) -> None:
        """Put the module in eval mode."""
        self.train(False)

    def forward(self, parameters: Mapping[str, Tensor], x: Tensor, noise: AnyNoise | None = None) -> Tensor:
        """Return one model's outputs on a batch ``[B, ...]``; random layers draw from ``noise`` in a local step.

        Noise of C clients is what ``models.draws.drawing`` around ``vmap`` draws from: it cannot begin inside.
        """
        if noise is None and self._training is False and self.random_in_evaluation:
            noise = EVALUATION
        if noise is None:
            assert not self.random or self._training is False, "a step of a random model needs noise"
            return self._pass(parameters, x)
        if isinstance(noise, ClientsNoise):
            return self._pass(parameters, x)
        return draw_through(self.module, noise, lambda: self._pass(parameters, x))

    def _pass(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Call the module as the data has it, and return its outputs among what it returns.

        Where ``parameters`` holds buffers, too, it does so afterwards as the pass has left them.
        """
        whole, kept = self._with_frozen(parameters), self.buffers
        x = x.clone() if self.writes_inputs else x
        if self.statistics is not None and self.module.training and self.statistics.names.keys().isdisjoint(parameters):
            whole |= self.statistics.spare(whole, next(iter(parameters.values())))
            kept = tuple(n for n in kept if n not in self.statistics.names)
        before = dict(whole) if kept else whole
        compiling = torch.compiler.is_compiling()  # not what unseen says
        with unseen(x) if self._asks and not compiling else nullcontext():
            if self.buffers or self._places is None or torch.compiler.is_compiling():
                call = call_holding if self._twice and not compiling else functional_call
                out = call(self.module, whole, *arguments(x, self.inputs))
            else:
                out = call_with(self.module, self._places, whole, *arguments(x, self.inputs))
        if kept:
            buffers.hand_back(kept, parameters, before, whole)
        if self._own_modes and not self.module.training:  # what it keeps of weights until train() is of these alone
            self.module.train()
            self.module.eval()
        return unrounded(picked(out, self.output, self.module))

    def in_place(self, parameters: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Let the module itself hold these tensors for its backward pass, too, if that makes passes again."""
        if not self.recomputes:
            return nullcontext()
        whole = {**self.buffer_copies(next(iter(parameters.values()))), **parameters}
        return holding(self.module, whole)

    def _by_hand(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return C models' outputs on a batch each, ``[C, B, ...]``, by the module's own hand-batched forward."""
        args, named = arguments(x.clone() if self.writes_inputs else x, self.inputs, axis=2)
        out = self.module.batched(self._with_frozen(parameters, batched=True), *args, **named)  # type: ignore[operator]
        return unrounded(picked(out, self.output, self.module))

    def with_features(
        self, parameters: Mapping[str, Tensor], x: Tensor, noise: AnyNoise | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return one model's outputs on a batch, and its features ``[B, F]``: what :meth:`feature_layer` reads.

        Raises:
            FedsmooError: if the model has no such layer, or does not call it.
        """
        if not self._listening:  # once: compilers cannot follow a hook that comes and goes
            self.feature_layer().register_forward_pre_hook(self._listen)
            self._listening = True
        self._heard = []
        out, heard = self.forward(parameters, x, noise), self._heard
        self._heard = None
        if not heard:
            raise FedsmooError(
                f"the model {type(self.module).__name__} does not call the layer whose input would be its features: "
                "name another one in the module, feature_layer = 'NAME'"
            )
        return out, unrounded(heard[-1]).flatten(1)

    def feature_layer(self) -> nn.Module:
        """Return the layer that reads the model's features: the module's ``feature_layer``, or its last ``nn.Linear``.

        Raises:
            FedsmooError: if there is none.
        """
        layers, name = dict(self.module.named_modules()), getattr(self.module, "feature_layer", None)
        if name is not None:
            if name not in layers:
                raise unknown(f"feature_layer of the model {type(self.module).__name__}", str(name), layers)
            return layers[name]
        linear = [layer for layer in layers.values() if isinstance(layer, nn.Linear)]
        if not linear:
            raise FedsmooError(
                f"the model {type(self.module).__name__} has no nn.Linear, whose input would be its features: name the "
                "layer that reads them in the module, feature_layer = 'NAME'"
            )
        return linear[-1]

    def _listen(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self._heard is not None:
            self._heard.append(inputs[0])

    def state_dict(self, w: Tensor, statistics: Tensor | None = None) -> dict[str, Tensor]:
        """Return all parameters and buffers, as ``load_state_dict`` takes them; with other statistics than it holds."""
        parts = self._with_frozen(self.layout.split(w))
        if statistics is not None and self.statistics is not None:
            parts |= self.statistics.split(statistics)
        # A tied parameter has several names in a state dict; the vector holds it under the first.
        first = {id(p): n for n, p in self.module.named_parameters()}
        every = {n: first[id(p)] for n, p in self.module.named_parameters(remove_duplicate=False)}
        every |= {n: n for n in buffers.persistent(self.module)}
        return {n: parts[own].detach().clone() for n, own in every.items()}

    def flatten(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vector of a state dict of the module: the inverse of :meth:`state_dict`."""
        return self.layout.join(state)

    def export(self, w: Tensor, statistics: Tensor | None = None) -> nn.Module:
        """Return a copy of the module with the parameters ``w``, in eval mode; with other statistics than it holds."""
        module: nn.Module = copied(self.module)
        with torch.no_grad():
            module.eval()
            values = {**self.state_dict(w), **self._frozen}
            if statistics is not None and self.statistics is not None:
                values |= self.statistics.split(statistics)
            for name, t in (*module.named_parameters(), *module.named_buffers()):
                t.copy_(values[name])
        return module
