"""Prints the DLLs that a program for Windows on x86-64 asks for when it starts, one a line.

    imports.py PROGRAM
"""

import pathlib
import struct
import sys

program = pathlib.Path(sys.argv[1]).read_bytes()


def number(at, n_bytes=4):
    return int.from_bytes(program[at : at + n_bytes], "little")


def text(at):
    return program[at : program.index(b"\0", at)].decode()


header = number(0x3C)
assert program[header : header + 4] == b"PE\0\0", "not a program for Windows"
n_sections, optional_bytes = number(header + 6, 2), number(header + 20, 2)
optional = header + 24
assert number(optional, 2) == 0x20B, "not a program of 64 bits"
sections = [
    struct.unpack_from("<4I", program, optional + optional_bytes + 40 * i + 8)
    for i in range(n_sections)
]


def offset(address):
    """Where in the file the byte is that is at this address of the program in memory."""
    for size, start, file_bytes, file_start in sections:
        if start <= address < start + max(size, file_bytes):
            return address - start + file_start
    raise AssertionError(f"no section has the address {address:#x}")


# The second entry of the table of directories; its list ends with an entry of zeros.
entry = offset(number(optional + 112 + 8))
while number(entry + 12):
    print(text(offset(number(entry + 12))))
    entry += 20
