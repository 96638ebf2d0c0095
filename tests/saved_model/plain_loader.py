"""Runs a SavedModel by TensorFlow's C API, as a C++ server does. Only the standard library is used.

`python -I -S plain_loader.py LIBRARY...` loads the libraries, reads a job as JSON from standard
input and writes what came of it to standard output. Such a process has no packages at all:
TensorFlow's shared libraries are all that it knows of TensorFlow.

A job is `{"model": directory, "feeds": {tensor: array}, "fetches": [tensor]}`, its result
`{"outputs": [array]}` or `{"error": message}`. An array is `{"dtype": number, "shape": sizes}` with
`"bytes"` in base64, or with `"strings"`, each in base64.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import struct
import sys
from base64 import b64decode, b64encode
from typing import Any

STRING = 7
"""The number of `tf.string`."""
_VIEW = 3  # the kind of a TF_TString that points to bytes of somebody else
_TSTRING = struct.Struct("<QQQ")


class Output(ctypes.Structure):
    """`TF_Output`: an output of an operation."""

    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


class Library:
    """TensorFlow's C API; each function returns what its declaration in `c_api.h` says."""

    POINTERS = (
        "AllocateTensor GraphOperationByName LoadSessionFromSavedModel NewGraph NewSessionOptions "
        "NewStatus TensorData"
    )

    def __init__(self, paths: list[str]) -> None:
        self._libraries = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in paths]
        self.status = ctypes.c_void_p(self("NewStatus")())

    def __call__(self, name: str) -> Any:
        """Returns a function by its name without the prefix."""
        found = (getattr(library, f"TF_{name}", None) for library in self._libraries)
        function = next(match for match in found if match is not None)
        if name in self.POINTERS.split():
            function.restype = ctypes.c_void_p
        return function

    def check(self) -> None:
        """Raises RuntimeError with the message of the last call if it failed."""
        if self("GetCode")(self.status):
            message = self("Message")
            message.restype = ctypes.c_char_p
            raise RuntimeError(message(self.status).decode())


def tensor(library: Library, array: dict[str, Any], alive: list[Any]) -> ctypes.c_void_p:
    """Makes a tensor; what it points to is added to `alive`."""
    if array["dtype"] == STRING:
        strings = [ctypes.create_string_buffer(b64decode(text)) for text in array["strings"]]
        alive += strings
        parts = (  # create_string_buffer appends a zero byte
            _TSTRING.pack((len(text) - 1) << 2 | _VIEW, ctypes.addressof(text), 0)
            for text in strings
        )
        content = b"".join(parts)
    else:
        content = b64decode(array["bytes"])
    shape = array["shape"]
    made = ctypes.c_void_p(
        library("AllocateTensor")(
            array["dtype"],
            (ctypes.c_int64 * len(shape))(*shape),
            len(shape),
            ctypes.c_size_t(len(content)),
        )
    )
    ctypes.memmove(library("TensorData")(made), content, len(content))
    return made


def array(library: Library, value: ctypes.c_void_p) -> dict[str, Any]:
    """Reads a tensor of numbers."""
    size, dimension = library("TensorByteSize"), library("Dim")
    size.restype, dimension.restype = ctypes.c_size_t, ctypes.c_int64
    content = ctypes.string_at(library("TensorData")(value), size(value))
    return {
        "dtype": library("TensorType")(value),
        "shape": [dimension(value, axis) for axis in range(library("NumDims")(value))],
        "bytes": b64encode(content).decode(),
    }


def run(library: Library, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Loads the model and runs it once.

    Raises:
        RuntimeError: TensorFlow's message.
    """
    graph = ctypes.c_void_p(library("NewGraph")())
    session = ctypes.c_void_p(
        library("LoadSessionFromSavedModel")(
            ctypes.c_void_p(library("NewSessionOptions")()),
            None,
            job["model"].encode(),
            (ctypes.c_char_p * 1)(b"serve"),
            1,
            graph,
            None,
            library.status,
        )
    )
    library.check()

    def ends(names: list[str]) -> Any:
        pairs = (name.split(":") for name in names)
        operation = library("GraphOperationByName")
        found = [Output(operation(graph, name.encode()), int(index)) for name, index in pairs]
        return (Output * len(found))(*found)

    alive: list[Any] = []
    feeds = [tensor(library, one, alive) for one in job["feeds"].values()]
    results = (ctypes.c_void_p * len(job["fetches"]))()
    library("SessionRun")(
        session,
        None,
        ends([*job["feeds"]]),
        (ctypes.c_void_p * len(feeds))(*feeds),
        len(feeds),
        ends(job["fetches"]),
        results,
        len(results),
        None,
        0,
        None,
        library.status,
    )
    library.check()
    return [array(library, ctypes.c_void_p(result)) for result in results]


def main() -> None:
    """Does what the module says."""
    for package in ("fusion", "numba", "tensorflow", "numpy"):
        assert importlib.util.find_spec(package) is None, f"{package} is installed"
    try:
        answer: dict[str, Any] = {"outputs": run(Library(sys.argv[1:]), json.load(sys.stdin))}
    except RuntimeError as error:
        answer = {"error": str(error)}
    assert not {"fusion", "numba", "tensorflow", "numpy"} & {*sys.modules}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
