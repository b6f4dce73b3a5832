"""Machines that are drawn other than they are, so that ways are used that the real one has no need of: a topology file
names the GPUs by their own addresses, and puts NVLinks and a NIC where a way begins."""
import atexit
import ctypes
import os
import shutil
import tempfile

PCI = 'link_speed="32.0 GT/s PCIe" link_width="16"'
SYSTEM = ('<system version="1"><cpu numaid="0" affinity="1" arch="x86_64" vendor="GenuineIntel" familyid="6" '
          'modelid="143">{}</cpu></system>')
NIC = (f'<pci busid="ffff:0b:00.0" class="0x020000" {PCI}><nic>'
       '<net name="lo" dev="0" speed="100000" port="1" guid="0x1" maxconn="64" gdr="1"/></nic></pci>')


def addresses(count):
    """PCI addresses of the first GPUs, as topology files have them; fewer if there are not as many."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    found = []
    if cuda.cuInit(0) == 0:
        for device in range(count):
            text = ctypes.create_string_buffer(32)
            if cuda.cuDeviceGetPCIBusId(text, len(text), device) == 0:
                found.append(text.value.decode().lower())
    return found


def gpu(ids, rank, linked):
    links = "".join(f'<nvlink target="{ids[other]}" count="6" tclass="0x030200"/>' for other in linked)
    return f'<pci busid="{ids[rank]}" class="0x030200" {PCI}><gpu dev="{rank}" sm="90" rank="{rank}" gdr="1">{links}</gpu></pci>'


def row(ids):
    """NVLink joins neighbours only: those that have one between them use its memory."""
    last = len(ids) - 1
    return SYSTEM.format("".join(gpu(ids, r, [n for n in (r - 1, r + 1) if 0 <= n <= last]) for r in range(len(ids))))


def near_one(ids):
    """Pairs that NVLink joins, and a NIC beside the first of each pair: where a pair is a host, the second sends through
    the first."""
    gpus = [gpu(ids, r, [r ^ 1]) for r in range(len(ids))]
    beside = f'<pci busid="ffff:0a:00.0" class="0x060400" {PCI}>{"".join(gpus[::2])}{NIC}</pci>'
    return SYSTEM.format(beside + "".join(gpus[1::2]))


def machine_groups(make, gpus, folder=None):
    """`make` is run-all's matrix_group without its first argument. Three GPUs are a row, four are two hosts of two."""
    if folder is None:
        folder = tempfile.mkdtemp(prefix="tutti-machines-")
        atexit.register(shutil.rmtree, folder, True)
    ids = addresses(gpus)
    groups = []

    def group(draw, ranks, protocol, note, **more):
        file = os.path.join(folder, f"{draw.__name__}.xml")
        with open(file, "w") as f:
            f.write(draw(ids[:ranks]) if len(ids) == gpus else "")
        groups.append(make("processes", ranks, [ranks], "Ring", protocol, "quick", 0, note, NCCL_TOPO_FILE=file, **more))
        groups[-1].skip = None if len(ids) == gpus else f"the CUDA driver names {len(ids)} of {gpus} GPUs"

    for protocol in ("Simple", "LL") if gpus >= 3 else ():
        group(row, 3, protocol, "through a GPU between", via=["P2P/indirect/", "P2P/(?!indirect)"])
    for protocol in ("Simple", "LL") if gpus >= 4 else ():
        group(near_one, 4, protocol, "through the rank near the NIC", hosts=2, NCCL_SOCKET_IFNAME="lo",
              via=[r"NET/Socket/0\(", r"NET/Socket/0(?!\()", "P2P"])
    return groups
