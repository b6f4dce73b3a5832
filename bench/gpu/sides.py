"""Runs the programs that are compared, and reads what they say. A side is a program on a library: NVIDIA's nccl-tests (or
PyTorch) on NCCL, tutti-perf on NCCL in Tutti's place, tutti-perf on Tutti, and nccl-tests on Tutti."""
import atexit
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
# Sides by key: their names in tables and messages.
NAMES = {"reference": "NCCL", "registered": "NCCL, registered", "nccl": "NCCL (tutti-perf)", "tutti": "Tutti",
         "dropin": "Tutti (nccl-tests)"}
OURS = ("tutti", "dropin")
ROW = re.compile(r"^\s+\d+\s+\d+\s+\w+\s+\w+\s+-?\d+\s")
CHANNELS = re.compile(r"AllReduce: (\d+) Bytes -> .*channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
ROTATE = 64  # places of the variant "rotating"
GRACE = 10   # seconds that a program may run past the budget


class Failed(Exception):
    """A side could not run, or its results are wrong."""


def size_name(size):
    for unit in ("G", "M", "K"):
        if size and size % (1 << UNITS[unit]) == 0:
            return f"{size >> UNITS[unit]} {unit}iB"
    return f"{size} B"


def factor_of(sizes):
    """The largest factor whose powers lead from the smallest size through all others; None where there is none. What
    nccl-tests needs to measure them in one run."""
    least, exponents = min(sizes), []
    for size in sizes:
        exponent = (size // least).bit_length() - 1 if least else -1
        if exponent < 0 or least << exponent != size:
            return None
        exponents.append(exponent)
    common = math.gcd(*exponents)
    return 1 << common if common else 2


def parse_table(text, sizes):
    """Microseconds out of place by size, of nccl-tests' table, and how many results are wrong."""
    times, wrong = {}, 0
    for line in text.splitlines():
        if not ROW.match(line):
            continue
        row = line.split()
        if int(row[0]) in sizes and row[5] != "N/A":
            times[int(row[0])] = float(row[5])
        wrong += sum(float(column) != 0 for column in (row[8], row[12]) if column != "N/A")
    return times, int(wrong)


def demand(times, sizes):
    missing = [size_name(size) for size in sizes if size not in times]
    if missing:
        raise Failed(f"there is no time for {', '.join(missing)}")
    return {size: times[size] for size in sizes}


def parse_json(result, sizes):
    """Likewise, of the JSON that tutti-perf and torch_peer.py write."""
    if result.get("status", "ok") not in ("ok", "failed"):
        raise Failed(result.get("error") or f"the run is {result.get('status')}")
    times = {row["size"]: row["out_of_place"]["time"] for row in result["results"]}
    wrong = sum(bool(row["out_of_place"]["nwrong"]) for row in result["results"])  # None: not checked
    return demand(times, sizes), wrong


def parse_channels(text):
    """Blocks that NCCL uses for an all-reduce by its size, of the lines it writes about its choices."""
    return {int(match[1]): int(match[3]) - int(match[2]) + 1 for match in CHANNELS.finditer(text)}


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise Failed(f"it left no results: {error}") from error


class Bench:
    """The programs, with what is the same for all runs. `check`: whether results are checked, as nccl-tests' -c;
    `deadline`: on the monotonic clock, a little after which programs are ended."""

    def __init__(self, options):
        self.options, self.versions, self.commands, self.channels = options, {}, {}, None
        self.perf = options.build / "bin/tutti-perf"
        self.tests = options.nccl_tests
        self.folder = tempfile.mkdtemp(prefix="bench-gpu-")
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.check, self.deadline = 1, math.inf

    def environment(self, **more):
        env = dict(os.environ, NCCL_NVLS_ENABLE="0", TUTTI_DEVICE="cuda", NCCL_DEBUG="VERSION")
        env.pop("LD_PRELOAD", None)
        env.update(more)
        return env

    def seconds_left(self):
        return max(1, min(self.options.timeout, self.deadline + GRACE - time.monotonic()))

    def launch(self, side, command, env):
        command = [str(word) for word in command]
        self.commands.setdefault(side, " ".join(command))
        limit = self.seconds_left()
        try:
            done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=limit)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"it did not end within {limit:.0f} s") from late
        except OSError as error:
            raise Failed(str(error)) from error
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        if done.returncode not in (0, 1):  # 1: complete, with wrong results
            raise Failed(f"status {done.returncode}: {'; '.join(said[-3:])}")
        self.note_library(side, said)
        return done

    def note_library(self, side, said):
        """Which library ran, by its own words: a preload that went wrong would time one of them twice."""
        lines = [line.strip() for line in said if "NCCL version" in line]
        self.versions[f"library of {NAMES[side]}"] = lines[0] if lines else "did not say what it is"
        if lines and ("Tutti" in lines[0]) != (side in OURS):
            raise Failed(f"another library was used: {lines[0]}")

    def iterations(self, mode):
        return ["-w", self.options.warmup, *(["-G", self.options.launches] if mode == "graph" else [])]

    def nccl_tests(self, side, case, sizes, env):
        """One run if the sizes are powers of a factor, else one a size."""
        factor, times, wrong, gpus = factor_of(sizes), {}, 0, self.options.gpus
        spans = [(min(sizes), max(sizes))] if factor else [(size, size) for size in sizes]
        program = [self.tests / f"{case.collective}_perf", "-t", gpus, "-g", 1]
        if case.ranks == "processes":
            program = [*self.options.mpirun, "-np", gpus, self.tests / f"{case.collective}_perf_mpi", "-t", 1, "-g", 1]
        for least, most in spans:
            done = self.launch(side, [*program, "-b", least, "-e", most, "-f", factor or 2, "-n",
                                      self.options.iterations, "-c", self.check, "-a", 1, *self.iterations(case.mode),
                                      *(["-R", 2] if side == "registered" else [])], env)
            some, more_wrong = parse_table(done.stdout, sizes)
            times.update(some)
            wrong += more_wrong
        return demand(times, sizes), wrong

    def torch(self, case, sizes):
        out = os.path.join(self.folder, "torch.json")
        self.launch("reference", [sys.executable, HERE / "torch_peer.py", "--gpus", self.options.gpus, "--collective",
                                  case.collective, "--mode", case.mode, "--sizes", ",".join(map(str, sizes)),
                                  "--iterations", self.options.iterations, "--warmup", self.options.warmup,
                                  "--launches", self.options.launches, "--check", self.check, "--json", out],
                    self.environment())
        result = read_json(out)
        self.versions["PyTorch"] = result["torch"]
        return parse_json(result, sizes)

    def perf_run(self, side, case, sizes, env, registered):
        out = os.path.join(self.folder, f"{side}.json")
        pathlib.Path(out).unlink(missing_ok=True)
        variant = {"dependent": ["--dependent", 1], "rotating": ["--rotate", ROTATE], "load": ["--load", 1]}
        self.launch(side, [self.perf, case.collective, "--device", "cuda",
                           "-n" if case.ranks == "processes" else "-t", self.options.gpus, "--sizes",
                           ",".join(map(str, sizes)), "--iters", self.options.iterations, "-a", 1, "-c", self.check,
                           "--form", "out", "-T", self.options.timeout, "-J", out, *self.iterations(case.mode),
                           *(["-R", 2] if registered else []), *variant.get(case.variant, [])], env)
        result = read_json(out)
        if "load" in result:
            load = result["load"]
            self.versions[f"load beside {NAMES[side]}"] = (f"{load['kind']} of {load['size']} x {load['size']}, "
                                                           f"{load['products'] / load['seconds']:.0f} a second")
        return parse_json(result, sizes)

    def nccl_channels(self, case, sizes):
        """NCCL's own number of blocks by size, asked once."""
        if self.channels is None:
            env = self.environment(LD_PRELOAD=str(self.options.nccl), NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING")
            done = self.launch("nccl", [self.perf, case.collective, "--device", "cuda", "-t", self.options.gpus,
                                        "--sizes", ",".join(map(str, sizes)), "--iters", 1, "-w", 0, "-c", 0, "--form",
                                        "out"], env)
            self.channels = parse_channels(done.stdout + done.stderr)
        missing = [size_name(size) for size in sizes if size not in self.channels]
        if missing:
            raise Failed(f"NCCL did not say how many channels it uses for {', '.join(missing)}")
        return {size: self.channels[size] for size in sizes}

    def with_channels_of_nccl(self, case, sizes):
        """Tutti with at most as many blocks as NCCL uses: a run for each number of them."""
        of_size, times, wrong = self.nccl_channels(case, sizes), {}, 0
        for channels in sorted(set(of_size.values())):
            some, more = self.perf_run("tutti", case, [size for size in sizes if of_size[size] == channels],
                                       self.environment(NCCL_MAX_NCHANNELS=str(channels)), False)
            times.update(some)
            wrong += more
        return times, wrong

    def measure(self, side, case, sizes):
        """Microseconds by size, and how many results are wrong."""
        nccl, registered = self.options.nccl, case.form == "registered"
        if side == "tutti" and case.variant == "ctas":
            return self.with_channels_of_nccl(case, sizes)
        if side == "tutti":
            return self.perf_run(side, case, sizes, self.environment(), registered)
        if side == "nccl" or (side == "registered" and not self.tests):
            return self.perf_run(side, case, sizes, self.environment(LD_PRELOAD=str(nccl)), side == "registered")
        if side == "dropin":
            compat = self.options.build / "lib/tutti/compat"
            return self.nccl_tests(side, case, sizes, self.environment(LD_LIBRARY_PATH=str(compat)))
        if self.tests:
            return self.nccl_tests(side, case, sizes, self.environment(LD_LIBRARY_PATH=str(nccl.parent)))
        return self.torch(case, sizes)
