"""What a library of ops does where the state of a kernel lacks something; see `creation`."""

from __future__ import annotations

from fusion.runtime.native.atomic import atomic_store
from fusion.runtime.native.jit import int64
from fusion.runtime.native.memory import load
from fusion.runtime.native.pointers import as_record
from fusion.runtime.registration.creation import (
    CONSTANTS,
    FIRST_ROW_KERNEL,
    POOL,
    Creation,
    KernelsRecord,
)
from fusion.runtime.registration.library.access import find_accesses
from fusion.runtime.registration.library.record import AccessEntry
from fusion.runtime.registration.refusal import UNIMPLEMENTED, refuse
from fusion.runtime.threads import native_start


def provide(creation: Creation) -> None:
    """Provides what can be: the threads, and the functions of TensorFlow that share variables.

    A kernel that the library was built without cannot be made.
    """
    record = creation.record
    for k in range(creation.missing_count):
        what = creation.missing[k]
        if what == POOL:
            native_start.start(record.pool, native_start.thread_count(int64(0)))
        elif what == CONSTANTS:
            entries, count = KernelsRecord.accesses, KernelsRecord.access_count
            find_accesses(as_record(AccessEntry, load(record, entries)), load(record, count))
            atomic_store(record, KernelsRecord.constants, record.pending)
        elif what >= FIRST_ROW_KERNEL:
            text = "the library of ops was built without row kernel %lld, which this node needs"
            refuse(creation, UNIMPLEMENTED, text, what - FIRST_ROW_KERNEL)
        else:
            text = "the library of ops was built without the kernel for the dtypes of this node"
            refuse(creation, UNIMPLEMENTED, text)
