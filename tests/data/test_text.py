"""Text: speakers, windows, and recurrent models against PyTorch's own cells."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.sources import load
from fedsmoo.data.text import split_speakers
from fedsmoo.models.text import CharGRU, CharLSTM

MODELS = [(CharGRU, nn.GRU), (CharLSTM, nn.LSTM)]
PLAY = "".join(f"{who}:\n" + f"{line} {k} is what I say. " * 6 + "\n\n" for k in range(12) for who, line in
               (("First Citizen", "Speak"), ("MENENIUS", "I tell you, friends"), ("Old Lady", "Nay")))  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), MODELS)
def test_equals_pytorchs_layer(ours, theirs):
    torch.manual_seed(0)
    model = ours(7, hidden=5, embedding=3).double()
    layer = theirs(3, 5, batch_first=True).double()
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(layer, f"{name}_l0").copy_(getattr(model, name))
    x = torch.randint(0, 7, (4, 9))
    want = nn.functional.linear(layer(model.embedding[x])[0], model.weight_out, model.bias_out)
    assert torch.allclose(model(x), want, atol=1e-12)


@pytest.mark.parametrize("kind", [CharGRU, CharLSTM])
def test_vmap_of_gradients_equals_a_loop_and_the_batched_forward(kind):
    torch.manual_seed(1)
    models = [kind(6, hidden=4, embedding=3).double() for _ in range(3)]
    x, y = torch.randint(0, 6, (3, 2, 5)), torch.randint(0, 6, (3, 2, 5))
    stacked = {n: torch.stack([m.state_dict()[n] for m in models]) for n, _ in models[0].named_parameters()}
    assert not list(models[0].named_buffers())

    def loss(parameters, x, y):
        logits = functional_call(models[0], parameters, (x,))
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    mapped = vmap(grad(loss))(stacked, x, y)
    for c, model in enumerate(models):
        value = nn.functional.cross_entropy(model(x[c]).flatten(0, 1), y[c].flatten())
        for name, g in zip(stacked, torch.autograd.grad(value, list(model.parameters())), strict=True):
            assert torch.allclose(mapped[name][c], g, atol=1e-12)
    batched = models[0].batched(stacked, x)
    assert torch.allclose(batched, torch.stack([m(x[c]) for c, m in enumerate(models)]), atol=1e-12)


def test_one_client_per_speaker_and_labels_are_the_next_characters(tmp_path):
    (tmp_path / "play.txt").write_text(PLAY)
    data = load(f"text:{tmp_path / 'play.txt'}")
    assert len(data.natural) == 3
    assert data.classes == len(set(PLAY))
    assert torch.equal(data.x_train[:, 1:], data.y_train[:, :-1])
    said = split_speakers(PLAY, 80)
    for words, mine in zip(said, data.natural, strict=True):
        # A client's windows, put in a row, are the beginning of what its speaker says.
        ids = torch.cat([data.x_train[mine].flatten(), data.y_train[mine[-1], -1:]])
        assert "".join(data.class_names[i] for i in ids.tolist()) == words[: len(ids)]
    covered = torch.cat(data.natural)
    assert torch.equal(covered, torch.arange(len(data.x_train)))
    assert len(data.x_test) == sum(max(1, (len(w) - 1) // 80 // 5) for w in said)


def test_chunks_where_nobody_speaks(tmp_path):
    prose = "It was a dark night. " * 2_000
    (tmp_path / "prose.txt").write_text(prose)
    data = load(f"text:{tmp_path / 'prose.txt'}")
    assert [len(n) for n in data.natural] == [80, 80, 80, 80, 80, 20]  # 100 windows each, a fifth of them for the test
    assert len(data.x_train) + len(data.x_test) == sum(
        (len(prose[i : i + 8001]) - 1) // 80 for i in range(0, 42_000, 8001)
    )


def test_a_few_headings_do_not_make_a_play():
    novel = "Preface:\n" + "It was a dark night. " * 900 + "\nChapter one:\n" + "It was a dark day. " * 900
    assert [len(c) for c in split_speakers(novel, 80)][:-1] == [8001] * (len(novel) // 8001)
    assert "".join(split_speakers(novel, 80)) == novel


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"too short", "too short"), (b"\xff\xfe\x00 no utf-8", "not UTF-8"), (None, "no such file")],
)
def test_bad_text_says_so(tmp_path, content, message):
    file = tmp_path / "bad.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FedsmooError, match=message):
        load(f"text:{file}")


def test_a_recurrent_model_learns_a_periodic_text(tmp_path):
    """Every next character of "abcabc..." is certain, so the loss must approach zero from log 3."""
    (tmp_path / "abc.txt").write_text("abc" * 2_000)
    data = load(f"text:{tmp_path / 'abc.txt'}")
    torch.manual_seed(0)
    model = CharGRU(data.classes, hidden=8, embedding=4)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    losses = []
    for _ in range(30):
        value = nn.functional.cross_entropy(model(data.x_train[:8, :20]).flatten(0, 1), data.y_train[:8, :20].flatten())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[0] == pytest.approx(np.log(3), rel=0.2)
    assert losses[-1] < 0.1
