"""Finds where the values of a JSON object's top-level fields stand, without decoding any of them.

For bodies that are too large to decode on the loop: the scan needs no interpreter lock, and its result is a handful of
offsets. It checks the structure (brackets, strings, separators, RFC 8259), not the spelling of numbers and words in
nested values: a value that is used is decoded by whoever uses it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memchr

import json

MAX_DEPTH = 512  # nesting of values; deeper bodies are refused
MAX_FIELDS = 4096  # top-level fields
NOGIL_BYTES = 65536  # bodies from this size on are scanned without the interpreter's lock

cdef enum:
    DEPTH = 512
    FIELDS = 4096


cdef enum Fault:
    OK = 0
    NOT_OBJECT
    TRUNCATED
    UNEXPECTED
    TOO_DEEP
    TOO_MANY
    TRAILING

cdef list REASONS = [
    "", "it does not start with {", "it ends too early", "unexpected character", f"nested deeper than {MAX_DEPTH}",
    f"more than {MAX_FIELDS} fields", "something follows the object",
]


cdef struct Field:
    Py_ssize_t key_start  # first byte of the name, after the quote
    Py_ssize_t key_end  # the closing quote
    Py_ssize_t start
    Py_ssize_t end
    bint escaped


cdef struct Scanner:
    const unsigned char *p
    Py_ssize_t n
    Py_ssize_t at
    Fault fault


cdef inline void blanks(Scanner *s) noexcept nogil:
    cdef unsigned char c
    while s.at < s.n:
        c = s.p[s.at]
        if c != c' ' and c != c'\n' and c != c'\r' and c != c'\t':
            return
        s.at += 1


cdef bint fail(Scanner *s, Fault fault) noexcept nogil:
    s.fault = fault
    return False


cdef bint string(Scanner *s, bint *escaped) noexcept nogil:
    """s.at is after the opening quote; leaves it after the closing one."""
    cdef const unsigned char *quote = NULL
    cdef const unsigned char *slash
    escaped[0] = False
    while True:
        if quote == NULL or quote < s.p + s.at:  # none looked for yet, or the one found was escaped
            quote = <const unsigned char *>memchr(s.p + s.at, c'"', s.n - s.at)
            if quote == NULL:
                s.at = s.n
                return fail(s, Fault.TRUNCATED)
        slash = <const unsigned char *>memchr(s.p + s.at, c'\\', quote - s.p - s.at)
        if slash == NULL:
            s.at = quote - s.p + 1
            return True
        escaped[0] = True
        s.at = slash - s.p + 2  # past the byte that the backslash escapes, whatever it is


cdef bint scalar(Scanner *s) noexcept nogil:
    """A number or a word: everything up to a separator. At least one byte."""
    cdef Py_ssize_t start = s.at
    cdef unsigned char c
    while s.at < s.n:
        c = s.p[s.at]
        if c'0' <= c <= c'9' or c'a' <= c <= c'z' or c == c'-' or c == c'+' or c == c'.' or c == c'E':
            s.at += 1
        else:
            break
    return s.at > start or fail(s, Fault.UNEXPECTED)


cdef bint value(Scanner *s) noexcept nogil:
    """Pass over one value. Containers are kept on a stack of bits instead of in recursion."""
    cdef unsigned char[DEPTH] closers
    cdef Py_ssize_t depth = 0
    cdef bint ignored, want_value = True, want_key = False
    cdef unsigned char c
    while True:
        blanks(s)
        if s.at >= s.n:
            return fail(s, Fault.TRUNCATED)
        c = s.p[s.at]
        if want_key:
            if c != c'"':
                return fail(s, Fault.UNEXPECTED)
            s.at += 1
            if not string(s, &ignored):
                return False
            blanks(s)
            if s.at >= s.n:
                return fail(s, Fault.TRUNCATED)
            if s.p[s.at] != c':':
                return fail(s, Fault.UNEXPECTED)
            s.at += 1
            want_key = False
            continue
        if want_value:
            want_value = False
            if c == c'{' or c == c'[':
                if depth == DEPTH:
                    return fail(s, Fault.TOO_DEEP)
                closers[depth] = c'}' if c == c'{' else c']'
                depth += 1
                s.at += 1
                blanks(s)
                if s.at < s.n and s.p[s.at] == closers[depth - 1]:
                    continue  # empty: the closer is next
                want_value = True
                want_key = c == c'{'
                continue
            if c == c'"':
                s.at += 1
                if not string(s, &ignored):
                    return False
            elif not scalar(s):
                return False
        elif c == c',' and depth:
            s.at += 1
            want_value = True
            want_key = closers[depth - 1] == c'}'
            continue
        elif depth and c == closers[depth - 1]:
            s.at += 1
            depth -= 1
        else:
            return fail(s, Fault.UNEXPECTED)
        if depth == 0:
            return True


cdef Py_ssize_t fields(Scanner *s, Field *found) noexcept nogil:
    """Scan the whole body; returns how many fields there are, or -1 with the fault set."""
    cdef Py_ssize_t count = 0
    blanks(s)
    if s.at >= s.n or s.p[s.at] != c'{':
        fail(s, Fault.NOT_OBJECT)
        return -1
    s.at += 1
    blanks(s)
    if s.at < s.n and s.p[s.at] == c'}':
        s.at += 1
    else:
        while True:
            if count == FIELDS:
                fail(s, Fault.TOO_MANY)
                return -1
            if not field(s, &found[count]):
                return -1
            count += 1
            blanks(s)
            if s.at >= s.n:
                fail(s, Fault.TRUNCATED)
                return -1
            s.at += 1
            if s.p[s.at - 1] == c'}':
                break
            if s.p[s.at - 1] != c',':
                s.at -= 1
                fail(s, Fault.UNEXPECTED)
                return -1
    blanks(s)
    if s.at < s.n:
        fail(s, Fault.TRAILING)
        return -1
    return count


cdef bint field(Scanner *s, Field *f) noexcept nogil:
    blanks(s)
    if s.at >= s.n:
        return fail(s, Fault.TRUNCATED)
    if s.p[s.at] != c'"':
        return fail(s, Fault.UNEXPECTED)
    s.at += 1
    f.key_start = s.at
    if not string(s, &f.escaped):
        return False
    f.key_end = s.at - 1
    blanks(s)
    if s.at >= s.n:
        return fail(s, Fault.TRUNCATED)
    if s.p[s.at] != c':':
        return fail(s, Fault.UNEXPECTED)
    s.at += 1
    blanks(s)
    f.start = s.at
    if not value(s):
        return False
    f.end = s.at
    return True


def top_level_spans(body):
    """Where the values of the top-level fields stand.

    Args:
        body: a JSON object in UTF-8, any bytes-like object; it may not be changed meanwhile.

    Returns:
        (name, start, end) for each field in order, repeated names included; `body[start:end]` is the value as it
        stands.

    Raises:
        ValueError: it is not an object, or its structure is broken; the message says where.
    """
    cdef Py_buffer view
    cdef Scanner s
    cdef Field[FIELDS] found
    cdef Py_ssize_t count, i
    cdef list result = []
    cdef bytes name
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        s.p = <const unsigned char *>view.buf
        s.n = view.len
        s.at = 0
        s.fault = Fault.OK
        if s.n >= NOGIL_BYTES:
            with nogil:
                count = fields(&s, found)
        else:
            count = fields(&s, found)
        if count < 0:
            raise ValueError(f"{REASONS[<int>s.fault]} at byte {s.at}")
        for i in range(count):
            name = s.p[found[i].key_start:found[i].key_end]
            if found[i].escaped:
                key = json.loads(b'"' + name + b'"')
            else:
                key = name.decode("utf-8")
            result.append((key, found[i].start, found[i].end))
    finally:
        PyBuffer_Release(&view)
    return result
