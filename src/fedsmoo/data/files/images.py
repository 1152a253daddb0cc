"""Images in files: the official files of a known data set, folders of classes, or an ``.npz``."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.catalog import SPECS, Spec
from fedsmoo.data.check import as_images, channel_statistics, tensor_of
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.cache import cached, fingerprint, user_cache
from fedsmoo.data.files.readers import Arrays, is_class_folders, read_class_folders, read_npz, read_official
from fedsmoo.data.files.tree import Tree, archive_tree, file_digest, file_tree, folder_tree
from fedsmoo.data.forms.tables import hint_of_table
from fedsmoo.data.targets import CLASSES, count_outputs, read_targets


def image_set(name: str, path: str | Path | None) -> Dataset | None:
    """Return the data set in files, from a path or from the cache; ``None`` without a path to a name of nobody's."""
    arrays = find_arrays(name, path)
    return None if arrays is None else to_dataset(name, arrays)


def find_arrays(name: str, path: str | Path | None) -> Arrays | None:
    """Return what is found of a data set; a known one that is not there is refused."""
    spec = SPECS.get(name)
    if path is not None:
        place = Path(path).expanduser()
        if not os.path.exists(place):
            raise FedsmooError(f"data set {name}: {place} does not exist")
        arrays = open_place(name, spec, place)
        if arrays is None:
            raise FedsmooError(
                f"data set {name}: {place} holds none of {forms_in_words(name, spec)}{hint_of_table(place)}"
            )
        return arrays
    home = user_cache()
    for place in (home / name, home / f"{name}.npz", home):
        # Only a known set can lie in the common folder itself, and there only by its own file names.
        if os.path.exists(place) and (place != home or (spec is not None and spec.kind == "cifar")):
            arrays = open_place(name, spec, place)
            if arrays is not None:
                return arrays
    if spec is None:
        return None
    raise FedsmooError(
        f"data set {name} is not in {home}; get it with 'fedsmoo data get {name}', or say where it is with --data PATH"
    )


def forms_in_words(name: str, spec: Spec | None) -> str:
    own = "an .npz, or folders train/CLASS and test/CLASS with images"
    if spec is None:
        return own
    return f"the official files of {name} ({', '.join([*(r.file for r in spec.remotes), *spec.files])}), {own}"


def open_place(name: str, spec: Spec | None, place: Path) -> Arrays | None:
    """Return the data at a place in whichever form it has there, or ``None`` if it has none."""
    if place.is_file():
        if place.suffix == ".npz":
            return read_npz(place)
        if spec is not None and any(place.name == r.file for r in spec.remotes):
            return mark_verified(decoded(name, file_tree(place), lambda _: from_archive(spec, place)))
        return None
    if (place / f"{name}.npz").is_file():
        return read_npz(place / f"{name}.npz")
    if spec is not None:
        for inner in spec.places:
            folder = place / inner
            if is_official(spec, folder):
                depth = 3 if spec.kind == "tiny" else 0
                arrays = decoded(name, folder_tree(folder, depth), lambda tree: read_official(tree, spec))
                return mark_verified(arrays) if spec.files else arrays
        archive = next((place / r.file for r in spec.remotes if (place / r.file).is_file()), None)
        if archive is not None and spec.kind != "idx":
            return open_place(name, spec, archive)
    if (place / "train").is_dir():
        tree = folder_tree(place).visible()
        if is_class_folders(tree):
            return decoded(name, tree, read_class_folders)
    return None


def mark_verified(arrays: Arrays) -> Arrays:
    """Return arrays from files that had the publisher's checksums."""
    return dataclasses.replace(arrays, verified=True)


def is_official(spec: Spec, folder: Path) -> bool:
    """Whether a folder has the names of the official files (any of them: a missing one is then said to be missing)."""
    if spec.kind == "tiny":
        return (folder / "val" / "val_annotations.txt").is_file()
    return any((folder / f).is_file() or (folder / f"{f}.gz").is_file() for f in spec.files)


def from_archive(spec: Spec, place: Path) -> Arrays:
    """Return the official files inside the official archive, which is opened only if its checksum is right."""
    remote = next(r for r in spec.remotes if r.file == place.name)
    found = file_digest(place, remote.checksum)
    if found != remote.checksum:
        raise FedsmooError(
            f"{place} is not the official archive ({found} instead of {remote.checksum}), so it was not opened; get it "
            f"again with 'fedsmoo data get {spec.name}'"
        )
    tree = archive_tree(place)
    return read_official(tree.below(spec.places[-1]), spec)


def decoded(name: str, tree: Tree, read: Callable[[Tree], Arrays]) -> Arrays:
    """Decoded data from the cache, or read (and checked against checksums) and then kept there."""
    place = hashlib.sha256(str(Path(tree.where).resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    file = user_cache() / "decoded" / f"{name}-{place}.safetensors"
    return cached(file, fingerprint(tree), lambda: read(tree))


def to_dataset(name: str, arrays: Arrays) -> Dataset:
    """Return arrays as a data set: of a known one its ``Spec`` says what the arrays of others say themselves."""
    spec, what = SPECS.get(name), f"data set {name}"
    x_train, x_test = (samples(getattr(arrays, p), f"{what}: {p}") for p in ("x_train", "x_test"))
    y_train, y_test = (tensor_of(getattr(arrays, p), f"{what}: {p}") for p in ("y_train", "y_test"))
    y_train, y_test, kind = read_targets(y_train, y_test, what, arrays.target if spec is None else CLASSES)
    most = count_outputs([y_train, y_test], kind, name)
    if spec is None:
        names = arrays.class_names
        classes = max(most, len(names or ())) if kind == CLASSES else most
        is_image = x_train.dtype == torch.uint8 and len(x_train) > 0
        mean, std = channel_statistics(x_train) if is_image else (None, None)
    else:
        names, classes, mean, std = arrays.class_names or spec.class_names, spec.classes, spec.mean, spec.std
        refuse_other_shape(x_train, spec)
        if x_train.dtype != torch.uint8 or not len(x_train):
            mean = std = None
    return Dataset(
        name=name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=classes,
        mean=mean,
        std=std,
        augment=spec is not None and spec.augment,
        class_names=names if names and len(names) == classes else None,
        verified=arrays.verified,
        target=kind,
    )


def samples(values: Any, what: str) -> Tensor:
    """Return samples as a model takes them: bytes as images, true and false as numbers."""
    x = tensor_of(values, what)
    x = x.float() if x.dtype == torch.bool else x
    return as_images(x, what) if x.dtype == torch.uint8 and len(x) else x


def refuse_other_shape(x: Tensor, spec: Spec) -> None:
    """Refuse samples under the name of a known data set that are not of its shape."""
    if len(x) and plain_shape(tuple(x.shape[1:])) != plain_shape(spec.shape):
        raise FedsmooError(
            f"data set {spec.name}: samples of {list(x.shape[1:])}, but {spec.name} has images of {list(spec.shape)}; "
            "give your own data another name"
        )


def plain_shape(shape: tuple[int, ...]) -> list[int]:
    """Return the sides and channels of an image in whichever order of axes; images stored as floats may have any."""
    return sorted(n for n in shape if n != 1)
