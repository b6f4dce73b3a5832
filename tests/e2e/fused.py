"""Network devices that work as one: a plugin that fuses, on a machine of two cards with two ports each, of which every
card is near to one GPU. Hosts are names (NCCL_HOSTID), so that no privilege is needed."""
import os
import re

import lib
from lib import BIN, Case

CARD = """<pci busid="0000:{0}3:00.{1}" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
<nic><net name="{2}" dev="{3}" speed="100000" port="1" guid="0x{3}" maxconn="64" gdr="1"/></nic></pci>"""
SWITCH = """<pci busid="0000:{0}1:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
<pci busid="0000:{0}2:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="{1}" sm="90" rank="{1}" gdr="1"/></pci>{2}</pci>"""
MACHINE = """<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="175"
modelid="1">{}</cpu></system>"""
MADE = re.compile(r"fusing: made device (\d+), (\S+)")
ONE = re.compile(r"network devices ([\d, and]+) work as one: device (\d+), (\S+), (\d+) Mb/s")
USED = re.compile(r"\[send\] via NET/Fusing/(\d+)")
PHYSICAL = {0, 1, 2, 3}


class Fused(Case):
    def setUp(self):
        super().setUp()
        self.file = os.path.join(self.work, "machine.xml")
        cards = ["".join(CARD.format(c, port, f"{name}{port}", 2 * c + port) for port in (0, 1))
                 for c, name in enumerate("ab")]
        with open(self.file, "w") as file:
            file.write(MACHINE.format("".join(SWITCH.format(c, c, card) for c, card in enumerate(cards))))
        self.plugin = {"NCCL_TOPO_FILE": self.file, "NCCL_NET_PLUGIN": os.environ["E2E_FUSING_NET"],
                       "FUSING_INNER": os.path.join(BIN, os.pardir, "lib", "tutti", "libtutti-net-socket.so"),
                       "FUSING_NETS": "a0,a1,b0,b1", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}

    def across(self, *words, of=2, each=None, **env):
        """Two hosts of two ranks, `of` in a process; what each process says."""
        count = 4 // of
        processes = self.by_hand(("all_reduce", "-b", "16K", "-e", "16K", "--iters", 1, "-w", 0, "-t", of, *words),
                                 count, each=lambda r: {"NCCL_HOSTID": f"host{r * of // 2}", **(each(r) if each else {})},
                                 **{**self.plugin, **env})
        for process in processes:
            process.wait()
        for rank, process in enumerate(processes):
            self.assertEqual(process.status, 0, f"process {rank}:\n" + "".join(p.all[-3000:] for p in processes))
        self.good(processes[0])
        return [p.all for p in processes]

    def fused(self, text):
        return {members: int(dev) for members, dev, _, _ in ONE.findall(text)}

    def used(self, *texts):
        found = {int(dev) for text in texts for dev in USED.findall(text)}
        self.assertTrue(found)
        return found

    def test_ports_of_a_card(self):
        """By default; each process makes a device once, whatever the number of its ranks."""
        dump = os.path.join(self.work, "dump.xml")
        texts = self.across("-p", 1, NCCL_TOPO_DUMP_FILE=dump)
        for text in texts:
            self.assertEqual(MADE.findall(text), [("4", "a0+a1"), ("5", "b0+b1")])
            self.assertEqual(set(ONE.findall(text)), {("0 and 1", "4", "a0+a1", "200000"), ("2 and 3", "5", "b0+b1", "200000")})
            self.assertNotIn("one by one", text)
        self.assertLessEqual(self.used(*texts), {4, 5})
        self.assertEqual(set(re.findall(r'<net name="(\w+[^"]*)"', lib.read(dump))), {"a0", "a1", "b0", "b1"})

    def test_what_is_asked_for(self):
        """A level, a policy and names; a name of no device is an error."""
        for env, fused, near in (({"NCCL_NET_MERGE_LEVEL": "LOC"}, {}, PHYSICAL),
                                 ({"NCCL_NET_MERGE_LEVEL": "PHB"}, {"0, 1, 2 and 3": 4}, {4}),
                                 ({"NCCL_NET_MERGE_LEVEL": "PHB", "NCCL_NET_MERGE_POLICY": "RAIL"},
                                  {"0 and 2": 4, "1 and 3": 5}, {4, 5}),
                                 ({"NCCL_NET_FORCE_MERGE": "b1,a0"}, {"3 and 0": 4}, {1, 2, 4})):
            with self.subTest(**env):
                texts = self.across(**env)
                for text in texts:
                    self.assertEqual(self.fused(text), fused)
                self.assertLessEqual(self.used(*texts), near)
        process = self.run_it(lib.PERF, "all_reduce", "-t", 2, "-b", 8, "-e", 8, NCCL_NET_FORCE_MERGE="a0,c9", **self.plugin)
        self.assertNotEqual(process.status, 0)
        self.assertIn('NCCL_NET_FORCE_MERGE: "c9" in "a0,c9" is no network device', process.all)

    def test_refused(self):
        """What one process of a host cannot fuse, or has under another number, no rank of it uses."""
        texts = self.across(of=1, each=lambda r: {"FUSING_REFUSE": 2} if r == 1 else {})
        self.assertIn("does not fuse its devices 2 and 3, which are used one by one", texts[1])
        self.assertIn("network devices 2 and 3 are used one by one", texts[0])
        self.assertEqual([self.fused(t) for t in texts], 2 * [{"0 and 1": 4}] + 2 * [{"0 and 1": 4, "2 and 3": 5}])
        self.assertNotIn(5, self.used(*texts[:2]))
        texts = self.across(of=1, each=lambda r: {"FUSING_EARLY": 1} if r == 1 else {})
        self.assertEqual([self.fused(t) for t in texts[:2]], [{}, {}])
        self.assertLessEqual(self.used(*texts[:2]), PHYSICAL)

    def test_two_communicators(self):
        """The second finds what the first has had made, and counts it for no device of its own."""
        done = self.ranks(["init all_reduce:1000 beside all_reduce:1000 destroy"] * 2,
                          each=lambda r: {"NCCL_HOSTID": f"host{r}"}, **self.plugin)
        for process in done:
            self.assertEqual(process.wait().status, 0, process.all[-3000:])
            self.assertEqual(MADE.findall(process.all), [("4", "a0+a1"), ("5", "b0+b1")])
            self.assertEqual([int(dev) for _, dev, _, _ in ONE.findall(process.all)], [4, 5, 4, 5])
        self.assertLessEqual(self.used(*(p.all for p in done)), {4, 5})

    def test_a_plugin_that_cannot(self):
        text = self.log("all_reduce", "-t", 2, "-b", 8, "-e", 8, NCCL_NET_FORCE_MERGE="lo,eth0")
        self.assertIn("cannot fuse devices: NCCL_NET_FORCE_MERGE has no effect", text)


if __name__ == "__main__":
    lib.main()
