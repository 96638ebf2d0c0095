"""The names by which ops find table stores: one list in a process, in memory that kernels read."""

from __future__ import annotations

import ctypes
import threading

from fusion.ops.stores.cpu_kernels.layout import MAX_STORES, StoreNames, StoreSlot
from fusion.runtime.process import keep_forever, single
from fusion.runtime.records import LiveMemory


class Names:
    """What ops find under which name. A name keeps its slot for the life of the process."""

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * StoreNames.SIZE)()
        self._memory, self._slots = LiveMemory(), dict[str, int]()
        self._lock = threading.Lock()
        keep_forever(self)

    @property
    def address(self) -> int:
        """The address of `StoreNames`."""
        return ctypes.addressof(self.words)

    def set(self, name: str, record: int) -> None:
        """Lets ops find the record of a store, or none if it is 0, under a name.

        Raises:
          ValueError: there are too many names.
        """
        with self._lock:
            slot = self._slots.get(name)
            if slot is None and not record:
                return
            if slot is None:
                slot = self._new_slot(name)
            self.words[slot + StoreSlot.record] = record

    def get(self, name: str) -> int:
        """The record under a name, 0 for none."""
        with self._lock:
            slot = self._slots.get(name)
            return 0 if slot is None else self.words[slot + StoreSlot.record]

    def clear(self, record: int) -> None:
        """Lets no name lead to a record any more."""
        with self._lock:
            for slot in self._slots.values():
                if self.words[slot + StoreSlot.record] == record:
                    self.words[slot + StoreSlot.record] = 0

    def renew_lock(self) -> None:
        """Resets the state in the child of a fork."""
        self._lock = threading.Lock()

    def _new_slot(self, name: str) -> int:
        count = self.words[StoreNames.count]
        if count == MAX_STORES:
            raise ValueError(f"a process has at most {MAX_STORES} names of table stores")
        slot, text = StoreNames.slots + StoreSlot.SIZE * count, name.encode()
        self.words[slot + StoreSlot.name] = self._memory.bytes(text)
        self.words[slot + StoreSlot.name_length] = len(text)
        self.words[StoreNames.count] = count + 1  # last: threads may be looking
        self._slots[name] = slot
        return slot


def names() -> Names:
    """The names of this process."""
    return single("table stores", Names)
