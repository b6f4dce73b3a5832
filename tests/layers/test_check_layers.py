#!/usr/bin/env python3
"""check_layers.py must see an include that goes up, and a plugin that reaches into the core."""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from check_layers import violations

ORDER = ["base", "plan", "api"]


def tree(root, path, include):
    file = pathlib.Path(root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'#include "{include}"\n')


CASES = [
    ("core/base/log.c", "plan/plan.h", 1),
    ("core/plan/run.c", "base/log.h", 0),
    ("core/plan/run.c", "tutti/device.h", 0),
    ("core/api/group.c", "plan/plan.h", 0),
    ("core/plan/run.c", "api/group.h", 1),
    ("plugins/net-x/x.c", "base/socket.h", 0),
    ("plugins/net-x/x.c", "plan/plan.h", 1),
    ("kernels/cuda/launch.c", "kernels/cuda/context.h", 0),
    ("kernels/cuda/launch.c", "base/log.h", 0),
    ("kernels/cuda/kernel.cu", "plan/plan.h", 1),
    ("kernels/cuda/launch.c", "plan/plan.h", 1),
]
for path, include, expected in CASES:
    with tempfile.TemporaryDirectory() as root:
        tree(root, path, include)
        found = violations(pathlib.Path(root), ORDER)
        assert len(found) == expected, (path, include, found)
print(f"{len(CASES)} cases passed")
