"""Determinism, as docs/numerics.md promises it, of whole runs: ranks that are threads and ranks that are processes,
over shared memory and over a network."""
import os
import tempfile
import unittest

import lib
from lib import SANITIZE, Case
from matrix import CHOICE, FUNCTIONS, HAVE

PROGRAM = os.environ["E2E_NUMERICS"]
CHOOSES = {name: have & {"all_reduce", "reduce_scatter", "reduce"} for name, have in HAVE.items()}
CHOOSES.update(oneshot={"all_reduce"}, twoshot={"all_reduce"})
KINDS = 7 * 5 + 5  # floats and int32; the average alone of the other integers
# What chooses the algorithm and protocol of a run, and which ranks it has.
RUNS = [{"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
        for algorithm in ("ring", "tree", "oneshot", "twoshot", "direct", "pat") for protocol in ("Simple", "LL")]
RUNS += [{"NCCL_ALGO": "nvls"}, {"NCCL_ALGO": "nvlstree", "E2E_HOSTS": "aabb"},
         {"NCCL_ALGO": "ring", "NCCL_PROTO": "Simple", "NCCL_SHM_DISABLE": "1"}]


class Determinism(Case):
    def digests(self, mode, **setting):
        """{(collective, type, op, count): the digest of each rank}. Buffers are so small that there are many loops."""
        logs = tempfile.mkdtemp(dir=self.work)
        collectives = sorted(CHOOSES[setting["NCCL_ALGO"]])
        done = self.run_it(PROGRAM, mode, 4, *collectives, NCCL_BUFFSIZE=16384, NCCL_LL_BUFFSIZE=16384, NCCL_DEBUG="INFO",
                           NCCL_DEBUG_SUBSYS="TUNING", NCCL_DEBUG_FILE=os.path.join(logs, "%p"), **setting)
        self.assertEqual(done.status, 0, done.all[-3000:])
        self.obeyed("".join(lib.read(os.path.join(logs, name)) for name in os.listdir(logs)), collectives, setting)
        found = {}
        for line in done.out.splitlines():
            rank, *what, digest = line.split()
            found.setdefault(tuple(what), {})[int(rank)] = digest
        self.assertEqual(len(found), KINDS * len(collectives) * 2)
        return found

    def obeyed(self, log, collectives, setting):
        for collective in collectives:
            choices = {(m[2].replace("_", "").lower(), m[3].lower()) for m in CHOICE.findall(log)
                       if m[0] == FUNCTIONS[collective]}
            self.assertEqual({a for a, _ in choices}, {setting["NCCL_ALGO"]}, collective)
            if "NCCL_PROTO" in setting:
                self.assertEqual({p for _, p in choices}, {setting["NCCL_PROTO"].lower()}, collective)

    def agree(self, mode, setting):
        found = self.digests(mode, **setting)
        for what, digests in found.items():
            self.assertEqual(len(digests), 4, what)
            if what[0] == "all_reduce":
                self.assertEqual(len(set(digests.values())), 1, f"{mode}: ranks differ in {what}: {digests}")
        return found

    def test_every_run_has_the_same_bits(self):
        """Under a sanitizer, where a run takes ten times as long, some of the settings and one run of each: it, too,
        does every operation several times."""
        for number, setting in enumerate(RUNS[::3] if SANITIZE else RUNS):
            modes = ["processes"] * 2 if "E2E_HOSTS" in setting else ["threads", "processes"]
            with self.subTest(**setting):
                first = self.agree(modes[number % 2], setting)
                if not SANITIZE:
                    self.assertEqual(self.agree(modes[1 - number % 2], setting), first)

    @unittest.skipIf(SANITIZE, "a matter of numbers, which a sanitizer does not change")
    def test_the_order_shows(self):
        """The numbers are such that algorithms do differ, so that what agrees above does so for a reason."""
        ring, tree = (self.digests("threads", NCCL_ALGO=algorithm) for algorithm in ("ring", "tree"))
        for kind in ("half", "bfloat16", "float", "double", "e5m2"):
            what = ("all_reduce", kind, "sum", "1000")
            self.assertNotEqual(ring[what], tree[what], what)
        for op in ("max", "min"):
            for kind in ("half", "bfloat16", "float", "double", "e4m3", "e5m2"):
                self.assertEqual(ring["all_reduce", kind, op, "1000"], tree["all_reduce", kind, op, "1000"], kind)
        for op in ("sum", "prod", "max", "min", "avg"):
            self.assertEqual(ring["all_reduce", "int32", op, "1000"], tree["all_reduce", "int32", op, "1000"], op)


if __name__ == "__main__":
    lib.main()
