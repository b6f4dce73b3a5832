"""What Tutti's time may be beside NCCL's, as a ratio, and the least time that the wires allow. A target is met where the
time is at most the ratio times NCCL's, or 1.05 times the roofline, whichever is larger."""
import bisect

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SLACK = 1.05  # over the roofline
# Microseconds: an empty kernel's launch as it passes in a graph and eagerly, and a flag's way to another GPU. Measured on
# H100 with NVLink.
LAUNCH = {"graph": 0.97, "eager": 3.8}
HOP = 0.66

# Rows: sizes from which the ratios hold. None: no target.
ALL_REDUCE = {
    ("plain", "graph"): [(8, 0.45), (32 * KIB + 1, 0.55), (512 * KIB, 0.52), (2 * MIB, 0.5), (8 * MIB, 0.75),
                         (32 * MIB, 0.92), (128 * MIB, 1.0)],
    ("plain", "eager"): [(8, 0.55), (32 * KIB + 1, 0.6), (512 * KIB, 0.58), (2 * MIB, 0.55), (8 * MIB, 0.8),
                         (32 * MIB, 0.92), (128 * MIB, 1.0)],
    ("registered", "graph"): [(8, 0.8), (32 * KIB + 1, 0.5), (512 * KIB, 0.52), (2 * MIB, 0.62), (8 * MIB, 0.75),
                              (32 * MIB, 0.85), (128 * MIB, 0.9)],
}
OTHERS = [(0, 0.6), (4 * MIB + 1, 0.97)]
# Between the sizes that have one, send/recv has none.
SEND_RECV = {"eager": [(0, 0.8), (MIB + 1, None), (16 * MIB, 0.6), (128 * MIB + 1, None), (GIB, 1.0)],
             "graph": [(0, 0.8), (MIB + 1, None), (16 * MIB, 0.9), (128 * MIB + 1, None), (GIB, 1.0)]}


def ratio(collective, form, mode, size, gpus):
    """The target of one size, or None."""
    if collective == "all_reduce":
        rows = ALL_REDUCE.get((form, mode))
        # NCCL leaves 15 % of the wire between two GPUs.
        if rows and gpus == 2 and size >= 128 * MIB:
            return 0.9
    elif collective == "sendrecv":
        rows = SEND_RECV[mode]
    else:
        rows = OTHERS
    at = bisect.bisect_right([least for least, _ in rows], size) if rows else 0
    return rows[at - 1][1] if at else None


def wire_bytes(collective, size, gpus):
    """Bytes that some GPU must put on its wires, or take from them, whatever the algorithm; and the least hops."""
    share = (gpus - 1) / gpus
    if collective == "all_reduce":
        return 2 * share * size, 1
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        return share * size, 1
    return size, 1


def wire_rate(measured, gpus):
    """The rate in bytes per microsecond that a GPU's wires were seen to carry in this run: the best of all-to-all and of
    send/recv, whose large messages may go by copy engines. `measured`: pairs of (collective, {size: us}). None: neither
    was measured with at least 16 MiB."""
    rates = [wire_bytes(collective, size, gpus)[0] / us
             for collective, times in measured if collective in ("alltoall", "sendrecv")
             for size, us in times.items() if size >= 16 * MIB and us > 0]
    return max(rates, default=None)


def roofline(collective, mode, size, gpus, rate):
    """Microseconds, or None where the run has measured no rate."""
    if rate is None or gpus < 2:
        return None
    carried, hops = wire_bytes(collective, size, gpus)
    return LAUNCH[mode] + hops * HOP + carried / rate


def judge(tutti, nccl, target, least):
    """"met", "missed", or "-" where there is nothing to compare."""
    if tutti is None or nccl is None or target is None:
        return "-"
    return "met" if tutti <= max(target * nccl, SLACK * least if least else 0) else "missed"
