"""What has Python bring what the state of a kernel lacks, in native code; see `creation`."""

from __future__ import annotations

from fusion.runtime.native.jit import int64
from fusion.runtime.native.pointers import as_record, as_words
from fusion.runtime.registration.creation import MAX_MISSING, Creation
from fusion.runtime.registration.refusal import RESOURCE_EXHAUSTED, refuse
from fusion.runtime.upcalls.native import free_request, new_request, upcall
from fusion.runtime.upcalls.service import RequestRecord

_OK, _DEADLINE_EXCEEDED = 0, 4


def ask_python(creation: Creation) -> None:
    """Asks Python for all that is lacking; refuses if it cannot bring it."""
    server = creation.record.server
    count = min(creation.missing_count, int64(MAX_MISSING))
    number = server.number
    request = as_record(RequestRecord, new_request(number, creation.missing, 8 * count))
    if request == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
        return
    patience = server.patience_ns
    if not upcall(server.upcalls, request, patience):
        refuse(creation, _DEADLINE_EXCEEDED, "%s", server.too_late)
        return
    code, text = request.code, request.result
    if text == 0:
        refuse(creation, RESOURCE_EXHAUSTED, "there is no memory for a kernel")
    elif code != _OK:
        refuse(creation, code, "%s", text)
    free_request(as_words(request))
