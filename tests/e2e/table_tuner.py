"""The table tuner in whole runs: the core obeys its rules where they are possible, says which were of use, and does not
start with rules that are broken."""
import os

import lib
from lib import Case
from matrix import CHOICE, FUNCTIONS

TUNER = os.path.join(lib.BIN, os.pardir, "lib", "tutti", "libtutti-tuner.so")


class TableTuner(Case):
    def rules(self, *lines):
        path = os.path.join(self.work, "rules.csv")
        with open(path, "w") as f:
            f.write("".join(line + "\n" for line in lines))
        return path

    def choices(self, collective, text):
        """{bytes: (algorithm, protocol, channels)} as all ranks' logs say; each size has one choice."""
        found = {}
        for function, size, algorithm, protocol, channels, _ in CHOICE.findall(text):
            if function == FUNCTIONS[collective]:
                found.setdefault(int(size), set()).add((algorithm, protocol, int(channels)))
        self.assertTrue(all(len(c) == 1 for c in found.values()), found)
        return {size: c.pop() for size, c in found.items()}

    def run_with(self, rules, collective="all_reduce", **env):
        text = self.log(collective, "-n", 3, "-b", 64, "-e", "16K", "-f", 16, NCCL_TUNER_CONFIG_FILE=rules, **env)
        return text, self.choices(collective, text)

    def test_rules_are_obeyed(self):
        """Sizes 64, 1024 and 16384: the first by one rule, the second by another, the third by none."""
        plain = self.choices("all_reduce", self.log("all_reduce", "-n", 3, "-b", 64, "-e", "16K", "-f", 16))
        path = self.rules("# sizes", "allreduce,0,64,ring,simple,3,-1,-1", "allreduce,0,100,tree,ll,-1,-1,-1",
                          "allreduce,1024,1024,tree,ll,2,1,3,1", "allreduce,16384,-1,ring,ll,-1,2,-1")
        text, chosen = self.run_with(path)
        self.assertEqual(chosen[64], ("RING", "SIMPLE", 3))
        self.assertEqual(chosen[1024], ("TREE", "LL", 2))
        self.assertEqual(chosen[16384], plain[16384])
        self.assertIn(f"TUNER/Tutti: 4 rules from {os.path.realpath(path)}, of which 3 can match with 1 nodes and 3 ranks",
                      text)
        self.assertRegex(text, r"line 3 \(allreduce,0,100,tree,ll,-1,.*\) never matched: nothing that was asked for")
        self.assertRegex(text, r"line 5 .* never matched: it is for other numbers of nodes")

    def test_own_algorithms(self):
        _, chosen = self.run_with(self.rules("allreduce,0,64,two_shot,simple,-1,-1,-1",
                                             "allreduce,65,-1,one_shot,ll,-1,-1,-1"))
        self.assertEqual(chosen[64][:2], ("TWO_SHOT", "SIMPLE"))
        self.assertEqual({chosen[s][:2] for s in (1024, 16384)}, {("ONE_SHOT", "LL")})

    def test_what_is_impossible_is_passed_over(self):
        """There is no network that reduces; and NCCL_ALGO excludes trees."""
        path = self.rules("allgather,0,-1,collnet_direct,simple,1,-1,-1", "allgather,0,-1,ring,simple,2,-1,-1",
                          "allreduce,0,-1,tree,simple,-1,-1,-1")
        text, chosen = self.run_with(path, "all_gather")
        self.assertEqual({c for c in chosen.values()}, {("RING", "SIMPLE", 2)})
        self.assertIn("is passed over: the core says that it is impossible here or forbidden", text)
        self.assertRegex(text, r"line 1 .* matched \d+ times and was never possible")
        _, chosen = self.run_with(path, NCCL_ALGO="^tree")
        self.assertNotIn("TREE", {c[0] for c in chosen.values()})

    def test_a_broken_file_is_an_error(self):
        path = self.rules("allreduce,0,64,ring,simple,3,-1,-1", "allreduce,0,64,rign,simple,3,-1,-1")
        done = self.run_it(lib.PERF, "all_reduce", "-n", 2, "-b", 64, "-e", 64, NCCL_TUNER_CONFIG_FILE=path,
                           NCCL_DEBUG="WARN")
        self.assertNotEqual(done.status, 0)
        self.assertIn("tuner Tutti (v6) cannot be used", done.all)
        self.assertIn(f"{os.path.realpath(path)}:2:16: \"rign\" as algorithm is none of the names known there", done.all)

    def test_named_as_a_plugin(self):
        """By NCCL_TUNER_PLUGIN, as NCCL would need it; and `none` means none."""
        path = self.rules("allreduce,0,-1,tree,simple,-1,-1,-1")
        _, chosen = self.run_with(path, NCCL_TUNER_PLUGIN=TUNER)
        self.assertEqual({c[:2] for c in chosen.values()}, {("TREE", "SIMPLE")})
        text, _ = self.run_with(path, NCCL_TUNER_PLUGIN="none")
        self.assertNotIn("TUNER/Tutti", text)


if __name__ == "__main__":
    lib.main()
