"""Puts a folder into an archive, and writes a .sha256 file beside it.

    pack.py FOLDER ARCHIVE MOMENT PROGRAM

ARCHIVE ends in .tar.gz or .zip. The same files give the same bytes, whatever the system, the user,
the time zone and the folder's order: MOMENT (seconds since 1970) is the time of all, PROGRAM alone
may be executed, and nothing has an owner. Only another version of zlib compresses differently.
"""

import gzip
import hashlib
import io
import pathlib
import sys
import tarfile
import time
import zipfile


def main(folder, archive, moment, program):
    files = []
    for path in folder.rglob("*"):
        if path.is_file():
            mode = 0o755 if path == folder / program else 0o644
            files.append((path.relative_to(folder.parent).as_posix(), mode, path.read_bytes()))
    # By names: paths themselves have another order on Windows.
    files.sort()
    pack = pack_zip if archive.suffix == ".zip" else pack_tar
    packed = pack(files, moment)
    archive.write_bytes(packed)
    line = f"{hashlib.sha256(packed).hexdigest()}  {archive.name}\n"
    archive.with_name(archive.name + ".sha256").write_bytes(line.encode())
    print(line, end="")


def pack_tar(files, moment):
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, mode, data in files:
                entry = tarfile.TarInfo(name)
                entry.mode, entry.mtime, entry.size = mode, moment, len(data)
                tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def pack_zip(files, moment):
    # Times of a zip are local ones, in steps of two seconds, and begin in 1980.
    when = max(time.gmtime(moment)[:6], (1980, 1, 1, 0, 0, 0))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, mode, data in files:
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # By default these are of the system that this runs on. 3 is Unix.
            entry.create_system, entry.external_attr = 3, (0o100000 | mode) << 16
            archive.writestr(entry, data, compresslevel=9)
    return packed.getvalue()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
