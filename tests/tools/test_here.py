"""tutti-topo --here, on what the test's backend describes. Arguments as support.py has them."""
import os
import re
import shutil
import tempfile

from support import BIN, Case, environment, main, PERF, run


class Here(Case):
    """tutti-topo on a machine whose sysfs is made here."""
    TOPO = os.path.join(BIN, "tutti-topo")

    def setUp(self):
        self.sys = tempfile.mkdtemp()

    def tearDown(self):
        shutil.rmtree(self.sys)

    def write(self, path, data):
        path = os.path.join(self.sys, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())

    def link(self, path, target):
        path = os.path.join(self.sys, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)

    def device(self, path, **files):
        for name, text in files.items():
            self.write(f"devices/{path}/{name}", text + "\n")
        self.link("bus/pci/devices/" + os.path.basename(path), "../../../devices/" + path)

    def server(self):
        """Two GPUs and a card of two ports below a bridge, a virtual card, and an interface without any."""
        self.write("devices/system/node/node0/cpumap", "0000000f\n")
        bridge = "pci0000:10/0000:10:00.0"
        fast = {"max_link_speed": "16.0 GT/s PCIe", "max_link_width": "16", "numa_node": "0"}
        self.device(bridge, **fast, **{"class": "0x060400"})
        for gpu in (1, 2):
            self.device(f"{bridge}/0000:1{gpu}:00.0", **fast, **{"class": "0x030200"}, vendor="0x10de",
                        current_link_speed="2.5 GT/s PCIe" if gpu == 1 else "16.0 GT/s PCIe",
                        current_link_width="16" if gpu == 1 else "8")
        card = f"{bridge}/0000:13:00.0"
        self.device(card, **fast, **{"class": "0x020000"}, vendor="0x15b3")
        for port, state in ((1, "4: ACTIVE"), (2, "1: DOWN")):
            self.write(f"devices/{card}/infiniband/mlx5_0/ports/{port}/state", state + "\n")
            self.write(f"devices/{card}/infiniband/mlx5_0/ports/{port}/rate", "200 Gb/sec (4X HDR)\n")
        self.write(f"devices/{card}/infiniband/mlx5_0/node_guid", "0002:c903:00a1:b2c3\n")
        self.write(f"devices/{card}/net/ib0/speed", "200000\n")
        self.device("pci0000:00/0000:00:03.0", **{"class": "0x020000"}, numa_node="-1")
        self.write("devices/pci0000:00/0000:00:03.0/virtio1/net/eth0/speed", "-1\n")
        self.write("devices/virtual/net/lo/speed", "1\n")
        self.link("class/infiniband/mlx5_0", f"../../devices/{card}/infiniband/mlx5_0")
        self.link(f"devices/{card}/infiniband/mlx5_0/device", "../..")
        self.link("class/net/ib0", f"../../devices/{card}/net/ib0")
        self.link(f"devices/{card}/net/ib0/device", "../..")
        self.link("class/net/eth0", "../../devices/pci0000:00/0000:00:03.0/virtio1/net/eth0")
        self.link("devices/pci0000:00/0000:00:03.0/virtio1/net/eth0/device", "../..")
        self.link("class/net/lo", "../../devices/virtual/net/lo")
        return bridge

    def here(self, command, *words, status=0, **env):
        done = run(self.TOPO, command, "--here", "--sysfs", self.sys, *words, env=environment(**env))
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def test_tables(self):
        self.server()
        shown, said = self.here("show")
        self.assertIn("    - 24 - DEV 0000:11:00.0  sm 0, GPUDirect\n      GPU 0  (device 0)\n", shown)
        self.assertIn("      NET 0  mlx5_0, 25 GB/s, port 1\n", shown)
        self.assertRegex(shown, r"\n +GPU0 +GPU1 +NET0 +NET1 +processors\n"
                                r"GPU0 +X +PIX +PIX +PHB +0-3  NUMA 0\nGPU1 +PIX +X +PIX +PHB +0-3  NUMA 0\n"
                                r"NET0 +PIX +PIX +X +PHB *\nNET1 +PHB +PHB +PHB +X *\n")
        self.assertIn("\nNET0 is mlx5_0\nNET1 is eth0\n", shown)
        self.assertIn("does not tell the GPUs' sm", said)
        self.assertIn('guid="0x2c90300a1b2c3"', self.here("copy")[0])
        self.assertIn("=> peer memory\n", self.here("explain", 0, 1)[0])

    def test_warnings(self):
        bridge = self.server()
        shown, _ = self.here("show")
        self.assertIn("warning: the link of 0000:11:00.0 runs at 2.5 GT/s x16, and could at 16 GT/s x16 (an idle", shown)
        self.assertIn("warning: the link of 0000:12:00.0 runs at 16 GT/s x8, and could at 16 GT/s x16: look at its slot", shown)
        self.assertIn("ACS of 1 bridges cannot be seen: run this as root\n", shown)
        self.assertNotIn("IOMMU", shown)
        config = bytearray(4096)
        config[0x100:0x108] = bytes((1, 0, 1, 0x14, 0, 0, 0, 0))  # another capability, the next at 0x140
        config[0x140:0x148] = bytes((0x0d, 0, 1, 0, 0x1f, 0, 0x1d, 0))
        self.write(f"devices/{bridge}/config", bytes(config))
        for device, kind in (("11", "DMA-FQ"), ("12", "identity"), ("13", "DMA")):
            self.write(f"kernel/iommu_groups/{device}/type", kind + "\n")
            self.link(f"devices/{bridge}/0000:{device}:00.0/iommu_group", f"../../../../kernel/iommu_groups/{device}")
        shown, _ = self.here("show")
        self.assertIn("bridge 0000:10:00.0 has ACS on (SrcValid ReqRedir CmpltRedir UpstreamFwd)", shown)
        self.assertIn("setpci -s 0000:10:00.0 ECAP_ACS+6.w=0\n", shown)
        self.assertIn("an IOMMU translates what 2 devices send, 0000:11:00.0 among them", shown)
        self.assertNotIn("root", shown)
        config[0x146] = 0x42  # neither bit redirects
        config[0x102:0x104] = bytes((1, 0x10))  # and the list goes in a circle
        self.write(f"devices/{bridge}/config", bytes(config))
        self.assertNotIn("ACS", self.here("show")[0])

    def test_devices(self):
        """A backend tells what sysfs does not; its order is another, and what it warns of is shown."""
        self.server()
        device = {"TUTTI_DEVICE": os.environ["TEST_DESCRIBED"]}
        shown, said = self.here("show", **device, FAKE_DESCRIBED_WARNS="GPU 3 has lost its links")
        self.assertIn("    - 24 - DEV 0000:11:00.0  sm 90, GPUDirect\n      + NVL 82.4 to DEV 0000:12:00.0, 4 links\n      GPU 0  (device 0)\n", shown)
        self.assertIn("tutti-topo: device described tells of 2 of 2 GPUs\n", said)
        self.assertIn("warning: GPU 3 has lost its links\n", said)
        self.assertNotIn("the driver does not", self.here("explain", 0, 1, **device)[0])
        _, said = self.here("show", status=1, **device, FAKE_DESCRIBED_REFUSES="4")
        self.assertIn("(rank 1) read and write memory of GPU/0-11000 (rank 0), though NVLinks join them", said)
        shown, _ = self.here("explain", 0, 1, **device, FAKE_DESCRIBED_REFUSES="4", NCCL_IGNORE_DISABLED_P2P="1")
        self.assertIn("peer memory: no: the driver does not allow it (NCCL_IGNORE_DISABLED_P2P)\n", shown)
        self.assertIn("=> memory of the host\n", shown)
        shown, _ = self.here("explain", 0, 1, **device, FAKE_DESCRIBED_REFUSES="4", NCCL_IGNORE_DISABLED_P2P="2")
        self.assertRegex(shown, "peer memory: yes: .*\n  though the driver does not allow it: .*\n  data is written")
        _, said = self.here("show", TUTTI_DEVICE="/nowhere/libtutti-device-x.so")
        self.assertIn("they are taken for GPUs without (no such file)\n", said)
        for device, why in (("", "--sysfs names another machine"), ("host", "TUTTI_DEVICE asks for the host")):
            self.assertIn(f"they are taken for GPUs without ({why}", self.here("show", TUTTI_DEVICE=device)[1])

    def test_no_sysfs(self):
        """A folder that is no copy of sysfs would be taken for a machine without anything."""
        _, said = self.here("show", status=1)
        self.assertEqual(said, f"tutti-topo: --sysfs {self.sys}: neither bus/pci nor devices is there; name a copy of /sys\n")
        self.assertIn("--sysfs /nope: neither", run(self.TOPO, "show", "--here", "--sysfs", "/nope", env=environment()).stderr)

    def test_without_gpus(self):
        os.makedirs(os.path.join(self.sys, "devices"))
        shown, said = self.here("paths")
        self.assertIn("lists no NVIDIA GPU", said)
        self.assertIn("GPU 0: nearest CPU -", shown)
        for node in (0, 1):
            self.write(f"devices/system/node/node{node}/cpumap", f"{1 << node}\n")
        shown, _ = self.here("show")
        self.assertIn("2 GPUs, 0 NETs, 2 CPUs", shown)
        self.assertRegex(shown, r"\nGPU1 +SYS +X +1  NUMA 1\n")
        self.assertIn("\nno warnings\n", shown)
        self.assertIn("--sysfs belongs to --here", run(self.TOPO, "show", "--sysfs", "/", "file").stderr)

    def test_communicators_where_sysfs_is_hidden(self):
        """As in a container that shows nothing of the machine: ranks run, and one line each says what was assumed."""
        hide = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
        if not shutil.which("unshare") or run(*hide, "true").returncode != 0:
            self.skipTest("/sys cannot be hidden here: no rights for a mount namespace")
        done = run(*hide, PERF, "all_reduce", "-n", 2, "-b", 64, "-e", 64, env=environment(NCCL_DEBUG="INFO"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = re.findall(r"INFO topology: /sys does not tell NUMA nodes; .*; what is not known is assumed", done.stdout)
        self.assertEqual(len(said), 2, done.stdout)


if __name__ == "__main__":
    main()
