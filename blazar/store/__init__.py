"""The store: engines and models in one SQLite file (WAL), with migrations by `user_version`.

Decision: rows are small and few, so they are read whole and handed out as frozen records. The gateway reads in threads,
commands write; SQLite's own locking keeps them apart.
"""
