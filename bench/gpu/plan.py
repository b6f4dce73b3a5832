"""What a run measures, in which order, and when it stops: what is worth most comes first, in its first round before less
important things, in its third after them."""
import collections
import sys
import time

from sides import NAMES, Failed

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast", "reduce"]
FORMS, MODES, RANKS = ["plain", "registered"], ["graph", "eager"], ["threads", "processes"]
VARIANTS = ["independent", "dependent", "rotating", "ctas", "load"]

# One thing to compare. form: of the buffers; ranks: one process with a thread a GPU, or a process a GPU.
Case = collections.namedtuple("Case", "collective form mode ranks variant")
# Each list is powers of one factor, so that nccl-tests needs one run for it.
SIZES = {"all_reduce": [8 << 2 * i for i in range(14)], "sendrecv": [8 << 3 * i for i in range(10)]}
OTHER_SIZES = [KIB << 3 * i for i in range(7)]
QUICK_SIZES = {"all_reduce": [8, 32 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 32 * MIB], "sendrecv": [8, 32 * KIB, 16 * MIB]}
QUICK_OTHERS = [KIB, 64 * KIB, 4 * MIB, 32 * MIB]
# 64 places of the largest are two buffers of half a gigabyte.
VARIANT_SIZES = [8, 32 * KIB, 512 * KIB, 8 * MIB]


def sizes_of(case, options):
    if options.sizes:
        return options.sizes
    if case.variant != "independent":
        return VARIANT_SIZES
    if options.quick:
        return QUICK_SIZES.get(case.collective, QUICK_OTHERS)
    return SIZES.get(case.collective, OTHER_SIZES)


def tier(case):
    """How far down the list: all-reduce with targets; the roofline's all-to-all; the others in graphs; eagerly; then what
    shows whether these figures hold for applications."""
    first = 1 if case.collective == "all_reduce" else 2 if case.collective == "alltoall" else 3
    return (first + (case.mode == "eager" and case.collective != "all_reduce") + 2 * (case.ranks == "processes") +
            (case.form == "registered" and case.collective != "all_reduce") + 2 * (case.variant != "independent"))


def cases(options):
    """All that was asked for. Variants are of all-reduce, plain, in a process: they show what is left of a ratio, which
    the other collectives share. Registered buffers have targets in graphs alone."""
    found = []
    for collective in options.collectives:
        for ranks in options.ranks:
            found += [Case(collective, form, mode, ranks, "independent") for form in options.forms
                      for mode in options.modes if "independent" in options.variants and
                      (form == "plain" or mode == "graph" or "graph" not in options.modes)]
    for variant in options.variants:
        if variant != "independent" and "all_reduce" in options.collectives:
            found += [Case("all_reduce", "plain", mode, options.ranks[0], variant) for mode in options.modes]
    return found


def schedule(options):
    """Pairs of a round (from 0) and a case, what is worth most first."""
    steps = [(number, case) for number in range(options.rounds) for case in cases(options)]
    return sorted(steps, key=lambda step: (tier(step[1]) + 1.5 * step[0], step[0]))


def sides_of(case, options, planned):
    """Who is timed for a case. NCCL's best of plain and registered buffers needs both, of which the first may be measured
    as a case of its own. nccl-tests knows no variants: NCCL is called by tutti-perf there."""
    if case.variant != "independent":
        sides = ["nccl", "tutti"]
    elif case.form == "registered":
        sides = ["registered", "tutti"]
        if case._replace(form="plain") not in planned:
            sides.insert(0, "reference")
    else:
        sides = ["reference", "nccl", "tutti"] if "nccl" in options.sides else ["reference", "tutti"]
        sides += ["dropin"] if options.dropin else []
    wanted = {"registered": "reference", "nccl": "nccl" if case.variant == "independent" else "reference"}
    return [side for side in sides if side == "dropin" or wanted.get(side, side) in options.sides]


class Outcome:
    """What a run measured: `samples` by case, then side, a dict of microseconds by size for each round."""

    def __init__(self):
        self.samples, self.failures, self.left_out = {}, [], []


def step(bench, options, outcome, number, case, sides):
    """All sides of one case once. Each round begins with another side, so that none always runs on a warm machine."""
    turn = number % len(sides)
    # The first round says whether results are right; on the host, that takes longer than measuring.
    bench.check = int(number == 0 or options.check_all)
    for side in sides[turn:] + sides[:turn]:
        here = outcome.samples.setdefault(case, {}).setdefault(side, [])
        try:
            times, wrong = bench.measure(side, case, sizes_of(case, options))
            here.append(times)
            if wrong:
                raise Failed(f"{wrong} results are wrong")
        except Failed as failure:
            outcome.failures.append(f"{NAMES[side]}, {', '.join(case)}, round {number + 1}: {failure}")
            print(outcome.failures[-1], file=sys.stderr, flush=True)


def expected_seconds(case, took):
    """What a step may take: as the same did before, else as the longest of its collective, else of any."""
    alike = took.get(case) or [s for other, all_of in took.items() for s in all_of
                               if other.collective == case.collective and other.ranks == case.ranks]
    return max(alike or [s for all_of in took.values() for s in all_of], default=0)


def run(bench, options, clock=time.monotonic):
    """Goes through the schedule; no step is begun that would not fit into the budget, and the first always is. A side
    that failed in a round is not tried again in that case."""
    outcome, took, started = Outcome(), {}, clock()
    planned = set(cases(options))
    for number, case in schedule(options):
        sides = sides_of(case, options, planned)
        sides = [side for side in sides if number == 0 or outcome.samples.get(case, {}).get(side)]
        if not sides:
            continue
        begun = clock()
        bench.deadline = started + options.budget
        if took and begun - started + expected_seconds(case, took) > options.budget:
            outcome.left_out.append((number, case))
            continue
        step(bench, options, outcome, number, case, sides)
        took.setdefault(case, []).append(clock() - begun)
    return outcome
