"""Tests of bench/gpu without GPUs: its arithmetic, its order and budget, what it reads of each program's output, what
happens when a program fails, and its tables. Arguments: the directory of the programs."""
import argparse
import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

# ThreadSanitizer sleeps for a second when a process ends, and here many do.
os.environ["TSAN_OPTIONS"] = ":".join(filter(None, (os.environ.get("TSAN_OPTIONS"), "atexit_sleep_ms=0")))
BIN = pathlib.Path(sys.argv[1]).resolve()
FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent / "bench/gpu"
SCRIPT = FOLDER / "run"
sys.path.insert(0, str(FOLDER.parent.parent / "tests/common"))
import script  # noqa: E402

bench_gpu = script.load(SCRIPT)
import plan
import sides
import tables
import targets

MIB = 1 << 20
TABLE = """# nccl-tests version 2.19.6
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
          32             8     float     sum      -1     8.50    0.00    0.01       0     8.40    0.00    0.01       0
         128            32     float     sum      -1     9.00    0.01    0.02       0     9.10    0.01    0.02       0
       32768          8192     float     sum      -1    10.50    3.12    4.68       0    10.30    3.18    4.77     N/A
   536870912     134217728     float     sum      -1   2328.1  230.61  345.91       0   2320.0  231.41  347.11       0
# Out of bounds values : 0 OK
"""
CASE = plan.Case("all_reduce", "plain", "graph", "threads", "independent")


def parse(*words):
    options = bench_gpu.parse(["--build", str(BIN.parent), "--nccl-tests", str(BIN), "--gpus", "2", *words])
    options.nccl = pathlib.Path("/nowhere/libnccl.so.2")
    return options


class Arithmetic(unittest.TestCase):
    def test_sizes(self):
        for text, size in (("32", 32), ("32K", 32768), ("2MiB", 2 << 20), ("1g", 1 << 30), ("512M", 512 << 20)):
            self.assertEqual(bench_gpu.parse_size(text), size)
        for text in ("", "K", "1.5K", "-1", "1X"):
            with self.assertRaises(argparse.ArgumentTypeError):
                bench_gpu.parse_size(text)
        for size, name in ((32, "32 B"), (32768, "32 KiB"), (3 << 19, "1536 KiB"), (512 << 20, "512 MiB"), (0, "0 B")):
            self.assertEqual(sides.size_name(size), name)

    def test_factor(self):
        self.assertEqual(sides.factor_of([32, 32 << 10, 512 << 10, 2 << 20, 512 << 20]), 4)
        self.assertEqual(sides.factor_of([8, 64, 512]), 8)
        self.assertEqual(sides.factor_of([1024, 8]), 128)
        self.assertEqual(sides.factor_of([8]), 2)
        self.assertIsNone(sides.factor_of([8, 24]))
        self.assertIsNone(sides.factor_of([0, 8]))

    def test_numbers(self):
        self.assertEqual([tables.number(v) for v in (None, 0.3456, 8.5, 2328.1)], ["-", "0.35", "8.50", "2328"])


class Targets(unittest.TestCase):
    def test_ratios(self):
        for size, plain, eager, registered in ((8, 0.45, 0.55, 0.8), (32 << 10, 0.45, 0.55, 0.8), (128 << 10, 0.55, 0.6, 0.5),
                                               (512 << 10, 0.52, 0.58, 0.52), (2 * MIB, 0.5, 0.55, 0.62),
                                               (8 * MIB, 0.75, 0.8, 0.75), (32 * MIB, 0.92, 0.92, 0.85),
                                               (512 * MIB, 1.0, 1.0, 0.9)):
            found = [targets.ratio("all_reduce", *of, size, 4) for of in
                     (("plain", "graph"), ("plain", "eager"), ("registered", "graph"))]
            self.assertEqual(found, [plain, eager, registered], size)
        self.assertIsNone(targets.ratio("all_reduce", "registered", "eager", 8, 4))
        self.assertEqual(targets.ratio("all_reduce", "plain", "graph", 128 * MIB, 2), 0.9)
        self.assertEqual(targets.ratio("all_reduce", "plain", "graph", 32 * MIB, 2), 0.92)
        for collective in ("all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce"):
            self.assertEqual([targets.ratio(collective, "plain", "eager", size, 4) for size in (1024, 4 * MIB, 5 * MIB)],
                             [0.6, 0.6, 0.97])
        for mode, hole in (("eager", 0.6), ("graph", 0.9)):
            self.assertEqual([targets.ratio("sendrecv", "plain", mode, size << 20, 4) for size in (1, 2, 16, 128, 256, 1024)],
                             [0.8, None, hole, hole, None, 1.0])

    def test_every_default_size_of_the_tables_has_a_target(self):
        options = parse()
        for case in plan.cases(options):
            if case.collective != "sendrecv" and case.variant == "independent":
                self.assertNotIn(None, [targets.ratio(case.collective, case.form, case.mode, size, 4)
                                        for size in plan.sizes_of(case, options)], case)

    def test_roofline(self):
        rate = targets.wire_rate([("alltoall", {MIB: 1.0, 64 * MIB: 100.0}), ("all_reduce", {64 * MIB: 1.0}),
                                  ("sendrecv", {64 * MIB: 200.0})], 4)
        self.assertAlmostEqual(rate, 0.75 * 64 * MIB / 100)  # the best of large all-to-all and send/recv, nothing else
        self.assertIsNone(targets.wire_rate([("alltoall", {MIB: 1.0}), ("all_reduce", {64 * MIB: 1.0})], 4))
        least = targets.roofline("all_reduce", "graph", 64 * MIB, 4, rate)
        self.assertAlmostEqual(least, 200 + targets.LAUNCH["graph"] + targets.HOP)
        self.assertGreater(targets.roofline("all_gather", "eager", 0, 4, rate), 4)
        self.assertIsNone(targets.roofline("all_gather", "eager", 0, 4, None))

    def test_verdicts(self):
        self.assertEqual(targets.judge(5.0, 10.0, 0.5, None), "met")
        self.assertEqual(targets.judge(5.1, 10.0, 0.5, None), "missed")
        self.assertEqual(targets.judge(5.1, 10.0, 0.5, 5.0), "met")  # within 1.05 of the roofline
        self.assertEqual(targets.judge(5.3, 10.0, 0.5, 5.0), "missed")
        self.assertEqual([targets.judge(None, 1, 1, 1), targets.judge(1, None, 1, 1), targets.judge(1, 1, None, 1)],
                         ["-"] * 3)


class Reading(unittest.TestCase):
    def test_table(self):
        times, wrong = sides.parse_table(TABLE, [32, 32768, 512 << 20])
        self.assertEqual((times, wrong), ({32: 8.5, 32768: 10.5, 512 << 20: 2328.1}, 0))
        _, wrong = sides.parse_table(TABLE.replace("0.02       0     9.10", "0.02       3     9.10"), [32])
        self.assertEqual(wrong, 1)

    def test_json(self):
        result = {"status": "ok", "results": [{"size": 8, "out_of_place": {"time": 3.5, "nwrong": 0}},
                                              {"size": 16, "out_of_place": {"time": 4.5, "nwrong": 2}}]}
        self.assertEqual(sides.parse_json(result, [8, 16]), ({8: 3.5, 16: 4.5}, 1))
        result["results"][1]["out_of_place"]["nwrong"] = None
        self.assertEqual(sides.parse_json(result, [8, 16])[1], 0)
        with self.assertRaisesRegex(sides.Failed, "32 B"):
            sides.parse_json(result, [8, 32])
        with self.assertRaisesRegex(sides.Failed, "a rank died"):
            sides.parse_json({"status": "error", "error": "a rank died", "results": []}, [])

    def test_channels(self):
        text = ("host:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}\n"
                "host:1:2 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}\n")
        self.assertEqual(sides.parse_channels(text), {8: 1, 8388608: 24})
        self.assertEqual(sides.parse_channels("nothing"), {})


class FakeBench:
    """Takes `seconds` of a made-up clock for each measurement."""

    def __init__(self, outcomes, seconds):
        self.calls, self.checks, self.outcomes, self.seconds, self.time = [], [], outcomes, seconds, 0.0

    def clock(self):
        return self.time

    def measure(self, side, case, sizes):
        self.calls.append((side, case))
        self.checks.append(self.check)
        self.time += self.seconds
        outcome = self.outcomes.get(side, ({size: 1.0 for size in sizes}, 0))
        if isinstance(outcome, str):
            raise sides.Failed(outcome)
        return outcome


class Order(unittest.TestCase):
    ONE = ("--collectives", "all_reduce", "--modes", "graph", "--forms", "plain", "--ranks", "threads", "--variants",
           "independent", "--sides", "reference,nccl,tutti", "--rounds", "2")

    def run_plan(self, *words, outcomes=None, seconds=1.0):
        bench = FakeBench(outcomes or {}, seconds)
        return bench, plan.run(bench, parse(*words), bench.clock)

    def test_sides_alternate_and_take_turns_to_begin(self):
        bench, outcome = self.run_plan(*self.ONE)
        self.assertEqual([side for side, _ in bench.calls], ["reference", "nccl", "tutti", "nccl", "tutti", "reference"])
        self.assertEqual(len(outcome.samples[CASE]["tutti"]), 2)
        self.assertEqual((outcome.failures, outcome.left_out), ([], []))

    def test_the_first_round_is_checked(self):
        self.assertEqual(self.run_plan(*self.ONE)[0].checks, [1, 1, 1, 0, 0, 0])
        self.assertEqual(self.run_plan(*self.ONE, "--check-all")[0].checks, [1] * 6)

    def test_failures_are_kept_and_the_rest_goes_on(self):
        bench, outcome = self.run_plan(*self.ONE, outcomes={"nccl": "no library", "tutti": ({8: 2.0}, 5)})
        self.assertEqual(len(outcome.failures), 3)  # who failed at first is not tried again
        self.assertIn("NCCL (tutti-perf), all_reduce, plain, graph, threads, independent, round 1: no library",
                      outcome.failures)
        self.assertTrue(any("round 2: 5 results are wrong" in failure for failure in outcome.failures))
        self.assertEqual(len(outcome.samples[CASE]["reference"]), 2)

    def test_the_budget(self):
        bench, outcome = self.run_plan(*self.ONE, "--budget", "0")
        self.assertEqual((len(bench.calls), outcome.left_out), (3, [(1, CASE)]))
        bench, outcome = self.run_plan("--budget", "100", seconds=3.0)
        self.assertLessEqual(bench.time, 100)
        self.assertGreater(bench.time, 90)
        self.assertEqual(bench.calls[0][1].collective, "all_reduce")
        self.assertEqual({case.collective for _, case in bench.calls[:6]}, {"all_reduce"})
        self.assertIn("alltoall", {case.collective for _, case in bench.calls[:12]})  # the roofline
        self.assertTrue(outcome.left_out)

    def test_everything_is_planned_once_a_round(self):
        options = parse()
        steps = plan.schedule(options)
        self.assertEqual(len(steps), len(set(steps)))
        self.assertEqual(len(steps), 3 * len(plan.cases(options)))
        self.assertEqual({case.variant for case in plan.cases(options)}, set(plan.VARIANTS))
        for collective in plan.COLLECTIVES:
            self.assertEqual(len([c for c in plan.cases(options) if c.collective == collective and
                                  c.variant == "independent"]), 6)  # (plain graph, plain eager, registered graph) x 2
        for case in plan.cases(options):
            self.assertIsNotNone(sides.factor_of(plan.sizes_of(case, options)) or case.variant != "independent")

    def test_quick(self):
        options = parse("--quick")
        self.assertEqual((options.rounds, options.ranks, options.variants), (1, ["threads"], ["independent"]))
        self.assertEqual(parse("--quick", "--rounds", "2").rounds, 2)

    def test_who_is_timed(self):
        options = parse("--sides", "reference,tutti", "--dropin")
        planned = set(plan.cases(options))
        registered = CASE._replace(form="registered")
        self.assertEqual(plan.sides_of(CASE, options, planned), ["reference", "tutti", "dropin"])
        self.assertEqual(plan.sides_of(registered, options, planned), ["registered", "tutti"])
        self.assertEqual(plan.sides_of(registered, options, {registered}), ["reference", "registered", "tutti"])
        self.assertEqual(plan.sides_of(CASE._replace(variant="load"), options, planned), ["nccl", "tutti"])
        self.assertEqual(plan.sides_of(registered, parse("--sides", "tutti"), planned), ["tutti"])


class Tables(unittest.TestCase):
    def outcome(self, samples):
        outcome = plan.Outcome()
        outcome.samples = samples
        return outcome

    def test_nccls_best_and_medians(self):
        registered, options = CASE._replace(form="registered"), parse("--sizes", "8,8M")
        samples = {CASE: {"reference": [{8: 4.0, 8 * MIB: 50.0}, {8: 10.0, 8 * MIB: 50.0}, {8: 5.0, 8 * MIB: 50.0}],
                          "tutti": [{8: 2.0, 8 * MIB: 49.0}]},
                   registered: {"registered": [{8: 3.0, 8 * MIB: 60.0}], "tutti": [{8: 2.7, 8 * MIB: 30.0}]}}
        row = tables.case_rows(CASE, samples, options, None)[0]
        self.assertEqual((row["nccl"], row["nccl_side"], row["ratio"], row["target"], row["verdict"]),
                         (5.0, "reference", 0.4, 0.45, "met"))
        rows = tables.case_rows(registered, samples, options, None)
        self.assertEqual([row["nccl_side"] for row in rows], ["registered", "reference"])
        self.assertEqual([row["verdict"] for row in rows], ["missed", "met"])
        self.assertAlmostEqual(rows[0]["ratio"], 0.9)
        self.assertIn("| 8 MiB | 50.00 | plain | 30.00 | 0.60 | 0.75 | - | met |", tables.markdown(rows))

    def test_a_side_that_failed_leaves_a_gap(self):
        options = parse("--sizes", "8,16")
        rows = tables.case_rows(CASE, {CASE: {"reference": [{8: 4.0, 16: 5.0}], "tutti": [{8: 1.0}]}}, options, None)
        self.assertEqual(tables.markdown(rows).splitlines()[2:],
                         ["| 8 B | 4.00 | 1.00 | 0.25 | 0.45 | - | met |", "| 16 B | 5.00 | - | - | 0.45 | - | - |"])
        rows = tables.case_rows(CASE, {CASE: {"reference": [], "tutti": [{8: 1.0}]}}, options, None)
        self.assertEqual([row["verdict"] for row in rows], ["-", "-"])

    def test_the_roofline_of_the_same_run(self):
        alltoall = CASE._replace(collective="alltoall")
        samples = {CASE: {"reference": [{64 * MIB: 250.0}], "tutti": [{64 * MIB: 240.0}]},
                   alltoall: {"reference": [{64 * MIB: 130.0}], "tutti": [{64 * MIB: 120.0}]}}
        rate = tables.seen_rate(samples, 2)
        self.assertAlmostEqual(rate, 0.5 * 64 * MIB / 120)
        row = tables.case_rows(CASE, samples, parse("--sizes", "64M"), rate)[0]
        self.assertAlmostEqual(row["roofline"], 240 + 0.97 + 0.66)
        self.assertEqual((row["target"], row["verdict"]), (0.92, "met"))  # 0.96 of NCCL, and on the wire
        rows = tables.case_rows(CASE, samples, parse("--sizes", "64M"), None)
        self.assertEqual(rows[0]["verdict"], "missed")


class Programs(unittest.TestCase):
    """tutti-perf answers to the names and flags of nccl-tests, so it can stand for them."""

    def bench(self, *words):
        return sides.Bench(parse("--iterations", "3", "--warmup", "1", "--launches", "2", *words))

    def test_what_tutti_perf_writes(self):
        bench = self.bench()
        env = dict(os.environ, TUTTI_DEVICE="host", NCCL_DEBUG="VERSION")
        launch = bench.launch
        bench.launch = lambda side, command, env: launch(side, ["host" if w == "cuda" else w for w in command], env)
        for ranks, variant in (("threads", "independent"), ("processes", "dependent"), ("threads", "load")):
            case = CASE._replace(mode="eager", ranks=ranks, variant=variant)
            times, wrong = bench.perf_run("tutti", case, [1024, 8], env, False)
            self.assertEqual((sorted(times), wrong), ([8, 1024], 0))
            self.assertTrue(all(time > 0 for time in times.values()))
        self.assertRegex(bench.versions["load beside Tutti"], "product on the host of 64 x 64, [0-9]+ a second")

    def test_sizes_in_one_run_and_one_by_one(self):
        env = dict(os.environ, TUTTI_DEVICE="host", NCCL_DEBUG="VERSION")
        for sizes, runs in (([8, 128, 2048], 1), ([8, 24], 2)):
            bench = self.bench()
            started = []
            launch, bench.launch = bench.launch, lambda *words: started.append(words) or launch(*words)
            times, wrong = bench.nccl_tests("dropin", CASE._replace(mode="eager"), sizes, env)
            self.assertEqual(sorted(times), sizes)
            self.assertEqual((wrong, len(started)), (0, runs))
            self.assertRegex(bench.versions["library of Tutti (nccl-tests)"], r"NCCL version \S+ \(Tutti \S+\)")

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_a_process_a_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(BIN / "tutti-perf", pathlib.Path(folder, "all_reduce_perf_mpi"))
            bench = self.bench("--nccl-tests", folder)
            env = dict(os.environ, TUTTI_DEVICE="host", NCCL_DEBUG="VERSION")
            case = CASE._replace(mode="eager", ranks="processes")
            times, wrong = bench.nccl_tests("dropin", case, [8, 64], env)
        self.assertEqual((sorted(times), wrong), ([8, 64], 0))
        self.assertIn("all_reduce_perf_mpi", bench.commands["dropin"])

    def test_a_library_that_is_not_the_one_asked_for(self):
        tutti, nccl = ["NCCL version 2.28.9 (Tutti 0.1.0)"], ["noise", "NCCL version 2.28.9+cuda13.0"]
        for side, good, bad in (("nccl", nccl, tutti), ("reference", nccl, tutti), ("registered", nccl, tutti),
                                ("tutti", tutti, nccl)):
            bench = self.bench()
            bench.note_library(side, good)
            with self.assertRaises(sides.Failed):
                bench.note_library(side, bad)

    def test_registered_buffers_are_asked_for(self):
        bench, asked = self.bench(), []

        def launch(side, command, env):
            asked.append([str(word) for word in command])
            raise sides.Failed("enough")

        bench.launch = launch
        for side, registered in (("registered", True), ("tutti", True), ("reference", False), ("dropin", False)):
            with self.assertRaises(sides.Failed):
                bench.measure(side, CASE._replace(form="registered" if registered else "plain"), [8])
            self.assertEqual("-R" in asked[-1], registered, side)

    def stand_in(self, text):
        """A bench whose tutti-perf and all_reduce_perf are the shell script `text`."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        bench = self.bench("--nccl-tests", folder)
        bench.perf = pathlib.Path(folder, "tutti-perf")
        for name in ("tutti-perf", "all_reduce_perf"):
            path = pathlib.Path(folder, name)
            path.write_text("#!/bin/sh\n" + text)
            path.chmod(0o755)
        return bench

    def test_blocks_as_many_as_nccl_uses(self):
        lines = "".join(f"echo 'NCCL INFO AllReduce: {size} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..{last}}}'\n"
                        for size, last in ((8, 0), (64, 3), (512, 3)))
        bench, asked = self.stand_in(lines), []

        def perf_run(side, case, sizes, env, registered):
            asked.append((env["NCCL_MAX_NCHANNELS"], sizes))
            return {size: 1.0 for size in sizes}, 0

        bench.perf_run = perf_run
        case = CASE._replace(variant="ctas")
        self.assertEqual(bench.measure("tutti", case, [8, 64, 512]), ({8: 1.0, 64: 1.0, 512: 1.0}, 0))
        self.assertEqual(asked, [("1", [8]), ("4", [64, 512])])
        bench = self.stand_in("exit 0\n")
        with self.assertRaisesRegex(sides.Failed, "did not say how many channels"):
            bench.measure("tutti", case, [8])

    def test_programs_that_fail_or_say_nothing(self):
        for text, reason in (("exit 0\n", "no results|no time for 8 B"), ("echo broken >&2; exit 3\n", "status 3: .*broken"),
                             ("kill -9 $$\n", "status -9")):
            bench = self.stand_in(text)
            for side in ("reference", "registered", "tutti", "nccl"):
                with self.assertRaisesRegex(sides.Failed, reason):
                    bench.measure(side, CASE, [8])
        bench = self.stand_in("exec sleep 60\n")
        bench.deadline = -1e9  # the budget ended long ago
        with self.assertRaisesRegex(sides.Failed, "did not end within 1 s"):
            bench.measure("reference", CASE, [8])

    def test_a_program_that_is_not_there(self):
        env = dict(os.environ, TUTTI_DEVICE="host")
        with self.assertRaisesRegex(sides.Failed, "GPU"):
            self.bench().nccl_tests("reference", CASE, [8], env)
        with self.assertRaisesRegex(sides.Failed, "No such file"):
            self.bench("--nccl-tests", "/nonexistent").nccl_tests("reference", CASE, [8], env)

    def test_a_whole_run(self):
        """On a device of threads; tutti-perf stands for nccl-tests, and Tutti for NCCL."""
        device = os.environ.get("TEST_DEVICE")
        if not device:
            self.skipTest("there is no fake device")
        bench = self.bench("--sizes", "8,1K", "--rounds", "2", "--collectives", "all_reduce", "--modes", "graph",
                           "--ranks", "threads", "--variants", "independent,load")
        env = dict(os.environ, TUTTI_DEVICE=device, TUTTI_PERF_CUDA=os.environ["TEST_PERF_HELPER"])
        bench.environment = lambda **more: env
        bench.note_library = lambda *words: None
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            outcome = plan.run(bench, bench.options)
            result = json.loads(json.dumps(tables.report(bench, bench.options, outcome)))
        self.assertEqual(outcome.failures, [])
        self.assertIn("all_reduce, float sum, plain, graph, a thread a GPU, out of place, medians of 2 rounds", text.getvalue())
        self.assertRegex(text.getvalue(), r"(?m)^\| 1 KiB \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \| 0\.45 \| - \| (met|missed) \|$")
        self.assertRegex(text.getvalue(), r"\d targets met, \d missed")
        self.assertEqual([(t["form"], t["variant"]) for t in result["tables"]],
                         [("plain", "independent"), ("registered", "independent"), ("plain", "load")])
        for table in result["tables"]:
            self.assertEqual({len(taken) for taken in table["samples"].values()}, {2})
            for row in table["rows"]:
                self.assertAlmostEqual(row["ratio"], row["tutti"] / row["nccl"])

    @unittest.skipUnless(shutil.which("gnuplot"), "there is no gnuplot")
    def test_pictures(self):
        options = parse("--sizes", "8,32K,64M", "--collectives", "all_reduce,alltoall", "--variants", "independent,load")
        outcome = plan.run(FakeBench({}, 1.0), options, lambda: 0.0)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            out = pathlib.Path(folder, "out.json")
            out.write_text(json.dumps(tables.report(self.bench(), options, outcome)))
            done = subprocess.run([FOLDER / "plot", out, folder], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            pictures = sorted(pathlib.Path(line).name for line in done.stdout.split())
            self.assertEqual(pictures, [f"{collective}-{what}.svg" for collective, what in
                                        (("all_reduce", "bandwidth"), ("all_reduce", "ratio"), ("all_reduce", "variants"),
                                         ("alltoall", "bandwidth"), ("alltoall", "ratio"))])
            picture = pathlib.Path(folder, "all_reduce-ratio.svg").read_text()
            for title in ("plain, graph", "registered, graph", "plain, eager, process a GPU", "target, plain, graph"):
                self.assertIn(f">{title}<", picture)
            self.assertNotIn("load", picture)
            self.assertIn(">plain, graph, load<", pathlib.Path(folder, "all_reduce-variants.svg").read_text())
            self.assertIn(">roofline<", pathlib.Path(folder, "alltoall-bandwidth.svg").read_text())
            out.write_text("{}")
            done = subprocess.run([FOLDER / "plot", out, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 1)

    def test_no_pictures_of_something_else(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.json")
            out.write_text("[]")
            done = subprocess.run([FOLDER / "plot", out, folder], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"^plot: {out}: .*it is not what bench/gpu/run --json writes.*\n$")

    def test_wrong_options(self):
        for words in (["--modes", "fast"], ["--sides", "mpi"], ["--dropin"], ["--sizes", "8x"], ["--variants", "slow"],
                      ["--ranks", "hosts"], ["--variants", "load", "--collectives", "reduce"], ["--rounds", "0"],
                      ["--json", "/nowhere/out.json"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                bench_gpu.parse(words)
        done = subprocess.run([sys.executable, SCRIPT, "--modes", "fast"], stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
