"""Bytes between a client and an engine.

Decision: the engine's read callback calls the client's `send` itself (`_fast.pump`), and the coroutine that owns the
request only waits for the end. A task that reads and sends was measured dearer by a wake-up a chunk, a server interface
that queues without limit cheaper but unbounded. One mechanism ends a request early, whatever the reason:
`Client.interrupt` cancels the request's own task, so that every place where it may be waiting is covered; whoever holds
a resource releases it in `finally`, without awaiting.
"""
