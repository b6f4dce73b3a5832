"""What the tests that run the tools as users run them share. Arguments of each: the directory of the programs, the
program with faults, and the names of the tests to run (all by default). A test that lacks what it needs (mpirun, say) is
skipped with its reason."""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

BIN, FAULTY = sys.argv[1], sys.argv[2]
# ThreadSanitizer sleeps for a second when a process ends, and here many do.
os.environ["TSAN_OPTIONS"] = ":".join(filter(None, (os.environ.get("TSAN_OPTIONS"), "atexit_sleep_ms=0")))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(1, os.path.join(ROOT, "tests/common"))
from ports import free_port  # noqa: E402
PERF = os.path.join(BIN, "tutti-perf")
# A shell's job in the background ignores SIGINT, and so would all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)
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


def beginning(disposition, signals):
    return (sys.executable, "-c", "import os, signal, sys\n"
            f"for number in {[int(s) for s in signals]}: signal.signal(number, signal.{disposition})\n"
            "os.execvp(sys.argv[1], sys.argv[1:])")


def ignoring(*signals):
    """The words before a command that is to begin with these signals ignored. Not every shell can: trap ignores no
    SIGCHLD."""
    return beginning("SIG_IGN", signals)


def defaults(*signals):
    """The same with what they do by default, where these tests may run with them ignored, as in background."""
    return beginning("SIG_DFL", signals)


def rows(text):
    return [line.split() for line in text.splitlines() if ROW.match(line)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Case(unittest.TestCase):
    def until(self, condition, what):
        """Bounds a hang; how busy the machine is does not matter."""
        end = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), end, f"{what} did not happen")
            time.sleep(0.01)

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


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
