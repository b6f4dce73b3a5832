"""Determinism, as docs/numerics.md promises it, of whole runs: ranks that are threads and ranks that are processes,
over shared memory and over a network."""
import os
import tempfile

import lib
from lib import SANITIZE, Case
from matrix import CHOICE, FUNCTIONS, HAVE

PROGRAM = os.environ["E2E_NUMERICS"]
CHOOSES = {**HAVE, "oneshot": {"all_reduce"}, "twoshot": {"all_reduce"}}
# What chooses the algorithm and protocol of a run, and which ranks it has.
RUNS = [{"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
        for algorithm in ("ring", "tree", "oneshot", "twoshot", "direct", "pat") for protocol in ("Simple", "LL")]
RUNS += [{"NCCL_ALGO": "nvls"}, {"NCCL_ALGO": "nvlstree", "E2E_HOSTS": "aabb"},
         {"NCCL_ALGO": "ring", "NCCL_PROTO": "Simple", "NCCL_SHM_DISABLE": "1"}]


class Determinism(Case):
    def digests(self, mode, **setting):
        """{(collective, type, op, count): the digest of each rank}. Buffers are so small that there are many loops."""
        logs = tempfile.mkdtemp(dir=self.work)
        done = self.run_it(PROGRAM, mode, 4, NCCL_BUFFSIZE=16384, NCCL_LL_BUFFSIZE=16384, NCCL_DEBUG="INFO",
                           NCCL_DEBUG_SUBSYS="TUNING", NCCL_DEBUG_FILE=os.path.join(logs, "%p"), **setting)
        self.assertEqual(done.status, 0, done.all[-3000:])
        self.obeyed("".join(lib.read(os.path.join(logs, name)) for name in os.listdir(logs)), setting)
        found = {}
        for line in done.out.splitlines():
            rank, *what, digest = line.split()
            found.setdefault(tuple(what), {})[int(rank)] = digest
        return found

    def obeyed(self, log, setting):
        algorithm = setting["NCCL_ALGO"]
        for collective in {"all_reduce", "reduce_scatter", "reduce"} & CHOOSES[algorithm]:
            choices = {(m[2].replace("_", "").lower(), m[3].lower()) for m in CHOICE.findall(log)
                       if m[0] == FUNCTIONS[collective]}
            self.assertEqual({a for a, _ in choices}, {algorithm}, collective)
            if "NCCL_PROTO" in setting:
                self.assertEqual({p for _, p in choices}, {setting["NCCL_PROTO"].lower()}, collective)

    def agree(self, mode, setting):
        found = self.digests(mode, **setting)
        self.assertEqual(len(found), (5 * 5 + 2 * 4) * 3 * 2)
        for what, digests in found.items():
            self.assertEqual(len(digests), 4, what)
            if what[0] == "all_reduce":
                self.assertEqual(len(set(digests.values())), 1, f"{mode}: ranks differ in {what}: {digests}")
        return found

    def test_every_run_has_the_same_bits(self):
        for number, setting in enumerate(RUNS):
            modes = ["processes"] if "E2E_HOSTS" in setting else ["threads", "processes"]
            if SANITIZE:
                modes = [modes[number % len(modes)]]
            with self.subTest(**setting):
                first = self.agree(modes[0], setting)
                for mode in modes[1:] or modes:
                    self.assertEqual(self.agree(mode, setting), first, f"{mode} against {modes[0]}")

    def test_the_order_shows(self):
        """The numbers are such that algorithms do differ, so that what agrees above does so for a reason."""
        ring, tree = (self.digests("threads", NCCL_ALGO=algorithm) for algorithm in ("ring", "tree"))
        for kind in ("half", "bfloat16", "float", "double", "e5m2"):
            what = ("all_reduce", kind, "sum", "1000")
            self.assertNotEqual(ring[what], tree[what], what)
        for op in ("max", "min"):
            for kind in ("half", "bfloat16", "float", "double", "e4m3", "e5m2"):
                self.assertEqual(ring["all_reduce", kind, op, "1000"], tree["all_reduce", kind, op, "1000"], kind)
        self.assertEqual(ring["all_reduce", "int32", "avg", "1000"], tree["all_reduce", "int32", "avg", "1000"])


if __name__ == "__main__":
    lib.main()
