"""TLS in front of a server that has none.

Packages of servers are built without OpenSSL, and a client cannot see the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator

import trustme


@contextlib.contextmanager
def tls_proxy(port: int, authority: trustme.CA) -> Iterator[str]:
    """Runs a proxy on the loopback interface until the block ends.

    Args:
      port: of the server that the proxy talks to, without encryption.
      authority: what the proxy's certificate is signed by, and those of its clients must be.

    Yields:
      The address of the proxy, "127.0.0.1:port".
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    loop = asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, to_server[1]), _copy(to_server[0], writer))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        connections = asyncio.all_tasks(loop)
        for connection in connections:
            connection.cancel()
        loop.run_until_complete(asyncio.gather(*connections, return_exceptions=True))
        loop.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copies bytes until one side closes its connection."""
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()
