#!/bin/sh
# expect.sh PATTERN PROGRAM ARGUMENT...: runs the program, and fails also if the library's log has no line with the
# pattern: then something else was used than what the test is for.
set -u
pattern=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV,INIT,TUNING,NVLS,REG "$@" >"$log" 2>&1
status=$?
grep -v 'NCCL INFO' "$log"
[ $status -eq 0 ] || exit $status
grep -qE "$pattern" "$log" || { echo "the log has no \"$pattern\""; exit 1; }
