"""The adaptive tuner in whole runs, over a network of which the core's model knows nothing: messages of some sizes arrive
late there (slow_net.c)."""
import os

import lib
from lib import Case
from matrix import CHOICE

# 64 KiB among four ranks: messages of a tree have 4 KiB, those of a ring 16 KiB. What is late is so by far more than an
# operation takes, also where many processes share few processors.
LIMIT, LATE_USEC = 8192, 60000 if lib.SANITIZE else 20000
PATIENCE = 4 * lib.PATIENCE


class AdaptiveTuner(Case):
    def env(self, **more):
        self.slow = os.path.join(self.work, "slow")
        return {"TUTTI_TUNER_ADAPT": 1, "NCCL_SHM_DISABLE": 1, "NCCL_NET_PLUGIN": os.environ["E2E_SLOW_NET"],
                "SLOW_PLUGIN": os.environ["E2E_SOCKET_NET"], "SLOW_FILE": self.slow, "SLOW_BYTES": LIMIT,
                "SLOW_USEC": LATE_USEC, "NCCL_SOCKET_IFNAME": "lo", "NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring,Tree",
                "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING",
                "NCCL_DEBUG_FILE": os.path.join(self.work, "log.%p"), **more}

    def logs(self):
        return [lib.read(os.path.join(self.work, f)) for f in sorted(os.listdir(self.work)) if f.startswith("log.")]

    def choices(self, ranks):
        """Of the calls in their order, the same on all ranks, as far as all have made them."""
        found = [[(c[2], c[3], c[4]) for c in CHOICE.findall(log)] for log in self.logs()]
        found = [sequence for sequence in found if sequence]
        self.assertEqual(len(found), ranks)
        common = min(len(sequence) for sequence in found)
        self.assertTrue(all(sequence[:common] == found[0][:common] for sequence in found))
        return found[0]

    def test_a_bad_choice_is_left(self):
        """The model prefers trees, whose messages are late here. All data is right meanwhile."""
        self.perf("all_reduce", "-n", 4, "--sizes", 65536, "--iters", 60, "-w", 0, "-c", 5, **self.env())
        chosen = self.choices(4)
        text = "".join(self.logs())
        self.assertEqual(chosen[0][0], "TREE")
        self.assertEqual({choice[0] for choice in chosen[-50:]}, {"RING"})
        self.assertIn("allreduce of 65536 bytes tries tree simple, 1 of 2", text)
        self.assertRegex(text, r"settles on ring simple: [\d.]+ us a call, where tree simple took [\d.]+ us")
        self.assertRegex(text, r"Tuner: Tutti, asked for AllReduce of 65536 bytes, says RING with SIMPLE, "
                               r"to be asked again after \d+ calls")

    def test_it_looks_again(self):
        """The network changes: now it is the ring's messages that are late."""
        process = self.start(lib.PERF, "all_reduce", "-n", 4, "--sizes", 65536, "--iters", 50, "-w", 0, "-N", 0,
                             **self.env())
        self.until(lambda: "settles on ring simple" in "".join(self.logs()), "the ring", PATIENCE)
        # The calls that it is compared with are over.
        self.until(lambda: "says RING with SIMPLE, to be asked again after 64" in "".join(self.logs()), "the reference",
                   PATIENCE)
        open(self.slow, "w").close()
        self.until(lambda: "settles on tree simple" in "".join(self.logs()), "the tree", PATIENCE)
        text = "".join(self.logs())
        self.assertRegex(text, r"takes [\d.]+ us a call and [\d.]+ retries, where it took [\d.]+ us and [\d.]+: looks again")
        rows = lib.ROW.findall(process.out)
        self.assertTrue(rows)
        process.kill()
        self.choices(4)
        for line in process.out.splitlines():
            if lib.ROW.match(line):
                self.assertEqual((line.split()[8], line.split()[12]), ("0", "0"), line)

    def test_without_a_network(self):
        """All in shared memory: the core's choice is kept, and it is said once a rank at most."""
        plain = self.env(NCCL_SHM_DISABLE=0, NCCL_ALGO="", NCCL_PROTO="")
        self.perf("all_reduce", "-n", 3, "-b", 1024, "-e", 4096, "-f", 2, "--iters", 30, **plain)
        text = "".join(self.logs())
        self.assertEqual(text.count("moves nothing over the network that is timed"), 1)
        self.assertNotIn("settles on", text)


if __name__ == "__main__":
    lib.main()
