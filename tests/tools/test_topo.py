"""tutti-topo on machines from files. Arguments as support.py has them."""
import json
import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree

from support import BIN, Case, environment, main, PERF, run


class Topo(Case):
    TOPO = os.path.join(BIN, "tutti-topo")
    MACHINE = """<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:21:00.0" count="4" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="a" dev="0" speed="100000" port="1" guid="0x1" maxconn="64" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ff00" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:21:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1" unknown="kept">
        <nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""

    def topo(self, *words, status=0, text=MACHINE, **variables):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(text)
            file.flush()
            done = run(self.TOPO, *(file.name if w == "FILE" else w for w in words), env=environment(**variables))
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return done.stderr.replace(file.name, "FILE") if status else done.stdout

    RINGS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="30" speedinter="5" typeintra="NVL" typeinter="PXN" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
    <channel><net dev="0"/><gpu dev="1"/><gpu dev="0"/><net dev="0"/></channel>
  </graph>
</graphs>
"""

    def graph(self, *words, rings=RINGS, **more):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(rings)
            file.flush()
            return self.topo("graph", "FILE", "--load", file.name, *words, **more).replace(file.name, "GRAPHS")

    def test_graph(self):
        shown = self.graph("--graph", "ring")
        self.assertIn("ring of the file: 2 channels, each 30 GB/s between GPUs (NVL); together 60\n", shown)
        self.assertIn("  ring 0: 0 1 -> 0\n  ring 1: 1 0 -> 1\n", shown)
        self.assertIn("        60 of 80        75%  2 links DEV -NVL-> DEV, such as DEV 0000:11:00.0 -NVL-> DEV 0000:21:00.0\n", shown)
        self.assertNotIn("tree", shown)
        shown = self.graph("-g", "ring", "--links", "--nodes", 2)
        self.assertIn(", 5 to NETs (PXN); together 60 and 10\n", shown)
        self.assertIn("; by the same NIC as it came\n  ring 0: net 0 -> 0 1 -> net 0\n", shown)
        # Of both rings, what comes in at rank 1 goes by the CPUs, and what it sends through GPU 0.
        self.assertIn("        35 of 80        44%  DEV 0000:21:00.0 -NVL-> DEV 0000:11:00.0\n", shown)
        self.assertIn("        10 of 12.5      80%  NET 0 -NET-> NIC 0000:12:00.0\n", shown)
        self.assertIn("         5 of 22        23%  CPU 0 -SYS-> CPU 1\n", shown)
        self.assertIn("more than it carries", self.graph(rings=self.RINGS.replace('"30"', '"300"')))
        with tempfile.TemporaryDirectory() as folder:
            dump = os.path.join(folder, "dump.xml")
            self.graph("--dump", dump, "-N", 2)
            with open(dump) as file:
                again = file.read()
            # A link is followed, not replaced; /dev/stdout is one.
            os.symlink(dump, dump + ".link")
            os.truncate(dump, 0)
            self.graph("--dump", dump + ".link", "-N", 2)
            self.assertTrue(os.path.islink(dump + ".link"))
            with open(dump) as file:
                self.assertEqual(file.read(), again)
        self.assertIn('      <net dev="0"/>\n      <gpu dev="0"/>\n      <gpu dev="0x1"/>\n', again)
        found = re.sub(r"  searched .*\n", "", self.graph("-N", 2)).replace("tree:", "tree of the file:")
        self.assertEqual(self.graph("-N", 2, rings=again), found)
        self.assertEqual(self.graph(rings=self.RINGS.replace("0x", "").replace('dev="1"', 'dev="2"', 1), status=1),
                         'tutti-topo: GRAPHS:3: <gpu dev="2">: no rank is on device 0x2 of this machine; name the device of one\n')

    BOTH = RINGS.replace("</graphs>", """  <graph id="1" pattern="1" crossnic="0" nchannels="2" speedintra="20" speedinter="5" typeintra="NVL" typeinter="PXN" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
    <channel><net dev="0"/><gpu dev="1"/><gpu dev="0"/><net dev="0"/></channel>
  </graph>
</graphs>
""")

    def join(self, *words, graphs=BOTH, **more):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(graphs)
            file.flush()
            return self.topo("join", "FILE", "--load", file.name, *words, **more)

    def test_join(self):
        joined = self.join("--nodes", 3)
        self.assertIn("3 machines of 2 ranks, 6 ranks\n"
                      "collectives: 4 channels, of 2 that were searched; 2 different rings\n"
                      "rings: 30 GB/s inside (NVL), 5 outside (PXN)\n"
                      "trees: 20 GB/s inside (NVL), 5 outside (PXN), depth 2\n"
                      "sends and receives: 4 channels, 1 a peer; 2 ranks go to a group together\n"
                      "rings between machines: 6 ways from a NET to the one with the same number, 0 to another\n", joined)
        self.assertIn(": 4 rings visit each rank and enter each machine once; 4 trees reach each rank once, and the second "
                      "ones mirror the first; 6 ranks meet each rank once\n", joined)
        # Machines 0 above 2 above 1, and 1 above 0 above 2. The first child is at the second rank of a chain.
        self.assertIn("ring 0: 0 1 | 2 3 | 4 5\nring 1: 0 | 3 2 | 5 4 | 1\n"
                      "tree 0: 0 (1 4 (5 (2 (3))))\ntree 1: 1 (0 5 (4 (3 (2))))\n"
                      "tree 2: 2 (3 0 (1 (4 (5))))\ntree 3: 3 (2 1 (0 (5 (4))))\n", joined)
        self.assertTrue(self.join("--nodes", 3, "--channel", 3).endswith(
            "ring 3: 0 | 3 2 | 5 4 | 1\ntree 3: 3 (2 1 (0 (5 (4))))\n"))
        self.assertTrue(self.join("--nodes", 3, "--rank", 5, "--channel", 0).endswith(
            "rank 5: machine 2, number 1 of 2 there\nring 0: place 5, from 4, to 0\n"
            "tree 0: below 4, above 2\nsends to 5 4 1 0 3 2\n"))
        self.assertIn("1 machines of 2 ranks", self.join())
        self.assertRegex(self.join(graphs=self.RINGS), r"rings: 30 GB/s inside .*\ntrees: ")  # the rest is searched
        self.assertIn("3 machines of 2 ranks, 6 ranks\n", self.topo("join", "FILE", "--nodes", 3))
        split = self.topo("join", "FILE", "--nodes", 3, NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1)
        self.assertIn("6 machines of 1 ranks, 6 ranks\n", split)
        self.assertIn("ring 0: 0 | 1 | 2 | 3 | 4 | 5\n", split)
        self.assertIn("collectives: 3 channels", self.join(NCCL_MAX_NCHANNELS=3))
        self.assertIn("collectives: 3 channels", self.join(NCCL_MAX_CTAS=3))
        self.assertIn("collectives: 4 channels", self.join(NCCL_MAX_CTAS=0))
        self.assertIn("collectives: 7 channels", self.join(NCCL_MIN_CTAS=7, NCCL_MIN_NCHANNELS=5))
        large = self.join("--nodes", 4096)
        self.assertIn("8192 ranks", large)
        self.assertIn("64 ranks meet each rank once", large)
        self.assertNotIn("ring 0:", large)

    def test_join_refuses(self):
        for words, said in ((["--rank", 6], "--rank 6: there are 6, from 0"), (["--channel", 4], "--channel 4: there are 4"),
                            (["-R", "0"], "no rank is on device 0x1")):
            self.assertIn(said, self.join("--nodes", 3, *words, status=1))
        self.assertIn("NCCL_MAX_NCHANNELS", self.join(NCCL_MAX_NCHANNELS="many", status=1))
        self.assertIn("--nodes", self.join("--nodes", 0, status=2))

    def test_search(self):
        shown = self.topo("graph", "FILE")
        self.assertRegex(shown, r"^ring: \d+ channels?, each [\d.]+ GB/s between GPUs \(NVL\); together [\d.]+\n  rings")
        self.assertRegex(shown, r"\n  ring 0: (0 1 -> 0|1 0 -> 1)\n")
        self.assertRegex(shown, r"\n  searched under \d+ different limits, \d+ places looked at")
        self.assertRegex(shown, r"\ntree: .*\n  chains(;.*)?\n  tree 0: (0 1|1 0)\n")
        self.assertIn("\nnvls: none: multicast needs sm 90\n", shown)
        self.assertIn("\nnvls: none: NCCL_NVLS_ENABLE is 0\n", self.topo("graph", "FILE", NCCL_NVLS_ENABLE=0))
        self.assertIn("\ncollnetchain: none: NCCL_COLLNET_ENABLE is not 1\n", shown)
        self.assertIn("\ncollnetdirect: none: no NET reduces\n", self.topo("graph", "FILE", "-N", 2, NCCL_COLLNET_ENABLE=1))
        shown = self.topo("graph", "FILE", "-N", 3)
        self.assertRegex(shown, r"\n  ring 0: net 0 -> (0 1|1 0) -> net 0\n")
        self.assertNotIn("more than it carries", shown)
        some = self.graph("-N", 3)
        self.assertRegex(some, r"^ring of the file: 2 channels")
        self.assertEqual(some[some.index("\ntree:"):], shown[shown.index("\ntree:"):])
        self.assertIn("NCCL_CROSS_NIC=3", self.topo("graph", "FILE", status=1, NCCL_CROSS_NIC=3))

    def test_some_ranks(self):
        self.assertIn("1 GPUs, 1 NETs", self.topo("show", "--ranks", "1", "FILE"))
        self.assertIn("GPU 1 ", self.topo("show", "--ranks", "1", "FILE"))
        self.assertEqual(self.topo("show", "-R", "0-1", "FILE"), self.topo("show", "FILE"))
        self.assertNotIn('rank="0"', self.topo("copy", "-R", "1", "FILE"))
        for ranks, said in (("0,2", "FILE has no <gpu> of rank 2"), ("", "must list ranks"), ("1-0", "must list ranks"),
                            ("0,x", "must list ranks"), ("-1", "must list ranks")):
            self.assertIn(said, self.topo("show", "--ranks=" + ranks, "FILE", status=1))

    def test_show(self):
        shown = self.topo("show", "FILE")
        self.assertIn("2 GPUs, 1 NETs, 2 CPUs, 1 hosts; best path between GPUs 80 GB/s, links of a GPU together 80 GB/s\n", shown)
        self.assertIn("CPU 1  x86_64 Intel, Sapphire Rapids, 8 processors\n  + SYS 22 to CPU 0\n"
                      "  - 24 - DEV 0000:21:00.0  sm 80, GPUDirect\n    + NVL 80 to DEV 0000:11:00.0, 4 links\n"
                      "    GPU 1  (device 1)\n", shown)
        self.assertIn("      NET 0  a, 12.5 GB/s, port 1, GPUDirect\n", shown)
        self.assertIn("best path from a GPU to a NET 12.5 GB/s", self.topo("show", "--nodes", 2, "FILE"))
        alone = self.topo("show", "--rank", 1, "FILE", NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1)
        self.assertIn("1 more GPUs of the file are reached over the network only\n", alone)
        self.assertNotIn("GPU 0 ", alone)

    def test_pipe(self):
        """Another program's output, as well as a file."""
        done = subprocess.run([self.TOPO, "show", "/dev/stdin"], input=self.MACHINE, env=environment(), timeout=120, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (0, self.topo("show", "FILE")), done.stderr)
        for path in "/", "/dev/zero", os.path.join(BIN, "nothing"):
            done = run(self.TOPO, "show", path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(path, done.stderr)

    def test_paths(self):
        shown = self.topo("paths", "--steps", "FILE")
        self.assertRegex(shown, r"from NET +GPU 0 +GPU 1 *\nNET 0 +PIX 12.5 +SYS 12.5 *\n")
        self.assertIn("GPU 1 -> NET 0: PXN 12.5: -LOC-> DEV 0000:21:00.0 -NVL-> DEV 0000:11:00.0 -LOC-> GPU 0 "
                      "-LOC-> DEV 0000:11:00.0 -PCI-> PCI 0000:10:00.0 -PCI-> NIC 0000:12:00.0 -NET-> NET 0\n", shown)
        self.assertIn("GPU 1: nearest CPU 1, NET 0 by GPU 0; GPUDirect both ways\n", shown)
        self.assertRegex(self.topo("paths", "FILE", NCCL_PXN_DISABLE=1), r"\nGPU 1 +SYS 12.5 *\n")

    def test_explain(self):
        why = self.topo("explain", "FILE", 0, "gpu1")
        self.assertIn("best path: NVL, 80 GB/s: GPU 0 -LOC-> DEV 0000:11:00.0 -NVL-> DEV 0000:21:00.0 -LOC-> GPU 1\n", why)
        self.assertIn("peer memory: yes: NVL is no farther than PXB, which is allowed by default (NCCL_P2P_LEVEL)\n", why)
        self.assertIn("\n=> peer memory\n", why)
        why = self.topo("explain", "FILE", 0, 1, NCCL_P2P_DISABLE=1)
        self.assertIn("best path: NVL, 80 GB/s", why)
        self.assertIn("peer memory: no: NCCL_P2P_DISABLE is 1\n", why)
        self.assertIn("network instead: no: they reach NETs without a CPU at 12.5 and 0 GB/s, each other at 24 ", why)
        self.assertIn("\n=> memory of the host\n   by this path: PHB, 24 GB/s: GPU 0 -LOC-> DEV 0000:11:00.0 -NVL-> "
                      "DEV 0000:21:00.0 -PCI-> CPU 1 -PCI-> DEV 0000:21:00.0 -LOC-> GPU 1\n", why)  # that of the second
        why = self.topo("explain", "FILE", 1, 0, NCCL_P2P_LEVEL="LOC")
        self.assertIn("peer memory: no: NVL is farther than LOC, which NCCL_P2P_LEVEL allows\n", why)
        why = self.topo("explain", "FILE", 0, 1, NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1)
        self.assertIn("memory of the host: no: NCCL_SHM_DISABLE is 1\n=> network\n"
                      "   GPU 0 sends by NET 0 (GPUDirect), GPU 1 receives by NET 0 (memory of the host)\n"
                      "   GPU 1 sends by NET 0 (memory of the host), GPU 0 receives by NET 0 (GPUDirect)\n", why)
        self.assertEqual(self.topo("explain", "FILE", 1, 1), "a rank reaches itself by its own memory\n")

    def test_explain_network(self):
        # Without NVLink, and with a NIC for each GPU on its switch, the network is better than the way between CPUs.
        below = ('<pci busid="0000:20:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">'
                 '<pci busid="0000:22:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16"><nic>'
                 '<net dev="2" speed="400000" guid="0x2" gdr="1"/></nic></pci>')
        apart = re.sub(r" *<nvlink.*\n", "", self.MACHINE).replace('modelid="143"', 'modelid="85"')
        apart = apart.replace('<pci busid="0000:21:00.0"', below + '<pci busid="0000:21:00.0"')
        apart = apart.replace("  </cpu>\n</system>", "</pci></cpu></system>")
        why = self.topo("explain", "FILE", 0, 1, text=apart)
        self.assertIn("peer memory: no: SYS is farther than PXB, which is allowed by default (NCCL_P2P_LEVEL)\n", why)
        self.assertIn("network instead: yes: they reach NETs without a CPU at 12.5 and 24 GB/s, each other at 10 ", why)
        self.assertIn("\n=> network\n   GPU 0 sends by NET 0 (GPUDirect), GPU 1 receives by NET 2 (GPUDirect)\n", why)
        why = self.topo("explain", "FILE", 0, 1, text=apart, NCCL_NET_DISABLE_INTRA=1)
        self.assertIn("network instead: no: NCCL_NET_DISABLE_INTRA is 1\n", why)
        self.assertIn("\n=> memory of the host\n", why)

    def test_explain_a_net(self):
        why = self.topo("explain", "FILE", 1, "net0")
        self.assertIn("through another GPU: yes: GPU 0, the nearest to that NET; alone: SYS, 12.5 GB/s (NCCL_PXN_DISABLE)\n", why)
        self.assertIn("GPUDirect, sending: yes: PIX is no farther than P2C, which is allowed by default (NCCL_NET_GDR_LEVEL)\n"
                      "  of GPU 0, which sends for this one\n", why)
        self.assertIn("\n=> sends from the memory of GPU 0, receives into that of GPU 1\n", why)
        why = self.topo("explain", "FILE", 1, "net0", NCCL_PXN_DISABLE=1)
        self.assertIn("through another GPU: no: NCCL_PXN_DISABLE is 1\n", why)
        self.assertIn("GPUDirect, receiving: no: SYS is farther than P2C, ", why)
        self.assertIn("\n=> sends from the memory of the host, receives into that of the host\n", why)
        why = self.topo("explain", "FILE", 0, "net0", NCCL_NET_GDR_READ=0)
        self.assertIn("through another GPU: no: it is the nearest to that NET itself\n", why)
        self.assertIn("GPUDirect, sending: no: NCCL_NET_GDR_READ is 0\nGPUDirect, receiving: yes: PIX ", why)
        why = self.topo("explain", "FILE", 0, "net0", NCCL_NET_GDR_LEVEL="LOC")
        self.assertIn("GPUDirect, sending: no: PHB is farther than LOC, which NCCL_NET_GDR_LEVEL allows\n", why)
        for what, said in (('gdr="1"/>', "no: the NET cannot"), ('rank="0" gdr="1"', "no: the GPU cannot")):
            self.assertIn(said, self.topo("explain", "FILE", 0, "net0", text=self.MACHINE.replace(what, what.replace("1", "0", 1))))

    def test_copy(self):
        self.assertEqual(self.topo("copy", "FILE"), self.MACHINE)

    def draw(self, *words, rings=RINGS, name="machine.xml", text=MACHINE, status=0, **variables):
        """The picture and the page, or what was said."""
        with tempfile.TemporaryDirectory() as folder:
            for file, content in ((name, text), ("graphs", rings)):
                with open(os.path.join(folder, file), "w") as f:
                    f.write(content)
            out = [os.path.join(folder, "out." + kind) for kind in ("svg", "html")]
            done = run(self.TOPO, "draw", os.path.join(folder, name), "--load", os.path.join(folder, "graphs"), "--svg", out[0],
                       "--html", out[1], *words, env=environment(**variables))
            self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
            self.assertEqual(sorted(os.listdir(folder)), sorted([name, "graphs"] + ["out.svg", "out.html"] * (status == 0)))
            if status:
                return done.stderr
            with open(out[0]) as svg, open(out[1]) as html:
                return svg.read(), html.read()

    def test_draw(self):
        svg, html = self.draw("--graph", "ring", "--channel", 1)
        self.assertIn('<body data-start="ring/1">', html)
        root = xml.etree.ElementTree.fromstring(svg)
        texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
        for text in ("GPU 0", "NET 0", "PCI 10:00.0", "CPU 1", "4 x 20", "24", "22", "2 GPUs, 1 NETs, 2 CPUs; ring, channel 1"):
            self.assertIn(text, texts)
        way = root.findall("{http://www.w3.org/2000/svg}g[@class='way']/{http://www.w3.org/2000/svg}path")
        self.assertEqual(len(way), 2)
        data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.S).group(1))
        self.assertEqual([g["name"] for g in data["graphs"]], ["ring", "tree"])  # the tree was searched
        self.assertEqual(data["graphs"][0]["orders"], ["0, 1", "1, 0"])
        (hop, bandwidth, both), (back, _, _) = data["graphs"][0]["channels"][1]
        self.assertEqual((bandwidth, both), (30, 0))
        self.assertEqual([p.get("d") for p in way], [data["hops"][hop]["d"], data["hops"][back]["d"]])
        names = [data["nodes"][data["links"][link]["b"]] for link in data["hops"][hop]["l"]]
        self.assertEqual(names, ["DEV 0000:21:00.0", "DEV 0000:11:00.0", "GPU 0"])
        self.assertNotRegex(html, r"(?i)(src|href)=|url\((?!#)|@import|https?://(?!www.w3.org/2000/svg)")  # one file, no network
        _, html = self.draw("-N", 2)
        data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.S).group(1))
        self.assertEqual(data["graphs"][0]["orders"], ["NET 0, 0, 1, NET 0", "NET 0, 1, 0, NET 0"])
        self.assertEqual(sorted(h["y"] for h in data["hops"]), ["NVL", "NVL", "PIX", "PIX", "PXN", "SYS"])

    def test_draw_survives_any_name(self):
        for name in ("<b>&\"'</title><script>alert(1)</script>".replace("/", ":") + ".xml", "x" * 240, "\u00e9\u20ac \\u003c",
                     "-->]]>", os.fsdecode(b"\xff\xc3")):
            svg, html = self.draw(name=name)
            title = xml.etree.ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}title").text
            self.assertEqual(title, name.encode("utf-8", "replace").decode() if name.isprintable() else "??")
            self.assertEqual(html.count("<script"), 2)
            self.assertNotIn("<b>", html)

    def test_draw_refusals(self):
        self.assertIn("ring has channels 0 to 1", self.draw("-g", "ring", "-c", 2, status=1))
        self.assertIn("this machine has no nvls", self.draw("-g", "nvls", status=1))
        for out, status, said in (("/no/such/folder/x.svg", 1, "cannot write /no/such/folder/x.svg: No such file"),
                                  ("/dev/full", 3, "/dev/full could not be written: No space left")):
            for kind in ("--svg", "--html"):
                self.assertIn(said, self.topo("draw", "FILE", kind, out, status=status))
        with tempfile.TemporaryDirectory() as folder:
            kept = os.path.join(folder, "kept.svg")
            with open(kept, "w") as f:
                f.write("before")
            done = run("sh", "-c", f"ulimit -f 1; trap '' XFSZ; exec \"$0\" draw \"$1\" --svg {kept}", self.TOPO,
                       self.written(folder), env=environment())
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("nothing of it was kept", done.stderr)
            self.assertEqual(sorted(os.listdir(folder)), ["kept.svg", "machine.xml"])
            with open(kept) as f:
                self.assertEqual(f.read(), "before")

    def written(self, folder):
        path = os.path.join(folder, "machine.xml")
        with open(path, "w") as f:
            f.write(self.MACHINE)
        return path

    def test_skeleton(self):
        """Clouds ship files without GPUs: it is said how to fill one, and so it is filled."""
        skeleton = re.sub(r' arch=.*(?=>\n    <pci)', "", re.sub(r"<gpu .*?</gpu>", "", self.MACHINE, flags=re.S))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "skeleton.xml")
            with open(path, "w") as f:
                f.write(skeleton)
            done = run(self.TOPO, "show", path, env=environment())
            self.assertEqual(done.returncode, 1)
            said = re.search(r"has no attribute arch; add it\ntutti-topo: .* skeleton, have a job fill it, on any machine: "
                             r"(\S+) (\S+) tutti-perf (.*); then look at full.xml\n$", done.stderr)
            self.assertTrue(said, done.stderr)
            full = os.path.join(folder, "full.xml")
            filled = run(PERF, *said[3].replace("-n 8", "-n 2").split(),
                         env=environment(NCCL_TOPO_FILE=path, NCCL_TOPO_DUMP_FILE=full))
            self.assertEqual(said[1], f"NCCL_TOPO_FILE={path}")
            self.assertEqual(filled.returncode, 0, filled.stdout + filled.stderr)
            shown = run(self.TOPO, "show", full, env=environment())
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertRegex(shown.stdout, "^2 GPUs, ")
        with_gpus = self.MACHINE.replace(' sm="80" rank="1"', ' rank="1"')
        self.assertNotIn("skeleton", self.topo("show", "FILE", status=1, text=with_gpus))

    def test_refusals(self):
        broken = self.MACHINE.replace(' sm="80" rank="1"', ' rank="1"')
        self.assertEqual(self.topo("show", "FILE", status=1, text=broken),
                         'tutti-topo: FILE:18: <gpu dev="1"> has no attribute sm; add it\n')
        self.assertIn("NCCL_P2P_LEVEL", self.topo("paths", "FILE", status=1, NCCL_P2P_LEVEL="NEAR"))
        self.assertIn("no <gpu> of rank 7", self.topo("show", "-r", 7, "FILE", status=1))
        self.assertIn("No such file", self.topo("show", "/no/such/file", status=1))
        for ends, said in (((0, 2), '"2" is no rank or NET'), (("net0", 1), '"net0" is no rank'), ((0, "net0x"), "net0x"),
                           ((0, "net1/0"), "net1/0"), ((-1, 0), '"-1" is no rank')):
            self.assertIn(said, self.topo("explain", "--", "FILE", *ends, status=1))
        for words, said in ((["show"], "name a command and a file"), (["paint", "FILE"], "no command paint"),
                            (["draw", "FILE"], "a file to write"), (["show", "--svg", "x", "FILE"], "--svg belongs to draw,"),
                            (["draw", "--html", "x", "-c", 0, "FILE"], "name the --graph of that --channel"),
                            (["explain", "FILE", 0], "two ends"), (["paths", "FILE", "FILE"], "one file"),
                            (["show", "-s", "FILE"], "--steps belongs to paths"),
                            (["explain", "-r", 0, "FILE", 0, 1], "--rank belongs to show, paths, graph"),
                            (["copy", "-N", 2, "FILE"], "--nodes belongs to show, paths, explain, graph"),
                            (["graph", "-g", "star", "FILE"], '--graph "star" must be ring, tree, '), (["show", "-N", 0, "FILE"], "--nodes"),
                            (["show", "--what", "FILE"], "what")):
            self.assertIn(said, self.topo(*words, status=2))
        with open("/dev/full", "w") as full, tempfile.NamedTemporaryFile("w") as file:
            file.write(self.MACHINE)
            file.flush()
            for command in ("show", "copy"):
                self.assertEqual(subprocess.run([self.TOPO, command, file.name], stdout=full, stderr=subprocess.PIPE,
                                                timeout=60).returncode, 3)

    def test_help_names_the_variables(self):
        for name in ("NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_COLLNET_ENABLE"):
            self.assertIn(name, self.topo("--help"))


if __name__ == "__main__":
    main()
