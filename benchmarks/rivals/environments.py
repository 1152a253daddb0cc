"""Virtual environments of rivals: what each needs beside the torch that runs the benchmark, and how it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

ATTEMPTS, TIMEOUT = 3, 600.0
# Images alone are taken from torchvision: its compiled part would want another build of torch.
VISION = (("--no-deps", "torchvision==0.28.0"), ("pillow", "numpy"))
# BlazeFL asks for Python 3.12, but runs on 3.11, so that all ways have one interpreter and one build of torch.
NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "pfl": (("pfl==0.6.0", "pyyaml"),),
    "flower": (("flwr[simulation]==1.41.0",),),
    "blazefl": (("--no-deps", "--ignore-requires-python", "blazefl==2.0.3"), ("tqdm", "typer"), *VISION),
    "fedjax": (("fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3", "optax<0.2.6"),),  # it uses what later JAX removed
    "drjax": (("drjax==0.2.1", "optax"),),
    "authors": VISION,
}


class NotRun(Exception):
    """Why a way could not be run."""


def torch_version() -> str:
    return torch.__version__.partition("+")[0]


def python_of(environment: str | None, envs: Path) -> Path:
    """The interpreter of an environment, which is made if it is not there yet; none is the one that runs this."""
    if environment is None:
        return Path(sys.executable)
    folder = envs / environment
    python, done = folder / "bin" / "python", folder / "installed.txt"
    pin = f"torch=={torch_version()}"  # a range could bring another build, and gigabytes of it
    wanted = "; ".join(" ".join(step) for step in ((pin,), *NEEDS[environment]))
    if done.is_file() and done.read_text().strip() == wanted:
        return python
    envs.mkdir(parents=True, exist_ok=True)
    (envs / ".gitignore").write_text("*\n")
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    patiently([sys.executable, "-m", "venv", str(folder)])
    for step in ((pin,), *NEEDS[environment]):
        patiently([*pip, *step, *(() if "--no-deps" in step else (pin,))])
    done.write_text(wanted + "\n")
    return python


def patiently(command: list[str]) -> None:
    """A step of an installation, three times at most."""
    for attempt in range(ATTEMPTS):
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            problem = f"no end after {TIMEOUT:.0f} s"
            continue
        if result.returncode == 0:
            return
        problem = last_line(result.stderr)
        print(f"attempt {attempt + 1}: {problem}", file=sys.stderr)
    raise NotRun(f"installation failed {ATTEMPTS} times: {problem}")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
