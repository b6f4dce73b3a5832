"""Tests of the script nccl-net, on CPUs: with programs that say what NCCL and nccl-tests would. Argument: the build
directory."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv[1])
SCRIPT = pathlib.Path(__file__).resolve().parent / "nccl-net"
sys.path.insert(0, str(SCRIPT.parent.parent / "common"))
import script  # noqa: E402

nccl_net = script.load(SCRIPT)

VERSION = "vm:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda13.0"
LOADED = "vm:7:7 [0] NCCL INFO Successfully loaded external network plugin /somewhere/libtutti-net-ofi.so"
USED = "vm:7:7 [0] NCCL INFO Using network Ofi"
ROW = "  1024   256     float     sum      -1    12.50    0.08    0.16   {wrong:>4}    13.00    0.08    0.16   {wrong:>4}"
END = "# Out of bounds values : 0 OK"

# Says what is to be said of the plugin that the environment names.
PROGRAM = """#!/bin/sh
echo "NCCL version 2.28.9+cuda13.0"
case $NCCL_NET_PLUGIN in none) us=10.00 name=Socket ;; *socket.so) us=15.00 name=Socket ;; *) us=20.00 name=OFI ;; esac
[ $NCCL_NET_PLUGIN = none ] || echo "NCCL INFO Successfully loaded external network plugin $NCCL_NET_PLUGIN"
echo "NCCL INFO Using network $name"
[ "$NCCL_P2P_DISABLE$NCCL_SHM_DISABLE" = 11 ] && [ $NCCL_HOSTID = 7 ] || exit 9
echo "  1024  256  float  sum  -1  $us  0.08  0.16  0  $us  0.08  0.16  0"
echo "# Out of bounds values : 0 OK"
"""


class Judging(unittest.TestCase):
    def judge(self, *output, status=0, network="ofi"):
        times = {}
        line, = nccl_net.verdict_for(network, "sendrecv", times)(nccl_net.cases.Group("run", [], seconds=7), status,
                                                                 list(output), [])
        self.assertEqual(bool(times), line.startswith("PASS"))
        return line

    def test_a_good_run(self):
        self.assertEqual(self.judge(VERSION, LOADED, USED, ROW.format(wrong=0), END), "PASS run: 12 us for 1024 bytes")
        sockets = USED.replace("Ofi", "Socket")
        self.assertIn("PASS", self.judge(VERSION, sockets, ROW.format(wrong=0), END, network="own"))

    def test_what_is_not_good(self):
        row = ROW.format(wrong=0)
        for output, words in (((VERSION, USED, row, END), "does not say that it loaded libtutti-net-ofi.so"),
                              ((VERSION, LOADED.replace("-ofi", "-socket"), USED, row, END), "does not say that it loaded"),
                              ((VERSION, LOADED, USED.replace("Ofi", "IB"), row, END), "does not say that it uses OFI"),
                              ((VERSION + " (Tutti 0.1.0)", LOADED, USED, row, END), "is Tutti's, not NCCL"),
                              ((VERSION, LOADED, USED, row), "did not come to its end"),
                              ((VERSION, LOADED, USED, END), "did not come to its end"),
                              ((VERSION, LOADED, USED, ROW.format(wrong=2), END), "results are wrong"),
                              ((VERSION, LOADED, USED, ROW.format(wrong="N/A"), END), "were not checked")):
            self.assertIn(words, self.judge(*output))
        self.assertIn("was not to load", self.judge(VERSION, LOADED, USED.replace("Ofi", "Socket"), row, END, network="own"))
        self.assertIn("status 3; x: NCCL WARN why", self.judge(VERSION, "x: NCCL WARN why", status=3))
        self.assertIn("was ended after 7 s", self.judge(VERSION, status=None))

    def test_table(self):
        times = {"sendrecv": {"own": {8: 10.0, 64: 20.0}, "ofi": {8: 5.0}}, "alltoall": {"ofi": {8: 1.0}}}
        head, first, second = nccl_net.table(times)
        self.assertIn("sendrecv", head)
        self.assertEqual((first.split(), second.split()), (["8", "10.0", "0.50"], ["64", "20.0", "-"]))


class Running(unittest.TestCase):
    def test_all_networks(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("all_reduce_perf_mpi", PROGRAM), ("sendrecv_perf_mpi", PROGRAM), ("libnccl.so.2", ""),
                               ("mpirun", '#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\n'
                                          'OMPI_COMM_WORLD_RANK=7 exec "$@"\n')):
                path = pathlib.Path(folder) / name
                path.write_text(text)
                path.chmod(0o755)
            done = subprocess.run([sys.executable, SCRIPT, folder, "--nccl", path.parent / "libnccl.so.2", "--build", BUILD,
                                   "--device", "host", "--gpus", "1", "--quick"], text=True, timeout=120,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=dict(os.environ, PATH=folder + ":" + os.environ["PATH"]))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("PASS all_reduce, own: 10 us for 1024 bytes", done.stdout)
        self.assertIn("PASS sendrecv, socket: 15 us for 1024 bytes", done.stdout)
        self.assertIn(" 0 failed", done.stdout)
        if (BUILD / "lib/tutti/libtutti-net-ofi.so").exists():
            self.assertRegex(done.stdout, r"(?m)^ +1024 +10\.0 +1\.50 +2\.00$")
        else:
            self.assertIn("SKIP all_reduce, ofi: libtutti-net-ofi.so is not built", done.stdout)

    def test_what_is_missing(self):
        done = subprocess.run([sys.executable, SCRIPT, "/nowhere", "--nccl", "/nowhere/libnccl.so.2", "--device", "host"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/libnccl.so.2: is not there", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
