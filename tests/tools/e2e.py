"""Runs the tools as users run them. Arguments: the directory of the programs, the program with faults, and the names of
the tests to run (all by default). A test that lacks what it needs (mpirun, say) is skipped with its reason."""
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

BIN, FAULTY = sys.argv[1], sys.argv[2]
# ThreadSanitizer sleeps for a second when a process ends, and here many do.
os.environ["TSAN_OPTIONS"] = ":".join(filter(None, (os.environ.get("TSAN_OPTIONS"), "atexit_sleep_ms=0")))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PERF = os.path.join(BIN, "tutti-perf")
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "alltoall", "sendrecv"]
ROW = re.compile(r"^\s+\d+\s+\d+\s+\w+\s+\w+\s+-?\d+\s")
LAUNCHER = re.compile(r"^(OMPI_|PMI|PMIX_|SLURM_|MPI_LOCAL|HYDI_|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCHELASTIC_)")


def environment(**more):
    """Without a launcher, and on CPUs also where there are GPUs."""
    plain = {k: v for k, v in os.environ.items() if not LAUNCHER.match(k)}
    plain["TUTTI_DEVICE"] = "host"
    plain.update({k: str(v) for k, v in more.items()})
    return plain


def early_exit_environment(**more):
    """For processes that end in the middle: their threads cannot be joined, and ThreadSanitizer need not say so."""
    options = ":".join(filter(None, (os.environ.get("TSAN_OPTIONS"), "report_thread_leaks=0")))
    return environment(TSAN_OPTIONS=options, **more)


def run(*command, env=None, timeout=120):
    return subprocess.run([str(c) for c in command], env=env or environment(), timeout=timeout, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def rows(text):
    return [line.split() for line in text.splitlines() if ROW.match(line)]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Case(unittest.TestCase):
    def good_rows(self, done, count):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("# Out of bounds values : 0 OK", done.stdout)
        self.assertRegex(done.stdout, r"# Avg bus bandwidth    : [0-9.e+-]+ ")
        table = rows(done.stdout)
        self.assertEqual(len(table), count, done.stdout)
        return table

    def good(self, done, count):
        table = self.good_rows(done, count)
        for row in table:
            self.assertEqual(len(row), 13, row)
            self.assertEqual(row[8], "0", row)
            self.assertIn(row[12], ("0", "N/A"), row)
        return table


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


class Launching(Case):
    def environment_of(self, launcher, rank, size, port):
        if launcher == "torchrun":
            return environment(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size,
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_RUN_ID="none")
        if launcher == "srun":
            return environment(SLURM_PROCID=rank, SLURM_NTASKS=size, SLURM_LOCALID=rank, SLURM_STEP_ID=0,
                               SLURM_JOB_ID=port, SLURM_STEP_NUM_NODES=1)
        if launcher == "pmi":
            return environment(PMI_RANK=rank, PMI_SIZE=size, MPI_LOCALRANKID=rank, MPI_LOCALNRANKS=size)
        return environment()

    def start(self, launcher, size=3, program=PERF, more=(), **faults):
        port = free_port()
        processes = []
        for rank in range(size):
            command = [program, "all_reduce", "-b", "8", "-e", "4K", "-f", "8", "--iters", "3", *more]
            if launcher == "hand":
                command += ["--rank", str(rank), "--nranks", str(size), "--root-addr", f"127.0.0.1:{port}"]
            env = self.environment_of(launcher, rank, size, port - 17 if launcher == "torchrun" else port)
            env.update(faults)
            processes.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE))
        out = []
        for process in processes:
            text, errors = process.communicate(timeout=120)
            out.append(subprocess.CompletedProcess([], process.returncode, text, errors))
        return out

    def test_environments(self):
        for launcher in ("torchrun", "srun", "pmi", "hand"):
            with self.subTest(launcher):
                first, *others = self.start(launcher)
                self.good(first, 4)
                for other in others:
                    self.assertEqual((other.returncode, other.stdout, other.stderr), (0, "", ""))

    def test_threads_too(self):
        first, *_ = self.start("hand", more=("-t", "2"))
        self.good(first, 4)
        self.assertEqual(len(re.findall(r"^#  Rank ", first.stdout, re.M)), 6)

    def mpirun(self, name, *flags):
        program = shutil.which(name)
        if not program:
            self.skipTest(f"there is no {name}")
        self.good(run(program, *flags, "-np", 4, PERF, "all_reduce", "-b", 8, "-e", "4K", "-f", 8, "--iters", 3), 4)

    def test_open_mpi(self):
        version = run("mpirun", "--version").stdout if shutil.which("mpirun") else ""
        if "Open MPI" not in version:
            self.skipTest("mpirun is not Open MPI's")
        self.mpirun("mpirun", "--allow-run-as-root", "--oversubscribe")

    def test_mpich(self):
        self.mpirun("mpirun.mpich")

    def test_mpich_through_a_shell(self):
        program = shutil.which("mpirun.mpich")
        if not program:
            self.skipTest("there is no mpirun.mpich")
        done = run(program, "-np", 3, "sh", "-c", f"{PERF} all_reduce -b 8 -e 8 --iters 2; exit $?")
        self.good(done, 1)

    def test_count_given_twice(self):
        done = run(PERF, "all_reduce", "-n", 2, env=self.environment_of("pmi", 0, 2, 0))
        self.assertEqual(done.returncode, 2)
        self.assertIn("leave out -n", done.stderr)

    def test_who_never_comes(self):
        done = run(PERF, "all_reduce", "--rank", 0, "--nranks", 3, "--root-addr", f"127.0.0.1:{free_port()}",
                   "--join-timeout", 1)
        self.assertEqual(done.returncode, 3)
        self.assertIn("1, 2", done.stderr)

    def test_a_process_that_dies_ends_the_others(self):
        done = self.start("hand", program=FAULTY, TEST_FAULT="kill", TEST_FAULT_RANK="1", TEST_FAULT_CALL="3")
        self.assertEqual(done[1].returncode, -signal.SIGKILL)
        for rank in (0, 2):
            self.assertEqual(done[rank].returncode, 3, done[rank].stderr)


class Faults(Case):
    COMMAND = ("all_reduce", "-n", 3, "-b", 64, "-e", 64, "--iters", 2)

    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.json = os.path.join(self.directory, "out.json")

    def tearDown(self):
        shutil.rmtree(self.directory)

    def fault(self, kind, *more, rank=1, call=0):
        env = early_exit_environment(TEST_FAULT=kind, TEST_FAULT_RANK=rank, TEST_FAULT_CALL=call)
        started = time.monotonic()
        done = run(FAULTY, *self.COMMAND, "-J", self.json, *more, env=env)
        self.assertLess(time.monotonic() - started, 60)
        self.assertEqual(os.listdir(self.directory), ["out.json"], "a temporary file was left")
        with open(self.json) as f:
            return done, json.load(f)

    def test_no_fault(self):
        done, result = self.fault("")
        self.good(done, 1)
        self.assertEqual(result["status"], "ok")
        self.assertIsNone(result["error"])
        self.assertEqual(result["out_of_bounds"], {"count": 0, "okay": True})
        self.assertEqual(len(result["devices"]), 3)
        row = result["results"][0]
        self.assertEqual((row["size"], row["count"], row["type"], row["redop"]), (64, 16, "float", "sum"))
        self.assertEqual(row["out_of_place"]["nwrong"], 0)
        self.assertGreater(row["in_place"]["time"], 0)

    def test_wrong_data(self):
        for kind, wrong in (("corrupt", 1), ("skip", 16)):
            with self.subTest(kind):
                done, result = self.fault(kind)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(rows(done.stdout)[0][8], str(wrong))
                self.assertRegex(done.stdout, r"# Out of bounds values : \d+ FAILED")
                self.assertIn("rank 1: all_reduce of 16 elements, float sum: output element", done.stderr)
                self.assertNotIn("ending the others", done.stderr)
                self.assertEqual(result["status"], "failed")
                self.assertEqual(result["results"][0]["out_of_place"]["nwrong"], wrong)
                self.assertFalse(result["out_of_bounds"]["okay"])

    def test_an_error_of_one_rank(self):
        for rank in (0, 2):
            done, result = self.fault("error", rank=rank, call=3)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(f"rank {rank}: all_reduce: ", done.stderr)
            self.assertIn("ending the others", done.stderr)
            self.assertEqual(result["status"], "error")
            self.assertIn(f"rank {rank}: all_reduce", result["error"])

    def test_a_killed_rank_is_named(self):
        done, result = self.fault("kill", rank=2, call=3)
        self.assertEqual(done.returncode, 128 + 9, done.stderr)
        self.assertRegex(done.stderr, r"rank 2 \(process \d+\) was killed by signal 9")
        self.assertEqual(result["status"], "error")

    def test_timeout(self):
        done, result = self.fault("hang", "-T", 2, call=2)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("-T", done.stderr)
        self.assertEqual(result["status"], "error")

    def test_error_before_the_run(self):
        done = run(PERF, "all_reduce", "-J", self.json, "--rank", 0, "--nranks", 2, "--root-addr",
                   f"127.0.0.1:{free_port()}", "--join-timeout", 1)
        self.assertEqual(done.returncode, 3)
        with open(self.json) as f:
            self.assertEqual(json.load(f)["status"], "error")
        done = run(PERF, *self.COMMAND, "-J", "/nonexistent/x.json")
        self.assertEqual(done.returncode, 3)
        self.assertIn("/nonexistent/x.json", done.stderr)

    def interrupted(self, send):
        process = subprocess.Popen([PERF, "all_reduce", "-n", "3", "-b", "8", "-e", "8", "-N", "0", "-J", self.json],
                                   env=early_exit_environment(), start_new_session=True, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not ROW.match(process.stdout.readline()):
            self.assertIsNone(process.poll())
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as f:
            children = [int(p) for p in f.read().split()]
        self.assertEqual(len(children), 3)
        send(process, children)
        _, errors = process.communicate(timeout=30)
        time.sleep(0.1)
        self.assertFalse([p for p in children if alive(p)], "processes were left behind")
        return process.returncode, errors

    def test_ctrl_c(self):
        status, errors = self.interrupted(lambda p, _: os.killpg(p.pid, signal.SIGINT))
        self.assertEqual((status, errors), (130, ""))
        with open(self.json) as f:
            self.assertEqual(json.load(f)["status"], "interrupted")

    def test_ctrl_c_reaches_one_first(self):
        """The others, or who waits for them all, have lost it before the signal reaches them."""
        def send(process, children):
            os.kill(process.pid, signal.SIGSTOP)
            os.kill(children[1], signal.SIGINT)
            time.sleep(0.03)
            for child in children[0], children[2], process.pid:
                os.kill(child, signal.SIGINT)
            os.kill(process.pid, signal.SIGCONT)
        self.assertEqual(self.interrupted(send), (130, ""))
        self.assertEqual(self.interrupted(lambda _, children: os.kill(children[1], signal.SIGINT))[0], 130)
        with open(self.json) as f:
            self.assertEqual(json.load(f)["status"], "interrupted")

    def test_terminated(self):
        status, _ = self.interrupted(lambda p, _: p.terminate())
        self.assertEqual(status, 128 + signal.SIGTERM)

    def test_parent_killed(self):
        self.interrupted(lambda p, _: p.kill())

    def test_child_killed(self):
        status, errors = self.interrupted(lambda p, children: os.kill(children[1], signal.SIGKILL))
        self.assertEqual(status, 128 + signal.SIGKILL)
        self.assertIn("was killed by signal 9", errors)


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


class Info(Case):
    INFO = os.path.join(BIN, "tutti-info")

    def test_text(self):
        done = run(self.INFO)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^library:\ttutti\n\tversion:\t+\d+\.\d+\.\d+\n\tnccl_api:\t+2\.28\.9$")
        self.assertRegex(done.stdout, r"(?m)^device:\thost$")
        self.assertRegex(done.stdout, r"(?m)^net_plugin:\tlibtutti-net-socket\.so$")
        self.assertRegex(done.stdout, r"(?m)^param:\tNCCL_DEBUG\n\tvalue:\t+-\n\torigin:\t+default$")

    def test_plugins(self):
        plugins = {p["name"]: p for p in json.loads(run(self.INFO, "--json").stdout)["net_plugins"]}
        tcp = plugins["libtutti-net-socket.so"]
        self.assertTrue(os.path.isfile(tcp["path"]), tcp)
        self.assertEqual(tcp["abi_versions"], ["v8", "v9", "v10", "v11", "v12"])
        self.assertEqual(tcp["abi_in_use"], 12)
        env = environment(NCCL_NET_PLUGIN="no-such-thing")
        done = run(self.INFO, "-P", "--json", env=env)
        missing = {p["name"]: p for p in json.loads(done.stdout)["net_plugins"]}["no-such-thing"]
        self.assertEqual((missing["state"], missing["asked_by"]), ("passed over", "NCCL_NET_PLUGIN"))
        self.assertTrue(missing["reason"])

    def test_params(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
            conf.write("NCCL_BUFFSIZE=1048576\n")
            conf.flush()
            env = environment(NCCL_CONF_FILE=conf.name, NCCL_ALGO="ring")
            params = {p["name"]: p for p in json.loads(run(self.INFO, "-E", "-J", env=env).stdout)["params"]}
            self.assertEqual((params["NCCL_ALGO"]["value"], params["NCCL_ALGO"]["origin"]), ("ring", "environment"))
            self.assertEqual(params["NCCL_BUFFSIZE"]["value"], 1048576)
            self.assertEqual(params["NCCL_BUFFSIZE"]["file"], conf.name)
            self.assertEqual(params["NCCL_PROTO"]["origin"], "default")
            self.assertTrue(all(p["help"] for p in params.values()))

    def test_malformed_parameter(self):
        done = run(self.INFO, "-J", env=environment(NCCL_BUFFSIZE="many"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("NCCL_BUFFSIZE", json.loads(done.stdout)["problem"])
        self.assertIn("many", done.stderr)

    def test_wrong_flags(self):
        self.assertEqual(run(self.INFO, "-q").returncode, 2)
        self.assertEqual(run(self.INFO, "word").returncode, 2)


class Tune(Case):
    TUNE = os.path.join(BIN, "tutti-tune")

    def tune(self, *words, status=0):
        done = run(self.TUNE, *words)
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return done.stderr if status else done.stdout

    def table(self, *words):
        listed = json.loads(self.tune("programs", *words, "--json"))["programs"]
        return {(p["collective"], p["algorithm"]): p for p in listed}

    def test_all_programs_are_proved(self):
        for ranks, nodes in ((1, 1), (5, 1), (8, 1), (8, 2)):
            for pair, program in self.table("-n", ranks, "--nodes", nodes).items():
                with self.subTest(pair=pair, ranks=ranks, nodes=nodes):
                    self.assertTrue(program["proved"] or not program["exists"], program)

    def test_counts(self):
        """Steps, messages and data of the busiest rank, as everybody knows them."""
        table = self.table("-n", 16)
        known = {("all_reduce", "ring"): (30, 30, 1.875), ("all_reduce", "one_shot"): (1, 15, 15),
                 ("all_reduce", "two_shot"): (2, 30, 1.875), ("all_reduce", "tree"): (8, 4, 2),
                 ("all_gather", "ring"): (15, 15, 15 / 16), ("all_gather", "direct"): (1, 15, 15 / 16),
                 ("reduce_scatter", "ring"): (15, 15, 15 / 16), ("broadcast", "ring"): (15, 1, 1),
                 ("reduce", "direct"): (1, 1, 1), ("scatter", "direct"): (1, 15, 15 / 16),
                 ("gather", "direct"): (1, 1, 1 / 16), ("alltoall", "direct"): (1, 15, 15 / 16),
                 ("sendrecv", "p2p"): (1, 1, 1)}
        for pair, counts in known.items():
            program = table[pair]
            self.assertEqual((program["steps"], program["messages"], program["data"]), counts, pair)
        few = self.table("all_gather", "-n", 16, "--pieces", 16)
        self.assertEqual(few["all_gather", "pat"]["steps"], 4)
        self.assertEqual(few["all_gather", "pat"]["messages"], 4)

    def test_programs(self):
        text = self.tune("programs", "all_reduce", "--algo", "Two_Shot", "-n", 3, "--rank", 1)
        self.assertIn("AllReduce TWO_SHOT: rank 1 of 3, parts 3, input 1, output 1\n", text)
        self.assertIn("  1       recv 0 + input[1] + recv 2 -> output[1], send 2, send 0  final\n", text)
        self.assertNotIn("rank 0 of 3", text)
        self.assertIn("proved: 3 ranks, 2 loops, 8 slots, in place and out of place\n", text)
        self.assertEqual(self.tune("programs", "all_reduce", "-a", "ring", "-n", 3).count("AllReduce RING"), 3)
        self.assertIn("rank 1 takes no part", self.tune("programs", "sendrecv", "-n", 3, "-r", 2, "-p", 0))
        self.assertIn("root 2", self.tune("programs", "gather", "-a", "direct", "-n", 3, "--root", 2, "--rank", 0))
        self.assertNotEqual(self.tune("programs", "all_reduce", "-a", "tree", "-c", 0),
                            self.tune("programs", "all_reduce", "-a", "tree", "-c", 1))

    def test_json(self):
        shown = json.loads(self.tune("programs", "all_reduce", "-a", "ring", "-n", 4, "--json"))
        self.assertTrue(shown["proved"])
        self.assertEqual([p["rank"] for p in shown["programs"]], [0, 1, 2, 3])
        second = shown["programs"][2]
        self.assertEqual((second["parts"], second["peers"]), (4, [1, 3]))
        repeated = second["strands"][0][1]
        self.assertEqual((repeated["op"], repeated["repeat"], len(repeated["operands"])), ("data", 2, 3))
        self.assertEqual(repeated["operands"][0], {"kind": "receive", "buffer": "result", "peer": 1, "start": 0,
                                                   "stride": -1, "modulo": 4, "count": 1, "step": 0})

    def test_not_proved(self):
        """A ring of four in which each rank holds a message and wants to send another, and has one slot."""
        said = self.tune("programs", "all_reduce", "-a", "ring", "-n", 4, "--slots", 1, status=1)
        self.assertIn("not proved", said)
        self.assertIn("deadlock", said)
        self.assertIn("deadlock", self.tune("simulate", "all_reduce", "-a", "ring", "-n", 4, "--slots", 1, status=1))

    def test_picture(self):
        picture = self.tune("programs", "all_reduce", "-a", "ring", "-n", 4, "-l", 1, "--picture")
        self.assertIn("rank 2      sAAAffr\n", picture)
        self.assertIn("A reduces and sends\n", picture)
        self.assertNotIn("semaphore", picture)
        tree = ("programs", "all_reduce", "-a", "tree", "-n", 4, "-l", 2, "--picture")
        self.assertIn("rank   0.0  ..++\n        .1  wwwss\n", self.tune(*tree))
        self.assertIn("rank   0.0  ..+ ....+\n", self.tune(*tree, "--sequential"))

    def test_svg(self):
        with tempfile.TemporaryDirectory() as directory:
            for i, command in enumerate((["programs", "all_gather", "-a", "pat", "-n", 5],
                                         ["simulate", "all_reduce", "-a", "tree", "-n", 4, "-b", "64K"])):
                path = os.path.join(directory, f"{i}.svg")
                self.tune(*command, "--svg", path)
                root = xml.etree.ElementTree.parse(path).getroot()
                name = "{http://www.w3.org/2000/svg}"
                width, height = float(root.get("width")), float(root.get("height"))
                boxes = [b for b in root.iter(name + "rect") if b.find(name + "title") is not None]
                self.assertGreater(len(boxes), 20)
                for box in boxes:
                    self.assertLessEqual(float(box.get("x")) + float(box.get("width")), width)
                    self.assertLessEqual(float(box.get("y")) + float(box.get("height")), height)
                words = [t.text for t in root.iter(name + "text")]
                self.assertTrue(any(w.startswith("rank 3") for w in words), words)
                self.assertIn("sends", words)
            said = self.tune("programs", "all_gather", "-a", "ring", "--svg", "/nowhere/x.svg", status=3)
            self.assertIn("/nowhere/x.svg", said)

    def predict(self, collective, *flags):
        shown = json.loads(self.tune("simulate", collective, "--json", *flags))
        return {a["algorithm"]: a for a in shown["algorithms"]}

    def test_simulate(self):
        """A message costs 3 us and 1 us for each 1000 bytes; instructions nothing."""
        flags = ["-n", 4, "-b", 4096, "--latency", 3, "--bandwidth", 1, "--instruction", 0]
        found = self.predict("all_reduce", *flags)
        self.assertAlmostEqual(found["ring"]["strands_us"], 6 * (3 + 1.024))
        self.assertAlmostEqual(found["two_shot"]["strands_us"], 2 * (3 + 3 * 1.024))
        self.assertEqual(found["ring"]["bytes"], 6 * 1024)
        self.assertAlmostEqual(self.predict("all_reduce", *flags, "--shared-by", "pair")["two_shot"]["strands_us"],
                               2 * (3 + 1.024))
        self.assertAlmostEqual(self.predict("all_reduce", *flags, "--instruction", 1)["ring"]["strands_us"],
                               6 * (3 + 1.024) + 7)
        far = self.predict("broadcast", *flags, "--nodes", 2, "--far-latency", 50, "--far-bandwidth", 0.5)
        self.assertAlmostEqual(far["ring"]["strands_us"], 2 * (3 + 4.096) + 50 + 8.192)
        tree = self.predict("all_reduce", "-n", 16, "-b", "8M")["tree"]
        self.assertGreater(tree["sequential_us"], 1.5 * tree["strands_us"])
        self.assertEqual(tree["channels"], 2)

    def document(self):
        with open(os.path.join(ROOT, "docs", "programs.md")) as f:
            return f.read()

    def decide(self, *words, **env):
        done = run(self.TUNE, "decide", *words, "--json", env=environment(**env))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    @staticmethod
    def chosen(choice):
        return choice["algorithm"], choice["protocol"], choice["channels"]

    def test_decide(self):
        """With the table tuner: what a rule asks for and can have is used, everything else stays as without it."""
        plain = self.decide("all_reduce", "-n", 4, "-b", 64, "-e", "16K", "-f", 16)
        self.assertEqual([d["bytes"] for d in plain["decisions"]], [64, 1024, 16384])
        self.assertIsNone(plain["tuner"])
        for decision in plain["decisions"]:
            self.assertIsNone(decision["tuner_said"])
            self.assertEqual(decision["used"], decision["without_tuner"])
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as rules:
            rules.write("allreduce,0,64,ring,simple,3,-1,-1\nallreduce,1024,1024,collnet_chain,simple,-1,-1,-1\n"
                        "allreduce,16384,-1,tree,ll,-1,1,4\n")
            rules.flush()
            tuned = self.decide("all_reduce", "-n", 4, "-b", 64, "-e", "16K", "-f", 16,
                                NCCL_TUNER_CONFIG_FILE=rules.name)
            self.assertEqual(tuned["tuner"], "Tutti")
            for one, other in zip(plain["decisions"], tuned["decisions"]):
                self.assertEqual(one["without_tuner"], other["without_tuner"])
            first, second, third = tuned["decisions"]
            self.assertEqual(self.chosen(first["used"]), ("ring", "SIMPLE", 3))
            self.assertIn("RING with SIMPLE, 3 channels", first["tuner_said"])
            self.assertEqual(self.chosen(second["used"]), self.chosen(plain["decisions"][1]["used"]))
            self.assertEqual(self.chosen(third["used"])[:2], ("tree", "LL"))
            # Other shapes have other rules; NCCL_ALGO wins over all of them.
            spread = self.decide("all_reduce", "-n", 4, "-N", 2, "-b", "16K", NCCL_TUNER_CONFIG_FILE=rules.name)
            self.assertEqual(self.chosen(spread["decisions"][0]["used"]),
                             self.chosen(spread["decisions"][0]["without_tuner"]))
            forced = self.decide("all_reduce", "-n", 4, "-b", 64, NCCL_TUNER_CONFIG_FILE=rules.name, NCCL_ALGO="tree")
            self.assertEqual(forced["decisions"][0]["used"]["algorithm"], "tree")
            text = run(self.TUNE, "decide", "all_reduce", "-n", 4, "-b", 64,
                       env=environment(NCCL_TUNER_CONFIG_FILE=rules.name)).stdout
            self.assertRegex(text, r"Tuner: Tutti \(v6\), /.*libtutti-tuner\.so")
            self.assertRegex(text, r"(?m)^ +64 .*RING with SIMPLE, 3 channels +RING SIMPLE 3 +the tuner's choice$")
            rules.write("allreduce,0,64,rign,simple,3,-1,-1\n")
            rules.flush()
            broken = run(self.TUNE, "decide", "all_reduce", env=environment(NCCL_TUNER_CONFIG_FILE=rules.name))
            self.assertEqual(broken.returncode, 3)
            self.assertIn(f"{rules.name}:4:16: \"rign\" as algorithm is none of", broken.stderr)

    def gpus(self, *words, **env):
        """What is chosen for one size on GPUs."""
        return self.decide(*words, "--gpus", **env)["decisions"][0]["used"]

    def test_decide_for_gpus(self):
        """As tests/tuning/test_gpu.c has it of the core; environment and shape count as they do in a communicator."""
        all_reduce = ("all_reduce", "-n", 4, "-b")
        for size, expected in (("8K", ("one_shot", "LL", 16)), ("32K", ("one_shot", "LL128", 32)),
                               ("512K", ("two_shot", "LL128", 64)), ("512M", ("ring", "SIMPLE", 64))):
            self.assertEqual(self.chosen(self.gpus(*all_reduce, size)), expected)
        self.assertEqual(self.gpus(*all_reduce, "8K", NCCL_MAX_NCHANNELS=2)["channels"], 2)
        self.assertNotEqual(self.gpus(*all_reduce, "32K", NCCL_P2P_DISABLE=1)["protocol"], "LL128")
        self.assertNotEqual(self.gpus(*all_reduce, "32K", "-N", 2)["protocol"], "LL128")
        self.assertEqual(self.gpus(*all_reduce, "512M", "-N", 2)["channels"], 4)
        self.assertGreater(self.gpus(*all_reduce, "8M", "-N", 2)["predicted_us"],
                           4 * self.gpus(*all_reduce, "8M")["predicted_us"])
        mapped = self.gpus("alltoall", "-n", 4, "-b", "1G", "--mapped")
        self.assertEqual((mapped["algorithm"], mapped["copy_engines"]), ("mapped", True))
        for words, env in ((("--mapped",), {"TUTTI_COPY_ENGINES": 0}), (("--mapped",), {"NCCL_P2P_DIRECT_DISABLE": 1}),
                           ((), {})):
            self.assertFalse(self.gpus("alltoall", "-n", 4, "-b", "1G", *words, **env)["copy_engines"])
        small = self.gpus("alltoall", "-n", 4, "-b", "16M", "--mapped", TUTTI_COPY_ENGINES=1)
        self.assertEqual((small["copy_engines"], small["channels"]), (True, 1))
        text = run(self.TUNE, "decide", "gather", "-n", 4, "-b", 64, "-g", env=environment()).stdout
        self.assertIn("gather on 4 ranks of 1 node, GPUs, without CollNet and NVLS", text)

    def test_documented_output(self):
        """docs/programs.md shows what the tool prints."""
        blocks = re.findall(r"(?s)```\n\$ tutti-tune ([^\n]*)\n(.*?)```", self.document())
        self.assertGreaterEqual(len(blocks), 4)
        for command, shown in blocks:
            with self.subTest(command):
                self.assertEqual(self.tune(*command.split()), shown)

    def test_documented_example(self):
        with open(os.path.join(ROOT, "tests", "program", "test_example.c")) as f:
            tested = re.search(r"(?s)/\* example begins \*/\n(.*?)/\* example ends \*/", f.read()).group(1)
        self.assertIn(f"```c\n{tested}```", self.document())

    def compare(self, table, rows, columns, **sizes):
        for collective, algorithm, *formulas in rows:
            for name, formula in zip(columns, formulas):
                with self.subTest(collective=collective, algorithm=algorithm, what=name, **sizes):
                    most = formula.startswith("<= ")
                    value = eval(formula[3 * most:], {"min": min, "log2": lambda n: (n - 1).bit_length(), **sizes})
                    found = table[collective, algorithm][name]
                    if most:
                        self.assertLessEqual(found, value)
                    else:
                        self.assertAlmostEqual(found, value, places=6)

    def test_documented_tables(self):
        columns, cell = ("steps", "messages", "data", "multicast"), r" `([^|]*)` \|"
        plain, nodes = (re.findall(rf"(?m)^\| (\w+) \| (\w+) \|{cell * n}(?! `)", self.document()) for n in (3, 4))
        for n in range(2, 17):
            table = self.table("-n", n)
            self.compare(table, plain, columns[:3], n=n)
            self.compare(table, [row for row in nodes if row[1] == "nvls"], columns, n=n)
        for m, k in ((1, 4), (2, 2), (2, 4), (3, 3), (4, 2), (4, 4), (5, 2)):
            table = self.table("-n", m * k, "--nodes", m)
            self.compare(table, [row for row in nodes if row[1] != "nvls"], columns, n=m * k, m=m, k=k)
        self.assertEqual({row[:2] for row in plain + nodes}, set(table), "the document's tables and what there is")

    def test_refusals(self):
        for words, said in ((["programs", "all_reduce", "-a", "pat"], "tree"), (["programs", "sorting"], "sorting"),
                            (["programs", "all_reduce", "-P"], "--algo"), (["programs", "--rank", 1], "--rank"),
                            (["programs", "all_reduce", "-a", "ring", "-n", 4, "--rank", 4], "--rank 4"),
                            (["programs", "all_reduce", "-r", 1], "no root"), (["programs", "-n", "many"], "many"),
                            (["programs", "-b", 8], "--bytes"), (["simulate"], "all_reduce"), ([], "--help"),
                            (["simulate", "reduce", "--latency", "-1"], "--latency -1"), (["tune"], "tune"),
                            (["simulate", "reduce", "--bytes", "1.0001"], "1.0001"), (["programs", "-z"], "-z"),
                            (["programs", "gather", "--nodes", 9], "--nodes 9"), (["programs", "-n"], "value"),
                            (["programs", "gather", "--json", "--picture"], "--json"),
                            (["simulate", "reduce", "--shared-by", "all"], "node"),
                            (["programs", "gather", "scatter"], "scatter"), (["decide"], "all_reduce"),
                            (["decide", "sendrecv"], "one algorithm"), (["decide", "reduce", "-N", 9], "--nodes 9"),
                            (["decide", "reduce", "-m"], "--mapped"), (["simulate", "reduce", "-g"], "--gpus"),
                            (["decide", "reduce", "-b", 8, "-e", 4], "--end"), (["simulate", "reduce", "-e", 4], "--end"),
                            (["decide", "reduce", "-S", "file"], "--svg"), (["decide", "reduce", "-f", 1], "--factor 1")):
            with self.subTest(words):
                self.assertIn(said, self.tune(*words, status=2))
        self.assertIn("usage: tutti-tune programs", self.tune("--help"))


class Topo(Case):
    TOPO = os.path.join(BIN, "tutti-topo")
    MACHINE = """<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:21:00.0" count="4" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="a" dev="0" speed="100000" port="1" guid="0x1" maxconn="64" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ff00" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:21:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1" unknown="kept">
        <nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""

    def topo(self, *words, status=0, text=MACHINE, **variables):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(text)
            file.flush()
            done = run(self.TOPO, *(file.name if w == "FILE" else w for w in words), env=environment(**variables))
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return done.stderr.replace(file.name, "FILE") if status else done.stdout

    RINGS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="30" speedinter="5" typeintra="NVL" typeinter="PXN" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
    <channel><net dev="0"/><gpu dev="1"/><gpu dev="0"/><net dev="0"/></channel>
  </graph>
</graphs>
"""

    def graph(self, *words, rings=RINGS, **more):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(rings)
            file.flush()
            return self.topo("graph", "FILE", "--load", file.name, *words, **more).replace(file.name, "GRAPHS")

    def test_graph(self):
        shown = self.graph("--graph", "ring")
        self.assertIn("ring of the file: 2 channels, each 30 GB/s between GPUs (NVL); together 60\n", shown)
        self.assertIn("  ring 0: 0 1 -> 0\n  ring 1: 1 0 -> 1\n", shown)
        self.assertIn("        60 of 80        75%  2 links DEV -NVL-> DEV, such as DEV 0000:11:00.0 -NVL-> DEV 0000:21:00.0\n", shown)
        self.assertNotIn("tree", shown)
        shown = self.graph("-g", "ring", "--links", "--nodes", 2)
        self.assertIn(", 5 to NETs (PXN); together 60 and 10\n", shown)
        self.assertIn("; by the same NIC as it came\n  ring 0: net 0 -> 0 1 -> net 0\n", shown)
        # Of both rings, what comes in at rank 1 goes by the CPUs, and what it sends through GPU 0.
        self.assertIn("        35 of 80        44%  DEV 0000:21:00.0 -NVL-> DEV 0000:11:00.0\n", shown)
        self.assertIn("        10 of 12.5      80%  NET 0 -NET-> NIC 0000:12:00.0\n", shown)
        self.assertIn("         5 of 22        23%  CPU 0 -SYS-> CPU 1\n", shown)
        self.assertIn("more than it carries", self.graph(rings=self.RINGS.replace('"30"', '"300"')))
        with tempfile.TemporaryDirectory() as folder:
            dump = os.path.join(folder, "dump.xml")
            self.graph("--dump", dump, "-N", 2)
            with open(dump) as file:
                again = file.read()
            # A link is followed, not replaced; /dev/stdout is one.
            os.symlink(dump, dump + ".link")
            os.truncate(dump, 0)
            self.graph("--dump", dump + ".link", "-N", 2)
            self.assertTrue(os.path.islink(dump + ".link"))
            with open(dump) as file:
                self.assertEqual(file.read(), again)
        self.assertIn('      <net dev="0"/>\n      <gpu dev="0"/>\n      <gpu dev="0x1"/>\n', again)
        found = re.sub(r"  searched .*\n", "", self.graph("-N", 2)).replace("tree:", "tree of the file:")
        self.assertEqual(self.graph("-N", 2, rings=again), found)
        self.assertEqual(self.graph(rings=self.RINGS.replace("0x", "").replace('dev="1"', 'dev="2"', 1), status=1),
                         'tutti-topo: GRAPHS:3: <gpu dev="2">: no rank is on device 0x2 of this machine; name the device of one\n')

    BOTH = RINGS.replace("</graphs>", """  <graph id="1" pattern="1" crossnic="0" nchannels="2" speedintra="20" speedinter="5" typeintra="NVL" typeinter="PXN" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
    <channel><net dev="0"/><gpu dev="1"/><gpu dev="0"/><net dev="0"/></channel>
  </graph>
</graphs>
""")

    def join(self, *words, graphs=BOTH, **more):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(graphs)
            file.flush()
            return self.topo("join", "FILE", "--load", file.name, *words, **more)

    def test_join(self):
        joined = self.join("--nodes", 3)
        self.assertIn("3 machines of 2 ranks, 6 ranks\n"
                      "collectives: 4 channels, of 2 that were searched; 2 different rings\n"
                      "rings: 30 GB/s inside (NVL), 5 outside (PXN)\n"
                      "trees: 20 GB/s inside (NVL), 5 outside (PXN), depth 2\n"
                      "sends and receives: 4 channels, 1 a peer; 2 ranks go to a group together\n"
                      "rings between machines: 6 ways from a NET to the one with the same number, 0 to another\n", joined)
        self.assertIn(": 4 rings visit each rank and enter each machine once; 4 trees reach each rank once, and the second "
                      "ones mirror the first; 6 ranks meet each rank once\n", joined)
        # Machines 0 above 2 above 1, and 1 above 0 above 2. The first child is at the second rank of a chain.
        self.assertIn("ring 0: 0 1 | 2 3 | 4 5\nring 1: 0 | 3 2 | 5 4 | 1\n"
                      "tree 0: 0 (1 4 (5 (2 (3))))\ntree 1: 1 (0 5 (4 (3 (2))))\n"
                      "tree 2: 2 (3 0 (1 (4 (5))))\ntree 3: 3 (2 1 (0 (5 (4))))\n", joined)
        self.assertTrue(self.join("--nodes", 3, "--channel", 3).endswith(
            "ring 3: 0 | 3 2 | 5 4 | 1\ntree 3: 3 (2 1 (0 (5 (4))))\n"))
        self.assertTrue(self.join("--nodes", 3, "--rank", 5, "--channel", 0).endswith(
            "rank 5: machine 2, number 1 of 2 there\nring 0: place 5, from 4, to 0\n"
            "tree 0: below 4, above 2\nsends to 5 4 1 0 3 2\n"))
        self.assertIn("1 machines of 2 ranks", self.join())
        self.assertRegex(self.join(graphs=self.RINGS), r"rings: 30 GB/s inside .*\ntrees: ")  # the rest is searched
        self.assertIn("3 machines of 2 ranks, 6 ranks\n", self.topo("join", "FILE", "--nodes", 3))
        split = self.topo("join", "FILE", "--nodes", 3, NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1)
        self.assertIn("6 machines of 1 ranks, 6 ranks\n", split)
        self.assertIn("ring 0: 0 | 1 | 2 | 3 | 4 | 5\n", split)
        self.assertIn("collectives: 3 channels", self.join(NCCL_MAX_NCHANNELS=3))
        large = self.join("--nodes", 4096)
        self.assertIn("8192 ranks", large)
        self.assertIn("64 ranks meet each rank once", large)
        self.assertNotIn("ring 0:", large)

    def test_join_refuses(self):
        for words, said in ((["--rank", 6], "--rank 6: there are 6, from 0"), (["--channel", 4], "--channel 4: there are 4"),
                            (["-R", "0"], "no rank is on device 0x1")):
            self.assertIn(said, self.join("--nodes", 3, *words, status=1))
        self.assertIn("NCCL_MAX_NCHANNELS", self.join(NCCL_MAX_NCHANNELS="many", status=1))
        self.assertIn("--nodes", self.join("--nodes", 0, status=2))

    def test_search(self):
        shown = self.topo("graph", "FILE")
        self.assertRegex(shown, r"^ring: \d+ channels?, each [\d.]+ GB/s between GPUs \(NVL\); together [\d.]+\n  rings")
        self.assertRegex(shown, r"\n  ring 0: (0 1 -> 0|1 0 -> 1)\n")
        self.assertRegex(shown, r"\n  searched under \d+ different limits, \d+ places looked at")
        self.assertRegex(shown, r"\ntree: .*\n  chains(;.*)?\n  tree 0: (0 1|1 0)\n")
        self.assertIn("\nnvls: none: multicast needs sm 90\n", shown)
        self.assertIn("\nnvls: none: NCCL_NVLS_ENABLE is 0\n", self.topo("graph", "FILE", NCCL_NVLS_ENABLE=0))
        self.assertIn("\ncollnetchain: none: NCCL_COLLNET_ENABLE is not 1\n", shown)
        self.assertIn("\ncollnetdirect: none: no NET reduces\n", self.topo("graph", "FILE", "-N", 2, NCCL_COLLNET_ENABLE=1))
        shown = self.topo("graph", "FILE", "-N", 3)
        self.assertRegex(shown, r"\n  ring 0: net 0 -> (0 1|1 0) -> net 0\n")
        self.assertNotIn("more than it carries", shown)
        some = self.graph("-N", 3)
        self.assertRegex(some, r"^ring of the file: 2 channels")
        self.assertEqual(some[some.index("\ntree:"):], shown[shown.index("\ntree:"):])
        self.assertIn("NCCL_CROSS_NIC=3", self.topo("graph", "FILE", status=1, NCCL_CROSS_NIC=3))

    def test_some_ranks(self):
        self.assertIn("1 GPUs, 1 NETs", self.topo("show", "--ranks", "1", "FILE"))
        self.assertIn("GPU 1 ", self.topo("show", "--ranks", "1", "FILE"))
        self.assertEqual(self.topo("show", "-R", "0-1", "FILE"), self.topo("show", "FILE"))
        self.assertNotIn('rank="0"', self.topo("copy", "-R", "1", "FILE"))
        for ranks, said in (("0,2", "FILE has no <gpu> of rank 2"), ("", "must list ranks"), ("1-0", "must list ranks"),
                            ("0,x", "must list ranks"), ("-1", "must list ranks")):
            self.assertIn(said, self.topo("show", "--ranks=" + ranks, "FILE", status=1))

    def test_show(self):
        shown = self.topo("show", "FILE")
        self.assertIn("2 GPUs, 1 NETs, 2 CPUs, 1 hosts; best path between GPUs 80 GB/s, links of a GPU together 80 GB/s\n", shown)
        self.assertIn("CPU 1  x86_64 Intel, Sapphire Rapids, 8 processors\n  + SYS 22 to CPU 0\n"
                      "  - 24 - DEV 0000:21:00.0  sm 80, GPUDirect\n    + NVL 80 to DEV 0000:11:00.0, 4 links\n"
                      "    GPU 1  (device 1)\n", shown)
        self.assertIn("      NET 0  a, 12.5 GB/s, port 1, GPUDirect\n", shown)
        self.assertIn("best path from a GPU to a NET 12.5 GB/s", self.topo("show", "--nodes", 2, "FILE"))
        alone = self.topo("show", "--rank", 1, "FILE", NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1)
        self.assertIn("1 more GPUs of the file are reached over the network only\n", alone)
        self.assertNotIn("GPU 0 ", alone)

    def test_paths(self):
        shown = self.topo("paths", "--steps", "FILE")
        self.assertRegex(shown, r"from NET +GPU 0 +GPU 1 *\nNET 0 +PIX 12.5 +SYS 12.5 *\n")
        self.assertIn("GPU 1 -> NET 0: PXN 12.5: -LOC-> DEV 0000:21:00.0 -NVL-> DEV 0000:11:00.0 -LOC-> GPU 0 "
                      "-LOC-> DEV 0000:11:00.0 -PCI-> PCI 0000:10:00.0 -PCI-> NIC 0000:12:00.0 -NET-> NET 0\n", shown)
        self.assertIn("GPU 1: nearest CPU 1, NET 0 by GPU 0; GPUDirect both ways\n", shown)
        self.assertRegex(self.topo("paths", "FILE", NCCL_PXN_DISABLE=1), r"\nGPU 1 +SYS 12.5 *\n")

    def test_explain(self):
        why = self.topo("explain", "FILE", 0, "gpu1")
        self.assertIn("best path: NVL, 80 GB/s: GPU 0 -LOC-> DEV 0000:11:00.0 -NVL-> DEV 0000:21:00.0 -LOC-> GPU 1\n", why)
        self.assertIn("peer memory: yes: NVL is no farther than PXB, which is allowed by default (NCCL_P2P_LEVEL)\n", why)
        self.assertIn("\n=> peer memory\n", why)
        why = self.topo("explain", "FILE", 0, 1, NCCL_P2P_DISABLE=1)
        self.assertIn("best path: NVL, 80 GB/s", why)
        self.assertIn("peer memory: no: NCCL_P2P_DISABLE is 1\n", why)
        self.assertIn("network instead: no: they reach NETs without a CPU at 12.5 and 0 GB/s, each other at 24 ", why)
        self.assertIn("\n=> memory of the host\n   by this path: PHB, 24 GB/s: GPU 0 -LOC-> DEV 0000:11:00.0 -NVL-> "
                      "DEV 0000:21:00.0 -PCI-> CPU 1 -PCI-> DEV 0000:21:00.0 -LOC-> GPU 1\n", why)  # that of the second
        why = self.topo("explain", "FILE", 1, 0, NCCL_P2P_LEVEL="LOC")
        self.assertIn("peer memory: no: NVL is farther than LOC, which NCCL_P2P_LEVEL allows\n", why)
        why = self.topo("explain", "FILE", 0, 1, NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1)
        self.assertIn("memory of the host: no: NCCL_SHM_DISABLE is 1\n=> network\n"
                      "   GPU 0 sends by NET 0 (GPUDirect), GPU 1 receives by NET 0 (memory of the host)\n"
                      "   GPU 1 sends by NET 0 (memory of the host), GPU 0 receives by NET 0 (GPUDirect)\n", why)
        self.assertEqual(self.topo("explain", "FILE", 1, 1), "a rank reaches itself by its own memory\n")

    def test_explain_network(self):
        # Without NVLink, and with a NIC for each GPU on its switch, the network is better than the way between CPUs.
        below = ('<pci busid="0000:20:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">'
                 '<pci busid="0000:22:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16"><nic>'
                 '<net dev="2" speed="400000" guid="0x2" gdr="1"/></nic></pci>')
        apart = re.sub(r" *<nvlink.*\n", "", self.MACHINE).replace('modelid="143"', 'modelid="85"')
        apart = apart.replace('<pci busid="0000:21:00.0"', below + '<pci busid="0000:21:00.0"')
        apart = apart.replace("  </cpu>\n</system>", "</pci></cpu></system>")
        why = self.topo("explain", "FILE", 0, 1, text=apart)
        self.assertIn("peer memory: no: SYS is farther than PXB, which is allowed by default (NCCL_P2P_LEVEL)\n", why)
        self.assertIn("network instead: yes: they reach NETs without a CPU at 12.5 and 24 GB/s, each other at 10 ", why)
        self.assertIn("\n=> network\n   GPU 0 sends by NET 0 (GPUDirect), GPU 1 receives by NET 2 (GPUDirect)\n", why)
        why = self.topo("explain", "FILE", 0, 1, text=apart, NCCL_NET_DISABLE_INTRA=1)
        self.assertIn("network instead: no: NCCL_NET_DISABLE_INTRA is 1\n", why)
        self.assertIn("\n=> memory of the host\n", why)

    def test_explain_a_net(self):
        why = self.topo("explain", "FILE", 1, "net0")
        self.assertIn("through another GPU: yes: GPU 0, the nearest to that NET; alone: SYS, 12.5 GB/s (NCCL_PXN_DISABLE)\n", why)
        self.assertIn("GPUDirect, sending: yes: PIX is no farther than P2C, which is allowed by default (NCCL_NET_GDR_LEVEL)\n"
                      "  of GPU 0, which sends for this one\n", why)
        self.assertIn("\n=> sends from the memory of GPU 0, receives into that of GPU 1\n", why)
        why = self.topo("explain", "FILE", 1, "net0", NCCL_PXN_DISABLE=1)
        self.assertIn("through another GPU: no: NCCL_PXN_DISABLE is 1\n", why)
        self.assertIn("GPUDirect, receiving: no: SYS is farther than P2C, ", why)
        self.assertIn("\n=> sends from the memory of the host, receives into that of the host\n", why)
        why = self.topo("explain", "FILE", 0, "net0", NCCL_NET_GDR_READ=0)
        self.assertIn("through another GPU: no: it is the nearest to that NET itself\n", why)
        self.assertIn("GPUDirect, sending: no: NCCL_NET_GDR_READ is 0\nGPUDirect, receiving: yes: PIX ", why)
        why = self.topo("explain", "FILE", 0, "net0", NCCL_NET_GDR_LEVEL="LOC")
        self.assertIn("GPUDirect, sending: no: PHB is farther than LOC, which NCCL_NET_GDR_LEVEL allows\n", why)
        for what, said in (('gdr="1"/>', "no: the NET cannot"), ('rank="0" gdr="1"', "no: the GPU cannot")):
            self.assertIn(said, self.topo("explain", "FILE", 0, "net0", text=self.MACHINE.replace(what, what.replace("1", "0", 1))))

    def test_copy(self):
        self.assertEqual(self.topo("copy", "FILE"), self.MACHINE)

    def draw(self, *words, rings=RINGS, name="machine.xml", text=MACHINE, status=0, **variables):
        """The picture and the page, or what was said."""
        with tempfile.TemporaryDirectory() as folder:
            for file, content in ((name, text), ("graphs", rings)):
                with open(os.path.join(folder, file), "w") as f:
                    f.write(content)
            out = [os.path.join(folder, "out." + kind) for kind in ("svg", "html")]
            done = run(self.TOPO, "draw", os.path.join(folder, name), "--load", os.path.join(folder, "graphs"), "--svg", out[0],
                       "--html", out[1], *words, env=environment(**variables))
            self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
            self.assertEqual(sorted(os.listdir(folder)), sorted([name, "graphs"] + ["out.svg", "out.html"] * (status == 0)))
            if status:
                return done.stderr
            with open(out[0]) as svg, open(out[1]) as html:
                return svg.read(), html.read()

    def test_draw(self):
        svg, html = self.draw("--graph", "ring", "--channel", 1)
        self.assertIn('<body data-start="ring/1">', html)
        root = xml.etree.ElementTree.fromstring(svg)
        texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
        for text in ("GPU 0", "NET 0", "PCI 10:00.0", "CPU 1", "4 x 20", "24", "22", "2 GPUs, 1 NETs, 2 CPUs; ring, channel 1"):
            self.assertIn(text, texts)
        way = root.findall("{http://www.w3.org/2000/svg}g[@class='way']/{http://www.w3.org/2000/svg}path")
        self.assertEqual(len(way), 2)
        data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.S).group(1))
        self.assertEqual([g["name"] for g in data["graphs"]], ["ring", "tree"])  # the tree was searched
        self.assertEqual(data["graphs"][0]["orders"], ["0, 1", "1, 0"])
        (hop, bandwidth, both), (back, _, _) = data["graphs"][0]["channels"][1]
        self.assertEqual((bandwidth, both), (30, 0))
        self.assertEqual([p.get("d") for p in way], [data["hops"][hop]["d"], data["hops"][back]["d"]])
        names = [data["nodes"][data["links"][link]["b"]] for link in data["hops"][hop]["l"]]
        self.assertEqual(names, ["DEV 0000:21:00.0", "DEV 0000:11:00.0", "GPU 0"])
        self.assertNotRegex(html, r"(?i)(src|href)=|url\((?!#)|@import|https?://(?!www.w3.org/2000/svg)")  # one file, no network
        _, html = self.draw("-N", 2)
        data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.S).group(1))
        self.assertEqual(data["graphs"][0]["orders"], ["NET 0, 0, 1, NET 0", "NET 0, 1, 0, NET 0"])
        self.assertEqual(sorted(h["y"] for h in data["hops"]), ["NVL", "NVL", "PIX", "PIX", "PXN", "SYS"])

    def test_draw_survives_any_name(self):
        for name in ("<b>&\"'</title><script>alert(1)</script>".replace("/", ":") + ".xml", "x" * 240, "\u00e9\u20ac \\u003c",
                     "-->]]>", os.fsdecode(b"\xff\xc3")):
            svg, html = self.draw(name=name)
            title = xml.etree.ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}title").text
            self.assertEqual(title, name.encode("utf-8", "replace").decode() if name.isprintable() else "??")
            self.assertEqual(html.count("<script"), 2)
            self.assertNotIn("<b>", html)

    def test_draw_refusals(self):
        self.assertIn("ring has channels 0 to 1", self.draw("-g", "ring", "-c", 2, status=1))
        self.assertIn("this machine has no nvls", self.draw("-g", "nvls", status=1))
        for out, status, said in (("/no/such/folder/x.svg", 1, "cannot write /no/such/folder/x.svg: No such file"),
                                  ("/dev/full", 3, "/dev/full could not be written: No space left")):
            for kind in ("--svg", "--html"):
                self.assertIn(said, self.topo("draw", "FILE", kind, out, status=status))
        with tempfile.TemporaryDirectory() as folder:
            kept = os.path.join(folder, "kept.svg")
            with open(kept, "w") as f:
                f.write("before")
            done = run("sh", "-c", f"ulimit -f 1; trap '' XFSZ; exec \"$0\" draw \"$1\" --svg {kept}", self.TOPO,
                       self.written(folder), env=environment())
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("nothing of it was kept", done.stderr)
            self.assertEqual(sorted(os.listdir(folder)), ["kept.svg", "machine.xml"])
            with open(kept) as f:
                self.assertEqual(f.read(), "before")

    def written(self, folder):
        path = os.path.join(folder, "machine.xml")
        with open(path, "w") as f:
            f.write(self.MACHINE)
        return path

    def test_refusals(self):
        broken = self.MACHINE.replace(' sm="80" rank="1"', ' rank="1"')
        self.assertEqual(self.topo("show", "FILE", status=1, text=broken),
                         'tutti-topo: FILE:18: <gpu dev="1"> has no attribute sm; add it\n')
        self.assertIn("NCCL_P2P_LEVEL", self.topo("paths", "FILE", status=1, NCCL_P2P_LEVEL="NEAR"))
        self.assertIn("no <gpu> of rank 7", self.topo("show", "-r", 7, "FILE", status=1))
        self.assertIn("No such file", self.topo("show", "/no/such/file", status=1))
        for ends, said in (((0, 2), '"2" is no rank or NET'), (("net0", 1), '"net0" is no rank'), ((0, "net0x"), "net0x"),
                           ((0, "net1/0"), "net1/0"), ((-1, 0), '"-1" is no rank')):
            self.assertIn(said, self.topo("explain", "--", "FILE", *ends, status=1))
        for words, said in ((["show"], "name a command and a file"), (["paint", "FILE"], "no command paint"),
                            (["draw", "FILE"], "a file to write"), (["show", "--svg", "x", "FILE"], "--svg belongs to draw,"),
                            (["draw", "--html", "x", "-c", 0, "FILE"], "name the --graph of that --channel"),
                            (["explain", "FILE", 0], "two ends"), (["paths", "FILE", "FILE"], "one file"),
                            (["show", "-s", "FILE"], "--steps belongs to paths"),
                            (["explain", "-r", 0, "FILE", 0, 1], "--rank belongs to show, paths, graph"),
                            (["copy", "-N", 2, "FILE"], "--nodes belongs to show, paths, explain, graph"),
                            (["graph", "-g", "star", "FILE"], '--graph "star" must be ring, tree, '), (["show", "-N", 0, "FILE"], "--nodes"),
                            (["show", "--what", "FILE"], "what")):
            self.assertIn(said, self.topo(*words, status=2))
        with open("/dev/full", "w") as full, tempfile.NamedTemporaryFile("w") as file:
            file.write(self.MACHINE)
            file.flush()
            for command in ("show", "copy"):
                self.assertEqual(subprocess.run([self.TOPO, command, file.name], stdout=full, stderr=subprocess.PIPE,
                                                timeout=60).returncode, 3)

    def test_help_names_the_variables(self):
        for name in ("NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_COLLNET_ENABLE"):
            self.assertIn(name, self.topo("--help"))


class Here(Case):
    """tutti-topo on a machine whose sysfs is made here."""
    TOPO = os.path.join(BIN, "tutti-topo")

    def setUp(self):
        self.sys = tempfile.mkdtemp()

    def tearDown(self):
        shutil.rmtree(self.sys)

    def write(self, path, data):
        path = os.path.join(self.sys, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())

    def link(self, path, target):
        path = os.path.join(self.sys, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)

    def device(self, path, **files):
        for name, text in files.items():
            self.write(f"devices/{path}/{name}", text + "\n")
        self.link("bus/pci/devices/" + os.path.basename(path), "../../../devices/" + path)

    def server(self):
        """Two GPUs and a card of two ports below a bridge, a virtual card, and an interface without any."""
        self.write("devices/system/node/node0/cpumap", "0000000f\n")
        bridge = "pci0000:10/0000:10:00.0"
        fast = {"max_link_speed": "16.0 GT/s PCIe", "max_link_width": "16", "numa_node": "0"}
        self.device(bridge, **fast, **{"class": "0x060400"})
        for gpu in (1, 2):
            self.device(f"{bridge}/0000:1{gpu}:00.0", **fast, **{"class": "0x030200"}, vendor="0x10de",
                        current_link_speed="2.5 GT/s PCIe" if gpu == 1 else "16.0 GT/s PCIe",
                        current_link_width="16" if gpu == 1 else "8")
        card = f"{bridge}/0000:13:00.0"
        self.device(card, **fast, **{"class": "0x020000"}, vendor="0x15b3")
        for port, state in ((1, "4: ACTIVE"), (2, "1: DOWN")):
            self.write(f"devices/{card}/infiniband/mlx5_0/ports/{port}/state", state + "\n")
            self.write(f"devices/{card}/infiniband/mlx5_0/ports/{port}/rate", "200 Gb/sec (4X HDR)\n")
        self.write(f"devices/{card}/infiniband/mlx5_0/node_guid", "0002:c903:00a1:b2c3\n")
        self.write(f"devices/{card}/net/ib0/speed", "200000\n")
        self.device("pci0000:00/0000:00:03.0", **{"class": "0x020000"}, numa_node="-1")
        self.write("devices/pci0000:00/0000:00:03.0/virtio1/net/eth0/speed", "-1\n")
        self.write("devices/virtual/net/lo/speed", "1\n")
        self.link("class/infiniband/mlx5_0", f"../../devices/{card}/infiniband/mlx5_0")
        self.link(f"devices/{card}/infiniband/mlx5_0/device", "../..")
        self.link("class/net/ib0", f"../../devices/{card}/net/ib0")
        self.link(f"devices/{card}/net/ib0/device", "../..")
        self.link("class/net/eth0", "../../devices/pci0000:00/0000:00:03.0/virtio1/net/eth0")
        self.link("devices/pci0000:00/0000:00:03.0/virtio1/net/eth0/device", "../..")
        self.link("class/net/lo", "../../devices/virtual/net/lo")
        return bridge

    def here(self, command, *words, status=0, **env):
        done = run(self.TOPO, command, "--here", "--sysfs", self.sys, *words, env=environment(**env))
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def test_tables(self):
        self.server()
        shown, said = self.here("show")
        self.assertIn("    - 24 - DEV 0000:11:00.0  sm 0, GPUDirect\n      GPU 0  (device 0)\n", shown)
        self.assertIn("      NET 0  mlx5_0, 25 GB/s, port 1\n", shown)
        self.assertRegex(shown, r"\n +GPU0 +GPU1 +NET0 +NET1 +processors\n"
                                r"GPU0 +X +PIX +PIX +PHB +0-3  NUMA 0\nGPU1 +PIX +X +PIX +PHB +0-3  NUMA 0\n"
                                r"NET0 +PIX +PIX +X +PHB *\nNET1 +PHB +PHB +PHB +X *\n")
        self.assertIn("\nNET0 is mlx5_0\nNET1 is eth0\n", shown)
        self.assertIn("does not tell the GPUs' sm", said)
        self.assertIn('guid="0x2c90300a1b2c3"', self.here("copy")[0])
        self.assertIn("=> peer memory\n", self.here("explain", 0, 1)[0])

    def test_warnings(self):
        bridge = self.server()
        shown, _ = self.here("show")
        self.assertIn("warning: the link of 0000:11:00.0 runs at 2.5 GT/s x16, and could at 16 GT/s x16 (an idle", shown)
        self.assertIn("warning: the link of 0000:12:00.0 runs at 16 GT/s x8, and could at 16 GT/s x16: look at its slot", shown)
        self.assertIn("ACS of 1 bridges cannot be seen: run this as root\n", shown)
        self.assertNotIn("IOMMU", shown)
        config = bytearray(4096)
        config[0x100:0x108] = bytes((1, 0, 1, 0x14, 0, 0, 0, 0))  # another capability, the next at 0x140
        config[0x140:0x148] = bytes((0x0d, 0, 1, 0, 0x1f, 0, 0x1d, 0))
        self.write(f"devices/{bridge}/config", bytes(config))
        for device, kind in (("11", "DMA-FQ"), ("12", "identity"), ("13", "DMA")):
            self.write(f"kernel/iommu_groups/{device}/type", kind + "\n")
            self.link(f"devices/{bridge}/0000:{device}:00.0/iommu_group", f"../../../../kernel/iommu_groups/{device}")
        shown, _ = self.here("show")
        self.assertIn("bridge 0000:10:00.0 has ACS on (SrcValid ReqRedir CmpltRedir UpstreamFwd)", shown)
        self.assertIn("setpci -s 0000:10:00.0 ECAP_ACS+6.w=0\n", shown)
        self.assertIn("an IOMMU translates what 2 devices send, 0000:11:00.0 among them", shown)
        self.assertNotIn("root", shown)
        config[0x146] = 0x42  # neither bit redirects
        config[0x102:0x104] = bytes((1, 0x10))  # and the list goes in a circle
        self.write(f"devices/{bridge}/config", bytes(config))
        self.assertNotIn("ACS", self.here("show")[0])

    def test_devices(self):
        """A backend tells what sysfs does not; its order is another, and what it warns of is shown."""
        self.server()
        device = {"TUTTI_DEVICE": os.environ["TEST_DESCRIBED"]}
        shown, said = self.here("show", **device, FAKE_DESCRIBED_WARNS="GPU 3 has lost its links")
        self.assertIn("    - 24 - DEV 0000:11:00.0  sm 90, GPUDirect\n      + NVL 82.4 to DEV 0000:12:00.0, 4 links\n      GPU 0  (device 0)\n", shown)
        self.assertIn("tutti-topo: device described tells of 2 of 2 GPUs\n", said)
        self.assertIn("warning: GPU 3 has lost its links\n", said)
        self.assertNotIn("the driver does not", self.here("explain", 0, 1, **device)[0])
        _, said = self.here("show", status=1, **device, FAKE_DESCRIBED_REFUSES="4")
        self.assertIn("(rank 1) read and write memory of GPU/0-11000 (rank 0), though NVLinks join them", said)
        shown, _ = self.here("explain", 0, 1, **device, FAKE_DESCRIBED_REFUSES="4", NCCL_IGNORE_DISABLED_P2P="1")
        self.assertIn("peer memory: no: the driver does not allow it (NCCL_IGNORE_DISABLED_P2P)\n", shown)
        self.assertIn("=> memory of the host\n", shown)
        shown, _ = self.here("explain", 0, 1, **device, FAKE_DESCRIBED_REFUSES="4", NCCL_IGNORE_DISABLED_P2P="2")
        self.assertRegex(shown, "peer memory: yes: .*\n  though the driver does not allow it: .*\n  data is written")
        _, said = self.here("show", TUTTI_DEVICE="/nowhere/libtutti-device-x.so")
        self.assertIn("they are taken for GPUs without (no such file)\n", said)
        for device, why in (("", "--sysfs names another machine"), ("host", "TUTTI_DEVICE asks for the host")):
            self.assertIn(f"they are taken for GPUs without ({why}", self.here("show", TUTTI_DEVICE=device)[1])

    def test_without_gpus(self):
        shown, said = self.here("paths")
        self.assertIn("lists no NVIDIA GPU", said)
        self.assertIn("GPU 0: nearest CPU -", shown)
        for node in (0, 1):
            self.write(f"devices/system/node/node{node}/cpumap", f"{1 << node}\n")
        shown, _ = self.here("show")
        self.assertIn("2 GPUs, 0 NETs, 2 CPUs", shown)
        self.assertRegex(shown, r"\nGPU1 +SYS +X +1  NUMA 1\n")
        self.assertIn("\nno warnings\n", shown)
        self.assertIn("--sysfs belongs to --here", run(self.TOPO, "show", "--sysfs", "/", "file").stderr)

    def test_communicators_where_sysfs_is_hidden(self):
        """As in a container that shows nothing of the machine: ranks run, and one line each says what was assumed."""
        hide = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]
        if not shutil.which("unshare") or run(*hide, "true").returncode != 0:
            self.skipTest("/sys cannot be hidden here: no rights for a mount namespace")
        done = run(*hide, PERF, "all_reduce", "-n", 2, "-b", 64, "-e", 64, env=environment(NCCL_DEBUG="INFO"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = re.findall(r"INFO topology: /sys does not tell NUMA nodes; .*; what is not known is assumed", done.stdout)
        self.assertEqual(len(said), 2, done.stdout)


class Run(Case):
    RUN = os.path.join(BIN, "tutti-run")

    def setUp(self):
        self.directory = tempfile.mkdtemp()

    def tearDown(self):
        shutil.rmtree(self.directory)

    def build(self, name, text, *flags):
        source, out = os.path.join(self.directory, name + ".c"), os.path.join(self.directory, name)
        with open(source, "w") as f:
            f.write(text)
        done = run("cc", "-o", out, source, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def other_nccl(self):
        os.mkdir(os.path.join(self.directory, "other"))
        return self.build("other/libnccl.so.2", "#define _GNU_SOURCE\n#include <pthread.h>\n#include <unistd.h>\n"
                          "static void *serve(void *x) { for (;;) pause(); return x; }\n"
                          "int ncclGetVersion(int *v) { *v = 1; return 0; }\n"
                          "int ncclCommInitAll(void) { pthread_t t; pthread_create(&t, 0, serve, 0);\n"
                          "  return pthread_setname_np(t, \"NCCL Service  0\"); }\n", "-shared", "-fPIC",
                          "-Wl,-soname,libnccl.so.2")

    def test_status_is_the_command_s(self):
        self.assertEqual(run(self.RUN, "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(run(self.RUN, "sh", "-c", "kill -9 $$").returncode, 137)
        self.assertEqual(run(self.RUN, "--", "echo", "a b").stdout, "a b\n")

    def test_the_drop_in_takes_the_place_of_the_other(self):
        other = self.other_nccl()
        program = self.build("linked", "#include <stdio.h>\nint ncclGetVersion(int *);\n"
                             "int main(void) { int v; ncclGetVersion(&v); printf(\"%d\\n\", v); }", other,
                             f"-Wl,-rpath,{os.path.dirname(other)}")
        self.assertEqual(run(program).stdout, "1\n")
        done = run(self.RUN, program)
        self.assertEqual((done.stdout, done.stderr), ("22809\n", ""))

    def test_another_nccl_that_has_communicators_is_reported(self):
        other = self.other_nccl()
        program = self.build("loads", "#include <dlfcn.h>\n#include <unistd.h>\n"
                             "int main(int c, char **v) { (void)c; void *l = dlopen(v[1], RTLD_NOW);\n"
                             "  if (!l) return 1; int (*init)(void) = (int (*)(void))dlsym(l, \"ncclCommInitAll\");\n"
                             "  if (!init || init()) return 2; sleep(2); return 0; }", "-ldl")
        for command in ([program, other], ["sh", "-c", f"{program} {other}; exit $?"]):
            done = run(self.RUN, *command)
            self.assertEqual(done.returncode, 0)
            self.assertIn("calls another NCCL", done.stderr)
            self.assertIn(other, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_another_nccl_that_is_only_mapped(self):
        """As PyTorch does: it opens its own copy by its path, then a library that needs libnccl.so.2."""
        other = self.other_nccl()
        user = self.build("libuser.so", "int ncclGetVersion(int *); int user(int *v) { return ncclGetVersion(v); }",
                          "-shared", "-fPIC", other, f"-Wl,-rpath,{os.path.dirname(other)}", "-Wl,--disable-new-dtags")
        program = self.build("imports", "#include <dlfcn.h>\n#include <stdio.h>\n#include <unistd.h>\n"
                             "int main(int c, char **v) { (void)c; int n = 0; if (!dlopen(v[1], RTLD_NOW)) return 1;\n"
                             "  void *l = dlopen(v[2], RTLD_NOW); if (!l) return 2;\n"
                             "  int (*user)(int *) = (int (*)(int *))dlsym(l, \"user\"); if (!user || user(&n)) return 3;\n"
                             "  printf(\"%d\\n\", n); fflush(stdout); sleep(1); return 0; }", "-ldl")
        done = run(self.RUN, program, other, user)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "22809\n", ""))
        done = run(self.RUN, "env", "-u", "LD_PRELOAD", program, other, user)
        self.assertEqual((done.returncode, done.stdout), (0, "1\n"))
        self.assertIn("has another NCCL mapped", done.stderr)
        self.assertIn(other, done.stderr)

    def test_a_removed_preload_is_reported(self):
        done = run(self.RUN, "env", "-u", "LD_PRELOAD", "sleep", 2)
        self.assertIn("without Tutti's drop-in", done.stderr)

    def test_refusals(self):
        static = self.build("static", "int main(void) { return 0; }", "-static")
        for command, status, said in ((["no-such-program"], 127, "no-such-program"), ([static], 126, "statically"),
                                      (["/etc/passwd"], 126, "not executable"), ([], 2, "no command"),
                                      (["-x"], 2, "-x")):
            done = run(self.RUN, *command)
            self.assertEqual(done.returncode, status, command)
            self.assertIn(said, done.stderr)

    def test_no_drop_in_beside_it(self):
        os.mkdir(os.path.join(self.directory, "bin"))
        alone = shutil.copy(self.RUN, os.path.join(self.directory, "bin"))
        done = run(alone, "echo", "x")
        self.assertEqual((done.returncode, done.stdout), (126, ""))
        self.assertIn(f"no drop-in library at {self.directory}/lib/tutti/compat/libnccl.so.2", done.stderr)
        os.makedirs(os.path.join(self.directory, "a b/bin"))
        os.makedirs(os.path.join(self.directory, "a b/lib/tutti/compat"))
        self.build("a b/lib/tutti/compat/libnccl.so.2", "int x;", "-shared", "-fPIC")
        done = run(shutil.copy(self.RUN, os.path.join(self.directory, "a b/bin")), "echo", "x")
        self.assertEqual((done.returncode, done.stdout), (126, ""))
        self.assertIn("blanks", done.stderr)

    def test_termination_is_passed_on(self):
        script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done"
        process = subprocess.Popen([self.RUN, "sh", "-c", script], text=True, stdout=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.terminate()
        self.assertEqual(process.wait(timeout=30), 5)
        process.stdout.close()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
