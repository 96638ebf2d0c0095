"""TensorFlow's entry point for graph optimizers from outside, and what such an optimizer sees.

TensorFlow keeps one optimizer per device type, aborts the process when a second one is registered,
and never lets go of one. So there is one per process, whatever the number of copies or reloads of
this package; what it calls can be exchanged.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import tensorflow as tf

from fusion.runtime import elf, library, process

#: Graphs of a process without accelerators are of type CPU; with them, of both.
DEVICE_TYPES = ("CPU", "GPU")

_OK, _ABORTED = 0, 10
#: The only word of an absl::Status, which C++ returns in memory of the caller, in older versions
#: and in newer ones. Neither is a pointer to an error or a code with another number in it.
_ABSL_OK, _UNKNOWN = (0, 1), 2
#: What a library with optimizers exports: tensorflow/c/experimental/grappler/grappler.h
_PLUGIN_SYMBOL = "TF_InitGraph"
#: The overload that takes a function; the types in its mangled name may differ between versions.
_INIT_SYMBOL = b"tensorflow8grappler15InitGraphPluginEPF"
_ITEM_SYMBOLS = (
    "TF_GetNodesToPreserveListSize",
    "TF_GetNodesToPreserveList",
    "TF_GetFetchNodesListSize",
    "TF_GetFetchNodesList",
)


# The structures of tensorflow/c/experimental/grappler/grappler.h and tensorflow/c/tf_buffer.h


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


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocate", ctypes.c_void_p),
    )


_INIT = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Params), ctypes.c_void_p)
_OPTIMIZE = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.POINTER(_Buffer),
    ctypes.c_void_p,
    ctypes.POINTER(_Buffer),
    ctypes.c_void_p,
)


class Item:
    """A graph that TensorFlow is about to run; valid during the call only."""

    def __init__(self, graph: _Buffer, address: int | None) -> None:
        self._graph = graph
        self._address = ctypes.c_void_p(address)

    def contains(self, text: bytes) -> bool:
        """Whether the serialized graph has these bytes in it: a fast search, without the GIL."""
        graph = self._graph
        found = _libc().memmem(
            ctypes.c_void_p(graph.data), ctypes.c_size_t(graph.length), text, len(text)
        )
        return found is not None

    def graph_def(self) -> bytes:
        """The graph, a serialized GraphDef."""
        return ctypes.string_at(self._graph.data, self._graph.length)

    def nodes_to_preserve(self) -> frozenset[str]:
        """Names that must not vanish: fetches, feeds, and nodes that others wait for.

        Raises:
          RuntimeError: TensorFlow cannot tell.
        """
        return frozenset(self._names("TF_GetNodesToPreserveList"))

    def fetches(self) -> frozenset[str]:
        """The nodes whose values are read by whoever runs the graph.

        Raises:
          RuntimeError: TensorFlow cannot tell.
        """
        return frozenset(name.partition(":")[0] for name in self._names("TF_GetFetchNodesList"))

    def _names(self, function: str) -> list[str]:
        tensorflow = _library()
        count, size = ctypes.c_int(), ctypes.c_size_t()
        with library.Status() as status:
            getattr(tensorflow, f"{function}Size")(
                self._address, ctypes.byref(count), ctypes.byref(size), status.address
            )
            status.check(f"calling {function}Size")
            starts = (ctypes.c_void_p * count.value)()
            lengths = (ctypes.c_size_t * count.value)()
            storage = ctypes.create_string_buffer(max(size.value, 1))
            getattr(tensorflow, function)(
                self._address, starts, lengths, count, storage, size, status.address
            )
            status.check(f"calling {function}")
            pairs = list(zip(starts, lengths, strict=True))
            return [ctypes.string_at(start, length).decode() for start, length in pairs]


#: Returns the new graph, a serialized GraphDef, or None to leave the graph as it is.
Optimize = Callable[[Item], "bytes | None"]


class _Plugin:
    """What all copies of this package in the process share."""

    def __init__(self) -> None:
        self.attempted = False
        self.accepted = False
        self.optimize: Optimize | None = None
        self.renew_lock()
        # A child of a fork may inherit the lock while a thread that it lacks holds it.
        os.register_at_fork(after_in_child=self.renew_lock)

    def renew_lock(self) -> None:
        self.lock = threading.Lock()


def install(optimize: Optimize) -> None:
    """Lets TensorFlow call `optimize` for every graph that it is about to run, from now on.

    It is called by the thread that needs the graph. There is one in a process: the last installed.

    Raises:
      tf.errors.UnimplementedError: this TensorFlow takes no optimizers from outside.
      tf.errors.AlreadyExistsError: another library has registered one.
    """
    plugin = process.single("optimizer_plugin", _Plugin)
    with plugin.lock:
        if not plugin.attempted:
            init_graph_plugin = _entry_point()
            # Once and for all: a second attempt ends the process if the first one worked.
            plugin.attempted = True
            plugin.accepted = _register(init_graph_plugin, plugin)
        if not plugin.accepted:
            raise tf.errors.UnimplementedError(
                None, None, f"TensorFlow {tf.__version__} has refused fusion's graph optimizer"
            )
        plugin.optimize = optimize


def symbol() -> str | None:
    """The mangled name of TensorFlow's entry point for optimizers, if there is all it takes."""
    path = _library_path()
    name = elf.exported_name(path, _INIT_SYMBOL) if path.exists() else None
    exported = name is not None and all(hasattr(_library(), one) for one in _ITEM_SYMBOLS)
    return name if exported else None


def _entry_point() -> Callable[..., object]:
    name = symbol()
    if name is None:
        raise tf.errors.UnimplementedError(
            None,
            None,
            f"TensorFlow {tf.__version__} cannot call fusion for the graphs that it runs: "
            f"{_library_path()} does not export tensorflow::grappler::InitGraphPlugin and "
            f"{', '.join(_ITEM_SYMBOLS)}. Functions and files can be rewritten all the same.",
        )
    if others := _other_plugins():
        raise tf.errors.AlreadyExistsError(
            None,
            None,
            f"{', '.join(others)} has graph optimizers of its own; TensorFlow takes one per device "
            "type and ends the process when there are two",
        )
    return getattr(_library(), name)


def _register(init_graph_plugin: Callable[..., object], plugin: _Plugin) -> bool:
    """Registers the callback for every device type; False when TensorFlow refuses one."""
    callback = _OPTIMIZE(_Callback(plugin))
    process.keep_forever(callback)
    for device_type in DEVICE_TYPES:
        status = ctypes.c_uint64(_UNKNOWN)
        init_graph_plugin(ctypes.byref(status), _filled(device_type, callback))
        if status.value not in _ABSL_OK:
            return False
    return True


def _filled(device_type: str, callback: object) -> object:
    """Returns the function by which TensorFlow asks for an optimizer."""
    address = ctypes.cast(callback, ctypes.c_void_p).value  # type: ignore[arg-type]
    name = ctypes.c_char_p(device_type.encode())
    process.keep_forever(name)

    def fill(params: ctypes._Pointer[_Params], status: int) -> None:
        asked = params.contents
        asked.struct_size = ctypes.sizeof(_Params)
        asked.device_type = name
        configs, optimizer = asked.configs.contents, asked.optimizer.contents
        configs.struct_size = _Configs.choices.offset + _Configs.choices.size
        optimizer.struct_size = ctypes.sizeof(_Optimizer)
        optimizer.optimize = address
        _set_status(status, _OK)

    return _INIT(fill)


class _Callback:
    """What TensorFlow calls with a graph; it survives reloads of this module."""

    def __init__(self, plugin: _Plugin) -> None:
        self._plugin = plugin

    def __call__(
        self,
        _: int | None,
        graph: ctypes._Pointer[_Buffer],
        item: int | None,
        result: ctypes._Pointer[_Buffer],
        status: int,
    ) -> None:
        # First of all: whatever happens, the graph is left alone. An empty result that goes with
        # another status would be an empty graph.
        _set_status(status, _ABORTED)
        optimize = self._plugin.optimize
        optimized = optimize(Item(graph.contents, item)) if optimize is not None else None
        if optimized is not None and _fill(result.contents, optimized):
            _set_status(status, _OK)


def _fill(buffer: _Buffer, data: bytes) -> bool:
    """Hands the data over in memory that TensorFlow frees; False when there is none."""
    libc = _libc()
    memory = libc.malloc(ctypes.c_size_t(len(data)))
    if not memory:
        return False
    ctypes.memmove(memory, data, len(data))
    buffer.data, buffer.length = memory, len(data)
    buffer.deallocate = ctypes.cast(libc.free, ctypes.c_void_p).value
    return True


def _set_status(status: int | None, code: int) -> None:
    library.load().TF_SetStatus(ctypes.c_void_p(status), code, b"")


def _other_plugins() -> list[str]:
    """The shared libraries of this process that bring graph optimizers along."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps if ".so" in line)
    return [path for path in paths if _exports_plugin(path)]


def _exports_plugin(path: str) -> bool:
    try:
        handle = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
    except OSError:  # a file that was replaced since
        return False
    return hasattr(handle, _PLUGIN_SYMBOL)


def _library_path() -> Path:
    return Path(library.path()).with_name("libtensorflow_cc.so.2")


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(_library_path()))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.memmem.restype = ctypes.c_void_p
    return libc
