"""Tuners end to end: stubs (tuner_stub.c) that answer well, badly, and differently on each rank. What ran is read from
the log, and all data is checked."""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import lib
from lib import Case

STUBS = os.environ["E2E_STUBS"]
CHOICE = re.compile(r"(\w+): (\d+) bytes -> algorithm (\w+) protocol (\w+) channels (\d+): (.*)")
QUICK = ("--iters", 1, "-w", 0)
TREE_LL, RING_LL, RING_SIMPLE = "price=0,0,0.0", "price=1,0,0.0", "price=1,2,0.0"


def stub(name):
    return os.path.join(STUBS, f"libtuner{name}.so")


class Tuners(Case):
    def tuned(self, does, name=6, words=("-b", 4096, "-e", 4096), ranks=3, collective="all_reduce", **env):
        """A run of processes of one host, all with the same tuner. Returns its output."""
        return self.log(collective, "-n", ranks, *words, NCCL_TUNER_PLUGIN=stub(name), STUB_TUNER_DOES=does, **env)

    def apart(self, each, collective="all_reduce", words=("-b", 4096, "-e", 4096), **env):
        """The same with an environment for each rank. Returns each rank's output."""
        env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", **env}
        done = [p.wait() for p in self.by_hand((collective, *words, *QUICK), len(each), each=lambda r: each[r], **env)]
        for process in done[1:]:
            self.assertEqual(process.status, 0, process.all[-4000:])
        self.good(done[0])
        return [p.all for p in done]

    def all_say(self, text, algorithm, protocol, channels=None, reason="the tuner's choice"):
        found = CHOICE.findall(text)
        self.assertTrue(found, text[-3000:])
        for _, _, a, p, c, why in found:
            self.assertEqual((a, p), (algorithm, protocol), why)
            self.assertIn(reason, why)
            if channels:
                self.assertEqual(int(c), channels, why)

    def test_obeyed(self):
        text = self.tuned(TREE_LL)
        self.all_say(text, "TREE", "LL")
        self.assertIn("Tuner: Stub, asked for AllReduce of 4096 bytes, says TREE with LL", text)
        self.all_say(self.tuned(RING_SIMPLE, 2, collective="broadcast"), "RING", "SIMPLE")
        # Without it the core chooses otherwise, so the above was obedience.
        for _, _, algorithm, _, _, _ in CHOICE.findall(self.log("all_reduce", "-n", 3, "-b", 4096, "-e", 4096)):
            self.assertNotIn(algorithm, ("TREE", "RING"))

    def test_all_algorithms(self):
        self.all_say(self.tuned("price=8,2,0.0", "-all"), "TWO_SHOT", "SIMPLE")
        # A tuner of NCCL's seven rows that forbids them leaves the others.
        self.assertRegex(self.tuned("forbid"), r"algorithm (ONE|TWO)_SHOT .*left as it was")
        self.assertRegex(self.tuned("forbid", "-all"), "says that nothing is allowed: the core chooses")

    def test_channels_and_chunks(self):
        self.all_say(self.tuned(RING_LL + " channels=3 chunk=512", words=("-b", 400000, "-e", 400000)), "RING", "LL", 3,
                     "chunks of 512 bytes")
        self.all_say(self.tuned(RING_LL + " channels=2000000000 chunk=1", NCCL_MAX_NCHANNELS=5), "RING", "LL", 5,
                     "2000000000 channels cannot be had; chunks of 512 bytes, as 1 cannot be had")
        self.all_say(self.tuned(TREE_LL + " channels=3"), "TREE", "LL", 4, "3 channels cannot be had")
        text = self.tuned(RING_LL + " channels=-7 chunkresult=3")
        self.all_say(text, "RING", "LL", None, "-7 channels cannot be had; its getChunkSize failed with result 3")
        self.assertIn("this is a fault of the tuner", text)

    def steps(self, does):
        """The most steps that a connection of a ring has, which waits for a rank that never comes."""
        processes = self.ranks(["init all_reduce:100000", "init sleep:60000"], NCCL_TUNER_PLUGIN=stub(6),
                               STUB_TUNER_DOES=does, NCCL_BUFFSIZE=1 << 20)
        found = []

        def waits():
            done = subprocess.run([os.path.join(lib.BIN, "tutti-info"), "--pid", str(processes[0].pid), "--json"],
                                  capture_output=True, text=True, timeout=lib.PATIENCE)
            comms = json.loads(done.stdout)["communicators"] if done.returncode == 0 else []
            found[:] = [c["steps"] for comm in comms for o in comm.get("operations", ())
                        for c in o.get("connections", ())]
            return found
        self.until(waits, "the wait")
        for process in processes:
            process.kill()
        return max(found)

    def test_chunks_are_really_smaller(self):
        """A ring of two sends 200,000 bytes a step of its own: in slots of 128 KiB, or in chunks of 4096 bytes."""
        whole = self.steps(RING_SIMPLE + " channels=1")
        cut = self.steps(RING_SIMPLE + " channels=1 chunk=4096")
        self.assertGreaterEqual(cut, 2 * (200000 // 4096))
        self.assertLess(whole, cut // 2)

    def test_errors_and_the_impossible(self):
        text = self.tuned(RING_LL + " result=3")
        self.assertIn("says an error, result 3: the core chooses", text)
        self.assertIn("the tuner failed with result 3; the fastest of", text)
        self.assertIn("LL128 is not possible: the device does not have the protocol", self.tuned("price=1,1,0.0"))
        text = self.tuned("price=1,0 channels=2", 2, NCCL_ALGO="Tree")
        self.assertRegex(text, "not the tuner's; RING with LL is not possible: NCCL_ALGO excludes it")
        self.assertIn("says algorithm 1 with protocol -1, which is no pair", self.tuned("price=1,-1", 2))

    def test_environment_wins(self):
        text = self.tuned(RING_LL, NCCL_ALGO="Tree", NCCL_PROTO="Simple")
        self.all_say(text, "TREE", "SIMPLE", None, "not possible: NCCL_ALGO excludes it")
        self.all_say(self.tuned(RING_LL + " price=1,2,nan", NCCL_ALGO="Ring", NCCL_PROTO="^LL"), "RING", "SIMPLE", None,
                     "the tuner forbade everything")

    def test_answers_that_depend_on_the_rank(self):
        texts = self.apart([{"STUB_TUNER_DOES": d} for d in (TREE_LL, RING_LL, "")], NCCL_TUNER_PLUGIN=stub(5))
        for text in texts:
            self.all_say(text, "TREE", "LL")
        named = "rank 1's says RING with LL, rank 0's says TREE with LL, which all ranks use"
        self.assertIn(named, texts[1])
        self.assertRegex(texts[0], r"rank (1's says RING with LL|2's says nothing), rank 0's says TREE with LL")
        self.assertIn("rank 2's says nothing, rank 0's says TREE with LL", texts[2])

    def test_random_answers(self):
        for collective in ("all_reduce", "broadcast", "reduce_scatter"):
            text = self.tuned("random", 4, ("-b", 8, "-e", 8192, "-f", 4, "-u", 1), collective=collective)
            chosen = {}
            for name, size, algorithm, protocol, channels, _ in CHOICE.findall(text):
                chosen.setdefault((name, size), set()).add((algorithm, protocol, channels))
            self.assertTrue(chosen and all(len(c) == 1 for c in chosen.values()), chosen)

    def test_not_on_all_ranks(self):
        texts = self.apart([{"NCCL_TUNER_PLUGIN": stub(6) if r == 1 else "none"} for r in range(3)],
                           STUB_TUNER_DOES=TREE_LL)
        for text in texts:
            self.assertIn("no tuner is used, as ranks have different ones: rank 0 has none (NCCL_TUNER_PLUGIN is none), "
                          "rank 1 has Stub (v6)", text)
            self.assertNotIn("algorithm TREE", text)
        texts = self.apart([{"NCCL_TUNER_PLUGIN": stub(v)} for v in (2, 3)], STUB_TUNER_DOES=TREE_LL)
        self.assertIn("rank 0 has Stub (v2), rank 1 has Stub (v3)", texts[0])

    def test_failing_init(self):
        """With programs that do not watch each other: tutti-perf ends a process as soon as another one has failed,
        whatever its library still does."""
        log = os.path.join(self.work, "log")
        started = self.ranks(["init"] * 3, NCCL_TUNER_PLUGIN=stub(6), NCCL_DEBUG="WARN", STUB_TUNER_LOG=log,
                             each=lambda r: {"STUB_TUNER_DOES": "init=2" if r == 2 else ""})
        for process in [p.wait() for p in started]:
            self.assertEqual(process.status, 3, process.all)
            self.assertIn("rank 2's tuner Stub (v6) cannot be used: its init returned 2", process.all)
        calls = lib.read(log)
        self.assertEqual((calls.count("init"), calls.count("finalize")), (3, 2))

    def test_asked_once(self):
        log = os.path.join(self.work, "log")
        self.perf("all_reduce", "-n", 2, "-b", 4096, "-e", 4096, "--iters", 20, NCCL_TUNER_PLUGIN=stub(3), STUB_TUNER_LOG=log)
        calls = lib.read(log).splitlines()
        asked = [c for c in calls if c.startswith("ask 4 4096 bytes")]
        self.assertEqual(len(asked), 2, calls) # once a rank
        self.assertEqual(calls.count("finalize 1"), 2)

    def test_asked_again(self):
        """By turns a tree and a ring, five calls each, on all ranks alike; the tuner of rank 0 alone is asked."""
        log = os.path.join(self.work, "log")
        steps = " ".join(["all_reduce:1000"] * 14)
        env = {"NCCL_TUNER_PLUGIN": stub("-again"), "STUB_TUNER_DOES": "again=5 price=0,2,0.5 odd=1,2",
               "STUB_TUNER_LOG": log, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING"}
        for process in [p.wait() for p in self.ranks([f"init {steps} destroy", f"init sleep:300 {steps} destroy",
                                                      f"init {steps} sleep:300 destroy"], **env)]:
            self.assertEqual(process.status, 0, process.all)
            found = [c[2] for c in CHOICE.findall(process.all)]
            self.assertEqual(found, ["TREE"] * 5 + ["RING"] * 5 + ["TREE"] * 4)
        asked = [c for c in lib.read(log).splitlines() if c.startswith("epoch")]
        asked[0] = asked[0].replace("stats 7", "stats 0") # in progress: another rank's call came before rank 0 was made
        self.assertEqual(asked, [f"epoch 4 4000 bytes, variant 0, {e} after {5 if e else 0} calls, stats 0" for e in range(3)])

    def test_asked_again_by_who_is_late(self):
        """Rank 0 is through with its broadcasts, and gone, before another comes to its second epoch."""
        steps = " ".join(["broadcast:100:sum:float:0"] * 7)
        for process in self.ranks([f"init {steps} destroy", f"init sleep:1000 {steps} destroy"],
                                  NCCL_TUNER_PLUGIN=stub("-again"), NCCL_DEBUG="WARN",
                                  STUB_TUNER_DOES="again=3 price=0,2,0.5 odd=1,2"):
            self.assertEqual(process.wait().status, 0, process.all)

    def test_a_first_rank_that_has_left(self):
        """A root may be through, and gone, before others ask what to use."""
        env = {"NCCL_TUNER_PLUGIN": stub(6), "STUB_TUNER_DOES": RING_SIMPLE, "NCCL_DEBUG": "WARN"}
        for process in self.ranks(["init broadcast:1000:sum:float:0 destroy",
                                   "init sleep:1000 broadcast:1000:sum:float:0 destroy"], **env):
            self.assertEqual(process.wait().status, 0, process.all)

    def test_a_first_rank_that_is_killed(self):
        processes = self.ranks(["init sleep:60000", "init ready sleep:500 all_reduce:1000"], NCCL_TUNER_PLUGIN=stub(6),
                               STUB_TUNER_DOES=RING_LL)
        self.until(lambda: "running" in processes[1].out, "the second rank")
        processes[0].kill()
        self.assertEqual(processes[1].wait().status, 3)
        self.assertRegex(processes[1].err, r"rank 0 is gone|rank 0 \w+.* without a goodbye")


if __name__ == "__main__":
    lib.main()
