"""`ParquetLoader`: a dataset of batches of Parquet files."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.data.batches import Chunk, Layout, cut
from fusion.data.columns import Array
from fusion.data.files import DataError, Paths, find_files
from fusion.data.opening import open_files, roles_of, tensor_dtypes
from fusion.data.plan import Division, chunks_of, parts_of
from fusion.data.reader import Reader, Skipped
from fusion.data.schema import Form, Request


class ParquetLoader(tf.data.Dataset):
    """Batches of Parquet files, a `tf.data.Dataset` for `fit` and `evaluate` of any Keras.

    A batch is `(features, labels)`, or the features alone where there are no labels: features are a
    dictionary of tensors, labels a tensor, or a tuple of as many as there are `label_names`. A
    column has a tensor [rows, 1] of its name; one of lists that all have `k` values has [rows, k];
    one of lists of any length has `<name>__values`, [values], and `<name>__offsets`, int64
    [rows + 1], unless `ragged_names` or `sparse_names` has it. Labels and continuous columns are
    float32, categorical ones int32 or int64 as they are in the files, or strings.

    Row groups are read in TensorFlow's threads while batches are cut from those that were read
    before: two chunks are in memory. A chunk is `parts_per_chunk` parts, and a part the row groups
    that have `buffer_size` rows together, at least one row group.

    Each iteration is an epoch, `epoch` the number of the next one. The rows of a batch follow from
    the files, the arguments, the epoch and the number of the batch.

    Attributes:
        columns: of the files, and what becomes of them, labels last.
        epoch: which the next iteration is; may be set.
        num_rows: rows of an epoch, of this replica.
        num_rows_processed: rows of the last iteration that were read so far.
        seconds_waited: how long the last iteration waited for rows that were not read yet; the rest
            of its time it made batches, or the consumer did something else.
        seed: that of the arguments, or the one that was drawn.
        skipped: what was left out, a list of `Skipped(path, rows, reason)`.
    """

    def __init__(
        self,
        paths: Paths,
        batch_size: int,
        label_names: Sequence[str] = (),
        cat_names: Sequence[str] = (),
        cont_names: Sequence[str] = (),
        *,
        shuffle: bool = True,
        seed: int | None = None,
        buffer_size: int = 1 << 18,
        parts_per_chunk: int = 1,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        sparse_names: Sequence[str] = (),
        sparse_max: Mapping[str, int] | None = None,
        sparse_as_dense: bool = False,
        ragged_names: Sequence[str] = (),
        dtypes: Mapping[str, tf.DType] | None = None,
        fill_values: Mapping[str, Any] | None = None,
        on_error: str = "raise",
        progress: Callable[[int, int], None] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Reads the footers of the files.

        Arguments have the names of NVTabular's KerasSequenceLoader, as far as it has them.

        Args:
            paths: files, globs, folders, or URLs that fsspec knows. Folders may have partitions in
                them, `day=3/part.parquet`, whose keys are columns if they are requested.
            batch_size: rows of a batch, of each replica.
            label_names: columns that are labels.
            cat_names: columns that are ids or strings.
            cont_names: columns that are numbers.
            shuffle: whether parts are in a random order, and rows of a chunk as well.
            seed: of the order; None to draw one. Replicas must have the same.
            buffer_size: rows of a part, see above; no fraction of a GPU's memory.
            parts_per_chunk: parts whose rows are shuffled together.
            global_size: among how many replicas rows are divided: each row goes to one of them, and
                all have the same number of batches. None for 1.
            global_rank: which of them this is. None for 0.
            drop_last: whether rows are left out that do not fill a batch.
            sparse_names: columns of lists that become SparseTensors, [rows, the longest list].
            sparse_max: the second dimension of these by name. A longer list is an error.
            sparse_as_dense: whether they are padded to tensors instead, with 0 or "".
            ragged_names: columns of lists that become RaggedTensors.
            dtypes: of tensors, by column, in place of those above.
            fill_values: what stands for nulls and NaNs, by column. Nulls of others are an error,
                their NaNs stay. A list that is null has no values, or as many of these as lists of
                one size have.
            on_error: "raise", or "skip" to leave out files and row groups that cannot be read.
            progress: called with `num_rows_processed` and `num_rows` for each chunk that was read.
            storage_options: arguments of fsspec's filesystem.

        Raises:
            DataError: a file is not there or cannot be read, has no such columns, or others than
                the first one; there is no row. While batches are read it becomes a
                `tf.errors.InvalidArgumentError` with the same message.
            ImportError: a path is a URL, and fsspec is not installed.
            ValueError: an argument is wrong.
        """
        size, rank = global_size or 1, global_rank or 0
        _check_numbers(batch_size, buffer_size, parts_per_chunk, size, rank)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        if shuffle and size > 1 and seed is None:
            raise ValueError(
                "seed must be given, the same for all replicas, where rows are shuffled"
            )
        if seed is not None and seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.seed = secrets.randbits(32) if seed is None else seed
        self.epoch = 0
        self.num_rows_processed = 0
        self.seconds_waited = 0.0
        self._waits_since = 0.0
        self.skipped: list[Skipped] = []
        self._shuffle = shuffle
        self._parts_per_chunk = parts_per_chunk
        self._skips = on_error == "skip"
        # Replicas would have other numbers of batches if one of them left out rows.
        self._may_lose_rows = self._skips and size == 1
        self._progress = progress
        self._lock = Lock()
        self._label_names = tuple(label_names)
        request = Request(
            roles_of(label_names, cat_names, cont_names),
            dict.fromkeys(ragged_names, Form.RAGGED)
            | dict.fromkeys(sparse_names, Form.DENSE if sparse_as_dense else Form.SPARSE),
            sparse_max or {},
            tensor_dtypes(dtypes),
            fill_values or {},
        )
        locations = find_files(paths, storage_options)
        files, self.columns = open_files(
            locations, request, self.skipped.append if self._skips else None
        )
        self._reader = Reader(
            files, self.columns, self.skipped.append if self._may_lose_rows else None
        )
        self._parts = parts_of([file.rows for file in files], buffer_size)
        total = sum(sum(file.rows) for file in files)
        if not total:
            raise DataError(f"{files[0].path}: there is no row in it or in files behind it")
        self._division = Division(total, batch_size, drop_last, size, rank)
        self.num_rows = self._division.rows
        self._dataset = self._pipeline(self._next_epoch)
        super().__init__(self._dataset._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        """The type specs of a batch."""
        return self._dataset.element_spec

    def __len__(self) -> int:
        """How many batches an epoch has; at most as many if errors are skipped."""
        return self._division.batches

    def peek(self) -> Any:
        """The first batch of the next iteration, which it gives again."""
        epoch = self.epoch
        return next(iter(self._pipeline(lambda: epoch)))

    def resume(self, epoch: int, batch: int = 0) -> tf.data.Dataset:
        """The rest of an epoch, from a batch on; the loader continues with the next epoch.

        Raises:
            ValueError: there is no such batch.
        """
        if epoch < 0 or not 0 <= batch <= len(self):
            raise ValueError(f"no batch {batch} of epoch {epoch}: an epoch has {len(self)}")
        self.epoch = epoch + 1
        return self._pipeline(lambda: epoch, batch)

    def _next_epoch(self) -> int:
        with self._lock:
            self.epoch += 1
            return self.epoch - 1

    def _pipeline(self, epoch: Callable[[], int], start: int = 0) -> tf.data.Dataset:
        """Batches of the epoch of each iteration, from batch `start` on."""
        rows = self._division.batch_size if self._division.drop_last else None
        layout = Layout(self.columns, self._label_names, rows)
        chunks = tf.data.Dataset.from_generator(
            lambda: self._tensors(epoch(), start),
            output_signature=(*layout.chunk_spec(), tf.TensorSpec([], tf.int64)),
        )
        batches = self._timed(chunks.prefetch(1)).flat_map(
            lambda *chunk: layout.batches(chunk[:-1], chunk[-1])
        )
        dataset: tf.data.Dataset = batches
        if not self._may_lose_rows:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(self) - start))
        options = tf.data.Options()
        # There is nothing to tune, and an iterator may wait for the tuner when it ends.
        options.autotune.enabled = False
        if self._division.size > 1:
            # Rows are divided already.
            policy = tf.data.experimental.AutoShardPolicy.OFF
            options.experimental_distribute.auto_shard_policy = policy
        return dataset.with_options(options)

    def _timed(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
        """The same chunks; counts how long their consumer waits."""

        def begin(number: np.int64) -> None:
            if number == 0:
                self.seconds_waited = 0.0
            self._waits_since = perf_counter()

        def end() -> None:
            self.seconds_waited += perf_counter() - self._waits_since

        def before(number: tf.Tensor) -> tf.Tensor:
            tf.numpy_function(begin, [number], [])
            return number

        def after(_: tf.Tensor, chunk: Any) -> Any:
            tf.numpy_function(end, [], [])
            return chunk

        # Zipped datasets are iterated one after the other.
        return tf.data.Dataset.zip((tf.data.Dataset.counter().map(before), chunks)).map(after)

    def _tensors(self, epoch: int, start: int) -> Iterator[tuple[Array | int, ...]]:
        """The tensors of chunks of whole batches, and how many batches."""
        begin = self._division.begin(start)
        if begin == self._division.rows and start < len(self):
            yield (*self._reader.read(()).arrays(), 1)
            return
        for chunk, count in cut(self._chunks(epoch, begin), self._division, start):
            yield (*chunk.arrays(), count)

    def _chunks(self, epoch: int, begin: int) -> Iterator[Chunk]:
        """The chunks of an epoch, without rows before row `begin`."""
        rank, parts = self._division.rank, self._parts
        if self._shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(parts))
            parts = [parts[place] for place in order]
        self.num_rows_processed = 0
        rows_to_skip = begin
        for number, part in enumerate(chunks_of(parts, self._parts_per_chunk, self._division)):
            rows = sum(map(len, part))
            if rows <= rows_to_skip and not self._may_lose_rows:
                rows_to_skip -= rows
                continue
            chunk = self._reader.read(part, self._order(epoch, rank, number))
            self.num_rows_processed += chunk.rows
            if self._progress is not None:
                self._progress(self.num_rows_processed, self.num_rows)
            if rows_to_skip < chunk.rows:
                yield chunk.slice(rows_to_skip, chunk.rows)
            rows_to_skip = max(rows_to_skip - chunk.rows, 0)

    def _order(self, *key: int) -> Callable[[int], Array] | None:
        if not self._shuffle:
            return None
        return np.random.default_rng([self.seed, *key]).permutation


def _check_numbers(
    batch_size: int, buffer_size: int, parts_per_chunk: int, size: int, rank: int
) -> None:
    numbers = {
        "batch_size": batch_size,
        "buffer_size": buffer_size,
        "parts_per_chunk": parts_per_chunk,
        "global_size": size,
    }
    for name, number in numbers.items():
        if not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"{name} must be an integer and positive, got {number!r}")
    if not 0 <= rank < size:
        raise ValueError(f"global_rank must be in [0, {size}), got {rank}")
