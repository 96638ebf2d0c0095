"""Variables behind handles, and the functions of TensorFlow's C++ by which kernels share them.

See `fusion.runtime.tensorflow.variable_access`. What a kernel may not do (read what it has not
locked, keep a lock, hold a variable longer than the call) is noted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tests.soak.buffers import Buffers

Tensor = tuple[int, tuple[int, ...], bytes]

_libc = ctypes.CDLL(None)
_libc.free.argtypes = [ctypes.c_size_t]

_VOID, _WORD = None, ctypes.c_int64

#: Result and arguments of each function, in the order of the fields of an `UpdateAccess`.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "handle_from_input": (_WORD, _WORD, _WORD),
    "find": (_WORD, _WORD, _WORD, _WORD, _WORD),
    "describe": (_WORD, _WORD, _WORD),
    "lock": (_WORD, _WORD, _WORD, _WORD, _WORD, _WORD),
    "read": (_WORD, _WORD, _WORD, _WORD, _WORD, _WORD, _WORD),
    "unlock": (_WORD, _WORD),
    "fail": (_WORD, _WORD, _WORD),
    "set_output": (_WORD, _WORD, _WORD, _WORD),
    "make_tensor": (_WORD, _WORD),
    "end_tensor": (_WORD, _WORD),
}
_BEHIND: dict[str, tuple[Any, ...]] = {
    "tensor_data": (_WORD, _WORD),
    "tensor_bytes": (_WORD, _WORD),
}

#: Where a variable has the number of its dtype, in bytes, and that of its input.
_DTYPE_OFFSET, _INPUT_OFFSET, _VARIABLE_BYTES = 8, 0, 16

#: An absl::Status that is none of those that say OK.
_NOT_FOUND = 5

_NAMES = {1: b"float", 2: b"double"}


class Variables:
    """Those of one call, by the numbers of the inputs that are their handles."""

    def __init__(self, buffers: Buffers, given: dict[int, Tensor]) -> None:
        self.buffers = buffers
        self.sizes = {index: len(content) for index, (_, _, content) in given.items()}
        self.addresses = {index: self._place(given[index][2]) for index in given}
        self.objects = {index: self._object(index, given[index][0]) for index in given}
        self.references = dict.fromkeys(given, 0)
        self.locks: dict[int, set[int]] = {}
        self.tensors: dict[int, int | None] = {}

    def _place(self, content: bytes) -> int:
        address = self.buffers.allocate(len(content))
        ctypes.memmove(address, content, len(content))
        return address

    def _object(self, index: int, dtype: int) -> int:
        words = [index.to_bytes(8, "little"), dtype.to_bytes(8, "little")]
        address = self._place(b"".join(words))
        self.buffers.freeze(address)
        return address

    def contents(self) -> dict[int, bytes]:
        """What is in each."""
        return {
            index: self.buffers.read(address, self.sizes[index])
            for index, address in self.addresses.items()
        }

    def finish(self) -> list[str]:
        """What a kernel has not ended."""
        found = [
            f"the variable of input {index} is held {count} times"
            for index, count in self.references.items()
            if count
        ]
        found += [f"{len(self.locks)} locks are kept"] * bool(self.locks)
        return found + [f"{len(self.tensors)} tensors of variables are kept"] * bool(self.tensors)

    def release(self) -> None:
        """Gives all memory back."""
        for address in (*self.addresses.values(), *self.objects.values()):
            self.buffers.release(address)


def _word(address: int, index: int = 0) -> Any:
    return ctypes.c_int64.from_address(address + 8 * index)


class Access:
    """The functions; `variables` gives those of the call that runs."""

    def __init__(
        self,
        variables: Callable[[], Variables],
        noting: Callable[[Callable[..., Any], Any], Callable[..., Any]],
    ) -> None:
        self._variables = variables
        self._callbacks = {
            name: ctypes.CFUNCTYPE(result, *args)(noting(getattr(self, f"_{name}"), result))
            for name, (result, *args) in (_FUNCTIONS | _BEHIND).items()
        }

    def words(self, dtype: int) -> list[int]:
        """The words of an `UpdateAccess` of a `TF_DataType`."""
        addresses = {
            name: ctypes.cast(callback, ctypes.c_void_p).value or 0
            for name, callback in self._callbacks.items()
        }
        name = int.from_bytes(_NAMES[dtype], "little")
        front = [addresses[each] for each in _FUNCTIONS]
        return [*front, _DTYPE_OFFSET, dtype, name, 0, *(addresses[each] for each in _BEHIND)]

    def _handle_from_input(self, context: int, index: int) -> int:
        return index + 1

    def _find(self, status: int, context: int, handle: int, variable: int) -> int:
        found = self._variables()
        is_there = handle - 1 in found.objects
        _word(status).value = 0 if is_there else _NOT_FOUND
        if is_there:
            _word(variable).value = found.objects[handle - 1]
            found.references[handle - 1] += 1
        return status

    def _describe(self, text: int, handle: int) -> int:
        """A short std::string: its address, its length, and 16 bytes of its own."""
        content = f"input {handle - 1}".encode()
        _word(text).value, _word(text, 1).value = text + 16, len(content)
        ctypes.memmove(text + 16, content + b"\0", len(content) + 1)
        return text

    def _lock(self, holder: int, context: int, exclusive: int, sparse: int, numbers: int) -> int:
        begin, end, limit = (_word(numbers, k).value for k in range(3))
        inputs = {*(ctypes.c_int32 * ((end - begin) // 4)).from_address(begin)}
        if end != limit or exclusive or not sparse or not inputs <= {*self._variables().objects}:
            raise ValueError(f"cannot lock {inputs}: {exclusive}, {sparse}, {limit - end}")
        for k in range(3):
            _word(holder, k).value = 0
        self._variables().locks[holder] = inputs
        return holder

    def _read(
        self, status: int, context: int, index: int, exclusive: int, sparse: int, tensor: int
    ) -> int:
        found = self._variables()
        if not any(index in inputs for inputs in found.locks.values()):
            raise ValueError(f"input {index} is read without a lock")
        if tensor not in found.tensors:
            raise ValueError("there is no such tensor")
        found.tensors[tensor] = index
        _word(status).value = 0
        return status

    def _unlock(self, holder: int) -> int:
        """Ends a lock, or lets go of the variables in a std::vector of a holder without locks."""
        found, (begin, end) = self._variables(), (_word(holder, k).value for k in range(2))
        if begin == 0:
            del found.locks[holder]
            return 0
        for k in range((end - begin) // 8):
            index = _word(_word(begin, k).value + _INPUT_OFFSET).value
            found.references[index] -= 1
            if any(index in inputs for inputs in found.locks.values()):
                raise ValueError(f"the variable of input {index} is let go of before its lock")
        _libc.free(begin)
        return 0

    def _fail(self, context: int, status: int) -> int:
        raise ValueError("no variable fails to be read")

    def _set_output(self, context: int, index: int, tensor: int) -> int:
        raise ValueError("no kernel gives its variables away")

    def _make_tensor(self, tensor: int) -> int:
        self._variables().tensors[tensor] = None
        return tensor

    def _end_tensor(self, tensor: int) -> int:
        del self._variables().tensors[tensor]
        return 0

    def _index_of(self, tensor: int) -> int:
        index = self._variables().tensors[tensor]
        if index is None:
            raise ValueError("the tensor is of no variable")
        return index

    def _tensor_data(self, tensor: int) -> int:
        return self._variables().addresses[self._index_of(tensor)]

    def _tensor_bytes(self, tensor: int) -> int:
        return self._variables().sizes[self._index_of(tensor)]
