"""One connection to an engine: the asyncio protocol that feeds a ResponseParser and hands the body on as it arrives.

The connection carries one exchange at a time: `begin`, then the head, then the body. Body bytes go to the pump that is
attached; before one is attached, or while it is full, they are held, and above HOLD_BYTES the connection stops reading,
so that an engine which is faster than its client waits in its own `send`. Nothing here decides anything: retries,
time-outs and what an early end means are the caller's.

On uvloop it reads as a buffered protocol, through one buffer of READ_BYTES that all connections share: a read is parsed
before the next one starts, and what it held is copied out, so that a flood costs no allocation and no read is larger
than that.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from blazar._fast.http1 cimport ResponseParser, State

from blazar._fast.http1 import ProtocolError

READ_BYTES = 65536
HOLD_BYTES = 65536

cdef bytearray read_buffer = bytearray(READ_BYTES)
cdef Py_ssize_t c_hold = HOLD_BYTES


@cython.final
cdef class EngineConnection:
    """An asyncio protocol; create it with `loop.create_connection(lambda: EngineConnection(loop), …)`.

    Args:
        loop: the running loop; it makes the futures.

    Attributes:
        received: bytes of bodies that have arrived over the connection's life; a watcher compares two readings.
        open: whether the connection can still carry bytes.
        heard: whether a byte of the present exchange's answer has come.
    """
    cdef object _loop
    cdef object _transport
    cdef ResponseParser _parser
    cdef object _head_waiter
    cdef object _end_waiter
    cdef object _pump
    cdef object _error
    cdef list _held
    cdef Py_ssize_t _held_bytes
    cdef bint _busy
    cdef bint _paused
    cdef bint _head_told
    cdef readonly bint open
    cdef readonly long long received
    cdef readonly bint heard

    def __init__(self, loop):
        self._loop = loop
        self._parser = ResponseParser()
        self._held = []

    # ---- the exchange, from the caller's side ----

    def begin(self, *parts, bint head_request=False):
        """Write a request and return the future of its response head.

        Args:
            parts: the request's bytes in order; large ones are written as they are, never joined.
            head_request: the request's method is HEAD.

        Raises:
            RuntimeError: an exchange is under way.
            ConnectionError: the connection is closed.
        """
        if self._busy:
            raise RuntimeError("an exchange is under way on this connection")
        if not self.open:
            raise ConnectionResetError("the connection to the engine is closed")
        self._parser.begin(head_request)
        self._busy = True
        self._head_told = False
        self._error = None
        self.heard = False
        self._head_waiter = self._loop.create_future()
        for part in parts:
            self._transport.write(part)
        return self._head_waiter

    @property
    def status(self):
        return self._parser.status

    @property
    def headers(self):
        return self._parser.headers

    @property
    def complete(self):
        """Whether the whole response has arrived."""
        return self._busy and self._parser.f.state == State.COMPLETE

    def take_held(self):
        """What has arrived of the body and nobody has had yet, as one bytes object."""
        cdef list held = self._held
        if not held:
            return b""
        self._held = []
        self._held_bytes = 0
        return held[0] if len(held) == 1 else b"".join(held)

    def attach(self, pump):
        """From now on every part of the body goes to `pump.push(bytes)`, which answers whether it may have more at
        once; with None it is held, as before.

        Returns:
            A future that ends with the body: None when it is complete.

        Raises (from the future):
            ProtocolError: it was not HTTP, or the engine closed in the middle.
            ConnectionError: the connection broke.
        """
        self._pump = pump
        if pump is not None and self._held:
            if pump.push(self.take_held()):
                self.resume()
            else:
                self.pause()
        if self._end_waiter is None or self._end_waiter.cancelled():  # whoever waited may have been cancelled meanwhile
            self._end_waiter = self._loop.create_future()
            if self._error is not None:
                self._end_waiter.set_exception(self._error)
            elif self._parser.f.state == State.COMPLETE:
                self._end_waiter.set_result(None)
        return self._end_waiter

    def pause(self):
        """Stop reading until resume."""
        if not self._paused and self.open:
            self._paused = True
            self._transport.pause_reading()

    def resume(self):
        """Read on."""
        if self._paused and self.open:
            self._paused = False
            self._transport.resume_reading()

    def end(self):
        """The exchange is over. Returns whether the connection can carry another one; where it cannot, it is closed."""
        cdef bint clean = self.open and self.complete and self._parser.keep_alive
        self._busy = False
        self._pump = self._head_waiter = self._end_waiter = None
        self._held = []
        self._held_bytes = 0
        if clean:
            self.resume()
        else:
            self.abort()
        return clean

    def abort(self):
        """Close at once: the engine sees its client gone."""
        if self.open:
            self.open = False
            self._transport.abort()

    # ---- the protocol, from the loop's side ----

    def connection_made(self, transport):
        self._transport = transport
        self.open = True

    def get_buffer(self, hint):
        return read_buffer

    def buffer_updated(self, Py_ssize_t size):
        self._take(PyByteArray_AS_STRING(read_buffer), size)

    def data_received(self, bytes data):
        self._take(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def eof_received(self):
        return False

    def connection_lost(self, error):
        self.open = False
        if self._busy and self._parser.f.state != State.COMPLETE:
            try:
                self._parser.feed_eof()
            except ProtocolError as broken:
                self._fail(error or broken)
            else:
                self._finish()

    def pause_writing(self):
        """Nothing to do: a request is written once, and is as large as the body that was already accepted."""

    def resume_writing(self):
        """See pause_writing."""

    # ---- inside ----

    cdef int _take(self, const char *data, Py_ssize_t size) except -1:
        cdef bytes body
        if not self._busy:
            self.abort()  # an engine that talks out of turn cannot be trusted with a next request
            return 0
        self.heard = True
        try:
            body = self._parser.take(data, size)
        except ProtocolError as broken:
            self._fail(broken)
            self.abort()
            return 0
        if not self._head_told and self._parser.f.state != State.HEAD:
            self._head_told = True
            if not self._head_waiter.done():
                self._head_waiter.set_result(None)
        if body:
            self.received += PyBytes_GET_SIZE(body)
            self._deliver(body)
        if self._parser.f.state == State.COMPLETE:
            self._finish()
        return 0

    cdef int _deliver(self, bytes body) except -1:
        if self._pump is not None:
            if not self._pump.push(body):
                self.pause()
            return 0
        self._held.append(body)
        self._held_bytes += PyBytes_GET_SIZE(body)
        if self._held_bytes > c_hold:
            self.pause()
        return 0

    cdef int _finish(self) except -1:
        if self._head_waiter is not None and not self._head_waiter.done():
            self._head_waiter.set_result(None)
        if self._end_waiter is not None and not self._end_waiter.done():
            self._end_waiter.set_result(None)
        return 0

    cdef int _fail(self, object error) except -1:
        self._error = error
        if not self._head_told and not self._head_waiter.done():
            self._head_waiter.set_exception(error)
        elif self._end_waiter is not None and not self._end_waiter.done():
            self._end_waiter.set_exception(error)
        return 0
