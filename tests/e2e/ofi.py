"""Collectives over net-ofi, with the providers of libfabric that need no NIC: between processes of one host that have no
shared memory, and between two hosts as network namespaces. E2E_WHOLE=1 runs every collective over every provider with
every algorithm and protocol; without it a sample runs."""
import itertools
import os
import signal

import lib
from lib import COLLECTIVES, SANITIZE, Case
from matrix import HAVE, VIA
from namespaces import OnHosts

WHOLE = os.environ.get("E2E_WHOLE", "") not in ("", "0")
QUICK = ("--iters", 1, "-w", 0)
OFI = {"NCCL_NET": "ofi", "NCCL_SHM_DISABLE": 1, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}
PLUGIN = os.path.join(os.path.dirname(os.environ["E2E_SOCKET_NET"]), "libtutti-net-ofi.so")


def settings():
    """The default, and each algorithm and protocol that has a say."""
    return [{}] + [{"NCCL_ALGO": a} for a in ("ring", "tree", "direct", "pat")] + \
           [{"NCCL_PROTO": p} for p in ("LL", "Simple")]


class OverOfi(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        lib.need(os.path.exists(PLUGIN), "libtutti-net-ofi.so was not built: there are no headers of libfabric")

    def uses(self, text, provider, inside=None):
        """All data between hosts went over net-ofi, by the provider."""
        self.assertRegex(text, rf"NET/OFI : Using provider {provider}[; ]")
        self.assertIn("NET/Plugin: using OFI", text)
        vias = [(int(a) // 2 == int(b) // 2, via) for _, a, b, via in VIA.findall(text)]
        self.assertTrue(vias, text[-3000:])
        for same, via in vias:
            self.assertRegex(via, inside if inside and same else r"NET/OFI/\d+", str(vias))


class Ofi(OverOfi):
    """One host: four processes without shared memory."""

    def over(self, provider, collective, *words, **env):
        text = self.perf(collective, "-n", 4, *words, *QUICK, FI_PROVIDER=provider, **{**OFI, **env})
        self.uses(text, provider)

    def test_all_reduce(self):
        for provider in ("tcp", "shm", "sockets"):
            with self.subTest(provider):
                self.over(provider, "all_reduce", "-b", 8, "-e", "32K" if SANITIZE else "2M", "-f", 64)

    def test_shared_comms_and_tags(self):
        """Ranks that are threads share connections, and their messages are told apart by tags."""
        text = self.log("alltoall", "-t", 4, "-b", "64K", "-e", "64K", FI_PROVIDER="tcp", **OFI)
        self.uses(text, "tcp", r"NET/OFI/\d+/Shared")

    def test_every_collective(self):
        lib.need(WHOLE, "E2E_WHOLE is not set")
        for provider, collective, setting in itertools.product(("tcp", "shm", "sockets"), COLLECTIVES, settings()):
            if collective not in HAVE.get(setting.get("NCCL_ALGO"), COLLECTIVES):
                continue
            with self.subTest(provider, collective=collective, **setting):
                self.over(provider, collective, "-b", 8, "-e", "512K", "-f", 256, **setting)

    def test_large(self):
        lib.need(WHOLE, "E2E_WHOLE is not set")
        for provider in ("tcp", "shm", "sockets"):
            with self.subTest(provider):
                self.over(provider, "all_reduce", "-b", "64M", "-e", "64M")

    def test_providers_that_differ(self):
        processes = self.by_hand(("all_reduce", "-b", 8, "-e", 8), 2, NCCL_DEBUG="WARN", NCCL_NET="ofi",
                                 NCCL_SHM_DISABLE=1, NCCL_BOOTSTRAP_TIMEOUT=20,
                                 each=lambda r: {"FI_PROVIDER": "shm" if r else "tcp"})
        for process in processes:
            self.assertEqual(process.wait().status, 3, process.all)
        self.assertRegex("".join(p.all for p in processes), r"uses provider (shm|tcp;ofi_rxm) and this side")

    def test_a_rank_that_is_killed(self):
        """The others end with an error, whoever hears of it first, and none hangs."""
        processes = self.by_hand(("all_reduce", "-b", "1M", "-e", "1M", "--iters", 1000000), 4, NCCL_NET="ofi",
                                 NCCL_SHM_DISABLE=1, FI_PROVIDER="tcp", NCCL_DEBUG="INFO")
        self.until(lambda: all("Init COMPLETE" in p.all for p in processes), "the start of all ranks")
        os.kill(processes[2].pid, signal.SIGKILL)
        for rank in (0, 1, 3):
            self.assertEqual(processes[rank].wait().status, 3, processes[rank].all[-3000:])


class OfiHosts(OverOfi, OnHosts):
    """Two hosts: data between them goes over net-ofi, and inside by shared memory."""

    def across(self, provider, collective, *words, address="10.1.0.1", **env):
        a, b = self.hosts.names
        more = {**OFI, "NCCL_SHM_DISABLE": 0, "FI_PROVIDER": provider, **env}
        processes = self.by_hand((collective, *words, *QUICK), 4, hosts=(a, a, b, b), address=address, **more)
        for rank, process in enumerate(processes):
            process.wait()
            self.assertEqual(process.status, 0, f"rank {rank}:\n" + "".join(p.all[-3000:] for p in processes))
        self.good(processes[0])
        return "".join(p.all for p in processes)

    def test_ipv4(self):
        self.hosts.cable(0, "10.1.0.%/24")
        before = self.hosts.sent(0)
        for collective in COLLECTIVES if WHOLE else ("all_reduce", "alltoall"):
            with self.subTest(collective):
                text = self.across("tcp", collective, "-b", 8, "-e", "8K" if SANITIZE else "128K", "-f", 16)
                self.uses(text, "tcp", r"SHM/|P2P/")
        self.assertGreater(min(now - then for now, then in zip(self.hosts.sent(0), before)), 1 << 14)

    def test_other_providers(self):
        self.hosts.cable(0, "10.1.0.%/24")
        for collective in COLLECTIVES if WHOLE else ("all_reduce",):
            with self.subTest(collective):
                text = self.across("sockets", collective, "-b", 8, "-e", "8K", "-f", 32)
                self.uses(text, "sockets", r"SHM/|P2P/")

    def test_ipv6_only(self):
        self.hosts.cable(0, "fd00:1::%/64")
        text = self.across("tcp", "all_reduce", "-b", 8, "-e", "8K", "-f", 32, address="fd00:1::1")
        self.uses(text, "tcp", r"SHM/|P2P/")

    def test_a_provider_that_leaves_no_host(self):
        self.hosts.cable(0, "10.1.0.%/24")
        a, b = self.hosts.names
        processes = self.by_hand(("all_reduce", "-b", 8, "-e", 8), 2, hosts=(a, b), address="10.1.0.1", NCCL_NET="ofi",
                                 FI_PROVIDER="shm", NCCL_DEBUG="WARN", NCCL_BOOTSTRAP_TIMEOUT=20)
        for process in processes:
            self.assertEqual(process.wait().status, 3, process.all)
        self.assertIn("provider shm reaches no other host", "".join(p.all for p in processes))


if __name__ == "__main__":
    lib.main()
