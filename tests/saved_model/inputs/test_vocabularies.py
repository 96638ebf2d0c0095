"""What inputs hold comes from the tables that they are looked up in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model.inputs.cases import Case, Ids
from fusion.saved_model.inputs.conversions import Conversions, converted
from fusion.saved_model.inputs.generator import InputGenerator, input_generators
from fusion.saved_model.inputs.signature import signatures
from fusion.saved_model.model.source import read_saved_model

v1 = tf.compat.v1

CLEAN, UNKNOWN = Case("clean", 40), Case("unknown", 40, Ids.UNKNOWN)
MISSING = Case("missing", 40, Ids.MISSING)
TEXT, INT = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64)
PETS, FOOD = ["cat", "dog", "eel"], ["bread", "eel", "rice"]

Body = Callable[..., tf.Tensor]


def table_of(keys: Any, dtype: tf.DType = tf.string) -> tf.lookup.StaticHashTable:
    values = tf.range(len(keys), dtype=tf.int64)
    filled = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, dtype), values)
    return tf.lookup.StaticHashTable(filled, -1)


def lines_of(
    path: Path, lines: list[str], dtype: tf.DType = tf.string, **columns: Any
) -> tf.lookup.StaticHashTable:
    path.write_text("\n".join(lines) + "\n")
    whole, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    given = {"key_index": whole, "value_index": number, **columns}
    key, value = given.pop("key_index"), given.pop("value_index")
    filled = tf.lookup.TextFileInitializer(str(path), dtype, key, tf.int64, value, **given)
    return tf.lookup.StaticHashTable(filled, -1)


def generator(path: Path) -> InputGenerator:
    source = read_saved_model(path)
    (meta,) = source.meta_graphs
    (signature,) = signatures(meta)
    return input_generators(path, meta, [signature])[signature.title]


def saved(path: Path, tables: Any, body: Body, *specs: tf.TensorSpec) -> InputGenerator:
    """What generates inputs of a model with tables, whose inputs are called a and b."""
    module = tf.Module()
    module.tables = tables
    named = [
        tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in zip("ab", specs, strict=False)
    ]
    module.serve = tf.function(lambda *args: {"y": body(*args)}, named)
    tf.saved_model.save(module, str(path / "model"), module.serve)
    return generator(path / "model")


def held(generate: InputGenerator, name: str = "a", case: Case = CLEAN) -> set[Any]:
    values: list[Any] = generate(case)[name].ravel().tolist()
    return set(values)


def words(texts: list[str]) -> set[bytes]:
    return {text.encode() for text in texts}


def test_each_input_has_words_of_its_own_table(tmp_path: Path) -> None:
    pets, food = table_of(PETS), lines_of(tmp_path / "food.txt", FOOD)
    generate = saved(
        tmp_path, (pets, food), lambda a, b: pets.lookup(a) + food.lookup(b), TEXT, TEXT
    )
    assert held(generate) == words(PETS)
    assert held(generate, "b") == words(FOOD)
    for name, known in ("a", PETS), ("b", FOOD):
        drawn = held(generate, name, UNKNOWN)
        assert drawn & words(known)
        assert drawn - words(known)
    assert held(generate, "a", MISSING) == {b""}
    assert Ids.UNKNOWN_ELSEWHERE not in {case.ids for case in generate.cases()}


@pytest.mark.parametrize("form", ["equal", "least", "branch"])
def test_words_that_a_model_asserts_that_it_knows(tmp_path: Path, form: str) -> None:
    """One input has to be known, of the other the batch shows unknown words."""
    strict, loose = table_of(PETS), table_of(FOOD)

    def body(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        ids = strict.lookup(a)
        if form == "equal":  # as Keras
            absent = tf.where(tf.equal(ids, -1))
            checks = [tf.Assert(tf.equal(tf.size(absent), 0), [tf.gather_nd(a, absent)])]
        elif form == "least":
            checks = [tf.debugging.assert_non_negative(ids)]
        else:
            is_known = tf.reduce_min(ids) >= 0
            checks = [tf.cond(is_known, lambda: True, lambda: failed(is_known))]
        with tf.control_dependencies(checks):
            return tf.maximum(ids, 0) + loose.lookup(b)

    def failed(is_known: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.Assert(is_known, ["unknown"])]):
            return tf.constant(False)

    generate = saved(tmp_path, (strict, loose), body, TEXT, TEXT)
    (elsewhere,) = [case for case in generate.cases() if case.ids is Ids.UNKNOWN_ELSEWHERE]
    assert elsewhere.may_raise
    assert held(generate, "a", elsewhere) == words(PETS)
    assert held(generate, "b", elsewhere) - words(FOOD)
    assert held(generate, "a", UNKNOWN) - words(PETS)


def test_an_input_of_no_table_has_any_words(tmp_path: Path) -> None:
    pets = table_of(PETS)
    hashed = tf.strings.to_hash_bucket_fast
    generate = saved(tmp_path, pets, lambda a, b: pets.lookup(a) + hashed(b, 5), TEXT, TEXT)
    assert held(generate, "b") > {b"unseen", b"7"}
    assert held(generate, "b") == held(generate, "b", Case("clean", 40, Ids.UNKNOWN))
    assert UNKNOWN.ids in {case.ids for case in generate.cases()}
    alone = saved(tmp_path / "hashed", (), lambda a: hashed(a, 5), TEXT)
    assert UNKNOWN.ids not in {case.ids for case in alone.cases()}


def test_integers(tmp_path: Path) -> None:
    shops, days = (
        table_of([12, 36, 1138], tf.int64),
        lines_of(tmp_path / "days.txt", ["70", "-80"], tf.int64),
    )
    generate = saved(
        tmp_path, (shops, days), lambda a, b: shops.lookup(a) + days.lookup(b), INT, INT
    )
    assert held(generate) == {12, 36, 1138}
    assert held(generate, "b") == {70, -80}
    assert held(generate, "a", MISSING) == {12, 36, 1138}  # -1 is no missing value of theirs
    drawn = held(generate, "a", UNKNOWN)
    assert drawn & {12, 36, 1138}
    assert drawn - {12, 36, 1138}


def test_columns_of_files(tmp_path: Path) -> None:
    lines = ["0;cat;x", "1;dog;x", "cut off"]
    pets = lines_of(
        tmp_path / "pets.txt", lines, key_index=1, value_index=0, delimiter=";", vocab_size=2
    )
    first = lines_of(
        tmp_path / "first.txt",
        FOOD,
        tf.int64,
        key_index=tf.lookup.TextFileIndex.LINE_NUMBER,
        value_index=tf.lookup.TextFileIndex.LINE_NUMBER,
    )
    generate = saved(
        tmp_path, (pets, first), lambda a, b: pets.lookup(a) + first.lookup(b), TEXT, INT
    )
    assert held(generate) == {b"cat", b"dog"}
    assert held(generate, "b") == {0, 1, 2}


def test_tables_in_the_checkpoint(tmp_path: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant(PETS), tf.range(3, dtype=tf.int64))
    dense = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, -7, -8)
    dense.insert(tf.constant([5, 6], tf.int64), tf.range(2, dtype=tf.int64))
    generate = saved(
        tmp_path, (table, dense), lambda a, b: table.lookup(a) + dense.lookup(b), TEXT, INT
    )
    assert held(generate) == words(PETS)
    assert held(generate, "b") == {5, 6}


def split(a: tf.Tensor, sep: str | None) -> tf.Tensor:
    return tf.strings.split(a, sep).flat_values


@pytest.mark.parametrize(
    ("body", "spec", "keys", "known"),
    [
        (lambda table, a: table.lookup(tf.strings.lower(a)), TEXT, ["cat", "Dog"], {b"cat"}),
        (lambda table, a: table.lookup(tf.strings.upper(a)), TEXT, ["cat", "DOG"], {b"DOG"}),
        (lambda table, a: table.lookup(tf.strings.strip(a)), TEXT, ["cat", " dog"], {b"cat"}),
        (
            lambda table, a: table.lookup(
                tf.reshape(tf.strings.regex_replace(a, "!", ""), [-1, 1])
            ),
            TEXT,
            ["cat", "dog"],
            {b"cat", b"dog"},
        ),
        (lambda table, a: table.lookup(tf.as_string(a)), INT, ["7", "08", "x"], {7}),
        (
            lambda table, a: table.lookup(tf.strings.to_number(a, tf.int64)),
            TEXT,
            np.array([7, 8]),
            {b"7", b"8"},
        ),
    ],
    ids=["lower", "upper", "strip", "replace", "as_string", "to_number"],
)
def test_what_goes_through_ops_before(
    tmp_path: Path, body: Body, spec: tf.TensorSpec, keys: Any, known: set[Any]
) -> None:
    table = table_of(keys, tf.string if isinstance(keys, list) else tf.int64)
    generate = saved(tmp_path, table, lambda a: body(table, a), spec)
    assert held(generate) == known
    found = table.lookup(tf.constant(keys, table.key_dtype)) >= 0
    assert tf.reduce_all(found)


@pytest.mark.parametrize("sep", [None, ","])
def test_texts_are_split_into_words_of_the_table(tmp_path: Path, sep: str | None) -> None:
    pets = table_of([*PETS, "two words", "a,b"])
    generate = saved(tmp_path, pets, lambda a: pets.lookup(split(tf.strings.lower(a), sep)), TEXT)
    texts = generate(CLEAN)["a"].tolist()
    assert max(len(text.split((sep or " ").encode())) for text in texts) > 1
    assert (pets.lookup(split(tf.constant(texts), sep)) >= 0).numpy().all()


def test_what_cannot_be_undone_is_not_known(tmp_path: Path) -> None:
    table = table_of([100, 200], tf.int64)
    generate = saved(tmp_path, table, lambda a: table.lookup(2 * a), INT)
    assert generate(CLEAN)["a"].max() < 10
    deep: Conversions = ()
    for _ in range(9):
        deep = converted(deep, "StringLower", ())
    assert deep is None


@pytest.mark.parametrize(
    ("second", "known"), [(FOOD, ["eel"]), (["ant"], [*PETS, "ant"])], ids=["common", "disjoint"]
)
def test_an_input_of_several_tables(tmp_path: Path, second: list[str], known: list[str]) -> None:
    one, other = table_of(PETS), table_of(second)
    generate = saved(tmp_path, (one, other), lambda a: one.lookup(a) + other.lookup(a), TEXT)
    assert held(generate) == words(known)


def test_integers_that_index_rows_as_well(tmp_path: Path) -> None:
    table, rows = table_of([1, 3, 90], tf.int64), tf.Variable(tf.ones([4, 2]))
    module = tf.Module()
    module.rows = rows
    generate = saved(
        tmp_path,
        (table, module),
        lambda a: tf.gather(rows, a)[:, 0] + tf.cast(table.lookup(a), tf.float32),
        INT,
    )
    assert held(generate) == {1, 3}


def test_feature_columns_of_tensorflow_1(tmp_path: Path) -> None:
    """Tables in the main graph, and features of serialized Examples."""
    (tmp_path / "food.txt").write_text("\n".join(FOOD))
    column = tf.feature_column
    columns = [
        column.categorical_column_with_vocabulary_list("pet", PETS),
        column.categorical_column_with_vocabulary_list("shop", [12, 36, 1138]),
        column.categorical_column_with_vocabulary_file("food", str(tmp_path / "food.txt"), 3),
    ]
    dense = [column.indicator_column(one) for one in columns]
    with tf.Graph().as_default(), v1.Session() as session:
        examples = v1.placeholder(tf.string, [None], name="examples")
        spec = column.make_parse_example_spec(dense)
        y = v1.feature_column.input_layer(v1.io.parse_example(examples, spec), dense)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        v1.saved_model.simple_save(
            session,
            str(tmp_path / "model"),
            {"examples": examples},
            {"y": y},
            legacy_init_op=v1.tables_initializer(),
        )
    texts = generator(tmp_path / "model")(CLEAN)["examples"].tolist()
    parsed = tf.io.parse_example(texts, spec)
    found = {key: set(parsed[key].values.numpy().tolist()) for key in spec}
    assert found == {"pet": words(PETS), "shop": {12, 36, 1138}, "food": words(FOOD)}


def test_tables_that_nothing_fills_are_not_known(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        a = v1.placeholder(tf.string, [None], name="a")
        table = tf.raw_ops.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
        y = tf.raw_ops.LookupTableFindV2(
            table_handle=table, keys=a, default_value=tf.constant(-1, tf.int64)
        )
        v1.saved_model.simple_save(session, str(tmp_path / "model"), {"a": a}, {"y": y})
    generate = generator(tmp_path / "model")
    assert b"unseen" in held(generate)
    assert UNKNOWN.ids not in {case.ids for case in generate.cases()}
