"""What launches kernels: errors of the driver, several GPUs, TensorFlow's stream."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numba import types
from numba.core.errors import TypingError

from fusion import ops
from fusion.gpu_ops.host import availability, device_methods
from fusion.gpu_ops.layout.records import GatheredRows, GradBags, Gradient, GroupOrder, Shards
from fusion.gpu_ops.steps.device import launch_for
from fusion.ops.base import facts
from fusion.runtime.cuda import launcher, stream
from fusion.runtime.cuda.layout import LauncherRecord
from fusion.runtime.native.jit import jit
from fusion.runtime.native.pointers import POINTERS
from fusion.runtime.registration import op_kernels
from fusion.runtime.registration.creation import KernelsRecord
from fusion.runtime.tensorflow import library
from fusion.runtime.tensorflow.dtypes import FLOATS
from fusion.runtime.tensorflow.layout import Frame, State
from fusion.schema.columns import COLUMN_ATTRS
from tests.gpu_ops.driver import (
    STREAMS,
    SimulatedGpus,
    gpus,
    kernels_on_gpu,
    labelled,
    on_gpu,
)

_Call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def unique() -> list[Any]:
    found = on_gpu(lambda ids: ops.unique_with_counts_v3(input=ids), np.array([7, 5, 7]))
    return [array.tolist() for array in found]


def _too_few(frame: int, device: Any) -> None:
    device.launch("fill_numbers", 1, 128, 0, 0)


def _too_many(frame: int, device: Any) -> None:
    device.launch("fill_numbers", 1, 128, 0, 0, 0, 0)


def _unknown(frame: int, device: Any) -> None:
    device.launch("no_kernel", 1, 128, 0)


def _not_said(frame: Any, device: Any) -> None:
    name = "fill_numbers" if frame.has_failed else "mark_firsts"
    device.launch(name, 1, 128, 0, 0, 0)


def _too_few_for_a_dtype(frame: int, device: Any) -> None:
    launch_for(device, "scatter", frame, 1, 128, 0)


def _of_no_dtype(frame: int, device: Any) -> None:
    launch_for(device, "unique", frame, 1, 128, 0)


def _no_integer(frame: int, device: Any) -> None:
    device.launch("fill_numbers", 1, 128, 0, 0, 0.5)


def _another_record(frame: int, device: Any) -> None:
    device.launch("mark_starts", 1, 128, GatheredRows(0, 0, 0, 0, 0, 0))


def _without_record(frame: int, device: Any) -> None:
    device.launch("mark_starts", 1, 128, 0, 0, 0, 0, 0)


def _no_integer_in_record(frame: int, device: Any) -> None:
    device.launch("mark_starts", 1, 128, _ORDERED(0, 0, 0, 0, 0.5))


def _another_record_in_one(frame: int, device: Any) -> None:
    bags = _BAGS(Shards(0, 0, 0, 0), 0, 0, 0, 0)
    device.launch("scale_bags", 1, 128, Gradient(0, 0, 0, 0, 0, 0), bags, 0)


#: What mypy would refuse.
_ORDERED: Any = GroupOrder
_BAGS: Any = GradBags
_OF_A_FRAME = types.void(POINTERS.record_type(Frame))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_too_few, r"fill_numbers takes \(int, int, int\), not \(int64, int64\)"),
        (_too_many, r"fill_numbers takes \(int, int, int\), not \(int64, int64, int64, int64\)"),
        (_unknown, "no_kernel is no kernel"),
        (_not_said, "the name of a kernel must be a literal"),
        (_too_few_for_a_dtype, r"scatter_float16 takes \(int, int\), not \(int64\)"),
        (_of_no_dtype, "unique_float16 is no kernel"),
        (_no_integer, r"fill_numbers takes \(int, int, int\), not \(int64, int64, float64\)"),
        (_another_record, r"mark_starts takes \(GroupOrder\), not \(GatheredRows"),
        (_without_record, r"mark_starts takes \(GroupOrder\), not \(int64"),
        (
            _no_integer_in_record,
            r"mark_starts takes \(GroupOrder\), not \(GroupOrder\(.*float64\)\)",
        ),
        (_another_record_in_one, r"scale_bags takes .*, not \(.*GradBags\(Shards"),
    ],
)
def test_a_launch_that_fits_no_kernel_is_not_compiled(body: Any, message: str) -> None:
    compiled: Any = jit(device_methods.with_device(body))
    with pytest.raises(TypingError, match=message):
        compiled.compile(_OF_A_FRAME)


def test_a_launch_that_fits_its_kernel_is_compiled() -> None:
    def body(frame: int, device: Any) -> None:
        device.launch("fill_numbers", 1, 128, 0, 0, 0)
        device.launch("mark_starts", 1, 128, GroupOrder(0, 0, 0, 0, 0))
        bags = GradBags(GroupOrder(0, 0, 0, 0, 0), 0, 0, 0, 0)
        device.launch("scale_bags", 1, 128, Gradient(0, 0, 0, 0, 0, 0), bags, 0)

    compiled: Any = jit(device_methods.with_device(body))
    compiled.compile(_OF_A_FRAME)


@pytest.fixture
def simulated() -> Iterator[SimulatedGpus]:
    found = gpus()
    yield found
    found.fails.clear()
    found.streams = [STREAMS[0]]


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ("cuMemsetD8Async", r"error 719 \(function 3 of"),
        ("cuMemcpyDtoHAsync_v2", r"error 719 \(function 2 of"),
        ("cuStreamSynchronize", r"error 719 \(function 4 of"),
        ("cuStreamGetCtx", r"error 719 \(function 5 of"),
        ("cuCtxPushCurrent_v2", r"error 719 \(function 6 of"),
        ("cuCtxGetDevice", r"error 719 \(function 8 of"),
        ("insert_ids", "error 719 for the launch of insert_ids"),
        ("number_ids", "error 719 for the launch of number_ids"),
    ],
)
def test_errors_of_the_driver_end_the_op(
    simulated: SimulatedGpus, fails: str, message: str
) -> None:
    """Nothing is launched afterwards, and the context that was pushed is popped."""
    assert unique() == [[7, 5], [0, 1, 0], [2, 1]]
    simulated.fails[fails] = 719
    simulated.log.clear()
    with pytest.raises(tf.errors.InternalError, match=message):
        unique()
    behind = simulated.log[simulated.log.index(fails) + 1 :]
    assert set(behind) <= {"cuCtxPopCurrent_v2"}
    assert simulated.left == 0
    simulated.fails.clear()
    assert unique() == [[7, 5], [0, 1, 0], [2, 1]]


@pytest.mark.parametrize("stored", FLOATS)
def test_the_kernel_of_a_dtype_is_launched(simulated: SimulatedGpus, stored: str) -> None:
    """And named where it fails."""

    def look_up(ids: Any) -> Any:
        return ops.fused_embedding_lookup(
            table=tf.ones([3, 4], stored),
            ids=ids,
            entry_rows=np.zeros([0], np.int64),
            dense_shape=tf.constant(0, tf.int64),
            weights=tf.zeros([1], stored),
            form="dense",
        )

    simulated.log.clear()
    assert on_gpu(look_up, np.array([[2]])).tolist() == [[1.0] * 4]
    assert f"combine_{stored}" in simulated.log
    simulated.fails[f"combine_{stored}"] = 719
    with pytest.raises(tf.errors.InternalError, match=f"719 for the launch of combine_{stored}"):
        on_gpu(look_up, np.array([[2]]))


@pytest.mark.parametrize("streams", [STREAMS[:1], STREAMS[::2], STREAMS])
def test_threads_launch_side_by_side(streams: tuple[int, ...], simulated: SimulatedGpus) -> None:
    """Of one stream, of two of one GPU, and of two GPUs: calls do not mix."""
    simulated.streams = list(streams)

    @tf.function(autograph=False)
    def several(ids: Any) -> Any:
        with labelled():
            return [ops.unique_with_counts_v3(input=ids + k) for k in range(4)]

    with tf.device("CPU:0"):
        traced = several.get_concrete_function(tf.TensorSpec([None], tf.int64))
        with ThreadPoolExecutor(3) as pool:
            given = [tf.constant([k, 5, k], tf.int64) for k in range(6)]
            found = list(pool.map(traced, given))
    for k, ones in enumerate(found):
        for offset, one in enumerate(ones):
            assert one.unique_keys.numpy().tolist() == [*dict.fromkeys((k + offset, 5 + offset))]
    assert simulated.left == 0


def test_calls_side_by_side_have_their_own_trouble(simulated: SimulatedGpus) -> None:
    """Of a node that waits: each call has the error that is its own, and no other one."""
    simulated.streams = list(STREAMS)

    @tf.function(autograph=False)
    def prune(rows: Any) -> Any:
        with labelled():
            return ops.prune_invalid_and_fill_empty_rows(
                sp_values=tf.constant([1, 2], tf.int64),
                sp_indices=rows,
                sp_dense_shape=tf.constant([3, 1], tf.int64),
                sp_weights_values=[0.0],
            ).is_row_empty

    def message(row: int) -> str:
        try:
            return str(traced(tf.constant([[0, 0], [row, 0]], tf.int64)).numpy().tolist())
        except tf.errors.InvalidArgumentError as error:
            return error.message

    with tf.device("CPU:0"):
        traced = prune.get_concrete_function(tf.TensorSpec([2, 2], tf.int64))
        rows = [2, 5, 2, 6, 2, 7, 8, 2] * 3
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(message, rows))
    for row, text in zip(rows, found, strict=True):
        if row == 2:
            assert text == "[False, True, False]"
        else:
            assert f"entry 1 has row {row}, which is not in the batch" in text
            assert "earlier run" not in text
    assert simulated.left == 0


def test_ops_can_be_made_to_wait(simulated: SimulatedGpus) -> None:
    """Then an error is that of the op that it is in."""
    words = launcher.launcher(lambda: simulated).words

    def look_up(ids: Any) -> Any:
        return ops.fused_embedding_lookup(
            table=tf.ones([3, 4]),
            ids=ids,
            entry_rows=np.zeros([0], np.int64),
            dense_shape=tf.constant(0, tf.int64),
            weights=[0.0],
            form="dense",
        )

    words[LauncherRecord.waits] = 1
    try:
        simulated.log.clear()
        assert on_gpu(look_up, np.array([[2]])).tolist() == [[1.0] * 4]
        assert simulated.log[-2:] == ["cuStreamSynchronize", "cuCtxPopCurrent_v2"]
        with pytest.raises(tf.errors.InvalidArgumentError, match="has id 3, which is not in its t"):
            on_gpu(look_up, np.array([[3]]))
    finally:
        words[LauncherRecord.waits] = 0


def test_each_gpu_has_kernels_of_its_own(simulated: SimulatedGpus) -> None:
    wanted = unique()
    simulated.streams = [STREAMS[1]]
    assert unique() == wanted
    assert {("insert_ids", 0), ("insert_ids", 1)} <= set(simulated.loaded)
    simulated.loaded.append(("the last one", 0))
    assert unique() == wanted
    assert simulated.loaded.pop() == ("the last one", 0)  # loaded once


def test_kernels_that_cannot_be_loaded_are_an_error(simulated: SimulatedGpus) -> None:
    simulated.streams = [STREAMS[1]]
    simulated.fails["load fill_rows"] = 1
    given = np.array([1, 2]), np.array([[0, 0], [1, 0]])

    def fill(ids: Any, indices: Any) -> Any:
        return ops.prune_invalid_and_fill_empty_rows(
            sp_values=ids,
            sp_indices=indices,
            sp_dense_shape=tf.constant([3, 1], tf.int64),
            sp_weights_values=[0.0],
            fill_empty_row=True,
        )

    with pytest.raises(tf.errors.InternalError, match="RuntimeError: fill_rows is not there"):
        on_gpu(fill, *given)
    simulated.fails.clear()
    assert on_gpu(fill, *given).sp_values_out.tolist() == [1, 2, 0]


def test_functions_of_python_raise_nothing_into_compiled_code() -> None:
    gpus = SimulatedGpus()
    made = launcher.Launcher(gpus)
    reason = ctypes.c_char_p(made.words[LauncherRecord.reason])
    find_stream = _Call(made.words[LauncherRecord.find_stream])
    gpus.fails["stream"] = 1
    assert find_stream(99) == 0
    assert reason.value == b"RuntimeError: there is none"
    gpus.fails.clear()
    assert find_stream(99) == STREAMS[0]
    assert _Call(made.words[LauncherRecord.find_stream])(99) == STREAMS[0]
    assert made.words[LauncherRecord.find_stream] != ctypes.cast(find_stream, ctypes.c_void_p).value


def test_a_key_that_is_pressed_while_a_kernel_is_made_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TensorFlow's thread cannot raise it, and there is no kernel to go on with."""

    def pressed(*given: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(op_kernels.Kernels, "bring", pressed)
    kernels = kernels_on_gpu("UniqueWithCountsV3")
    bodies = ctypes.c_int64 * len(kernels.bodies)
    addresses = bodies.from_address(kernels.words[KernelsRecord.bodies])
    before = [*addresses]
    addresses[:] = [0] * len(before)
    with pytest.raises(tf.errors.InternalError, match="KeyboardInterrupt"):
        on_gpu(lambda ids: ops.unique_with_counts_v3(input=ids), np.array([1]))
    addresses[:] = before


@pytest.mark.parametrize(("columns", "parts"), [(200, 2), (1000, 9)])
def test_many_columns_take_one_launch(columns: int, parts: int, simulated: SimulatedGpus) -> None:
    """What describes them is copied in parts, each from memory of its own.

    A copy on the stream is still to come when the op has returned.
    """
    rows = np.array([[1], [0]])
    attrs = {name: [attr.default] * columns for name, attr in COLUMN_ATTRS.items()}
    attrs |= {"forms": ["dense"] * columns, "boundaries": [], "boundary_counts": [0] * columns}
    nothing = np.zeros([0], np.int64)

    def look_up(ids: Any, table: Any) -> Any:
        return ops.grouped_embedding_lookup(
            tables=[table] * columns,
            ids=[ids] * columns,
            entry_rows=[nothing] * columns,
            dense_shapes=[tf.constant(0, tf.int64)] * columns,
            weights=[tf.zeros([0])] * columns,
            **attrs,
        )

    given = rows, tf.constant([[1.0], [2.0]])
    simulated.log.clear()
    found = on_gpu(look_up, *given)
    assert found.tobytes() == look_up(*given).numpy().tobytes()
    driver = [name for name in simulated.log if name.startswith(("cuEvent", "cuMemcpy"))]
    part = ["cuEventSynchronize", "cuMemcpyHtoDAsync_v2", "cuEventRecord"]
    assert driver == part * parts
    assert [name for name in simulated.log if not name.startswith("cu")] == ["combine_float32"]


def test_each_node_has_words_of_its_own() -> None:
    made = launcher.Launcher(SimulatedGpus())
    states = [(ctypes.c_int64 * State.SIZE)() for _ in range(5000)]  # of several pages
    open_node = _Call(made.words[LauncherRecord.open_node])
    assert all(open_node(ctypes.addressof(state)) == 1 for state in states)
    slots = [state[State.error_slots] for state in states]
    assert len({slot // 32 for slot in slots}) == len(slots)
    assert open_node(ctypes.addressof(states[7])) == 1
    assert states[7][State.error_slots] == slots[7]


class _Device:
    """The memory of a GpuDevice, as `stream` expects it, and the function that gives it."""

    def __init__(self, stream_word: int) -> None:
        self.stream = ctypes.c_int64(stream_word)
        self.function = _Call(lambda interface: ctypes.addressof(self.stream))
        address = ctypes.cast(self.function, ctypes.c_void_p).value or 0
        self.functions = (ctypes.c_int64 * 3)(1, 2, address)
        self.interface = ctypes.c_int64(ctypes.addressof(self.functions))
        self.device = ctypes.c_int64(ctypes.addressof(self.interface))
        self.device_of = _Call(lambda context: ctypes.addressof(self.device))

    @property
    def address(self) -> int:
        return ctypes.cast(self.device_of, ctypes.c_void_p).value or 0


def test_stream_is_where_tensorflow_has_it() -> None:
    device = _Device(0x1234)
    found, function = stream.by_device(device.address, 99)
    assert found == 0x1234
    device.stream.value = 0x5678
    assert _Call(function)(99) == 0x5678
    assert hasattr(ctypes.CDLL(library.path()), stream._DEVICE_OF)


@pytest.mark.parametrize("part", ["device", "interface", "functions"])
@pytest.mark.parametrize("word", [0, 3, 8, -8])
def test_stream_elsewhere_is_told_and_nothing_is_touched(part: str, word: int) -> None:
    device = _Device(0x1234)
    if part == "functions":
        device.functions[2] = word
    else:
        getattr(device, part).value = word
    with pytest.raises(RuntimeError, match=r"is none|is no function"):
        stream.by_device(device.address, 99)


def test_the_file_that_is_compiled_against_headers() -> None:
    if shutil.which("g++") is None:
        with pytest.raises(FileNotFoundError):
            stream._compile()
        return
    code = stream._compile()
    assert code.startswith(b"\x7fELF")
    assert b"fusion_stream" in code


def test_stream_that_fails_its_check_is_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "by_library", lambda context: (5, 6))
    monkeypatch.setattr(stream, "by_headers", lambda context: (7, 8))
    assert stream.find(1, lambda found: "" if found == 7 else "not it") == (7, 8)
    with pytest.raises(RuntimeError, match=r"by TensorFlow's library: not it; by g\+\+: not it"):
        stream.find(1, lambda found: "not it")


def test_why_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for variable in ("FUSION_GPU", "NUMBA_ENABLE_CUDASIM", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(availability, "LIBRARY", "libm.so.6")
    monkeypatch.setattr(availability, "_DEVICE_FILES", (tmp_path / "none", tmp_path))
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert availability.why_not() == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install" in availability.why_not()
    monkeypatch.setattr(availability, "_DEVICE_FILES", (tmp_path / "none",))
    assert availability.why_not() == "there is no NVIDIA GPU"
    monkeypatch.setattr(availability, "LIBRARY", "libnone.so.1")
    assert availability.why_not() == "NVIDIA's driver is not installed"
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: False)
    assert "without CUDA" in availability.why_not()
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert "simulator" in availability.why_not()
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "hides all GPUs" in availability.why_not()
    monkeypatch.setenv("FUSION_GPU", "0")
    assert availability.why_not() == "FUSION_GPU is 0"
    assert facts.facts() == [("GPU kernels", "none: FUSION_GPU is 0", True)]
