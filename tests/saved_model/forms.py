"""Models whose inputs belong together, one signature for each form that such inputs come in.

`python -m tests.saved_model.forms FOLDER` saves them in a process without fusion, each once more
with other tables, as `NAME` and `NAME_changed`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
from google.protobuf import descriptor_pb2

v1 = tf.compat.v1
INT, FLOAT, TEXT = tf.int64, tf.float32, tf.string
ITEMS, SHOPS = 50, 30

Ragged, Sparse, Dense = tf.RaggedTensorSpec, tf.SparseTensorSpec, tf.TensorSpec
BASKET, BAGS = Ragged([None, None], INT), Sparse([None, None], INT)
WEIGHTS, VECTOR = Sparse([None, None], FLOAT), Dense([None], INT)
RECORDS = Dense([None], TEXT)

Form = Callable[..., tf.Tensor]
FORMS: dict[str, tuple[tuple[object, ...], Form]] = {}

look_up = tf.nn.safe_embedding_lookup_sparse


def form(*specs: object) -> Callable[[Form], Form]:
    """Makes a function of the two tables and inputs a signature of its name."""

    def add(function: Form) -> Form:
        FORMS[function.__name__] = specs, function
        return function

    return add


def _words(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(texts, SHOPS)


def _column(ids: tf.Tensor) -> tf.SparseTensor:
    return tf.sparse.from_dense(ids[:, None] if ids.shape.rank == 1 else ids)


@form(BASKET)
def ragged(items, shops, basket):
    return look_up(items, basket)


@form(Ragged([None, None], INT, row_splits_dtype=tf.int32))
def ragged_of_int32_splits(items, shops, basket):
    return look_up(items, basket.with_row_splits_dtype(INT))


@form(Ragged([None, None, None], INT))
def ragged_of_two_ranks(items, shops, basket):
    return look_up(items, basket.merge_dims(1, 2))


@form(Ragged([None, None, 3], INT, ragged_rank=1))
def ragged_with_inner_dims(items, shops, basket):
    rows = tf.ragged.map_flat_values(lambda ids: tf.gather(items, ids), basket)
    return tf.reduce_sum(tf.reduce_mean(rows, 2), 1)


@form(BASKET, BASKET)
def two_ragged(items, shops, first, second):
    return tf.concat([look_up(items, first), look_up(shops, second)], 1)


@form(BASKET, Ragged([None, None], FLOAT))
def ragged_weights(items, shops, basket, weights):
    return look_up(items, basket, weights)


@form(BASKET, Ragged([None, None], FLOAT))
def ragged_product(items, shops, basket, weights):
    rows = tf.nn.embedding_lookup(items, basket)
    return tf.reduce_sum(rows * tf.expand_dims(weights, -1), 1)


@form(BASKET)
def ragged_made_sparse(items, shops, basket):
    return look_up(items, basket.to_sparse())


@form(BASKET)
def ragged_made_dense(items, shops, basket):
    return look_up(items, tf.sparse.from_dense(basket.to_tensor()))


@form(Ragged([None, None], TEXT), Dense([None, 4], FLOAT))
def ragged_words(items, shops, basket, dense):
    return tf.concat([look_up(shops, tf.ragged.map_flat_values(_words, basket)), dense], 1)


@form(BAGS, WEIGHTS)
def sparse_weights(items, shops, basket, weights):
    return look_up(items, basket, weights)


@form(BAGS, WEIGHTS, BAGS)
def sparse_weights_of_one(items, shops, z_basket, a_weights, other):
    return tf.concat(
        [look_up(items, z_basket, a_weights, combiner="sum"), look_up(shops, other)], 1
    )


@form(BAGS, Dense([None], FLOAT))
def plain_weights(items, shops, basket, weights):
    return look_up(items, basket, tf.SparseTensor(basket.indices, weights, basket.dense_shape))


@form(VECTOR, VECTOR)
def row_lengths(items, shops, ids, lengths):
    return look_up(items, tf.RaggedTensor.from_row_lengths(ids, lengths))


@form(VECTOR, Dense([None], tf.int32), Dense([None], FLOAT))
def row_lengths_unchecked(items, shops, ids, lengths, weights):
    def rows(values):
        return tf.RaggedTensor.from_row_lengths(values, tf.cast(lengths, INT), validate=False)

    return look_up(items, rows(ids), rows(weights))


@form(VECTOR, VECTOR)
def row_lengths_repeated(items, shops, ids, lengths):
    segments = tf.repeat(tf.range(tf.size(lengths)), lengths)
    return tf.math.unsorted_segment_sum(tf.gather(items, ids), segments, tf.size(lengths))


@form(VECTOR, VECTOR)
def row_splits(items, shops, ids, splits):
    return look_up(items, tf.RaggedTensor.from_row_splits(ids, splits))


@form(VECTOR, VECTOR)
def value_rowids(items, shops, ids, rowids):
    return look_up(items, tf.RaggedTensor.from_value_rowids(ids, rowids))


@form(VECTOR, VECTOR, Dense([], INT))
def value_rowids_and_rows(items, shops, ids, rowids, rows):
    return look_up(items, tf.RaggedTensor.from_value_rowids(ids, rowids, rows))


@form(VECTOR, VECTOR)
def segment_ids(items, shops, ids, segments):
    return tf.math.segment_mean(tf.gather(items, ids), segments)


@form(VECTOR, VECTOR, Dense([None, 4], FLOAT))
def sparse_made_of_rowids(items, shops, ids, rowids, dense):
    size, batch = tf.size(ids, INT), tf.shape(dense, INT)[0]
    indices = tf.stack([rowids, tf.range(size)], 1)
    sparse = tf.SparseTensor(indices, ids, tf.stack([batch, size]))
    return tf.concat([look_up(items, sparse), dense], 1)


@form(RECORDS)
def example_with_weights(items, shops, serialized):
    ids, weights = tf.io.VarLenFeature(INT), tf.io.VarLenFeature(FLOAT)
    parsed = tf.io.parse_example(serialized, {"item": ids, "shop": ids, "weight": weights})
    return tf.concat(
        [look_up(items, parsed["item"], parsed["weight"]), look_up(shops, parsed["shop"])], 1
    )


@form(RECORDS)
def example_with_partition(items, shops, serialized):
    lengths = tf.io.RaggedFeature.RowLengths("lengths")
    feature = tf.io.RaggedFeature(INT, "ids", row_splits_dtype=INT, partitions=[lengths])
    parsed = tf.io.parse_example(serialized, {"item": feature})
    return look_up(items, parsed["item"].merge_dims(1, 2))


@form(RECORDS)
def examples_one_by_one(items, shops, serialized):
    spec = {"item": tf.io.FixedLenFeature([3], INT), "shop": tf.io.FixedLenFeature([2], INT)}

    def parse(text):
        parsed = tf.io.parse_single_example(text, spec)
        return parsed["item"], parsed["shop"]

    item, shop = tf.map_fn(parse, serialized, fn_output_signature=(INT, INT))
    return tf.concat([look_up(items, _column(item)), look_up(shops, _column(shop))], 1)


@form(RECORDS)
def sequence_example(items, shops, serialized):
    context, lists, _ = tf.io.parse_sequence_example(
        serialized,
        {"age": tf.io.FixedLenFeature([], FLOAT), "shop": tf.io.VarLenFeature(INT)},
        {"item": tf.io.VarLenFeature(INT), "at": tf.io.FixedLenSequenceFeature([2], FLOAT)},
    )
    item = tf.sparse.reshape(lists["item"], [lists["item"].dense_shape[0], -1])
    dense = [context["age"][:, None], tf.reduce_sum(lists["at"], 1)]
    return tf.concat([look_up(items, item), look_up(shops, context["shop"]), *dense], 1)


@form(Dense([], TEXT))
def one_sequence_example(items, shops, serialized):
    context, lists = tf.io.parse_single_sequence_example(
        serialized,
        {"shop": tf.io.FixedLenFeature([2], INT)},
        {"item": tf.io.FixedLenSequenceFeature([], INT)},
    )
    rows = [_column(lists["item"][None, :]), _column(context["shop"][None, :])]
    return tf.concat([look_up(items, rows[0]), look_up(shops, rows[1])], 1)


def _list_descriptor() -> bytes:
    proto = descriptor_pb2.FileDescriptorSet()
    file = proto.file.add(name="list.proto", package="forms", syntax="proto3")
    message = file.message_type.add(name="ListWithContext")
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="examples", number=1, type=field.TYPE_BYTES, label=field.LABEL_REPEATED)
    message.field.add(name="context", number=2, type=field.TYPE_BYTES)
    return b"bytes://" + proto.SerializeToString()


@form(RECORDS)
def example_list_with_context(items, shops, serialized):
    """What TF-Ranking exports by default: Examples in a protocol buffer, cut or padded to four."""
    _, (context, examples) = tf.io.decode_proto(
        serialized,
        message_type="forms.ListWithContext",
        field_names=["context", "examples"],
        output_types=[TEXT, TEXT],
        descriptor_source=_list_descriptor(),
    )
    batch, size = tf.shape(examples)[0], tf.shape(examples)[1]
    examples = tf.cond(
        size > 4,
        lambda: tf.slice(examples, [0, 0], [batch, 4]),
        lambda: tf.pad(examples, [[0, 0], [0, 4 - size]], constant_values=""),
    )
    score = tf.io.FixedLenFeature([1], FLOAT, default_value=[0.0])
    ids = tf.io.VarLenFeature(INT)
    of_list = tf.io.parse_example(tf.reshape(examples, [-1]), {"item": ids, "score": score})
    of_query = tf.io.parse_example(tf.reshape(context, [batch]), {"shop": ids})
    rows = look_up(items, of_list["item"]) * of_list["score"]
    summed = tf.reduce_sum(tf.reshape(rows, [batch, 4, items.shape[1]]), 1)
    return tf.concat([look_up(shops, of_query["shop"]), summed], 1)


@form(RECORDS)
def examples_in_example(items, shops, serialized):
    texts = {"context": tf.io.FixedLenFeature([1], TEXT), "examples": tf.io.VarLenFeature(TEXT)}
    outer = tf.io.parse_example(serialized, texts)
    examples = tf.sparse.to_dense(outer["examples"], default_value="")
    ids = tf.io.VarLenFeature(INT)
    inner = tf.io.parse_example(tf.reshape(examples, [-1]), {"item": ids})
    query = tf.io.parse_example(tf.reshape(outer["context"], [-1]), {"shop": ids})
    rows = tf.reshape(look_up(items, inner["item"]), [tf.shape(examples)[0], -1, items.shape[1]])
    return tf.concat([look_up(shops, query["shop"]), tf.reduce_sum(rows, 1)], 1)


@form(RECORDS)
def lines_of_csv(items, shops, lines):
    defaults = [tf.constant([], INT), tf.constant([0.5]), tf.constant([""])]
    ids, price, word = tf.io.decode_csv(lines, defaults)
    columns = [look_up(items, _column(ids)), look_up(shops, _column(_words(word)))]
    return tf.concat([*columns, price[:, None]], 1)


@form(RECORDS)
def columns_of_tsv(items, shops, lines):
    defaults = [tf.constant([], INT), tf.constant([], INT)]
    ids, others = tf.io.decode_csv(lines, defaults, field_delim="\t", select_cols=[1, 3])
    return tf.concat([look_up(items, _column(ids)), look_up(shops, _column(others))], 1)


@form(Dense([None, 3], INT), Dense([None, 3], INT))
def asserted_shapes(items, shops, ids, others):
    with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(ids), tf.shape(others))]):
        return tf.concat([look_up(items, _column(ids)), look_up(shops, _column(others))], 1)


@form(BAGS, Dense([None], FLOAT))
def asserted_ranges(items, shops, basket, age):
    checks = [
        tf.debugging.assert_less(basket.values, tf.constant(20, INT)),
        tf.debugging.assert_positive(basket.values),
        tf.debugging.assert_greater_equal(age, 18.0),
        tf.debugging.assert_less(age, 19.0),
    ]
    with tf.control_dependencies(checks):
        return tf.concat([look_up(items, basket), age[:, None]], 1)


@form(VECTOR, VECTOR)
def asserted_lengths(items, shops, ids, lengths):
    checks = [
        tf.debugging.assert_positive(lengths),
        tf.debugging.assert_equal(tf.reduce_sum(lengths), tf.size(ids, INT)),
    ]
    with tf.control_dependencies(checks):
        ragged = tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)
        return look_up(items, ragged)


@form(VECTOR, VECTOR)
def asserted_order(items, shops, start, end):
    with tf.control_dependencies([tf.debugging.assert_less(start, end)]):
        return tf.concat([look_up(items, _column(start)), look_up(items, _column(end))], 1)


class Together(tf.Module):
    """The two tables, and a function for each form."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.items = tf.Variable(tf.random.stateless_normal([ITEMS, 8], [seed, 1]), name="items")
        self.shops = tf.Variable(tf.random.stateless_normal([SHOPS, 4], [seed, 2]), name="shops")

    def signature(self, name: str) -> object:
        """Returns the form as a tf.function whose arguments keep their names."""
        specs, function = FORMS[name]
        arguments = ", ".join([*inspect.signature(function).parameters][2:])
        known = {"function": function, "self": self}
        call = f"lambda {arguments}: {{'vector': function(self.items, self.shops, {arguments})}}"
        return tf.function(eval(call, known), input_signature=specs, autograph=False)


#: The forms of each model: what TensorFlow does for one signature it does for the whole graph.
TOGETHER = {f"together_{part}": sorted(FORMS)[part::4] for part in range(4)}


def together(directory: Path, seed: int) -> None:
    model = Together(seed)
    forms = TOGETHER[directory.name.removesuffix("_changed")]
    tf.saved_model.save(model, str(directory), {name: model.signature(name) for name in forms})


def model_of(form: str) -> str:
    """The name of the model that has a form."""
    return next(name for name, forms in TOGETHER.items() if form in forms)


OLD_FORMS = ("ids", "words", "sparse", "ragged")


def old(directory: Path, seed: int) -> None:
    """A compat.v1 model: weighted columns of dense and sparse features, and ragged ids."""
    fc, layer = tf.feature_column, v1.feature_column.input_layer
    by_id = fc.categorical_column_with_identity("tags", ITEMS)
    by_word = fc.categorical_column_with_hash_bucket("tags", ITEMS)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(seed)
        signatures = {}
        for name, column, tags, weights in (
            ("ids", by_id, v1.placeholder(INT, [None, 5]), v1.placeholder(FLOAT, [None, 5])),
            ("words", by_word, v1.placeholder(TEXT, [None, 5]), v1.placeholder(FLOAT, [None, 5])),
            ("sparse", by_id, *(v1.sparse_placeholder(t, [None, 5]) for t in (INT, FLOAT))),
        ):
            features = {"tags": tags, "weights": weights}
            weighted = fc.weighted_categorical_column(column, "weights")
            with v1.variable_scope(name):
                vectors = layer(features, [fc.embedding_column(weighted, 8)])
            define = v1.saved_model.predict_signature_def
            signatures[name] = define(features, {"vectors": vectors})
        basket = v1.ragged.placeholder(INT, 1, value_shape=(), name="basket")
        vectors = look_up(v1.get_variable("items", [ITEMS, 8]), basket)
        signatures["ragged"] = define({"basket": basket}, {"vectors": vectors})
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.builder.SavedModelBuilder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()


def opaque(directory: Path, seed: int) -> None:
    """Ids as raw bytes, of which nothing tells how many there have to be."""
    module = tf.Module()
    module.items = tf.Variable(tf.random.stateless_normal([ITEMS, 8], [seed, 1]), name="items")

    @tf.function(input_signature=[RECORDS])
    def serve(raw: tf.Tensor) -> dict[str, tf.Tensor]:
        decoded = tf.map_fn(
            lambda text: tf.reshape(tf.io.decode_raw(text, INT), [4]),
            raw,
            fn_output_signature=Dense([4], INT),
        )
        return {"vector": look_up(module.items, _column(decoded))}

    tf.saved_model.save(module, str(directory), {"serving_default": serve})


MODELS = {**dict.fromkeys(TOGETHER, together), "old": old, "opaque": opaque}

if __name__ == "__main__":
    for name, build in MODELS.items():
        for seed, suffix in ((1, ""), (2, "_changed")):
            build(Path(sys.argv[1]) / f"{name}{suffix}", seed)
