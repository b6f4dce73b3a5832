#!/usr/bin/env python3
"""drawn.py FOLDER MACHINE RANKS PROGRAM ARGUMENT...: runs the program on emulated GPUs (FOLDER has their libcuda.so.1) in a
machine that tests/gpu/machines.py draws: `row` or `near_one`."""
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import machines

folder, machine, ranks, *command = sys.argv[1:]
if os.environ.get("LD_LIBRARY_PATH") != folder:  # it is read when a process begins
    os.environ["LD_LIBRARY_PATH"] = folder
    os.execv(sys.executable, [sys.executable, *sys.argv])
ids = machines.addresses(int(ranks))
if len(ids) < int(ranks):
    sys.exit(f"the driver of {folder} names {len(ids)} of {ranks} GPUs")
with tempfile.NamedTemporaryFile("w", prefix="machine-", suffix=".xml") as file:
    file.write(getattr(machines, machine)(ids))
    file.flush()
    os.environ["NCCL_TOPO_FILE"] = file.name
    sys.exit(os.spawnv(os.P_WAIT, command[0], command))
