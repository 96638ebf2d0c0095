"""Requests of Examples: parsers of both kinds, and ExampleListWithContexts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import ModelError, compare_models, fuse_saved_model
from tests.saved_model.test_request_signatures import (
    COUNTS,
    ONE,
    ROUNDING,
    SERVING,
    SEVERAL,
    ByFunctions,
    BySession,
    infos_of,
)

DIM, ROWS = 8, 40
LISTS, WITH_CONTEXT = "serving_default_elwc", "examples_with_context"
REQUEST = ("user", "age", "history")
PARSERS = ("ParseExample", "ParseExampleV2")
COUNT_LISTS = ([5], [1], [3, 0, 2], [2, 2], [1, 1, 1, 1])
MANY = [[int(n) for n in np.random.default_rng(seed).integers(0, 6, 12)] for seed in range(3)]

Features = Mapping[str, Sequence[Any]]
"""Numbers by the names of features."""


def parsed(op: str, examples: tf.Tensor) -> dict[str, Any]:
    """The features of Examples, of an op that is named."""
    dense = {"age": tf.constant([31.0]), "item": tf.constant([], tf.int64)}
    dense |= {"steps": tf.constant(-1, tf.int64), "user": tf.constant(3, tf.int64)}
    arguments: dict[str, Any] = {
        "serialized": examples,
        "names": tf.constant([], tf.string),
        "sparse_keys": ["history", "tags"],
        "sparse_types": [tf.int64] * 2,
        "dense_keys": [*dense],
        "dense_defaults": [*dense.values()],
        "dense_shapes": [[1], [], [None], []],
    }
    if op == "ParseExampleV2":
        ragged = ("ragged_keys", "ragged_value_types", "ragged_split_types")
        arguments |= {"num_sparse": 2, **{key: [] for key in ragged}}
    found = getattr(tf.raw_ops, op)(**arguments)
    parts = (found.sparse_indices, found.sparse_values, found.sparse_shapes)
    bags = (tf.SparseTensor(*one) for one in zip(*parts, strict=True))
    return dict(zip((*dense, "history", "tags"), (*found.dense_values, *bags), strict=True))


class Scores(tf.Module):
    """The score of an item for a user."""

    def __init__(self) -> None:
        normal = tf.random.stateless_normal
        self.table = tf.Variable(normal([ROWS, DIM], [1, 2]))
        self.kernel = tf.Variable(normal([5 * DIM + 1, 1], [1, 3]))

    def __call__(self, user: Any, age: Any, item: Any, steps: Any, **bags: Any) -> Any:
        combine = tf.nn.safe_embedding_lookup_sparse
        found = [tf.gather(self.table, user), age, tf.gather(self.table, item)]
        found += [combine(self.table, bag, combiner="sum") for bag in bags.values()]
        known = tf.cast(steps >= 0, tf.float32)[:, :, None]
        found += [tf.reduce_sum(tf.gather(self.table, tf.maximum(steps, 0)) * known, 1)]
        return {"score": tf.sigmoid(tf.concat(found, 1) @ self.kernel)}


def save(path: Path, parse: Callable[[tf.Tensor], dict[str, Any]]) -> Path:
    model = Scores()
    spec = tf.TensorSpec([None], tf.string, "examples")
    model.serve = tf.function(
        lambda examples: model(**parse(examples)), autograph=False, input_signature=[spec]
    )
    tf.saved_model.save(model, str(path), model.serve)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the model whose Examples an op parses."""
    folder = tmp_path_factory.mktemp("examples")

    def saved(op: str) -> Path:
        if not (folder / op).exists():
            save(folder / op, lambda examples: parsed(op, examples))
        return folder / op

    return saved


def rewrite(src: Path, dst: Path, *, verify: bool = False, **options: Any) -> Path:
    options = {"target": "stock", **options}
    fuse_saved_model(src, dst, verify=verify, request_inputs=REQUEST, **options)
    return dst


def example(features: Features) -> bytes:
    made = tf.train.Example()
    for name, values in features.items():
        feature = made.features.feature[name]
        if name == "age":
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return made.SerializeToString(deterministic=True)


def field(number: int, content: bytes) -> bytes:
    """A field of a message of bytes, as protocol buffers have it."""
    length, rest = bytearray(), len(content)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *length, rest]) + content


def example_list(context: bytes | None, examples: Iterable[bytes]) -> bytes:
    """An ExampleListWithContext."""
    first = b"" if context is None else field(2, context)
    return first + b"".join(field(1, one) for one in examples)


def texts(values: Sequence[bytes]) -> Any:
    return np.array([*values, None], object)[:-1]


def drawn(counts: Sequence[int]) -> tuple[list[Features], list[Features]]:
    """Features of requests, and of candidates."""
    rng = np.random.default_rng(sum(counts))

    def ids(count: int) -> list[int]:
        return rng.integers(0, ROWS, count).tolist()

    requests: list[Features] = [
        {"user": ids(1), "age": [float(k)], "history": ids(k % 4)} for k in range(len(counts))
    ]
    candidates: list[Features] = [
        {"item": ids(1), "tags": ids(k % 3), "steps": ids(k % 5)} for k in range(sum(counts))
    ]
    return requests, candidates


def inputs_of(
    requests: Sequence[Features], candidates: Sequence[Features], counts: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What three signatures are fed: the original one, that of requests, and that of lists."""
    number = [k for k, count in enumerate(counts) for _ in range(count)]
    merged = [{**own, **requests[k]} for k, own in zip(number, candidates, strict=True)]
    users, items = [*map(example, requests)], [*map(example, candidates)]
    ends = [0, *np.cumsum(counts).tolist()]
    lists = [example_list(one, items[ends[k] : ends[k + 1]]) for k, one in enumerate(users)]
    several = {"user_examples": texts(users), "candidate_examples": texts(items)}
    return (
        {"examples": texts([*map(example, merged)])},
        {**several, COUNTS: np.array(counts, np.int64)},
        {WITH_CONTEXT: texts(lists)},
    )


@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
@pytest.mark.parametrize("target", ["stock", "fused"])
@pytest.mark.parametrize("op", PARSERS)
def test_requests_and_lists_are_answered_as_repeated_rows_are(
    source: Callable[[str], Path], tmp_path: Path, op: str, target: str, exact: bool
) -> None:
    changed = rewrite(source(op), tmp_path / "dst", target=target, exact=exact)
    for loader in (ByFunctions, BySession):
        original, new = loader(source(op)), loader(changed)
        for counts in (*COUNT_LISTS, *MANY):
            repeated, several, lists = inputs_of(*drawn(counts), counts)
            expected = original(SERVING, repeated)["score"]
            found = new(SEVERAL, several)["score"]
            np.testing.assert_array_equal(new(LISTS, lists)["score"], found)
            np.testing.assert_allclose(found, expected, ROUNDING, ROUNDING)
            if exact and len(expected) > 1 and loader is ByFunctions:
                np.testing.assert_array_equal(found, expected)
            if len(counts) == 1:
                del several[COUNTS]
                np.testing.assert_allclose(new(ONE, several)["score"], expected, ROUNDING)


@pytest.mark.parametrize("op", PARSERS)
def test_verify_compares_and_the_record_names_them(
    source: Callable[[str], Path], tmp_path: Path, op: str
) -> None:
    dst = rewrite(source(op), tmp_path / "dst", verify=True)
    result = compare_models(source(op), dst)
    assert {ONE, SEVERAL, LISTS} < {*result.signatures}
    assert not result.differences
    record = json.loads((dst / "fusion.json").read_text())["request_signatures"]
    assert [(one["name"], one["counts"], one["lists"]) for one in record] == [
        (ONE, "", ""),
        (SEVERAL, COUNTS, ""),
        (LISTS, "", WITH_CONTEXT),
    ]
    info = infos_of(dst)[LISTS].inputs
    assert [*info] == [WITH_CONTEXT]
    assert info[WITH_CONTEXT].dtype == tf.string.as_datatype_enum
    assert [dim.size for dim in info[WITH_CONTEXT].tensor_shape.dim] == [-1]


@pytest.fixture(scope="module")
def lists(source: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes them."""
    return rewrite(source("ParseExampleV2"), tmp_path_factory.mktemp("lists") / "dst")


def answers(run: Callable[..., Any], *messages: bytes) -> Any:
    return run(LISTS, {WITH_CONTEXT: texts(messages)})["score"]


def test_messages_of_other_forms(lists: Path) -> None:
    run = ByFunctions(lists)
    (request, *_), candidates = drawn([3])
    context, items = example(request), [*map(example, candidates)]
    expected = answers(run, example_list(context, items))
    assert len(expected) == 3
    in_front = field(1, items[0]) + field(2, context) + field(1, items[1]) + field(1, items[2])
    np.testing.assert_array_equal(answers(run, in_front), expected)
    unknown = field(9, b"other") + example_list(context, items)
    np.testing.assert_array_equal(answers(run, unknown), expected)
    # Without a context the features have their defaults, as those of an empty Example.
    without, empty = (answers(run, example_list(one, items)) for one in (None, b""))
    np.testing.assert_array_equal(without, empty)
    assert not np.array_equal(without, expected)
    several = answers(run, b"", example_list(context, items), example_list(None, items), b"")
    np.testing.assert_allclose(several, np.concatenate([expected, without]), ROUNDING)


def test_batches_without_candidates(lists: Path) -> None:
    for loader in (ByFunctions, BySession):
        run = loader(lists)
        context = example({"user": [3]})
        assert answers(run).shape == (0, 1)
        assert answers(run, b"").shape == (0, 1)
        assert answers(run, example_list(context, []), b"").shape == (0, 1)


def test_what_is_no_message_is_an_error(lists: Path) -> None:
    run = ByFunctions(lists)
    good = example_list(example({"user": [3]}), [example({"item": [1]})])
    assert len(answers(run, good)) == 1
    errors = tf.errors
    for wrong in (good[:-1], b"\xff\xff\xff", field(1, b"")[:1]):
        with pytest.raises((errors.DataLossError, errors.InvalidArgumentError)):
            answers(run, good, wrong)
    for wrong in (example_list(b"no", [example({"item": [1]})]), example_list(None, [b"no"])):
        with pytest.raises(errors.InvalidArgumentError, match="Could not parse example"):
            answers(run, good, wrong)
    with pytest.raises(errors.InvalidArgumentError, match="item"):
        answers(run, example_list(example({"item": [1]}), [example({"user": [3]})]))


_LOADED = """
import sys
import numpy as np
import tensorflow as tf

path, way = sys.argv[1:3]
lists = [bytes.fromhex(one) for one in sys.argv[3:]]
if way == "function":
    signature = tf.saved_model.load(path).signatures["serving_default_elwc"]
    score = signature(examples_with_context=tf.constant(lists))["score"].numpy()
else:
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
        own = meta.signature_def["serving_default_elwc"]
        feeds = {own.inputs["examples_with_context"].name: lists}
        score = session.run(own.outputs["score"].name, feeds)
assert "fusion" not in sys.modules
print(score.tobytes().hex())
"""


@pytest.mark.parametrize("way", ["function", "session"])
def test_a_process_without_fusion_loads_it(lists: Path, tmp_path: Path, way: str) -> None:
    _, several, own = inputs_of(*drawn([2, 3]), [2, 3])
    command = [sys.executable, "-c", _LOADED, str(lists), way]
    command += [one.hex() for one in own[WITH_CONTEXT]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = np.frombuffer(bytes.fromhex(done.stdout.strip()), np.float32)
    expected = ByFunctions(lists)(SEVERAL, several)["score"]
    np.testing.assert_allclose(found.reshape(-1, 1), expected, ROUNDING)


def test_a_signature_of_tensors_takes_no_lists(tmp_path: Path) -> None:
    spec = tf.TensorSpec([None], tf.int64)
    function = tf.function(lambda user, age: {"sum": user * age}, input_signature=[spec, spec])
    tf.saved_model.save(tf.Module(), str(tmp_path / "src"), function)
    fuse_saved_model(tmp_path / "src", tmp_path / "dst", "stock", False, request_inputs=["user"])
    assert infos_of(tmp_path / "dst").keys() >= {ONE, SEVERAL}
    assert LISTS not in infos_of(tmp_path / "dst")


def test_a_request_without_candidates_makes_no_list_longer(tmp_path: Path) -> None:
    """What `FixedLenSequenceFeature` pads is as wide as the original's, which no such row is in."""
    asked = {
        "steps": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
        "item": tf.io.FixedLenFeature([], tf.int64),
    }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        found = tf.io.parse_example(examples, asked)
        steps = tf.cast(found["steps"], tf.float32)
        return {"score": tf.reduce_mean(steps, 1) * tf.cast(found["item"], tf.float32)}

    tf.saved_model.save(tf.Module(), str(tmp_path / "stock"), {"serving_default": serve})
    fuse_saved_model(tmp_path / "stock", tmp_path / "ranked", "stock", request_inputs=["steps"])
    signatures = tf.saved_model.load(str(tmp_path / "ranked")).signatures
    steps = ([1, 2], [3] * 5)
    users = [example({"steps": own}) for own in steps]
    items = [example({"item": [k]}) for k in range(3)]
    both = [example({"steps": steps[0], "item": [k]}) for k in range(3)]
    wanted = signatures["serving_default"](examples=tf.constant(both))["score"]
    got = signatures["serving_default_requests"](
        user_examples=tf.constant(users),
        candidate_examples=tf.constant(items),
        candidates_per_request=tf.constant([3, 0], tf.int64),
    )["score"]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def of_one(examples: tf.Tensor) -> dict[str, Any]:
    """Parsed one by one: of the first Example alone."""
    dense = {"user": tf.constant([3], tf.int64), "item": tf.constant([1], tf.int64)}
    found = tf.raw_ops.ParseSingleExample(
        serialized=examples[0],
        dense_defaults=[*dense.values()],
        num_sparse=0,
        sparse_keys=[],
        dense_keys=[*dense],
        sparse_types=[],
        dense_shapes=[[], []],
    )
    return dict(zip(dense, (one[None] for one in found.dense_values), strict=True))


def of_named(examples: tf.Tensor) -> dict[str, Any]:
    """An Example's name in messages is its text."""
    names = ["user", "item"]
    found = tf.raw_ops.ParseExample(
        serialized=examples,
        names=examples,
        sparse_keys=[],
        dense_keys=names,
        dense_defaults=[tf.constant([], tf.int64)] * 2,
        sparse_types=[],
        dense_shapes=[[], []],
    )
    return dict(zip(names, found.dense_values, strict=True))


def of_other_keys(examples: tf.Tensor) -> dict[str, Any]:
    """A key that is no constant."""
    names = [tf.strings.reduce_join(tf.strings.as_string(tf.shape(examples))), "item"]
    found = tf.raw_ops.ParseExample(
        serialized=examples,
        names=tf.constant([], tf.string),
        sparse_keys=[],
        dense_keys=names,
        dense_defaults=[tf.constant(1, tf.int64)] * 2,
        sparse_types=[],
        dense_shapes=[[], []],
    )
    return dict(zip(["user", "item"], found.dense_values, strict=True))


@pytest.mark.parametrize(
    ("parse", "why"),
    [
        (of_one, "the Examples are read by another op than ParseExample"),
        (of_named, "the Examples are read by another op than ParseExample"),
        (of_other_keys, "the Examples are read by another op than ParseExample|no constants"),
    ],
)
def test_examples_that_are_read_otherwise(
    tmp_path: Path, parse: Callable[[tf.Tensor], dict[str, Any]], why: str
) -> None:
    function = tf.function(
        lambda examples: {"sum": tf.add(*parse(examples).values())},
        input_signature=[tf.TensorSpec([None], tf.string, "examples")],
    )
    tf.saved_model.save(tf.Module(), str(tmp_path / "src"), function)
    with pytest.raises(ModelError, match=why):
        fuse_saved_model(tmp_path / "src", tmp_path / "dst", request_inputs=["user"])
    assert not (tmp_path / "dst").exists()
