"""The transports matrix of run-all: every way in which data goes from one GPU to another, set by the environment alone.

Each setting runs every collective, send/recv and groups of them in the protocols that it has (host memory tears lines of
LL128), and fails if the log says that something else was used, or does not say.
"""
import ctypes

# A network needs an interface that is there on every machine.
NETWORK = {"NCCL_SOCKET_IFNAME": "lo"}
NO_MAPPING = {"NCCL_P2P_DISABLE": 1, "NCCL_SHM_DISABLE": 1, **NETWORK}
SHM = {"NCCL_P2P_DISABLE": 1}
EVERY = ("LL", "LL128", "Simple")

# (name, environment, patterns of the transports between ranks of one host, protocols, kinds of ranks), those that are worth
# most first. The last two are parameters of NCCL that change nothing here: all must go on as without them.
SETTINGS = [
    ("SHM", SHM, ["SHM"], ("LL", "Simple"), ("processes", "threads")),
    ("NET", NO_MAPPING, ["NET/Socket"], ("LL", "Simple"), ("processes", "threads")),
    ("P2P", {"NCCL_P2P_READ_ENABLE": 0}, ["P2P/(?!.*/read)"], EVERY, ("processes",)),
    ("P2P by reading", {"NCCL_P2P_READ_ENABLE": 1}, ["P2P/.*/read"], ("Simple",), ("processes", "threads")),
    ("P2P without cuMem", {"NCCL_CUMEM_ENABLE": 0}, ["P2P/IPC"], ("Simple",), ("processes",)),
    ("SHM by NCCL_P2P_LEVEL", {"NCCL_P2P_LEVEL": "LOC"}, ["SHM"], ("Simple",), ("processes",)),
    ("NET without shared buffers", {**NO_MAPPING, "NCCL_NET_SHARED_BUFFERS": 0}, ["NET/Socket(?!.*Shared)"],
     ("Simple",), ("processes",)),
    ("P2P with NCCL_P2P_USE_CUDA_MEMCPY", {"NCCL_P2P_USE_CUDA_MEMCPY": 1}, ["P2P/CUMEM/CE"], ("Simple",), ("processes",)),
    ("P2P with NCCL_P2P_DIRECT_DISABLE", {"NCCL_P2P_DIRECT_DISABLE": 1}, ["P2P"], ("Simple",), ("threads",)),
]


# Slots and network connections that messages share, as the log names them: with plenty; with so little that a kernel waits
# until memory for another slot was mapped while it runs; with lines alone, which share nothing.
MESSAGES = [("pools", {"NCCL_PROTO": "Simple"}, ["NET/Socket/\\d+/Shared", "NET/Socket/\\d+$"]),
            ("a pool of one slot", {"NCCL_PROTO": "Simple", "TUTTI_NET_POOL_SLOTS": 1},
             ["NET/Socket/\\d+/Shared", "NET/Socket/\\d+$"]),
            ("lines", {"NCCL_PROTO": "LL"}, ["NET/Socket/\\d+$"])]


def message_groups(make, gpus, shared):
    """Messages between all pairs of ranks of one process, over a network. `make` makes a group of a name, arguments of
    gpu_matrix, transports and environment; `shared` lets ranks share GPUs. One GPU has processors for the blocks of four."""
    ranks = min(4 * gpus, 8)
    flags = ["-t", ranks, "-s", "grouped"]
    return [make(f"grouped over networks, {note}, {ranks} threads", [*flags, "-l", f"over networks, {note}"], via=via,
                 **NO_MAPPING, **shared, **env) for note, env, via in MESSAGES]


def transport_groups(make, ranks, kinds, quick):
    """`make` is run-all's matrix_group without its first argument, `kinds` how ranks may be spread. With several ranks a
    host, data stays inside of it where it can: so two hosts of two ranks use two transports."""
    groups = []
    for name, env, via, protocols, wanted in SETTINGS[:2] if quick else SETTINGS:
        possible = [kind for kind in wanted if kind in kinds]
        for kind in possible[:1] if quick else possible:
            for protocol in protocols[-1:] if quick or kind != possible[0] else protocols:
                groups.append(make(kind, ranks, [ranks], "Ring", protocol, "quick", 0, name, via=via, **env))
    if "processes" in kinds and ranks % 2 == 0:
        via = ["NET/Socket"] + ["P2P"] * (ranks > 2)
        for protocol in ("Simple",) if quick else ("Simple", "LL"):
            groups.append(make("processes", ranks, [ranks], "Ring", protocol, "quick", 0, "two hosts", via=via, hosts=2,
                               **NETWORK))
    return groups


def driver_lacks(attributes):
    """Why the first GPU cannot do what is to be tried, by numbers of cuDeviceGetAttribute; None: it can."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver"
    value = ctypes.c_int(0)
    if cuda.cuInit(0):
        return "the CUDA driver does not start"
    for number, name in attributes.items():
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0) or not value.value:
            return f"GPU 0 has no {name}"
    return None


RDMA, DMABUF = {116: "GPUDirect RDMA"}, {124: "dma-bufs"}
# (name, environment, what it takes): a NIC that reads and writes GPUs' memory.
DIRECT = [
    ("GPUDirect, flushed", {"DIRECT_CLAIM": "cuda", "DIRECT_LATE": 1, "DIRECT_FORCE": 1}, RDMA),
    ("GPUDirect", {"DIRECT_CLAIM": "cuda"}, RDMA),
    ("GPUDirect by dma-buf", {"DIRECT_CLAIM": "dmabuf"}, {**RDMA, **DMABUF}),
    ("GPUDirect, receiving", {"DIRECT_CLAIM": "cuda", "DIRECT_FORCE": 1, "NCCL_NET_GDR_READ": 0,
                              "NCCL_GDRCOPY_ENABLE": 1, "NCCL_GDRCOPY_FLUSH_ENABLE": 1}, RDMA),  # GDRCopy may be missing
]


def direct_groups(make, build, ranks, quick):
    """Two hosts, whose network is one of the tests' own (tests/fakes/net/direct.c), which copies GPUs' memory itself."""
    groups = []
    for name, env, takes in DIRECT[:1] if quick else DIRECT:
        via = ["NET/Direct/.*GDRDMA"] + ["NET/Direct/(?!.*GDRDMA)"] * ("receiving" in name) + ["P2P"] * (ranks > 2)
        env = {"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_NET_GDR_READ": 1, "NCCL_NET_SHARED_BUFFERS": 0, "DIRECT_MEMORY": "cuda",
               "NCCL_NET_PLUGIN": build / "bin/tutti-net-direct.so",
               "DIRECT_INNER": build / "lib/tutti/libtutti-net-socket.so", **NETWORK, **env}
        group = make("processes", ranks, [ranks], "Ring", "Simple", "quick", 0, name, via=via, hosts=2, **env)
        group.skip = driver_lacks(takes)
        groups.append(group)
    return groups
