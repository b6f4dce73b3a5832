"""NVLS and NVLSTree on the host device, which emulates multicast memory: the data is right, the choice is obeyed, and
where it cannot be used the log says why."""
import random
import signal
import time

import lib
from lib import SANITIZE
from matrix import BLOCKS, CHOICE, MODES, SIZES, Choices

LOGGED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}
QUICK = ("--iters", 1, "-w", 0)
NODE_COLLECTIVES = sorted(BLOCKS | {"all_reduce"})


class Multicast(Choices):
    def across(self, words, hosts, rows=None, **env):
        """One rank for each of `hosts`, which is the host's name; the output of all."""
        processes = self.by_hand(words, len(hosts), each=lambda r: {"NCCL_HOSTID": hosts[r]}, **{**LOGGED, **env})
        for process in processes:
            process.wait()
        for rank, process in enumerate(processes):
            self.assertEqual(process.status, 0, f"rank {rank}:\n" + "".join(p.all[-3000:] for p in processes))
        self.good(processes[0], rows)
        return "".join(p.all for p in processes)

    def chosen(self, text):
        return {m[2] for m in CHOICE.findall(text)}

    def test_one_host(self):
        for collective, (mode, flag), algorithm in lib.share(
                NODE_COLLECTIVES + ["broadcast"], list(MODES.items()), ("nvls", "nvlstree")):
            setting = {"NCCL_ALGO": algorithm}
            with self.subTest(collective, mode=mode, **setting):
                self.obeyed(self.log(collective, flag, 4, *SIZES, **setting), collective, setting)

    def test_types_and_operations(self):
        for collective in ("all_reduce", "reduce_scatter"):
            with self.subTest(collective):
                self.perf(collective, "-n", 3, "-d", "all", "-o", "all", "-b", 9960, "-e", 9960, *QUICK, rows=60,
                          NCCL_ALGO="nvls")
        self.perf("all_gather", "-t", 3, "-d", "all", "-b", 9960, "-e", 9960, *QUICK, rows=12, NCCL_ALGO="nvls")
        self.across(("all_reduce", "-d", "all", "-o", "all", "-b", 9960, "-e", 9960, *QUICK), "aabb", rows=60,
                    NCCL_ALGO="nvlstree")

    def test_counts_that_do_not_divide(self):
        for collective, ranks in lib.share(NODE_COLLECTIVES, (1, 2, 3, 5)):
            with self.subTest(collective, ranks=ranks):
                self.perf(collective, "-g", ranks, "-d", "int8", "-b", 1, "-e", 9000, "-f", 7, "-u", 1, *QUICK,
                          NCCL_ALGO="nvls")

    def test_many_loops(self):
        """Buffers so small that shared memory is used again and again, on several channels."""
        largest = "100K" if SANITIZE else "3M"
        for collective in NODE_COLLECTIVES:
            with self.subTest(collective):
                text = self.log(collective, "-n", 4, "-b", largest, "-e", largest, NCCL_ALGO="nvls",
                                NCCL_BUFFSIZE=8192, NCCL_MIN_NCHANNELS=3)
                self.assertEqual({int(m[4]) for m in CHOICE.findall(text)}, {3})
        self.across(("all_reduce", "-b", "60K", "-e", largest, "-f", 64, *QUICK), "aabb", NCCL_ALGO="nvlstree",
                    NCCL_BUFFSIZE=8192)

    def test_hosts(self):
        for hosts in ("aabb", "abab", "aaabbbccc", "aabbccdd"):
            with self.subTest(hosts):
                text = self.across(("all_reduce", *SIZES, *QUICK), hosts, NCCL_ALGO="nvlstree")
                self.assertEqual(self.chosen(text), {"NVLS_TREE"})

    def test_mixed(self):
        """Operations of different kinds and sizes back to back, some with algorithms that share nothing."""
        chance = random.Random(1)
        steps = [f"{chance.choice(('all_reduce', 'all_gather', 'reduce_scatter', 'broadcast', 'all_reduce'))}:"
                 f"{chance.choice((0, 1, 5, 100, 4097, 70000))}" for _ in range(40 if SANITIZE else 200)]
        for hosts, algorithm in (("aaaa", "nvls;allgather:ring"), ("aaa", "nvls"), ("aabb", "nvlstree")):
            with self.subTest(hosts, algorithm=algorithm):
                ranks = self.ranks([" ".join(["init", *steps, "destroy"])] * len(hosts),
                                   each=lambda r: {"NCCL_HOSTID": hosts[r]}, NCCL_ALGO=algorithm, NCCL_BUFFSIZE=65536)
                for rank, process in enumerate(ranks):
                    process.wait()
                    self.assertEqual(process.status, 0, f"rank {rank}: {process.all[-2000:]}")

    def test_why_not(self):
        for hosts, algorithm, why in (
                ("aabb", "nvls", "AllReduce does not use NVLS: the ranks are on several nodes, which is for NVLSTree"),
                ("aab", "nvlstree", "AllReduce does not use NVLS_TREE: not all nodes have the same number of ranks"),
                ("ab", "nvlstree", "AllReduce does not use NVLS_TREE: no two ranks are on one node")):
            with self.subTest(hosts, algorithm=algorithm):
                text = self.across(("all_reduce", "-b", 1000, "-e", 1000, *QUICK), hosts, NCCL_ALGO=algorithm)
                self.assertIn(why, text)
                self.assertFalse(self.chosen(text) & {"NVLS", "NVLS_TREE"})
                self.assertIn(f"NCCL_ALGO={algorithm} has nothing for AllReduce", text)
        text = self.log("all_reduce", "-n", 2, "-b", 1000, "-e", 1000, NCCL_ALGO="nvls", NCCL_SHM_DISABLE=1)
        self.assertIn("AllReduce does not use NVLS: there is no multicast memory", text)

    def test_a_protocol_that_it_has_not(self):
        done = self.run_it(lib.PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, NCCL_ALGO="nvls", NCCL_PROTO="LL")
        self.assertEqual(done.status, 3, done.all)
        self.assertIn('NCCL_PROTO is "LL" and NCCL_ALGO is "nvls", which leaves nothing for AllReduce', done.err)

    def test_only_by_name(self):
        text = self.log("all_reduce", "-n", 2, "-b", 8, "-e", "64K", "-f", 64)
        self.assertFalse(self.chosen(text) & {"NVLS", "NVLS_TREE"})
        self.assertNotIn("multicast is emulated", text)

    def test_killed(self):
        """A rank that dies ends the others' operations, which wait for it on shared memory."""
        ranks = self.ranks(["init loop:all_reduce:100000"] * 3, NCCL_ALGO="nvls")
        for process in ranks:
            self.until(lambda: "running" in process.out, "the first operation")
        ranks[1].popen.send_signal(signal.SIGKILL)
        began = time.monotonic()
        for rank in (0, 2):
            ranks[rank].wait()
            self.assertEqual(ranks[rank].status, 3, ranks[rank].all[-2000:])
            self.assertIn("rank 1", ranks[rank].err)
        self.assertLess(time.monotonic() - began, 30)


if __name__ == "__main__":
    lib.main()
