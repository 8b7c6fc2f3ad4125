"""Starts a server program and stops it."""

import asyncio
import contextlib
import json
import shlex
import subprocess
import sys
import tempfile

from http_client import Request, body_of

# Seconds to load a model, or to finish requests.
PATIENCE = 120


class Server:
    """A server program, started for the time of a `with` block."""

    def __init__(self, name, command, **more):
        self.name = name
        self.log = tempfile.TemporaryFile("w+")
        self.command = [str(word) for word in command]
        self.more = more

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, **self.more)
        self.port = int(self.command[self.command.index("--port") + 1])
        return self

    async def until(self, condition, what):
        """Waits until `condition` of the server is true."""
        for _ in range(10 * PATIENCE):
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                if await condition():
                    return
            await asyncio.sleep(0.1)
        self.log.seek(0)
        sys.exit(f"{shlex.join(self.command)}: not {what}\n{self.log.read()[-4000:]}")

    async def ready(self):
        """Waits until the model is loaded."""

        async def is_healthy():
            return (await Request(self.port, "GET", "/health").run()).status == 200

        await self.until(is_healthy, "ready")

    async def idle(self):
        """Waits until no slot is busy, such as with a text whose client has left."""

        async def is_idle():
            slots = json.loads(body_of(await Request(self.port, "GET", "/slots").run()))
            return not any(slot["is_processing"] for slot in slots)

        await self.until(is_idle, "idle")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
