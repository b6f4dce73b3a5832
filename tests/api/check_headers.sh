#!/bin/sh
# Each public header compiles by itself, as C and as C++, without CUDA's headers and, where they are, with them.
#   check_headers.sh INCLUDE_DIR [CUDA_INCLUDE_DIR]
set -eu
count=0
for header in $(cd "$1" && find . -name '*.h' | sed 's|^\./||' | sort); do
  for language in "cc -std=c11 -x c" "cc -std=c17 -x c" "c++ -std=c++17 -x c++"; do
    # shellcheck disable=SC2086 # a command and its flags
    echo "#include <$header>" | $language -Wall -Wextra -Werror -DTUTTI_NO_CUDA_HEADERS -I"$1" -fsyntax-only - ||
      { echo "$header does not compile with $language"; exit 1; }
    count=$((count + 1))
    [ -n "${2:-}" ] || continue
    # shellcheck disable=SC2086
    echo "#include <$header>" | $language -Wall -Wextra -Werror -I"$1" -isystem "$2" -fsyntax-only - ||
      { echo "$header does not compile with $language and CUDA's headers"; exit 1; }
    count=$((count + 1))
  done
done
echo "$count compilations"
