"""granian, embedded: the HTTP server on our own loop and on a socket of our own.

The socket is bound here and handed over, because granian binds with SO_REUSEPORT, which lets two gateways share a port
without an error (B23), and because port 0 has to be asked of the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from typing import Any

from granian._granian import SocketHolder
from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from blazar.base.errors import CommandError, PortInUseError

BACKLOG = 4096
Holder: Any = SocketHolder  # its stub leaves out the constructor: (descriptor, whether it is a unix socket, backlog)
SPARE_CONNECTIONS = 1024  # beyond the streams: clients that keep a connection open without a request
CLIENT_BUFFER_BYTES = 65536  # what the server reads ahead and writes behind for one HTTP/1.1 connection
SELF_CHECK_S = 10.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket that nobody else can share.

    Raises:
        PortInUseError: somebody has it (B23).
        CommandError: the address cannot be bound.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host}: {error.strerror}", "set host to an address of this machine"
        ) from None
    family, _, _, _, address = found[0]
    try:
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
        # Accepted sockets inherit it; the server does not set it on a listener that it has not made, and without it a
        # frame waits for the client's delayed acknowledgement: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host} is in use",
                f"stop what uses it, or choose another: blazar serve --port {port + 1}",
            ) from None
        raise CommandError(
            f"cannot listen on {host} port {port}: {error.strerror}", "choose another host or port"
        ) from None


class EdgeServer(Server):
    """granian's embedded server on a socket that is bound already.

    Args:
        app: the ASGI application.
        listener: a listening socket; it has to stay open.
        max_streams: requests that may be under way at once.
    """

    def __init__(self, app: Any, listener: socket.socket, max_streams: int) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__(
            app,
            address=host,
            port=port,
            interface=Interfaces.ASGINL,
            backlog=BACKLOG,
            backpressure=max_streams + SPARE_CONNECTIONS,
            websockets=False,
            http1_settings=HTTP1Settings(max_buffer_size=CLIENT_BUFFER_BYTES),
            log_enabled=True,
        )
        self._listener = listener
        log = logging.getLogger("_granian")  # its own handlers write to stdout, which belongs to the first line
        log.handlers.clear()
        log.propagate = True
        log.setLevel(logging.ERROR)

    def _init_shared_socket(self) -> None:
        self._ssp: Any = None
        self._sfd: Any = os.dup(self._listener.fileno())  # the server closes what it is given
        self._shd: Any = Holder(self._sfd, False, BACKLOG)


async def wait_until_answering(listener: socket.socket) -> None:
    """Return once the server answers a health check on its socket.

    Raises:
        CommandError: it does not within SELF_CHECK_S.
    """
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(SELF_CHECK_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            status = await reader.readline()
            writer.close()
            if status.startswith(b"HTTP/1.1 200"):
                return
    raise CommandError(f"the server does not answer on {host} port {port}", "look at the messages above")
