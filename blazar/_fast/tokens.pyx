"""An estimate of a prompt's tokens from its text as it stands in a request, without decoding it.

A token costs by the kind of character and of the one before: the first letter of a word nearly a token, a further one a
fraction of it. The costs were fitted by hand to what byte-pair vocabularies of different ages make of prose, code and
JSON, rather a little over than under; docs/tokens.md has the error. A request's JSON is walked as it is: what counts is
the text that reaches the model, so keys, roles and identifiers do not, escapes count as the character they stand for,
and images are counted apart.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcmp

MAX_DEPTH = 512  # nesting of values
NOGIL_BYTES = 65536  # from this size on without the interpreter's lock
SCALE = 64  # costs are in 1/SCALE of a token

cdef enum:
    DEPTH = 512
    UNIT = 64
    KINDS = 10

# Kinds of characters. REST: a byte that goes on with a character, which costs nothing and changes nothing.
cdef enum Kind:
    LOWER = 0
    UPPER = 1
    DIGIT = 2
    SPACE = 3
    LINE = 4
    MARK = 5
    TWO = 6
    THREE = 7
    FOUR = 8
    REST = 9

cdef unsigned char[256] kind_of
cdef unsigned char[100] cost_of  # KINDS x KINDS: of a character after another


def costs():
    """What a character costs after another, in 1/SCALE tokens, by their kinds: lower, upper, digit, space, line, mark,
    two, three, four bytes. What tests and docs go by.
    """
    return [[cost_of[before * KINDS + kind] for kind in range(REST)] for before in range(REST)]


cdef void set_costs():
    """Fill the tables once."""
    cdef int byte, before, kind
    cdef int[9] first = [54, 54, 58, 0, 46, 54, 58, 60, 128]  # of a run
    for byte in range(256):
        if c'a' <= byte <= c'z':
            kind_of[byte] = LOWER
        elif c'A' <= byte <= c'Z':
            kind_of[byte] = UPPER
        elif c'0' <= byte <= c'9':
            kind_of[byte] = DIGIT
        elif byte == c' ' or byte == c'\t':
            kind_of[byte] = SPACE
        elif byte == c'\n' or byte == c'\r':
            kind_of[byte] = LINE
        elif byte < 0x80:
            kind_of[byte] = MARK
        elif byte < 0xC0:
            kind_of[byte] = REST
        elif byte < 0xE0:
            kind_of[byte] = TWO
        elif byte < 0xF0:
            kind_of[byte] = THREE
        else:
            kind_of[byte] = FOUR
    for before in range(KINDS):
        for kind in range(9):
            cost_of[before * KINDS + kind] = first[kind]
        cost_of[before * KINDS + REST] = 0
    cost_of[LOWER * KINDS + LOWER] = 5  # a word of five letters is a token and a little
    cost_of[UPPER * KINDS + LOWER] = 5
    cost_of[UPPER * KINDS + UPPER] = 24  # words in capitals fall apart
    cost_of[LOWER * KINDS + UPPER] = 40  # camelCase
    cost_of[DIGIT * KINDS + DIGIT] = 54  # one by one in some vocabularies, by three in others
    cost_of[SPACE * KINDS + SPACE] = 4  # indentation
    cost_of[LINE * KINDS + LINE] = 8
    cost_of[LINE * KINDS + SPACE] = 24
    cost_of[MARK * KINDS + MARK] = 34
    cost_of[MARK * KINDS + LOWER] = 46  # `(x`, `.x`: sometimes one token
    cost_of[TWO * KINDS + TWO] = 28  # Cyrillic and its like: two or three letters a token
    cost_of[THREE * KINDS + THREE] = 54  # Chinese: less than a token a character on vocabularies that know it
    cost_of[SPACE * KINDS + TWO] = 46

set_costs()


cdef long long text(const unsigned char *p, Py_ssize_t n, long long *wide) noexcept nogil:
    """Cost of plain text; adds its characters beyond ASCII to wide."""
    cdef long long total = 0
    cdef unsigned int before = LINE, kind
    cdef Py_ssize_t i
    for i in range(n):
        kind = kind_of[p[i]]
        total += cost_of[before * KINDS + kind]
        wide[0] += TWO <= kind < REST
        before = before if kind == REST else kind
    return total


# What a key says of its value.
cdef enum Role:
    TEXT = 0
    SILENT  # reaches the model in another form, if at all
    IMAGE_BOX  # an object whose `url` is an image
    IMAGES  # an array of images
    IMAGE

cdef struct Walk:
    const unsigned char *p
    Py_ssize_t n
    Py_ssize_t at
    long long cost
    long long wide
    long long images
    long long items


cdef inline bint is_key(const unsigned char *p, Py_ssize_t n, const char *name, Py_ssize_t size) noexcept nogil:
    return n == size and memcmp(p, name, size) == 0


cdef int role_of(const unsigned char *p, Py_ssize_t n, int box) noexcept nogil:
    """The role of a key's value, in an object whose own value has the role box."""
    if n == 3 and box == IMAGE_BOX and is_key(p, n, b"url", 3):
        return IMAGE
    if n == 4:
        if is_key(p, n, b"role", 4) or is_key(p, n, b"type", 4):
            return SILENT
        if is_key(p, n, b"data", 4):
            return IMAGE
    elif n == 2 and is_key(p, n, b"id", 2):
        return SILENT
    elif n == 6:
        if is_key(p, n, b"images", 6):
            return IMAGES
        if is_key(p, n, b"detail", 6) or is_key(p, n, b"format", 6):
            return SILENT
    elif n == 9 and is_key(p, n, b"image_url", 9):
        return IMAGE_BOX
    elif n == 10 and is_key(p, n, b"media_type", 10):
        return SILENT
    elif n == 12 and is_key(p, n, b"tool_call_id", 12):
        return SILENT
    return TEXT


cdef inline int hex_digit(unsigned char c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    c |= 0x20
    return c - c'a' + 10 if c'a' <= c <= c'f' else -1


cdef int string(Walk *w, int role) noexcept nogil:
    """A string's value; w.at is after the opening quote. Returns 0, or -1 where it does not end."""
    cdef const unsigned char *p = w.p
    cdef Py_ssize_t i = w.at, n = w.n, k
    cdef long long total = 0, wide = 0
    cdef unsigned int before = LINE, kind
    cdef unsigned char c
    cdef int code, digit
    if role == TEXT and n - i >= 11 and memcmp(p + i, b"data:image/", 11) == 0:
        role = IMAGE
    while i < n:
        c = p[i]
        if c == c'"':
            w.at = i + 1
            if role == TEXT:
                w.cost += total
                w.wide += wide
            elif role == IMAGE or role == IMAGE_BOX or role == IMAGES:
                w.images += 1
            return 0
        if c != c'\\':
            kind = kind_of[c]
            i += 1
        else:
            if i + 1 >= n:
                return -1
            c = p[i + 1]
            i += 2
            kind = MARK
            if c == c'n' or c == c'r':
                kind = LINE
            elif c == c't':
                kind = SPACE
            elif c == c'u':
                if i + 4 > n:
                    return -1
                code = 0
                for k in range(4):
                    digit = hex_digit(p[i + k])
                    if digit < 0:
                        return -1
                    code = code * 16 + digit
                i += 4
                if code < 0x80:
                    kind = kind_of[code]
                elif code < 0x800:
                    kind = TWO
                elif 0xD800 <= code < 0xDC00:
                    kind = FOUR
                elif 0xDC00 <= code < 0xE000:
                    kind = REST  # the second half of a pair
                else:
                    kind = THREE
        total += cost_of[before * KINDS + kind]
        wide += TWO <= kind < REST
        before = before if kind == REST else kind
    return -1


cdef int skip(Walk *w) noexcept nogil:
    """Past a key; w.at is after the opening quote. Returns 0, or -1 where it does not end."""
    while w.at < w.n:
        if w.p[w.at] == c'"':
            w.at += 1
            return 0
        w.at += 2 if w.p[w.at] == c'\\' else 1
    return -1


cdef int walk(Walk *w) noexcept nogil:
    """The whole value. Returns 0, or -1 where its structure is broken."""
    cdef unsigned char[DEPTH] closers
    cdef unsigned char[DEPTH + 1] roles  # of the value at each depth
    cdef Py_ssize_t depth = 0, start
    cdef unsigned char c
    cdef bint wants_key = False
    cdef int role
    roles[0] = TEXT
    while w.at < w.n:
        c = w.p[w.at]
        w.at += 1
        if c == c'"':
            if wants_key:
                start = w.at
                if skip(w) < 0:
                    return -1
                roles[depth] = role_of(w.p + start, w.at - 1 - start, roles[depth - 1])
                wants_key = False
            else:
                if depth == 1 and closers[0] == c']':
                    w.items += 1
                if string(w, roles[depth]) < 0:
                    return -1
        elif c == c'{' or c == c'[':
            if depth == DEPTH:
                return -1
            if depth == 1 and closers[0] == c']':
                w.items += 1
            role = roles[depth]
            closers[depth] = c'}' if c == c'{' else c']'
            depth += 1
            # An array's elements are what the array is; an object's fields have roles of their own.
            roles[depth] = role if c == c'[' else TEXT
            wants_key = c == c'{'
        elif c == c'}' or c == c']':
            if depth == 0 or closers[depth - 1] != c:
                return -1
            depth -= 1
            wants_key = False
        elif c == c',':
            wants_key = depth > 0 and closers[depth - 1] == c'}'
        elif c == c'-' or c'0' <= c <= c'9':
            if depth and closers[depth - 1] == c']':
                w.cost += UNIT  # a token of a prompt that is tokens already
                if depth == 1:
                    w.items += 1
            while w.at < w.n and (c'0' <= w.p[w.at] <= c'9' or w.p[w.at] in (c'.', c'-', c'+', c'e', c'E')):
                w.at += 1
        elif c == c't' or c == c'f' or c == c'n':
            if depth == 1 and closers[0] == c']':
                w.items += 1
            while w.at < w.n and c'a' <= w.p[w.at] <= c'z':
                w.at += 1
    return 0 if depth == 0 else -1


cdef inline long long tokens(long long cost) noexcept nogil:
    return (cost + UNIT - 1) // UNIT


def estimate_text(data):
    """Tokens of UTF-8 text, any bytes-like object."""
    cdef Py_buffer view
    cdef long long cost, wide = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len >= NOGIL_BYTES:
            with nogil:
                cost = text(<const unsigned char *>view.buf, view.len, &wide)
        else:
            cost = text(<const unsigned char *>view.buf, view.len, &wide)
    finally:
        PyBuffer_Release(&view)
    return tokens(cost)


def estimate_json(value, bint every_byte=False):
    """Tokens of a JSON value as it stands in a request.

    Args:
        value: `messages`, a `prompt`, an `input` or `tools`; any bytes-like object, not changed meanwhile.
        every_byte: count the value as the text that it is, as templates render tools.

    Returns:
        (tokens, wide, images, items): of its text, and how many of its characters are beyond ASCII, which a vocabulary
        that does not know their script takes apart; strings that are images; elements, where it is an array.

    Raises:
        ValueError: its structure is broken.
    """
    cdef Py_buffer view
    cdef Walk w
    cdef int found
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        w.p = <const unsigned char *>view.buf
        w.n = view.len
        w.at = 0
        w.cost = w.wide = w.images = w.items = 0
        if w.n >= NOGIL_BYTES:
            with nogil:
                found = walk(&w)
                if every_byte:
                    w.wide = 0
                    w.cost = text(w.p, w.n, &w.wide)
        else:
            found = walk(&w)
            if every_byte:
                w.wide = 0
                w.cost = text(w.p, w.n, &w.wide)
    finally:
        PyBuffer_Release(&view)
    if found < 0:
        raise ValueError(f"the value is no JSON near byte {w.at}, or nested deeper than {MAX_DEPTH}")
    return tokens(w.cost), w.wide, w.images, w.items
