"""From files to arrays: CIFAR's pickles, IDX, Tiny-ImageNet, class folders and ``.npz``."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.catalog import Spec
from fedsmoo.data.files import arrays
from fedsmoo.data.files.pixels import TooDeep, pixels_of
from fedsmoo.data.files.safe_pickle import load_pickle
from fedsmoo.data.files.tree import LARGEST, Tree, digest
from fedsmoo.data.targets import MANY

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
TEST_FOLDERS = ("test", "val", "valid", "validation")
PARTS, CLASSES, TARGET = ("x_train", "y_train", "x_test", "y_test"), "classes", "target"


@dataclass(frozen=True)
class Arrays:
    """A data set as plain arrays: images uint8 ``[N, H, W, channels]``, labels int64 ``[N]``, or other targets."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    class_names: tuple[str, ...] | None = None
    verified: bool = False  # the files had the publisher's checksums
    target: str | None = None  # what the labels are, where the file says it


def read_official(tree: Tree, spec: Spec) -> Arrays:
    """Return the official files of a known data set, each checked against its checksum."""
    read = {"cifar": read_cifar, "idx": read_idx, "tiny": read_tiny}[spec.kind](tree, spec)
    found = (len(read.x_train), len(read.x_test))
    if found != spec.sizes:
        raise FedsmooError(
            f"{tree.where}: {found[0]} training and {found[1]} test images, but {spec.name} has {spec.sizes[0]} and "
            f"{spec.sizes[1]}; get it again"
        )
    return read


def verified(tree: Tree, name: str, checksum: str) -> bytes:
    """Return a file whose checksum is the official one."""
    return _same(tree.read(name), checksum, f"{tree.where}: {name}")


def _same(data: bytes, checksum: str, what: str) -> bytes:
    found = digest(data, checksum)
    if found != checksum:
        raise FedsmooError(
            f"{what} is not the official file ({found} instead of {checksum}), so it was not used; get it again, or "
            "give the data as class folders or an .npz"
        )
    return data


def read_cifar(tree: Tree, spec: Spec) -> Arrays:
    """CIFAR-10 or CIFAR-100 (fine labels) from the official Python batches."""
    x: dict[bool, list[np.ndarray]] = {False: [], True: []}
    y: dict[bool, list[np.ndarray]] = {False: [], True: []}
    names = spec.class_names
    for name, checksum in spec.files.items():
        where = f"{tree.where}: {name}"
        batch = load_pickle(verified(tree, name, checksum), where)
        if not isinstance(batch, dict):
            raise FedsmooError(f"{where}: not a CIFAR batch")
        if "fine_label_names" in batch:
            names = tuple(str(n) for n in batch["fine_label_names"])
            continue
        labels = batch.get("fine_labels", batch.get("labels"))
        images = batch.get("data")
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or labels is None:
            raise FedsmooError(f"{where}: not a CIFAR batch")
        part = name.startswith("test")
        x[part].append(images.reshape(-1, 3, *spec.shape[:2]).transpose(0, 2, 3, 1))
        y[part].append(np.asarray(labels, np.int64))
    x_train, y_train, x_test, y_test = (np.concatenate(v[part]) for part in (False, True) for v in (x, y))
    return Arrays(x_train, y_train, x_test, y_test, names)


def read_idx(tree: Tree, spec: Spec) -> Arrays:
    """MNIST and its relatives from four IDX files, gzipped or not."""
    found = []
    for name, checksum in spec.files.items():
        data = tree.read(name) if name in tree else _gunzip(tree.read(f"{name}.gz"), f"{tree.where}: {name}.gz")
        found.append(parse_idx(_same(data, checksum, f"{tree.where}: {name}"), f"{tree.where}: {name}"))
    x_train, y_train, x_test, y_test = found
    return Arrays(x_train[..., None], y_train.astype(np.int64), x_test[..., None], y_test.astype(np.int64))


def _gunzip(data: bytes, where: str) -> bytes:
    try:
        unpacker = zlib.decompressobj(wbits=31)
        out = unpacker.decompress(data, LARGEST)
    except zlib.error as error:
        raise FedsmooError(f"{where} cannot be unpacked, it is damaged ({error}); get it again") from None
    if not unpacker.eof:
        raise FedsmooError(f"{where} is truncated; get it again")
    return out


def parse_idx(data: bytes, where: str) -> np.ndarray:
    """Parse an array in the IDX format: two zeros, the type 8, the number of axes, their sizes, the values."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise FedsmooError(f"{where}: not an IDX file of bytes")
    axes = data[3]
    if len(data) < 4 + 4 * axes:
        raise FedsmooError(f"{where}: truncated header")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if values.size != np.prod(shape, dtype=np.int64):
        raise FedsmooError(f"{where}: {values.size} values, but its header announces {'x'.join(map(str, shape))}")
    return values.reshape(shape)


def read_tiny(tree: Tree, spec: Spec) -> Arrays:
    """Tiny-ImageNet as it was published; its validation images are the test part (its test part has no labels)."""
    train = sorted(n for n in tree.sizes if n.startswith("train/") and n.endswith(".JPEG"))
    classes = sorted({n.split("/")[1] for n in train})
    if len(classes) != spec.classes:
        raise FedsmooError(f"{tree.where}: {len(classes)} classes under train/, but {spec.name} has {spec.classes}")
    number = {c: k for k, c in enumerate(classes)}
    lines = tree.read("val/val_annotations.txt").decode("utf-8", "replace").splitlines()
    pairs = sorted(tuple(line.split("\t")[:2]) for line in lines if line.count("\t") >= 1)
    if not pairs or any(c not in number for _, c in pairs):
        raise FedsmooError(f"{tree.where}: val/val_annotations.txt is empty or names a class without training images")
    return Arrays(
        decode(tree, train, channels=3),
        np.array([number[n.split("/")[1]] for n in train], np.int64),
        decode(tree, [f"val/images/{file}" for file, _ in pairs], channels=3),
        np.array([number[c] for _, c in pairs], np.int64),
        class_names=tuple(classes),
    )


def is_class_folders(tree: Tree) -> bool:
    """Return whether there are ``train/CLASS/image`` files."""
    return any(n.startswith("train/") and n.count("/") >= 2 and n.lower().endswith(SUFFIXES) for n in tree.sizes)


def read_class_folders(tree: Tree) -> Arrays:
    """Read images in ``train/CLASS/*.png`` and ``test/CLASS/*.png`` (or ``val``), all of one size.

    Classes are numbered in the order of their names, numerically if all names are numbers.
    """
    images = [n for n in sorted(tree.sizes) if n.count("/") >= 2 and n.lower().endswith(SUFFIXES)]
    test_folder = next((t for t in TEST_FOLDERS if any(n.startswith(t + "/") for n in images)), None)
    if test_folder is None:
        raise FedsmooError(f"{tree.where}: no images under test/CLASS/ or val/CLASS/; the test part is needed")
    train = [n for n in images if n.startswith("train/")]
    test = [n for n in images if n.startswith(test_folder + "/")]
    classes = sorted({n.split("/")[1] for n in train})
    if all(c.isdecimal() for c in classes):
        classes.sort(key=int)
    number = {c: k for k, c in enumerate(classes)}
    stray = next((n for n in test if n.split("/")[1] not in number), None)
    if stray is not None:
        raise FedsmooError(f"{tree.where}: {stray} is of a class that has no training images")
    both = decode(tree, train + test)
    labels = np.array([number[n.split("/")[1]] for n in train + test], np.int64)
    cut = len(train)
    return Arrays(both[:cut], labels[:cut], both[cut:], labels[cut:], class_names=tuple(classes))


def decode(tree: Tree, names: Sequence[str], channels: int | None = None) -> np.ndarray:
    """Images as one uint8 array ``[N, H, W, channels]``: grey if all of them are and nothing else is asked for."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        images = list(pool.map(lambda name: _decode_one(tree, name, channels), names))
    sizes = {image.shape[:2] for image in images}
    if len(sizes) > 1:
        odd = next(i for i, image in enumerate(images) if image.shape[:2] != images[0].shape[:2])
        raise FedsmooError(
            f"{tree.where}: images must be of one size, but {names[0]} is {_size(images[0])} and {names[odd]} is "
            f"{_size(images[odd])}; resize them first"
        )
    depth = max(image.shape[2] for image in images)
    return np.stack([np.broadcast_to(image, (*image.shape[:2], depth)) for image in images])


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"


def _decode_one(tree: Tree, name: str, channels: int | None) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise FedsmooError("reading image files needs Pillow: pip install pillow") from None
    data = tree.read(name)
    try:
        with Image.open(io.BytesIO(data)) as image:
            return pixels_of(image, None if channels is None else "L" if channels == 1 else "RGB")
    except TooDeep as error:
        raise FedsmooError(f"{tree.where}: {name} {error}") from None
    except UnidentifiedImageError:  # whose text is the address of the bytes
        raise FedsmooError(f"{tree.where}: {name} is not a readable image: Pillow knows no such format") from None
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise FedsmooError(f"{tree.where}: {name} is not a readable image ({type(error).__name__}: {error})") from None


def read_npz(path: Path) -> Arrays:
    """Return arrays ``x_train, y_train, x_test, y_test`` from an ``.npz``.

    ``classes`` may name the classes, and ``target`` say what the labels are: ``"numbers"``, ``"labels"``.
    """
    found = arrays.read_npz(path, str(path), (*PARTS, CLASSES, TARGET))
    missing = [p for p in PARTS if p not in found]
    if missing:
        raise FedsmooError(
            f"{path}: {', '.join(missing)} missing; an .npz needs {', '.join(PARTS)} but holds "
            f"{', '.join(found) or 'nothing of it'}"
        )
    names = found.get(CLASSES)
    if names is not None and (names.ndim != 1 or len(names) > MANY):
        raise FedsmooError(f"{path}: {CLASSES} has the shape {list(names.shape)}, but must be a list of names")
    x_train, y_train, x_test, y_test = (found[p] for p in PARTS)
    target = str(found[TARGET]) if TARGET in found else None
    return Arrays(x_train, y_train, x_test, y_test, None if names is None else tuple(map(str, names)), target=target)
