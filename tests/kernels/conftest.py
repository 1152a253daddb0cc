"""The kernels run on the GPU where there is one, else on the CPU under Triton's interpreter."""

import importlib.util

import pytest
import torch

TRITON = importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if TRITON and DEVICE == "cpu":
    from . import interpreted  # noqa: F401


@pytest.fixture
def device():
    if not TRITON:
        pytest.skip("triton is not installed")
    return DEVICE


FENCE = 2**15  # numbers before and behind a tensor: more than a tile can miss it by


@pytest.fixture
def draw(device):
    """``draw(*shape)``: standard normal float32 numbers on the device, the same in every run.

    Every tensor lies between fences of nan: what is read there by mistake shows in the results, and what is written
    there fails the test.
    """
    generator, drawn = torch.Generator().manual_seed(20230723), []

    def fenced(*shape):
        numbers = torch.randn(*shape, generator=generator)
        fence = torch.full((FENCE,), float("nan"))
        whole = torch.cat([fence, numbers.flatten(), fence]).to(device)
        drawn.append(whole)
        return whole[FENCE : FENCE + numbers.numel()].view(shape)

    yield fenced
    for whole in drawn:
        assert whole[:FENCE].isnan().all(), "a kernel wrote before one of its tensors"
        assert whole[-FENCE:].isnan().all(), "a kernel wrote behind one of its tensors"


@pytest.fixture
def offsets(monkeypatch):
    """What kinds of numbers tiles of places in some memory are, ``offsets(tensor)``, in launches since."""
    from triton.runtime.interpreter import InterpreterBuilder

    seen, plain = [], InterpreterBuilder.create_addptr

    def noted(self, at, offset):
        if at.data.size > 1 and (at.data == at.data.flat[0]).all():  # one address, to which a tile of places is added
            seen.append((int(at.data.flat[0]), offset.data.dtype.name))
        return plain(self, at, offset)

    monkeypatch.setattr(InterpreterBuilder, "create_addptr", noted)
    return lambda t: {kind for at, kind in seen if t.data_ptr() <= at < t.data_ptr() + t.nbytes}
