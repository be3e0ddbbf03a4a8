#!/usr/bin/env python3
"""How long it takes from a key to the screen while `moeflux chat` answers.

    echo.py BINARY [OPTION...]

Asks a question on a pseudo-terminal, types letters while the answer comes, and measures each until
the foot of the screen shows it. Options are those of `moeflux chat`; the answer must be long.
"""

import os
import pty
import select
import statistics
import sys
import time

LETTERS = "abcdefghijklmnopqrstuvwxyz" * 4
PATIENCE_S = 30.0


class Chat:
    """A chat on a terminal, and what it wrote since somebody looked."""

    def __init__(self, command):
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(command[0], command)
        self.written = b""

    def wait_for(self, text):
        """Waits until it is written; returns when that was."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.written:
            ready, _, _ = select.select([self.terminal], [], [], end - time.monotonic())
            if not ready:
                sys.exit(f"never {text!r}; the last is {self.written[-500:]!r}")
            self.written += os.read(self.terminal, 65536)
        return time.monotonic()

    def read_for(self, seconds):
        """Reads what comes, as a terminal does all the time: who writes must not wait for it."""
        end = time.monotonic() + seconds
        while select.select([self.terminal], [], [], max(0.0, end - time.monotonic()))[0]:
            self.written += os.read(self.terminal, 65536)

    def type(self, text):
        """Presses keys; what was written before is forgotten."""
        self.written = b""
        os.write(self.terminal, text)
        return time.monotonic()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    chat = Chat([sys.argv[1], "chat", "--no-history", *sys.argv[2:]])
    chat.wait_for(b"\x1b[?2004h")
    chat.type(b"Tell me all that you know.\r")
    chat.wait_for(b"\x1b[?2004l")
    chat.read_for(1.0)
    times_ms, typed = [], ""
    for n_typed, letter in enumerate(LETTERS):
        # Only the end of a long line is shown.
        if n_typed % 26 == 0:
            chat.type(b"\x15")
            typed = ""
            chat.read_for(0.1)
        typed += letter
        began = chat.type(letter.encode())
        times_ms.append((chat.wait_for(f"> {typed}".encode()) - began) * 1000)
        chat.read_for(0.03)
    if b"\x1b[?2004h" in chat.written:
        sys.exit("the answer ended before the last letter: ask for a longer one")
    chat.type(b"\x03")
    chat.wait_for(b"\x1b[?2004h")
    chat.type(b"\x15/quit\r")
    os.waitpid(chat.process, 0)
    times_ms.sort()
    print(
        f"{len(times_ms)} keys: median {statistics.median(times_ms):.2f} ms, "
        f"95 % {times_ms[int(len(times_ms) * 0.95)]:.2f} ms, most {times_ms[-1]:.2f} ms"
    )


if __name__ == "__main__":
    main()
