#!/usr/bin/env python3
"""gpu_topology on a machine of the test's making: a backend that only describes, an nvidia-smi that is a script, and a
tree in place of /sys. What they agree on passes, and whatever one says otherwise fails.

    test_topology.py GPU_TOPOLOGY DEVICE
"""
import os
import subprocess
import sys
import tempfile

QUERY = ["0, 00000000:11:00.0, 0x233010DE, 0x16C110DE, 4, 16, 16", "1, 00000000:12:00.0, 0x233010DE, 0x16C110DE, 4, 16, 16"]
NVLINK = ["GPU 0: some"] + [f"\t Link {link}: 26.562 GB/s" for link in range(4)] + ["\t Link 4: <inactive>"]
TOPO = ["\t\033[4mGPU0\tGPU1\tCPU Affinity\033[0m", "GPU0\t X \tNV4\t0-3", "GPU1\tNV4\t X \t0-3"]


def write(path, lines):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def attempt(folder, program, device, query=QUERY, nvlink=NVLINK, topo=TOPO):
    for name, lines in (("query", query), ("nvlink", nvlink), ("topo", topo)):
        write(f"{folder}/{name}", lines)
    write(f"{folder}/bin/nvidia-smi", ["#!/bin/sh", "case $1 in", f"nvlink) cat {folder}/nvlink;;",
                                       f"topo) cat {folder}/topo;;", f"*) cat {folder}/query;;", "esac"])
    os.chmod(f"{folder}/bin/nvidia-smi", 0o755)
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "TUTTI_DEVICE": device}
    done = subprocess.run([program, f"{folder}/sys"], env=env, text=True, stdout=subprocess.PIPE, timeout=100)
    return done.returncode, done.stdout


def main():
    program, device = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for gpu in ("11", "12"):
            path = f"{folder}/sys/devices/pci0000:10/0000:10:00.0/0000:{gpu}:00.0"
            write(f"{path}/class", ["0x030200"])
            os.makedirs(f"{folder}/sys/bus/pci/devices", exist_ok=True)
            os.symlink(path, f"{folder}/sys/bus/pci/devices/0000:{gpu}:00.0")
        status, said = attempt(folder, program, device)
        assert status == 0 and "FAIL" not in said, said
        for line in ("PASS topology: device 1: 4 NVLinks are active, the backend has 4",
                     "PASS topology: nvidia-smi has device 0", "nvidia-smi says NV4, the topology NVL 82.4",
                     "device 0: PCI generation 4 at most, 16 of 16 lanes"):
            assert line in said, (line, said)
        assert said.count("nvidia-smi says") == 4, said
        for wrong, line in (({"query": QUERY[:1]}, "nvidia-smi has device 0"),  # the backend's order is another
                            ({"query": [q[:-2] + "08" for q in QUERY]}, "8 of 16 lanes"),
                            ({"nvlink": NVLINK[:-2]}, "3 NVLinks are active, the backend has 4"),
                            ({"topo": [t.replace("NV4", "PHB") for t in TOPO]}, "nvidia-smi says PHB, the topology NVL")):
            status, said = attempt(folder, program, device, **wrong)
            assert status == 1, said
            assert any(l.startswith("FAIL") and line in l for l in said.splitlines()), (line, said)
        bare = [TOPO[0].replace("\033[4m", "").replace("\033[0m", "").replace("\tGPU1", "")] + TOPO[1:]
        status, said = attempt(folder, program, device, topo=bare)  # a header without colours, as of a single GPU
        assert status == 0, said
        status, said = attempt(folder, program, "host")
        assert status == 77 and "SKIP topology: TUTTI_DEVICE asks for the host" in said, said
    print("gpu_topology tells machines that agree from those that do not")


if __name__ == "__main__":
    main()
