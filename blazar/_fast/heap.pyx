"""A heap whose members can leave from anywhere and change their keys, in O(log n).

Four children a node: half the levels of a binary heap, and the four keys that are compared stand beside one another.
Keys stand in the heap's own array and not in its members, so that no comparison follows a pointer. A member knows its
place, which is what makes leaving cheap.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free, realloc


@cython.freelist(64)
cdef class Node:
    """What can be a member of a heap, of one at a time; to be subclassed."""
    cdef Py_ssize_t place  # in the heap's array; -1: in none
    cdef object __weakref__

    def __cinit__(self, *args, **kwargs):
        self.place = -1

    @property
    def queued(self):
        """Whether it is a member of a heap."""
        return self.place >= 0


cdef struct Entry:
    double first
    long long second
    PyObject *node  # owned


cdef inline bint before(Entry *a, Entry *b) noexcept nogil:
    return a.first < b.first or (a.first == b.first and a.second < b.second)


@cython.final
cdef class Heap:
    """Members by (first, second), the smallest on top.

    The garbage collector does not look into the array: a cycle through a member is collected once that has been taken
    out.
    """
    cdef Entry *entries
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.size):
            (<Node>self.entries[i].node).place = -1
            Py_DECREF(<object>self.entries[i].node)
        free(self.entries)

    def __len__(self):
        return self.size

    def __contains__(self, Node node not None):
        return self.has(node)

    def push(self, Node node not None, double first, long long second):
        """Make it a member.

        Raises:
            ValueError: it is one already, of this or another heap, or first is not a number.
        """
        if node.place >= 0:
            raise ValueError("a node is in one heap at a time")
        if first != first:
            raise ValueError("a key has to be a number")
        if self.size == self.room:
            self.grow()
        cdef Entry entry
        entry.first = first
        entry.second = second
        entry.node = <PyObject *>node
        Py_INCREF(node)
        self.size += 1
        self.rise(self.size - 1, entry)

    def top(self):
        """The first member, or None."""
        return <object>self.entries[0].node if self.size else None

    def top_key(self):
        """The first member's (first, second).

        Raises:
            IndexError: there is no member.
        """
        if self.size == 0:
            raise IndexError("the heap is empty")
        return self.entries[0].first, self.entries[0].second

    def pop(self):
        """Take the first member out.

        Raises:
            IndexError: there is none.
        """
        if self.size == 0:
            raise IndexError("the heap is empty")
        node = <object>self.entries[0].node
        self.take(0)
        return node

    def remove(self, Node node not None):
        """Take a member out, wherever it stands.

        Raises:
            ValueError: it is no member of this heap.
        """
        if not self.has(node):
            raise ValueError("the node is not in this heap")
        self.take(node.place)

    def update(self, Node node not None, double first, long long second):
        """Give a member another key.

        Raises:
            ValueError: it is no member of this heap, or first is not a number.
        """
        if not self.has(node):
            raise ValueError("the node is not in this heap")
        if first != first:
            raise ValueError("a key has to be a number")
        cdef Entry entry
        entry.first = first
        entry.second = second
        entry.node = <PyObject *>node
        self.settle(node.place, entry)

    cdef inline bint has(self, Node node) noexcept:
        cdef Py_ssize_t place = node.place
        return 0 <= place < self.size and self.entries[place].node == <PyObject *>node

    cdef int grow(self) except -1:
        cdef Py_ssize_t room = max(16, 2 * self.room)
        cdef Entry *grown = <Entry *>realloc(self.entries, room * sizeof(Entry))
        if grown == NULL:
            raise MemoryError
        self.entries = grown
        self.room = room
        return 0

    cdef void take(self, Py_ssize_t place) noexcept:
        """Take the member at that place out; the last one fills the gap."""
        cdef Node gone = <Node>self.entries[place].node
        self.size -= 1
        if place < self.size:
            self.settle(place, self.entries[self.size])
        gone.place = -1
        Py_DECREF(gone)

    cdef void settle(self, Py_ssize_t place, Entry entry) noexcept:
        """Put an entry where it belongs, up or down from a place that is free."""
        if place > 0 and before(&entry, &self.entries[(place - 1) >> 2]):
            self.rise(place, entry)
        else:
            self.sink(place, entry)

    cdef inline void put(self, Py_ssize_t place, Entry entry) noexcept:
        self.entries[place] = entry
        (<Node>entry.node).place = place

    cdef void rise(self, Py_ssize_t place, Entry entry) noexcept:
        cdef Py_ssize_t parent
        while place > 0:
            parent = (place - 1) >> 2
            if not before(&entry, &self.entries[parent]):
                break
            self.put(place, self.entries[parent])
            place = parent
        self.put(place, entry)

    cdef void sink(self, Py_ssize_t place, Entry entry) noexcept:
        cdef Py_ssize_t child, best, i
        while True:
            child = (place << 2) + 1
            if child >= self.size:
                break
            best = child
            for i in range(child + 1, min(child + 4, self.size)):
                if before(&self.entries[i], &self.entries[best]):
                    best = i
            if not before(&self.entries[best], &entry):
                break
            self.put(place, self.entries[best])
            place = best
        self.put(place, entry)
