"""Two hosts as network namespaces joined by virtual cables: ranks inside one share memory, ranks of different ones use
the net plugin, and the interfaces that may be used carry the data. Needs root."""
import atexit
import os
import re
import shutil
import subprocess
import time
import unittest

import lib
from lib import COLLECTIVES, Case
from matrix import VIA

PREFIX = "tt-"


def ip(*words):
    done = subprocess.run(["ip", *map(str, words)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise unittest.SkipTest(f"`ip {' '.join(map(str, words))}` failed: {done.stdout.strip()}")
    return done.stdout


class Hosts:
    """Two namespaces. Interfaces vanish with the namespace they are in."""

    def __init__(self):
        self.remove_stale()
        self.names = [f"{PREFIX}{letter}-{os.getpid()}" for letter in "ab"]
        atexit.register(self.remove)
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")

    @staticmethod
    def remove_stale():
        """Those of a run that was killed."""
        for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else ():
            owner = re.fullmatch(PREFIX + r"[ab]-(\d+)", name)
            if owner and not os.path.exists(f"/proc/{owner[1]}"):
                subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def cable(self, number, *addresses, checks=0):
        """An interface e<number> in both, with addresses in which % stands for the host's own part. With `checks` it
        also has a link-local IPv6 address that is of no use for that many seconds, while duplicates are looked for."""
        a, b = self.names
        ip("link", "add", f"e{number}", "netns", a, "type", "veth", "peer", "name", f"e{number}", "netns", b)
        for i, name in enumerate(self.names):
            for address in addresses:
                ip("-n", name, "address", "add", address.replace("%", str(i + 1)), "dev", f"e{number}",
                   *(("nodad",) if ":" in address else ()))
            if checks:
                file = f"/proc/sys/net/ipv6/conf/e{number}/dad_transmits"
                ip("netns", "exec", name, "sh", "-c", f"echo {checks} > {file}")
            else:
                ip("-n", name, "link", "set", f"e{number}", "addrgenmode", "none")
            ip("-n", name, "link", "set", f"e{number}", "up")
        for name in self.names:
            while "state UP" not in ip("-n", name, "link", "show", f"e{number}"):
                time.sleep(0.01)

    def nowhere(self, number, address):
        """In the first host an interface that is up and has an address, and on whose other end nobody answers."""
        a = self.names[0]
        ip("-n", a, "link", "add", f"e{number}", "type", "veth", "peer", "name", f"x{number}")
        ip("-n", a, "address", "add", address, "dev", f"e{number}")
        for end in ("e", "x"):
            ip("-n", a, "link", "set", f"{end}{number}", "addrgenmode", "none")
            ip("-n", a, "link", "set", f"{end}{number}", "up")

    def sent(self, number):
        return [int(ip("netns", "exec", name, "cat", f"/sys/class/net/e{number}/statistics/tx_bytes"))
                for name in self.names]

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


class OnHosts(Case):
    """Each test has two hosts of its own, and none where that cannot be."""

    @classmethod
    def setUpClass(cls):
        lib.need(shutil.which("ip"), "there is no ip command (iproute2)")
        lib.need(os.geteuid() == 0, "network namespaces need root")
        Hosts().remove()

    def setUp(self):
        super().setUp()
        self.hosts = Hosts()
        self.addCleanup(self.hosts.remove)


class Namespaces(OnHosts):
    def across(self, *words, address="10.1.0.1", **env):
        """Ranks 0 and 1 on one host, 2 and 3 on the other; the output of all when all was right."""
        a, b = self.hosts.names
        processes = self.by_hand(words, 4, hosts=(a, a, b, b), address=address, **env)
        for process in processes:
            process.wait()
        for rank, process in enumerate(processes):
            self.assertEqual(process.status, 0, f"rank {rank}:\n" + "".join(p.all[-3000:] for p in processes))
        self.good(processes[0])
        return [p.all for p in processes]

    LOGGED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}

    def all_collectives(self, **env):
        for collective in COLLECTIVES:
            with self.subTest(collective):
                largest = "8K" if lib.SANITIZE else "128K"
                texts = self.across(collective, "-b", 8, "-e", largest, "-f", 16, "--iters", 1, "-w", 0, **self.LOGGED,
                                    **env)
                self.transports(texts, collective)

    def transports(self, texts, collective):
        used = set()
        shared = "/Shared" if collective in lib.SHARING else ""
        for _, source, target, via in VIA.findall("".join(texts)):
            inside = int(source) // 2 == int(target) // 2
            self.assertRegex(via, "SHM/|P2P/" if inside else rf"NET/Socket/\d+{shared}$", f"{source} -> {target}")
            used.add(inside)
        self.assertEqual(used, {True, False})

    def test_ipv4(self):
        self.hosts.cable(0, "10.1.0.%/24")
        self.all_collectives()

    def test_ipv6_only(self):
        self.hosts.cable(0, "fd00:1::%/64")
        self.all_collectives(address="fd00:1::1")

    def test_addresses_that_are_not_ready(self):
        self.hosts.cable(0, "10.1.0.%/24", checks=60)
        self.assertIn("tentative", ip("-n", self.hosts.names[0], "address"))
        texts = self.across("all_reduce", "-b", 8, "-e", 8, "--iters", 1, **self.LOGGED)
        self.transports(texts, "all_reduce")
        self.assertNotIn("fe80:", "".join(texts))

    def test_what_the_log_says_of_the_plugin(self):
        self.hosts.cable(0, "10.1.0.%/24")
        for rank, text in enumerate(self.across("all_reduce", "-b", 64, "-e", 64, NCCL_DEBUG="INFO")):
            chosen = re.search(r"NET/Plugin: using Socket \(ABI v(\d+), 1 device\) from (\S+): (.+)", text)
            self.assertTrue(chosen, f"rank {rank}: {text}")
            self.assertEqual(chosen[1], "12")
            self.assertTrue(os.path.isfile(chosen[2]), chosen[2])
            self.assertIn("usable on all 4 ranks", chosen[3])
            self.assertIn("4 ranks on 2 hosts", text)

    def test_algorithms(self):
        self.hosts.cable(0, "10.1.0.%/24")
        for algorithm in ("ring", "tree", "oneshot", "twoshot"):
            for protocol in ("Simple", "LL"):
                with self.subTest(algorithm, protocol=protocol):
                    self.across("all_reduce", "-b", 8, "-e", "8K", "-f", 32, "--iters", 1, "-w", 0,
                                NCCL_ALGO=algorithm, NCCL_PROTO=protocol)

    def carried(self, before, number):
        return min(now - then for now, then in zip(self.hosts.sent(number), before[number]))

    def exchange(self, **env):
        """Sixteen all-reduces of 256 KiB on a ring of four channels; the bytes that each cable then has carried."""
        before = [self.hosts.sent(0), self.hosts.sent(1)]
        self.across("all_reduce", "-b", "256K", "-e", "256K", "--iters", 16, NCCL_ALGO="ring", NCCL_MIN_NCHANNELS=4,
                    **env)
        return [self.carried(before, 0), self.carried(before, 1)]

    def test_two_interfaces_share_the_data(self):
        self.hosts.cable(0, "10.1.0.%/24")
        self.hosts.cable(1, "10.2.0.%/24")
        first, second = self.exchange()
        self.assertGreater(first, 1 << 20)
        self.assertGreater(second, 1 << 20)

    def test_one_of_two_interfaces(self):
        self.hosts.cable(0, "10.1.0.%/24")
        self.hosts.cable(1, "10.2.0.%/24")
        for name in ("=e1", "e1", "^e0,lo"):
            with self.subTest(name):
                # Process 0 of the tool listens on the first cable; the library may use the second only.
                first, second = self.exchange(NCCL_SOCKET_IFNAME=name)
                self.assertLess(first, 1 << 18)
                self.assertGreater(second, 1 << 20)

    def test_an_interface_that_leads_nowhere(self):
        """Ranks on one host may use an interface whose address the other host cannot reach: data still passes, or the
        error names the address, and neither takes long."""
        self.hosts.cable(0, "10.1.0.%/24")
        self.hosts.nowhere(1, "10.9.0.1/24")
        a, b = self.hosts.names
        processes = self.by_hand(("all_reduce", "-b", "64K", "-e", "64K", "--iters", 2), 4, hosts=(a, a, b, b),
                                 address="10.1.0.1", NCCL_SOCKET_TIMEOUT=5, NCCL_BOOTSTRAP_TIMEOUT=10,
                                 NCCL_DEBUG="WARN", NCCL_SOCKET_RETRY_CNT=3)
        for process in processes:
            process.wait()
        if any(p.status for p in processes):
            for rank, process in enumerate(processes):
                self.assertEqual(process.status, 3, f"rank {rank}: {process.all}")
                self.assertIn("10.9.0.1", process.all, f"rank {rank}")
        else:
            self.good(processes[0], 1)
        # With the interface excluded it must work.
        self.across("all_reduce", "-b", "64K", "-e", "64K", "--iters", 2, NCCL_SOCKET_IFNAME="e0")

    def test_an_interface_that_does_not_exist(self):
        self.hosts.cable(0, "10.1.0.%/24")
        a, b = self.hosts.names
        for process in self.by_hand(("all_reduce", "-b", 8, "-e", 8), 4, hosts=(a, a, b, b), address="10.1.0.1",
                                    NCCL_SOCKET_IFNAME="nope0"):
            process.wait()
            self.assertEqual(process.status, 3, process.all)
            self.assertRegex(process.err, r"no usable network interface matches NCCL_SOCKET_IFNAME=nope0; there are: "
                             r".*e0 10\.1\.0\.[12]")

    def test_no_network_allowed(self):
        self.hosts.cable(0, "10.1.0.%/24")
        a, b = self.hosts.names
        processes = self.by_hand(("all_reduce", "-b", 8, "-e", 8), 4, hosts=(a, a, b, b), address="10.1.0.1",
                                 NCCL_NET_DISABLE=1)
        for rank, process in enumerate(processes):
            process.wait()
            self.assertEqual(process.status, 3, f"rank {rank}: {process.all}")
            self.assertRegex(process.err, r"no transport can reach rank \d from rank \d \(SHM: ranks \d and \d are on "
                             r"two hosts or network namespaces, both named \S+; NET: NCCL_NET_DISABLE is set\)",
                             f"rank {rank}")


class Unreachable(Case):
    """A network that goes away without a word: no connection is closed, and nothing that is sent arrives."""

    SECONDS = 2

    @classmethod
    def setUpClass(cls):
        Namespaces.setUpClass()

    def setUp(self):
        super().setUp()
        self.hosts = Hosts()
        self.addCleanup(self.hosts.remove)

    def tearDown(self):
        self.nothing_left()

    def start_ranks(self, steps, **env):
        """Ranks 0 and 1 on one host, 2 and 3 on the other."""
        a, b = self.hosts.names
        file = os.path.join(self.work, "id")
        return [self.start(lib.RANKS, r, 4, file, *steps.split(), host=host,
                           **{"TUTTI_PEER_TIMEOUT": self.SECONDS, "NCCL_BOOTSTRAP_TIMEOUT": 20, **env})
                for r, host in enumerate((a, a, b, b))]

    def cut(self, number):
        ip("-n", self.hosts.names[1], "link", "set", f"e{number}", "down")

    def blamed(self, processes, pattern):
        """All end by themselves, and each blames a rank of the other host."""
        for rank, process in enumerate(processes):
            process.wait(60)
            self.assertEqual(process.status, 3, f"rank {rank}: {process.all}")
            self.assertRegex(process.err, pattern % ("[23]" if rank < 2 else "[01]"), f"rank {rank}")

    def test_in_an_all_reduce(self):
        self.hosts.cable(0, "10.1.0.%/24")
        processes = self.start_ranks("init loop:all_reduce:1000")
        self.until(lambda: all("running" in p.out for p in processes), "the loop's start")
        self.cut(0)
        self.blamed(processes, r"rank %%s .*has not answered for %d s \(TUTTI_PEER_TIMEOUT\)" % self.SECONDS)

    def test_a_second_interface(self):
        """Ranks go on hearing of each other over the first one, and only the data of the second is lost."""
        self.hosts.cable(0, "10.1.0.%/24")
        self.hosts.cable(1, "10.2.0.%/24")
        processes = self.start_ranks("init loop:all_reduce:200000", NCCL_SOCKET_IFNAME="e0,e1", NCCL_MIN_NCHANNELS=2)
        self.until(lambda: all("running" in p.out for p in processes), "the loop's start")
        self.assertTrue(all(sent > 100000 for sent in self.hosts.sent(1)), "the second interface carries nothing")
        self.cut(1)
        for rank, process in enumerate(processes):
            process.wait(60)
            self.assertEqual(process.status, 3, f"rank {rank}: {process.all}")
            self.assertRegex(process.err, r"rank \d.*10\.2\.0\.[12]", f"rank {rank}")

    def test_during_init(self):
        self.hosts.cable(0, "10.1.0.%/24")
        a, b = self.hosts.names
        file = os.path.join(self.work, "id")
        env = {"TUTTI_PEER_TIMEOUT": self.SECONDS, "NCCL_BOOTSTRAP_TIMEOUT": 3}
        processes = [self.start(lib.RANKS, r, 4, file, "init", host=h, **env) for r, h in enumerate((a, a, b))]
        self.until(lambda: lib.listening(processes[2].pid), "the listening of rank 2")
        time.sleep(0.3)
        self.cut(0)
        processes.append(self.start(lib.RANKS, 3, 4, file, "init", host=b, **env))
        for rank, process in enumerate(processes):
            process.wait(60)
            self.assertEqual(process.status, 3, f"rank {rank}: {process.all}")
            self.assertRegex(process.err, r"\brank 3\b|bootstrap root", f"rank {rank}")

    def test_before_destroy(self):
        """Nobody waits, so nothing need be found out; but nobody is waited for in vain either."""
        self.hosts.cable(0, "10.1.0.%/24")
        processes = self.start_ranks("init all_reduce:10 ready sleep:500 destroy")
        self.until(lambda: all("running" in p.out for p in processes), "the all-reduce")
        self.cut(0)
        for rank, process in enumerate(processes):
            process.wait(60)
            self.assertEqual(process.status, 0, f"rank {rank}: {process.all}")


if __name__ == "__main__":
    lib.main()
