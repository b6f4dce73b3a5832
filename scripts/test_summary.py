#!/usr/bin/env python3
"""Sums up ctest's JUnit files: what failed, with its output; what was skipped, with its reason; and the counts."""
import pathlib
import sys
import xml.etree.ElementTree as xml


def reason(case):
    """The line of a skipped test's output that says why, by convention one that begins with SKIP."""
    output = (case.findtext("system-out") or "").splitlines()
    said = [line.strip() for line in output if line.strip().startswith("SKIP")]
    return said[0].removeprefix("SKIP").lstrip(": ") if said else "the test did not say why"


def main():
    passed, failed, skipped = 0, [], []
    for path in sys.argv[1:]:
        preset = pathlib.Path(path).parent.name
        for case in xml.parse(path).getroot().iter("testcase"):
            name = f"{preset}/{case.get('name')}"
            status = case.get("status")
            if status == "run":
                passed += 1
            elif status in ("notrun", "disabled"):
                skipped.append(f"{name}: {reason(case)}")
            else:
                failed.append((name, case.findtext("system-out") or ""))
    for name, output in failed:
        print(f"---- FAILED {name}\n" + "\n".join(output.splitlines()[-60:]))
    for line in skipped:
        print(f"skipped {line}")
    for name, _ in failed:
        print(f"failed  {name}")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
