"""Ledgers on disk: versioned JSON, gzipped when the name ends in .gz; decoded strictly, written atomically.

Files are data, never code. An old format is migrated when read; a newer one is refused. An existing file is replaced
only when asked to, and a half-written one is never seen: the text goes to a temporary file first.
"""

from __future__ import annotations

import difflib
import gzip
import os
import re
import tempfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rooflight import recorded
from rooflight.errors import BadFile
from rooflight.ledger import FORMAT_VERSION, Kernel, Ledger, Measurement, Op

Migration = Callable[[dict[str, Any]], dict[str, Any]]


MIGRATIONS: dict[int, Migration] = {}
"""From the version it is filed under to the next, where that is more than new fields."""
ONLY_ADDED_SINCE = 1
"""From this version on formats only gained fields (2: what measurements need; 3: when kernels were launched; 4: how a
step is run), or names changed that are put right after reading."""


def save(ledger: Ledger, path: str | Path, *, force: bool = False) -> Path:
    """Write a ledger; `force` allows to replace an existing file."""
    path = Path(path)
    content = msgspec.json.encode(ledger)
    if path.name.endswith(".gz"):
        content = gzip.compress(content, compresslevel=6, mtime=0)
    write_atomically(path, content, force=force)
    return path


def _taken(path: Path) -> BadFile:
    return BadFile(f"{path} exists already: add --force to replace it, or give another name")


def check_writable(path: str | Path, *, force: bool) -> None:
    """Say before the work starts what would stop it from being saved."""
    path = Path(path)
    if path.is_dir():
        raise BadFile(f"{path} is a folder: give a file name")
    if path.exists() and not path.is_file():
        raise BadFile(f"{path} is no regular file: give another name, or leave -o out and redirect the output")
    if path.exists() and not force:
        raise _taken(path)
    folder = path.parent
    if folder.exists() and not folder.is_dir():
        raise BadFile(f"{folder} is no folder: give a file in another one")
    if not folder.is_dir():
        raise BadFile(f"the folder {folder} does not exist: make it first")
    if not os.access(folder, os.W_OK):
        raise BadFile(f"no permission to write into {folder}: give a file in another folder")


def write_atomically(path: Path, content: bytes, *, force: bool) -> None:
    """All of the content under its name, or nothing; nobody else's file is replaced without `force`."""
    check_writable(path, force=force)
    path = path.resolve()  # what a link points to is replaced, not the link
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _publish(temporary, path, force=force)
    except OSError as error:
        raise BadFile(f"cannot write {path}: {error.strerror or error}; give a file in another place") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path, *, force: bool) -> None:
    temporary.chmod(0o666 & ~_umask())
    if force:
        os.replace(temporary, path)
        return
    try:
        # A link fails if the name was taken meanwhile; a rename would silently replace it.
        os.link(temporary, path)
    except FileExistsError:
        raise _taken(path) from None
    except OSError:
        os.replace(temporary, path)  # a file system without links


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load(path: str | Path) -> Ledger:
    """Read a ledger, or the recording `recorded:NAME`; whatever is wrong with the file is said in one line."""
    recording = recorded.name_of(str(path)) if recorded.is_recorded(path) else ""
    path = recorded.path(str(path)) if recorded.is_recorded(path) else Path(path)
    content = read_bytes(path, what="ledger")
    version = _version(content, path)
    try:
        if version >= ONLY_ADDED_SINCE:
            found = msgspec.json.decode(content, type=Ledger)
            ops = found.ops if version >= 3 else tuple(map(_in_own_precision, found.ops))
            found = found if version >= 4 else _with_kernel_time(found)
            header = msgspec.structs.replace(found.header, recording=recording) if recording else found.header
            return _checked(msgspec.structs.replace(found, format_version=FORMAT_VERSION, ops=ops, header=header))
        document = msgspec.json.decode(content)
        for step in range(version, FORMAT_VERSION):
            if step not in MIGRATIONS:
                raise BadFile(f"{path} has format {version}, which this rooflight cannot migrate to {FORMAT_VERSION}")
            document = MIGRATIONS[step](document)
        return _checked(msgspec.convert(document, type=Ledger))
    except (msgspec.DecodeError, msgspec.ValidationError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise BadFile(f"{path} is no valid ledger: {_one_line(error)}; make it again, or take a copy") from error


def _in_own_precision(op: Op) -> Op:
    """Before format 3, backward of fused attention was filed under the type of the sums it keeps, which is fp32."""
    first = next(op.inputs, None)
    if op.precision != "fp32" or first is None or not _ATTENTION_BACKWARD.fullmatch(op.packet):
        return op
    return msgspec.structs.replace(op, precision=first.dtype)


def _with_kernel_time(ledger: Ledger) -> Ledger:
    """Before format 4, the sum of kernels was called as GPU-busy time is in a prediction."""

    def renamed(row: _Row) -> _Row:
        if "gpu_time_s" not in row.quantities:
            return row
        quantities = {_RENAMED.get(name, name): value for name, value in row.quantities.items()}
        return msgspec.structs.replace(row, quantities=quantities)

    return msgspec.structs.replace(ledger, kernels=tuple(map(renamed, ledger.kernels)),
                                   measurements=tuple(map(renamed, ledger.measurements)))  # fmt: skip


_Row = TypeVar("_Row", Kernel, Measurement)
_RENAMED = {"gpu_time_s": "kernel_time_s"}
_ATTENTION_BACKWARD = re.compile(r"aten::_scaled_dot_product_\w+_attention_backward")


def _checked(ledger: Ledger) -> Ledger:
    """What types cannot say: everything that is referred to is there, once."""
    paths = [module.path for module in ledger.modules]
    if len(set(paths)) != len(paths):
        raise ValueError("two modules have the same path")
    if any(len(module.outputs) != len(module.output_dtypes) for module in ledger.modules):
        raise ValueError("a module's outputs and their types differ in number")
    if [op.index for op in ledger.ops] != list(range(len(ledger.ops))):
        raise ValueError("ops are not numbered from 0 in order")
    known = {storage.id for storage in ledger.storages}
    for op in ledger.ops:
        for tensor in (*op.inputs, *op.outputs):
            if tensor.storage not in known:
                raise ValueError(f"op {op.index} uses storage {tensor.storage}, which is not in the ledger")
            if tensor.strides is not None and len(tensor.strides) != len(tensor.shape):
                raise ValueError(f"op {op.index} has a tensor whose strides do not fit its shape")
    for ops in (*(kernel.ops for kernel in ledger.kernels), *(row.ops for row in ledger.measurements)):
        if any(not 0 <= index < len(ledger.ops) for index in ops):
            raise ValueError("a kernel or a measurement belongs to an op that is not in the ledger")
    return ledger


class _Stamp(msgspec.Struct):
    format_version: int


class _Predicted(msgspec.Struct):
    predictions: list[msgspec.Raw]


def _holds_predictions(content: bytes) -> bool:
    """Is this what `rooflight.save` or `rooflight predict --json` made of predictions?"""
    try:
        msgspec.json.decode(content, type=_Predicted)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError):
        return False
    return True


def _version(content: bytes, path: Path) -> int:
    try:
        version = msgspec.json.decode(content, type=_Stamp).format_version
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as error:
        # A file that breaks off in the middle fails here, before its version can be trusted.
        if content[:10] == b'{"header":':
            if _holds_predictions(content):
                raise BadFile(
                    f"{path} holds predictions, no ledger: read it with Python's json; load, report and compare take "
                    "ledgers, as rooflight estimate -o and rooflight measure -o save them"
                ) from None
            raise BadFile(
                f"{path} is what --json prints; a ledger is saved with: rooflight measure MODEL -o run.json"
            ) from None
        raise BadFile(
            f"{path} is not a rooflight ledger, as -o saves it ({_one_line(error)}); logs of profilers are read by: "
            "rooflight import"
        ) from error
    if version > FORMAT_VERSION:
        raise BadFile(
            f"{path} has format {version}, newer than this rooflight reads ({FORMAT_VERSION}): upgrade rooflight"
        )
    if version < 1:
        raise BadFile(f"{path} is not a rooflight ledger, as -o saves it: format {version} never existed")
    return version


MOST_BYTES = 4 * 1024**3
"""No file that rooflight reads is larger than this when unpacked: a gzipped one could unpack to anything."""


def read_bytes(path: Path, *, what: str) -> bytes:
    """The content of a file, unpacked when it is gzipped, whatever its name says; `what` it should be, for messages."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadFile(f"{path} does not exist: {_instead(path, what)}") from None
    except IsADirectoryError:
        raise BadFile(f"{path} is a folder, not a {what}: give a file") from None
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror or error}; may you read it?") from error
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        with gzip.open(BytesIO(content)) as packed:
            unpacked = packed.read(MOST_BYTES + 1)
    except EOFError:
        raise BadFile(
            f"{path} breaks off in the middle: it was not written, or not copied, to its end; make or copy it again"
        ) from None
    except (OSError, zlib.error) as error:
        raise BadFile(f"{path} is no valid gzip file: {_one_line(error)}; make or copy it again") from error
    if len(unpacked) > MOST_BYTES:
        raise BadFile(f"{path} unpacks to more than {MOST_BYTES // 1024**3} GiB: that is no {what}, give another file")
    return unpacked


def _instead(path: Path, what: str) -> str:
    """What may have been meant, for a file that is not there."""
    name = str(path).removesuffix(".json.gz")
    if what == "ledger" and name in recorded.names():
        return f"did you mean {recorded.PREFIX}{name}?"
    try:
        beside = {file.name.partition(".")[0]: file for file in path.parent.iterdir() if file.is_file()}
    except OSError:
        return f"check the path, there is no folder {path.parent}"
    near = difflib.get_close_matches(path.name.partition(".")[0], beside, n=1, cutoff=0.7)
    if near:
        return f"did you mean {beside[near[0]]}?"
    if what == "ledger":
        return "rooflight estimate MODEL -o FILE saves one, and rooflight list recordings shows those that come along"
    return f"give the file of a {what}"


def _one_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
