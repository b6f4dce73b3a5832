"""tutti-perf on a library that computes wrongly, hangs or ends. Arguments as support.py has them."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from support import alive, Case, early_exit_environment, FAULTY, free_port, ignoring, main, PERF, ROW, rows, run


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

    def test_not_enough_to_start_all(self):
        done = run("sh", "-c", 'ulimit -n 40; exec "$@"', "sh", PERF, "all_reduce", "-n", 64, "-b", 64, "-e", 64,
                   "-J", self.json)
        said = "cannot start 64 processes: Too many open files"
        self.assertEqual((done.returncode, done.stderr), (3, f"tutti-perf: {said}\n"))
        with open(self.json) as f:
            result = json.load(f)
        self.assertEqual((result["status"], result["error"]), ("error", said))

    def test_error_before_the_run(self):
        done = run(PERF, "all_reduce", "-J", self.json, "--rank", 0, "--nranks", 2, "--root-addr",
                   f"127.0.0.1:{free_port()}", "--join-timeout", 1)
        self.assertEqual(done.returncode, 3)
        with open(self.json) as f:
            self.assertEqual(json.load(f)["status"], "error")
        done = run(PERF, *self.COMMAND, "-J", "/nonexistent/x.json")
        self.assertEqual(done.returncode, 3)
        self.assertIn("/nonexistent/x.json", done.stderr)

    def interrupted(self, send, before=()):
        process = subprocess.Popen([*before, PERF, "all_reduce", "-n", "3", "-b", "8", "-e", "8", "-N", "0", "-J", self.json],
                                   env=early_exit_environment(), start_new_session=True, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not ROW.match(process.stdout.readline()):
            self.assertIsNone(process.poll())
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as f:
            children = [int(p) for p in f.read().split()]
        self.assertEqual(len(children), 3)
        send(process, children)
        _, errors = process.communicate(timeout=120)
        self.until(lambda: not any(alive(p) for p in children), "the end of all processes")
        return process.returncode, errors

    def test_ctrl_c(self):
        status, errors = self.interrupted(lambda p, _: os.killpg(p.pid, signal.SIGINT))
        self.assertEqual((status, errors), (130, ""))
        with open(self.json) as f:
            self.assertEqual(json.load(f)["status"], "interrupted")

    def one_first(self, number, first, send):
        """A signal reaches one process before it reaches the others: the run ends as if it had come to all at once."""
        self.assertEqual(self.interrupted(lambda p, children: send(p, children[first], children, number)),
                         (128 + number, ""))
        with open(self.json) as f:
            result = json.load(f)
        self.assertEqual((result["status"], result["error"]),
                         ("interrupted" if number == signal.SIGINT else "error",
                          f"ended by signal {int(number)} ({signal.strsignal(number)})"))

    def test_a_signal_reaches_one_first(self):
        def others_lose_it(process, first, children, number):
            os.kill(process.pid, signal.SIGSTOP)
            os.kill(first, number)
            self.until(lambda: not alive(first), "the end of the first")
            time.sleep(0.3)  # the others, or who waits for them all, lose it before the signal reaches them
            for other in children:
                os.kill(other, number)
            os.kill(process.pid, number)
            os.kill(process.pid, signal.SIGCONT)

        def parent_learns(process, first, _, number):
            os.kill(first, number)
            self.until(lambda: not os.path.exists(f"/proc/{first}"), "the end of the first")
            process.send_signal(number)

        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            for first in 0, 1:
                for send in others_lose_it, parent_learns:
                    with self.subTest(number=number, first=first, send=send.__name__):
                        self.one_first(number, first, send)

    def test_a_signal_for_one_only(self):
        for number in signal.SIGINT, signal.SIGTERM:
            status, errors = self.interrupted(lambda _, children: os.kill(children[1], number))
            self.assertEqual(status, 128 + number)
            self.assertRegex(errors, rf"^tutti-perf: rank 1 \(process \d+\) ended with status {status}; "
                                     "ending the others\n$")

    def test_terminated(self):
        self.assertEqual(self.interrupted(lambda p, _: p.terminate()), (128 + signal.SIGTERM, ""))

    def test_ends_of_children_ignored_by_who_starts_it(self):
        quiet = ignoring(signal.SIGCHLD)
        self.good(run(*quiet, PERF, *self.COMMAND), 1)
        done = run(*quiet, PERF, "pairs", "-t", 2, "-e", 1024, "--iters", 1, "--settings", "ll128")
        self.assertEqual(done.returncode, 3, "the host has no ll128: " + done.stdout + done.stderr)

    def test_signals_ignored_where_it_was_started(self):
        """As nohup does: all processes are hung up on, and go on until they are asked to end."""
        def send(process, children):
            os.killpg(process.pid, signal.SIGHUP)
            for _ in range(3):
                self.assertRegex(process.stdout.readline(), ROW)
            self.assertIsNone(process.poll())
            process.terminate()
        status, errors = self.interrupted(send, before=ignoring(signal.SIGHUP))
        self.assertEqual((status, errors), (128 + signal.SIGTERM, ""))

    def test_parent_killed(self):
        self.interrupted(lambda p, _: p.kill())

    def test_child_killed(self):
        status, errors = self.interrupted(lambda p, children: os.kill(children[1], signal.SIGKILL))
        self.assertEqual(status, 128 + signal.SIGKILL)
        self.assertRegex(errors, r"^tutti-perf: rank 1 \(process \d+\) was killed by signal 9 .*; ending the others\n$")


if __name__ == "__main__":
    main()
