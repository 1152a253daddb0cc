"""Splits from other simulators: lists of indices, or copies of the samples themselves.

- A JSON list of lists (or an object from client to list), a ``.npy`` of the same (regular, or ragged as an object
  array), or an ``.npz`` with one array per client: taken as indices into the training part.
- A ``data.json`` of FLGo: an object with ``client_names`` and, under each name, the indices as ``data``.
- A folder with ``client_x.npy`` and ``client_y.npy`` as FL-Simulator writes them: normalised copies of the images, from
  which the indices are found again by content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.check import check_indices
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.arrays import read_npy, read_npz
from fedsmoo.data.files.plain import parse_json, read_plain
from fedsmoo.data.targets import CLASSES

MOST_BYTES, MOST_INDICES = 512 * 2**20, 20_000_000  # of a file of index lists: data sets have so many samples


def import_split(path: str | Path, dataset: Dataset) -> list[np.ndarray]:
    """Return the clients' samples from another simulator's file or folder, as indices into the training part."""
    place = Path(path).expanduser()
    if not place.exists():
        raise FedsmooError(f"split {place}: no such file or folder")
    if place.is_dir() or place.name in ("client_x.npy", "client_y.npy"):
        return _from_copies(place if place.is_dir() else place.parent, dataset)
    read = {".json": read_lists, ".npy": read_npy, ".npz": read_npz}.get(place.suffix.lower())
    if read is None:
        raise FedsmooError(
            f"split {place}: .json, .npy or .npz is needed, or a folder with client_x.npy and client_y.npy"
        )
    lists = read(place, f"split {place}")
    if isinstance(lists, dict):
        flgo = isinstance(lists.get("client_names"), list)
        lists = _of_flgo(lists, place) if flgo else [lists[k] for k in sorted(lists, key=_client_order)]
    try:
        if not isinstance(lists, list | np.ndarray) or any(not isinstance(i, list | np.ndarray) for i in lists):
            raise ValueError
        whole = [_whole(i) for i in lists]
    except (ValueError, TypeError, OverflowError):  # what NumPy makes of lists in lists, and of arrays without an axis
        raise FedsmooError(f"split {place}: not a list with one list of indices per client") from None
    return check_indices(whole, len(dataset.x_train), f"split {place}")


def _of_flgo(content: dict[str, Any], place: Path) -> list[Any]:
    """Return the clients' indices in the order of FLGo's ``client_names``."""
    lists = []
    for name in content["client_names"]:
        client = content.get(name) if isinstance(name, str) else None
        if not isinstance(client, dict) or "data" not in client:
            raise FedsmooError(
                f"split {place}: its client {name!r} has no 'data': is this FLGo's data.json, and whole?"
            )
        lists.append(client["data"])
    return lists


def _client_order(name: Any) -> tuple[int, str]:
    """Clients 2 and 10, or arr_2 and arr_10, in the order of their numbers."""
    digits = "".join(c for c in str(name) if c.isdigit())
    return (int(digits[:18]) if digits else -1, str(name))


def _whole(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Turn indices that were written as floats or as objects into whole numbers, if they are."""
    array = (
        np.asarray(list(values)).reshape(-1) if np.asarray(values).dtype == object else np.asarray(values).reshape(-1)
    )
    if array.dtype.kind == "f" and bool((array == np.round(array)).all()):
        return array.astype(np.int64)
    return array


def read_lists(place: Path, what: str) -> Any:
    """Return the JSON value in a file of indices, which may be many."""
    content = read_plain(place, limit=MOST_BYTES)
    if content is None:
        raise FedsmooError(f"{what}: no such file")
    try:
        return parse_json(content, place, limit=MOST_INDICES)
    except FedsmooError:
        raise FedsmooError(f"{what}: not JSON, or truncated") from None


def _from_copies(folder: Path, dataset: Dataset) -> list[np.ndarray]:
    """Find every client's copied images in the training part."""
    if not dataset.is_image:
        raise FedsmooError(f"split {folder}: samples can be found again by content for images only, not {dataset.name}")
    xs, ys = _clients(folder / "client_x.npy"), _clients(folder / "client_y.npy")
    if xs is None:
        raise FedsmooError(f"split {folder}: client_x.npy is missing; labels alone do not say which samples they are")
    if ys is not None and [len(x) for x in xs] != [len(y) for y in ys]:
        raise FedsmooError(f"split {folder}: client_x.npy and client_y.npy do not agree in their numbers of samples")
    shape = tuple(dataset.x_train.shape[1:])
    low, high = _range(xs, shape, folder)
    known = _known(dataset)
    return [
        _match(_pixels(x, low, high, folder), None if ys is None else ys[i], known, folder, i) for i, x in enumerate(xs)
    ]


def _clients(file: Path) -> list[np.ndarray] | None:
    """Return one array per client, mapped from the disk where the file allows it: such files run to gigabytes."""
    if not file.is_file():
        return None
    try:
        return list(np.load(file, mmap_mode="r", allow_pickle=False))
    except ValueError:
        return [np.asarray(a) for a in read_npy(file, f"split {file}")]


def _range(xs: list[np.ndarray], shape: tuple[int, ...], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value of each channel over all clients: what black and full colour became."""
    wanted = (shape[2], *shape[:2])
    for i, x in enumerate(xs):
        if x.shape[1:] != wanted:
            raise FedsmooError(f"split {folder}: images of client {i} are {list(x.shape[1:])}, expected {list(wanted)}")
    low = np.min([x.min(axis=(0, 2, 3)) for x in xs if len(x)], axis=0).astype(np.float64)
    high = np.max([x.max(axis=(0, 2, 3)) for x in xs if len(x)], axis=0).astype(np.float64)
    return low, high


def _pixels(x: np.ndarray, low: np.ndarray, high: np.ndarray, folder: Path) -> np.ndarray:
    """uint8 ``[n, H, W, channels]`` again: any affine normalisation leaves 256 equally spaced levels."""
    spread = np.where(high > low, high - low, 1.0)
    level = (x.transpose(0, 2, 3, 1).astype(np.float64) - low) / spread * 255
    pixels = np.round(level)
    if np.abs(level - pixels).max() > 0.05:
        raise FedsmooError(
            f"split {folder}: its images are not 256 equally spaced levels per channel, so that they cannot be traced "
            "back to the originals"
        )
    return pixels.astype(np.uint8)


def _key(image: np.ndarray) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()


def _known(dataset: Dataset) -> dict[bytes, dict[int, int]]:
    """Image -> label -> its first sample; equal images with equal labels are the same sample for every purpose."""
    if dataset.y_train.dim() != 1 or dataset.target != CLASSES:
        raise FedsmooError(f"only splits of samples with one class each can be traced, not those of {dataset.name!r}")
    known: dict[bytes, dict[int, int]] = {}
    images, labels = dataset.x_train.cpu().numpy(), dataset.y_train.cpu().numpy()
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        known.setdefault(_key(np.ascontiguousarray(image)), {}).setdefault(int(label), i)
    return known


def _match(
    pixels: np.ndarray, labels: np.ndarray | None, known: dict[bytes, dict[int, int]], folder: Path, client: int
) -> np.ndarray:
    found = np.empty(len(pixels), np.int64)
    flat = None if labels is None else np.asarray(labels).reshape(-1)
    for j, image in enumerate(pixels):
        by_label = known.get(_key(image))
        where = f"split {folder}: image {j} of client {client}"
        if by_label is None:
            raise FedsmooError(f"{where} is not in the training part; is this the same data set?")
        if flat is None:
            if len(by_label) > 1:
                raise FedsmooError(f"{where} occurs under several labels, and client_y.npy is missing to decide")
            found[j] = next(iter(by_label.values()))
        elif int(flat[j]) in by_label:
            found[j] = by_label[int(flat[j])]
        else:
            raise FedsmooError(f"{where} has the label {int(flat[j])}, but {sorted(by_label)} in the training part")
    return found
