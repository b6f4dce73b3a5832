"""NICs that use devices' memory: two hosts of two fake devices, whose network (tests/fakes/net/direct.c) takes their memory,
checks what it gets, and shows what it has received only when that was flushed."""
import json
import os
import re
import signal

import lib
from devices import FAKE, OnDevices

# Longer than all slots of a connection; and messages in both directions. At the end all wait for all: a rank through which
# others send is not to leave while they connect.
STEPS = "all_reduce:1000 all_reduce:100000 shift:1000 shift:200000 reduce:3000 all_reduce:1000"
PCI = 'class="%s" link_speed="8.0 GT/s PCIe" link_width="16"'


class Direct(OnDevices):
    def machine(self, host, sm, link):
        """A topology file of a host with a NIC below a switch with its first device; the second is behind another."""
        links = {"nvlink": '<nvlink target="0000:0{}:00.0" count="4" tclass="0x030200"/>', "c2c": '<c2c bw="40000" count="4"/>'}
        gpu = lambda d: (f'<pci busid="0000:0{d + 1}:00.0" {PCI % "0x030200"}><gpu dev="{d}" sm="{sm}" rank="{2 * host + d}" '
                         f'gdr="1">{links.get(link, "").format(2 - d)}</gpu></pci>')
        nic = (f'<pci busid="0000:0b:00.0" {PCI % "0x020000"}><nic><net name="lo" dev="0" speed="100000" port="1" '
               'guid="0x1" maxconn="64"/></nic></pci>')
        switch = lambda d, below: f'<pci busid="0000:{d + 2}0:00.0" {PCI % "0x060400"}>{below}</pci>'
        file = os.path.join(self.work, f"machine-{host}-{sm}-{link}.xml")
        with open(file, "w") as f:
            f.write('<system version="1"><cpu numaid="0" affinity="1" arch="x86_64" vendor="GenuineIntel" familyid="6" '
                    f'modelid="85">{switch(0, gpu(0) + nic)}{switch(1, gpu(1))}</cpu></system>')
        return file

    def begin(self, steps, sm=70, link="", each=None, count=4, **env):
        own = lambda r: {"NCCL_HOSTID": f"host-{r // 2}", "NCCL_TOPO_FILE": self.machine(r // 2, sm, link),
                         **(each(r) if each else {})}
        return self.ranks([f"device:{r % 2} init {steps}" for r in range(count)], each=own, TUTTI_DEVICE=FAKE,
                          NCCL_NET_PLUGIN=os.environ["E2E_DIRECT_NET"], DIRECT_INNER=os.environ["E2E_SOCKET_NET"],
                          **{"DIRECT_LATE": 1, "NCCL_PROTO": "Simple", "NCCL_BOOTSTRAP_TIMEOUT": 20, "NCCL_SOCKET_IFNAME": "lo",
                             "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", **env})

    def run_ranks(self, **env):
        """The text, and how ranks send and receive over the network."""
        text = self.all_good([process.wait() for process in self.begin(f"{STEPS} destroy", **env)])
        self.assertNotIn("NCCL WARN", text)
        found = text.replace("/Shared", "")  # which slots of the host's memory those are does not matter here
        sends = set(re.findall(r" (\d)\[\d\] -> \d\[\d\] \[send\] via (NET/\S+)", found))
        receives = set(re.findall(r" \d\[\d\] -> (\d)\[\d\] \[receive\] via (NET/\S+)", found))
        return text, sends, receives

    def ways(self, found, rank):
        return {way for r, way in found if r == str(rank)}

    def test_everywhere(self):
        """Older GPUs are flushed; newer ones beside a chip-to-chip link, where a NIC that is near by PCI is given addresses
        there. Dma-bufs come first, then addresses."""
        every = {"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_NET_GDR_READ": 1}
        text, sends, receives = self.run_ranks(DIRECT_FAIL="dmabuf", **every)
        self.assertEqual({way for _, way in sends | receives}, {"NET/Direct/0/GDRDMA"})
        self.assertIn("no dma-buf, but addresses", text)
        self.assertIn("GPU Direct RDMA Enabled for ", text)
        text, sends, receives = self.run_ranks(sm=90, link="c2c", DIRECT_CLAIM="dmabuf", **every,
                                               each=lambda r: {"DIRECT_PCI": 1 - r % 2})
        self.assertEqual(self.ways(sends, 0) | self.ways(receives, 0), {"NET/Direct/0/GDRDMA(PCI)"})
        self.assertNotIn("no dma-buf", text)

    def test_many_ranks(self):
        """Slots of a pool for messages, where each pair with its own would hold much of the devices' memory."""
        ranks = self.begin("shift:20000 all_reduce:1000 destroy", count=18, NCCL_NET_GDR_LEVEL="SYS", NCCL_NET_GDR_READ=1)
        text = self.all_good([process.wait() for process in ranks])
        ways = lambda kind: set(re.findall(rf"/{kind} : \d+\[\d\] -> \d+\[\d\] \[\w+\] via (NET/\S+)", text))
        self.assertEqual(ways(1), {"NET/Direct/0/Shared"})
        self.assertEqual(ways(0), {"NET/Direct/0/GDRDMA"})

    def test_memory_that_connections_hold(self):
        """Slots are part of it, wherever they lie."""
        ranks = self.begin("all_reduce:100000 report destroy", NCCL_NET_GDR_LEVEL="SYS", NCCL_NET_GDR_READ=1)
        self.all_good([process.wait() for process in ranks])
        for process in ranks:
            memory = json.loads(re.search(r"^report: (.*)$", process.out, re.M)[1])["communicators"][0]["memory"]
            self.assertGreater(sum(memory["slot_bytes"].values()), 0)
            self.assertGreaterEqual(memory["connection_bytes"], sum(memory["slot_bytes"].values()))

    def test_each_end_decides(self):
        """By default only devices near the NIC, and of old ones nothing is read; of each rank of its own what it says."""
        text, sends, receives = self.run_ranks()
        self.assertEqual(self.ways(receives, 0) | self.ways(receives, 2), {"NET/Direct/0/GDRDMA"})
        self.assertEqual({way for _, way in sends}, {"NET/Direct/0"})
        self.assertRegex(text, r"GPU Direct RDMA Disabled for .*rank 1\) .*distance \d > 6, read 0")
        self.assertRegex(text, r"GPU Direct RDMA Disabled for .*rank 0\) .* it is not to be read")
        _, sends, receives = self.run_ranks(NCCL_NET_GDR_LEVEL="LOC", NCCL_NET_GDR_READ=1)
        self.assertEqual({way for _, way in sends | receives}, {"NET/Direct/0"})
        # Lines of LL are the host's to read and write.
        _, sends, receives = self.run_ranks(sm=90, DIRECT_LATE=0, NCCL_PROTO="LL,Simple")
        self.assertIn("NET/Direct/0", self.ways(sends, 0))
        sends.discard(("0", "NET/Direct/0")), receives.discard(("0", "NET/Direct/0"))
        self.assertEqual(self.ways(sends, 0) | self.ways(receives, 0), {"NET/Direct/0/GDRDMA"})
        self.assertEqual(self.ways(sends, 1) | self.ways(sends, 3), {"NET/Direct/0"})

    def test_registrations_that_fail(self):
        """The host's memory instead, and a line that says why, once a rank; the other end notices nothing."""
        both = {"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_NET_GDR_READ": 1}
        text, sends, receives = self.run_ranks(each=lambda r: {"DIRECT_FAIL": "both"} if r < 2 else {}, **both)
        for rank in range(4):
            self.assertLessEqual(self.ways(sends | receives, rank), {f"NET/Direct/0{'/GDRDMA' if rank > 1 else ''}"})
        for rank in range(4):
            said = re.findall(rf"GPU Direct RDMA Disabled for rank {rank}, device 0 of network Direct: .* by the host's "
                              "memory: net plugin Direct .* failed in regMr", text)
            self.assertEqual(len(said), rank < 2, rank)
        text, sends, receives = self.run_ranks(FAKE_NO_DMABUF=1, DIRECT_CLAIM="dmabuf", **both)
        self.assertEqual({way for _, way in sends | receives}, {"NET/Direct/0"})
        self.assertIn("makes no dma-bufs", text)
        text, sends, receives = self.run_ranks(NCCL_DMABUF_ENABLE=0, DIRECT_CLAIM="dmabuf", **both)
        self.assertEqual({way for _, way in sends | receives}, {"NET/Direct/0"})

    def test_through_another_rank(self):
        """NVLink leads to the device that is near the NIC. It sends what others have put into memory of the host."""
        _, sends, receives = self.run_ranks(link="nvlink", sm=90, DIRECT_FORCE=1)
        self.assertEqual(self.ways(sends, 1) | self.ways(sends, 3), {"NET/Direct/0(0)", "NET/Direct/0(2)"})
        self.assertEqual(self.ways(sends, 0) | self.ways(receives, 0), {"NET/Direct/0/GDRDMA"})
        # Not through it: the memory near the NIC is not this rank's.
        _, sends, receives = self.run_ranks(link="nvlink", sm=90, DIRECT_FORCE=1, NCCL_P2P_PXN_LEVEL=0)
        self.assertIn("NET/Direct/0", self.ways(sends, 1))
        self.assertNotIn("NET/Direct/0/GDRDMA", self.ways(sends, 1) | self.ways(sends, 3))

    def test_devices_that_flush(self):
        """By reading in their own memory, where that is asked for and can be had; else the network does."""
        own = {"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_GDRCOPY_ENABLE": 1, "NCCL_GDRCOPY_FLUSH_ENABLE": 1}
        text, _, receives = self.run_ranks(DIRECT_NO_FLUSH=1, **own)
        self.assertEqual({way for _, way in receives}, {"NET/Direct/0/GDRDMA"})
        self.assertEqual(text.count("flushes what NICs put into its device's memory by reading there"), 2)
        text, *_ = self.run_ranks(FAKE_NO_FLUSH=1, **own)
        self.assertEqual(len(re.findall("cannot flush by itself .* so network Direct does: fake device .*", text)), 2)

    def test_what_is_not_flushed_is_missing(self):
        """That these tests would notice: the works find that what was there before is no message of theirs."""
        self.all_fail([p.wait() for p in self.begin("all_reduce:100000 destroy", NCCL_GDR_FLUSH_DISABLE=1)], "rank")

    def test_a_rank_that_is_killed(self):
        ranks = self.begin("loop:shift:200000", NCCL_NET_GDR_LEVEL="SYS", NCCL_NET_GDR_READ=1)
        self.until(lambda: all("running" in p.out for p in ranks), "the loop's start")
        os.kill(ranks[2].pid, signal.SIGKILL)
        self.all_fail([p.wait() for p in ranks if p is not ranks[2]], r"rank 2 is gone")
        self.nothing_left()


if __name__ == "__main__":
    lib.main()
