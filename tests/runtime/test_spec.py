"""What follows from an op's description."""

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.framework import op_def_registry

from fusion.ops.registered import SPECS
from fusion.runtime.records import LiveMemory
from fusion.runtime.registration.wrapper import check_static
from fusion.runtime.tensorflow import layout
from fusion.runtime.tensorflow.layout import Counters, InputEntry, OpTable, OutputEntry
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec

EXAMPLE = OpSpec(
    name="AnExampleOpV2",
    doc="An example.",
    inputs=(
        Arg("ids", "Tid", "[n]"),
        Arg("tables", "T", "[?, D]", length="P"),
        Arg("weights", "float32", "[n]", when="weighted"),
    ),
    outputs=(Arg("sums", "T", "[n, D]"), Arg("pairs", "int64", "[?, 2]")),
    attrs=(
        Attr("P", "int", minimum=1),
        Attr("T", "type", allowed=("float16", "float32")),
        Attr("Tid", "type", allowed=("int32", "int64")),
        Attr("weighted", "bool", default=False),
        Attr("limit", "float", default=-1.0),
        Attr("mode", "string", default="a", allowed=("a", "b")),
    ),
)

#: Results whose sizes an attr may change.
RESIZED = replace(
    EXAMPLE,
    inputs=(),
    outputs=(),
    attrs=(EXAMPLE.attrs[1], Attr("U", "type", default="float16", allowed=("int32", "float16"))),
    resized="U",
)

#: Sizes per place of the lists.
LISTS = OpSpec(
    name="ListsExample",
    doc="An example.",
    inputs=(
        Arg("ids", "int64", "[n]"),
        Arg("rows", "float32", "[n_p, D]", length="P"),
        Arg("weights", "float32", "[n_p]", length="P", when="weighted"),
        Arg("turned", "float32", "[?, w_p]", length="P"),
    ),
    outputs=(Arg("sums", "float32", "[n_p, w_p]", length="P"), Arg("new", "int64", "[m_p]", "P")),
    attrs=(Attr("P", "int", minimum=1), Attr("weighted", "bool", default=False)),
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_registered_op_is_the_described_one(spec):
    registered = op_def_pb2.OpDef()
    registered.CopyFrom(op_def_registry.get(spec.name))
    assert registered == spec.op_def


@pytest.mark.parametrize(
    ("attr", "text"),
    [
        (EXAMPLE.attrs[0], "P: int >= 1"),
        (EXAMPLE.attrs[1], "T: {half, float}"),
        (EXAMPLE.attrs[3], "weighted: bool = false"),
        (EXAMPLE.attrs[4], "limit: float = -1.0"),
        (EXAMPLE.attrs[5], "mode: {'a', 'b'} = 'a'"),
        (RESIZED.attrs[1], "U: {int32, half} = DT_HALF"),
    ],
)
def test_definition_of_an_attr(attr, text):
    assert attr.definition == text


def test_definition_of_a_list_input():
    assert EXAMPLE.inputs[1].definition(EXAMPLE.types) == "tables: P * T"


def test_names_follow_tensorflows_generator():
    assert EXAMPLE.python_name == "an_example_op_v2"
    expected = {
        "PruneInvalidAndFillEmptyRows": "prune_invalid_and_fill_empty_rows",
        "PruneDenseAndFillEmptyRows": "prune_dense_and_fill_empty_rows",
        "UniqueWithCountsV3": "unique_with_counts_v3",
        "PartitionWithPermutation": "partition_with_permutation",
        "FusedEmbeddingSparsePreLookUp": "fused_embedding_sparse_pre_look_up",
        "FusedEmbeddingSparsePostLookUp": "fused_embedding_sparse_post_look_up",
        "FusedEmbeddingSparsePostLookUpGrad": "fused_embedding_sparse_post_look_up_grad",
        "FusedEmbeddingSparsePostLookUpV2": "fused_embedding_sparse_post_look_up_v2",
        "FusedEmbeddingSparsePostLookUpV2Grad": "fused_embedding_sparse_post_look_up_v2_grad",
        "FusedEmbeddingLookup": "fused_embedding_lookup",
        "GroupedEmbeddingLookup": "grouped_embedding_lookup",
        "GroupedEmbeddingPreLookUp": "grouped_embedding_pre_look_up",
        "GroupedKeyedEmbeddingLookup": "grouped_keyed_embedding_lookup",
        "GroupedKeyedEmbeddingPreLookUp": "grouped_keyed_embedding_pre_look_up",
        "GroupedEmbeddingGather": "grouped_embedding_gather",
        "GroupedEmbeddingPostLookUp": "grouped_embedding_post_look_up",
        "GroupedEmbeddingPostLookUpGrad": "grouped_embedding_post_look_up_grad",
        "ReadEmbeddingTables": "read_embedding_tables",
        "FusedEmbeddingUpdate": "fused_embedding_update",
        "ZerosOnDemand": "zeros_on_demand",
        "EmbeddingKeyIndex": "embedding_key_index",
        "KeyedEmbeddingGather": "keyed_embedding_gather",
        "FillEmbeddingSlot": "fill_embedding_slot",
        "EmbeddingKeyEntries": "embedding_key_entries",
        "FindEmbeddingKeys": "find_embedding_keys",
        "AddEmbeddingKeys": "add_embedding_keys",
        "RemoveEmbeddingKeys": "remove_embedding_keys",
        "ReadTableFile": "read_table_file",
        "TableStoreGather": "table_store_gather",
        "FusedParseExample": "fused_parse_example",
        "FusedParseSequenceExample": "fused_parse_sequence_example",
        "GroupedIds": "grouped_ids",
        "GroupedSplit": "grouped_split",
        "VocabularyIndex": "vocabulary_index",
        "GroupedCross": "grouped_cross",
    }
    assert {spec.name: spec.python_name for spec in SPECS} == expected


def test_inferred_attrs_and_symbols():
    assert EXAMPLE.inferred_attrs == ("P", "T", "Tid")
    assert EXAMPLE.symbols == ("n", "D")
    assert EXAMPLE.slots == (0, 1, 2, 3)
    assert EXAMPLE.slots.limit == 2


def test_table_for_native_code():
    memory = LiveMemory()
    words = layout.words(EXAMPLE, memory)
    assert words[: OpTable.counters] == [3, 2, 2, 2, 2, 1, 0, 0, 0, 0, 0, 0, -1]
    counters = (ctypes.c_int64 * Counters.SIZE).from_address(words[OpTable.counters])
    assert not any(counters)
    n, dim = layout.FIRST_SYMBOL, layout.FIRST_SYMBOL - 1
    ids = words[OpTable.entries : OpTable.entries + InputEntry.SIZE]
    assert ids[:3] == [0, 1, -1]
    assert ids[4:] == [n, layout.UNKNOWN]
    tables = words[OpTable.entries + InputEntry.SIZE :][: InputEntry.SIZE]
    assert (tables[0], tables[1], tables[4:]) == (1, 2, [layout.UNKNOWN, dim])
    weights = words[OpTable.entries + 2 * InputEntry.SIZE :][: InputEntry.SIZE]
    assert weights[2] == EXAMPLE.slots.weighted
    assert words[-OutputEntry.SIZE :] == [0, 2, layout.UNKNOWN, 2]
    starts = [OpTable.entries + k * InputEntry.SIZE + InputEntry.name for k in range(3)]
    names = [ctypes.string_at(words[start]) for start in starts]
    assert names == [b"ids", b"tables", b"weights"]


def test_sizes_per_position_are_those_of_the_first_list():
    assert LISTS.symbols == ("n", "D")
    assert LISTS.per_position == {"n_p": (1, 0), "w_p": (3, 1)}
    words = layout.words(LISTS, LiveMemory())
    dims = [words[OpTable.entries + k * InputEntry.SIZE :][4 : InputEntry.SIZE] for k in range(4)]
    n_p, w_p = layout.FIRST_PEER - layout.MAX_RANK, layout.FIRST_PEER - 3 * layout.MAX_RANK - 1
    n, dim = layout.FIRST_SYMBOL, layout.FIRST_SYMBOL - 1
    unknown = layout.UNKNOWN
    assert dims == [[n, unknown], [n_p, dim], [n_p, unknown], [unknown, w_p]]
    outputs = words[-2 * OutputEntry.SIZE :]
    assert outputs == [1, 2, n_p, w_p, 1, 1, unknown, unknown]


def lists(**changes):
    shapes: dict[str, Any] = {"ids": [5], "rows": [[2, 7], [3, 7]], "weights": [[2], [3]]}
    shapes |= {"turned": [[9, 4], [9, 6]], **changes}
    values = [
        tf.zeros(shapes["ids"], tf.int64),
        *([tf.zeros(shape) for shape in shapes[name]] for name in ("rows", "weights", "turned")),
    ]
    return check_static(LISTS, values, {"P": None, "weighted": True})


def test_sizes_per_position_may_differ():
    lists()
    lists(rows=[[2, 7], [2, 7]], weights=[[2], [2]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"weights": [[3], [2]]},
            r"weights\[0\] has .*\[3\].* n_p .* 2 as in rows\[0\]",
        ),
        (
            {"weights": [[2], [2]]},
            r"weights\[1\] has .*\[2\].* n_p .* 3 as in rows\[1\]",
        ),
        ({"rows": [[2, 7], [3, 8]]}, r"rows has shape \[3, 8\].* D .*must be 7 as in rows"),
    ],
)
def test_sizes_per_position_that_disagree(changes, message):
    with pytest.raises(ValueError, match=message):
        lists(**changes)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_documentation_names_every_argument(spec):
    import fusion

    text = getattr(fusion.ops, spec.python_name).__doc__
    for thing in (*spec.inputs, *spec.attrs, *spec.outputs):
        assert thing.name in text


def test_shapes_flow_through_a_graph():
    import fusion

    with tf.Graph().as_default():
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        rows = tf.compat.v1.placeholder(tf.int64, [None, 2])
        result = fusion.ops.prune_invalid_and_fill_empty_rows(ids, rows, [4, 5], [1.0])
        assert result.sp_indices_out.shape.as_list() == [None, 2]
        assert result.is_row_empty.shape.as_list() == [None]
        post = fusion.ops.fused_embedding_sparse_post_look_up_v2(
            [tf.zeros([3, 7]), tf.compat.v1.placeholder(tf.float32, [None, None])],
            tf.zeros([3, 2], tf.int32),
            [4, 5],
            result.sp_indices_out,
            result.is_row_empty,
            tf.compat.v1.placeholder(tf.int32, [None]),
            [1.0],
        )
        assert post.emb_vectors.shape.as_list() == [None, 7]


def test_sizes_that_an_attr_changes():
    words = layout.words(RESIZED, LiveMemory())
    assert ctypes.string_at(words[OpTable.resized]) == b"U"
    assert words[OpTable.resized_default] == tf.float16.as_datatype_enum
    definition = RESIZED.op_def.attr[1]
    assert definition.default_value.type == tf.float16.as_datatype_enum


def test_lists_of_several_lengths():
    """Two of them follow from the numbers of inputs and outputs, unless these say the same."""

    def told(inputs, outputs):
        def args(lengths):
            return tuple(
                Arg(f"{kind}{k}", "T", "[?]", length=length or None)
                for k, (kind, length) in enumerate(lengths)
            )

        spec = OpSpec(
            name="AnOp",
            doc="",
            inputs=args([("in", length) for length in inputs]),
            outputs=args([("out", length) for length in outputs]),
            attrs=(),
        )
        words = layout.words(spec, LiveMemory())
        entries = words[OpTable.entries :: InputEntry.SIZE][: len(inputs)]
        return words[OpTable.single_count : OpTable.resized], entries

    assert told(["P", ""], ["Q"]) == ([1, 0, 1, 0, 0, 1, 0], [1, 0])
    assert told(["Q", "P", ""], ["P", "", ""]) == ([1, 2, 1, 1, 0, 1, 0], [1, 2, 0])
    assert told(["P", "Q"], [""])[0][-1] == 1
    assert told(["P", "Q"], ["P", "Q"])[0][-1] == 1
    assert told(["P", "Q"], ["R"])[0][-1] == 1


def test_shapes_of_lists_flow_through_a_graph():
    import fusion

    placeholder = tf.compat.v1.placeholder
    with tf.Graph().as_default():
        result = fusion.ops.fused_embedding_sparse_post_look_up_grad(
            top_grad=placeholder(tf.float32, [None, 7]),
            emb_shards=[placeholder(tf.float32, shape) for shape in ([3, None], None, [4, 7])],
            partitioned_indices=[placeholder(tf.int64, [None, 2]) for _ in range(3)],
            feature_nums=placeholder(tf.int32),
            row_empty_and_invalid_flags=placeholder(tf.int32),
            partitioned_weights=[placeholder(tf.float32, [9])] * 3,
        )
    assert [grad.shape.as_list() for grad in result.grad_shards] == [[3, 7], [None, 7], [4, 7]]
    assert [grad.shape.as_list() for grad in result.grad_weights] == [[None]] * 3
