from libc.stdint cimport int64_t


cdef enum State:
    HEAD = 0
    LENGTH
    UNTIL_CLOSE
    SIZE
    EXTENSION
    DATA
    DATA_END
    TRAILER
    COMPLETE
    BROKEN


cdef struct Framing:
    State state
    int64_t remaining  # bytes of the body, or of the chunk, that are still to come
    int64_t line  # bytes seen of the size line or of the trailers
    bint digits  # the size line has had a digit
    bint blank  # the trailer line has been empty so far


cdef class ResponseParser:
    cdef Framing f
    cdef bytearray _head
    cdef bint _bodiless
    cdef readonly int status
    cdef readonly list headers
    cdef readonly bint keep_alive

    cpdef void begin(self, bint head_request=*) noexcept
    cdef bytes take(self, const char *data, Py_ssize_t n)
    cdef Py_ssize_t _take_head(self, const char *data, Py_ssize_t n) except -1
    cdef int _parse_head(self, bytes head) except -1
    cdef int _choose_framing(self, bint chunked, object length) except -1
