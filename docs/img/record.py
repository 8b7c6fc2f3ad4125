#!/usr/bin/env python3
"""Records the quick start and the demo in a terminal of 80 columns, and takes a picture of the report page.

usage: docs/img/record.py PROGRAMS OUT

PROGRAMS is the folder of specconv and specrun, OUT the folder for quickstart.cast (asciicast v2, which asciinema
plays), quickstart.svg (the last screen, for documents) and verify.png (the top of verify.html). Run it in the root of
the repository on a machine with chromium that does nothing else. It fails if a command fails, or prints a line that
does not fit the terminal.
"""

import html
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import time

COLUMNS, ROWS = 80, 40
COMMANDS = [
    "specconv convert models/tiny-qwen35-mtp -o model.gguf",
    "specconv quantize model.gguf model-q4.gguf Q4_K_M --mtp-type Q8_0",
    "specrun generate model-q4.gguf 'def main():' --spec-type draft-mtp -n 24",
    "specrun verify model-q4.gguf --html verify.html",
    "specconv demo",
]
# Output within this time is one event, and pauses of the recording are not longer, in seconds.
MIN_PAUSE, MAX_PAUSE = 0.05, 1.0


class Screen:
    """The lines that a terminal shows, with the escape sequences that progress bars use."""

    def __init__(self):
        self.lines, self.row, self.column = [""], 0, 0
        self.too_long = []

    def feed(self, text):
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b.|[\s\S]", text):
            if part == "\n":
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append("")
            elif part == "\r":
                self.column = 0
            elif part.startswith("\x1b["):
                self.escape(part[2:-1], part[-1])
            elif part >= " ":
                self.put(part)

    def put(self, char):
        if self.column == COLUMNS:
            self.too_long.append(self.lines[self.row])
            self.feed("\r\n")
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
        self.column += 1

    def escape(self, number, kind):
        n = int(number) if number.isdigit() else 1
        if kind == "A":
            self.row = max(self.row - n, 0)
        elif kind == "B":
            self.row = min(self.row + n, len(self.lines) - 1)
        elif kind == "K":
            line = self.lines[self.row]
            self.lines[self.row] = "" if number == "2" else line[: self.column]
        elif kind == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]


class Recording:
    """Output with its times."""

    def __init__(self):
        self.events, self.screen = [], Screen()
        self.now, self.last = 0.0, time.time()

    def add(self, text):
        self.screen.feed(text)
        pause = time.time() - self.last
        if self.events and pause < MIN_PAUSE:
            self.events[-1][2] += text
            return
        self.last = time.time()
        self.now += min(pause, MAX_PAUSE)
        self.events.append([round(self.now, 2), "o", text])


def run(command, folder, path, recording):
    """Runs a command in a pseudo-terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(PATH=path + ":" + os.environ["PATH"], TERM="xterm-256color")
        os.execvp("sh", ["sh", "-c", f"stty cols {COLUMNS} rows {ROWS}; exec {command}"])
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a terminal as an error.
            break
        if not data:
            break
        recording.add(data.decode(errors="replace"))
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        sys.exit(f"{command}: failed")


def svg(lines):
    """Draws lines of text as an image."""
    height = 17 * len(lines) + 32
    rows = [
        f'<text x="16" y="{17 * i + 28}"{color(line)}>{html.escape(line)}</text>'
        for i, line in enumerate(lines)
        if line.strip()
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * 8 + 32} {height}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" fill="#e6e6e6">',
        '<style>text { white-space: pre }</style>',
        '<rect width="100%" height="100%" rx="8" fill="#16181c"/>',
        *rows,
        "</svg>",
        "",
    ])


def picture(page, out):
    """Takes a picture of the top of a page."""
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1250"]
    subprocess.run(["chromium", *flags, f"--screenshot={out}", f"file://{page}"], check=True)


def color(line):
    """Commands stand out from their output."""
    return ' fill="#7fd1ae"' if line.startswith("$ ") else ""


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    path, out = os.path.abspath(sys.argv[1]), sys.argv[2]
    recording = Recording()
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath("models"), os.path.join(folder, "models"))
        for command in COMMANDS:
            recording.add(f"$ {command}\r\n")
            run(command, folder, path, recording)
            recording.add("\r\n")
        picture(os.path.join(folder, "verify.html"), os.path.abspath(os.path.join(out, "verify.png")))
    for line in recording.screen.too_long:
        sys.exit(f"longer than {COLUMNS} columns: {line}")
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "specconv"}
    with open(os.path.join(out, "quickstart.cast"), "w") as cast:
        for line in [header, *recording.events]:
            cast.write(json.dumps(line) + "\n")
    with open(os.path.join(out, "quickstart.svg"), "w") as image:
        image.write(svg([line.rstrip() for line in recording.screen.lines]))


main()
