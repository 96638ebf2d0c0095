"""What has Python bring what the state of a kernel lacks, in native code; see `creation`."""

from __future__ import annotations

from fusion.runtime.native.jit import int64
from fusion.runtime.native.memory import load
from fusion.runtime.registration.creation import (
    MOST_MISSING,
    Creation,
    KernelsRecord,
    ServerRecord,
)
from fusion.runtime.registration.refusal import RESOURCE_EXHAUSTED, refuse
from fusion.runtime.upcalls.native import free_request, new_request, upcall
from fusion.runtime.upcalls.service import RequestRecord

_OK, _DEADLINE_EXCEEDED = 0, 4


def ask_python(creation: int) -> None:
    """Asks Python for all that is lacking; refuses if it cannot bring it."""
    server = load(load(creation, Creation.record), KernelsRecord.server)
    count = min(load(creation, Creation.missing_count), int64(MOST_MISSING))
    number = load(server, ServerRecord.number)
    request = new_request(number, creation + 8 * Creation.missing, 8 * count)
    if request == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
        return
    patience = load(server, ServerRecord.patience_ns)
    if not upcall(load(server, ServerRecord.upcalls), request, patience):
        refuse(creation, _DEADLINE_EXCEEDED, "%s", load(server, ServerRecord.too_late))
        return
    code, text = load(request, RequestRecord.code), load(request, RequestRecord.result)
    if text == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
    elif code != _OK:
        refuse(creation, code, "%s", text)
    free_request(request)
