"""The last step of a relayed stream: what an engine sent goes into an ASGI `send`, from within the engine's read
callback.

A send that is done at once, which it is while the client keeps up, costs no task and no turn of the loop: its awaitable
is stepped here, once. One that is not done is handed to `stalled`, whose owner waits for it; until then `push` answers
False and the connection stops reading. That is the whole of the backpressure.
"""

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF


cdef extern from "Python.h":
    PyObject *PyIter_Next(object iterator) except? NULL  # NULL without an exception: the iterator has ended


@cython.final
cdef class Pump:
    """Pushes body parts into one response.

    Args:
        send: the ASGI send of the response, whose start has been sent.
        tail: told of every part by `tail.feed(bytes)`, or None.
        stalled: called with (awaitable, step) when a send has to wait; the awaitable has been stepped once and gave
        step.

    Attributes:
        sent: bytes pushed so far.
        full: a send is waiting; set back by `settled()`.
    """
    cdef object _send
    cdef object _tail
    cdef object _stalled
    cdef readonly long long sent
    cdef readonly bint full

    def __init__(self, send, tail, stalled):
        self._send = send
        self._tail = tail
        self._stalled = stalled

    def push(self, bytes data not None):
        """Send a part; answers whether the next one may come at once."""
        self.sent += PyBytes_GET_SIZE(data)
        if self._tail is not None:
            self._tail.feed(data)
        steps = self._send({"type": "http.response.body", "body": data, "more_body": True}).__await__()
        cdef PyObject *stepped = PyIter_Next(steps)
        if stepped == NULL:
            return True
        step = <object>stepped
        Py_DECREF(step)  # the cast took a reference of its own
        self.full = True
        self._stalled(steps, step)
        return False

    def settled(self):
        """The send that was waiting is done."""
        self.full = False
