"""The models of docs/models.md: small ones of every kind, each with data to train it on. tests/models/test_table.py
trains each of them on every engine, benchmarks/cpu/models.py takes the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.core.user_code import user_object
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.models import make_module
from fedsmoo.models.small import CNN, CNNGN, MLP
from fedsmoo.models.text import CharLSTM

CLASSES, TOKENS, LENGTH, SIDE = 4, 30, 8, 8
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@dataclass(frozen=True)
class Tried:
    """A row of the table: a model, what is special about it, and its data, as functions of the number of samples."""

    name: str
    about: str
    make: Callable[[], nn.Module]
    data: Callable[[int], Dataset]
    needs: tuple[str, ...] = ()  # packages

    @property
    def missing(self) -> str:
        """The first package that is not installed; empty if all are."""
        return next((p for p in self.needs if find_spec(p) is None), "")

    def module(self) -> nn.Module:
        return make_module(self.make, 0)


@dataclass(frozen=True)
class Own:
    """A module of one's own, ``file.py:factory``, and what it takes: numbers of a shape, or tokens below a number.

    With 0 classes it says the next token at every place.
    """

    module: str
    inputs: str
    tokens: int
    classes: int

    def row(self) -> Tried:
        return Tried(self.module, "", user_object(self.module, "model"), self.data)

    def data(self, samples: int) -> Dataset:
        draw, shape = torch.Generator().manual_seed(0), (2 * samples, *(int(n) for n in self.inputs.split("x")))
        x = torch.randint(self.tokens, shape, generator=draw) if self.tokens else torch.randn(shape, generator=draw)
        y = torch.randint(self.classes, shape[:1], generator=draw) if self.classes else x.roll(-1, 1)
        return from_arrays(x[:samples], y[:samples], x[samples:], y[samples:], "noise")


def images(samples: int) -> Dataset:
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=2 * samples)
    x = rng.standard_normal((CLASSES, 1, SIDE, SIDE))[y] + rng.standard_normal((2 * samples, 1, SIDE, SIDE))
    x = x.astype(np.float32)
    return from_arrays(x[:samples], y[:samples], x[samples:], y[samples:], "images")


def pictures(samples: int) -> Dataset:
    rng = np.random.default_rng(3)
    y = rng.integers(CLASSES, size=2 * samples)
    x = (rng.standard_normal((CLASSES, 3, 32, 32))[y] + rng.standard_normal((2 * samples, 3, 32, 32))).astype(
        np.float32
    )
    return from_arrays(x[:samples], y[:samples], x[samples:], y[samples:], "pictures")


def tokens(samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sentences of several lengths, which of their positions are real, and a class of each."""
    rng = np.random.default_rng(1)
    ids, length = rng.integers(1, TOKENS, (2 * samples, LENGTH)), rng.integers(3, LENGTH + 1, (2 * samples, 1))
    real = (np.arange(LENGTH) < length).astype(np.int64)
    return ids * real, real, ids[:, 0] % CLASSES


def sentences(samples: int) -> Dataset:
    """Sentences with their masks, by name, and a class of each."""
    ids, real, y = tokens(samples)
    x = np.stack([ids, real], 1)
    names = ("input_ids", "attention_mask")
    return from_arrays(x[:samples], y[:samples], x[samples:], y[samples:], "sentences", inputs=names)


def next_tokens(samples: int) -> Dataset:
    """Sentences and at each position the next token; what is beyond the end has no label."""
    ids, real, _ = tokens(samples)
    y = np.where(np.roll(real, -1, 1) * (np.arange(LENGTH) < LENGTH - 1) > 0, np.roll(ids, -1, 1), -100)
    return from_arrays(ids[:samples], y[:samples], ids[samples:], y[samples:], "next tokens")


def series(samples: int) -> Dataset:
    rng = np.random.default_rng(2)
    y = rng.integers(CLASSES, size=2 * samples)
    x = (np.eye(CLASSES)[y][:, None] + rng.standard_normal((2 * samples, LENGTH, CLASSES))).astype(np.float32)
    return from_arrays(x[:samples], y[:samples], x[samples:], y[samples:], "series")


class Recurrent(nn.Module):
    """PyTorch's LSTM, and a guess from its last state; returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(CLASSES, 16, num_layers=2, batch_first=True, dropout=0.1), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        out, state = self.lstm(x)
        return self.head(out[:, -1]), state


class Encoder(nn.Module):
    """PyTorch's Transformer encoder on the rows of an image; returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(SIDE, 2, 16, dropout=0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(SIDE, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(x.squeeze(1))
        return {"hidden": hidden, "logits": self.head(hidden.mean(1))}


class DropPath(nn.Module):
    """Stochastic depth: leaves a block out for some of the samples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(1 - self.rate)
        return x * keep / (1 - self.rate)


class Block(nn.Module):
    """A block of ConvNeXt: depthwise convolution, LayerNorm over channels, two linear layers, a scale, DropPath."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma, self.drop_path = nn.Parameter(torch.full((width,), 0.5)), DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).movedim(1, -1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + self.drop_path(y.movedim(-1, 1))


class ConvNeXt(nn.Module):
    """A timm-style network with DropPath; its head is lazy."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 2, stride=2)
        self.blocks = nn.Sequential(Block(8, 0.1), Block(8, 0.2))
        self.head = nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Residual(nn.Module):
    """A block of ResNet, with BatchNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def resnet() -> nn.Module:
    stem = (nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(*stem, Residual(8), nn.MaxPool2d(2), Residual(8), nn.Flatten(), nn.Linear(128, CLASSES))


class LoRA(nn.Module):
    """A frozen linear layer and a trained change of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.mT @ self.b.mT


def lora_mlp() -> nn.Module:
    layers = (LoRA(nn.Linear(SIDE * SIDE, 32)), nn.ReLU(), LoRA(nn.Linear(32, 32)), nn.ReLU(), nn.Linear(32, CLASSES))
    return nn.Sequential(nn.Flatten(), *layers)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(vocab_size=TOKENS, max_position_embeddings=LENGTH, num_labels=CLASSES, pad_token_id=0, **TINY)
    )


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=SIDE, patch_size=4, num_channels=1, num_labels=CLASSES, **TINY)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1
    return ViTForImageClassification(config)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=TOKENS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(vocab_size=TOKENS, max_position_embeddings=LENGTH, num_key_value_heads=2, **TINY)
    )


def bert_lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(bert(), LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=2))


class Patches(nn.Module):
    """A vision transformer on patches of 4x4: two layers of 96, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 96, 4, 4), nn.Parameter(0.02 * torch.randn(1, 64, 96))
        layer = nn.TransformerEncoderLayer(96, 3, 192, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(96, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.patches(x).flatten(2).mT + self.places).mean(1))


class Last(nn.Module):
    """A recurrent layer over a series, and a guess from its last output."""

    def __init__(self, layer: type[nn.RNNBase], units: int) -> None:
        super().__init__()
        self.layer, self.head = layer(CLASSES, units, batch_first=True), nn.Linear(units, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


HF = ("transformers",)
ZOO = [
    Tried("MLP", "by hand", lambda: MLP(SIDE * SIDE, CLASSES), images),
    Tried("CNN with GroupNorm", "by hand", lambda: CNNGN(1, CLASSES, 8), images),
    Tried("ResNet with BatchNorm", "running statistics, averaged", resnet, images),
    Tried("character LSTM", "by hand; positions without a label", lambda: CharLSTM(TOKENS, 16), next_tokens),
    Tried("`nn.LSTM`, two layers", "dropout; returns a tuple", Recurrent, series),
    Tried("`nn.TransformerEncoder`", "dropout; returns a dict", Encoder, images),
    Tried("`nn.LSTM` of 64", "of 8 positions", lambda: Last(nn.LSTM, 64), series),
    Tried("`nn.GRU` of 32", "", lambda: Last(nn.GRU, 32), series),
    Tried("`cnn`", "32x32 images", lambda: CNN(3, 32, CLASSES), pictures),
    Tried("ViT, patches of 4x4", "32x32 images", Patches, pictures),
    Tried("ConvNeXt, as timm writes it", "DropPath; a lazy head", ConvNeXt, images),
    Tried("LoRA by hand", "frozen weights", lora_mlp, images),
    Tried("BERT", "HuggingFace; inputs by name, masks, dropout, constant buffers", bert, sentences, HF),
    Tried("ViT", "HuggingFace; dropout", vit, images, HF),
    Tried("GPT-2", "HuggingFace; tied weights, dropout, padding", gpt2, next_tokens, HF),
    Tried("Llama", "HuggingFace; rotary tables, padding", llama, next_tokens, HF),
    Tried("BERT with LoRA", "peft: frozen weights, inputs by name, dropout", bert_lora, sentences, (*HF, "peft")),
]
