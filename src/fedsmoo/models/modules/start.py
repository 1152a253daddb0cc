"""A pretrained start: weights from a file, safetensors or a state dict of PyTorch, put into a module.

Nothing in the file is run: a state dict is read with ``weights_only``, and a file that announces more than it holds is
refused before anything is made of it.
"""

from __future__ import annotations

import fnmatch
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from fedsmoo.core.errors import FedsmooError, first_line
from fedsmoo.data.files.plain import open_plain, read_error

NAMED = 3  # of several problems, so many are named
ZIP = b"PK\x03\x04"  # how a file of torch.save begins


class Start(NamedTuple):
    """A file of weights, and patterns of names, such as ``"fc.*"``, which are not taken from it."""

    path: str
    skip: str | None = None


def put_start(module: nn.Module, start: Start) -> None:
    """Put the weights in a file into a module: every parameter and buffer, but those that are to be skipped.

    Of a tied parameter one of its names is enough.

    Raises:
        FedsmooError: if the file cannot be read, or some of it is missing, of another shape, or has no place.
    """
    found = read_weights(Path(start.path))
    own = {n: v for n, v in module.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
    patterns = [p.strip() for p in (start.skip or "").split(",") if p.strip()]
    refuse_idle(patterns, [*own, *found])
    own, found = ({n: v for n, v in names.items() if not skipped(n, patterns)} for names in (own, found))
    tied = {n: [other for other in own if own[other] is v] for n, v in own.items()}  # the names of each parameter
    where, hint = f"start {start.path}", "name what is not to be taken from it in start_skip, such as 'fc.*'"
    missing = [n for n in own if not any(other in found for other in tied[n])]
    if missing:
        raise FedsmooError(f"{where} has no {several(missing)}, which the model has: {hint}")
    strange = [n for n in found if n not in own]
    if strange:
        raise FedsmooError(f"{where} has {several(strange)}, which the model has not: {hint}")
    for name, value in found.items():
        refuse_misfit(name, value, own[name], where, hint)
    refuse_untied(tied, found, where)
    with torch.no_grad():
        for name, value in found.items():
            own[name].copy_(value)


def refuse_misfit(name: str, value: Tensor, place: Tensor, where: str, hint: str) -> None:
    """Refuse a tensor of another shape or kind than that whose place it is to take, and one that is not finite."""
    if value.shape != place.shape:
        mine, theirs = list(place.shape), list(value.shape)
        raise FedsmooError(f"{where}: {name} has the shape {theirs}, but the model's has {mine}: {hint}")
    if value.is_floating_point() != place.is_floating_point() or value.is_complex():
        raise FedsmooError(f"{where}: {name} is {value.dtype}, but the model's is {place.dtype}")
    if not bool(torch.isfinite(value).all()):
        raise FedsmooError(f"{where}: {name} holds NaN or infinite values")


def refuse_untied(tied: Mapping[str, Iterable[str]], found: Mapping[str, Tensor], where: str) -> None:
    """Refuse two tensors that differ for one parameter of several names."""
    for name, others in tied.items():
        for other in others:
            if name in found and other in found and not torch.equal(found[name], found[other]):
                raise FedsmooError(f"{where}: {name} and {other} are one parameter of the model, but differ")


def skipped(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches a pattern."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def refuse_idle(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Refuse a pattern that matches nothing: it was meant to."""
    known = list(names)
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise FedsmooError(f"start_skip: {pattern!r} matches nothing in the model or the file, such as {known[-1]}")


def several(names: list[str]) -> str:
    """Return some names on a line, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file by name, on the host.

    Raises:
        FedsmooError: if it cannot be read, or holds anything else.
    """
    try:
        with open_plain(path) as f:
            if f is None:
                raise FedsmooError(f"start {path}: there is no such file")
            begin = f.read(len(ZIP))
            f.seek(0)
            found: Any = read_state_dict(f, path) if begin == ZIP else load(f.read())
    except FedsmooError:
        raise
    except OSError as e:
        raise read_error(e)(f"start {path} cannot be read: {e.strerror}") from e
    except (SafetensorError, ValueError, KeyError) as e:
        raise FedsmooError(
            f"start {path} is neither a safetensors file nor a state dict as torch.save writes it ({first_line(e)})"
        ) from e
    if not isinstance(found, Mapping) or not found:
        raise FedsmooError(f"start {path} holds no state dict: save model.state_dict()")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout != torch.strided:
            raise FedsmooError(
                f"start {path} holds a {type(value).__name__} under {name!r}, but must hold dense tensors by name: "
                "save model.state_dict() alone"
            )
    return dict(found)


def read_state_dict(f: BinaryIO, path: Path) -> Any:
    """Return what ``torch.save`` wrote, of plain types alone; refuse an archive that unpacks to more than it is."""
    try:
        with zipfile.ZipFile(f) as archive:
            records = archive.infolist()
        size = f.seek(0, 2)
        if any(r.compress_type != zipfile.ZIP_STORED for r in records) or sum(r.file_size for r in records) > size:
            raise FedsmooError(f"start {path} cannot be read: it is compressed, which torch.save never does")
        f.seek(0)
        return torch.load(f, map_location="cpu", weights_only=True)
    except FedsmooError:
        raise
    except Exception as e:  # PyTorch raises what it likes, and says at length how to be careless
        reason = "it holds more than tensors, which may be code" if "weights_only" in str(e).lower() else first_line(e)
        raise FedsmooError(f"start {path} cannot be read: {reason}; save model.state_dict() alone") from e
