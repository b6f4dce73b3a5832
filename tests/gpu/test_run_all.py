"""Tests of run-all itself, on CPUs: what it makes of the programs' output, and that a wrong result becomes a FAIL.
Arguments: the build directory, the program gpu_matrix_faults."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

BUILD, FAULTY = sys.argv[1], sys.argv[2]
SANITIZED = bool(os.environ.get("TEST_SANITIZE"))
SCRIPT = pathlib.Path(__file__).resolve().parent / "run-all"
sys.path.insert(0, str(SCRIPT.parent.parent / "common"))
import script  # noqa: E402

run_all = script.load(SCRIPT)
import cases  # noqa: E402
import machines  # noqa: E402
import transports  # noqa: E402

ENVIRONMENT = dict(os.environ, TUTTI_DEVICE="host", TUTTI_PERF_CUDA=os.environ.get("TEST_PERF_HELPER", ""),
                   TSAN_OPTIONS=":".join(filter(None, (os.environ.get("TSAN_OPTIONS"), "report_thread_leaks=0"))))


class Judging(unittest.TestCase):
    group = cases.Group("some group", [], seconds=7)

    def judge(self, status, output, said=(), choices=None, transports=None, group=None, silent=False):
        return cases.judge(group or self.group, status, output, list(said), choices, transports, silent)

    def test_lines_are_taken_as_they_are(self):
        self.assertEqual(self.judge(0, ["PASS a", "noise", "SKIP b"]), ["PASS a", "SKIP b"])
        self.assertEqual(self.judge(1, ["PASS a", "FAIL b"]), ["PASS a", "FAIL b"])

    def test_a_program_without_lines_is_one_case(self):
        self.assertEqual(self.judge(0, ["100%: Checks: 3"]), ["PASS some group"])
        self.assertEqual(self.judge(77, [], ["no GPU"]), ["SKIP some group: no GPU"])

    def test_an_end_that_does_not_agree_with_the_lines_is_a_failure(self):
        for status, output, word in ((3, ["PASS a"], "status 3: it broke"), (1, ["PASS a"], "status 1"),
                                     (-11, [], "status -11"), (None, ["PASS a"], "after 7 s"),
                                     (3, ["FAIL a"], "status 3")):
            lines = self.judge(status, output, ["it broke"])
            self.assertEqual(len(lines), len(output) + 1)
            self.assertTrue(lines[-1].startswith("FAIL some group: "), lines)
            self.assertIn(word, lines[-1])

    def test_what_a_tool_found_fails(self):
        good = ["PASS a", "========= ERROR SUMMARY: 0 errors"]
        self.assertEqual(self.judge(0, good), ["PASS a"])
        lines = self.judge(0, good + ["========= ERROR SUMMARY: 12 errors"])
        self.assertEqual(lines, ["PASS a", "FAIL some group: ========= ERROR SUMMARY: 12 errors"])
        where = "========= Invalid __global__ read of size 4 bytes"
        lines = self.judge(0, good + [where, "=========     at kernel+0x10", "========= ERROR SUMMARY: 1 error"])
        self.assertEqual(lines[1], "FAIL some group: ========= ERROR SUMMARY: 1 error; Invalid __global__ read of size 4 bytes")
        race = "========= RACECHECK SUMMARY: %d hazards displayed (%d errors, 0 warnings)"
        self.assertEqual(self.judge(0, ["PASS a", race % (0, 0)]), ["PASS a"])
        self.assertEqual(self.judge(0, ["PASS a", race % (2, 2)])[1:], ["FAIL some group: " + race % (2, 2)])

    def test_other_choices_than_asked_for_fail(self):
        good = ["PASS a"]
        self.assertEqual(self.judge(0, good, choices=(5, [])), good)
        self.assertIn("FAIL some group: AllReduce used", self.judge(0, good, choices=(5, ["AllReduce used X"]))[-1])
        self.assertIn("does not say", self.judge(0, good, choices=(0, []))[-1])

    def test_other_transports_than_asked_for_fail(self):
        good = ["PASS a"]
        self.assertEqual(self.judge(0, good, transports=(5, [])), good)
        self.assertIn("FAIL some group: SHM was used", self.judge(0, good, transports=(5, ["SHM was used"]))[-1])
        self.assertIn("does not say which transports", self.judge(0, good, transports=(0, []))[-1])
        self.assertEqual(len(self.judge(3, good, choices=(0, []), transports=(0, []))), 2)  # it failed, and says so

    def test_what_the_log_must_say(self):
        group = cases.Group("telling", [], says="so many blocks")
        self.assertEqual(self.judge(0, ["PASS a"], group=group), ["PASS a"])
        self.assertEqual(self.judge(0, ["PASS a"], group=group, silent=True)[1:],
                         ['FAIL telling: the log does not say "so many blocks"'])
        for said, line in (("blocks", "FAIL echo: "), ("many", "PASS echo")):
            script = f"echo 'INFO so {said} words' > ${{NCCL_DEBUG_FILE%\\%p}}1; echo PASS echo; echo $NCCL_DEBUG_SUBSYS >&2"
            lines = cases.run_group(cases.Group("echo", ["sh", "-c", script], says="so many"), "host")
            self.assertTrue(lines[-1].startswith(line), lines)

    def test_reading_transports(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "log.1"), "w") as f:
                f.write("vm:1:2 [0] NCCL INFO Channel 00/1 : 0[0] -> 1[0] [send] via NET/Socket/0/Shared\n"
                        "vm:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct\n"
                        "vm:1:2 [0] NCCL INFO using PXN via 3, and nothing else\n")
            ask = lambda *via: cases.wrong_transports(folder, via)
            self.assertEqual(ask("NET/Socket", "SHM"), (2, []))
            self.assertEqual(ask("NET/Socket"), (2, ["SHM/direct/direct was used"]))
            self.assertEqual(ask("NET/IB", "SHM")[1], ["NET/Socket/0/Shared was used", "NET/IB was not used"])
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(cases.wrong_transports(folder, ["SHM"]), (0, []))

    def test_reading_the_log(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "log.1"), "w") as f:
                f.write("x Tutti INFO AllReduce: 32 bytes -> algorithm ONE_SHOT protocol LL channels 1: why\n"
                        "x Tutti INFO AllGather: 32 bytes -> algorithm RING protocol SIMPLE channels 1: why\n")
            with open(os.path.join(folder, "log.2"), "w") as f:
                f.write("AllReduce: 64 bytes -> algorithm RING protocol LL channels 2: why\n")
            ask = lambda *expect: cases.wrong_choices(folder, expect)
            self.assertEqual(ask(("AllGather", "Ring", "Simple", None)), (1, []))
            self.assertEqual(ask(("AllGather", "Ring", "Simple", 1)), (1, []))
            self.assertEqual(ask(("Reduce", "Ring", "Simple", None)), (0, []))
            for wrong in (("AllGather", "Tree", "Simple", None), ("AllGather", "Ring", "LL", None),
                          ("AllGather", "Ring", "Simple", 2)):
                self.assertEqual(ask(wrong), (1, ["AllGather used RING SIMPLE with 1 channels"]))
            self.assertEqual(ask(("AllReduce", "OneShot", "LL", None)),
                             (2, ["AllReduce used RING LL with 2 channels"]))

    def test_a_group_that_hangs_is_ended(self):
        begun = time.monotonic()
        status, output, said = cases.execute(["sh", "-c", "echo PASS a; echo why >&2; sleep 60 & wait"], ENVIRONMENT, 1)
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual((status, output, said), (None, ["PASS a"], ["why"]))


class Groups(unittest.TestCase):
    def names(self, gpus):
        return [group.name for group in run_all.all_groups(pathlib.Path(BUILD), gpus)]

    def test_every_pair_is_there(self):
        for gpus in (1, 2, 4):
            names = self.names(gpus)
            self.assertEqual(len(names), len(set(names)))
            for algorithm in run_all.ALGORITHMS:
                for protocol in run_all.PROTOCOLS:
                    self.assertIn(f"all_reduce, {algorithm} {protocol}, {max(gpus, 2)} threads", names)
            self.assertEqual(any("processes" in name for name in names), gpus > 1)

    def test_transports(self):
        for gpus, kinds in ((1, ("threads",)), (2, ("threads", "processes")), (4, ("threads", "processes"))):
            groups = [group for group in run_all.all_groups(pathlib.Path(BUILD), gpus) if group.via]
            for name, env, via, *_ in transports.SETTINGS:
                here = [group for group in groups if f" {name}, " in group.name]
                self.assertEqual({g.name.split()[-1] for g in here} <= set(kinds), True, name)
                self.assertTrue(all(g.via == via and set(env) <= set(g.env) for g in here), name)
                self.assertTrue(here or gpus == 1, name)
            hosts = [group for group in groups if " two hosts, " in group.name]
            self.assertEqual(len(hosts), 2 if gpus > 1 else 0)
            messages = [group for group in groups if group.name.startswith("grouped over networks")]
            self.assertEqual([g.command[2] for g in messages], ["4" if gpus == 1 else "8"] * len(transports.MESSAGES))
            self.assertTrue(all(g.env["TUTTI_ALLOW_DUPLICATE_DEVICE"] == 1 for g in messages))
            self.assertTrue(all(g.via == ["NET/Socket"] + ["P2P"] * (gpus > 2) for g in hosts))
            direct = [group for group in groups if "DIRECT_CLAIM" in group.env]
            self.assertEqual(len(direct), len(transports.DIRECT) if gpus > 1 else 0)
            for group in direct:
                self.assertRegex(group.via[0], "GDRDMA")
                self.assertIn("-H", group.command)
                self.assertTrue(group.skip or os.path.exists("/dev/nvidia0"), group.skip)
                for library in ("NCCL_NET_PLUGIN", "DIRECT_INNER"):
                    self.assertTrue(os.path.exists(group.env[library]), library)
        crowded = [group for group in run_all.all_groups(pathlib.Path(BUILD), 2) if "4,3" in group.command]
        self.assertEqual({g.env["TUTTI_ALLOW_DUPLICATE_DEVICE"] for g in crowded}, {"1"})

    def test_launches(self):
        for gpus in (1, 2, 4):
            groups = [g for g in run_all.all_groups(pathlib.Path(BUILD), gpus) if "NCCL_CGA_CLUSTER_SIZE" in g.env]
            self.assertEqual({(g.env["NCCL_CGA_CLUSTER_SIZE"], g.env["NCCL_MEM_SYNC_DOMAIN"]) for g in groups},
                             {("4", "1"), ("2", "0"), ("4", "0"), ("0", "0")})
            for group in groups:
                cluster = group.env["NCCL_CGA_CLUSTER_SIZE"]
                self.assertEqual(group.says, None if cluster == "0" else f"kernels run in clusters of {cluster} blocks")
                self.assertEqual(group.env.get("TUTTI_ALLOW_DUPLICATE_DEVICE"), "1" if gpus == 1 else None)

    def test_machines(self):
        """What is drawn shows the ways that the groups ask for."""
        ids = [f"0000:00:0{n}.0" for n in range(5, 9)]
        topo = lambda *words: subprocess.run([os.path.join(BUILD, "bin/tutti-topo"), *words], env=ENVIRONMENT, text=True,
                                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60).stdout
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "m.xml")
            for draw, words, wanted in ((machines.row, ("explain", file, "0", "2"), r"through GPU 1, which has NVLinks to both"),
                                        (machines.near_one, ("explain", file, "1", "net0", "-R", "0,1"), r"through another GPU: yes")):
                with open(file, "w") as f:
                    f.write(draw(ids[:3] if draw is machines.row else ids))
                self.assertRegex(topo(*words), wanted)
            groups = machines.machine_groups(lambda *args, **env: cases.Group(args[-1], [], **env), 4, folder)
            self.assertEqual([g.name for g in groups], ["through a GPU between"] * 2 + ["through the rank near the NIC"] * 2)
            self.assertTrue(all(os.path.exists(g.env["NCCL_TOPO_FILE"]) for g in groups))

    def test_shards(self):
        groups = run_all.all_groups(pathlib.Path(BUILD), 2)
        parts = [cases.chosen_groups(groups, "", f"{i}/3") for i in (1, 2, 3)]
        self.assertEqual(sorted(g.name for part in parts for g in part), sorted(g.name for g in groups))
        self.assertEqual(cases.chosen_groups(groups, "", "1/1"), groups)

    def test_smaller_communicators(self):
        worlds = {word for group in run_all.all_groups(pathlib.Path(BUILD), 4) for word in group.command
                  if re.fullmatch("[0-9,]+,[0-9]+", word)}
        self.assertEqual(worlds, {"4,3,2"})


class Script(unittest.TestCase):
    def run_script(self, *words, device="host"):
        return subprocess.run([sys.executable, SCRIPT, "--build", BUILD, "--device", device, "--gpus", "2", *words],
                              env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)


class Streams(Script):
    def test_on_a_device_with_streams(self):
        device = os.environ.get("TEST_DEVICE")
        if not device:
            self.skipTest("there is no fake device")
        for only, count in (("abort", 2), ("kill", 1), ("mismatch", 1)):
            done = self.run_script("--quick", "--only", only, device=device)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, rf"(?m)^{count} passed, 0 failed", done.stdout)
        for ranks in (("-t", "3", "-w", "3,2"), ("-n", "2")):
            done = subprocess.run([os.path.join(BUILD, "bin/gpu_matrix"), *ranks, "-s", "tiny", "-L", "1M"], text=True,
                                  env=dict(ENVIRONMENT, TUTTI_DEVICE=device), stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(len(re.findall(r"(?m)^PASS .*graph", done.stdout)), 8 if ranks[0] == "-t" else 5)
        done = subprocess.run([os.path.join(BUILD, "bin/gpu_matrix"), "-t", "4", "-w", "4,3", "-s", "grouped"], text=True,
                              env=dict(ENVIRONMENT, TUTTI_DEVICE=device), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(re.findall(r"(?m)^PASS group .*graph", done.stdout)), 6)


@unittest.skipIf(SANITIZED, "what the script makes of programs' ends does not depend on sanitizers")
class Running(Script):
    def test_wrong_options(self):
        for words, said in ((("--shard", "0/2"), "I from 1 to N"), (("--shard", "3/2"), "I from 1 to N"),
                            (("--shard", "3"), "must be I/N"), (("--log", "/nowhere/log"), "/nowhere/log: cannot be written")):
            done = self.run_script(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)

    def test_passes_and_log(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            done = self.run_script("--quick", "--only", "OneShot LL", "--log", log)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(log) as f:
                lines = f.read().splitlines()
            self.assertGreater(len(lines), 5)
            self.assertTrue(all(line.startswith("PASS all_reduce OneShot LL, 2 ranks") for line in lines), lines)
            self.assertRegex(done.stdout, rf"(?m)^{len(lines)} passed, 0 failed, 0 skipped, \d+ s$")
            self.assertNotIn("PASS", done.stdout)

    def test_faults(self):
        for case in ("kill", "mismatch"):
            done = self.run_script("--quick", "--only", case)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"PASS {case}, 2 ranks", done.stdout)

    def test_what_cannot_be_done_fails(self):
        done = self.run_script("--quick", "--only", "abort, LL")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAIL abort, 2 ranks: rank 0: this case needs a device with streams", done.stdout)

    def test_transport_that_was_really_used(self):
        done = self.run_script("--only", "Simple two hosts")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        command = [os.path.join(BUILD, "bin/gpu_matrix"), "-n", "2", "-s", "grouped"]
        group = cases.Group("asked for a network", command, via=["NET/Socket"], **ENVIRONMENT)
        lines = cases.run_group(group, "host")
        self.assertTrue(lines[0].startswith("PASS group"), lines)
        self.assertRegex(lines[-1], "FAIL asked for a network: SHM.* was used; NET/Socket was not used")

    def test_no_time_left(self):
        done = self.run_script("--quick", "--only", "kill", "--budget", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not run", done.stdout)

    def test_wrong_data_is_found(self):
        for fault, pattern in (("corrupt", r"^FAIL all_reduce x, 2 ranks of 1 process: .*: \d+ wrong; rank 1: .* is .* instead of"),
                               ("skip", r"^FAIL all_reduce x, ")):
            done = subprocess.run([FAULTY, "-t", "2", "-s", "tiny", "-l", "x"], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=120, env=dict(ENVIRONMENT, TEST_FAULT=fault))
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stdout.splitlines()[0], pattern)
            self.assertIn("PASS sendrecv", done.stdout)
        for subset, fault, count in (("fp8", "skip", 10), ("grouped", "shift", 3)):
            done = subprocess.run([FAULTY, "-t", "2", "-s", subset], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=120, env=dict(ENVIRONMENT, TEST_FAULT=fault))
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(len(re.findall(r"(?m)^FAIL .*: \d+ wrong; rank \d: .* instead of", done.stdout)), count)
        done = subprocess.run([FAULTY, "-n", "2", "-s", "tiny"], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120, env=dict(ENVIRONMENT, TEST_FAULT="error"))
        self.assertEqual(done.returncode, 3)
        self.assertIn("rank 1: all_reduce: ", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
