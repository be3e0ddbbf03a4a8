#!/usr/bin/env python3
"""Makes docs/moeflux.svg, the picture in the README, from a session in a real terminal.

    pip install pyte
    tools/readme/record.py target/release/moeflux > docs/moeflux.svg

Types the lines below into `moeflux chat` on a pseudo-terminal, at the pace of a person, and writes
what the screen showed, and when, as an animation that needs no script. Viewers that do not animate
show the end.
"""

import fcntl
import html
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time

import pyte

COLUMNS, ROWS = 80, 17
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 19, 14
KEY_S, PAUSE_S, END_S = 0.045, 1.2, 5.0
PROMPT, CHAT_PROMPT = "$ ", "> "
LINES = [
    "moeflux chat",
    "What does Vec::push do?",
    "What is a slice?",
    "/stats",
]
COLOURS = {"default": "#d8dee9", "dim": "#7b8494", "green": "#a3be8c", "cyan": "#88c0d0", "yellow": "#ebcb8b",
           "brown": "#ebcb8b", "red": "#bf616a", "blue": "#81a1c1", "magenta": "#b48ead"}


class Recorder:
    """What a terminal showed: for each row, its contents with the times of their coming."""

    def __init__(self, program):
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.rows = [[] for _ in range(ROWS)]
        self.home = tempfile.mkdtemp()
        pid, self.terminal = pty.fork()
        if pid == 0:
            folder = os.path.dirname(os.path.realpath(program))
            os.environ.update(HOME=self.home, TERM="xterm-256color", PS1=PROMPT, COLUMNS=str(COLUMNS),
                              LINES=str(ROWS), PATH=folder + ":" + os.environ["PATH"])
            os.environ.pop("XDG_CACHE_HOME", None)
            os.execvp("bash", ["bash", "--norc", "--noprofile"])
        os.set_blocking(self.terminal, False)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.began = time.monotonic()

    def now(self):
        return time.monotonic() - self.began

    def watch(self, seconds):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self.terminal], [], [], left)[0]:
                try:
                    # pyte knows no dim text: bright black looks the same.
                    shown = os.read(self.terminal, 65536).replace(b"\x1b[2m", b"\x1b[90m")
                    self.stream.feed(shown)
                except OSError:
                    return
                self.note()

    def note(self):
        for row, contents in enumerate(self.rows):
            line = tuple(spans(self.screen.buffer[row]))
            if (contents[-1][1] if contents else ()) != line:
                contents.append((self.now(), line))

    def type(self, line, prompt):
        while not self.screen.display[self.screen.cursor.y].startswith(prompt.rstrip()):
            self.watch(0.1)
        self.watch(PAUSE_S)
        for key in line:
            os.write(self.terminal, key.encode())
            self.watch(KEY_S)
        self.watch(PAUSE_S / 3)
        os.write(self.terminal, b"\r")


def spans(cells):
    """Runs of cells of one look: (column, text, colour, is bold)."""
    run = None
    for column in range(COLUMNS):
        cell = cells[column]
        colour = COLOURS.get(cell.fg, COLOURS["dim"] if cell.fg.startswith("bright") else COLOURS["default"])
        look = (colour, cell.bold)
        if run and run[1] == look:
            run[2].append(cell.data)
        else:
            if run and "".join(run[2]).strip():
                yield run[0], "".join(run[2]).rstrip(), *run[1]
            run = (column, look, [cell.data])
    if run and "".join(run[2]).strip():
        yield run[0], "".join(run[2]).rstrip(), *run[1]


def drawing(recorder):
    end = recorder.now()
    width = COLUMNS * CELL_WIDTH + 2 * MARGIN
    height = ROWS * CELL_HEIGHT + 2 * MARGIN
    rules, texts = [], []
    for row, contents in enumerate(recorder.rows):
        ends = [at for at, _ in contents[1:]] + [end]
        for (begin, line), until in zip(contents, ends):
            if not line or until - begin < 0.01:
                continue
            name = f"t{len(texts)}"
            is_last = until == end
            a, b = 100 * begin / end, 100 * until / end
            last = "visible" if is_last else "hidden"
            rules.append(f"@keyframes {name}{{0%{{visibility:hidden}}{a:.2f}%{{visibility:visible}}"
                         + ("" if is_last else f"{b:.2f}%{{visibility:hidden}}") + f"to{{visibility:{last}}}}}"
                         + f".{name}{{animation:{name} {end:.1f}s step-end infinite"
                         + ("" if is_last else ";visibility:hidden") + "}")
            y = MARGIN + (row + 0.75) * CELL_HEIGHT
            parts = "".join(
                f'<tspan x="{MARGIN + column * CELL_WIDTH:.1f}" fill="{colour}"'
                + (' font-weight="bold"' if bold else "") + f">{html.escape(text)}</tspan>"
                for column, text, colour, bold in line)
            texts.append(f'<text class="{name}" y="{y:.1f}" xml:space="preserve">{parts}</text>')
    said = "A terminal: " + "; ".join(LINES)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'role="img" aria-label="{html.escape(said)}">\n'
            "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}\n"
            + "\n".join(rules) + "</style>\n"
            + f'<rect width="100%" height="100%" rx="8" fill="#20242c"/>\n' + "\n".join(texts) + "\n</svg>")


def main():
    recorder = Recorder(sys.argv[1])
    for line_idx, line in enumerate(LINES):
        recorder.type(line, CHAT_PROMPT if line_idx else PROMPT)
        recorder.watch(0.3)
    recorder.watch(END_S)
    print(drawing(recorder))
    os.close(recorder.terminal)


main()
