"""CollNet end to end: communicators of several hosts whose sums a software plugin makes over sockets. Hosts are made
with NCCL_HOSTID, which keeps ranks from sharing memory with those of another."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import lib
from lib import SANITIZE, Case

PLUGINS = os.environ["E2E_COLLNET"]
ALGORITHMS = {"collnetdirect": "COLLNET_DIRECT", "collnetchain": "COLLNET_CHAIN"}
SHAPES = {"2+2": "aabb", "3+1": "aaab", "dealt": "abab", "1+1+1": "abc"}
CHOICE = re.compile(r"AllReduce: (\d+) bytes -> algorithm (\w+) protocol (\w+) channels (\d+): (.*)")
OUT = re.compile(r"CollNet is out, as network Software does not reduce (\w+) by")
QUICK = ("--iters", 1, "-w", 0)


def plugin(version=None):
    return os.path.join(PLUGINS, f"libcollnet-software{f'-v{version}' if version else ''}.so")


class CollNet(Case):
    def start_all(self, words, hosts, each=None, **env):
        env = {"NCCL_COLLNET_ENABLE": 1, "NCCL_NET_PLUGIN": plugin(), "NCCL_DEBUG": "INFO",
               "NCCL_DEBUG_SUBSYS": "INIT,NET,TUNING", **env}
        env = {k: v for k, v in env.items() if v is not None}
        return self.by_hand(("all_reduce", *words), len(hosts),
                            each=lambda r: {"NCCL_HOSTID": hosts[r], **(each(r) if each else {})}, **env)

    def reduces(self, words, hosts, rows=None, each=None, **env):
        """All ranks end well and rank 0 finds all data right. Returns each rank's output."""
        done = [p.wait() for p in self.start_all(words, hosts, each, **env)]
        for process in done[1:]:
            self.assertEqual(process.status, 0, process.all[-4000:])
        self.good(done[0], rows)
        return [p.all for p in done]

    def chosen(self, text):
        return {m[1] for m in CHOICE.findall(text)}

    def all_types_but_fp8(self, text, algorithm):
        """The network reduces no fp8, for which something else is chosen each time."""
        out = OUT.findall(text)
        self.assertEqual(set(out), {"float8e4m3", "float8e5m2"})
        chosen = [m[1] for m in CHOICE.findall(text)]
        self.assertEqual(len(chosen) - chosen.count(algorithm), len(out))
        self.assertGreater(chosen.count(algorithm), 0)

    def test_all_types_and_operations(self):
        for (name, algorithm), (shape, hosts) in lib.share(list(ALGORITHMS.items()), list(SHAPES.items())):
            with self.subTest(name, shape=shape):
                texts = self.reduces(("-d", "all", "-o", "all", "-b", 488, "-e", 488, *QUICK), hosts, 60, NCCL_ALGO=name)
                for text in texts:
                    self.all_types_but_fp8(text, algorithm)

    def test_the_plugin_reduces(self):
        log = os.path.join(self.work, "log")
        self.reduces(("-d", "float", "-o", "sum", "-b", 4000, "-e", 4000, *QUICK), "aabb", 1, NCCL_ALGO="collnetchain",
                     SOFTWARE_COLLNET_LOG=log)
        done = [line.split() for line in lib.read(log).splitlines()]
        # Two heads reduce each of the data's elements at least once.
        self.assertTrue(done and all(d[1:] == ["float32", "0"] for d in done), done)
        self.assertGreaterEqual(sum(int(d[0]) for d in done), 2 * 1000)

    def test_counts_that_do_not_divide(self):
        for name, hosts in lib.share(list(ALGORITHMS), ("aabb", "aaab", "aaabbb")):
            with self.subTest(name, hosts=hosts):
                self.reduces(("-d", "int8", "-b", 1, "-e", 9000, "-f", 7, "-u", 1, *QUICK), hosts, NCCL_ALGO=name)

    def test_large(self):
        size = "1M" if SANITIZE else "16M"
        for name in ALGORITHMS:
            with self.subTest(name):
                text = self.reduces(("-b", size, "-e", size, "--iters", 3, "-w", 1), "aabb", 1, NCCL_ALGO=name)[0]
                self.assertEqual({m[3] for m in CHOICE.findall(text)}, {"4"})

    def test_small_buffers_and_counters_that_wrap(self):
        for name in ALGORITHMS:
            self.reduces(("-b", 60000, "-e", 60000, *QUICK), "aabb", 1, NCCL_ALGO=name, NCCL_BUFFSIZE=4096)
            self.reduces(("-b", 60000, "-e", 60000, *QUICK), "aabb", 1, NCCL_ALGO=name, NCCL_BUFFSIZE=4096,
                         TUTTI_FIRST_STEP=(1 << 32) - 8)

    def test_every_version(self):
        for version in range(6, 13):
            with self.subTest(version=version):
                texts = self.reduces(("-b", 5000, "-e", 5000, *QUICK), "aab", 1, NCCL_ALGO="collnetdirect",
                                     NCCL_NET_PLUGIN=plugin(version))
                for text in texts:
                    self.assertIn(f"CollNet: using Software (ABI v{version}, 1 device) from", text)

    def test_late_completion(self):
        self.reduces(("-b", 20000, "-e", 20000, *QUICK), "aabb", 1, NCCL_ALGO="collnetdirect", SOFTWARE_COLLNET_LATE=100)

    # Whether it is used, and why not.

    def test_chosen_without_being_named(self):
        for text in self.reduces(("-b", "1M", "-e", "1M", *QUICK), "aabb", 1):
            self.assertTrue(self.chosen(text) <= set(ALGORITHMS.values()), self.chosen(text))

    def test_not_enabled(self):
        for text in self.reduces(("-b", 1000, "-e", 1000, *QUICK), "aabb", 1, NCCL_COLLNET_ENABLE=None):
            self.assertFalse(self.chosen(text) & set(ALGORITHMS.values()))
        for text in self.reduces(("-b", 1000, "-e", 1000, *QUICK), "aabb", 1, NCCL_COLLNET_ENABLE=0,
                                 NCCL_ALGO="collnetchain"):
            self.assertIn("CollNet, which NCCL_ALGO names, is not used: neither NCCL_COLLNET_ENABLE nor", text)

    def test_one_host(self):
        for text in self.reduces(("-b", 1000, "-e", 1000, *QUICK), "aaa", 1):
            self.assertIn("CollNet is not used: there are 1 hosts, and NCCL_COLLNET_NODE_THRESHOLD is 2", text)
            self.assertFalse(self.chosen(text) & set(ALGORITHMS.values()))
        for name, algorithm in ALGORITHMS.items():
            for text in self.reduces(("-d", "all", "-b", 1000, "-e", 1000, *QUICK), "aaa", 12, NCCL_ALGO=name):
                self.all_types_but_fp8(text, algorithm)

    def test_one_process(self):
        text = self.log("all_reduce", "-t", 4, "-d", "all", "-b", 5000, "-e", 5000, NCCL_ALGO="collnetdirect",
                        NCCL_COLLNET_ENABLE=1, NCCL_NET_PLUGIN=plugin())
        self.all_types_but_fp8(text, "COLLNET_DIRECT")

    def test_a_type_that_the_network_does_not_reduce(self):
        for text in self.reduces(("-d", "all", "-b", 1000, "-e", 1000, *QUICK), "aabb", 12, NCCL_ALGO="collnetchain",
                                 SOFTWARE_COLLNET_ONLY="float32"):
            self.assertIn("CollNet is out, as network Software does not reduce int8 by sum", text)
            self.assertNotIn("does not reduce float32", text)
            self.assertIn("COLLNET_CHAIN", self.chosen(text))
            self.assertGreater(len(self.chosen(text)), 1)
            self.assertIn("NCCL_ALGO=collnetchain has nothing for AllReduce", text)

    def test_no_plugin(self):
        for text in self.reduces(("-b", 1000, "-e", 1000, *QUICK), "aab", 1, NCCL_NET_PLUGIN=None):
            self.assertIn("CollNet is not used: rank 0 has none: no library of NCCL_NET_PLUGIN holds a collnet plugin", text)

    def test_different_versions(self):
        each = lambda r: {"NCCL_NET_PLUGIN": plugin(8 if r == 2 else 12)}
        for text in self.reduces(("-b", 1000, "-e", 1000, *QUICK), "aab", 1, each):
            self.assertIn("CollNet is not used: rank 0 has Software (v12), rank 2 has Software (v8)", text)

    # What fails on one rank is named on all.

    def test_faults_while_setting_up(self):
        reasons = {"init": "rank 2 has none: Software: its init failed", "devices": "rank 2 has none: Software has no devices",
                   "listen": "rank 2: software collnet: listening fails on request$",
                   "connect": "rank 0: software collnet: waited 2000 ms for members; "
                              "rank 2: software collnet: connecting fails on request$"}
        for fault, reason in reasons.items():
            with self.subTest(fault):
                each = lambda r: {"SOFTWARE_COLLNET_FAULT": fault if r == 2 else ""}
                texts = self.reduces(("-b", 1000, "-e", 1000, *QUICK), "abc", 1, each, NCCL_ALGO="collnetdirect",
                                     SOFTWARE_COLLNET_PATIENCE=2000)
                for text in texts:
                    self.assertRegex(text, "(?m)CollNet, which NCCL_ALGO names, is not used: (" + reason + ")")
                    self.assertFalse(self.chosen(text) & set(ALGORITHMS.values()))

    def test_nobody_waits_in_a_connect_for_who_failed(self):
        reasons = {"small": r"slots of \d+ bytes are more than the 1000 that network Software reduces at once",
                   "register": r"COLLNET/Software/0 cannot register \d+ bytes"}
        for fault, reason in reasons.items():
            with self.subTest(fault):
                each = lambda r: {"SOFTWARE_COLLNET_FAULT": fault if r == 2 else ""}
                texts = self.reduces(("-b", 1000, "-e", 1000, *QUICK), "abc", 1, each, NCCL_ALGO="collnetdirect",
                                     SOFTWARE_COLLNET_PATIENCE=-1)
                for text in texts:
                    self.assertRegex(text, "CollNet, which NCCL_ALGO names, is not used: rank 2: " + reason)
                    self.assertFalse(self.chosen(text) & set(ALGORITHMS.values()))

    def test_faults_at_work(self):
        for fault in ("post", "test"):
            for name in ALGORITHMS:
                with self.subTest(fault, algorithm=name):
                    each = lambda r: {"SOFTWARE_COLLNET_FAULT": fault if r == 2 else "", "SOFTWARE_COLLNET_AFTER": 3}
                    words = ("-b", 1000, "-e", 1000, "--iters", 20, "-w", 0)
                    done = [p.wait() for p in self.start_all(words, "aabb", each, NCCL_ALGO=name)]
                    for process in done:
                        self.assertNotEqual(process.status, 0, process.all[-4000:])
                        self.assertRegex(process.all, r"rank 2: reducing via COLLNET/Software/0 failed|"
                                                      r"software collnet: (posting|testing) fails on request")


if __name__ == "__main__":
    lib.main()
