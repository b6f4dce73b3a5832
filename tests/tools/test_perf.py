"""tutti-perf as users run it: flags, table, check, files. Arguments as support.py has them."""
import json
import os
import pty
import re
import select
import shutil
import subprocess
import tempfile
import time

from support import BIN, Case, COLLECTIVES, early_exit_environment, environment, FAULTY, main, PERF, rows, run


class Perf(Case):
    def test_processes(self):
        for collective in COLLECTIVES:
            with self.subTest(collective):
                self.good(run(PERF, collective, "-n", 4, "-b", 8, "-e", "64K", "-f", 8, "--iters", 3), 5)

    def test_threads(self):
        for collective in COLLECTIVES:
            with self.subTest(collective):
                self.good(run(PERF, collective, "-t", 4, "-b", 8, "-e", "64K", "-f", 8, "--iters", 3), 5)

    def test_communicators_of_one_thread(self):
        for collective in COLLECTIVES:
            with self.subTest(collective):
                self.good(run(PERF, collective, "-g", 3, "-b", 8, "-e", "4K", "-f", 8, "--iters", 3), 4)

    def test_host_streams(self):
        """-y 0: all iterations are enqueued before one wait, by processes, threads and a thread of several ranks."""
        for ranks in (("-n", 2), ("-t", 2), ("-g", 2)):
            with self.subTest(ranks):
                self.good(run(PERF, "all_reduce", *ranks, "-y", 0, "--sizes", "8,50000", "-m", 2, "--iters", 5), 2)

    def test_how_iterations_follow(self):
        """Results are checked after iterations that swap buffers, take turns with places, or run beside a load."""
        for words in (("all_gather", "--dependent", 1), ("reduce", "--dependent", 1, "-r", "all"),
                      ("reduce_scatter", "--rotate", 5), ("all_reduce", "--load", 1, "-g", 2)):
            with self.subTest(words):
                with tempfile.TemporaryDirectory() as folder:
                    out = os.path.join(folder, "out.json")
                    done = run(PERF, *words, "-t", 2, "--sizes", "8,20000", "--iters", 7, "-J", out)
                    self.good(done, 4 if "all" in words else 2)
                    with open(out) as f:
                        result = json.load(f)
                self.assertEqual((result["config"]["dependent"], result["config"]["rotate"], result["config"]["load"]),
                                 ("--dependent" in words, 5 if "--rotate" in words else 0, "--load" in words))
                self.assertEqual("load" in result, "--load" in words)
                if "--load" in words:
                    self.assertGreater(result["load"]["products"], 0)
                    self.assertRegex(done.stdout, r"# Load +: product on the host of 64 x 64, [0-9.e+]+ a second")

    def pairs(self, *words, status=0, names=("p2p", "nop2p", "ll", "ll128", "simple"), env=None, program=PERF):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.json")
            done = run(program, "pairs", *words, "-e", "100000", "--iters", 2, "-J", out, env=env)
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            with open(out) as f:
                result = json.load(f)
        self.assertEqual([setting["name"] for setting in result["settings"]], list(names))
        return done, result

    def good_matrices(self, result, missing=()):
        ranks = result["nranks"]
        for setting in result["settings"]:
            self.assertEqual(setting["status"], "missing" if setting["name"] in missing else "ok", setting)
            matrices = {key: value for key, value in setting.items() if isinstance(value, list)}
            wanted = {"bandwidth", "bandwidth_both", "latency"} if "p2p" in setting["name"] else {"latency"}
            self.assertEqual(set(matrices), set() if setting["name"] in missing else wanted)
            for matrix in matrices.values():
                self.assertEqual([len(row) for row in matrix], [ranks] * ranks)
                for row in range(ranks):
                    for column in range(ranks):
                        self.assertTrue(matrix[row][column] is None if row == column else matrix[row][column] > 0)
            if setting["status"] == "ok":
                self.assertEqual(setting["nwrong"], 0)

    def test_pairs(self):
        """All settings with a rank a thread; the host lacks a protocol, which is an error only where it was named."""
        done, result = self.pairs("-t", 3)
        self.good_matrices(result, missing=("ll128",))
        self.assertEqual(result["settings"][1]["environment"], {"NCCL_P2P_DISABLE": "1"})
        self.assertIn("# ll128: is not to be had here", done.stdout)
        self.assertIn("# p2p: bandwidth while both send, GB/s, row to column\n#              0        1        2\n"
                      "      0        - ", done.stdout)
        self.pairs("-t", 2, "--settings", "ll128", status=3, names=("ll128",))

    def test_pairs_of_processes(self):
        _, result = self.pairs("-n", 2, "-t", 2, "--settings", "nop2p,ll", names=("nop2p", "ll"))
        self.good_matrices(result)
        self.assertEqual(result["nranks"], 4)

    def test_pairs_that_fail(self):
        _, result = self.pairs("-n", 2, "--settings", "p2p,ll", names=("p2p", "ll"), status=1, program=FAULTY,
                               env=environment(TEST_FAULT="shift"))
        self.assertEqual([setting["status"] for setting in result["settings"]], ["failed", "ok"])
        self.assertGreater(result["settings"][0]["nwrong"], 0)
        done, result = self.pairs("-n", 2, "--settings", "p2p,ll", names=("p2p", "ll"), status=3, program=FAULTY,
                                  env=early_exit_environment(TEST_FAULT="refuse"))
        self.assertEqual([setting["status"] for setting in result["settings"]], ["error", "ok"])  # the rest goes on
        self.assertIn("# p2p: FAILED, status 3", done.stdout)
        done = run(PERF, "pairs", "-t", 2, env=environment(OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_RANK=0))
        self.assertEqual(done.returncode, 2)
        self.assertIn("starts its own processes", done.stderr)

    def test_all_at_once(self):
        done = run(PERF, "all_reduce", "-n", 2, "-t", 2, "-g", 2, "-b", 8, "-e", "4K", "-f", 8, "--iters", 3)
        self.good(done, 4)
        self.assertEqual(len(re.findall(r"^#  Rank ", done.stdout, re.M)), 8)

    def test_parallel_init(self):
        self.good(run(PERF, "all_reduce", "-n", 2, "-t", 2, "-p", 1, "-b", 8, "-e", 8, "--iters", 3), 1)

    def test_one_rank(self):
        for collective in COLLECTIVES:
            with self.subTest(collective):
                self.good(run(PERF, collective, "-b", 0, "-e", 64, "-i", 32, "--iters", 2), 3)

    def test_every_type_and_operation(self):
        for collective, roots in (("all_reduce", 1), ("reduce_scatter", 1), ("reduce", 3)):
            with self.subTest(collective):
                extra = ("-r", "all") if roots > 1 else ()
                done = run(PERF, collective, "-n", 3, "-d", "all", "-o", "all", "-b", 1000, "-e", 1000, "--iters", 1,
                           *extra)
                self.good(done, 12 * 5 * roots)

    def test_odd_counts_and_alignment(self):
        for collective in COLLECTIVES:
            with self.subTest(collective):
                self.good(run(PERF, collective, "-n", 3, "-d", "int8", "-b", 1, "-e", 5000, "-f", 7, "-u", 1, "-c", 2,
                              "--iters", 2), 5)

    def test_aggregation_and_barriers(self):
        for z in (1, 2, 3):
            self.good(run(PERF, "all_reduce", "-n", 2, "-b", 64, "-e", 64, "-m", 3, "-z", z, "--iters", 4, "-w", 0), 1)

    def test_names_of_nccl_tests(self):
        for collective in COLLECTIVES:
            with self.subTest(collective):
                done = run(os.path.join(BIN, collective + "_perf"), "--np", 2, "-b", 8, "-e", 8, "-n", 3, "-o", "sum")
                self.good(done, 1)
                self.assertIn(f"# Collective test starting: {collective}_perf", done.stdout)
                self.assertIn(" iters: 3 ", done.stdout)

    def test_preamble_and_columns(self):
        done = run(PERF, "all_reduce", "-n", 2, "-b", "1M", "-e", "1M", "--iters", 2, "-d", "double", "-o", "max")
        row = self.good(done, 1)[0]
        self.assertEqual(row[:5], ["1048576", "131072", "double", "max", "-1"])
        self.assertRegex(done.stdout, r"(?m)^#  Rank  1 Group  0 Pid +\d+ on +\S+ device +\d+ \[[0-9a-f:]+\] \S+$")
        self.assertRegex(done.stdout, r"(?m)^# +size +count +type +redop +root +time +algbw +busbw +#wrong +time ")
        self.assertIn("# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1048576 step: 1048576(bytes)", done.stdout)
        # algbw is size over time, and with 2 ranks busbw of an all-reduce is the same.
        self.assertAlmostEqual(float(row[6]), 1048576 / float(row[5]) / 1e3, delta=0.02)
        self.assertEqual(row[6], row[7])

    def test_unchecked(self):
        done = run(PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, "-c", 0, "--iters", 2)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(rows(done.stdout)[0][8], "N/A")

    def test_least_bandwidth(self):
        command = (PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, "--iters", 2)
        done = run(*command, env=environment(NCCL_TESTS_MIN_BW=1e9))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"# Avg bus bandwidth    : \S+ FAILED")
        self.assertEqual(done.stderr, "")
        self.assertEqual(run(*command, env=environment(NCCL_TESTS_MIN_BW=0)).returncode, 0)

    def test_progress_on_a_terminal_only(self):
        command = [PERF, "all_reduce", "-n", "2", "-b", "8", "-e", "8", "-N", "0"]
        ours, theirs = pty.openpty()
        process = subprocess.Popen(command, env=early_exit_environment(), stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        seen, deadline = b"", time.monotonic() + 30
        while b"measurements, now 8 bytes" not in seen:
            self.assertLess(time.monotonic(), deadline, seen)
            if select.select([ours, process.stdout], [], [], 1)[0]:
                if select.select([ours], [], [], 0)[0]:
                    seen += os.read(ours, 4096)
                else:
                    os.read(process.stdout.fileno(), 65536)
        process.terminate()
        process.communicate(timeout=30)
        os.close(ours)

    def test_a_table_that_is_lost_is_an_error(self):
        command = [PERF, "all_reduce", "-n", "2", "-b", "8", "-e", "8", "--iters", "2"]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, env=environment(), timeout=120, text=True, stdout=full,
                                  stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("standard output", done.stderr)

    def test_closed_descriptors(self):
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            with self.subTest(closed):
                done = run("sh", "-c", f'"$0" all_reduce -n 2 -b 8 -e 8 --iters 2 {closed}', PERF)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_lists_forms_and_repeats(self):
        done = run(PERF, "all_reduce", "-n", 2, "--sizes", "4K,8,64", "--iters", 2, "--repeats", 3, "--form", "in")
        table = self.good_rows(done, 3)
        self.assertEqual([row[0] for row in table], ["4096", "8", "64"])
        for row in table:
            self.assertEqual((row[5:9], row[12]), (["N/A"] * 4, "0"))
        done = run(PERF, "all_reduce", "-n", 2, "--sizes", "8", "--iters", 2, "--form", "out")
        self.assertEqual(self.good(done, 1)[0][9:], ["N/A"] * 4)

    def test_devices_that_are_not_there(self):
        self.assertEqual(run(PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, "--device", "host").returncode, 0)
        helper = os.path.join(os.sep, "nonexistent", "helper.so")
        for said, words, env in ((helper, ["--device", "cuda"], {"TUTTI_PERF_CUDA": helper}),
                                 (helper, [], {"TUTTI_PERF_CUDA": helper, "TUTTI_DEVICE": "cuda"}),
                                 ("tutti_perf_backend", ["--device", "cuda"], {"TUTTI_PERF_CUDA": "libm.so.6"}),
                                 ("host device", ["-G", 2], {})):
            with self.subTest(said):
                done = run(PERF, "all_reduce", "-n", 2, "-b", 8, "-e", 8, *words, env=early_exit_environment(**env))
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertEqual(len(re.findall(re.escape(said), done.stderr)), 1, done.stderr)

    def test_network_statistics(self):
        """What is sent is received; the plugin's counters are there, in the text and, a rank each, in the JSON."""
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "stats.json")
            done = run(PERF, "alltoall", "-n", 2, "-t", 2, "--sizes", "8,100000", "--iters", 3, "--stats", "-J", file,
                       env=environment(NCCL_SHM_DISABLE=1, NCCL_NET="Socket"))
            self.good(done, 2)
            with open(file) as f:
                ranks = json.load(f)["network"]
        said = re.findall(r"^# Network, (sent|received) +: (\d+) messages, (\d+) bytes, slots ([\d.]+) % full, "
                          r"([\d.]+) requests under way, ([\d.]+) us each, ([\d.]+) at most, (\d+) retries, \d+ refused, "
                          r".*, (\d+) deep at most$", done.stdout, re.M)
        self.assertEqual([line[0] for line in said], ["sent", "received"], done.stdout)
        self.assertEqual(said[0][1:3], said[1][1:3])
        for name, messages, moved, fill, requests, mean, most, _, deep in said:
            self.assertGreater(int(moved), 2 * 2 * 2 * 3 * 25000)
            self.assertTrue(0 < float(fill) <= 100 and float(requests) >= 1 and float(mean) <= float(most), said)
            self.assertGreaterEqual(int(deep), 1)
            for key, sum_ in (("messages", messages), ("bytes", moved)):
                self.assertEqual(sum(rank[name][key] for rank in ranks), int(sum_))
        self.assertEqual([rank["rank"] for rank in ranks], [0, 1, 2, 3])
        done = run(PERF, "all_reduce", "-n", 2, "--sizes", 8, "--stats", env=environment(NCCL_SHM_DISABLE=0))
        self.assertIn("# Network              : nothing went over a network", done.stdout)

    def test_runs_on_nccl_too(self):
        """With NCCL's library in Tutti's place: nothing of Tutti's own is called."""
        tool = shutil.which("nm")
        if not tool:
            self.skipTest("there is no nm")
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "api", "symbols.txt")) as f:
            known = {"nccl" + word for line in f for word in line.split()}
        needed = {line.split()[-1] for line in run(tool, "-D", "--undefined-only", PERF).stdout.splitlines()}
        sanitized = any(name.startswith(("__asan_", "__tsan_")) for name in needed)
        needed = {name for name in needed if "nccl" in name or "tutti" in name}
        self.assertIn("ncclAllReduce", needed)
        self.assertEqual(needed - known, set())
        library = "/usr/local/cuda/lib64/libnccl.so.2"
        if os.path.exists(library) and not sanitized:  # the sanitizer's runtime wants to be the first library
            done = run(PERF, "--help", env=environment(LD_PRELOAD=library, LD_BIND_NOW=1))
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_wrong_command_lines(self):
        for words, said in ((["all_reduce", "-q"], "-q"), (["all_reduce", "-G", 1, "--device", "host"], "host device"),
                            ([], "no collective"),
                            (["reduce", "-n", 2, "-r", 2], "2 ranks"), (["all_reduce", "-b", "7x"], "7x")):
            done = run(PERF, *words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        done = run(PERF, "all_reduce", "-e", "1000T", "-b", "1000T", "-n", 2)
        self.assertEqual(done.returncode, 3)
        self.assertIn("lower -e", done.stderr)


if __name__ == "__main__":
    main()
