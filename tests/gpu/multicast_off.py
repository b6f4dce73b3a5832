#!/usr/bin/env python3
"""Checks that NCCL_NVLS_ENABLE=0 keeps GPUs from multicast memory, whatever NCCL_ALGO says, and that the log says so.

    tests/gpu/multicast_off.py GPU_MATRIX RANKS

Nothing here turns multicast on.
"""
import os
import subprocess
import sys

SAID = "NVLS multicast support is not available: NCCL_NVLS_ENABLE is 0"
NEVER = "share memory with a multicast address"


def main():
    matrix, ranks = sys.argv[1], sys.argv[2]
    env = {**os.environ, "NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "AllReduce:NVLS,Ring", "NCCL_DEBUG": "INFO",
           "NCCL_DEBUG_SUBSYS": "INIT,NVLS"}
    env.pop("NCCL_DEBUG_FILE", None)
    done = subprocess.run([matrix, "-t", ranks, "-w", ranks, "-s", "tiny", "-l", "multicast off"], env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    why = None
    if "Using device host" in done.stdout:
        print("SKIP multicast off: the host device emulates it")
        return 0
    if done.returncode:
        why = f"gpu_matrix ended with status {done.returncode}"
    elif done.stdout.count(SAID) < int(ranks):
        why = f"the log lacks \"{SAID}\" of some ranks"
    elif NEVER in done.stdout:
        why = f"the log has \"{NEVER}\""
    print(f"FAIL multicast off: {why}" if why else "PASS multicast off")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
