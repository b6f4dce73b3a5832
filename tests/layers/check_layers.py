#!/usr/bin/env python3
"""No folder of the core includes a header of a layer above it.

Reads layers.txt, bottom to top, and every #include "folder/..." of core/ and kernels/. Beside the list, a layer may
include the public headers of core/include. Plugins may use only base and the public headers, since they must load
without libtutti; the CUDA backend may also use program, for names.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def violations(root, order):
    rank = {name: i for i, name in enumerate(order)}
    found = []
    for layer in order:
        folder = root / "kernels/host" if layer == "host" else root / "core" / layer
        for file in sorted(folder.glob("*.[ch]")):
            for included in INCLUDE.findall(file.read_text()):
                included = included.removeprefix("kernels/")
                target = included.split("/")[0] if "/" in included else layer
                if target != "tutti" and rank.get(target, rank[layer]) > rank[layer]:
                    found.append(f"{file.relative_to(root)} includes {included}: {target} is above {layer}")
    for file in sorted((root / "plugins").glob("*/*.[ch]")):
        for included in INCLUDE.findall(file.read_text()):
            target = included.split("/")[0] if "/" in included else None
            if target in rank and target != "base":
                found.append(f"{file.relative_to(root)} includes {included}: plugins use only base and public headers")
    for file in sorted((root / "kernels/cuda").glob("*.[ch]*")):
        for included in INCLUDE.findall(file.read_text()):
            target = included.split("/")[0] if "/" in included else None
            if target in rank and target not in ("base", "program"):
                found.append(f"{file.relative_to(root)} includes {included}: the backend uses only base and program")
    return found


def main():
    root = pathlib.Path(sys.argv[1])
    lines = (pathlib.Path(__file__).parent / "layers.txt").read_text().splitlines()
    order = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for folder in (root / "core").iterdir():
        if folder.is_dir() and folder.name != "include" and folder.name not in order:
            sys.exit(f"core/{folder.name} is not in layers.txt")
    found = violations(root, order)
    print("\n".join(found) or f"{len(order)} layers, no include goes up")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
