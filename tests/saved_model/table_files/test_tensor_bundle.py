"""Tensor bundles against TensorFlow, which reads what is written here."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model.errors import ModelError
from fusion.saved_model.table_files.tensor_bundle import (
    crc32c,
    read_bundle,
    string_entry,
    strings_of,
    write_index,
)


def saved(folder: Path, **values: object) -> Path:
    prefix = folder / "bundle"
    names, tensors = list(values), [tf.constant(value) for value in values.values()]
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
    )
    return prefix


@pytest.mark.parametrize("count", [1, 3, 9000])
def test_indices_are_read_and_written(tmp_path: Path, count: int) -> None:
    """Of one block and of several."""
    values = {
        f"layer_{k:05d}/some/longer/name": np.full([k % 3, 2], k, "float32") for k in range(count)
    }
    prefix = saved(tmp_path, **values)
    bundle = read_bundle(prefix)
    assert [name.decode() for name in bundle.entries] == sorted(values)
    for name in list(values)[:: max(count // 7, 1)]:
        file, offset, size = bundle.data(name.encode())
        assert file.read_bytes()[offset : offset + size] == values[name].tobytes()
    again = tmp_path / "again"
    shutil.copyfile(bundle.data_file(0), tmp_path / "again.data-00000-of-00001")
    write_index(again, bundle.header, bundle.entries)
    reader = tf.train.load_checkpoint(str(again))
    assert reader.get_variable_to_shape_map().keys() == values.keys()
    name = list(values)[-1]
    assert np.array_equal(reader.get_tensor(name), values[name])
    assert read_bundle(again).entries == bundle.entries


@pytest.mark.parametrize("words", [[], [b""], [b"a", b"", b"longer" * 40]])
def test_strings(tmp_path: Path, words: list[bytes]) -> None:
    bundle = read_bundle(saved(tmp_path, words=np.array(words, object).reshape(-1)))
    assert strings_of(bundle, b"words") == words


@pytest.mark.parametrize("word", [b"", b"x", bytes(range(256)) * 300])
def test_string_entries_are_those_of_tensorflow(tmp_path: Path, word: bytes) -> None:
    bundle = read_bundle(saved(tmp_path, word=word))
    file, offset, size = bundle.data(b"word")
    entry = type(bundle.entries[b"word"])()
    assert string_entry(entry, word) == file.read_bytes()[offset : offset + size]
    assert (entry.size, entry.crc32c) == (size, bundle.entries[b"word"].crc32c)


def test_checksum() -> None:
    """The check value of CRC-32C."""
    assert crc32c(b"123456789") == 0xE3069283


def test_damage(tmp_path: Path) -> None:
    prefix = saved(tmp_path, a=np.ones([3], "float32"), b=["x"])
    index = Path(f"{prefix}.index")
    content = index.read_bytes()
    with pytest.raises(ModelError, match=r"other.index: cannot be read"):
        read_bundle(tmp_path / "other")
    entries, refused = read_bundle(prefix).entries, 0
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0x41
        index.write_bytes(changed)
        try:  # there are bytes that nobody reads
            assert read_bundle(prefix).entries == entries
        except ModelError as error:
            refused += "truncated or damaged" in str(error)
    assert refused > len(content) / 2
    for size in range(0, len(content), 7):
        index.write_bytes(content[:size])
        with pytest.raises(ModelError, match="truncated or damaged"):
            read_bundle(prefix)
