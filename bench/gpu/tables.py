"""What a run prints and keeps: a table for each case with times, ratio, target and verdict, and all of it as JSON."""
import os
import statistics
import subprocess
import time

import targets
from plan import cases, sizes_of
from sides import NAMES, size_name


def number(value):
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def median(samples, size):
    values = [sample[size] for sample in samples if size in sample]
    return statistics.median(values) if values else None


def medians(by_side, size):
    found = {side: median(samples, size) for side, samples in by_side.items()}
    return {side: us for side, us in found.items() if us is not None}


def nccl_best(us):
    """NCCL's side: nccl-tests' best where it ran, else tutti-perf's. Key and microseconds, or two of None."""
    ran = [side for side in ("reference", "registered") if side in us] or [side for side in ("nccl",) if side in us]
    best = min(ran, key=us.get, default=None)
    return best, us.get(best)


def seen_rate(samples, gpus):
    """The wires' rate as this run has seen it, by whichever side."""
    seen = []
    for case, by_side in samples.items():
        for taken in by_side.values():
            sizes = {size for sample in taken for size in sample}
            seen.append((case.collective, {size: median(taken, size) for size in sizes}))
    return targets.wire_rate(seen, gpus)


def case_rows(case, samples, options, rate):
    """A dict for each size: us by side, NCCL's best, the ratio, the target, the roofline and the verdict."""
    by_side = dict(samples[case])
    if case.form == "registered":  # NCCL's best of both
        by_side.setdefault("reference", samples.get(case._replace(form="plain"), {}).get("reference", []))
    rows = []
    for size in sizes_of(case, options):
        us = medians(by_side, size)
        side, best = nccl_best(us)
        target = targets.ratio(case.collective, case.form, case.mode, size, options.gpus) \
            if case.variant == "independent" else None
        least = targets.roofline(case.collective, case.mode, size, options.gpus, rate)
        rows.append({"bytes": size, "us": us, "nccl_side": side, "nccl": best, "tutti": us.get("tutti"),
                     "ratio": us["tutti"] / best if us.get("tutti") and best else None, "target": target,
                     "roofline": least, "verdict": targets.judge(us.get("tutti"), best, target, least)})
    return rows


def markdown(rows):
    """Sides other than NCCL's best and Tutti have columns of their own where they ran."""
    others = [side for side in ("nccl", "dropin") if any(side in row["us"] and row["nccl_side"] != side for row in rows)]
    both = any(row["nccl_side"] == "registered" for row in rows)
    head = ["size", "NCCL, us", *(["NCCL's best"] if both else []), "Tutti, us", "ratio", "target", "1.05 roofline, us",
            "verdict", *(f"{NAMES[side]}, us" for side in others)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        best = {"registered": "registered", "reference": "plain"}.get(row["nccl_side"], "-")
        cells = [size_name(row["bytes"]), number(row["nccl"]), *([best] if both else []), number(row["tutti"]),
                 number(row["ratio"]), number(row["target"]),
                 number(targets.SLACK * row["roofline"] if row["roofline"] else None), row["verdict"],
                 *(number(row["us"].get(side)) for side in others)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ask(*command):
    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
        return done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine():
    cards = [line.strip() for line in ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()]
    return {"cards": cards,
            "driver": (ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines() or ["?"])[0],
            "processors": os.cpu_count(), "system": " ".join(os.uname()[i] for i in (0, 2, 4)),
            "date": time.strftime("%Y-%m-%d %H:%M:%S %Z")}


def title(case, count):
    words = {"threads": "a thread a GPU", "processes": "a process a GPU", "ctas": "with NCCL's number of CTAs",
             "dependent": "each iteration waits for the one before", "rotating": "64 rotating buffers",
             "load": "beside a matrix product", "independent": ""}
    parts = [case.collective, "float sum" if "reduce" in case.collective else "float", case.form, case.mode,
             words[case.ranks], words[case.variant], "out of place", f"medians of {count} rounds"]
    return ", ".join(part for part in parts if part)


def print_head(bench, options, facts, rate):
    cards = sorted(set(facts["cards"])) or ["no card that nvidia-smi knows"]
    print(f"\n{options.gpus} x {', '.join(cards)}, driver {facts['driver']}, {facts['processors']} processors, "
          f"{facts['system']}, {facts['date']}")
    print(f"NCCL {options.nccl}, by {'nccl-tests' if bench.tests else 'PyTorch'}; NCCL_NVLS_ENABLE=0 for all")
    for name, version in bench.versions.items():
        print(f"{name}: {version}")
    print("the wires' rate was not measured: run alltoall or sendrecv too" if rate is None else
          f"a GPU's wires carried {rate / 1000:.0f} GB/s; the roofline is bytes over that, a launch and the hops")


def print_tail(rows, outcome):
    verdicts = [row["verdict"] for row in rows]
    print(f"\n{verdicts.count('met')} targets met, {verdicts.count('missed')} missed")
    for number_of_round, case in outcome.left_out:
        print(f"left out, since it would not fit into the budget: {', '.join(case)}, round {number_of_round + 1}")
    for failure in outcome.failures:
        print(f"FAILED {failure}")


def report(bench, options, outcome):
    """Prints all; returns what --json keeps."""
    facts, rate, all_rows = machine(), seen_rate(outcome.samples, options.gpus), []
    print_head(bench, options, facts, rate)
    result = {"machine": facts, "gpus": options.gpus, "nccl": str(options.nccl), "versions": bench.versions,
              "commands": bench.commands, "bytes_per_microsecond": rate, "failures": outcome.failures,
              "left_out": [[number_of_round, *case] for number_of_round, case in outcome.left_out], "tables": []}
    for case in cases(options):
        if not any(outcome.samples.get(case, {}).values()):
            continue
        rows = case_rows(case, outcome.samples, options, rate)
        count = max(len(taken) for taken in outcome.samples[case].values())
        print(f"\n{title(case, count)}\n\n{markdown(rows)}")
        all_rows += rows
        result["tables"].append({**case._asdict(), "rows": rows,
                                 "samples": {side: [{str(k): v for k, v in s.items()} for s in taken]
                                             for side, taken in outcome.samples[case].items()}})
    print_tail(all_rows, outcome)
    return result
