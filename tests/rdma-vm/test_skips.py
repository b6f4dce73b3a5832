#!/usr/bin/env python3
"""Where there can be no virtual machine, machine.py says so in a line SKIP with what is missing, and exits with 77."""
import pathlib
import platform
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


@unittest.skipIf(platform.machine() != "x86_64", "the virtual machine is an x86-64 one")
class Skips(unittest.TestCase):
    def said(self, programs):
        """What machine.py says where these scripts are all the programs that there are."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in programs.items():
                path = pathlib.Path(folder) / name
                path.write_text("#!/bin/sh\n" + text + "\n")
                path.chmod(0o755)
            environment = {"PATH": folder, "TUTTI_TEST_CACHE": folder, "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run([sys.executable, HERE / "machine.py", "true"], env=environment, text=True,
                                  capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr, done.stdout.count("\n")), (77, "", 1), done.stdout)
        return done.stdout

    def test_what_is_missing_is_named(self):
        there = {}
        for name, said in (("qemu-system-x86_64", "qemu-system-x86_64 is not installed (package qemu-system-x86)"),
                           ("rdma", "rdma is not installed (package iproute2)"),
                           ("busybox", "busybox is not installed (package busybox-static)"),
                           ("apt-get", "apt-get is not installed (package apt)"),
                           ("dpkg-deb", "dpkg-deb is not installed (package dpkg)")):
            self.assertIn(said, self.said(there))
            self.assertRegex(self.said(there), "^SKIP: ")
            there[name] = "echo there is no network >&2; exit 1"

    def test_no_kernel(self):
        there = dict.fromkeys(("qemu-system-x86_64", "rdma", "busybox", "dpkg-deb"), "exit 1")
        fails = "echo there is no network >&2; exit 100"
        said = self.said({**there, "apt-get": fails, "apt-cache": "echo '  Depends: linux-image-6.1.0-1-amd64'"})
        self.assertRegex(said, r"^SKIP: there is no kernel for the virtual machine: .*download.*there is no network")
        said = self.said({**there, "apt-get": "exit 0", "apt-cache": "exit 0"})
        self.assertIn("apt knows no linux-image-amd64", said)


if __name__ == "__main__":
    unittest.main()
