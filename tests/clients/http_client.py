"""A small HTTP client that costs little CPU time: it stores the bytes of a reply as they arrive and parses
them afterwards."""

import asyncio
import json
import time

# Bytes that may be the start of a counted text at the end of a piece.
N_HELD = 32


class Request:
    """A request on its own connection. `counted` is counted in the reply while it arrives."""

    def __init__(self, port, method, path, body=None, counted=None):
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(data)}\r\n"
        self.port = port
        self.sent = head.encode() + b"Content-Type: application/json\r\n\r\n" + data
        self.counted = counted
        self.n_counted = 0
        self.received = bytearray()
        self.started = self.first = self.ended = None

    async def run(self, until=None):
        """Sends the request and reads the reply to its end, or until `until(self)` is true after a piece. With
        "sent", leaves without reading."""
        self.started = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.sent)
            if until == "sent":
                await writer.drain()
                return self
            while piece := await reader.read(1 << 16):
                self.add(piece)
                if until and until(self):
                    break
            self.ended = time.perf_counter()
        finally:
            writer.transport.abort() if until else writer.close()
        return self

    def add(self, piece):
        if self.counted:
            start = max(len(self.received) - N_HELD, 0)
            held = self.received[start:]
            self.received += piece
            # A text that ends within the held bytes was counted before.
            self.n_counted += self.received.count(self.counted, start) - held.count(self.counted)
        else:
            self.received += piece
        if self.first is None and b"data: " in self.received:
            self.first = time.perf_counter()

    @property
    def status(self):
        line = bytes(self.received.split(b"\r\n", 1)[0]).split(b" ")
        return int(line[1]) if len(line) > 1 else None


def body_of(request):
    """Returns the body that has arrived so far, without the framing of its chunks."""
    head, _, rest = bytes(request.received).partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size or b"0", 16)
        if n == 0:
            break
        body, rest = body + rest[:n], rest[n + 2:]
    return body


def events_of(request):
    """Returns the complete events of a stream."""
    lines = body_of(request).decode(errors="replace").split("\n\n")[:-1]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]
