"""What the scripts of this folder share: groups of cases, which run as processes and become PASS, FAIL and SKIP lines.

A group runs in processes of its own, since most of what is tried is set by the environment, which a process reads once.
"""
import argparse
import glob
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

LINE = re.compile(r"^(PASS|FAIL|SKIP) ")
CHOICE = re.compile(r"(\w+): \d+ bytes -> algorithm (\S+) protocol (\S+) channels (\d+)")
VIA = re.compile(r"Channel \d+/\d+ : \d+\[\S+\] -> \d+\[\S+\] .*?via (.*\S)")
TOOL_ERRORS = re.compile(r"(ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]).*")
TOOL_FINDINGS = re.compile(r"(Race reported|Invalid __|Uninitialized|Misaligned).*")
ALLOWANCE = 45  # seconds for one group; most take less than 10


class Group:
    """Cases of one process, or of processes of one launch."""

    def __init__(self, name, command, seconds=ALLOWANCE, expect=None, via=None, says=None, verdict=None, skip=None,
                 **env):
        self.name, self.command, self.seconds, self.env = name, [str(c) for c in command], seconds, env
        self.expect = expect  # (collective, algorithm, protocol, channels): None for "any"
        self.via = via  # patterns of transports' names: each must be used, and nothing else
        self.says = says  # words that the log must have
        self.verdict = verdict  # of a foreign program: its lines, from its status, output and errors
        self.skip = skip  # why it cannot be run here


def plain(name):
    return name.replace("_", "").lower()


def log_lines(folder):
    for path in glob.glob(os.path.join(folder, "log.*")):
        with open(path, errors="replace") as f:
            yield from f


def wrong_choices(folder, expect):
    """What the log says was used, where that is not what was asked for; and how many choices it has."""
    wanted = {e[0]: e[1:] for e in expect}
    found, wrong = 0, {}
    for line in log_lines(folder):
        match = CHOICE.search(line)
        if not match or match[1] not in wanted:
            continue
        found += 1
        algorithm, protocol, channels = wanted[match[1]]
        right = algorithm is None or plain(match[2]) == plain(algorithm)
        right = right and (protocol is None or plain(match[3]) == plain(protocol))
        if not right or (channels and int(match[4]) != channels):
            wrong[f"{match[1]} used {match[2]} {match[3]} with {match[4]} channels"] = True
    return found, sorted(wrong)


def wrong_transports(folder, via):
    """Transports in the log that should not have been used, and those missing; and how many connections it has."""
    used = [match[1] for match in map(VIA.search, log_lines(folder)) if match]
    wrong = sorted({f"{name} was used" for name in used if not any(re.match(pattern, name) for pattern in via)})
    missing = [f"{pattern} was not used" for pattern in via if not any(re.match(pattern, name) for name in used)]
    return len(used), wrong + (missing if used else [])


def execute(command, env, seconds):
    """Status (None: it was ended for taking too long), lines of output, and the lines of errors."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   errors="replace", start_new_session=True)
        try:
            output, _ = process.communicate(timeout=seconds)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            status = None
        errors.seek(0)
        said = [line.strip() for line in errors if line.strip()]
    return status, output.splitlines(), said


def judge(group, status, output, said, choices, transports=None, silent=False):
    """The lines of a group: its own, and one more where its end does not agree with them."""
    lines = [line for line in output if LINE.match(line)]
    failed = any(line.startswith("FAIL") for line in lines)
    noise = [line.strip() for line in output if line.strip() and not LINE.match(line)]
    last = "; ".join(said[-2:] or noise[-2:]) or "without a word"
    if status is None:
        lines.append(f"FAIL {group.name}: was ended after {group.seconds} s; {last}")
    elif status == 77:
        lines += [] if lines else [f"SKIP {group.name}: {last}"]
    elif status == 0 and not lines:
        lines.append(f"PASS {group.name}")
    elif status != 0 and not (failed and status == 1):
        lines.append(f"FAIL {group.name}: ended with status {status}: {last}")
    found_by_tool = [line for line in noise if TOOL_ERRORS.search(line)]
    if found_by_tool:
        first = [match[0] for match in map(TOOL_FINDINGS.search, noise) if match][:2]
        lines.append(f"FAIL {group.name}: {'; '.join(found_by_tool[:1] + first)}")
    for what, silence in ((choices, "the log does not say what was used"),
                          (transports, "the log does not say which transports were used")):
        if what and status in (0, 1) and (what[1] or not what[0]):
            lines.append(f"FAIL {group.name}: {'; '.join(what[1][:3]) or silence}")
    if silent and status in (0, 1):
        lines.append(f"FAIL {group.name}: the log does not say \"{group.says}\"")
    return lines


def run_group(group, device):
    if group.skip:
        return [f"SKIP {group.name}: {group.skip}"]
    env = dict(os.environ, **{k: str(v) for k, v in group.env.items()})
    env["TUTTI_DEVICE"] = device
    with tempfile.TemporaryDirectory() as folder:
        if group.expect or group.via or group.says:
            subsystems = ["TUNING"] * bool(group.expect) + ["INIT"] * bool(group.via or group.says)
            subsystems += ["P2P", "SHM", "NET"] * bool(group.via)
            env.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS=",".join(subsystems),
                       NCCL_DEBUG_FILE=os.path.join(folder, "log.%p"))
        status, output, said = execute(group.command, env, group.seconds)
        if group.verdict:
            return group.verdict(group, status, output, said)
        if status is None:  # it had no time to say it itself
            said += [line.strip() for line in log_lines(folder) if "NCCL WARN" in line][:2]
        choices = wrong_choices(folder, group.expect) if group.expect else None
        transports = wrong_transports(folder, group.via) if group.via else None
        silent = bool(group.says) and not any(group.says in line for line in log_lines(folder))
    return judge(group, status, output, said, choices, transports, silent)


def tell(lines, log, counts):
    for line in lines:
        counts[line[:4]] += 1
        if log:
            print(line, file=log, flush=True)
        if not log or not line.startswith("PASS"):
            print(line, flush=True)


def chosen_groups(groups, only, shard):
    """Those with the text in their names, and of these every n-th."""
    number, of = (int(part) for part in shard.split("/"))
    return [group for group in groups if only in group.name][number - 1::of]


def run_all(groups, options, log):
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    started = time.monotonic()
    for group in chosen_groups(groups, options.only, options.shard):
        begun = time.monotonic()
        left = options.budget - (begun - started)
        if left < 5:
            tell([f"FAIL {group.name}: not run, since the {options.budget} s of --budget are over"], log, counts)
            continue
        group.seconds = min(group.seconds, int(left))
        before = dict(counts)
        tell(run_group(group, options.device), log, counts)
        if log:
            took = time.monotonic() - begun
            print(f"     {group.name}: {counts['PASS'] - before['PASS']} passed, "
                  f"{counts['FAIL'] - before['FAIL']} failed, {took:.1f} s", flush=True)
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped, "
          f"{time.monotonic() - started:.0f} s", flush=True)
    return 1 if counts["FAIL"] or not counts["PASS"] else 0


def count_gpus():
    return len(glob.glob("/proc/driver/nvidia/gpus/*")) or len(glob.glob("/dev/nvidia[0-9]*"))


def part(text):
    """I/N of --shard."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text}: must be I/N with I from 1 to N, such as 1/4")
    return text


def writable(text):
    """A file that can be written: else that would show when groups have run, or never."""
    try:
        with open(text, "a"):
            return pathlib.Path(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: cannot be written: {error.strerror}") from error


def add_options(parser, build, budget):
    """The options that all scripts have."""
    parser.add_argument("--build", type=type(build), default=build)
    parser.add_argument("--gpus", type=int, default=0, help="use so many (all)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--log", type=writable, help="every line goes there; failures are printed, too")
    parser.add_argument("--only", default="", help="groups whose name has this text")
    parser.add_argument("--shard", type=part, default="1/1", help="I/N: the I-th part of N, to spread the work over several calls")
    parser.add_argument("--budget", type=int, default=budget, help="seconds for all")
    parser.add_argument("--device", default="cuda", help="host: the same on CPUs, to try the script")


def run_with_log(groups, options):
    if options.log:
        with open(options.log, "w") as log:
            return run_all(groups, options, log)
    return run_all(groups, options, None)
