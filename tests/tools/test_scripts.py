"""Scripts of bench, tests and scripts: help and wrong words are answered before anything is built, installed or run."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HELPFUL = ("bench/detect/run", "bench/enqueue/run", "bench/gpu/run", "bench/gpu/plot", "bench/ofi/run", "bench/peers/run",
           "bench/rdma-vm/run", "tests/rdma-vm/run", "tests/gpu/run-all", "tests/gpu/nccl-tests", "tests/gpu/nccl-net",
           "tests/gpu/pytorch/run", "scripts/test")
WRONG = (("bench/detect/run 0", "0: RANKS must be"), ("bench/detect/run x", "x: RANKS must be"),
         ("bench/detect/run 65", "65: RANKS must be"), ("bench/detect/run 4 /nope", "/nope: is no directory"),
         ("bench/enqueue/run --build /nope", "--build /nope: there is no such folder"),
         ("bench/enqueue/run -n 1", "-n 1: must be a number from 2 on"), ("bench/enqueue/run x", 'CALLS "x"'),
         ("bench/enqueue/run --fast", "--fast: there is no such option"),
         ("bench/gpu/run --json /nope/x", "/nope/x: cannot be written: No such file"),
         ("bench/ofi/run --build /nope", "/nope has no bin/tutti-perf"), ("bench/peers/run --build /nope", "/nope has no lib/"),
         ("bench/ofi/run --rounds 0", "0: must be a number from 1 on"),
         ("bench/peers/run --rounds 0", "0: must be a number from 1 on"),
         ("bench/peers/run --ranks 0", "0: must be a number from 1 on"),
         ("bench/rdma-vm/run --cpus", '--cpus "": must be a number'), ("bench/rdma-vm/run --cpus 0", '--cpus "0": must be'),
         ("bench/rdma-vm/run /nope", "/nope: there is no such folder"),
         ("tests/rdma-vm/run /nope", "/nope: there is no such folder"),
         ("tests/gpu/pytorch/run --log /nope/x", "/nope/x: cannot be written: No such file"),
         ("scripts/test debug", "debug: must be release, asan or tsan"))


class Scripts(unittest.TestCase):
    def run_script(self, line):
        """Compilers and what installs packages are such as leave a trace."""
        script, *words = line.split()
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder, "trace")
            for name in ("cc", "mpicc.openmpi", "cmake", "apt-get", "sudo"):
                path = pathlib.Path(folder, name)
                path.write_text(f"#!/bin/sh\necho {name} >>{trace}\nexit 9\n")
                path.chmod(0o755)
            done = subprocess.run([ROOT / script, *words], env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
            self.assertFalse(trace.exists(), line)
        return done

    def test_help(self):
        for script in HELPFUL:
            with self.subTest(script):
                done = self.run_script(f"{script} --help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(script, done.stdout)
                self.assertNotIn("set -e", done.stdout)

    def test_wrong_words(self):
        for line, said in WRONG:
            with self.subTest(line):
                done = self.run_script(line)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(said, done.stderr)
                self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
