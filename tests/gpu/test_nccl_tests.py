"""Tests of the script nccl-tests, on CPUs: with programs that say what they are told to, and with tutti-perf, which prints
the same. Argument: the build directory."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv[1])
SCRIPT = pathlib.Path(__file__).resolve().parent / "nccl-tests"
sys.path.insert(0, str(SCRIPT.parent.parent / "common"))
import script  # noqa: E402

nccl_tests = script.load(SCRIPT)

LIBRARY = "NCCL version 2.28.9 (Tutti 0.1.0)"
ROW = "        1024           256     float     {op}   {root:4}    12.34    0.08    0.16  {wrong:>6}    12.34    0.08    0.16       0"
END = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.5 ", "#"]


def row(op="sum", root=-1, wrong=0, kind="float"):
    return ROW.format(op=op, root=root, wrong=wrong).replace("float", kind)


class Judging(unittest.TestCase):
    group = nccl_tests.cases.Group("some run", [], seconds=7)

    def judge(self, output, status=0, said=(), types=1, ops=1, roots=1):
        lines = nccl_tests.verdict_for(types, ops, roots)(self.group, status, output, list(said))
        self.assertEqual(len(lines), 1)
        return lines[0]

    def test_a_good_run(self):
        self.assertEqual(self.judge([LIBRARY, row(), *END]), "PASS some run: 1.5 GB/s on average")
        self.assertIn("PASS", self.judge([LIBRARY, row(op="", root=-1), *END]))  # hypercube

    def test_what_is_not_good(self):
        for output, words in (([row(), *END], "does not say that it is Tutti"),
                              (["NCCL version 2.28.9+cuda13.0", row(), *END], "does not say that it is Tutti"),
                              ([LIBRARY, row()], "did not come to its end"),
                              ([LIBRARY, row(), END[0]], "did not come to its end"),
                              ([LIBRARY, *END], "checked nothing"),
                              ([LIBRARY, row(wrong="N/A"), *END], "checked nothing"),
                              ([LIBRARY, row(wrong=3), *END], "out of bounds; 1024"),
                              ([LIBRARY, row(), "# Out of bounds values : 4 FAILED", *END[1:]], "4 values")):
            line = self.judge(output)
            self.assertTrue(line.startswith("FAIL some run: "), line)
            self.assertIn(words, line)

    def test_a_bad_end(self):
        failed = [LIBRARY, row(wrong=3), "# Out of bounds values : 3 FAILED", *END[1:]]
        self.assertIn("status 3: 3 values out of bounds", self.judge(failed, status=3))
        line = self.judge([LIBRARY], status=2, said=["NCCL WARN this is why", "and more"])
        self.assertEqual(line, "FAIL some run: ended with status 2: NCCL WARN this is why")
        text = ["vm: Test NCCL failure common.cu:9 'invalid usage / why'", " .. vm pid 3: Test failure common.cu:1636"]
        self.assertTrue(self.judge([LIBRARY, *text], status=3).endswith("status 3: " + text[0]))
        self.assertIn("FAIL some run: was ended after 7 s", self.judge([LIBRARY, row(), *END], status=None))

    def test_all_that_was_asked_for(self):
        output = [LIBRARY, row("sum", 0), row("max", 1), row("avg", 1, kind="half"), *END]
        self.assertIn("PASS", self.judge(output, types=2, ops=3, roots=2))
        for what, words in (({"types": 3}, "2 types instead of 3: float, half"), ({"ops": 4}, "3 operations"),
                            ({"roots": 3}, "2 roots instead of 3: 0, 1")):
            self.assertIn(words, self.judge(output, **what))


class Groups(unittest.TestCase):
    def names(self, gpus, *fill):
        runs = nccl_tests.Runs(pathlib.Path("/nowhere"), BUILD, gpus)
        for make in fill:
            make(runs)
        return [group.name for group in runs.groups]

    def test_every_program_in_every_way(self):
        names = self.names(2, nccl_tests.quick, nccl_tests.full)
        self.assertEqual(len(names), len(set(names)))
        for program in nccl_tests.PROGRAMS:
            for kind in ("one process", "threads", "processes"):
                self.assertTrue(any(name.startswith(f"{program}, {kind}") for name in names), (program, kind))
            for option in ("-G 2", "-R "):
                self.assertTrue(any(name.startswith(program) and option in name for name in names), (program, option))
        self.assertLess(len(self.names(2, nccl_tests.quick)), 40)  # about three seconds each
        self.assertLess(len(names), 90)

    def test_what_a_run_has_to_show(self):
        """Every type, operation and root, where all were asked for, and only there."""
        runs = nccl_tests.Runs(pathlib.Path("/nowhere"), BUILD, 2)
        output = [LIBRARY, row("none", 0), *END]
        for options, words in ((("-d", "int8"), None), (("-d", "all"), "instead of 10"), (("-o", "all"), "instead of 6"),
                               (("-o", "max", "-d", "all"), "instead of 10"), (("-r", -1), "1 roots instead of 2")):
            runs.add("reduce", "one process", *options)
            line, = runs.groups[-1].verdict(runs.groups[-1], 0, output, [])
            self.assertIn(words or "PASS", line)

    def test_one_gpu(self):
        names = self.names(1, nccl_tests.quick, nccl_tests.full)
        self.assertTrue(names and all("one process" in name for name in names), names)


class Running(unittest.TestCase):
    def run_script(self, folder, *words):
        return subprocess.run([sys.executable, SCRIPT, folder, "--build", BUILD, "--device", "host", "--gpus", "2", *words],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)

    def test_with_programs_that_print_the_same(self):
        done = self.run_script(BUILD / "bin", "--quick", "--only", "alltoall, threads -b 8 -e 4M")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^PASS alltoall, threads -b 8 -e 4M -f 64: \S+ GB/s on average$")
        self.assertRegex(done.stdout, r"(?m)^1 passed, 0 failed, 0 skipped")

    def test_a_run_that_fails(self):
        done = self.run_script(BUILD / "bin", "--quick", "--only", "sendrecv, threads -b 8 -e 4M -f 64 -G 2")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?m)^FAIL sendrecv, threads .*: ended with status 3: .*graphs need a GPU")

    def test_processes_are_told_apart(self):
        """mpirun starts what comes last; the environment of each process has its host."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("all_reduce_perf", ""), ("all_reduce_perf_mpi", 'echo "host $NCCL_HOSTID $*"; exit 5\n'),
                               ("mpirun", 'while [ "$1" != sh ]; do shift; done\nOMPI_COMM_WORLD_RANK=7 exec "$@"\n')):
                path = pathlib.Path(folder) / name
                path.write_text("#!/bin/sh\n" + text)
                path.chmod(0o755)
            os.environ["PATH"] = folder + ":" + os.environ["PATH"]
            done = self.run_script(folder, "--quick", "--only", "all_reduce, processes two hosts")
            self.assertEqual(done.returncode, 1)
            self.assertIn("status 5: host 7 -g 1 -c 1", done.stdout)

    def test_programs_that_are_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script(folder)
            self.assertEqual(done.returncode, 1)
            self.assertIn("has all_reduce_perf", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
