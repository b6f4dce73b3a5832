#!/usr/bin/env python3
"""The library exports exactly the public symbols, which are all that some users need, and needs nothing but the C
library.

    check_exports.py LIBRARY SONAME SYMBOLS.TXT [USER'S-SYMBOLS.TXT...]
"""
import pathlib
import subprocess
import sys

ALLOWED = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "libexpat.so", "ld-linux")
SANITIZERS = ("libasan.so", "libubsan.so", "libtsan.so")
EXTRA = {"ncclResetDebugInitInternal", "tuttiCommNetStats", "tuttiCommReport", "tuttiGetVersion"} | {
    f"tuttiStream{n}" for n in ("Create", "Destroy", "Synchronize", "Query")}


def exports(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {fields[2].split("@")[0]: fields[1] for fields in map(str.split, lines.splitlines())}


def dynamic(library, tag):
    lines = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    return [line.split("[")[1].split("]")[0] for line in lines.splitlines() if f"({tag})" in line]


def read_names(path):
    return [w for line in pathlib.Path(path).read_text().splitlines() if not line.startswith("#") for w in line.split()]


def main():
    library, soname, listing = sys.argv[1:4]
    names = read_names(listing)
    wanted = {f"nccl{n}": "W" for n in names} | {f"pnccl{n}": "T" for n in names} | {n: "T" for n in EXTRA}
    found = exports(library)
    errors = [f"{n} is not exported" for n in wanted if n not in found]
    errors += [f"{n} is exported and is not public" for n in found if n not in wanted]
    errors += [f"{n} is of type {found[n]}, not {t}" for n, t in wanted.items() if n in found and found[n] != t]
    for user in sys.argv[4:]:
        theirs = read_names(user)
        errors += [f"nccl{n} is not exported, and {user} needs it" for n in theirs if f"nccl{n}" not in found]
        errors += [f"{user} names nothing"] * (not theirs)
    needed = [n for n in dynamic(library, "NEEDED") if not n.startswith(SANITIZERS)]
    errors += [f"it needs {n}" for n in needed if not n.startswith(ALLOWED)]
    if dynamic(library, "SONAME") != [soname]:
        errors.append(f"its soname is {dynamic(library, 'SONAME')}, not {soname}")
    for error in errors:
        print(f"{library}: {error}")
    print(f"{len(wanted)} symbols, needs {' '.join(needed)}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
