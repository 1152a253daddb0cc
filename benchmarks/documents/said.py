"""What the documents say in numbers, piece by piece: see prose.py.

A piece is ``("text with {:.1f} holes", value, ...)``, or plain text where a number is a setting, a tolerance of a test,
or somebody else's. Values come from results/ by the functions of facts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.documents import facts as f
from benchmarks.documents.found import FOUND
from benchmarks.documents.prose import Piece, piece
from benchmarks.gpu import limits

Said = str | tuple[Any, ...]


def readme() -> list[Said]:
    faster = [r["faster_than_plain_loop"]["batched"] for r in f.read("cpu.json")["results"]]
    return [
        ("small models train {:.1f} to {:.1f} times as fast as in a plain loop", min(faster), max(faster)),
        "on CIFAR-10 after 800 rounds, 10 of 100 clients that hold unequal shares of the classes (Dirichlet 0.1)",
        "Python 3.11 or newer",
        "Apache-2.0",
        *FOUND["README.md"](),
    ]


def first_steps() -> list[Said]:
    return [
        "Python 3.11 or newer",
        "40 clients that hold one to six classes each (Dirichlet 0.1, with replacement), four of them in a round, 100 "
        "rounds, three seeds",
    ]


def gpu() -> list[Said]:
    sizes = f.sizes()
    passing = 4 * 10 * sizes["live"] / 1e6
    return [
        ("about {:.0f} launches of hand-written Triton kernels", round(f.launches("fedavg"), -1)),
        "and replayed 25 times",
        ("{:.0f}% of ResNet-18's parameters never meet a pixel ({:,} of {:,} do)",
         100 * (1 - sizes["live"] / sizes["full"]), sizes["live"], sizes["full"]),
        ("two vectors per client: {:.0f} MB for the live ResNet", 2 * 4 * sizes["live"] / 1e6),
        ("One pass over a vector of ten clients ({:.0f} MB in float32) would take {:.0f} us at 4.0 TB/s", passing,
         passing / 4.0),
        ("three passes, {:.0f} us; it takes {:.0f}. FedSMOO's own vectors make that {:.0f} us", 3 * passing / 4.0,
         f.method_us("fedavg"), f.method_us("fedsmoo")),
        ("Methods now come out within {:.0f}% of the plain step, except the two FedLESAM variants that read two "
         "vectors per client ({:.0f}%) and FedSMOO ({:.0f}% above FedSAM)", *f.above_the_plain_step()),
        ("a gradient takes {:.3f} ms with it and {:.3f} by products that are turned, where loads by pointers take "
         "{:.3f}", *f.gradients_of_ten()),
        ("A round of FedAvg in tf32 went from {:.3f} to {:.3f} s by this, FedSMOO's from {:.3f} to {:.3f} s",
         *(f.tf32_round(method, file) for method in ("fedavg", "fedsmoo") for file in f.TF32_ROUNDS)),
        ("A gradient of ten clients takes {:.2f} ms, {:.1f} times what it takes in bf16", *f.tf32_gradient()),
        ("An operator's limit is the longer of FLOP / {:.0f} TFLOP/s and bytes / {:.1f} TB/s", limits.FLOPS / 1e12,
         limits.BYTES / 1e12),
    ]  # fmt: skip


def analysis() -> list[Said]:
    sizes, paper, ours = f.sizes(), f.traces_over_tops_printed(), f.traces_over_tops()
    losses = f.landscape_losses()
    return [
        ("({:.0f}% of ResNet-18 on 32 x 32 images)", 100 * (1 - sizes["live"] / sizes["full"])),
        "final models, Dirichlet 0.1; a and b",
        "at Dirichlet 0.1 its top eigenvalue and its trace are less than a sixth of FedSAM's",
        "at Dirichlet 0.6 about a quarter, with FedSMOO's measured on 10,000 of the samples",
        ("would add {:,.0f} to the trace", round(1e-3 * sizes["full"], -3)),
        ("Its traces are {:.0f} to {:.0f} times its top eigenvalues and ours at least {:d} times",
         min(paper), max(paper), int(min(ours))),
        ("by {:.2f} at the centre", losses["fedsam"] - losses["fedsmoo"]),
        "alike up to a distance of 0.4 and larger beyond",
        "a Hanning window of 20 rounds",
        "who holds what: Dirichlet 0.1, and three classes a client",
        *FOUND["docs/analysis.md"](),
    ]  # fmt: skip


def distributed() -> list[Said]:
    measured = f.read("ranks.json")
    seconds = {int(n): t for n, t in measured["seconds_by_clients"].items()}
    slopes = [1000 * (seconds[10] - seconds[5]) / 5, 1000 * (seconds[20] - seconds[10]) / 10]
    sent = 2 * 4 * 4.23
    return [
        "agrees with `serial` to 1e-11 in float64",
        "agree with one process to 1e-9",
        "(torch 2.11, tf32, FedSMOO, ResNet-18-GN with 4.23 M live weights",
        ("a latency of about {:.0f} ms that more GPUs cannot share out, and from five on each further client adds "
         "{:.0f} to {:.0f} ms a round", 1000 * seconds[1] / 50, min(slopes), max(slopes)),
        ("FedSMOO sends {:.0f} MB a round: between 64 ranks {:.1f} ms over NVLink, {:.0f} ms at 100 Gb/s, {:.0f} ms at "
         "10 Gb/s; {:.0f} ms were measured", sent, *f.ring_ms(sent, 64), 1000 * measured["reduce"]["seconds"]),
        ("Eight GPUs make such a round at most {:.1f} times faster", f.most_gain(10, 100, 8)),
        "The network matters little above 10 Gb/s",
        "Who is not heard for 90 seconds is named",
    ]  # fmt: skip


def flower() -> list[Said]:
    busy = f.read("federation.json")["exact_on_a_busy_machine"]["seconds_by_round"]
    return [
        "1.41.0",
        "(for 127.0.0.1 here;",
        "the server listens on 127.0.0.1 only",
        ("on a busier day the same rounds took {:.0f} to {:.0f} s", min(busy), max(busy)),
        "nodes ask for messages every 3 s",
        "then 1, 3, 7... up to 63 rounds go without it",
        "the next time 3, then 7 times",
    ]


CAPTURED = "loop, torch.compile, the whole step captured as a CUDA graph"
BY_VMAP = "DrJAX, clients by vmap"


def operators() -> list[Said]:
    found = f.groups_beside_the_library()
    return [
        ("kernels for each channel alone take {:.1f} to {:.1f} of the time", *found[:2]),
        ("kernels of our own took {:.0f} to {:.0f} times as long", *found[2:4]),
        ("groups in the place of clients {:.0f} to {:.0f} times", *found[4:]),
    ]


def rivals() -> list[Said]:
    found = f.read("rivals.json")

    def share(results: dict[str, Any], way: str, ours: str = "fedsmoo, engine=auto") -> float:
        return results[way]["fastest_turn"] / results[ours]["fastest_turn"]

    pfl, fedjax, authors = (found["own"][n]["results"] for n in ("pfl", "fedjax", "authors"))
    loop = "plain PyTorch loop"
    gpu = {(r["task"], r["way"], r["precision"]): r["seconds_per_round"] for r in f.read("gpu/rivals.json")["rows"]}

    def slower(task: str, way: str, precision: str = "tf32") -> float:
        return gpu[task, way, precision] / gpu[task, "fedsmoo", precision]

    before, now = (f.tf32_round("fedavg", file) for file in f.TF32_ROUNDS)
    again = next(r["ours"] for r in f.read("gpu/modules_tf32.json")["rows"] if r["model"] == "emnist")
    return [
        ("took our round in tf32 from {:.3f} to {:.3f} s, so that DrJAX's {:.3f} s would be {:.1f} times ours",
         before, now, gpu["paper", BY_VMAP, "tf32"], gpu["paper", BY_VMAP, "tf32"] / now),
        ("took us {:.4f} s where the table has {:.4f} and DrJAX {:.4f}",
         again, *(gpu["fedjax", way, "tf32"] for way in ("fedsmoo", BY_VMAP))),
        "SGD with learning rate 0.1, weight decay 0.001 and gradients clipped at norm 10",
        "its rounds last about 0.1 s or 0.2 s however small the model is",
        ("all but DrJAX, which takes {:.2f} of our time", share(found["results"], "DrJAX", "fedsmoo, batched engine")),
        ("a plain loop takes {:.2f} of our time and pfl-research {:.2f}", share(pfl, loop), share(pfl, "pfl-research")),
        ("on FedJAX's example the loop takes {:.2f}", share(fedjax, loop)),
        ("authors' ResNet (two clients, two steps each) the loop takes {:.2f}", share(authors, loop)),
        ("**On one GPU** we are {:.0f} times as fast as pfl-research", slower("pfl", "pfl-research, as it ships")),
        ("and {:.0f} times as fast as BlazeFL", slower("blazefl", "BlazeFL, as it ships, one thread")),
        ("FedJAX takes {:.1f} times our time in tf32 and {:.1f} times in bf16",
         slower("fedjax", "FedJAX"), slower("fedjax", "FedJAX", "bf16")),
        ("at {:.2f} of our time, and takes {:.1f} times in bf16",
         slower("fedjax", BY_VMAP), slower("fedjax", BY_VMAP, "bf16")),
        ("it takes {:.1f} times our time in bf16 and {:.1f} times in tf32",
         slower("paper", BY_VMAP, "bf16"), slower("paper", BY_VMAP)),
        ("captured as one CUDA graph by hand, takes {:.1f} times our time in bf16 and {:.1f} times in tf32",
         slower("paper", CAPTURED, "bf16"), slower("paper", CAPTURED)),
    ]  # fmt: skip


def data() -> list[Said]:
    return [
        "all other data by `dirichlet` with `u` = 0.1",
        ("For CIFAR-10, u = 0.1 and m = 100 its root is {:,.0f}; single splits scatter widely around that. "
         "The {:.0f} that",
         f.deviation_of_totals(0.1, 100), f.printed()["distribution"]["class_total_std"]),
        ("N draws from N samples meet 1 - 1/e = {:.0f} per cent of them", 63.212),
        "about nine tenths of CIFAR-10 take part at u = 0.1",
        "(about 0.2 MB for CIFAR-10)",
        "at most 5,000 times",
    ]  # fmt: skip


def experiments() -> list[Said]:
    sizes = f.sizes()
    return [
        ("(ResNet-18 on 32x32 images: {:.2f} M of {:.2f} M numbers live)", sizes["live"] / 1e6, sizes["full"] / 1e6),
        "bytes to 74%, as they travel",
        "seconds a round (training and evaluation apart) and to 74%",
        "with a 95% interval (Student's t)",
    ]


def report() -> list[Said]:
    return ["200 runs of 800 rounds open", "files of more than 64 MiB", "3.25 inches wide (`--width page`: 6.75)"]


def models() -> list[Said]:
    return ["all engines come to the same vector within 1e-12"]


def resume() -> list[Said]:
    return ["keeps the time of saving under 5%"]


DOCUMENTS: dict[str, Callable[[], list[Said]]] = {
    "README.md": readme,
    **{
        f"docs/{g.__name__}.md": g
        for g in (gpu, analysis, distributed, flower, operators, rivals, data, experiments, models, report, resume)
    },
    "docs/first-steps.md": first_steps,
    "docs/engine.md": lambda: ["within rounding in float32, to 1e-10 and better in float64"],
    "docs/tutorials/own-method.md": lambda: ["in 20 lines"],
    "docs/tutorials/reproduce-a-table.md": lambda: ["CIFAR-10, 800 rounds, two methods, two seeds"],
    "docs/audit.md": lambda: FOUND["docs/audit.md"](),
    "docs/results.md": lambda: FOUND["docs/results.md"](),
}


def said(document: str) -> list[Piece]:
    """The pieces of a document."""
    entries = DOCUMENTS[document]() if document in DOCUMENTS else []
    return [piece(e) if isinstance(e, str) else piece(e[0], e[1:]) for e in entries]
