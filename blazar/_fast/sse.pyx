"""Looks at a stream of server-sent events as it passes, and remembers just enough of it.

Nothing is rebuilt: the relay hands on what it got. What is known afterwards: whether the stream stands between two
events (a ping or an error may only go there), how many data events it had, whether the last one was `[DONE]`, and the
last TAIL_BYTES of it, from which usage is read. The result does not depend on how the stream was cut.

A line ends with LF, CRLF or CR; an empty line ends an event (WHATWG HTML, 9.2.6).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy, memmove

import re

TAIL_BYTES = 16384  # of the stream's end that is looked at afterwards; usage and timings are a few hundred bytes

# Atomic: a CR LF is one line end and never two.
EVENT_END = re.compile(rb"(?>\r\n|\r|\n){2,}")

cdef Py_ssize_t c_tail = TAIL_BYTES + 4  # kept: with the two line ends before, an event that starts there is known to

cdef struct Scan:
    Py_ssize_t column  # bytes of the line so far
    bint after_cr  # the last byte was a CR: a LF now belongs to it
    bint data_line  # the line so far is a prefix of `data:`, or starts with it
    bint has_data  # the event so far has a data line
    bint in_event  # the event so far has any line
    long long frames


cdef void scan(Scan *s, const char *p, Py_ssize_t n) noexcept nogil:
    """Advance over n bytes. Within a long line only its end is looked for."""
    cdef const char *end = p + n
    cdef const char *lf
    cdef const char *cr
    cdef char c
    while p < end:
        if s.column >= 5:  # the line's kind is known
            lf = <const char *>memchr(p, c'\n', end - p)
            cr = <const char *>memchr(p, c'\r', (lf if lf != NULL else end) - p)
            if cr != NULL:
                lf = cr
            if lf == NULL:
                s.column += end - p
                return
            s.column += lf - p
            p = lf
        c = p[0]
        p += 1
        if c == c'\n' and s.after_cr:
            s.after_cr = False
        elif c == c'\n' or c == c'\r':
            s.after_cr = c == c'\r'
            end_line(s)
        else:
            s.after_cr = False
            s.data_line = s.data_line and c == b"data:"[s.column]
            s.column += 1


cdef void end_line(Scan *s) noexcept nogil:
    if s.column == 0:
        if s.has_data:
            s.frames += 1
        s.has_data = s.in_event = False
    else:
        s.in_event = True
        if s.data_line and s.column >= 5:
            s.has_data = True
    s.column = 0
    s.data_line = True


cdef list payload(bytes event):
    """The payload of an event, as a list of one, or of none where it has no data line."""
    if event.startswith(b"data:") and b"\n" not in event and b"\r" not in event:
        return [event[5:].removeprefix(b" ")]
    cdef list lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    lines = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return [b"\n".join(lines)] if lines else []


cdef list event_ends(bytes text):
    """(where it ends, where the next one starts) for each event. Nearly every engine sends bare LFs: no regex then."""
    cdef list found = []
    cdef Py_ssize_t end, after = 0
    if b"\r" in text:
        return [match.span() for match in EVENT_END.finditer(text)]
    while (end := text.find(b"\n\n", after)) >= 0:
        after = end + 2
        while text.startswith(b"\n", after):
            after += 1
        found.append((end, after))
    return found


@cython.final
cdef class SseTail:
    """What is remembered of one stream.

    Attributes:
        frames: data events that were complete.
        seen: bytes fed.
    """
    cdef Scan s
    cdef char *_tail
    cdef Py_ssize_t _size
    cdef Py_ssize_t _room
    cdef readonly long long seen

    def __cinit__(self):
        self.s.data_line = True

    def __dealloc__(self):
        free(self._tail)

    def feed(self, bytes data not None):
        """Look at the next bytes of the stream."""
        cdef const char *p = PyBytes_AS_STRING(data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        self.seen += n
        scan(&self.s, p, n)
        self._keep(p, n)

    @property
    def frames(self):
        return self.s.frames

    @property
    def at_boundary(self):
        """Whether the stream stands between two events."""
        return self.s.column == 0 and not self.s.in_event

    @property
    def done(self):
        """Whether the last line is the data line `[DONE]`; some engines leave out the empty line after it."""
        cdef bytes kept = self._kept().rstrip(b"\r\n")
        cdef bytes line = kept[max(kept.rfind(b"\n"), kept.rfind(b"\r")) + 1:]
        return line.startswith(b"data:") and line[5:].strip(b" ") == b"[DONE]"

    def tail_frames(self):
        """The payloads of the data events that stand wholly in the last TAIL_BYTES, oldest first.

        The lines of an event with several data lines are joined with LF.
        """
        cdef bytes kept = self._kept()
        cdef Py_ssize_t first = len(kept) - TAIL_BYTES  # an event may start here at the earliest
        cdef Py_ssize_t start = 0 if self.seen == len(kept) else -1  # of the event so far; -1: unknown
        cdef list found = []
        for end, after in event_ends(kept):
            if start >= 0 and start >= first:
                found.extend(payload(kept[start:end]))
            start = after
        return found

    cdef bytes _kept(self):
        return PyBytes_FromStringAndSize(self._tail, self._size)

    cdef int _keep(self, const char *p, Py_ssize_t n) except -1:
        """Append to the tail; room grows as the stream does, to twice TAIL_BYTES, so that moving is rare."""
        cdef Py_ssize_t room, kept
        cdef char *grown
        if n >= c_tail:
            p += n - c_tail
            n = c_tail
            self._size = 0
        if self._size + n > self._room:
            if self._room < 2 * c_tail:
                room = max(2 * self._room, self._size + n, 256)
                room = min(room, 2 * c_tail)
                grown = <char *>realloc(self._tail, room)
                if grown == NULL:
                    raise MemoryError
                self._tail = grown
                self._room = room
            if self._size + n > self._room:
                kept = c_tail - n
                memmove(self._tail, self._tail + self._size - kept, kept)
                self._size = kept
        memcpy(self._tail + self._size, p, n)
        self._size += n
        return 0
