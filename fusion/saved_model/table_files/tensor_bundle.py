"""The files of variables, TensorFlow's tensor bundles: what is where, without reading it.

A bundle is an index, a sorted table of entries by name (the format of LevelDB, without compression,
tensorflow/core/lib/io/format.cc), and data files with the bytes of tensors one after the other
(tensorflow/core/util/tensor_bundle). TensorFlow reads and writes whole tensors; what is done here
with larger ones is done with their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from fusion.saved_model.errors import ModelError, reason_of

_HEADER = b""
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_CHECKSUM_BYTES = 4
#: A block ends with the entry that makes it so long.
_BLOCK_BYTES = 1 << 18


@dataclass(frozen=True)
class Bundle:
    """A bundle as its index describes it.

    Attributes:
        prefix: what the names of its files begin with.
        header: how many data files there are, and of what kind.
        entries: by the bytes of the name; those of parts of a tensor have names that are no text.
        elsewhere: the bundles that have the bytes of some entries in its place.
    """

    prefix: Path
    header: BundleHeaderProto
    entries: Mapping[bytes, BundleEntryProto]
    elsewhere: Mapping[bytes, Bundle] = field(default_factory=dict)

    def data_file(self, shard: int) -> Path:
        """Returns the path of a data file."""
        return data_file(self.prefix, shard, self.header.num_shards)

    def has_file(self, file: Path) -> bool:
        """Whether a file is one of its own."""
        shards = range(self.header.num_shards)
        return file == index_file(self.prefix) or file in map(self.data_file, shards)

    def data(self, name: bytes) -> tuple[Path, int, int]:
        """Returns where the bytes of a tensor are: the file, the first, and how many."""
        if name in self.elsewhere:
            return self.elsewhere[name].data(name)
        entry = self.entries[name]
        return self.data_file(entry.shard_id), entry.offset, entry.size


def data_file(prefix: Path, shard: int, count: int) -> Path:
    """Returns the path of a data file of a bundle."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{count:05d}")


def index_file(prefix: Path) -> Path:
    """Returns the path of the index of a bundle."""
    return prefix.with_name(f"{prefix.name}.index")


def read_bundle(prefix: Path) -> Bundle:
    """Reads the index of a bundle.

    Raises:
        ModelError: it cannot be read, or is damaged.
    """
    file = index_file(prefix)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {reason_of(error)}") from error
    try:
        records = dict(_entries(content))
        header = BundleHeaderProto.FromString(records.pop(_HEADER))
        entries = {name: BundleEntryProto.FromString(value) for name, value in records.items()}
    except (LookupError, ValueError, struct.error, DecodeError) as error:
        raise ModelError(f"{file}: truncated or damaged ({reason_of(error)})") from error
    return Bundle(prefix, header, entries)


def write_index(
    prefix: Path, header: BundleHeaderProto, entries: Mapping[bytes, BundleEntryProto]
) -> None:
    """Writes the index of a bundle whose data files are there, or will be.

    Raises:
        OSError: it cannot be written.
    """
    items = {name: entry.SerializeToString(deterministic=True) for name, entry in entries.items()}
    items[_HEADER] = header.SerializeToString(deterministic=True)
    index_file(prefix).write_bytes(_table(sorted(items.items())))


def strings_of(bundle: Bundle, name: bytes) -> list[bytes]:
    """Returns the elements of a tensor of strings.

    Raises:
        ModelError: its file cannot be read.
        ValueError: it is damaged.
    """
    file, offset, size = bundle.data(name)
    try:
        with open(file, "rb") as source:
            source.seek(offset)
            content = source.read(size)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {reason_of(error)}") from error
    count, place, lengths = 1, 0, list[int]()
    for dim in bundle.entries[name].shape.dim:
        count *= dim.size
    try:
        for _ in range(count):
            length, place = _number(content, place)
            lengths.append(length)
    except IndexError as error:
        raise ValueError("it ends too early") from error
    place += _CHECKSUM_BYTES
    strings = []
    for length in lengths:
        strings.append(content[place : place + length])
        place += length
    if place != len(content):
        raise ValueError("it has another size")
    return strings


def string_entry(entry: BundleEntryProto, content: bytes) -> bytes:
    """Returns the bytes of a scalar string, and sets the size and the checksum of its entry."""
    length = struct.pack("<I" if len(content) < 1 << 32 else "<Q", len(content))
    check = struct.pack("<I", _masked(crc32c(length)))
    whole = _varint(len(content)) + check + content
    entry.size, entry.crc32c = len(whole), _masked(crc32c(length + check + content))
    return whole


def empty_entry(entry: BundleEntryProto) -> BundleEntryProto:
    """Returns a copy of the entry of a tensor, without rows."""
    result = BundleEntryProto()
    result.CopyFrom(entry)
    result.shape.dim[0].size = result.size = 0
    result.crc32c = _masked(crc32c(b""))
    return result


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a sorted table."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or footer[-8:] != _MAGIC:
        raise ValueError("there is no end of an index")
    _, place = _handle(footer, 0)
    index, _ = _handle(footer, place)
    for _, value in _block_entries(content, *index):
        handle, _ = _handle(value, 0)
        yield from _block_entries(content, *handle)


def _block_entries(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    block = content[offset : offset + size]
    trailer = content[offset + size : offset + size + _TRAILER_BYTES]
    if len(trailer) < _TRAILER_BYTES:
        raise ValueError("a block ends too early")
    if trailer[0] != 0:
        raise ValueError("it is compressed, which TensorFlow's are not")
    if struct.unpack("<I", trailer[1:])[0] != _masked(crc32c(block + trailer[:1])):
        raise ValueError("a block has another checksum")
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    place, end, key = 0, len(block) - 4 * (restarts + 1), b""
    while place < end:
        shared, place = _number(block, place)
        own, place = _number(block, place)
        length, place = _number(block, place)
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + length]
        place += length


def _table(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns a sorted table of keys and values in ascending order."""
    content, handles = bytearray(), list[tuple[bytes, bytes]]()
    block, starts, last = bytearray(), list[int](), b""

    def flush() -> bytes:
        handle = _append_block(content, block, starts)
        block.clear()
        starts.clear()
        return handle

    def put(key: bytes, value: bytes) -> None:
        # Every key is whole, so that each is a place to begin to read.
        starts.append(len(block))
        block.extend(_varint(0) + _varint(len(key)) + _varint(len(value)) + key + value)

    for key, value in items:
        put(key, value)
        last = key
        if len(block) >= _BLOCK_BYTES:
            handles.append((last, flush()))
    if block:
        handles.append((last, flush()))
    meta = flush()
    for key, handle in handles:
        put(key, handle)
    footer = meta + flush()
    content += footer.ljust(_FOOTER_BYTES - 8, b"\0") + _MAGIC
    return bytes(content)


def _append_block(content: bytearray, block: bytearray, starts: list[int]) -> bytes:
    """Appends a block; returns its handle."""
    starts = starts or [0]
    whole = bytes(block) + struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))
    handle = _varint(len(content)) + _varint(len(whole))
    content += whole + b"\0" + struct.pack("<I", _masked(crc32c(whole + b"\0")))
    return handle


def _handle(content: bytes, place: int) -> tuple[tuple[int, int], int]:
    """Returns the offset and size of a block, and the offset of what follows its handle."""
    offset, place = _number(content, place)
    size, place = _number(content, place)
    return (offset, size), place


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Returns a number of any length, and the offset of what follows it."""
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def crc32c(content: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of some bytes."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    """Returns a checksum as it is stored: masked, as TensorFlow does."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
