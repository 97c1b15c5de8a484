"""Kills every engine of a gateway that has died. A program of its own: standard library only, started with -I -S.

    python watchdog.py MARK < PIPE

The gateway holds the pipe's other end and writes a line for each engine: `add PGID START`, `del PGID`. When the pipe
ends, the gateway is gone, however it died. Then everything goes that is in one of those groups, or that has MARK in its
environment, which whatever an engine starts inherits. A pid that belongs to another process by now is told by its start
time. Without /proc only the groups are known.

A group whose leader has gone is still that group: its number is not given to anybody else while it has members, and the
gateway, which alone reaps the leader, was there until the pipe ended.
"""

import os
import signal
import sys
import time

MARK = "BLAZAR_ENGINE_OF"
BUDGET_S = 1.0
GROUP, SESSION, STARTED = 2, 3, 19  # of what /proc/PID/stat has after the name
PAUSE_S = 0.01


def stat_fields(pid: str) -> list[str]:
    """/proc/PID/stat after the name: state, parent, group, session…; [] where there is no such process.

    Read as bytes: the name is whatever its process wants, cut at 15 bytes, so within a character too.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []


def is_marked(pid: str, mark: bytes) -> bool:
    """Whether the process carries the mark in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def find(groups: dict[int, str], mark: bytes) -> list[int]:
    """The processes that have to go: those of the groups, those of their sessions, those that bear the mark."""
    ours = {
        group: int(started)
        for group, started in groups.items()
        if started and (not (leader := stat_fields(str(group))) or leader[STARTED] == started)
    }
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        fields = stat_fields(pid)
        if not fields or fields[0] in "ZX" or int(pid) == os.getpid():
            continue
        began = min((ours[number] for number in map(int, fields[GROUP : SESSION + 1]) if number in ours), default=None)
        # Whoever is older than the leader is no child of it.
        if (began is not None and int(fields[STARTED]) >= began) or is_marked(pid, mark):
            found.append(int(pid))
    return found


def kill_all(groups: dict[int, str], mark: bytes) -> None:
    """Kill until nothing is left, within the budget: a process may fork while it is being looked for."""
    end = time.monotonic() + BUDGET_S
    while time.monotonic() < end:
        pids = find(groups, mark)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it has just ended
        time.sleep(PAUSE_S)


def kill_groups(groups: dict[int, str]) -> None:
    """Where there is no /proc: the groups that were registered and not taken back."""
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the gateway, not before
    groups: dict[int, str] = {}
    for line in sys.stdin:
        word, group, *rest = line.split()
        if word == "add":
            groups[int(group)] = rest[0] if rest else ""
        else:
            groups.pop(int(group), None)
    if os.path.isdir("/proc/self"):
        kill_all(groups, f"{MARK}={sys.argv[1]}".encode())
    else:
        kill_groups(groups)


if __name__ == "__main__":
    main()
