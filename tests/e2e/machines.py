"""Communicators on machines that are not there: host ranks stand in for the GPUs of a topology file, and go the ways that
were searched for those; checked against what tutti-topo finds in the same file."""
import os
import re
import subprocess

import lib
from lib import BIN, PERF, Case
from matrix import VIA
from namespaces import OnHosts

RING = re.compile(r"Channel (\d+)/(\d+) : ([\d ]+)$", re.M)
TREES = re.compile(r"Trees((?: \[\d+\] \S+)+)")
GRAPH = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}


class Files(Case):
    def machine(self, *words):
        """The path of a machine's file."""
        path = os.path.join(self.work, "-".join(map(str, words)) + ".xml")
        text = subprocess.run([os.path.join(BIN, "topology_machine"), *map(str, words)], stdout=subprocess.PIPE,
                              text=True, check=True).stdout
        with open(path, "w") as file:
            file.write(text)
        return path

    def rings(self, text):
        return {int(c): list(map(int, ring.split())) for c, _, ring in RING.findall(text)}

    def neighbours(self, text):
        """The pairs that were connected for collectives, by channel."""
        pairs = {}
        for channel, source, target, _ in VIA.findall(text):
            pairs.setdefault(int(channel), set()).add((int(source), int(target)))
        return pairs


class Machines(Files):
    def test_searched_rings_are_used(self):
        """On each channel exactly the neighbours of its ring are connected."""
        file = self.machine("cube")
        text = self.log("all_reduce", "-n", 8, "-b", "64K", "-e", "1M", "-f", 16, NCCL_TOPO_FILE=file, NCCL_ALGO="RING",
                        NCCL_MIN_NCHANNELS=12, **GRAPH)
        rings = self.rings(text)
        self.assertEqual(sorted(rings), list(range(12)))
        self.assertGreater(len({tuple(r) for r in rings.values()}), 2, "the cube has several different rings")
        pairs = self.neighbours(text)
        for channel, ring in rings.items():
            self.assertEqual(sorted(ring), list(range(8)))
            self.assertEqual(pairs.get(channel), set(zip(ring, ring[1:] + ring[:1])), f"channel {channel}")

    def test_searched_trees_are_used(self):
        file = self.machine("cube")
        text = self.log("all_reduce", "-n", 8, "-b", "64K", "-e", "1M", "-f", 16, NCCL_TOPO_FILE=file, NCCL_ALGO="TREE",
                        NCCL_MIN_NCHANNELS=6, NCCL_MAX_NCHANNELS=6, **GRAPH)
        edges = {}
        for trees in TREES.findall(text):
            for channel, down, rank, up in re.findall(r"\[(\d+)\] (\S+?)->(-?\d+)->(-?\d+)", trees):
                if int(up) >= 0:
                    edges.setdefault(int(channel), set()).update({(int(rank), int(up)), (int(up), int(rank))})
        self.assertEqual(sorted(edges), list(range(6)))
        self.assertEqual(self.neighbours(text), edges)

    def test_all_collectives(self):
        files = {"cube": self.machine("cube"), "pcie": self.machine("pcie", 4)}
        for machine, collective in lib.share(list(files), lib.COLLECTIVES):
            with self.subTest(machine=machine, collective=collective):
                self.perf(collective, "-n", 4, "-b", 8, "-e", "8K" if lib.SANITIZE else "128K", "-f", 128, "--iters", 1,
                          "-w", 0, NCCL_TOPO_FILE=files[machine])

    def test_what_is_dumped_is_read(self):
        """The file that was written says the same machine, and a graph file's order is the order in use."""
        file, topo, graph = self.machine("hgx"), os.path.join(self.work, "t.xml"), os.path.join(self.work, "g.xml")
        words = ("all_reduce", "-n", 8, "-b", 64, "-e", 64)
        first = self.rings(self.log(*words, NCCL_TOPO_FILE=file, NCCL_TOPO_DUMP_FILE=topo, NCCL_GRAPH_DUMP_FILE=graph))
        self.assertEqual(first, self.rings(self.log(*words, NCCL_TOPO_FILE=topo)))
        with open(graph) as text:
            graphs = text.read()
        ring = re.search(r'<graph id="0".*?</graph>', graphs, re.S)[0]
        order = [0, 5, 2, 7, 4, 1, 6, 3]
        gpus = "".join(f'<gpu dev="{g:x}"/>' for g in order)
        head = re.sub(r'nchannels="\d+"', 'nchannels="1"', ring.split("\n")[0])
        with open(graph, "w") as text:
            text.write(f'<graphs version="1">{head}<channel>{gpus}</channel></graph></graphs>')
        used = self.rings(self.log(*words, NCCL_TOPO_FILE=file, NCCL_GRAPH_FILE=graph))
        self.assertEqual({tuple(r) for r in used.values()}, {tuple(order)})

    def test_wrong_files(self):
        broken = os.path.join(self.work, "broken.xml")
        with open(broken, "w") as file:
            file.write('<system version="1">\n<cpu numaid="0">\n</system>\n')
        words = (PERF, "all_reduce", "-n", 2, "-b", 64, "-e", 64)
        process = self.run_it(*words, NCCL_TOPO_FILE=broken)
        self.assertNotEqual(process.status, 0)
        self.assertIn("broken.xml:3", process.all)
        process = self.run_it(*words, NCCL_GRAPH_FILE=broken)
        self.assertNotEqual(process.status, 0)
        self.assertIn("broken.xml", process.all)
        gone = os.path.join(self.work, "gone.xml")
        process = self.run_it(*words, NCCL_TOPO_FILE=gone, NCCL_DEBUG="WARN")
        self.good(process)
        self.assertIn(gone, process.all)
        process = self.run_it(*words, NCCL_TOPO_DUMP_FILE="/nowhere/t.xml", NCCL_GRAPH_DUMP_FILE="/nowhere/g.xml",
                              NCCL_DEBUG="WARN")
        self.good(process)
        for name in ("/nowhere/t.xml", "/nowhere/g.xml"):
            self.assertIn(name, process.all)

    def test_without_a_file(self):
        """Host devices alone: rings in the order of ranks, and the machine in the log."""
        text = self.log("all_reduce", "-n", 4, "-b", 64, "-e", 64)
        self.assertEqual({tuple(r) for r in self.rings(text).values()}, {(0, 1, 2, 3)})
        self.assertIn("=== System : maxBw ", text)
        self.assertRegex(text, r"CPU/0-\d+ \(\d/\d/\d\)")


class Named(Files):
    """Ranks of one host that count as two."""

    HOSTS = staticmethod(lambda rank: {"NCCL_HOSTID": f"host{rank // 4}"})

    def test_a_relay_that_has_left(self):
        """Rank 0, through which rank 3 would send, destroys its communicator first: rank 3 sends for itself."""
        idle = "init destroy"
        steps = [idle] * 3 + ["init sleep:1500 send:1000000:4 destroy", "init sleep:1500 recv:1000000:3 destroy"] + [idle] * 3
        processes = self.ranks(steps, self.HOSTS, NCCL_TOPO_FILE=self.machine("hgx"), NCCL_DEBUG="INFO",
                               NCCL_DEBUG_SUBSYS="NET")
        for process in processes:
            process.wait()
        for rank, process in enumerate(processes):
            self.assertEqual(process.status, 0, f"rank {rank}: {process.all[-3000:]}")
        self.assertIn("Rank 3 sends to rank 4 itself, since rank 0 has left", processes[3].all)

    def test_one_nic_is_served_by_one_channel(self):
        """Large data too: there is nothing to spread over. More channels are for who asks for them."""
        for more, channels in (({}, {"00"}), ({"NCCL_MIN_NCHANNELS": 2}, {"00", "01"})):
            with self.subTest(**more):
                processes = self.by_hand(("all_reduce", "-b", "1M", "-e", "1M", "--iters", 1, "-w", 0), 4,
                                         lambda rank: {"NCCL_HOSTID": f"host{rank // 2}"}, NCCL_SOCKET_IFNAME="lo",
                                         NCCL_ALGO="RING", **GRAPH, **more)
                for process in processes:
                    process.wait()
                self.good(processes[0])
                text = "".join(p.all for p in processes)
                self.assertEqual(set(re.findall(r"Channel (\d+)/0 : .* via NET/", text)), channels)

    def test_different_files_on_one_host(self):
        """NETs of a file that only the other rank of the host has named stand in for this rank's devices, too."""
        file = self.machine("hgx")
        words = ("alltoall", "-b", "64K", "-e", "64K", "--iters", 1, "-w", 0)
        processes = self.by_hand(words, 8, lambda rank: {**self.HOSTS(rank), **({"NCCL_TOPO_FILE": file} if rank % 2 else {})})
        for process in processes:
            process.wait()
        for rank, process in enumerate(processes):
            self.assertEqual(process.status, 0, f"rank {rank}: {process.all[-3000:]}")
        self.good(processes[0])

    def test_a_file_with_a_fault(self):
        """What the file says wrong shows only in the machine of all ranks; the file is named nevertheless."""
        file = self.machine("pcie", 2)
        with open(file) as text:
            machine = text.read()
        with open(file, "w") as text:
            text.write(machine.replace('numaid="0"', 'numaid="x"', 1))
        process = self.run_it(PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, NCCL_TOPO_FILE=file)
        self.assertNotEqual(process.status, 0)
        self.assertIn("numaid", process.all)
        self.assertIn(f"`tutti-topo show {file}`", process.all)


class Rails(Files, OnHosts):
    """Two hosts of four ranks each, which stand for GPUs with a NIC of their own."""

    def setUp(self):
        super().setUp()
        for i in range(4):
            self.hosts.cable(i, f"10.{i + 1}.0.%/24")

    def across(self, *words, **env):
        a, b = self.hosts.names
        processes = self.by_hand((*words, "--iters", 1, "-w", 0), 8, hosts=[a] * 4 + [b] * 4, address="10.1.0.1",
                                 **{**GRAPH, **env})
        for process in processes:
            process.wait()
        for rank, process in enumerate(processes):
            self.assertEqual(process.status, 0, f"rank {rank}:\n" + "".join(p.all[-3000:] for p in processes))
        self.good(processes[0])
        return [p.all for p in processes]

    def nets(self, text):
        """Of a machine's rings, by channel: the NETs at both ends; and whether the second machine swaps channels."""
        pattern = re.search(r"Pattern 4, crossNic (\d)", text)
        lines = text[pattern.end():].split("Pattern ")[0]
        found = re.findall(r"^.* INFO +(\d+) : NET/0-(\d+) .*NET/0-(\d+)$", lines, re.M)
        return {int(c): (int(a), int(b)) for c, a, b in found}, pattern[1] == "2"

    def test_rings_between_hosts(self):
        """Each ring enters and leaves each host once, by the NICs that were searched."""
        file = self.machine("hgx")
        for collective, algorithm, more in (("all_reduce", "RING", {}), ("all_gather", "RING", {}), ("all_reduce", "TREE", {}),
                                            ("all_reduce", "RING", {"NCCL_CROSS_NIC": 1})):
            with self.subTest(collective, algorithm=algorithm, **more):
                texts = self.across(collective, "-b", "64K", "-e", "64K", NCCL_TOPO_FILE=file, NCCL_ALGO=algorithm,
                                    NCCL_MIN_NCHANNELS=4, **more)
                rings = self.rings(texts[0])
                for channel, ring in rings.items():
                    self.assertEqual(sorted(ring), list(range(8)))
                    crossings = [(a, b) for a, b in zip(ring, ring[1:] + ring[:1]) if a // 4 != b // 4]
                    self.assertEqual(len(crossings), 2, f"channel {channel}: {ring}")
                if algorithm == "RING":
                    self.used_nets(texts, rings)
                if more:
                    self.assertTrue(any(a != b for a, b in self.nets(texts[0])[0].values()), "both ends are the same NICs")

    def test_large_data_spreads_over_the_nics(self):
        texts = self.across("all_reduce", "-b", "1M", "-e", "1M", NCCL_TOPO_FILE=self.machine("hgx"), NCCL_ALGO="RING")
        self.assertEqual(set(re.findall(r"Channel (\d+)/0 : .* via NET/", "".join(texts))), {"00", "01", "02", "03"})

    def used_nets(self, texts, rings):
        """Who sends to the other host, and who receives from it, uses its end of the ring's NETs."""
        (nets, swaps), checked = self.nets(texts[0]), 0
        pattern = re.compile(r"Channel (\d+)/0 : (\d+)\[-?\d+\] -> (\d+)\[-?\d+\] \[(send|receive)\] via NET/Socket/(\d+)")
        for channel, source, target, way, device in {m for text in texts for m in pattern.findall(text)}:
            ring, me = rings[int(channel)], int(source if way == "send" else target)
            self.assertEqual(ring[(ring.index(int(source)) + 1) % 8], int(target))
            like = int(channel) % len(nets)
            if swaps and me >= 4 and len(nets) % 2 == 0:
                like ^= 1
            self.assertEqual(int(device), nets[like][way == "send"], f"channel {channel}: {source} -> {target} {way}")
            checked += 1
        self.assertGreaterEqual(checked, 4 * min(len(rings), 4))

    PXN = re.compile(r"Channel \d+/[01] : (\d+)\[-?\d+\] -> \d+\[-?\d+\] \[send\] via NET/Socket/(\d+)\((\d+)\)")

    def relayed(self, *words, **env):
        """Sends that go through another rank: by whom, by which device, through whom."""
        texts = self.across(*words, "-b", "64K", "-e", "64K", NCCL_TOPO_FILE=self.machine("hgx"), **env)
        return [tuple(map(int, m)) for m in self.PXN.findall("".join(texts))]

    def test_through_another_rank(self):
        """A ring that may not change its NIC leaves by one that is near another rank, through that rank."""
        ring = {"NCCL_ALGO": "RING", "NCCL_MIN_NCHANNELS": 4, "NCCL_CROSS_NIC": 0}
        sends = self.relayed("all_reduce", **ring)
        self.assertGreaterEqual(len(sends), 8)
        for rank, device, relay in sends:
            self.assertEqual(relay // 4, rank // 4)
            self.assertNotEqual(relay, rank)
            self.assertEqual(relay % 4, device, "the relay is the rank that is near the NIC")
        self.assertEqual(self.relayed("all_reduce", NCCL_PXN_DISABLE=1, **ring), [])

    def test_messages_through_another_rank(self):
        """Messages go by the NIC of the rank that has the peer's place."""
        sends = self.relayed("alltoall")
        self.assertGreaterEqual(len(sends), 8)
        for rank, device, relay in sends:
            self.assertEqual((relay // 4, relay % 4), (rank // 4, device))
        self.assertEqual(self.relayed("alltoall", NCCL_P2P_PXN_LEVEL=0), [])

    def test_all_collectives(self):
        file = self.machine("cube")
        for collective in lib.COLLECTIVES:
            with self.subTest(collective):
                self.across(collective, "-b", 8, "-e", "8K", "-f", 128, NCCL_TOPO_FILE=file)


if __name__ == "__main__":
    lib.main()
