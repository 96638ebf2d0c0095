"""The simulator's own rules: threads come in any order, and none waits for ever."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

from fusion.gpu_ops.language.device import atomic_add, from_lane
from fusion.gpu_ops.language.simulated import allow


def test_threads_come_in_any_order() -> None:
    came: list[int] = []

    @cuda.jit
    def kernel() -> None:
        came.append(cuda.threadIdx.x)

    orders = set()
    for _ in range(3):
        came.clear()
        kernel[1, 16]()
        assert sorted(came) == [*range(16)]
        orders.add(tuple(came))
    assert len(orders) == 3


def test_all_meet_before_any_goes_on() -> None:
    said: list[tuple[int, int]] = []

    @cuda.jit
    def kernel() -> None:
        shared = cuda.shared.array(40, np.int64)
        thread = cuda.threadIdx.x
        for step in range(3):
            said.append((step, thread))
            shared[thread] = thread + step
            cuda.syncthreads()
            assert shared[39 - thread] == 39 - thread + step
            cuda.syncthreads()

    kernel[2, 40]()
    of_a_block = [*np.repeat(range(3), 40)]
    assert [step for step, _ in said] == 2 * of_a_block


def test_a_warp_shows_itself_values_again_and_again() -> None:
    found = np.zeros([64, 4], np.int64)

    @cuda.jit
    def kernel() -> None:
        thread = cuda.threadIdx.x
        for turn in range(4):
            found[thread, turn] = from_lane(100 * turn + thread, (thread + turn) % 32)

    kernel[1, 64]()
    threads, turns = np.arange(64)[:, None], np.arange(4)
    assert (found == 100 * turns + threads // 32 * 32 + (threads + turns) % 32).all()


def test_ended_threads_are_not_waited_for() -> None:
    @cuda.jit
    def kernel() -> None:
        if cuda.threadIdx.x % 2 == 1:
            cuda.syncthreads()

    kernel[1, 32]()


@pytest.mark.parametrize("do_others_wait", [False, True])
def test_waiting_for_what_does_not_come_is_an_error(do_others_wait: bool) -> None:
    @cuda.jit
    def kernel() -> None:
        if cuda.threadIdx.x % 2 == 1:
            from_lane(1, 0)
        elif do_others_wait:
            cuda.syncthreads()

    with pytest.raises(RuntimeError, match="threads wait for others that do not come"):
        kernel[1, 32]()
    test_ended_threads_are_not_waited_for()  # nothing is left of it


def test_an_error_ends_the_others_and_says_where() -> None:
    @cuda.jit
    def kernel() -> None:
        if cuda.threadIdx.x == 5 and cuda.blockIdx.x == 1:
            raise IndexError("of a thread")
        cuda.syncthreads()

    with pytest.raises(IndexError, match=r"tid=\[5, 0, 0\] ctaid=\[1, 0, 0\]: of a thread"):
        kernel[3, 8]()


def test_atomic_operations_lose_nothing() -> None:
    total = np.zeros([1], np.int64)

    @cuda.jit
    def kernel(address: int) -> None:
        for _ in range(5):
            atomic_add(address, 0, 1, np.int64)

    with allow(total):
        kernel[2, 32](total.ctypes.data)
    assert total[0] == 320
