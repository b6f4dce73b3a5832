"""Every collective, in every way of running its ranks, under the settings that choose how data moves: the data is
right, and the log shows that the setting was obeyed."""
import itertools
import os
import re

import lib
from lib import COLLECTIVES, SANITIZE, Case

MODES = {"processes": "-n", "threads": "-t", "communicators": "-g"}
SETTINGS = ({}, {"NCCL_ALGO": "tree"}, {"NCCL_ALGO": "ring"}, {"NCCL_ALGO": "direct"}, {"NCCL_ALGO": "pat"},
            {"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"}, {"NCCL_SHM_DISABLE": "1"},
            {"NCCL_SHM_DISABLE": "1", "NCCL_ALGO": "pat"})
BLOCKS = {"all_gather", "reduce_scatter"}
HAVE = {"tree": {"all_reduce"}, "ring": BLOCKS | {"all_reduce", "broadcast", "reduce"}, "pat": BLOCKS,
        "direct": BLOCKS | {"broadcast", "reduce", "gather", "scatter"},
        "nvls": BLOCKS | {"all_reduce"}, "nvlstree": {"all_reduce"}}
FUNCTIONS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
             "broadcast": "Broadcast", "reduce": "Reduce", "gather": "Gather", "scatter": "Scatter", "alltoall": "SendRecv", "sendrecv": "SendRecv"}
CHOICE = re.compile(r"(\w+): (\d+) bytes -> algorithm (\w+) protocol (\w+) channels (\d+): (.*)")
VIA = re.compile(r"Channel (\d+)/\d+ : (\d+)\[-?\d+\] -> (\d+)\[-?\d+\].* via (\S+)")
SIZES = ("-b", 8, "-e", "8K" if SANITIZE else "512K", "-f", 32 if SANITIZE else 64)


class Choices(Case):
    def obeyed(self, text, collective, setting):
        choices = [m for m in CHOICE.findall(text) if m[0] == FUNCTIONS[collective]]
        if FUNCTIONS[collective] != "SendRecv" or choices:
            self.assertTrue(choices, text[-3000:])
        algorithm, protocol = setting.get("NCCL_ALGO"), setting.get("NCCL_PROTO")
        for _, _, chosen, proto, _, why in choices:
            if algorithm and collective not in HAVE[algorithm]:
                self.assertNotEqual(chosen.replace("_", ""), algorithm.upper())
                if FUNCTIONS[collective] != "SendRecv":
                    self.assertIn(f"NCCL_ALGO={algorithm} has nothing for {FUNCTIONS[collective]}", why)
            elif algorithm and FUNCTIONS[collective] != "SendRecv":
                self.assertEqual(chosen.replace("_", ""), algorithm.upper())
                self.assertIn(f"NCCL_ALGO={algorithm}", why)
            if protocol:
                self.assertEqual(proto, protocol.upper())
                self.assertIn(f"NCCL_PROTO={protocol}", why)
        vias = {via for *_, via in VIA.findall(text)}
        self.assertTrue(vias, text[-3000:])
        shared = "/Shared" if collective in lib.SHARING else ""
        kind = rf"NET/Socket/\d+{shared}$" if "NCCL_SHM_DISABLE" in setting else r"SHM/|P2P/"
        self.assertFalse([v for v in vias if not re.match(kind, v)], f"{vias} with {setting}")


def matrix(number, collective):
    """With a sanitizer, under which a run takes ten times as long, each setting in one mode; over the collectives each
    of them in every mode."""
    def test(self):
        for (m, mode), (s, setting) in itertools.product(enumerate(MODES), enumerate(SETTINGS)):
            if SANITIZE and (number + m + s) % len(MODES):
                continue
            with self.subTest(mode, **setting):
                self.obeyed(self.log(collective, MODES[mode], 4, *SIZES, **setting), collective, setting)
    return test


class Matrix(Choices):
    """Methods test_all_reduce and so on."""

    def test_large(self):
        size = "1M" if SANITIZE else "64M"
        self.perf("all_reduce", "-n", 4, "-b", size, "-e", size, "--iters", 1, "-w", 0, rows=1)
        self.perf("sendrecv", "-t", 4, "-b", size, "-e", size, "--iters", 1, "-w", 0, rows=1, NCCL_SHM_DISABLE=1)


for place, name in enumerate(COLLECTIVES):
    setattr(Matrix, f"test_{name}", matrix(place, name))


class Shapes(Choices):
    """Types, operations, counts, ranks and buffers."""

    QUICK = ("--iters", 1, "-w", 0)

    def test_all_types_and_operations(self):
        for collective in ("all_reduce", "reduce_scatter", "reduce"):
            with self.subTest(collective):
                self.perf(collective, "-n", 3, "-d", "all", "-o", "all", "-b", 488, "-e", 488, *self.QUICK, rows=60)
        for collective in ("all_gather", "broadcast", "gather", "scatter", "alltoall", "sendrecv"):
            with self.subTest(collective):
                self.perf(collective, "-t", 3, "-d", "all", "-b", 488, "-e", 488, *self.QUICK, rows=12)

    def test_all_roots(self):
        for collective in ("broadcast", "reduce", "gather", "scatter"):
            self.perf(collective, "-n", 3, "-r", "all", "-b", 1000, "-e", 1000, *self.QUICK, rows=3)

    def test_counts_that_do_not_divide(self):
        for collective, algorithm in lib.share(COLLECTIVES, ("ring", "tree", "direct", "pat", "")):
            setting = {"NCCL_ALGO": algorithm} if algorithm else {}
            with self.subTest(collective, algorithm=algorithm):
                self.perf(collective, "-g", 3, "-d", "int8", "-b", 1, "-e", 9000, "-f", 7, "-u", 1, *self.QUICK,
                          **setting)

    def test_numbers_of_ranks(self):
        for collective, ranks in lib.share(COLLECTIVES, (1, 2, 3, 5, 8)):
            with self.subTest(collective, ranks=ranks):
                self.perf(collective, "-n" if ranks in (3, 5) else "-g", ranks, "-b", 1000, "-e", 20000, "-f", 20,
                          *self.QUICK)

    def test_small_buffers(self):
        kinds = (("all_reduce", ""), ("all_gather", ""), ("all_gather", "pat"), ("reduce_scatter", "pat"),
                 ("gather", ""), ("alltoall", ""))
        protocols = (("Simple", "NCCL_BUFFSIZE"), ("LL", "NCCL_LL_BUFFSIZE"))
        for shared, (collective, algorithm), (protocol, buffer) in lib.share(("0", "1"), kinds, protocols):
            setting = {"NCCL_SHM_DISABLE": shared, "NCCL_PROTO": protocol, "NCCL_ALGO": algorithm, buffer: 4096}
            with self.subTest(collective, **setting):
                self.perf(collective, "-n", 3, "-b", 999, "-e", 60000, "-f", 60, *self.QUICK, **setting)

    def test_a_buffer_that_is_too_small(self):
        for buffer in ("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE"):
            done = self.run_it(lib.PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, **{buffer: 1})
            self.assertEqual(done.status, 3, done.all)
            self.assertRegex(done.err, buffer + r" is 1 bytes; the smallest buffer is \d+")

    def test_channels(self):
        for algorithm, (fewest, most) in itertools.product(("ring", "tree"), ((4, 8), (1, 2), (3, 3))):
            with self.subTest(algorithm, fewest=fewest, most=most):
                text = self.log("all_reduce", "-n", 3, "-b", 4000, "-e", "4000", NCCL_ALGO=algorithm,
                                NCCL_MIN_NCHANNELS=fewest, NCCL_MAX_NCHANNELS=most)
                used = {int(m[4]) for m in CHOICE.findall(text)}
                # Trees come in pairs: an odd limit leaves the even number below it.
                wanted = fewest + fewest % 2 if algorithm == "tree" else fewest
                wanted = most & ~1 if wanted > most else wanted
                self.assertEqual(used, {wanted}, text[-2000:])
                self.assertEqual({int(m[0]) for m in VIA.findall(text)}, set(range(wanted)))

    def test_channels_for_large_data(self):
        """One where a thread would run them all on shared memory, or over one network; several if there must be (and
        where there are several networks, as e2e.rails has it)."""
        network = {"NCCL_SHM_DISABLE": 1, "NCCL_SOCKET_IFNAME": "lo"}
        for settings, wanted in (({}, 1), (network, 1), ({**network, "NCCL_MIN_NCHANNELS": 3}, 3)):
            with self.subTest(settings):
                text = self.log("all_reduce", "-n", 2, "-b", "1M", "-e", "1M", NCCL_ALGO="ring", **settings)
                self.assertEqual({int(m[4]) for m in CHOICE.findall(text)}, {wanted}, text[-2000:])

    def test_contradicting_channels(self):
        done = self.run_it(lib.PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, NCCL_MIN_NCHANNELS=4,
                           NCCL_MAX_NCHANNELS=2)
        self.assertEqual(done.status, 3, done.all)
        self.assertIn("at least 4 channels (NCCL_MIN_NCHANNELS) and at most 2 (NCCL_MAX_NCHANNELS)", done.err)

    def test_ctas(self):
        """The names of today, alone and beside the older ones; ranks must agree on them."""
        for settings, wanted in (({"NCCL_MIN_CTAS": 3, "NCCL_MAX_CTAS": 3}, 3),
                                 ({"NCCL_MIN_CTAS": 3, "NCCL_MIN_NCHANNELS": 5}, 5),
                                 ({"NCCL_MIN_CTAS": 5, "NCCL_MIN_NCHANNELS": 3, "NCCL_MAX_NCHANNELS": 5}, 5)):
            with self.subTest(settings):
                text = self.log("all_reduce", "-n", 2, "-b", 4000, "-e", 4000, NCCL_ALGO="ring", **settings)
                self.assertEqual({int(m[4]) for m in CHOICE.findall(text)}, {wanted}, text[-2000:])
                self.assertNotIn("has no effect", text)
        done = self.run_it(lib.PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, NCCL_MIN_CTAS=4, NCCL_MAX_NCHANNELS=2)
        self.assertEqual(done.status, 3, done.all)
        self.assertIn("at least 4 channels (NCCL_MIN_CTAS) and at most 2 (NCCL_MAX_NCHANNELS)", done.err)


class Setup(Choices):
    """Settings of how ranks meet and connect."""

    def test_one_peer_a_round(self):
        text = self.log("alltoall", "-n", 5, "-b", 1000, "-e", 1000, NCCL_CONNECT_ROUND_MAX_PEERS=1,
                        NCCL_REPORT_CONNECT_PROGRESS=1)
        self.assertTrue(re.search(r"Connecting rank 0, round 2: 1 of 1 peers are up", text), text[-3000:])
        rounds = {int(n) for n in re.findall(r"Connecting rank 0, round (\d+):", text)}
        self.assertEqual(rounds, set(range(1, max(rounds) + 1)))
        text = self.log("alltoall", "-n", 5, "-b", 1000, "-e", 1000, NCCL_REPORT_CONNECT_PROGRESS=1)
        self.assertNotRegex(text, r"Connecting rank 0, round 2")
        text = self.log("alltoall", "-n", 3, "-b", 1000, "-e", 1000)
        self.assertNotIn("Connecting rank", text)

    def test_bootstrap_over_the_net_plugin(self):
        text = self.log("all_reduce", "-n", 5, "-b", 1000, "-e", 1000, NCCL_OOB_NET_ENABLE=1)
        self.assertEqual(len(re.findall(r"the all-gather of 5 ranks runs over Socket", text)), 5)
        self.assertNotIn("runs over Socket", self.log("all_reduce", "-n", 2, "-b", 8, "-e", 8))

    def test_sockets_and_threads(self):
        for threads, sockets in ((1, 1), (2, 2), (4, 1), (0, 0)):
            with self.subTest(threads=threads, sockets=sockets):
                text = self.log("all_reduce", "-n", 3, "-b", 8, "-e", "256K", "-f", 32, NCCL_SHM_DISABLE=1,
                                NCCL_SOCKET_NTHREADS=threads, NCCL_NSOCKS_PERTHREAD=sockets)
                self.assertIn(f"{threads * sockets} data sockets a connection, {threads} helper threads", text)

    def test_checked_buffers(self):
        """What is right passes, whatever the collective."""
        for collective in COLLECTIVES:
            with self.subTest(collective):
                self.perf(collective, "-n", 3, "-b", 1, "-e", "64K", "-f", 16, NCCL_CHECK_POINTERS=1)

    def test_log_files(self):
        host = os.uname().nodename
        process = self.run_it(lib.PERF, "all_reduce", "-n", 3, "-b", 8, "-e", 8, NCCL_DEBUG="INFO",
                              NCCL_DEBUG_FILE=os.path.join(self.work, "log.%h.%p"))
        self.good(process, 1)
        self.assertNotIn("NCCL INFO", process.all)
        files = os.listdir(self.work)
        self.assertEqual(len(files), 3, files)
        for file in files:
            pid = re.fullmatch(rf"log\.{re.escape(host)}\.(\d+)", file)
            self.assertTrue(pid, file)
            text = lib.read(os.path.join(self.work, file))
            self.assertIn("Init COMPLETE", text)
            self.assertEqual(set(re.findall(r"(?m)^\S+?:(\d+):\d+ \[-?\d+\] NCCL INFO", text)), {pid[1]})

    def test_subsystems(self):
        text = self.perf("all_reduce", "-n", 2, "-b", 8, "-e", 8, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="NET")
        self.assertIn("NET/Plugin: using Socket", text)
        self.assertNotIn("Init COMPLETE", text)
        self.assertNotIn("NCCL INFO", self.perf("all_reduce", "-n", 2, "-b", 8, "-e", 8, NCCL_DEBUG="WARN"))

    def test_words_that_no_setting_has(self):
        for setting, said in (({"NCCL_ALGO": "rign"}, r'NCCL_ALGO is "rign": "rign" is not one of Tree, Ring'),
                              ({"NCCL_PROTO": "fast"}, r'NCCL_PROTO is "fast": "fast" is not one of LL, LL128, Simple'),
                              ({"NCCL_BUFFSIZE": "much"}, "NCCL_BUFFSIZE.*much")):
            with self.subTest(**setting):
                done = self.run_it(lib.PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, NCCL_DEBUG="WARN", **setting)
                self.assertRegex(done.all, said)


class Mismatch(Case):
    """One rank has another setting than the others: all ranks name it, and none hangs."""

    def differ(self, variable, value, said):
        processes = self.by_hand(("all_reduce", "-b", 8, "-e", 8), 4, NCCL_DEBUG="WARN",
                                 each=lambda r: {variable: value} if r == 2 else {})
        for rank, process in enumerate(processes):
            process.wait()
            self.assertEqual(process.status, 3, f"rank {rank}: {process.all}")
            self.assertRegex(process.all, said, f"rank {rank}")
        self.library_differs(variable, value, said)

    def library_differs(self, variable, value, said):
        """The library alone, without the tool's own way of telling processes of each other's ends."""
        for rank, process in enumerate(self.ranks(["init"] * 4, each=lambda r: {variable: value} if r == 2 else {},
                                                  NCCL_BOOTSTRAP_TIMEOUT=20)):
            process.wait()
            self.assertEqual(process.status, 3, f"rank {rank}: {process.all}")
            self.assertRegex(process.err, said, f"rank {rank}")

    def test_algorithm(self):
        self.differ("NCCL_ALGO", "ring", "NCCL_ALGO differs between ranks: rank 2 has ring, rank 0 has nothing")

    def test_protocol(self):
        self.differ("NCCL_PROTO", "LL", "NCCL_PROTO differs between ranks: rank 2 has LL, rank 0 has nothing")

    def test_buffer(self):
        self.differ("NCCL_BUFFSIZE", "65536", "NCCL_BUFFSIZE differs between ranks: rank 2 has 65536, rank 0 has -2")

    def test_channels(self):
        self.differ("NCCL_MIN_CTAS", "3", "NCCL_MIN_CTAS differs between ranks: rank 2 has 3, rank 0 has -2")

    def test_shared_memory(self):
        self.differ("NCCL_SHM_DISABLE", "1", "NCCL_SHM_DISABLE differs between ranks: rank 2 has 1, rank 0 has 0")

    def test_device(self):
        """tutti-perf would end by itself: it needs a device's own memory."""
        self.library_differs("TUTTI_DEVICE", "tpu", r"\(TUTTI_DEVICE\) differs between ranks: rank 2 has tpu, rank 0 has host")


if __name__ == "__main__":
    lib.main()
