"""The whole hand-batched gradient of ResNet-18-GN against autograd of the plain module in float64."""

import pytest
import torch
import torch.nn.functional as F

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels import available, from_torchvision
from fedsmoo.kernels.resnet18.shapes import shown_images, stored_images
from fedsmoo.models.resnet import ResNet18GN

CLASSES = 7


def networks(count):
    """Modules with drawn weights, norms included: with gamma = 1 and beta = 0 mistakes there would hide."""
    torch.manual_seed(4)
    nets = [ResNet18GN(classes=CLASSES) for _ in range(count)]
    with torch.no_grad():
        for net in nets:
            for name, p in net.named_parameters():
                if p.dim() == 1 and "fc" not in name:
                    p.add_(0.3 * torch.randn_like(p))
    return nets


def truth(net, images, labels, weight):
    """Loss and live gradient of one client, in float64 on the CPU."""
    net = net.double()
    each = F.cross_entropy(net(shown_images(images).double().cpu().permute(0, 3, 1, 2)), labels.cpu(), reduction="none")
    loss = (each * weight.double().cpu()).sum()
    loss.backward()
    return loss.detach(), from_torchvision({n: p.grad for n, p in net.named_parameters()})


def batch(clients, size, device):
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(clients, size, 32, 32, 3, generator=generator)
    labels = torch.randint(0, CLASSES, (clients, size), generator=generator)
    weight = torch.full((clients, size), 1 / size)
    weight[-1, -1] = 0.0  # a partial batch
    return stored_images(images, torch.float32).to(device), labels.to(device), weight.to(device)


def wide_tiles(boxes):
    """Few, large programs: under the interpreter each one costs milliseconds, whatever its size."""
    from fedsmoo.kernels.resnet18.tiles import Tile

    widths = (64, 128, 256, 512)
    tiles = {f"{kind}:{w}": Tile(128, w, w, 4, 1, boxes) for kind in ("forward", "backward") for w in widths}
    tiles |= {f"forward/2:{2 * w}": Tile(128, 2 * w, w, 4, 1, boxes) for w in widths[:3]}
    tiles |= {f"backward/2:{w}": Tile(32, w, 2 * w, 4, 1) for w in widths[:3]}
    tiles |= {f"weight:{2 * w}": Tile(w, 2 * w, 128, 4, 1, boxes) for w in widths[:3]}
    tiles |= {f"weight/2:{2 * w}": Tile(w, 2 * w, 128, 4, 1) for w in widths[:3]}
    # Steps short enough that reductions of the stem and, but for boxes, which have whole samples, of layer 1 are split.
    tiles["weight:64"] = Tile(64, 64, 64 if boxes else 32, 4, 1, boxes)
    return tiles | {"stem-weight:64": Tile(64, 256, 128, 4, 1, boxes)}


@pytest.mark.parametrize("boxes", [False, True])
def test_gradient_loss_and_logits(boxes, device):
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    clients, size = 1 if boxes else 2, 2
    nets = networks(clients)
    w = torch.stack([from_torchvision(net.state_dict()) for net in nets]).to(device)
    images, labels, weight = batch(clients, size, device)
    if boxes and device != "cpu":
        pytest.skip("on a GPU, boxes bring bfloat16 only")
    tiles = wide_tiles(boxes) if device == "cpu" else None
    gradient = ResNet18Gradient(clients, size, CLASSES, device, precision="fp32", tiles=tiles, boxes=boxes)
    if device == "cpu":
        assert gradient.buffers.stem_parts.shape[0] == 2
        assert (gradient.buffers.layer1_parts is None) == boxes
    for scratch in gradient.buffers.units():
        scratch.dy.fill_(float("nan"))  # what is not written must show
    room = torch.full_like(w, float("nan"))
    room[:, gradient.layout.count :] = 0
    grad, loss = gradient(w, images, labels, weight, out=gradient.output(room))
    assert (grad[:, gradient.layout.count :] == 0).all()
    if device != "cpu":  # a second call takes the interpreter long
        short = gradient.output(torch.zeros_like(w, dtype=torch.bfloat16))
        gradient(w, images, labels, weight, out=short)
        assert torch.equal(short.fine, grad[:, gradient.fine :])  # norms and the last layer in full
        coarse = slice(0, gradient.fine)
        torch.testing.assert_close(short.coarse[:, coarse].float(), grad[:, coarse], rtol=2**-7, atol=0)
    logits = gradient.logits(w, images)
    for c, net in enumerate(nets):
        expected_loss, expected = truth(net, images[c], labels[c], weight[c])
        assert abs(loss[c].item() - expected_loss) < 1e-5 * expected_loss
        ours = gradient.layout.split(grad[c].double().cpu())
        for name, value in gradient.layout.split(expected).items():
            error = (ours[name] - value).norm() / value.norm()
            assert error < 2e-5, f"{name}: {error:.1e}"
        outputs = net(shown_images(images[c]).double().cpu().permute(0, 3, 1, 2))
        torch.testing.assert_close(logits[c].double().cpu(), outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.12), ("tf32", 0.04), ("fp32", 1e-5)])
def test_captured_gradient_repeats_and_is_right(precision, tolerance):
    """Right but for kinks: where one rounding decides a ReLU or a maximum, a gradient jumps, in any arithmetic. So the
    median is held to the tolerance, and the worst to what a kink may do."""
    if not available("cuda")[0]:
        pytest.skip(available("cuda")[1] or "the interpreter cannot capture")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    clients, size = 5, 21
    nets = networks(clients)
    w = torch.stack([from_torchvision(net.state_dict()) for net in nets]).cuda()
    images, labels, weight = batch(clients, size, "cuda")
    gradient = ResNet18Gradient(clients, size, CLASSES, precision=precision)
    gradient.compile_ahead(logits=False)
    images = images.to(gradient.dtype)
    eager, eager_loss = gradient(w, images, labels, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, captured_loss = gradient(w, images, labels, weight)
    graph.replay()
    assert torch.equal(captured, eager)
    assert torch.equal(captured_loss, eager_loss)
    errors = []
    for c, net in enumerate(nets):
        _, expected = truth(net, images[c].float(), labels[c], weight[c])
        errors.append(((captured[c].double().cpu() - expected).norm() / expected.norm()).item())
    assert sorted(errors)[clients // 2] < tolerance, errors
    assert max(errors) < max(2 * tolerance, 5e-3), errors


def test_wrong_inputs_are_refused_in_words(device):
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    with pytest.raises(FedsmooError, match="did you mean 'tf32'"):
        ResNet18Gradient(1, 1, CLASSES, device, precision="tf23")
    # A sample's largest map has 16 x 16 pixels of 64 channels, and 32 bits count 2^31 places.
    with pytest.raises(FedsmooError, match=r"131,073 samples .* 131,072: use a smaller batch_size"):
        ResNet18Gradient(1, 2**31 // (16 * 16 * 64) + 1, CLASSES, device)
    gradient = ResNet18Gradient(1, 1, CLASSES, device, precision="fp32")
    images, labels, weight = batch(1, 1, device)
    with pytest.raises(FedsmooError, match="weights are"):
        gradient(torch.zeros(1, 5, device=device), images, labels, weight)
    with pytest.raises(FedsmooError, match="images are"):
        gradient(torch.zeros(1, gradient.layout.size, device=device), images[:, :, :8], labels, weight)


def test_weights_made_before_are_held_to_the_type_of_the_products(device):
    """Weights that were made ready lie in bfloat16, and others in float32; right ones let the labels be looked at."""
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    gradient = ResNet18Gradient(1, 1, CLASSES, device, precision="bf16")
    images, labels, weight = batch(1, 1, device)
    images, w = images.bfloat16(), torch.zeros(1, gradient.layout.size, device=device)
    ready = gradient.weights(w)
    for right in (w, ready):
        with pytest.raises(FedsmooError, match=r"labels \(1, 0\) and weight \(1, 1\)"):
            gradient(right, images, labels[:, :0], weight)
    wrong = [
        (w.bfloat16(), rf"weights are \(1, {w.numel()}\) torch.bfloat16: .* torch.float32"),
        (ready._replace(working=w), rf"weights are \(1, {w.numel()}\) torch.float32: .* torch.bfloat16"),
        (ready._replace(working=ready.working[:, :5]), r"weights are \(1, 5\) torch.bfloat16"),
    ]
    for weights, words in wrong:
        with pytest.raises(FedsmooError, match=words):
            gradient(weights, images, labels, weight)
