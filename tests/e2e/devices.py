"""Ranks in processes of their own on a device with memory of its own, the fake one: agreement on it, one rank a device,
data between processes, and where connections begin to count."""
import os
import re
import signal

import lib

FAKE = os.environ["E2E_FAKE"]
STEPS = "all_reduce:1000 all_reduce:100000 all_gather:777 reduce_scatter:5000 broadcast:30000"
ALMOST_32_BITS = 2**32 - 16


class OnDevices(lib.Case):
    def on_fake(self, devices, steps, each=None, **env):
        processes = self.ranks([f"device:{d} {steps}" for d in devices], each=each, TUTTI_DEVICE=FAKE,
                               NCCL_BOOTSTRAP_TIMEOUT=20, **env)
        return [process.wait() for process in processes]

    def all_good(self, processes):
        for rank, process in enumerate(processes):
            self.assertEqual(process.status, 0, f"rank {rank}: {process.all[-4000:]}")
        return "".join(process.all for process in processes)

    def all_fail(self, processes, said):
        for rank, process in enumerate(processes):
            self.assertEqual(process.status, 3, f"rank {rank}: {process.all}")
            self.assertRegex(process.err, said, f"rank {rank}")


class Devices(OnDevices):
    def test_data_between_processes(self):
        for count in (1, 2, 4):
            with self.subTest(count):
                text = self.all_good(self.on_fake(range(count), f"init {STEPS} destroy", NCCL_DEBUG="INFO"))
                self.assertEqual("via P2P/CUMEM/" in text, count > 1)
                phases = re.findall(r"Init timings - ncclCommInitRank: rank \d nranks \d total ([\d.]+) \((.*)\): \d ranks on 1 hosts, device fake", text)
                self.assertEqual(len(phases), count)
                for total, parts in phases:
                    self.assertAlmostEqual(float(total), sum(map(float, re.findall(r"[\d.]+(?=,|$)", parts))), delta=0.001)
                self.assertNotIn("via SHM", text)
                self.assertNotIn("NCCL WARN", text)
                for d in range(count):
                    self.assertRegex(text, rf"rank {d} nranks {count} cudaDev {d} nvmlDev -1 busId {d + 1:x}000 ")

    def test_reading_across_links(self):
        for reads in (0, 1):
            with self.subTest(reads):
                text = self.all_good(self.on_fake(range(3), f"init {STEPS} destroy", NCCL_P2P_READ_ENABLE=reads,
                                                  NCCL_DEBUG="INFO", NCCL_PROTO="Simple"))
                vias = set(re.findall(r"via (P2P/\S+)", text))
                self.assertEqual(vias, {"P2P/CUMEM/read/Simple" if reads else "P2P/CUMEM/Simple"})

    def test_copy_engines(self):
        """Simple is copied by engines; the other protocols carry their own news, and are not."""
        text = self.all_good(self.on_fake(range(3), f"init {STEPS} shift:100000 {STEPS} destroy", NCCL_PROTO="Simple",
                                          NCCL_P2P_USE_CUDA_MEMCPY=1, NCCL_DEBUG="INFO"))
        self.assertEqual(set(re.findall(r"via (P2P/\S+)", text)), {"P2P/CUMEM/CE"})
        text = self.all_good(self.on_fake(range(2), "init all_reduce:100 all_reduce:1000000 destroy",
                                          NCCL_P2P_USE_CUDA_MEMCPY=1, NCCL_DEBUG="INFO"))
        self.assertEqual(set(re.findall(r"via (P2P/\S+)", text)), {"P2P/CUMEM/LL", "P2P/CUMEM/CE"})
        self.all_fail(self.on_fake(range(2), "init", each=lambda r: {"NCCL_P2P_USE_CUDA_MEMCPY": r}),
                      "NCCL_P2P_USE_CUDA_MEMCPY differs between ranks: rank 1 has 1, rank 0 has 0")
        self.all_fail(self.on_fake(range(2), "init", each=lambda r: {"NCCL_CTA_POLICY": 3 * r}),
                      "NCCL_CTA_POLICY_ZERO in config member CTAPolicy differs between ranks: rank 1 has 1, rank 0 has 0")

    def three_in_a_row(self):
        """A topology file of three devices: NVLink joins the first two and the last two."""
        gpus = ""
        for d, neighbours in enumerate(((1,), (0, 2), (1,))):
            links = "".join(f'<nvlink target="0000:0{n + 1}:00.0" count="4" tclass="0x030200"/>' for n in neighbours)
            gpus += (f'<pci busid="0000:0{d + 1}:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">'
                     f'<gpu dev="{d}" sm="70" rank="{d}" gdr="1">{links}</gpu></pci>')
        file = os.path.join(self.work, "row.xml")
        with open(file, "w") as f:
            f.write('<system version="1"><cpu numaid="0" affinity="1" arch="x86_64" vendor="GenuineIntel" familyid="6" '
                    f'modelid="85">{gpus}</cpu></system>')
        return file

    def on_hosts(self, hosts, fabric, steps=f"init {STEPS} destroy", **env):
        """Ranks of hosts by name; fabric: FAKE_FABRIC of each. The text, and which connection goes which way."""
        processes = self.on_fake([hosts[:r].count(host) for r, host in enumerate(hosts)], steps, NCCL_DEBUG="INFO",
                                 each=lambda r: {"NCCL_HOSTID": hosts[r], "FAKE_FABRIC": fabric[r]}, **env)
        text = self.all_good(processes)
        return text, {(int(a), int(b)): via for a, b, via in
                      re.findall(r"(\d+)\[\d+\] -> (\d+)\[\d+\].* via (\S+)", text)}

    def test_fabric_across_hosts(self):
        """Devices of one clique map each other's memory, whatever host they are on, and are one machine, which may have
        multicast memory."""
        text, vias = self.on_hosts("aabb", ["7"] * 4, NCCL_DEBUG_SUBSYS="ALL",
                                   NCCL_ALGO="Ring;ReduceScatter:NVLS;AllGather:NVLS")
        self.assertIn("multi-node NVLink: clique 0x7 has 4 ranks, rank 2 is number 2", text)
        self.assertIn(" ranks on 1 hosts, device fake", text)
        self.assertGreaterEqual(len(vias), 8)
        for (source, target), via in vias.items():
            self.assertRegex(via, "P2P/MNNVL/" if source // 2 != target // 2 else "P2P/CUMEM/", (source, target))
        self.assertNotIn("NCCL WARN", text)
        self.assertIn("NVLS multicast support is available: the devices of each machine can share memory with a multicast "
                      "address, across hosts", text)
        self.assertIn("4 devices share memory with a multicast address", text)
        for collective in ("AllGather", "ReduceScatter"):
            self.assertRegex(text, f"{collective}: .* algorithm NVLS ")

    def test_fabric_that_is_not_used(self):
        text, _ = self.on_hosts("ab", ["3", "3"], "init destroy", NCCL_MNNVL_ENABLE=0)
        self.assertNotIn("multi-node NVLink", text)
        self.assertIn(" ranks on 2 hosts, device fake", text)
        text, _ = self.on_hosts("abc", ["1", "2", "2"], "init destroy")
        self.assertIn("clique 0x2 has 2 ranks, rank 2 is number 1; its cluster has 3", text)
        self.assertIn(" ranks on 2 hosts, device fake", text)
        text, _ = self.on_hosts("ab", ["3", "3 closed"], "init destroy")
        self.assertIn("rank 1 cannot share device memory with other hosts", text)
        self.assertIn(" ranks on 2 hosts, device fake", text)
        processes = self.on_fake((0, 1), "init destroy", NCCL_MNNVL_ENABLE=1,
                                 each=lambda r: {"NCCL_HOSTID": "ab"[r], "FAKE_FABRIC": ["3", "3 closed"][r]})
        self.all_fail(processes, "rank 1 cannot share device memory with other hosts")

    def test_fabric_across_cliques(self):
        """Cliques are machines of their own, with devices that are used directly all the same where the user says so."""
        text, vias = self.on_hosts("abb", ["1", "2", "2"], f"init {STEPS} shift:100000 destroy", NCCL_MNNVL_CROSS_CLIQUE=1)
        self.assertIn(" ranks on 2 hosts, device fake", text)
        for (source, target), via in vias.items():
            self.assertRegex(via, "P2P/MNNVL/" if 0 in (source, target) else "P2P/CUMEM/", (source, target))
        text, vias = self.on_hosts("abb", ["1", "2", "2"], "init shift:100000 destroy")
        self.assertTrue(vias[0, 1].startswith("NET/") and vias[2, 0].startswith("NET/"), vias)
        text, vias = self.on_hosts("ab", ["1", "2"], "init shift:100000 destroy", NCCL_MNNVL_CROSS_CLIQUE=1,
                                   NCCL_P2P_DISABLE=1)
        self.assertTrue(vias[0, 1].startswith("NET/"), vias)

    def test_channels_to_a_peer_across_the_network(self):
        """The configuration of a communicator says how many, unless the environment does."""
        for env, expected in ({}, 4), ({"NCCL_NCHANNELS_PER_NET_PEER": 8}, 8):
            processes = self.on_fake((0, 0), "peer_channels:4 init shift:1000 destroy", NCCL_DEBUG="INFO",
                                     NCCL_MIN_P2P_NCHANNELS=16, each=lambda r: {"NCCL_HOSTID": "ab"[r]}, **env)
            text = self.all_good(processes)
            self.assertEqual(set(re.findall(r"(\d+) p2p channels per peer", text)), {str(expected)})

    def test_fabric_by_hand(self):
        """Users' words on cluster and clique win over the device's."""
        text, _ = self.on_hosts("ab", ["3", "4"], "init destroy", NCCL_MNNVL_CLIQUE_ID=9)
        self.assertIn("clique 0x9 has 2 ranks", text)
        processes = self.on_fake((0, 0), "init destroy", NCCL_DEBUG="INFO",
                                 each=lambda r: {"NCCL_HOSTID": "ab"[r], "FAKE_FABRIC": "3", "NCCL_MNNVL_UUID": 100 + r})
        text = self.all_good(processes)
        self.assertNotIn("multi-node NVLink: clique", text)
        self.assertIn(" ranks on 2 hosts, device fake", text)

    def test_multicast_is_not_available(self):
        text = self.all_good(self.on_fake(range(2), "init all_reduce:1000 destroy", NCCL_DEBUG="INFO", NCCL_NVLS_ENABLE=0,
                                          NCCL_ALGO="NVLS,Ring"))
        self.assertIn("NVLS multicast support is not available: NCCL_NVLS_ENABLE is 0", text)

    def test_through_a_device_between(self):
        """Memory of the device between is lent by its rank, who takes no part in what passes through it."""
        steps = "init shift:1000 shift:100000 all_reduce:50000 destroy"
        for protocol in ("LL", "Simple"):
            with self.subTest(protocol):
                text = self.all_good(self.on_fake(range(3), steps, NCCL_TOPO_FILE=self.three_in_a_row(),
                                                  NCCL_PROTO=protocol, NCCL_DEBUG="INFO"))
                vias = set(re.findall(r"(\d)(?:\[\d\])? -> (\d)(?:\[\d\])?.* via (P2P/indirect/1\[0000:02:00.0\]|P2P/CUMEM)", text))
                self.assertIn(("2", "0", "P2P/indirect/1[0000:02:00.0]"), vias, text[-6000:])
                for source, target, via in vias:
                    self.assertEqual("indirect" in via, {source, target} == {"0", "2"}, (source, target))
                self.assertNotIn("NCCL WARN", text)

    ALL = f"init {STEPS} reduce:3000 shift:1000 shift:100000 destroy"

    def test_through_the_hosts_memory(self):
        for protocol in ("LL", "Simple"):
            with self.subTest(protocol):
                text = self.all_good(self.on_fake(range(3), self.ALL, NCCL_P2P_DISABLE=1, NCCL_PROTO=protocol,
                                                  NCCL_DEBUG="INFO", E2E_LOOK_BEHIND=1))
                self.assertEqual(set(re.findall(r"Channel .* via (.*)", text)), {"SHM/direct/direct"})
                self.assertIn("Rank 0 does not use the memory of rank 1's device (nor that of 1 more), but goes by SHM. "
                              "P2P: NCCL_P2P_DISABLE is set", text)
                self.assertNotIn("NCCL WARN", text)

    def test_some_through_the_hosts_memory(self):
        """How far apart devices may be that use each other's memory is the user's to say."""
        for level, direct in (("NVL", {"01", "10", "12", "21"}), ("LOC", set())):
            with self.subTest(level):
                text = self.all_good(self.on_fake(range(3), self.ALL, NCCL_TOPO_FILE=self.three_in_a_row(),
                                                  NCCL_P2P_LEVEL=level, NCCL_DEBUG="INFO"))
                vias = re.findall(r"Channel \S+ : (\d)\[\d\] -> (\d)\[\d\] via (P2P/CUMEM|SHM/direct/direct)", text)
                self.assertEqual({a + b for a, b, via in vias if via == "P2P/CUMEM"}, direct, text[-4000:])
                self.assertEqual({a + b for a, b, via in vias if via != "P2P/CUMEM"},
                                 {"01", "10", "12", "21", "02", "20"} - direct)
                self.assertRegex(text, rf"Rank 0 does not use the memory of rank \d's device.*, but goes by SHM. P2P: their "
                                 rf"path, \w+, is longer than {level} \(NCCL_P2P_LEVEL\)")

    def test_counters_that_wrap(self):
        for what, env in (("shared memory", {}), ("network", {"NCCL_SHM_DISABLE": 1})):
            for protocol in ("LL", "Simple"):
                with self.subTest(f"{what}, {protocol}"):
                    ranks = self.ranks([f"init {STEPS} {STEPS} destroy"] * 3, TUTTI_DEVICE="host", NCCL_PROTO=protocol,
                                       TUTTI_FIRST_STEP=ALMOST_32_BITS, **env)
                    self.all_good([process.wait() for process in ranks])
        for protocol in ("LL", "Simple"):
            with self.subTest(f"device memory, {protocol}"):
                for disable in (0, 1):
                    self.all_good(self.on_fake(range(3), f"init {STEPS} {STEPS} destroy", NCCL_PROTO=protocol,
                                               TUTTI_FIRST_STEP=ALMOST_32_BITS, NCCL_P2P_DISABLE=disable))

    def test_first_step_is_agreed(self):
        self.all_fail(self.on_fake(range(2), "init", each=lambda r: {"TUTTI_FIRST_STEP": 8 * r}),
                      "TUTTI_FIRST_STEP differs between ranks: rank 1 has 8, rank 0 has 0")

    def test_two_ranks_on_one_device(self):
        said = r"duplicate device: ranks 0, 2 of host \S+ all use fake device 1 at 0000:02:00.0; .*TUTTI_ALLOW_DUPLICATE_DEVICE"
        self.all_fail(self.on_fake((1, 0, 1), "init"), said)
        self.all_good(self.on_fake((1, 0, 1), f"init {STEPS} destroy", TUTTI_ALLOW_DUPLICATE_DEVICE=1))
        for devices, few in (((1, 0, 1), True), ((1, 0, 2), False)):  # kernels of ranks that share one have to fit it
            text = self.all_good(self.on_fake(devices, "init all_reduce:4000000 destroy", TUTTI_ALLOW_DUPLICATE_DEVICE=1,
                                              NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING"))
            channels = {int(n) for n in re.findall(r"AllReduce: .* channels (\d+)", text)}
            self.assertEqual((len(channels), max(channels) <= 2), (1, few), channels)
        self.all_fail(self.on_fake((1, 0, 1), "init", each=lambda r: {"TUTTI_ALLOW_DUPLICATE_DEVICE": int(r == 1)}),
                      "TUTTI_ALLOW_DUPLICATE_DEVICE differs between ranks: rank 1 has 1, rank 0 has 0")

    def test_a_device_that_does_not_exist(self):
        for rank, process in enumerate(self.on_fake((0, 99), "init")):
            self.assertEqual(process.status, 3, process.all)
            if rank == 1:
                self.assertIn("rank 1 is to use fake device 99; this process has 8", process.err)

    def test_one_rank_without_the_device(self):
        ranks = self.ranks(["init"] * 3, NCCL_BOOTSTRAP_TIMEOUT=20,
                           each=lambda r: {"TUTTI_DEVICE": "host" if r == 1 else FAKE})
        self.all_fail([process.wait() for process in ranks],
                      r"\(TUTTI_DEVICE\) differs between ranks: rank 1 has host, rank 0 has fake")

    def test_no_way_at_all(self):
        said = "P2P: NCCL_P2P_DISABLE is set; SHM: NCCL_SHM_DISABLE is set; NET: "
        self.all_fail(self.on_fake(range(2), "init all_reduce:8", NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1,
                                   NCCL_NET_DISABLE=1), said)

    def test_libraries_that_cannot_be_used(self):
        for value, said in (("/no/such/library.so", r"TUTTI_DEVICE is .*device library /no/such/library.so cannot be used: no such file"),
                            (lib.RANKS, "cannot be used: "), ("tpu", r"/libtutti-device-tpu.so cannot be used: no such file")):
            with self.subTest(value):
                process = self.ranks(["init"], TUTTI_DEVICE=value)[0].wait()
                self.assertEqual(process.status, 3, process.all)
                self.assertRegex(process.err, said)

    def test_info(self):
        info = os.path.join(lib.BIN, "tutti-info")
        text = self.run_it(info, "-D", TUTTI_DEVICE=FAKE).out
        self.assertRegex(text, r"device:\tfake\n\tpath:\s+" + re.escape(FAKE) + r"\n\tstate:\s+usable\n\tdevices:\s+8\n")
        self.assertRegex(text, r"device_3:\s+Fake device 3 at 0000:04:00.0")
        self.assertRegex(text, r"device:\thost\n\tstate:\s+usable")
        text = self.run_it(info, "-D", TUTTI_DEVICE="tpu").out
        self.assertRegex(text, r"device:\ttpu\n\tpath:\s+\S+/tutti/libtutti-device-tpu.so\n\tstate:\s+passed over\n\treason:\s+no such file")


class DeviceHosts(OnDevices):
    """Two hosts of two devices each, which a network connects."""
    STEPS = f"{STEPS} shift:1000 shift:200000 reduce:3000"

    def on_hosts(self, steps, count=4, **env):
        each = lambda r: {"NCCL_HOSTID": f"host-{2 * r // count}", "E2E_LOOK_BEHIND": 1}
        steps = [steps] * count if isinstance(steps, str) else steps
        return self.ranks([f"device:{r} {s}" for r, s in enumerate(steps)], each=each, TUTTI_DEVICE=FAKE,
                          NCCL_BOOTSTRAP_TIMEOUT=20, NCCL_SOCKET_IFNAME="lo", **env)

    def test_data(self):
        for what, env in (("as it comes", {}), ("trees, and counters that wrap", {"NCCL_ALGO": "Ring;AllReduce:Tree",
                                                                                  "TUTTI_FIRST_STEP": ALMOST_32_BITS}),
                          ("lines", {"NCCL_PROTO": "LL"}),
                          ("lines, and flags that wrap", {"NCCL_PROTO": "LL", "TUTTI_FIRST_STEP": ALMOST_32_BITS,
                                                          "NCCL_ALGO": "Ring;AllReduce:Tree"}),
                          ("lines that are cleaned", {"NCCL_PROTO": "LL", "TUTTI_FIRST_STEP": 2**31 - 16})):
            with self.subTest(what):
                ranks = self.on_hosts(f"init {self.STEPS} {self.STEPS} destroy", NCCL_DEBUG="INFO", **env)
                text = self.all_good([process.wait() for process in ranks])
                self.assertRegex(text, r"1\[1\] -> 2\[2\] \[send\] via NET/Socket/0")
                self.assertRegex(text, r"0\[0\] -> 1\[1\] via P2P/")
                for wrong in ("NCCL WARN", "lost the peer", "LEFT"):
                    self.assertNotIn(wrong, text)

    def test_devices_of_a_host_by_the_network(self):
        processes = self.on_fake(range(2), f"init {self.STEPS} destroy", NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1,
                                 NCCL_SOCKET_IFNAME="lo", NCCL_DEBUG="INFO")
        self.assertRegex(self.all_good(processes), r"0\[0\] -> 1\[1\] \[send\] via NET/Socket/0")

    def near_one_device(self, host):
        """A topology file of a host whose NIC is near the first of its two devices, which NVLink joins."""
        gpus = [f'<pci busid="0000:0{d + 1}:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">'
                f'<gpu dev="{d}" sm="70" rank="{2 * host + d}" gdr="1"><nvlink target="0000:0{2 - d}:00.0" count="4" '
                'tclass="0x030200"/></gpu></pci>' for d in range(2)]
        nic = ('<pci busid="0000:0b:00.0" class="0x020000" link_speed="8.0 GT/s PCIe" link_width="16"><nic>'
               '<net name="lo" dev="0" speed="100000" port="1" guid="0x1" maxconn="64" gdr="1"/></nic></pci>')
        file = os.path.join(self.work, f"near-{host}.xml")
        with open(file, "w") as f:
            f.write('<system version="1"><cpu numaid="0" affinity="1" arch="x86_64" vendor="GenuineIntel" familyid="6" '
                    'modelid="85"><pci busid="0000:0a:00.0" class="0x060400" link_speed="8.0 GT/s PCIe" '
                    f'link_width="16">{gpus[0]}{nic}</pci>{gpus[1]}</cpu></system>')
        return file

    def test_through_another_rank(self):
        """Devices that are far from the NIC send through the rank that is near it: its thread reads what they fill."""
        for protocol, aborts in (("Simple", False), ("LL", False), ("Simple", True)):
            with self.subTest(protocol, aborts=aborts):
                steps = "loop:shift:20000" if aborts else f"{self.STEPS} {self.STEPS} destroy"
                each = lambda r: {"NCCL_HOSTID": f"host-{r // 2}", "NCCL_TOPO_FILE": self.near_one_device(r // 2)}
                ranks = self.ranks([f"device:{r % 2} init {steps}" for r in range(4)], each=each, TUTTI_DEVICE=FAKE,
                                   NCCL_BOOTSTRAP_TIMEOUT=20, NCCL_SOCKET_IFNAME="lo", NCCL_DEBUG="INFO",
                                   NCCL_PROTO=protocol)
                if aborts:
                    self.until(lambda: all("running" in p.out for p in ranks), "the loop's start")
                    os.kill(ranks[0].pid, signal.SIGKILL)
                    self.all_fail([p.wait() for p in ranks[1:]], r"rank 0 is gone")
                    self.nothing_left()
                    continue
                text = self.all_good([process.wait() for process in ranks])
                self.assertRegex(text, r"(1\[1\] -> 2\[0\]|3\[1\] -> 0\[0\]) \[send\] via NET/Socket/0\([02]\)")
                self.assertNotIn("NCCL WARN", text)

    def test_lines_of_128_bytes(self):
        said = "NCCL_PROTO is \"LL128\".* leaves nothing .*protocols LL, Simple"
        self.all_fail([p.wait() for p in self.on_hosts("init all_reduce:8", NCCL_PROTO="LL128")], said)

    def test_a_process_that_is_killed(self):
        ranks = self.on_hosts("init loop:all_reduce:300000")
        self.until(lambda: all("running" in p.out for p in ranks), "the loop's start")
        os.kill(ranks[2].pid, signal.SIGKILL)
        self.all_fail([p.wait() for p in ranks if p is not ranks[2]], r"rank 2 is gone")
        self.nothing_left()

    def test_one_that_leaves_too_early(self):
        ranks = self.on_hosts(["init all_reduce:1000 all_reduce:1000 destroy"] * 2 +
                              ["init all_reduce:1000 destroy", "init all_reduce:1000 all_reduce:1000 destroy"])
        for rank, process in enumerate(ranks):
            process.wait()
            self.assertEqual(process.status, 0 if rank == 2 else 3, process.all)
            if rank != 2:
                self.assertRegex(process.err, r"rank 2 destroyed or aborted the communicator after 1 collectives")


if __name__ == "__main__":
    lib.main()
