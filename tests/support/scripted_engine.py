#!/usr/bin/env python3
"""An engine that does exactly what a test says. It takes llama-server's command line and answers like one unless told
otherwise.

What it is told comes from two places:

* `$SCRIPTED_DIR/start.json`, read when it starts: `{"stderr": TEXT, "exit": N, "signal": N, "load_until": NAME,
  "chatter": true, "never_healthy": true, "ignore_term": true, "fork": true}`. All may be left out.
* the field `script` of a request's body: a list of steps, run in order instead of the usual answer:
    ["raw", TEXT]         these bytes, as they are (latin-1), status line and all
    ["base64", TEXT]      these bytes
    ["cut", N]            from here on, sends go out in pieces of N bytes, each in a write of its own
    ["chunk", TEXT]       one HTTP chunk of UTF-8 text
    ["repeat", N, STEP…]  the step, that often
    ["until", NAME]       wait until the file NAME.go is in $SCRIPTED_DIR
    ["stderr", TEXT]      print that
    ["reset"]             close with a reset
    ["close"]             close
    ["slot", N]           from here on, /slots show a slot at work on this request, with N tokens decoded
    ["exit", N]           exit with that status at once; below 0: kill itself with that signal

It writes one JSON line an event to `$SCRIPTED_DIR/seen.jsonl`: `start`, `request` (with the head's lines and the body's
digest; `look` for GET /props and /slots), `left` (the client closed before the answer was complete), `done`, `term`.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import time

DIR = os.environ.get("SCRIPTED_DIR", "")
WORDS = ("The", " capital", " is", " Paris", ".")
FLAGS = (
    "-h, --help", "--version", "-m, --model FNAME", "-a, --alias STRING", "--host HOST", "--port PORT",
    "-c, --ctx-size N", "-np, --parallel N", "-t, --threads N", "--jinja", "--metrics", "--slots", "--no-webui",
    "--embedding", "--pooling TYPE", "-s, --seed N",
)  # fmt: skip


def tell(event, **facts):
    if DIR:
        with open(os.path.join(DIR, "seen.jsonl"), "a") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic(), **facts}) + "\n")


async def until(name):
    while not os.path.exists(os.path.join(DIR, f"{name}.go")):
        await asyncio.sleep(0.002)


def end(status):
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other disposition
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def flag(name, otherwise=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else otherwise


class Engine:
    def __init__(self, start):
        self.start = start
        self.loaded = asyncio.Event()
        self.working = {}  # task -> tokens decoded, of requests that say so
        self.key = os.environ.get("LLAMA_API_KEY", "")
        self.alias = flag("--alias", "scripted")
        self.slots = int(flag("-np", "1"))
        self.ctx = int(flag("-c", "4096"))

    def show_slots(self):
        """As llama-server does; a script says how far a request is with ["slot", TOKENS], which takes a slot."""
        shown = [{"id": n, "is_processing": False} for n in range(self.slots)]
        for slot, (task, decoded) in zip(shown, self.working.items(), strict=False):
            slot.update(id_task=task, is_processing=True, next_token=[{"n_decoded": decoded, "n_remain": -1}])
        return shown

    async def load(self):
        if "load_until" in self.start:
            await until(self.start["load_until"])
        while self.start.get("chatter"):
            print("still loading", file=sys.stderr, flush=True)
            await asyncio.sleep(0.02)
        if not self.start.get("never_healthy"):
            self.loaded.set()

    async def serve(self, reader, writer):
        try:
            while head := await self.read_head(reader):
                if not await Exchange(self, reader, writer, head).run():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def read_head(self, reader):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return []
        return head.decode("latin-1").split("\r\n")[:-2]


class Exchange:
    def __init__(self, engine, reader, writer, head):
        self.engine = engine
        self.reader = reader
        self.writer = writer
        self.head = head
        self.method, self.path = head[0].split(" ")[:2]
        self.headers = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self.cut = 0

    async def read_body(self):
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await self.reader.readline()).strip() or b"0", 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
            return body
        return await self.reader.readexactly(int(self.headers.get("content-length", "0")))

    async def run(self):
        """Serve one request; returns whether the connection goes on."""
        body = await self.read_body()
        if self.path == "/health":
            ok = self.engine.loaded.is_set()
            await self.json({"status": "ok"} if ok else {"error": {"message": "Loading model"}}, 200 if ok else 503)
            return True
        looks = self.method == "GET" and self.path in ("/props", "/slots")  # the gateway's own, as a rule
        tell(
            "look" if looks else "request",
            head=self.head,
            size=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
            body=body[:4096].decode("latin-1"),
        )
        try:
            return await self.answer_while_there(body)
        finally:
            self.engine.working.pop(id(self), None)

    async def answer_while_there(self, body):
        answer = asyncio.ensure_future(self.answer(body))
        watch = asyncio.ensure_future(self.gone())
        await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
            tell("left", path=self.path)
            return False
        watch.cancel()
        try:
            goes_on = answer.result()
        except ConnectionError:
            tell("left", path=self.path)
            return False
        if self.path not in ("/props", "/slots"):
            tell("done", path=self.path)
        return goes_on

    async def gone(self):
        """Until the client has closed; reads nothing, so that the next request stays whole."""
        while not self.reader.at_eof() and self.reader.exception() is None:
            await asyncio.sleep(0.001)

    async def answer(self, body):
        if self.engine.key and self.headers.get("authorization") != f"Bearer {self.engine.key}":
            await self.json({"error": {"message": "Invalid API Key", "code": 401}}, 401)
            return True
        try:
            ask = json.loads(body) if body else {}
        except ValueError:
            await self.json({"error": {"message": "not JSON", "code": 400}}, 400)
            return True
        if "script" in ask:
            return await self.perform(ask["script"])
        path = self.path.partition("?")[0]
        if path in ("/v1/chat/completions", "/v1/completions"):
            await self.complete(ask, chat="chat" in path)
        elif path == "/v1/embeddings":
            vector = [0.5, -0.5, 0.5, 0.5]
            packed = base64.b64encode(struct.pack("<4f", *vector)).decode()
            inputs = ask["input"] if isinstance(ask["input"], list) else [ask["input"]]
            data = [
                {
                    "object": "embedding",
                    "index": n,
                    "embedding": packed if ask.get("encoding_format") == "base64" else vector,
                }
                for n in range(len(inputs))
            ]
            await self.json(
                {
                    "object": "list",
                    "model": self.engine.alias,
                    "data": data,
                    "usage": {"prompt_tokens": 3, "total_tokens": 3},
                }
            )
        elif path == "/tokenize":
            await self.json({"tokens": list(range(len(ask.get("content", "").split())))})
        elif path == "/detokenize":
            await self.json({"content": " ".join(map(str, ask.get("tokens", [])))})
        elif path == "/apply-template":
            await self.json({"prompt": "".join(message["content"] for message in ask["messages"])})
        elif path == "/props":
            settings = {"n_ctx": self.engine.ctx // self.engine.slots}
            await self.json(
                {
                    "total_slots": self.engine.slots,
                    "model_alias": self.engine.alias,
                    "default_generation_settings": settings,
                }
            )
        elif path == "/slots" or path.startswith("/slots/"):
            await self.json(self.engine.show_slots())
        else:
            await self.json({"error": {"message": f"no route {path}", "code": 404}}, 404)
        return True

    async def complete(self, ask, chat):
        base = {"id": "scripted-1", "created": 1790000000, "model": ask.get("model", "")}
        usage = {"prompt_tokens": 7, "completion_tokens": len(WORDS), "total_tokens": 7 + len(WORDS)}
        if not ask.get("stream"):
            text = "".join(WORDS)
            choice = {"index": 0, "finish_reason": "stop"}
            choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            kind = "chat.completion" if chat else "text_completion"
            await self.json({**base, "object": kind, "choices": [choice], "usage": usage})
            return
        kind = "chat.completion.chunk" if chat else "text_completion"

        async def event(choices, **more):
            await self.chunk("data: " + json.dumps({**base, "object": kind, "choices": choices, **more}) + "\n\n")

        await self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if chat:
            await event([{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}])
        for word in WORDS:
            await event(
                [{"index": 0, "finish_reason": None} | ({"delta": {"content": word}} if chat else {"text": word})]
            )
        timings = {"cache_n": 0, "prompt_n": 7, "predicted_n": len(WORDS)}
        await event(
            [{"index": 0, "finish_reason": "stop"} | ({"delta": {}} if chat else {"text": ""})], timings=timings
        )
        if (ask.get("stream_options") or {}).get("include_usage"):
            await event([], usage=usage, timings=timings)
        await self.chunk("data: [DONE]\n\n")
        await self.raw(b"0\r\n\r\n")

    async def perform(self, script):
        goes_on = True
        for step, *rest in script:
            if step == "repeat":
                await self.perform([rest[1:]] * rest[0])
            elif step == "raw":
                await self.raw(rest[0].encode("latin-1"))
            elif step == "base64":
                await self.raw(base64.b64decode(rest[0]))
            elif step == "chunk":
                await self.chunk(rest[0])
            elif step == "slot":
                self.engine.working[id(self)] = rest[0]
            elif step == "cut":
                self.cut = rest[0]
            elif step == "until":
                await until(rest[0])
            elif step == "stderr":
                print(rest[0], file=sys.stderr, flush=True)
            elif step == "reset":
                linger = struct.pack("ii", 1, 0)
                with contextlib.suppress(
                    OSError
                ):  # a unix socket has no such option, and resets anyway with data unread
                    self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.writer.transport.abort()
                return False
            elif step == "close":
                goes_on = False
            elif step == "exit":
                end(rest[0])
        return goes_on

    async def chunk(self, text):
        data = text.encode()
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def raw(self, data):
        size = self.cut or len(data)
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await self.writer.drain()
            if self.cut:
                await asyncio.sleep(0)

    async def json(self, value, status=200):
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nServer: scripted\r\n"
        await self.raw(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def main():
    start = {}
    with contextlib.suppress(OSError), open(os.path.join(DIR, "start.json")) as file:
        start = json.load(file)
    tell("start", argv=sys.argv)
    if start.get("stderr"):
        print(start["stderr"], file=sys.stderr, flush=True)
    if "signal" in start:
        end(-start["signal"])
    if "exit" in start:
        end(start["exit"])
    if start.get("fork") and os.fork() == 0:
        os.setsid()  # a grandchild that has left the engine's group and session
        while True:
            signal.pause()
    loop = asyncio.get_running_loop()

    def on_term():
        tell("term")
        if not start.get("ignore_term"):
            os._exit(0)

    loop.add_signal_handler(signal.SIGTERM, on_term)
    engine = Engine(start)
    host = flag("--host", "127.0.0.1")
    if host.endswith(".sock"):
        await asyncio.start_unix_server(engine.serve, host)
    else:
        await asyncio.start_server(engine.serve, host, int(flag("--port", "8080")))
    await engine.load()
    await asyncio.Event().wait()


if __name__ == "__main__":
    if "--help" in sys.argv:
        print("\n".join(FLAGS))
    elif "--version" in sys.argv:
        print("version: 1 (scripted)")
    else:
        asyncio.run(main())
