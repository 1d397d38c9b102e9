"""Ledgers on disk: versioned JSON, gzipped when the name ends in .gz; decoded strictly, written atomically.

Files are data, never code. An old format is migrated when read; a newer one is refused. An existing file is replaced
only when asked to, and a half-written one is never seen: the text goes to a temporary file first.
"""

from __future__ import annotations

import difflib
import gzip
import math
import os
import re
import stat
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterable
from io import BufferedIOBase, BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rooflight import recordings
from rooflight.errors import BadFile
from rooflight.ledger import FORMAT_VERSION, LARGEST, Header, Kernel, Ledger, Measurement, Note, Op
from rooflight.metrics import QUANTITIES

UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises for content that is not of its type, not UTF-8, too deep, or has endless numbers."""
Migration = Callable[[dict[str, Any]], dict[str, Any]]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


MIGRATIONS: dict[int, Migration] = {}
"""From the version it is filed under to the next, where that is more than new fields."""
ONLY_ADDED_SINCE = 1
"""From this version on formats only gained fields (2: what measurements need; 3: when kernels were launched; 4: how a
step is run; 5: codes of notes), or names changed that are put right after reading."""


class _HeaderOf4(Header, frozen=True):
    """Up to format 4 notes were texts."""

    notes: tuple[str, ...] = ()  # type: ignore[assignment]


class _LedgerOf4(Ledger, frozen=True):
    header: _HeaderOf4


def save(ledger: Ledger, path: str | Path, *, force: bool = False) -> Path:
    """Write a ledger; `force` allows to replace an existing file."""
    path = Path(path)
    content = msgspec.json.encode(ledger)
    if path.name.endswith(".gz"):
        content = gzip.compress(content, compresslevel=6, mtime=0)
    write_atomically(path, content, force=force)
    return path


def _taken(path: Path) -> BadFile:
    return BadFile("file-exists", f"{path} exists already: add --force to replace it, or give another name")


def check_writable(path: str | Path, *, force: bool) -> None:
    """Say before the work starts what would stop it from being saved."""
    path = Path(path)
    try:
        path.resolve()
    except (OSError, RuntimeError):  # Python 3.11 and 3.12 raise the latter for a circle of links
        raise BadFile("dangling-link", f"{path} is a link that leads nowhere: give another name") from None
    if path.is_dir():
        raise BadFile("is-a-folder", f"{path} is a folder: give a file name")
    if path.exists() and not path.is_file():
        raise BadFile(
            "not-a-regular-file",
            f"{path} is no regular file: give another name, or leave -o out and redirect the output",
        )
    if path.exists() and not force:
        raise _taken(path)
    folder = path.parent
    if folder.exists() and not folder.is_dir():
        raise BadFile("not-a-folder", f"{folder} is no folder: give a file in another one")
    if not folder.is_dir():
        raise BadFile("folder-not-found", f"the folder {folder} does not exist: make it first")
    if not os.access(folder, os.W_OK):
        raise BadFile("no-permission", f"no permission to write into {folder}: give a file in another folder")


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
        raise BadFile(
            "write-failed", f"cannot write {path}: {error.strerror or error}; give a file in another place"
        ) from error
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
    recording = recordings.name_of(str(path)) if recordings.is_recorded(path) else ""
    path = recordings.path(str(path)) if recordings.is_recorded(path) else Path(path)
    content = read_bytes(path, what="ledger")
    version = _version(content, path)
    try:
        if version >= ONLY_ADDED_SINCE:
            if version >= 5:
                ledger = msgspec.json.decode(content, type=Ledger)
            else:
                ledger = _with_notes(msgspec.json.decode(content, type=_LedgerOf4))
            ops = ledger.ops if version >= 3 else tuple(map(_in_own_precision, ledger.ops))
            ledger = ledger if version >= 4 else _with_kernel_time(ledger)
            header = msgspec.structs.replace(ledger.header, recording=recording) if recording else ledger.header
            return _checked(msgspec.structs.replace(ledger, format_version=FORMAT_VERSION, ops=ops, header=header))
        document = msgspec.json.decode(content)
        for step in range(version, FORMAT_VERSION):
            if step not in MIGRATIONS:
                raise BadFile(
                    "old-format",
                    f"{path} has format {version}, which this rooflight cannot migrate to {FORMAT_VERSION}",
                )
            document = MIGRATIONS[step](document)
        return _checked(msgspec.convert(document, type=Ledger))
    except (*UNDECODABLE, LookupError, TypeError) as error:
        raise BadFile(
            "damaged-file", f"{path} is no valid ledger: {_one_line(error)}; make it again, or take a copy"
        ) from error


def _with_notes(old: _LedgerOf4) -> Ledger:
    header = with_notes(Header, old.header, [Note("", text) for text in old.header.notes])
    return Ledger(**{name: getattr(old, name) for name in Ledger.__struct_fields__ if name != "header"}, header=header)


def with_notes(kind: type[_Struct], old: msgspec.Struct, notes: Iterable[Note]) -> _Struct:
    """The fields of an older form of a struct in today's form, with other notes."""
    fields = {name: getattr(old, name) for name in kind.__struct_fields__ if name != "notes"}
    return kind(**fields, notes=tuple(notes))


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

    return msgspec.structs.replace(
        ledger, kernels=tuple(map(renamed, ledger.kernels)), measurements=tuple(map(renamed, ledger.measurements))
    )


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
    storages = {storage.id for storage in ledger.storages}
    for op in ledger.ops:
        for tensor in (*op.inputs, *op.outputs):
            if tensor.storage not in storages:
                raise ValueError(f"op {op.index} uses storage {tensor.storage}, which is not in the ledger")
            if tensor.strides is not None and len(tensor.strides) != len(tensor.shape):
                raise ValueError(f"op {op.index} has a tensor whose strides do not fit its shape")
    for ops in (*(kernel.ops for kernel in ledger.kernels), *(row.ops for row in ledger.measurements)):
        if any(not 0 <= index < len(ledger.ops) for index in ops):
            raise ValueError("a kernel or a measurement belongs to an op that is not in the ledger")
    for quantities in (row.quantities for rows in (ledger.kernels, ledger.measurements) for row in rows):
        for name, value in quantities.items():
            if value.value < 0 and name in QUANTITIES and name not in _SIGNED:
                raise ValueError(f"{name} of {value.origin} is negative")
    header = ledger.header
    tensors = chain(
        (tensor for _, tensor in header.inputs), header.outputs, *((*op.inputs, *op.outputs) for op in ledger.ops)
    )
    sizes = [tensor.numel * tensor.itemsize for tensor in tensors]
    sizes += [math.prod(shape) for module in ledger.modules for shape in module.inputs]
    sizes += [part.output_bytes for part in ledger.modules] + [storage.nbytes for storage in ledger.storages]
    if sum(sizes) > LARGEST:
        raise ValueError(f"its tensors together are larger than {LARGEST:,} bytes")
    if any((kernel.time_s or 0) < 0 or (kernel.launch_time_s or 0) < 0 for kernel in ledger.kernels):
        raise ValueError("a kernel takes negative time")
    return ledger


_SIGNED = ("growth_bytes",)
"""An op may give back more memory than it takes."""


class _Stamp(msgspec.Struct):
    format_version: int


class _Predicted(msgspec.Struct):
    predictions: list[msgspec.Raw]


def _holds_predictions(content: bytes) -> bool:
    """Is this what `rooflight.save` or `rooflight predict --json` made of predictions?"""
    try:
        msgspec.json.decode(content, type=_Predicted)
    except UNDECODABLE:
        return False
    return True


def _version(content: bytes, path: Path) -> int:
    try:
        version = msgspec.json.decode(content, type=_Stamp).format_version
    except UNDECODABLE as error:
        # A file that breaks off in the middle fails here, before its version can be trusted.
        if content[:10] == b'{"header":':
            if _holds_predictions(content):
                raise BadFile(
                    "not-a-ledger",
                    f"{path} holds predictions, no ledger: read it with Python's json; load, report and compare take "
                    "ledgers, as rooflight estimate -o and rooflight measure -o save them",
                ) from None
            raise BadFile(
                "not-a-ledger",
                f"{path} is what --json prints; a ledger is saved with: rooflight measure MODEL -o run.json",
            ) from None
        raise BadFile(
            "not-a-ledger",
            f"{path} is not a rooflight ledger, as -o saves it ({_one_line(error)}); logs of profilers are read by: "
            "rooflight import",
        ) from error
    if version > FORMAT_VERSION:
        raise BadFile(
            "newer-format",
            f"{path} has format {version}, newer than this rooflight reads ({FORMAT_VERSION}): upgrade rooflight",
        )
    if version < 1:
        raise BadFile(
            "not-a-ledger", f"{path} is not a rooflight ledger, as -o saves it: format {version} never existed"
        )
    return version


def toml_table(content: bytes) -> dict[str, Any]:
    """Decode a user's TOML file. A ValueError says in one line what is wrong with it."""
    try:
        table = tomllib.loads(content.decode())
        msgspec.msgpack.encode(table)  # refuses longer whole numbers, as TOML does
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(_one_line(error)) from error
    except RecursionError:
        raise ValueError("arrays or tables lie inside one another without end") from None
    except (ValueError, OverflowError):  # the former from 4,300 digits on
        raise ValueError("a whole number has more than 64 bits") from None
    return table


MOST_BYTES = 4 * 1024**3
"""No file that rooflight reads is larger than this, packed or not: a gzipped one could unpack to anything."""
_CHUNK_BYTES = 1 << 20
_HANDED_OVER = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What a shell hands over as a file, `<(...)` or its input: the only pipes that are read."""


def read_bytes(path: Path, *, what: str) -> bytes:
    """The content of a file, unpacked when it is gzipped, whatever its name says; `what` it should be, for messages."""
    try:
        with _opened(path, what) as file:
            content = _content(file)
        if content is not None and content[:2] == b"\x1f\x8b":
            content = _limited(gzip.GzipFile(fileobj=BytesIO(content)))
    except FileNotFoundError:
        raise BadFile("file-not-found", f"{path} does not exist: {_instead(path, what)}") from None
    except IsADirectoryError:
        raise BadFile("is-a-folder", f"{path} is a folder, not a {what}: give a file") from None
    except EOFError:
        raise BadFile(
            "truncated-file",
            f"{path} breaks off in the middle: it was not written, or not copied, to its end; make or copy it again",
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadFile(
            "damaged-file", f"{path} is no valid gzip file: {_one_line(error)}; make or copy it again"
        ) from error
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or _one_line(error)
        raise BadFile("read-failed", f"cannot read {path}: {reason}; may you read it?") from error
    except ValueError as error:
        raise BadFile("bad-name", f"{path!s:.80} is no name of a file: {_one_line(error)}; give another") from error
    if content is None:
        raise BadFile(
            "file-too-large",
            f"{path} holds more than {MOST_BYTES // 1024**3} GiB: that is no {what}, give another file",
        )
    return content


def _opened(path: Path, what: str) -> BufferedIOBase:
    """A regular file, or a pipe that a shell has made for this command: others may never end, or never begin. It is
    opened without waiting, and looked at when it is open, so that nothing can be put in its place."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError
        if not stat.S_ISREG(mode):
            is_stream = stat.S_ISFIFO(mode) or os.isatty(descriptor)
            if not is_stream or not (str(path).startswith(_HANDED_OVER) or _is_pipe(descriptor)):
                hint = (
                    "redirect a file or a pipe into it" if str(path) in _HANDED_OVER else "give a file, or /dev/stdin"
                )
                raise BadFile("not-a-regular-file", f"{path} is no regular file, so it is no {what}: {hint}")
            os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _is_pipe(descriptor: int) -> bool:
    """One without a name, which only its two processes have. Linux tells."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    except OSError:
        return False


def _content(file: BufferedIOBase) -> bytes | None:
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode):
        return _limited(file)
    return None if about.st_size > MOST_BYTES else file.read()


def _limited(file: BufferedIOBase) -> bytes | None:
    """All that a stream gives; `None`: more than any file that rooflight reads. By chunks: none asks for more than
    there is."""
    content = BytesIO()
    while chunk := file.read(_CHUNK_BYTES):
        if content.tell() + len(chunk) > MOST_BYTES:
            return None
        content.write(chunk)
    return content.getvalue()


def _instead(path: Path, what: str) -> str:
    """What may have been meant, for a file that is not there."""
    name = str(path).removesuffix(".json.gz")
    if what == "ledger" and name in recordings.names():
        return f"did you mean {recordings.PREFIX}{name}?"
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
