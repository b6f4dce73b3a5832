"""Shared by the end-to-end tests: starting programs with an environment of their own, reading what they print, and
leaving nothing behind. The environment says where things are: E2E_BIN (the tools), E2E_RANKS (the program of ranks.c),
E2E_SOURCE (the source tree), E2E_SANITIZE (the sanitizers of the build, or nothing)."""
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BIN = os.environ["E2E_BIN"]
SOURCE = os.environ["E2E_SOURCE"]
sys.path.insert(1, os.path.join(SOURCE, "tests/common"))
from ports import free_port  # noqa: E402
RANKS = os.environ["E2E_RANKS"]
SANITIZE = os.environ.get("E2E_SANITIZE", "")
PERF = os.path.join(BIN, "tutti-perf")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "alltoall", "sendrecv")
# Those whose connections over a network take their slots from a pool.
SHARING = ("gather", "scatter", "alltoall", "sendrecv")
ROW = re.compile(r"^\s+\d+\s+\d+\s+\w+\s+\w+\s+-?\d+\s", re.M)
# Guards against hangs only: no test measures speed with it.
PATIENCE = 120
FOREIGN = re.compile(r"^(NCCL_|TUTTI_|OMPI_|PMI|SLURM_|MPI_LOCAL|HYDI_|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCHELASTIC_)")
# Every process that a test starts, and what these start, carries it.
MARK = f"{os.getpid()}-{time.time_ns()}"


def share(*axes, first=0):
    """All combinations; with a sanitizer, under which a run takes ten times as long, one of three, so that every value
    of an axis is there with some of another. `first` chooses which."""
    for places in itertools.product(*(range(len(axis)) for axis in axes)):
        if not SANITIZE or (sum(places) + first) % 3 == 0:
            yield tuple(axis[place] for axis, place in zip(axes, places))


def environment(more):
    plain = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
    plain.update({k: str(v) for k, v in more.items()}, E2E_MARK=MARK)
    return plain


def read(path, mode="r"):
    try:
        with open(path, mode, **({} if "b" in mode else {"errors": "replace"})) as f:
            return f.read()
    except OSError:
        return b"" if "b" in mode else ""


def marked():
    """Processes with this run's mark that still run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        state = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        lives = int(pid) != os.getpid() and state and state[0] != "Z"
        if lives and MARK.encode() in read(f"/proc/{pid}/environ", "rb"):
            found.append(int(pid))
    return found


def listening(pid):
    """(port, inode) of the TCP sockets on which a process listens."""
    inodes = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        pass
    return {(port, inode) for port, inode in listeners(pid) if inode in inodes}


def listeners(pid="self"):
    found = set()
    for table in ("tcp", "tcp6"):
        for line in read(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                found.add((int(words[1].rpartition(":")[2], 16), words[9]))
    return found


def session(leader):
    """The processes of a session."""
    found = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if os.getsid(pid) == leader:
                found.add(pid)
        except OSError:
            pass
    return found


def remove_left(pids):
    """Files of libfabric's provider shm, PROCESS:USER:NUMBER, whose processes ended without a chance to remove them."""
    for name in os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else ():
        match = re.fullmatch(rf"(\d+):{os.geteuid()}:\d+", name)
        if match and int(match[1]) in pids:
            try:
                os.unlink(os.path.join("/dev/shm", name))
            except OSError:
                pass


class Process:
    """A started program. Its output goes to files, so that it never waits for a reader."""

    def __init__(self, command, env, host=None):
        self.command = [str(c) for c in command]
        self.stdout, self.stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        inside = ["ip", "netns", "exec", host, *self.command] if host else self.command
        self.popen = subprocess.Popen(inside, env=environment(env), stdin=subprocess.DEVNULL, stdout=self.stdout,
                                      stderr=self.stderr, start_new_session=True)
        self.pid = self.popen.pid

    @staticmethod
    def text(file):
        return os.pread(file.fileno(), 1 << 26, 0).decode(errors="replace")

    @property
    def out(self):
        return self.text(self.stdout)

    @property
    def err(self):
        return self.text(self.stderr)

    @property
    def all(self):
        return self.out + self.err

    def wait(self, timeout=PATIENCE):
        try:
            self.status = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            what = f"{' '.join(self.command)} did not end within {timeout:.0f} s"
            raise AssertionError(f"{what}:\n{self.all[-4000:]}") from None
        return self

    def kill(self):
        started = {self.pid}
        if self.popen.poll() is None:
            started |= session(self.pid)
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.popen.wait()
        remove_left(started)


class Case(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="tutti-e2e-")
        self.addCleanup(shutil.rmtree, self.work)

    def start(self, *command, host=None, **env):
        process = Process(command, env, host)
        self.addCleanup(process.kill)
        return process

    def run_it(self, *command, host=None, **env):
        process = self.start(*command, host=host, **env).wait()
        return process

    def good(self, process, rows=None):
        """A run of tutti-perf in which all data was right."""
        self.assertEqual(process.status, 0, process.all[-4000:])
        self.assertIn("# Out of bounds values : 0 OK", process.out)
        found = len(ROW.findall(process.out))
        self.assertTrue(found == rows if rows else found > 0, f"{found} rows:\n{process.out}")
        return process.all

    def perf(self, *words, rows=None, **env):
        return self.good(self.run_it(PERF, *words, **env), rows)

    def log(self, *words, rows=None, **env):
        """The same, with one operation a size and everything logged."""
        env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", **env}
        return self.perf(*words, "--iters", 1, "-w", 0, rows=rows, **env)

    def by_hand(self, words, count, each=None, hosts=None, address="127.0.0.1", **env):
        """Starts `count` processes of tutti-perf that meet by address. each(rank) is the environment of one."""
        port = 29500 if hosts else free_port()
        if ":" in address:
            address = f"[{address}]"
        return [self.start(PERF, *words, "--rank", r, "--nranks", count, "--root-addr", f"{address}:{port}",
                           host=hosts[r] if hosts else None, **{**env, **(each(r) if each else {})})
                for r in range(count)]

    def ranks(self, steps, each=None, **env):
        """Starts ranks of ranks.c: steps[rank] is what one does, None if it never starts. They know of each other only
        what the library tells them."""
        file = os.path.join(self.work, f"id-{time.time_ns()}")
        return [self.rank(r, len(steps), file, s, **{**env, **(each(r) if each else {})}) if s is not None else None
                for r, s in enumerate(steps)]

    def rank(self, rank, count, file, steps, **env):
        return self.start(RANKS, rank, count, file, *steps.split(), **env)

    def until(self, condition, what, timeout=PATIENCE):
        end = time.monotonic() + timeout
        while not condition():
            self.assertLess(time.monotonic(), end, f"{what} did not happen within {timeout} s")
            time.sleep(0.02)

    def nothing_left(self):
        self.until(lambda: not marked(), f"the end of all processes ({marked()} still run)", 15)


def need(condition, reason):
    """For setUpClass: the machine cannot run this class."""
    if not condition:
        raise unittest.SkipTest(reason)


class Result(unittest.TextTestResult):
    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"SKIP: {reason}", flush=True)


def main():
    """python3 file.py [Class...]. 77 when the machine can run none of it; else a part that is skipped says so."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    program = unittest.main(module="__main__", verbosity=2, exit=False,
                            testRunner=unittest.TextTestRunner(resultclass=Result, verbosity=2))
    result = program.result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped and not result.testsRun else 0)
