"""TFRecord files of Examples, with the features that HugeCTR's scripts for TensorFlow write.

These are the label and counts as one integer each, and each category as a list of one integer.
Counts that are floats are read, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from modelzoo.criteo.blocks import Block
from modelzoo.criteo.schema import (
    CATEGORICAL,
    FIELDS,
    LABEL,
    MISSING_COUNT,
    MISSING_ID,
    NUMERIC,
    DataError,
)


def write_tfrecord(path: Path, block: Block, is_whole: bool = True) -> None:
    """Writes a file of samples, gzipped if its name ends in .gz; counts are whole or floats."""
    number = int if is_whole else float
    options = tf.io.TFRecordOptions(compression_type="GZIP" if path.suffix == ".gz" else "")
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for label, counts, ids in zip(
            block.labels.tolist(), block.counts.tolist(), block.ids.tolist(), strict=True
        ):
            example = tf.train.Example()
            features = example.features.feature
            features[LABEL].int64_list.value.append(int(label))
            for name, count in zip(NUMERIC, counts, strict=True):
                values = features[name].int64_list if is_whole else features[name].float_list
                values.value.append(number(count))
            for name, one in zip(CATEGORICAL, ids, strict=True):
                features[name].int64_list.value.append(one)
            writer.write(example.SerializeToString())


def counts_are_floats(file: Path) -> bool:
    """Whether the counts of a file's first Example are floats.

    Raises:
        DataError: it is no TFRecord file, or its first record no sample.
    """
    example = tf.train.Example()
    try:
        records = tf.data.TFRecordDataset([str(file)], compression_type=_compression(file))
        first = next(iter(records), None)
        if first is None:
            raise DataError(f"{file}: no record")
        example.ParseFromString(first.numpy())
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: cannot be read as TFRecord: {error}") from error
    features = example.features.feature
    if missing := [name for name in FIELDS if name not in features]:
        raise DataError(f"{file}: the first record has no {', '.join(missing)}")
    return features[NUMERIC[0]].HasField("float_list")


def read_tfrecord(files: Sequence[Path], batch_size: int, skip: int = 0) -> tf.data.Dataset:
    """Batches (features, labels) of the samples of files, without the first `skip`.

    Raises:
        DataError: a file cannot be read, or has counts of another type, or is gzipped where others
            are not.
    """
    kinds = {file: (counts_are_floats(file), _compression(file)) for file in files}
    if strange := next((file for file in files if kinds[file] != kinds[files[0]]), None):
        raise DataError(f"{strange}: gzipped or of float counts, unlike {files[0]}")
    count_type = tf.float32 if kinds[files[0]][0] else tf.int64
    no_count = count_type.as_numpy_dtype(MISSING_COUNT)
    missing = dict.fromkeys(NUMERIC, no_count) | dict.fromkeys(CATEGORICAL, MISSING_ID)
    wanted = {
        name: tf.io.FixedLenFeature(
            [1],
            count_type if name in NUMERIC else tf.int64,
            None if name == LABEL else [missing[name]],
        )
        for name in FIELDS
    }

    def parse(records: Any) -> Any:
        features = tf.io.parse_example(records, wanted)
        labels = tf.cast(features.pop(LABEL), tf.float32)
        for name in NUMERIC:
            features[name] = tf.cast(features[name], tf.float32)
        return features, labels

    names = [str(file) for file in files]
    records = tf.data.TFRecordDataset(names, compression_type=kinds[files[0]][1])
    return records.skip(skip).batch(batch_size).map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def _compression(file: Path) -> str:
    return "GZIP" if file.suffix == ".gz" else ""
