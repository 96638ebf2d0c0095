"""TensorFlow's entry point for external graph optimizers, and what such an optimizer sees.

TensorFlow keeps one optimizer per device type, aborts the process when a second one is registered,
and never releases one. So there is one per process, whatever the number of copies or reloads of
this package; the function that it calls can be exchanged.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.metadata
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tensorflow as tf

from fusion.runtime import process
from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.optimizer import prefilter
from fusion.runtime.optimizer.layout import PATIENCE_NS, OptimizerRecord
from fusion.runtime.optimizer.prefilter import Rule
from fusion.runtime.process import keep_forever
from fusion.runtime.tensorflow import library
from fusion.runtime.upcalls import service
from fusion.runtime.upcalls.service import Request, RequestRecord

#: Graphs of a process without accelerators are of type CPU; with them, of both.
DEVICE_TYPES = ("CPU", "GPU")

_logger = logging.getLogger("fusion")

#: The name under which the process has one.
_NAME = "optimizer_plugin"

_OK = 0
#: The only word of an absl::Status, which C++ returns in memory of the caller, in older versions
#: and in newer ones. Neither is a pointer to an error or a code with another number in it.
_ABSL_OK, _UNKNOWN = (0, 1), 2
#: What a library with optimizers exports: tensorflow/c/experimental/grappler/grappler.h
_PLUGIN_SYMBOL = "TF_InitGraph"
#: And one with devices: tensorflow/c/experimental/stream_executor/stream_executor.h
_DEVICE_SYMBOL = "SE_InitPlugin"
#: The overload that takes a function; the types in its mangled name may differ between versions.
_INIT_SYMBOL = b"tensorflow8grappler15InitGraphPluginEPF"
_ITEM_SYMBOLS = (
    "TF_GetNodesToPreserveListSize",
    "TF_GetNodesToPreserveList",
    "TF_GetFetchNodesListSize",
    "TF_GetFetchNodesList",
)
#: How to fuse lookups without an optimizer in the process.
_OTHER_WAYS = """Lookups can be fused in other ways all the same:
  fusion.saved_model_load(path) loads a SavedModel with fused lookups
  fusion.fuse_saved_model(src, dst), or the command `fusion rewrite`, writes one
  fusion.fuse_function(concrete_function) and fusion.fuse_graph(graph_def) fuse what is built
  fusion.keras.accelerate(model) swaps the Embedding layers of a Keras model
  feature columns with do_fusion and the lookups of this package are built of fused ops
fusion.explain(model, under="rewrite") shows what these fuse; see docs/enable.md"""


# The structures of tensorflow/c/experimental/grappler/grappler.h


class _Configs(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        # One choice per built-in optimizer; 0 leaves it to the user.
        ("choices", ctypes.c_int * 19),
    )


class _Optimizer(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("create", ctypes.c_void_p),
        ("optimize", ctypes.c_void_p),
        ("destroy", ctypes.c_void_p),
    )


class _Params(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("ext", ctypes.c_void_p),
        ("version", ctypes.c_int32 * 3),
        ("device_type", ctypes.c_char_p),
        ("configs", ctypes.POINTER(_Configs)),
        ("optimizer", ctypes.POINTER(_Optimizer)),
    )


_INIT = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Params), ctypes.c_void_p)


class Item:
    """A graph that TensorFlow is about to run; valid during the call only."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def when_abandoned(self, undo: Callable[[], None]) -> None:
        """Has `undo` called if the new graph comes too late, and TensorFlow goes on without it."""
        self._request.when_abandoned = undo

    @property
    def thread(self) -> int:
        """The thread of TensorFlow's that waits for the graph, as `threading.get_ident` has it."""
        return self._request.thread

    def graph_def(self) -> bytes:
        """The graph, a serialized GraphDef."""
        return self._request.input()

    def nodes_to_preserve(self) -> frozenset[str]:
        """Names that must not vanish: fetches, feeds, and nodes that others wait for.

        Raises:
          RuntimeError: TensorFlow does not list them.
        """
        return self._names(RequestRecord.first_names, "TF_GetNodesToPreserveList")

    def fetches(self) -> frozenset[str]:
        """The fetched nodes: those whose values a run of the graph returns.

        Raises:
          RuntimeError: TensorFlow does not list them.
        """
        names = self._names(RequestRecord.second_names, "TF_GetFetchNodesList")
        return frozenset(name.partition(":")[0] for name in names)

    def _names(self, field: int, function: str) -> frozenset[str]:
        names = self._request.names(field)
        if names is None:
            raise RuntimeError(f"TensorFlow's {function} fails")
        return names


#: Returns the new graph, a serialized GraphDef, or None to leave the graph as it is.
Optimize = Callable[[Item], "bytes | None"]


@dataclass(frozen=True)
class Counts:
    """Counts of the graphs that were seen while there was a rule.

    Attributes:
        graphs: how often TensorFlow showed a graph.
        seconds: the time that took, summed over threads.
        timeouts: how often a graph was left alone because Python's lock was not free in time.
    """

    graphs: int = 0
    seconds: float = 0.0
    timeouts: int = 0


class _Plugin:
    """The state that all copies of this package in the process share."""

    def __init__(self) -> None:
        self.attempted = False
        self.accepted = False
        self.optimize: Optimize | None = None
        self.words = (ctypes.c_int64 * OptimizerRecord.SIZE)()
        keep_forever(self.words)
        self._has_warned = False
        self.renew_lock()
        # A child of a fork may inherit the lock while a thread that it lacks holds it.
        os.register_at_fork(after_in_child=self.renew_lock)

    def renew_lock(self) -> None:
        self.lock = threading.Lock()

    def serve(self, request: Request) -> None:
        """Optimizes the graph of a request."""
        optimize = self.optimize
        optimized = optimize(Item(request)) if optimize is not None else None
        if optimized is not None:
            request.answer(optimized)

    def too_late(self) -> None:
        """Logs once that graphs were left as they were."""
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "fusion left a graph as it was: Python's lock (the GIL) was not to be had in time, "
                "since another thread kept it, perhaps while waiting for this very graph; more of "
                "them will be counted in fusion.stats(), not shown"
            )

    def look_for(self, rule: Rule, is_counted: bool = True) -> None:
        """Optimizes graphs that meet a rule from now on."""
        self.words[OptimizerRecord.is_counted] = is_counted
        self.words[OptimizerRecord.rule] = prefilter.table(rule)

    def counts(self) -> Counts:
        """The counts of this process."""
        return Counts(
            self.words[OptimizerRecord.seen_count],
            self.words[OptimizerRecord.nanoseconds] / 1e9,
            self.words[OptimizerRecord.timeout_count],
        )

    def close(self) -> None:
        """Prepares the end of the process: leaves graphs alone, and waits for running calls."""
        self.look_for(())
        service.upcalls().wait_for_all()


def install(optimize: Optimize) -> None:
    """Lets TensorFlow call `optimize` for the graphs that it is about to run, see `look_for`.

    It is called on a thread of its own while the thread that needs the graph waits, unless Python's
    lock is not free in time (`upcalls`). A process has one such function: the last installed.

    Raises:
      tf.errors.UnimplementedError: this TensorFlow takes no optimizers from outside.
      tf.errors.AlreadyExistsError: another library has registered one.
    """
    plugin = process.single(_NAME, _Plugin)
    with plugin.lock:
        if not plugin.attempted:
            init_graph_plugin = _entry_point()
            # Once and for all: a second attempt ends the process if the first one worked.
            address = _native_entry(plugin)
            plugin.attempted = True
            plugin.accepted = _register(init_graph_plugin, address)
            atexit.register(plugin.close)
        if not plugin.accepted:
            raise tf.errors.UnimplementedError(
                None,
                None,
                f"TensorFlow {tf.__version__} has refused fusion's graph optimizer.\n{_OTHER_WAYS}",
            )
        plugin.optimize = optimize


def look_for(rule: Rule, *, is_counted: bool = True) -> None:
    """From now on, optimizes the graphs that meet a rule; without clauses, none.

    Native code skips the others without Python. With `is_counted`, graphs are counted.
    """
    process.single(_NAME, _Plugin).look_for(rule, is_counted)


def counts() -> Counts:
    """The counts of this process."""
    plugin = process.existing(_NAME)
    return Counts() if plugin is None else plugin.counts()


def symbol() -> str | None:
    """The mangled name of TensorFlow's entry point for optimizers; None if a symbol is missing."""
    path = library.whole_path()
    name = library.exported_name(path, _INIT_SYMBOL) if path.exists() else None
    exported = name is not None and all(hasattr(_library(), one) for one in _ITEM_SYMBOLS)
    return name if exported else None


def _entry_point() -> Callable[..., object]:
    name = symbol()
    if name is None:
        raise tf.errors.UnimplementedError(
            None,
            None,
            f"TensorFlow {tf.__version__} cannot call fusion for the graphs that it runs: "
            f"{library.whole_path()} does not export tensorflow::grappler::InitGraphPlugin and "
            f"{', '.join(_ITEM_SYMBOLS)}.\n{_OTHER_WAYS}",
        )
    if others := other_plugins():
        raise tf.errors.AlreadyExistsError(
            None,
            None,
            "another library has registered a graph optimizer with TensorFlow: "
            f"{', '.join(others)}. TensorFlow takes one per device type, and the process ends when "
            f"there is a second one for the CPU, so fusion registers none.\n{_OTHER_WAYS}",
        )
    return getattr(_library(), name)


def _register(init_graph_plugin: Callable[..., object], address: int) -> bool:
    """Registers the optimizer for every device type; False when TensorFlow refuses one."""
    for device_type in DEVICE_TYPES:
        status = ctypes.c_uint64(_UNKNOWN)
        init_graph_plugin(ctypes.byref(status), _filled(device_type, address))
        if status.value not in _ABSL_OK:
            return False
    return True


#: The function that TensorFlow calls; it passes the words on.
_ENTRY = """
define void @optimize_graph(i64 %optimizer, i64 %graph, i64 %item, i64 %result, i64 %status) {{
  %optimize = inttoptr i64 {optimize} to ptr
  tail call void %optimize(i64 {words}, i64 %graph, i64 %item, i64 %result, i64 %status)
  ret void
}}
"""


def native_optimizer() -> int:
    """The address of the function that `_ENTRY` calls with the words and the graph."""
    compile_it = Compilation("fusion.runtime.optimizer.native", "optimize", 5, "optimize")
    return objects.address("optimize", compile_it)


def _native_entry(plugin: _Plugin) -> int:
    """The address of the function that TensorFlow calls with a graph."""
    tensorflow, libc, words = _library(), ctypes.CDLL(None), plugin.words
    empty = ctypes.create_string_buffer(1)
    keep_forever(empty)
    words[OptimizerRecord.server_number] = service.upcalls().add(plugin)
    words[OptimizerRecord.patience_ns] = PATIENCE_NS
    words[OptimizerRecord.upcalls] = service.upcalls().address
    words[OptimizerRecord.empty] = ctypes.addressof(empty)
    words[OptimizerRecord.free] = _address(libc.free)
    words[OptimizerRecord.preserved_size] = _address(tensorflow.TF_GetNodesToPreserveListSize)
    words[OptimizerRecord.preserved] = _address(tensorflow.TF_GetNodesToPreserveList)
    words[OptimizerRecord.fetches_size] = _address(tensorflow.TF_GetFetchNodesListSize)
    words[OptimizerRecord.fetches] = _address(tensorflow.TF_GetFetchNodesList)
    text = _ENTRY.format(optimize=native_optimizer(), words=ctypes.addressof(words))
    return objects.load_ir(text, ["optimize_graph"])[0]


def _filled(device_type: str, address: int) -> object:
    """Returns the function by which TensorFlow asks for an optimizer."""
    name = ctypes.c_char_p(device_type.encode())
    keep_forever(name)

    def fill(params: ctypes._Pointer[_Params], status: int) -> None:
        contents = params.contents
        contents.struct_size = ctypes.sizeof(_Params)
        contents.device_type = name
        configs, optimizer = contents.configs.contents, contents.optimizer.contents
        configs.struct_size = _Configs.choices.offset + _Configs.choices.size
        optimizer.struct_size = ctypes.sizeof(_Optimizer)
        optimizer.optimize = address
        _set_status(status, _OK)

    return _INIT(fill)


def _set_status(status: int | None, code: int) -> None:
    library.load().TF_SetStatus(ctypes.c_void_p(status), code, b"")


def other_plugins() -> list[str]:
    """The shared libraries of this process that have graph optimizers, each with its package.

    TensorFlow does not say which device types they have registered.
    """
    return _libraries_with(_PLUGIN_SYMBOL)


def device_plugins() -> list[str]:
    """The shared libraries of this process that have devices, each with its package."""
    return _libraries_with(_DEVICE_SYMBOL)


def _libraries_with(symbol: str) -> list[str]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps if ".so" in line)
    return [f"{path}{_package(path)}" for path in paths if _exports(path, symbol)]


def _exports(path: str, symbol: str) -> bool:
    try:
        handle = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
    except OSError:  # a file that was replaced since
        return False
    return hasattr(handle, symbol)


def _package(path: str) -> str:
    """Returns " of NAME VERSION" for the file of an installed package, else nothing."""
    name = os.path.basename(path)
    for package in importlib.metadata.distributions():
        # To list the files of all packages takes long.
        if name not in (package.read_text("RECORD") or ""):
            continue
        files = [file for file in package.files or () if file.name == name]
        if any(os.path.realpath(str(package.locate_file(file))) == path for file in files):
            return f" of {package.name} {package.version}"
    return ""


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(library.whole_path()))


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
