"""The threads of a block in Numba's CUDA simulator, of which one runs at a time.

Numba's own starts a thread of the host for each and asks all of them, again and again, whether they
have met. Here the one that has to wait gives the turn to another one, in random order. So a launch
takes a tenth of the time, and one whose threads wait for others that do not come is an error.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.cuda.simulator import kernel, kernelapi

from fusion.gpu_ops.layout.call import WARP

#: How often a thread that could go on makes way at an atomic operation.
_MAKES_WAY = 0.125

_random = random.Random(0)


class _BlockFailed(BaseException):
    """Raised in the other threads of a block in which one has failed."""


class _Meeting(NamedTuple):
    """Threads that wait for each other, and what they show each other, by their lanes."""

    workers: list[_Worker]
    shown: dict[int, Any]


class _Worker(threading.Thread):
    """Runs threads of a block one after the other; within one it may wait for others.

    The attributes that begin without `_`, and `syncthreads`, are what the simulator's `cuda` asks
    the current thread for.
    """

    def __init__(self, block: Block) -> None:
        super().__init__(daemon=True)
        self._block = block
        self._turn = threading.Lock()
        self._turn.acquire()
        self.blockIdx = block.place
        self.threadIdx = kernelapi.Dim3(0, 0, 0)
        self.thread_id = 0

    def run(self) -> None:
        block = self._block
        while block.pending:
            self.thread_id, self.threadIdx = block.pending.pop()
            try:
                block.body()
            except _BlockFailed:
                pass
            except Exception as error:
                block.fail(error, f"tid={[*self.threadIdx]} ctaid={[*self.blockIdx]}")
            block.unfinished -= 1
        block.hand_on()

    def go_on(self) -> None:
        """Lets it have the turn."""
        self._turn.release()

    def wait(self) -> None:
        """Gives the turn to another one until it comes back."""
        self._block.hand_on()
        self._turn.acquire()
        if self._block.failed is not None:
            raise _BlockFailed

    def syncthreads(self) -> None:
        """Waits for all threads of the block that have not ended."""
        self._block.met.append(self)
        self.wait()

    def shown_in_warp(self, value: Any) -> dict[int, Any]:
        """What each thread of the warp shows, by lanes."""
        warp, lane = divmod(self.thread_id, WARP)
        meeting = self._block.warps[warp]
        meeting.workers.append(self)
        meeting.shown[lane] = value
        if len(meeting.workers) == WARP:
            self._block.ready += self._block.warps.pop(warp).workers
        self.wait()
        return meeting.shown

    def may_make_way(self) -> None:
        """Lets others go first at times, so that atomic operations come in any order."""
        if _random.random() < _MAKES_WAY:
            self._block.ready.append(self)
            self.wait()


class Block:
    """Stands in for the simulator's `BlockManager`.

    Attributes:
        place: of the block in its grid.
        body: what each thread runs.
        pending: numbers and places of the threads that have not begun.
        unfinished: how many threads have not ended.
        ready: those that can go on.
        met: those that wait at a `syncthreads`.
        warps: those that wait for their warp, by its number.
        failed: the first error.
    """

    def __init__(
        self, f: Callable[..., None], grid_dim: object, block_dim: Sequence[int], debug: bool
    ) -> None:
        self._f = f
        width, height, _ = block_dim
        self.pending = [
            (x + width * (y + height * z), kernelapi.Dim3(x, y, z))
            for x, y, z in np.ndindex(*block_dim)
        ]
        _random.shuffle(self.pending)
        self.unfinished = len(self.pending)
        self.ready: list[_Worker] = []
        self.met: list[_Worker] = []
        self.warps: defaultdict[int, _Meeting] = defaultdict(lambda: _Meeting([], {}))
        self.failed: Exception | None = None
        self._over = threading.Lock()
        self._over.acquire()

    def run(self, grid_point: Sequence[int], *args: Any) -> None:
        """Runs the threads of the block at a place of the grid; raises what one of them raises."""
        self.place = kernelapi.Dim3(*grid_point)
        self.body = lambda: self._f(*args)
        self.hand_on()
        self._over.acquire()
        if self.failed is not None:
            raise self.failed

    def hand_on(self) -> None:
        """Gives the turn to a thread that can go on or begin; after the last one, to `run`."""
        if not self.pending and not self.ready and self.unfinished:
            if len(self.met) == self.unfinished:
                self.ready, self.met = self.met, []
            else:
                self.fail(RuntimeError("threads wait for others that do not come"), "")
        if self.pending and (not self.ready or _random.random() < 0.5):
            _Worker(self).start()
        elif self.ready:
            self.ready.pop(_random.randrange(len(self.ready))).go_on()
        else:
            self._over.release()

    def fail(self, error: Exception, where: str) -> None:
        """Makes all threads leave, and `run` raise the first error."""
        if self.failed is None:
            self.failed = type(error)(f"{where}: {error}" if where else str(error))
            self.failed.__cause__ = error
        self.unfinished -= len(self.pending)
        self.pending.clear()
        self.ready += self.met
        for meeting in self.warps.values():
            self.ready += meeting.workers
        self.met = []
        self.warps.clear()


def _shared_array(self: Any, shape: int, dtype: Any) -> Any:
    """As Numba's own, which reads the source of all callers to know one array from another."""
    frame = sys._getframe(1)
    call_site = frame.f_code.co_filename, frame.f_lineno
    if call_site not in self._allocations:
        self._allocations[call_site] = np.empty(shape, dtype)
    return self._allocations[call_site]


def current() -> Any:
    """The worker that runs this."""
    return threading.current_thread()


def install() -> None:
    """Makes the simulator use them."""
    kernel.BlockManager = Block
    kernelapi.FakeCUDAShared.array = _shared_array
