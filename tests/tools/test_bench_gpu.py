"""Tests of bench/gpu/run without GPUs: its arithmetic, what it reads of each program's output, and its table. Arguments:
the directory of the programs."""
import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(sys.argv[1]).resolve()
SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "bench/gpu/run"
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("bench_gpu", str(SCRIPT))
bench_gpu = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_gpu", loader))
loader.exec_module(bench_gpu)

TABLE = """# nccl-tests version 2.19.6
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
          32             8     float     sum      -1     8.50    0.00    0.01       0     8.40    0.00    0.01       0
         128            32     float     sum      -1     9.00    0.01    0.02       0     9.10    0.01    0.02       0
       32768          8192     float     sum      -1    10.50    3.12    4.68       0    10.30    3.18    4.77     N/A
   536870912     134217728     float     sum      -1   2328.1  230.61  345.91       0   2320.0  231.41  347.11       0
# Out of bounds values : 0 OK
"""


class Arithmetic(unittest.TestCase):
    def test_sizes(self):
        for text, size in (("32", 32), ("32K", 32768), ("2MiB", 2 << 20), ("1g", 1 << 30), ("512M", 512 << 20)):
            self.assertEqual(bench_gpu.parse_size(text), size)
        for text in ("", "K", "1.5K", "-1", "1X"):
            with self.assertRaises(argparse.ArgumentTypeError):
                bench_gpu.parse_size(text)
        for size, name in ((32, "32 B"), (32768, "32 KiB"), (3 << 19, "1536 KiB"), (512 << 20, "512 MiB"), (0, "0 B")):
            self.assertEqual(bench_gpu.size_name(size), name)

    def test_factor(self):
        default = bench_gpu.parse(["--build", "/"]).sizes
        self.assertEqual(default, [32, 32 << 10, 512 << 10, 2 << 20, 512 << 20])
        self.assertEqual(bench_gpu.factor_of(default), 4)
        self.assertEqual(bench_gpu.factor_of([8, 64, 512]), 8)
        self.assertEqual(bench_gpu.factor_of([1024, 8]), 128)
        self.assertEqual(bench_gpu.factor_of([8]), 2)
        self.assertIsNone(bench_gpu.factor_of([8, 24]))
        self.assertIsNone(bench_gpu.factor_of([0, 8]))

    def test_medians_and_ratios(self):
        samples = {"reference": [{8: 4.0}, {8: 10.0}, {8: 5.0}], "nccl": [{8: 6.0}, {8: 4.0}], "tutti": [{8: 2.0}] * 3}
        row = bench_gpu.median_rows(samples, [8], ["reference", "nccl", "tutti"])[0]
        self.assertEqual(row["us"], {"reference": 5.0, "nccl": 5.0, "tutti": 2.0})
        self.assertEqual(row["ratio"]["tutti"], 0.4)
        self.assertEqual(row["ratio"].get("nccl"), 1.0)
        self.assertNotIn("reference", row["ratio"])

    def test_ratios_without_the_reference(self):
        rows = bench_gpu.median_rows({"nccl": [{8: 4.0}], "tutti": [{8: 3.0}]}, [8], ["reference", "nccl", "tutti"])
        self.assertEqual(rows[0]["ratio"], {"tutti": 0.75})
        self.assertEqual(bench_gpu.markdown(rows, ["reference", "nccl", "tutti"], bench_gpu.NAMES).splitlines()[2],
                         "| 8 B | 4.00 | 3.00 | 0.75 |")

    def test_a_side_that_failed_leaves_a_gap(self):
        rows = bench_gpu.median_rows({"reference": [{8: 4.0, 16: 5.0}], "tutti": [{8: 1.0}]}, [8, 16],
                                     ["reference", "nccl", "tutti"])
        self.assertEqual(bench_gpu.markdown(rows, ["reference", "nccl", "tutti"], bench_gpu.NAMES).splitlines(),
                         ["| size | NCCL, us | Tutti, us | Tutti / NCCL |", "|---|---|---|---|",
                          "| 8 B | 4.00 | 1.00 | 0.25 |", "| 16 B | 5.00 | - | - |"])

    def test_numbers(self):
        self.assertEqual([bench_gpu.number(v) for v in (None, 0.3456, 8.5, 2328.1)], ["-", "0.35", "8.50", "2328"])


class Reading(unittest.TestCase):
    def test_table(self):
        times, wrong = bench_gpu.parse_table(TABLE, [32, 32768, 512 << 20])
        self.assertEqual((times, wrong), ({32: 8.5, 32768: 10.5, 512 << 20: 2328.1}, 0))
        _, wrong = bench_gpu.parse_table(TABLE.replace("0.02       0     9.10", "0.02       3     9.10"), [32])
        self.assertEqual(wrong, 1)

    def test_json(self):
        result = {"status": "ok", "results": [{"size": 8, "out_of_place": {"time": 3.5, "nwrong": 0}},
                                              {"size": 16, "out_of_place": {"time": 4.5, "nwrong": 2}}]}
        self.assertEqual(bench_gpu.parse_json(result, [8, 16]), ({8: 3.5, 16: 4.5}, 1))
        result["results"][1]["out_of_place"]["nwrong"] = None
        self.assertEqual(bench_gpu.parse_json(result, [8, 16])[1], 0)
        with self.assertRaisesRegex(bench_gpu.Failed, "32 B"):
            bench_gpu.parse_json(result, [8, 32])
        with self.assertRaisesRegex(bench_gpu.Failed, "a rank died"):
            bench_gpu.parse_json({"status": "error", "error": "a rank died", "results": []}, [])

    def test_what_tutti_perf_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.json")
            subprocess.run([BIN / "tutti-perf", "all_reduce", "-t", "2", "--sizes", "8,1K", "--iters", "2", "--form",
                            "out", "-J", out, "--device", "host"], check=True, stdout=subprocess.DEVNULL)
            with open(out) as f:
                times, wrong = bench_gpu.parse_json(json.load(f), [1024, 8])
        self.assertEqual((sorted(times), wrong), ([8, 1024], 0))
        self.assertTrue(all(time > 0 for time in times.values()))


class FakeBench:
    def __init__(self, outcomes):
        self.calls, self.checks, self.outcomes = [], [], outcomes

    def measure(self, side, collective, mode):
        self.calls.append((side, collective, mode))
        self.checks.append(self.check)
        outcome = self.outcomes.get(side, ({8: 1.0}, 0))
        if isinstance(outcome, str):
            raise bench_gpu.Failed(outcome)
        return outcome


class Rounds(unittest.TestCase):
    def run_rounds(self, outcomes=None, **more):
        options = argparse.Namespace(**{"rounds": 2, "check_all": False, "budget": 100, "collectives": ["all_reduce"], "modes": ["graph"],
                                        **more})
        bench = FakeBench(outcomes or {})
        samples, failures = bench_gpu.rounds(bench, options, ["reference", "nccl", "tutti"])
        return bench, samples, failures

    def test_sides_alternate_and_take_turns_to_begin(self):
        bench, samples, failures = self.run_rounds()
        self.assertEqual([call[0] for call in bench.calls], ["reference", "nccl", "tutti", "nccl", "tutti", "reference"])
        self.assertEqual(samples[("all_reduce", "graph")]["tutti"], [{8: 1.0}] * 2)
        self.assertEqual(failures, [])

    def test_the_first_round_is_checked(self):
        self.assertEqual(self.run_rounds()[0].checks, [1, 1, 1, 0, 0, 0])
        self.assertEqual(self.run_rounds(check_all=True)[0].checks, [1] * 6)

    def test_failures_are_kept_and_the_rest_goes_on(self):
        _, samples, failures = self.run_rounds({"nccl": "no library", "tutti": ({8: 2.0}, 5)})
        self.assertEqual(len(failures), 4)
        self.assertIn("NCCL (tutti-perf), all_reduce, graph, round 1: no library", failures)
        self.assertIn("Tutti, all_reduce, graph, round 2: 5 results are wrong", failures)
        self.assertEqual(len(samples[("all_reduce", "graph")]["reference"]), 2)

    def test_the_budget_leaves_one_round(self):
        bench, _, _ = self.run_rounds(rounds=5, budget=0)
        self.assertEqual(len(bench.calls), 3)


class Programs(unittest.TestCase):
    """tutti-perf answers to the names and flags of nccl-tests, so it can stand for them."""

    def bench(self, *more):
        options = bench_gpu.parse(["--build", str(BIN.parent), "--nccl-tests", str(BIN), "--gpus", "2", "--iterations",
                                   "3", "--warmup", "1", *more])
        return bench_gpu.Bench(options)

    def test_sizes_in_one_run_and_one_by_one(self):
        env = dict(os.environ, TUTTI_DEVICE="host", NCCL_DEBUG="VERSION")
        for sizes, runs in (("8,128,2K", 1), ("8,24", 2)):
            bench = self.bench("--sizes", sizes)
            started = []
            launch, bench.launch = bench.launch, lambda *words: started.append(words) or launch(*words)
            times, wrong = bench.nccl_tests("dropin", "all_reduce", "eager", env)
            self.assertEqual(sorted(times), sorted(bench.sizes))
            self.assertEqual((wrong, len(started)), (0, runs))
            self.assertRegex(bench.versions["library of Tutti (nccl-tests)"], r"NCCL version \S+ \(Tutti \S+\)")

    def test_a_library_that_is_not_the_one_asked_for(self):
        tutti, nccl = ["NCCL version 2.28.9 (Tutti 0.1.0)"], ["noise", "NCCL version 2.28.9+cuda13.0"]
        for side, good, bad in (("nccl", nccl, tutti), ("reference", nccl, tutti), ("tutti", tutti, nccl)):
            bench = self.bench("--sizes", "8")
            bench.note_library(side, good)
            with self.assertRaises(bench_gpu.Failed):
                bench.note_library(side, bad)

    def test_a_whole_run(self):
        """On a device of threads; tutti-perf stands for nccl-tests, and Tutti for NCCL."""
        device = os.environ.get("TEST_DEVICE")
        if not device:
            self.skipTest("there is no fake device")
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.json")
            bench = self.bench("--sizes", "8,1K", "--rounds", "2", "--launches", "2", "--json", str(out), "--nccl",
                               "/nowhere/libnccl.so.2")
            env = dict(os.environ, TUTTI_DEVICE=device, TUTTI_PERF_CUDA=os.environ["TEST_PERF_HELPER"])
            bench.environment = lambda **more: env
            bench.note_library = lambda *words: None
            sides = bench_gpu.sides_of(bench.options)
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                samples, failures = bench_gpu.rounds(bench, bench.options, sides)
                status = bench_gpu.report(bench, bench.options, sides, samples, failures)
            result = json.loads(out.read_text())
        self.assertEqual((status, failures, sides), (0, [], ["reference", "nccl", "tutti"]))
        self.assertIn("all_reduce, float sum, graph, out of place, medians of 2 rounds", text.getvalue())
        self.assertRegex(text.getvalue(), r"(?m)^\| 1 KiB \|( [0-9.]+ \|){5}$")
        self.assertEqual([table["mode"] for table in result["tables"]], ["eager", "graph"])
        for table in result["tables"]:
            self.assertEqual({side: len(taken) for side, taken in table["samples"].items()},
                             {"reference": 2, "nccl": 2, "tutti": 2})
            for row in table["rows"]:
                self.assertAlmostEqual(row["ratio"]["tutti"], row["us"]["tutti"] / row["us"]["reference"])

    def test_a_program_that_fails(self):
        env = dict(os.environ, TUTTI_DEVICE="host")
        with self.assertRaisesRegex(bench_gpu.Failed, "GPU"):
            self.bench("--sizes", "8").nccl_tests("reference", "all_reduce", "graph", env)
        with self.assertRaisesRegex(bench_gpu.Failed, "No such file"):
            self.bench("--sizes", "8", "--nccl-tests", "/nonexistent").nccl_tests("reference", "all_reduce", "eager", env)

    def test_wrong_options(self):
        for words in (["--modes", "fast"], ["--sides", "mpi"], ["--dropin"], ["--sizes", "8x"]):
            done = subprocess.run([sys.executable, SCRIPT, *words], stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 2, words)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
