#!/bin/sh
# Compares what abi_dump prints for two headers: compare_abi.sh OURS THEIRS
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" >"$work/ours"
"$2" >"$work/theirs"
diff "$work/ours" "$work/theirs"
echo "$(wc -l <"$work/ours") facts equal"
