"""Small data sets in the formats of the official ones, for tests."""

import dataclasses
import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image

from fedsmoo.data.catalog import SPECS, Remote


def md5(data: bytes) -> str:
    return "md5:" + hashlib.md5(data).hexdigest()


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def pixels(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def cifar(name: str = "cifar10"):
    """A spec with right checksums, its files, and the arrays they hold."""
    spec = SPECS[name]
    batches = [f for f in spec.files if "meta" not in f]
    files, x, y = {}, {}, {}
    for k, file in enumerate(batches):
        x[file] = pixels(4, 32, 32, 3, seed=k)
        y[file] = [(k + j) % spec.classes for j in range(4)]
        flat = x[file].transpose(0, 3, 1, 2).reshape(4, -1)
        labels = {"labels": y[file]} if name == "cifar10" else {"fine_labels": y[file], "coarse_labels": [0] * 4}
        files[file] = pickle.dumps({"batch_label": file, "data": flat, "filenames": ["a.png"] * 4, **labels}, 2)
    if name == "cifar100":
        files["meta"] = pickle.dumps({"fine_label_names": [f"class{k}" for k in range(100)]}, 2)
    train = [f for f in batches if not f.startswith("test")]
    test = [f for f in batches if f.startswith("test")]
    archive = tar({f"{spec.places[-1]}/{n}": b for n, b in files.items()})
    fake = dataclasses.replace(
        spec,
        files={n: md5(b) for n, b in files.items()},
        sizes=(4 * len(train), 4 * len(test)),
        remotes=(Remote(spec.remotes[0].file, sha256(archive), ("http://127.0.0.1:9/none",)),),
    )
    arrays = [np.concatenate([v[f] for f in part]) for part in (train, test) for v in (x, y)]
    return fake, files, archive, arrays


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(name: str = "mnist"):
    x_train, x_test = pixels(6, 28, 28), pixels(3, 28, 28, seed=1)
    y_train, y_test = np.arange(6, dtype=np.uint8), np.arange(3, dtype=np.uint8)
    contents = [idx(a) for a in (x_train, y_train, x_test, y_test)]
    files = dict(zip(SPECS[name].files, contents, strict=True))
    packed = {f"{n}.gz": gzip.compress(b, mtime=0) for n, b in files.items()}
    fake = dataclasses.replace(
        SPECS[name],
        files={n: sha256(b) for n, b in files.items()},
        sizes=(6, 3),
        remotes=tuple(Remote(n, sha256(b), ("http://127.0.0.1:9/none",)) for n, b in packed.items()),
    )
    return fake, files, packed, (x_train[..., None], y_train, x_test[..., None], y_test)


def image(array: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(array.squeeze()).save(out, kind)
    return out.getvalue()


def tiny():
    """Two classes of flat pictures: JPEG keeps a flat colour to within a step or two."""
    files = {}
    for k, wnid in enumerate(("n01", "n02")):
        for j in range(3):
            grey = np.full((64, 64, 3), 40 + 60 * k + j, np.uint8)
            files[f"train/{wnid}/images/{wnid}_{j}.JPEG"] = image(grey, "JPEG")
        files[f"val/images/val_{k}.JPEG"] = image(np.full((64, 64, 3), 45 + 60 * k, np.uint8), "JPEG")
    files["val/val_annotations.txt"] = b"val_1.JPEG\tn02\t0\t0\t9\t9\nval_0.JPEG\tn01\t0\t0\t9\t9\n"
    archive = zipped({f"tiny-imagenet-200/{n}": b for n, b in files.items()})
    fake = dataclasses.replace(
        SPECS["tiny-imagenet"],
        classes=2,
        sizes=(6, 2),
        remotes=(Remote("tiny-imagenet-200.zip", sha256(archive), ("http://127.0.0.1:9/none",)),),
    )
    return fake, files, archive
