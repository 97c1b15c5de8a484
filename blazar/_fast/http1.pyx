"""The client side of HTTP/1.1, as much of it as engines speak: a sans-IO response parser.

`ResponseParser` owns the framing of one response after another on one connection: status line, headers, 1xx,
Content-Length, chunked, close-delimited. It never waits, writes or looks into a body; `connection.pyx` feeds it.

Framing follows RFC 9112. Where engines are known to be loose (a bare LF at the end of a header line, blanks after a
chunk size) the parser is too; where looseness could make two readers disagree on a length (two lengths, an overflowing
chunk size) it refuses.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.string cimport memchr, memcpy


MAX_HEAD_BYTES = 65536  # status line and headers of one response, 1xx included
MAX_HEADERS = 256

cdef Py_ssize_t c_max_head = MAX_HEAD_BYTES
cdef int64_t MAX_CHUNK = 1 << 40  # a chunk size above a tebibyte is garbage, not data
cdef int64_t MAX_LINE = 8192  # a chunk-size line with its extensions, or all trailers together


class ProtocolError(Exception):
    """The engine sent something that is not HTTP/1.1, or closed in the middle of a response."""


cdef int hex_digit(char c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    if c'a' <= c <= c'f':
        return c - c'a' + 10
    if c'A' <= c <= c'F':
        return c - c'A' + 10
    return -1


cdef Py_ssize_t decode(Framing *f, const char *src, Py_ssize_t n, char *dst, Py_ssize_t *used) noexcept nogil:
    """Copy the body bytes of src to dst, which has room for n; return how many, and in used how much of src was
    read.
    """
    cdef Py_ssize_t i = 0, out = 0, take
    cdef int digit
    cdef char c
    while i < n and f.state != State.COMPLETE and f.state != State.BROKEN:
        if f.state == State.DATA or f.state == State.LENGTH or f.state == State.UNTIL_CLOSE:
            take = n - i
            if f.state != State.UNTIL_CLOSE:
                if take > f.remaining:
                    take = <Py_ssize_t>f.remaining
                f.remaining -= take
            memcpy(dst + out, src + i, take)
            out += take
            i += take
            if f.state != State.UNTIL_CLOSE and f.remaining == 0:
                f.state = State.DATA_END if f.state == State.DATA else State.COMPLETE
                f.line = 0
            continue
        c = src[i]
        i += 1
        f.line += 1
        if f.line > MAX_LINE:
            f.state = State.BROKEN
        elif f.state == State.SIZE:
            digit = hex_digit(c)
            if digit >= 0:
                f.remaining = f.remaining * 16 + digit
                f.digits = True
                if f.remaining > MAX_CHUNK:
                    f.state = State.BROKEN
            elif not f.digits:
                f.state = State.BROKEN
            elif c == c'\n':
                end_of_size(f)
            elif c == c'\r' or c == c';' or c == c' ' or c == c'\t':
                f.state = State.EXTENSION
            else:
                f.state = State.BROKEN
        elif f.state == State.EXTENSION:
            if c == c'\n':
                end_of_size(f)
        elif f.state == State.DATA_END:
            if c == c'\n':
                f.state = State.SIZE
                f.remaining = f.line = 0
                f.digits = False
            elif c != c'\r' or f.line > 1:
                f.state = State.BROKEN
        elif f.state == State.TRAILER:
            if c == c'\n':
                if f.blank:
                    f.state = State.COMPLETE
                f.blank = True
            elif c != c'\r':
                f.blank = False
    used[0] = i
    return out


cdef void end_of_size(Framing *f) noexcept nogil:
    f.line = 0
    if f.remaining > 0:
        f.state = State.DATA
    else:
        f.state = State.TRAILER
        f.blank = True


@cython.final
cdef class ResponseParser:
    """Parses the responses on one connection, one after another.

    Attributes:
        status: the final status; 0 until the head is complete.
        headers: (name, value) as bytes, names in lower case, in the order in which they came.
        keep_alive: whether the connection may carry another request after this response.
        complete: whether the whole response has been fed.
    """

    def __init__(self):
        self.begin()

    cpdef void begin(self, bint head_request=False) noexcept:
        """Make ready for the next response; head_request: the answer to a HEAD, which has no body."""
        self.f.state = State.HEAD
        self.f.remaining = self.f.line = 0
        self.f.digits = self.f.blank = False
        self._head = bytearray()
        self._bodiless = head_request
        self.status = 0
        self.headers = []
        self.keep_alive = False

    @property
    def complete(self):
        return self.f.state == State.COMPLETE

    def feed(self, bytes data not None):
        """Take what the socket gave; return the bytes of the body in it, or b"".

        Raises:
            ProtocolError: this is not HTTP/1.1, or there are bytes after the end of the response.
        """
        return self.take(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def feed_eof(self):
        """The engine has closed the connection.

        Raises:
            ProtocolError: in the middle of a response.
        """
        if self.f.state == State.UNTIL_CLOSE:
            self.f.state = State.COMPLETE
        if self.f.state != State.COMPLETE:
            raise ProtocolError("the engine closed the connection in the middle of a response")

    cdef bytes take(self, const char *data, Py_ssize_t n):
        cdef Py_ssize_t used = 0, start = 0, size
        cdef bytes body
        cdef char *room
        if self.f.state == State.HEAD:
            start = self._take_head(data, n)
            if self.f.state == State.HEAD:
                return b""
        if start == n:
            return b""
        if self.f.state == State.COMPLETE:
            raise ProtocolError("the engine sent more than its response")
        body = PyBytes_FromStringAndSize(NULL, n - start)
        room = PyBytes_AS_STRING(body)
        size = decode(&self.f, data + start, n - start, room, &used)
        if self.f.state == State.BROKEN:
            raise ProtocolError("the engine sent broken chunked framing")
        if start + used < n:
            self.keep_alive = False
            raise ProtocolError("the engine sent more than its response")
        return body if size == n - start else PyBytes_FromStringAndSize(room, size)

    cdef Py_ssize_t _take_head(self, const char *data, Py_ssize_t n) except -1:
        """Add to the head; once it is whole, parse it. Return where the body starts in data, or n."""
        cdef Py_ssize_t before = len(self._head), end
        self._head += data[:n]
        while True:
            end = end_of_head(self._head, max(0, before - 3))
            if end < 0:
                if len(self._head) > c_max_head:
                    raise ProtocolError(f"the engine's response head is larger than {MAX_HEAD_BYTES} bytes")
                return n
            if end > c_max_head:
                raise ProtocolError(f"the engine's response head is larger than {MAX_HEAD_BYTES} bytes")
            self._parse_head(bytes(self._head[:end]))
            if self.status >= 200:
                self._head = None
                return end - before
            del self._head[:end]  # a 1xx: the final response follows
            before -= end
            self.status = 0
            self.headers = []

    cdef int _parse_head(self, bytes head) except -1:
        cdef list lines = head.split(b"\n")
        cdef bytes line, name, value, first = (<bytes>lines[0]).rstrip(b"\r")
        cdef bint chunked = False, http11
        cdef object length = None
        if not first.startswith(b"HTTP/1.") or not first[9:12].isdigit() or first[12:13] not in (b"", b" "):
            raise ProtocolError(f"the engine does not speak HTTP/1.1: {first[:80]!r}")
        http11 = first[7:9] == b"1 "
        self.status = int(first[9:12])
        if self.status == 101 or self.status < 100:
            raise ProtocolError(f"the engine answered with status {self.status}, which nobody asked for")
        if len(lines) > MAX_HEADERS + 3:
            raise ProtocolError(f"the engine's response has more than {MAX_HEADERS} headers")
        self.keep_alive = http11
        for line in lines[1:]:
            line = line.rstrip(b"\r")
            if not line:
                continue
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                raise ProtocolError(f"the engine sent a broken header line: {line[:80]!r}")
            name = name.lower()
            value = value.strip(b" \t")
            self.headers.append((name, value))
            if name == b"content-length":
                if not value.isdigit() or len(value) > 18 or (length is not None and length != int(value)):
                    raise ProtocolError(f"the engine sent a broken Content-Length: {value[:80]!r}")
                length = int(value)
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise ProtocolError(f"the engine sent an unknown Transfer-Encoding: {value[:80]!r}")
                chunked = True
            elif name == b"connection":
                if b"close" in value.lower():
                    self.keep_alive = False
                elif b"keep-alive" in value.lower():
                    self.keep_alive = True
        if self.status >= 200:
            self._choose_framing(chunked, length)
        return 0

    cdef int _choose_framing(self, bint chunked, object length) except -1:
        """RFC 9112, 6.3: no body, chunked, a length, or until the connection closes, in this order."""
        if self._bodiless or self.status in (204, 304) or (not chunked and length == 0):
            self.f.state = State.COMPLETE
        elif chunked:
            self.f.state = State.SIZE
            if length is not None:
                self.keep_alive = False  # two framings: obey the safer one, then do not trust the connection
        elif length is not None:
            self.f.state = State.LENGTH
            self.f.remaining = length
        else:
            self.f.state = State.UNTIL_CLOSE
            self.keep_alive = False
        return 0


cdef Py_ssize_t end_of_head(bytearray head, Py_ssize_t seen) noexcept:
    """Where the empty line that ends the head ends, or -1; it is known not to start before seen."""
    cdef const char *start = PyByteArray_AS_STRING(head)
    cdef const char *p = start + seen
    cdef const char *stop = start + len(head)
    while True:
        p = <const char *>memchr(p, c'\n', stop - p)
        if p == NULL:
            return -1
        p += 1
        if p < stop and p[0] == c'\n':
            return p + 1 - start
        if p + 1 < stop and p[0] == c'\r' and p[1] == c'\n':
            return p + 2 - start
