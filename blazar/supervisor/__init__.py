"""Engines as child processes: started once for all who wait, watched, stopped in order, and never left behind.

Decision: a child's life is one task (`child.Child`), which alone writes its state; the state machine itself is a pure
table (`machine`). Three things see to it that no engine outlives the gateway, each for what the others cannot cover:
the kernel's parent-death signal (the engine itself, however the gateway dies), a watchdog process (everything that
descends from it, found by a mark in its environment), and records in `<data>/run` (the next start, where the watchdog
died too). Nothing is ever looked for by name.

    machine     states, events, and the table between them                            pure
    causes      what an exit status and some last words mean                          pure
    process     one engine process: start, output, exit
    watchdog    a program of its own: kills what is left when the gateway is gone
    keeper      the gateway's end of the watchdog, and the records in <data>/run
    child       the life of one child
    pool        which child serves a model; single-flight starts
"""

from blazar.supervisor.causes import CrashCause
from blazar.supervisor.child import Child, ChildStats, LaunchPlan, Lease
from blazar.supervisor.pool import Outlook, Supervisor

__all__ = ["Child", "ChildStats", "CrashCause", "LaunchPlan", "Lease", "Outlook", "Supervisor"]
