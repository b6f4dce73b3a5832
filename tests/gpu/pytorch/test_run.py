"""Tests of run, without PyTorch: what it makes of ranks that report, fail, die and hang. Argument: the build directory,
or nothing where the drop-in cannot be preloaded."""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "common"))
import script  # noqa: E402

run = script.load(HERE / "run")
run.GRACE = 1

# A rank whose cases are words of `modules`: what each does is its name.
RANK = """
import argparse, json, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("modules")
for name in ("backend", "port", "folder", "report", "init", "timeout", "library"):
    parser.add_argument("--" + name)
parser.add_argument("--rank", type=int)
parser.add_argument("--world", type=int)
parser.add_argument("--leave", action="store_true")
parser.add_argument("--case", action="append")
parser.add_argument("--skip", action="append", default=[])
parser.add_argument("--tag", action="append", default=[])
options = parser.parse_args()
report = open(options.report, "w")
def say(**what):
    report.write(json.dumps(what) + "\\n")
    report.flush()
if options.modules == "stillborn":
    sys.exit("Error: no such module")
names = [n for n in options.modules.split(",") if n not in options.skip and (not options.case or n in options.case)]
say(plan=names)
last = options.rank == options.world - 1
for name in names:
    say(begin=name)
    if name == "dies":
        open(os.path.join(options.folder, "came-%d" % options.rank), "w").close()
    if name == "dies" and last:  # when the others have come to it too, however slowly they start
        while not all(os.path.exists(os.path.join(options.folder, "came-%d" % r)) for r in range(options.world)):
            time.sleep(0.01)
        print("Fatal: that was it", file=sys.stderr)
        os._exit(9)
    if name == "hangs" and last:
        time.sleep(60)
    if name == "wrong" and last:
        say(end=name, ok=False, why="7 instead of 8")
    elif name == "nccl-can" and options.library:
        say(end=name, ok=False, why="Tutti cannot")
    elif name == "skipped":
        say(end=name, ok=True, skip="not here")
    elif name == "losses":
        say(end=name, ok=True, value=[1.0, 0.5 if options.library else 0.25])
    elif name == "same":
        say(end=name, ok=True, value=[1.0, 0.5])
    elif name == "preloaded":
        with open("/proc/self/maps") as maps:
            good = options.library in maps.read()
        say(end=name, ok=good, why="not mapped")
    else:
        say(end=name, ok=True)
if options.modules != "unfinished":
    say(done=True)
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        run.HARNESS = pathlib.Path(self.folder.name) / "rank.py"
        run.HARNESS.write_text(RANK)

    def tearDown(self):
        self.folder.cleanup()

    def options(self, **more):
        return argparse.Namespace(**dict({"python": sys.executable, "backend": "nccl", "library": "nccl", "build": BUILD,
                                          "drop_in": "", "ask": True, "gpus": 2, "only": "", "quick": False,
                                          "budget": 100, "log": None}, **more))

    def outcomes(self, modules, world=2, only=None, **more):
        launch = run.Launch("launch", modules, **more)
        found = run.run_launch(self.options(), launch, world, only, time.monotonic() + 30, None)
        return {name: (o.state, o.why) for name, o in found.items()}


class Ranks(Case):
    def test_all_well(self):
        self.assertEqual(self.outcomes("a,skipped,b"), {"a": ("PASS", ""), "skipped": ("SKIP", "not here"),
                                                       "b": ("PASS", ""), "end": ("PASS", "")})

    def test_a_wrong_result_of_one_rank(self):
        found = self.outcomes("a,wrong,b")
        self.assertEqual(found["wrong"], ("FAIL", "rank 1: 7 instead of 8"))
        self.assertEqual((found["a"][0], found["b"][0], found["end"][0]), ("PASS", "PASS", "PASS"))

    def test_cases_behind_a_death_run_by_themselves(self):
        found = self.outcomes("a,dies,b")
        self.assertEqual((found["a"], found["b"], found["end"]), (("PASS", ""),) * 3)
        self.assertEqual(found["dies"], ("FAIL", "rank 1 ended with status 9: Fatal: that was it"))

    def test_a_hang(self):
        launch = run.Launch("launch", "a,hangs,b")
        ends = run.start(self.options(), launch, 2, 1.5)
        merged = run.merge(launch, ends)
        self.assertEqual(merged["a"].state, "PASS")
        self.assertEqual(merged["hangs"].why, "rank 1 was killed, since it took too long: without a word")
        self.assertEqual(merged["b"], None)  # though rank 0 came to it
        self.assertEqual(run.judge_end(launch, ends).state, "FAIL")

    def test_no_rank_starts(self):
        self.assertEqual(self.outcomes("stillborn")["start"],
                         ("FAIL", "rank 0 ended with status 1: Error: no such module"))

    def test_an_end_without_its_last_line(self):
        self.assertEqual(self.outcomes("unfinished")["end"][0], "FAIL")

    def test_deaths_that_are_wanted(self):
        for pattern, state in (("that was it", "PASS"), ("something else", "FAIL")):
            found = self.outcomes("a,dies", dies=lambda rank, world: pattern if rank == world - 1 else None)
            self.assertEqual((found["dies"][0], found["end"][0]), ("PASS", state))
        found = self.outcomes("a", dies=lambda rank, world: "" if rank == 0 else None)
        self.assertEqual(found["end"], ("FAIL", "rank 0 ended with status 0, and not with an error"))

    def test_half_a_line(self):
        path = os.path.join(self.folder.name, "half")
        with open(path, "w") as file:
            file.write('{"plan": ["a"]}\n{"begin": "a"}\n{"end": "a", "ok"')
        self.assertEqual(run.read_report(path), [{"plan": ["a"]}, {"begin": "a"}])
        self.assertEqual(run.read_report(path + "x"), [])


class Libraries(Case):
    def with_drop_in(self, modules, **more):
        if not BUILD:
            self.skipTest("the drop-in cannot be preloaded")
        options = self.options(library="tutti", drop_in=os.path.realpath(BUILD / "lib/tutti/compat/libnccl.so.2"))
        found = run.one_launch(options, run.Launch("launch", modules, **more), 2, time.monotonic() + 60, None)
        return {name: (o.state, o.why) for name, o in found.items()}

    def test_tutti_run_preloads(self):
        self.assertEqual(self.with_drop_in("preloaded")["preloaded"], ("PASS", ""))

    def test_nccl_is_asked_what_fails(self):
        found = self.with_drop_in("a,nccl-can,wrong")
        self.assertEqual(found["nccl-can"], ("FAIL", "rank 0: Tutti cannot [NCCL itself does it]"))
        self.assertEqual(found["wrong"], ("FAIL", "rank 1: 7 instead of 8 [NCCL itself fails too: rank 1: 7 instead of 8]"))

    def test_values_must_be_nccl_s(self):
        found = self.with_drop_in("losses,same", values=True)
        self.assertEqual(found["same"], ("PASS", ""))
        self.assertEqual(found["losses"], ("FAIL", "rank 0, step 1: the loss is 0.5 instead of 0.25"))

    def test_differences(self):
        self.assertEqual(run.differs([[1.0], [2.0]], [[1.0], [2.0 + 1e-6]]), "")
        self.assertIn("rank 1, step 0", run.differs([[1.0], [2.0]], [[1.0], [2.0 + 1e-5]]))
        self.assertIn("instead of 1", run.differs([[1.0]], [[1.0, 2.0]]))
        self.assertEqual(run.differs([None, [1.0]], [None, [1.0]]), "")
        self.assertIn("instead of 0", run.differs([None, [1.0]], [[1.0], [1.0]]))
        self.assertIn("step 0", run.differs([[1.0]], [[float("nan")]]))


class Script(unittest.TestCase):
    def test_every_launch_has_its_modules(self):
        for launch in run.LAUNCHES:
            for module in launch.modules.split(","):
                self.assertTrue((HERE / f"{module}.py").exists(), module)
            text = "".join((HERE / f"{module}.py").read_text() for module in launch.modules.split(","))
            for tag in launch.tags:  # a tag that no case has would leave cases out without a word
                self.assertTrue(f'case("{tag}' in text or tag == "all_reduce SUM" or tag == "all_reduce AVG", tag)

    def test_no_gpu(self):
        if run.count_gpus():
            self.skipTest("there is one")
        done = subprocess.run([sys.executable, HERE / "run", "--build", "/nowhere"], stdout=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (77, "SKIP: there is no GPU\n"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
