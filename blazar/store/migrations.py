"""The schema's history: one script a version.

A script is never changed once it has been released; a new one is appended.
"""

from __future__ import annotations

SCRIPTS: tuple[str, ...] = (
    """
    CREATE TABLE engines (
        tag TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        source TEXT NOT NULL,
        binary TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        manifest TEXT NOT NULL,
        active INTEGER NOT NULL,
        installed_at REAL NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX one_active_engine_a_kind ON engines (kind) WHERE active;
    CREATE TABLE models (
        name TEXT PRIMARY KEY CHECK (name <> '' AND instr(name, '#') = 0),
        path TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        sha256 TEXT NOT NULL,
        architecture TEXT NOT NULL,
        ctx_train INTEGER NOT NULL,
        parameters INTEGER NOT NULL,
        quant TEXT NOT NULL,
        chat_template INTEGER NOT NULL,
        source TEXT NOT NULL,
        added_at REAL NOT NULL
    ) STRICT;
    """,
    """
    CREATE TABLE key_usage (
        key TEXT NOT NULL,
        day INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        PRIMARY KEY (key, day)
    ) STRICT, WITHOUT ROWID;
    """,
)
