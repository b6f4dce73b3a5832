"""One rank of a launch of tests/gpu/pytorch/run: runs the cases of modules and reports each to a file.

A report is a line of JSON: the plan first, then the begin and the end of each case, "done" at last. So the script that
started the ranks knows what was running when a rank died. A case is a function of a World; it raises Wrong with what
is wrong, Skip where it does not apply, and whatever it returns is reported as its value.
"""
import argparse
import datetime
import faulthandler
import importlib
import json
import os
import sys
import time
import traceback

CASES = []


class Wrong(Exception):
    """A result that differs from what was computed without the library."""


class Skip(Exception):
    """Why a case does not apply here."""


def case(name, cuda=False, ranks=1, seconds=30):
    """Registers a case: `cuda`, it makes no sense on CPUs; `ranks`, the least number of ranks; `seconds`, its limit."""
    def register(function):
        CASES.append((name, function, cuda, ranks, seconds))
        return function
    return register


class Report:
    def __init__(self, path):
        self.file = open(path, "w")

    def say(self, **what):
        self.file.write(json.dumps(what) + "\n")
        self.file.flush()


class World:
    """What a case needs to know of its rank, and the process group's life."""

    def __init__(self, options):
        import torch
        import torch.distributed
        self.torch, self.dist = torch, torch.distributed
        self.rank, self.size, self.options = options.rank, options.world, options
        self.cuda = options.backend == "nccl"
        self.device = torch.device("cuda", self.rank) if self.cuda else torch.device("cpu")
        self.stores = 0
        self.report = None
        if self.cuda:
            torch.cuda.set_device(self.device)

    def init(self, eager=None, seconds=None, **more):
        """A default process group of all ranks, each time with a store of its own."""
        eager = self.options.init == "eager" if eager is None else eager
        if self.cuda and eager:
            more["device_id"] = self.device
        if self.stores == 0 and self.options.port:
            where = {"init_method": f"tcp://127.0.0.1:{self.options.port}"}
        else:  # no port to be in the way of the next one
            where = {"store": self.dist.FileStore(os.path.join(self.options.folder, f"store{self.stores}"), self.size)}
        self.stores += 1
        self.dist.init_process_group(self.options.backend, rank=self.rank, world_size=self.size,
                                     timeout=datetime.timedelta(seconds=seconds or self.options.timeout), **where, **more)

    def backend(self, group=None):
        return (group or self.dist.group.WORLD)._get_backend(self.device)

    def sync(self):
        if self.cuda:
            self.torch.cuda.synchronize()


def mapped_libraries():
    """Each libnccl.so that this process has mapped."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if len(line.split(None, 5)) > 5}
    return sorted(p for p in paths if os.path.basename(p).startswith("libnccl.so"))


def one(world, report, name, function, cuda, ranks, seconds):
    report.say(begin=name)
    started, outcome = time.monotonic(), {"ok": True}
    faulthandler.dump_traceback_later(seconds if world.cuda else 3 * seconds, exit=True)  # CPUs may be few and slow
    try:
        if cuda and not world.cuda:
            raise Skip("needs GPUs")
        if world.size < ranks:
            raise Skip(f"needs {ranks} ranks")
        outcome["value"] = function(world)
        world.sync()
    except Skip as skip:
        outcome = {"ok": True, "skip": str(skip)}
    except Wrong as wrong:
        outcome = {"ok": False, "why": str(wrong)}
    except Exception as error:  # whatever torch raises is a result of the case
        said = " ".join(str(error).split())
        if not world.cuda and any(word in said.lower() for word in ("gloo", "not support", "no backend type")):
            outcome = {"ok": True, "skip": f"not with gloo: {said[:80]}"}
        else:
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome = {"ok": False, "why": f"{type(error).__name__} at line {where.lineno} of "
                                           f"{os.path.basename(where.filename)}: {said[:400]}"}
    if not outcome["ok"] and world.dist.is_initialized():  # what was half coalesced is not for the next case
        world.dist.distributed_c10d._world.pg_coalesce_state.clear()
    faulthandler.cancel_dump_traceback_later()
    report.say(end=name, seconds=round(time.monotonic() - started, 2), **outcome)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", help="with commas between them")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--port", type=int, default=0, help="of the store of the first process group; 0: a file")
    parser.add_argument("--folder", default=".", help="shared by the ranks; empty at first")
    parser.add_argument("--report", default="/dev/stdout")
    parser.add_argument("--init", choices=("eager", "lazy", "none"), default="eager")
    parser.add_argument("--timeout", type=int, default=18, help="seconds, of the process group")
    parser.add_argument("--leave", action="store_true", help="end without destroying the process group")
    parser.add_argument("--library", default="", help="path that the one mapped libnccl.so.2 must have")
    parser.add_argument("--case", action="append", help="run these only")
    parser.add_argument("--skip", action="append", default=[], help="do not run this one")
    parser.add_argument("--tag", action="append", default=[], help="only cases whose names begin so")
    return parser.parse_args()


def main():
    faulthandler.enable()
    options = arguments()
    report = Report(options.report)
    sys.modules["harness"] = sys.modules["__main__"]  # modules register their cases here
    for module in options.modules.split(","):
        importlib.import_module(module)
    chosen = [c for c in CASES if c[0] not in options.skip and (not options.case or c[0] in options.case) and
              (not options.tag or any(c[0].startswith(tag) for tag in options.tag))]
    report.say(plan=[c[0] for c in chosen])
    world = World(options)
    world.report = report
    if options.init != "none":
        faulthandler.dump_traceback_later(80, exit=True)
        world.init()
        faulthandler.cancel_dump_traceback_later()
    for item in chosen:
        one(world, report, *item)
    faulthandler.dump_traceback_later(60, exit=True)
    if not options.leave and world.dist.is_initialized():
        world.dist.destroy_process_group()
    report.say(done=True)


if __name__ == "__main__":
    main()
