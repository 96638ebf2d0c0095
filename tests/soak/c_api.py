"""TensorFlow's C API as far as kernels use it, in Python: for one kernel call at a time.

Compiled kernels are loaded against these functions, in a process without TensorFlow. What a
kernel may not do (use a deleted tensor, leave one behind, lose an error, miss an output) is noted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm

from tests.soak.buffers import Buffers
from tests.soak.variables import Access, Variables

OK, RESOURCE_EXHAUSTED = 0, 8

#: Bytes of an element, by `TF_DataType`.
_STRING = 7
ITEM_BYTES = {1: 4, 2: 8, 3: 4, 4: 1, _STRING: 24, 9: 8, 10: 1, 14: 2, 17: 2, 19: 2, 22: 4, 23: 8}

_VOID, _INT, _WORD = None, ctypes.c_int, ctypes.c_int64

#: Result and arguments of each function; addresses are words.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "TF_NumInputs": (_INT, _WORD),
    "TF_NumOutputs": (_INT, _WORD),
    "TF_ExpectedOutputDataType": (_INT, _WORD, _INT),
    "TF_GetInput": (_VOID, _WORD, _INT, _WORD, _WORD),
    "TF_NumDims": (_INT, _WORD),
    "TF_Dim": (_WORD, _WORD, _INT),
    "TF_TensorData": (_WORD, _WORD),
    "TF_DeleteTensor": (_VOID, _WORD),
    "TF_NewStatus": (_WORD,),
    "TF_DeleteStatus": (_VOID, _WORD),
    "TF_GetCode": (_INT, _WORD),
    "TF_SetStatus": (_VOID, _WORD, _INT, ctypes.c_char_p),
    "TF_OpKernelContext_Failure": (_VOID, _WORD, _WORD),
    "TF_AllocateOutput": (_WORD, _WORD, _INT, _INT, _WORD, _INT, _WORD, _WORD),
    "TF_AllocateTemp": (_WORD, _WORD, _INT, _WORD, _INT, _WORD, _WORD),
    "TF_SetOutput": (_VOID, _WORD, _INT, _WORD, _WORD),
    "TF_NewTensor": (_WORD, _INT, _WORD, _INT, _WORD, _WORD, _WORD, _WORD),
    "TF_TensorMaybeMove": (_WORD, _WORD),
}

_Deallocator = ctypes.CFUNCTYPE(_VOID, _WORD, _WORD, _WORD)


class Misuse(Exception):
    """A kernel did what TensorFlow does not allow."""


class GivenMemory:
    """Memory that a kernel made a tensor of, and the words of TensorFlow's objects for it."""

    def __init__(self, address: int, size: int, deallocator: int, argument: int) -> None:
        self._free = _Deallocator(deallocator), address, size, argument
        self._buffer = (_WORD * 7)(0, 1, address, size, deallocator, argument, 0)
        self._interface = (_WORD * 5)(0, 0, 0, 0, ctypes.addressof(self._buffer))
        self._tensors = [self._new_tensor()]

    def _new_tensor(self) -> Any:
        return (_WORD * 1)(ctypes.addressof(self._interface))

    def handle(self) -> int:
        """The address of the latest tensor."""
        return ctypes.addressof(self._tensors[-1])

    def move(self) -> bool:
        """Makes another tensor of it, if the memory is said to be the buffer's own."""
        is_owned = ctypes.string_at(ctypes.addressof(self._buffer) + 48, 1) == b"\1"
        if is_owned:
            self._tensors.append(self._new_tensor())
        return is_owned

    def release(self) -> None:
        """Calls the deallocator."""
        free, *arguments = self._free
        free(*arguments)


@dataclass
class Block:
    """A tensor's buffer; `references` counts the handles and outputs that share it."""

    dtype: int
    shape: tuple[int, ...]
    address: int
    references: int = 0
    given: GivenMemory | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return _count(self.shape) * ITEM_BYTES[self.dtype]


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


@dataclass
class Call:
    """One call of a kernel: what it is given, and what it did.

    Args:
      inputs: (dtype, shape, content) of each input.
      outputs: (dtype, rank) of each output.
      fail_at: the number of the allocation (from 1) that fails for want of memory, or 0.
    """

    buffers: Buffers
    inputs: list[tuple[int, tuple[int, ...], bytes]]
    outputs: list[tuple[int, int]]
    fail_at: int = 0
    given_variables: dict[int, tuple[int, tuple[int, ...], bytes]] = field(default_factory=dict)
    code: int = OK
    message: str = ""
    allocations: int = 0
    misuses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.handles: dict[int, Block] = {}
        self.statuses: dict[int, tuple[int, str]] = {}
        self.results: list[Block | None] = [None] * len(self.outputs)
        self.blocks = [self._input(*given) for given in self.inputs]
        self.variables = Variables(self.buffers, self.given_variables)
        self._next = 0

    def _input(self, dtype: int, shape: tuple[int, ...], content: bytes) -> Block:
        block = Block(dtype, shape, self.buffers.allocate(len(content)), references=1)
        # The bytes of a string may lie behind it.
        assert block.size == len(content) or (dtype == _STRING and block.size < len(content))
        ctypes.memmove(block.address, content, len(content))
        self.buffers.freeze(block.address)
        return block

    def handle(self) -> int:
        """A new handle: an address at which there never is anything."""
        self._next += 16
        return self._next

    def new_tensor(self, block: Block) -> int:
        """A new handle of a block."""
        block.references += 1
        handle = self.handle()
        self.handles[handle] = block
        return handle

    def drop(self, block: Block) -> None:
        """Counts a reference less; the last one releases the buffer."""
        block.references -= 1
        if block.references == 0:
            if block.given is None:
                self.buffers.release(block.address)
            else:
                block.given.release()

    def finish(self) -> list[tuple[tuple[int, ...], bytes]]:
        """Shape and content of the outputs, none if the call failed; releases everything."""
        if self.handles:
            self.misuses.append(f"{len(self.handles)} tensors were not deleted")
        if self.statuses:
            self.misuses.append(f"{len(self.statuses)} statuses were not deleted")
        self.misuses += self.variables.finish()
        contents = []
        for k, block in enumerate(self.results):
            if block is None:
                if self.code == OK:
                    self.misuses.append(f"output {k} was not set")
            elif self.code == OK:
                contents.append((block.shape, self.buffers.read(block.address, block.size)))
        for held in (*self.handles.values(), *self.results, *self.blocks):
            if held is not None:
                self.drop(held)
        return contents


class CApi:
    """The functions, as symbols for LLVM, and those for variables; they act on `call`."""

    def __init__(self) -> None:
        self.call: Call
        self.access = Access(lambda: self.call.variables, self._noting)
        self._callbacks = []
        for name, (result, *args) in PROTOTYPES.items():
            callback = ctypes.CFUNCTYPE(result, *args)(self._noting(getattr(self, name), result))
            self._callbacks.append(callback)
            llvm.add_symbol(name, ctypes.cast(callback, ctypes.c_void_p).value)

    def _noting(self, function: Callable[..., Any], result: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:
                self.call.misuses.append(f"{function.__name__}: {error!r}")
                return None if result is None else 0

        return call

    def _block(self, tensor: int) -> Block:
        try:
            return self.call.handles[tensor]
        except KeyError:
            raise Misuse("no such tensor, or it was deleted") from None

    def _set(self, status: int, code: int = OK, message: str = "") -> None:
        if status not in self.call.statuses:
            raise Misuse("no such status, or it was deleted")
        self.call.statuses[status] = (code, message)

    def _allocate(self, dtype: int, shape: tuple[int, ...], status: int) -> Block | None:
        """A block, or None, with the status set to an error, if there is no memory for it."""
        if min(shape, default=0) < 0:
            raise Misuse(f"a tensor of shape {shape}")
        self.call.allocations += 1
        if self.call.allocations == self.call.fail_at:
            self._set(status, RESOURCE_EXHAUSTED, "no memory")
            return None
        self._set(status)
        size = _count(shape) * ITEM_BYTES[dtype]
        return Block(dtype, shape, self.call.buffers.allocate(size))

    def _put(self, index: int, block: Block) -> None:
        dtype, rank = self.call.outputs[index]
        if (block.dtype, len(block.shape)) != (dtype, rank):
            raise Misuse(f"output {index} has dtype {block.dtype} and shape {block.shape}")
        if self.call.results[index] is not None:
            raise Misuse(f"output {index} is set twice")
        block.references += 1
        self.call.results[index] = block

    def TF_NumInputs(self, context: int) -> int:
        return len(self.call.blocks)

    def TF_NumOutputs(self, context: int) -> int:
        return len(self.call.outputs)

    def TF_ExpectedOutputDataType(self, context: int, index: int) -> int:
        return self.call.outputs[index][0]

    def TF_GetInput(self, context: int, index: int, place: int, status: int) -> None:
        self._set(status)
        handle = self.call.new_tensor(self.call.blocks[index])
        ctypes.c_int64.from_address(place).value = handle

    def TF_NumDims(self, tensor: int) -> int:
        return len(self._block(tensor).shape)

    def TF_Dim(self, tensor: int, axis: int) -> int:
        return self._block(tensor).shape[axis]

    def TF_TensorData(self, tensor: int) -> int:
        return self._block(tensor).address

    def TF_DeleteTensor(self, tensor: int) -> None:
        self.call.drop(self._block(tensor))
        del self.call.handles[tensor]

    def TF_NewStatus(self) -> int:
        # Of one word, which is an absl::Status.
        handle = self.call.buffers.allocate(8)
        ctypes.c_int64.from_address(handle).value = 0
        self.call.statuses[handle] = (OK, "")
        return handle

    def TF_DeleteStatus(self, status: int) -> None:
        del self.call.statuses[status]
        self.call.buffers.release(status)

    def TF_GetCode(self, status: int) -> int:
        return self.call.statuses[status][0]

    def TF_SetStatus(self, status: int, code: int, message: bytes) -> None:
        self._set(status, code, message.decode())

    def TF_OpKernelContext_Failure(self, context: int, status: int) -> None:
        code, message = self.call.statuses[status]
        if code == OK:
            raise Misuse("the status says that there is no error")
        self.call.code, self.call.message = code, message

    def TF_AllocateOutput(
        self, context: int, index: int, dtype: int, dims: int, rank: int, size: int, status: int
    ) -> int:
        shape = tuple((ctypes.c_int64 * rank).from_address(dims))
        if size != _count(shape) * ITEM_BYTES[dtype]:
            raise Misuse(f"output {index} of shape {shape} is said to have {size} bytes")
        block = self._allocate(dtype, shape, status)
        if block is None:
            return 0
        self._put(index, block)
        return self.call.new_tensor(block)

    def TF_AllocateTemp(
        self, context: int, dtype: int, dims: int, rank: int, attributes: int, status: int
    ) -> int:
        shape = tuple((ctypes.c_int64 * rank).from_address(dims))
        block = self._allocate(dtype, shape, status)
        return 0 if block is None else self.call.new_tensor(block)

    def TF_SetOutput(self, context: int, index: int, tensor: int, status: int) -> None:
        self._set(status)
        self._put(index, self._block(tensor))

    def TF_NewTensor(
        self, dtype: int, dims: int, rank: int, data: int, size: int, free: int, argument: int
    ) -> int:
        shape = tuple((ctypes.c_int64 * rank).from_address(dims))
        if size != _count(shape) * ITEM_BYTES[dtype]:
            raise Misuse(f"a tensor of shape {shape} is said to have {size} bytes")
        self.call.allocations += 1
        if self.call.allocations == self.call.fail_at:
            return 0
        given = GivenMemory(data, size, free, argument)
        self.call.handles[given.handle()] = Block(dtype, shape, data, references=1, given=given)
        return given.handle()

    def TF_TensorMaybeMove(self, tensor: int) -> int:
        block = self._block(tensor)
        if block.given is None or not block.given.move():
            return 0
        del self.call.handles[tensor]
        self.call.handles[block.given.handle()] = block
        return block.given.handle()
