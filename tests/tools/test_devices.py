"""tutti-perf on a device with memory of its own, which is fake here. Arguments as support.py has them."""
import os
import re
import subprocess
import time

from support import Case, COLLECTIVES, early_exit_environment, free_port, main, PERF, run


class Devices(Case):
    """What tutti-perf does on GPUs, on a device of threads: TEST_DEVICE, with the helper TEST_PERF_HELPER."""

    def perf(self, *words, program=PERF, **more):
        env = early_exit_environment(TUTTI_DEVICE=os.environ["TEST_DEVICE"],
                                     TUTTI_PERF_CUDA=os.environ["TEST_PERF_HELPER"], **more)
        return run(program, *words, "--iters", 3, env=env)

    def test_threads_processes_and_both(self):
        for ranks in (("-t", 3), ("-n", 3), ("-g", 3), ("-n", 2, "-t", 2), ("-t", 2, "-g", 2), ("-t", 3, "-p", 1)):
            with self.subTest(ranks):
                done = self.perf("all_reduce", *ranks, "--sizes", "0,8,5000,100K")
                self.good(done, 4)
                count = len(re.findall(r"(?m)^#  Rank .* device +(\d+) \[0000:0\1:00.0\] fake$", done.stdout))
                self.assertEqual(count, {"-g": 3}.get(ranks[0], 3) if len(ranks) == 2 or "-p" in ranks else 4)

    def test_graphs(self):
        for collective in COLLECTIVES:
            with self.subTest(collective):
                self.good(self.perf(collective, "-t", 2, "-G", 3, "--sizes", "8,20000", "-c", 3), 2)
        self.good(self.perf("all_reduce", "-n", 2, "-G", 2, "--sizes", "8,20000", "-m", 2), 2)
        self.good(self.perf("all_reduce", "-g", 2, "-G", 2, "--sizes", "8,20000", "--repeats", 3), 2)

    def test_registered_memory_and_how_iterations_follow(self):
        for ranks in (("-t", 2), ("-n", 2), ("-g", 2)):
            for words in (("--alloc", "nccl"), ("-R", 1), ("--alloc", "window", "-G", 2), ("-R", 2, "--load", 1)):
                with self.subTest((ranks, words)):
                    self.good(self.perf("all_reduce", *ranks, *words, "--sizes", "8,5000"), 2)
        self.good(self.perf("broadcast", "-t", 2, "-G", 2, "--dependent", 1, "--sizes", "8,5000"), 2)
        self.good(self.perf("alltoall", "-t", 2, "-G", 2, "--rotate", 64, "--sizes", "8,5000"), 2)

    def test_pairs(self):
        for words in (("-t", 2, "-G", 2), ("-n", 2, "-R", 2)):
            done = self.perf("pairs", *words, "-e", "100000", "--settings", "p2p,simple")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(re.findall(r"(?m)^# (\w+): (?:bandwidth|latency)", done.stdout), ["p2p"] * 3 + ["simple"])
            self.assertNotIn("wrong", done.stdout)
            self.assertIn("2 ranks on fake", done.stdout)

    def test_a_graph_that_does_not_run_again_is_found(self):
        for words in ((), ("-c", 0)):
            done = self.perf("all_reduce", "-t", 2, "-G", 1, "--sizes", "4000", *words, TEST_GRAPH="once")
            self.assertEqual(done.returncode, 0 if words else 1, done.stderr)
        done = self.perf("all_reduce", "-t", 2, "-G", 1, "--sizes", "4000", TEST_GRAPH="once")
        self.assertIn("all_reduce of 1000 elements", done.stderr)

    def test_the_null_stream_and_types(self):
        self.good(self.perf("all_reduce", "-t", 2, "-y", 1, "--sizes", "8,5000"), 2)
        self.good(self.perf("reduce", "-n", 3, "-d", "all", "-o", "all", "-r", "all", "--sizes", "1000", "-u", 1), 150)

    def test_a_stream_that_does_not_end(self):
        started = time.monotonic()
        done = self.perf("all_reduce", "-t", 2, "--sizes", "8", "-T", 2, TEST_STREAM="stuck")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("-T", done.stderr)
        self.assertLess(time.monotonic() - started, 60)

    def test_an_operation_that_fails_later(self):
        """Ranks that disagree: the calls return, and the failure comes while the streams are waited for."""
        port, env = free_port(), early_exit_environment(TUTTI_DEVICE=os.environ["TEST_DEVICE"],
                                                        TUTTI_PERF_CUDA=os.environ["TEST_PERF_HELPER"])
        both = [subprocess.Popen([PERF, "all_reduce", "--rank", str(rank), "--nranks", "2", "--root-addr",
                                  f"127.0.0.1:{port}", "--sizes", size, "-c", "0", "-T", "30"], env=env, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank, size in ((0, "8"), (1, "800"))]
        for process in both:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 3, errors)
            self.assertIn("count", errors)

    def test_ranks_that_share_a_device(self):
        words = ("all_reduce", "-n", 2, "--sizes", "8,5000")
        done = self.perf(*words, TEST_DEVICES=1)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stderr.count("2 ranks and 1 GPUs"), 1, done.stderr)
        self.good(self.perf(*words, TEST_DEVICES=1, TUTTI_ALLOW_DUPLICATE_DEVICE=1), 2)
        done = self.perf(*words, TEST_DEVICES=0)
        self.assertEqual(done.returncode, 3)
        self.assertIn("TEST_DEVICES says", done.stderr)


if __name__ == "__main__":
    main()
