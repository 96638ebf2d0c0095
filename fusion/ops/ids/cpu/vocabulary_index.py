"""VocabularyIndex on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion.ops.ids.cpu.ids_layout import IndexState
from fusion.ops.ids.cpu_kernels.building import add_numbers, add_texts, long_bytes, slot_count
from fusion.ops.ids.cpu_kernels.layout import MAGIC, TEXTS, Index, KeyList, Vocabulary
from fusion.ops.ids.cpu_kernels.vocabulary import PAIR, RECORD
from fusion.ops.tables.cpu.inputs import element_count, release, take
from fusion.runtime.layout import Words
from fusion.runtime.native import op
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.pointers import as_record, as_words, clear, stack_words
from fusion.runtime.native.system import LARGE_PAGE, use_large_pages
from fusion.runtime.tensorflow.c_api import tf_tensor_data
from fusion.runtime.tensorflow.spec import OpSpec

#: Places are counted in words of 63 bits, which an index of more keys could not have.
_MAX_KEYS = 2**40


@jit
def _take_keys(frame: op.Frame, keys: KeyList, tensors: Words, number: int) -> None:
    """Sets the keys of a vocabulary, and its mask."""
    state = as_record(IndexState, frame.state)
    clear(keys)
    one = take(frame, tensors, number, number)
    other = take(frame, tensors, state.count + number, state.count + number)
    default = take(frame, tensors, 2 * state.count + number, 2 * state.count + number)
    if op.failed(frame):
        return
    if element_count(default) != 1:
        text = "defaults[%lld] must be one element"
        op.fail(frame, op.INVALID_ARGUMENT, text, number)
        return
    keys.default = as_words(tf_tensor_data(default))[0]
    keys.source = state.sources[number]
    keys.keys = tf_tensor_data(one)
    keys.count = element_count(one)
    keys.values = as_words(tf_tensor_data(other))
    if element_count(other) != keys.count or keys.count > _MAX_KEYS:
        text = "keys[%lld] must be as many as key_values[%lld], and at most %lld: %lld and %lld"
        counts = keys.count, element_count(other)
        op.fail(
            frame, op.INVALID_ARGUMENT, text, number, number, int64(_MAX_KEYS), counts[0], counts[1]
        )
        return
    mask = state.masks[number]
    if mask < 0:
        return
    first = 3 * state.count + mask
    one = take(frame, tensors, first, first)
    other = take(frame, tensors, first + state.mask_count, first + state.mask_count)
    if op.failed(frame):
        return
    if element_count(one) != 1 or element_count(other) != 1:
        text = "masks[%lld] and mask_values[%lld] must be one element each"
        op.fail(frame, op.INVALID_ARGUMENT, text, mask, mask)
        return
    keys.mask = tf_tensor_data(one)
    keys.mask_value = as_words(tf_tensor_data(other))[0]


@jit
def _place(vocabulary: Vocabulary, keys: KeyList, place: int) -> int:
    """Gives a vocabulary its places from one on; returns where it ends."""
    pairs = keys.count + (1 if keys.mask != 0 else 0)
    slots = slot_count(pairs)
    vocabulary.table_size = keys.count
    vocabulary.default = keys.default
    vocabulary.slot_mask = slots - 1
    vocabulary.slots = place
    if keys.source != TEXTS:
        return place + PAIR * slots
    vocabulary.is_of_texts = 1
    vocabulary.bytes = place + RECORD * slots
    vocabulary.byte_count = long_bytes(keys)
    return vocabulary.bytes + (vocabulary.byte_count + 7) // 8


@jit
def _build(frame: op.Frame, lists: KeyList, heads: Vocabulary) -> None:
    """Builds the index of vocabularies whose heads and keys have places for them."""
    state = as_record(IndexState, frame.state)
    place, dims = int64(Index.SIZE + Vocabulary.SIZE * state.count), stack_words(int64(1))
    for k in range(state.count):
        clear(heads[k])
        place = _place(heads[k], lists[k], place)
    dims[0] = place
    address = op.shaped_output(frame, int64(0), dims, int64(1), int64(8))
    if op.failed(frame):
        return
    # Slots are all over the memory: there are more small pages than the processor remembers.
    first_page = (address + LARGE_PAGE - 1) // LARGE_PAGE * LARGE_PAGE
    if first_page + LARGE_PAGE <= address + 8 * place:
        use_large_pages(first_page, address + 8 * place - first_page)
    index = as_words(address)
    for k in range(place):
        index[k] = 0
    head = as_record(Index, address)
    head.magic = int64(MAGIC)
    head.words = place
    head.count = state.count
    words = as_words(heads)
    for k in range(Vocabulary.SIZE * state.count):
        index[Index.SIZE + k] = words[k]
    for k in range(state.count):
        if lists[k].source == TEXTS:
            add_texts(index, head.vocabularies[k], lists[k])
        else:
            add_numbers(index, head.vocabularies[k], lists[k])
        op.count_rows(frame, lists[k].count)


def build_index(frame: op.Frame) -> None:
    """The kernel body."""
    state = as_record(IndexState, frame.state)
    inputs = 3 * state.count + 2 * state.mask_count
    words = inputs + (KeyList.SIZE + Vocabulary.SIZE) * state.count
    memory = op.scratch_bytes(frame, 8 * words)
    if op.failed(frame):
        return
    tensors = as_words(memory)
    for k in range(inputs):
        tensors[k] = 0
    lists = as_record(KeyList, memory + 8 * inputs)
    for k in range(state.count):
        if not op.failed(frame):
            _take_keys(frame, lists[k], tensors, int64(k))
    if not op.failed(frame):
        heads = as_record(Vocabulary, memory + 8 * (inputs + KeyList.SIZE * state.count))
        _build(frame, lists, heads)
    release(tensors, inputs)


def kernel_body(spec: OpSpec, types: Mapping[str, str]) -> Any:
    """The kernel body."""
    return build_index
