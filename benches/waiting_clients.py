"""What a waiting client costs in memory, and whether all are served in their order: many clients on one slot.

    python -m benches.waiting_clients [CLIENTS]

Prints the growth of the gateway's proportional memory for each connection, then for each request that waits on it,
and how many of the answers came out of order.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.front.conftest import MODEL, Running

CONFIG = f"max_queue = 100000\nqueue_wait_secs = 3600\nmax_streams = 20000\n[model_overrides.{MODEL}]\nslots = 1\n"
ANSWER = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def memory_kb(pid: int) -> int:
    """Proportional set size."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise ValueError("no Pss line")


def request(number: int, **more: object) -> bytes:
    body = json.dumps(
        {"model": MODEL, "user": str(number), "messages": [{"role": "user", "content": "hello"}], **more}
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def queued(running: Running) -> int:
    shown = await asyncio.to_thread(running.get, "/api/ps")
    found: int = shown.json()["models"][0]["queued"]
    return found


async def measure(running: Running, clients: int) -> None:
    holder = await asyncio.open_connection("127.0.0.1", running.port)
    holder[1].write(request(-1, script=[["until", "go"], ["raw", ANSWER]]))
    await asyncio.to_thread(running.wait_seen, "request")
    empty = memory_kb(running.pid)
    waiting = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(clients)]
    for reader, writer in waiting:  # a whole request each, so that the server has all of a connection's state
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b'{"status":"ok"}')
    await asyncio.sleep(2)
    connected = memory_kb(running.pid)
    for number, (_, writer) in enumerate(waiting):
        writer.write(request(number))
        if number % 50 == 49:
            while await queued(running) <= number:
                await asyncio.sleep(0.01)
    while await queued(running) < clients:
        await asyncio.sleep(0.01)
    await asyncio.sleep(2)
    full = memory_kb(running.pid)
    print(f"{clients} clients: {(connected - empty) / clients:.1f} KB a connection")
    print(f"{(full - connected) / clients:.1f} KB a waiting request beyond it")
    began = time.monotonic()
    running.go("go")
    for reader, _ in waiting:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    print(f"all served in {time.monotonic() - began:.1f} s")
    order = [int(json.loads(seen["body"])["user"]) for seen in running.seen("request")][1:]
    late = sum(1 for first, second in zip(order, order[1:], strict=False) if first > second)
    print(f"{late} of {len(order)} out of order")
    for _, writer in (holder, *waiting):
        writer.close()


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory(prefix="bz-", dir="/tmp") as folder:
        running = Running(Path(folder), CONFIG)
        running.prepare()
        running.serve()
        try:
            asyncio.run(measure(running, clients))
        finally:
            running.stop()


if __name__ == "__main__":
    main()
