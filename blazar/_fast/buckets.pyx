"""A sliding minute: what has been used within it, and when something will fit again; and two of them at once, the
requests and the tokens of a key.

60 cells of a second each. What is used at time t counts until floor(t) + 60, so that every answer is exact on the grid
of seconds, and a wait can be told to the second.
"""

cimport cython
from libc.math cimport floor
from libc.string cimport memset

WINDOW_S = 60

cdef enum:
    CELLS = 60


@cython.final
cdef class Window:
    """What was used in the last WINDOW_S seconds. Times are seconds of one clock that never goes back."""
    cdef long long[CELLS] cells
    cdef long long total
    cdef long long second  # the latest second that was looked at

    cdef inline int turn(self, double now) except -1:
        """Empty the cells of the seconds that have left the window."""
        cdef long long second, passed, i
        if not (-1e15 < now < 1e15):
            raise ValueError("a time has to be a number of seconds")
        second = <long long>floor(now)
        if second <= self.second:
            return 0  # the same second, or a caller whose look at the clock is a little older
        passed = second - self.second
        if passed >= CELLS:
            memset(self.cells, 0, sizeof(self.cells))
            self.total = 0
        else:
            for i in range(self.second + 1, second + 1):
                self.total -= self.cells[cell(i)]
                self.cells[cell(i)] = 0
        self.second = second
        return 0

    def used(self, double now):
        """What counts at that time."""
        self.turn(now)
        return self.total

    def add(self, double now, long long amount):
        """Use that much."""
        self.turn(now)
        self.cells[cell(self.second)] += amount
        self.total += amount

    def amend(self, double at, double now, long long change):
        """Change what was used at an earlier time.

        Returns:
            Whether that still counts; False: it has left the window, and nothing was changed.
        """
        cdef long long second
        self.turn(now)
        self.check(at)
        second = min(<long long>floor(at), self.second)
        if second <= self.second - CELLS:
            return False
        self.cells[cell(second)] += change
        self.total += change
        return True

    def wait_s(self, double now, long long need, long long limit):
        """Seconds until that much more stays within the limit if nothing else is used; 0.0: now; -1.0: never."""
        cdef long long excess, i
        self.turn(now)
        excess = self.total + need - limit
        if excess <= 0:
            return 0.0
        if need > limit:
            return -1.0
        for i in range(self.second - CELLS + 1, self.second + 1):  # the oldest leaves first
            excess -= self.cells[cell(i)]
            if excess <= 0:
                return max(0.0, i + CELLS - now)
        return -1.0  # amended below zero: cannot be with what callers do

    def empty_s(self, double now):
        """Seconds until nothing counts any more; 0.0: nothing does."""
        cdef long long i
        self.turn(now)
        for i in range(self.second, self.second - CELLS, -1):
            if self.cells[cell(i)] != 0:
                return max(0.0, i + CELLS - now)
        return 0.0

    def level(self, double now):
        """What counts at that time, and the seconds until nothing does: `used` and `empty_s` in one."""
        return self.used(now), self.empty_s(now)

    cdef int check(self, double at) except -1:
        if not (-1e15 < at < 1e15):
            raise ValueError("a time has to be a number of seconds")
        return 0


cdef inline long long cell(long long second) noexcept nogil:
    """C's remainder is negative for negative seconds."""
    return (second % CELLS + CELLS) % CELLS


def take(Window requests not None, Window tokens not None, double now, long long rpm, long long tpm, long long least,
         long long most):
    """Use one request and some tokens, of both or of neither.

    Args:
        requests: window of requests, at most rpm in it, and tokens, at most tpm; 0: no limit.
        now: seconds.
        least: tokens that have to fit.
        most: tokens that are used if they fit, else what is left.

    Returns:
        The tokens that are used now; -1: it does not fit, and nothing is.
    """
    requests.turn(now)
    tokens.turn(now)
    if rpm and requests.total >= rpm:
        return -1
    if tpm:
        if tokens.total + least > tpm:
            return -1
        most = min(most, tpm - tokens.total)
    requests.cells[cell(requests.second)] += 1
    requests.total += 1
    tokens.cells[cell(tokens.second)] += most
    tokens.total += most
    return most
