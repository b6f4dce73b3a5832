#!/bin/sh
# Installs into an empty prefix and builds programs against it in every documented way: pkg-config, -lnccl against the
# drop-in, find_package.
#   run.sh BUILD_DIR SOURCE_DIR CMAKE [compile flags for the programs]
set -eu
build=$1 source=$2 cmake=$3 flags=${4:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/usr
"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log"
lib=$(dirname "$(find "$prefix" -name libtutti.so.2)")
export PKG_CONFIG_PATH="$lib/pkgconfig"
pkg() { pkg-config "$@" tutti; }
example=$source/examples/all_reduce.c

# shellcheck disable=SC2046,SC2086 # flags are separate words
cc $flags "$example" $(pkg --cflags --libs) -o "$work/linked"
LD_LIBRARY_PATH=$lib "$work/linked"
# shellcheck disable=SC2046,SC2086
cc $flags "$source/examples/survivors.c" $(pkg --cflags --libs) -o "$work/survivors"
LD_LIBRARY_PATH=$lib "$work/survivors"
# Their buffers are ordinary memory, so on a machine with GPUs, too, they ask for the host device.
for program in linked survivors; do
  env -u TUTTI_DEVICE NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV LD_LIBRARY_PATH="$lib" "$work/$program" 2>&1 |
    grep "TUTTI_DEVICE.*host" >/dev/null || { echo "$program takes GPUs where there are any"; exit 1; }
done
echo "pkg-config tutti: ok"

compat=$(pkg --variable=compatdir)
# shellcheck disable=SC2046,SC2086
cc $flags "$example" $(pkg --cflags) -L"$compat" -lnccl -o "$work/dropin"
readelf -d "$work/dropin" | grep -q 'NEEDED.*libnccl\.so\.2' || { echo "the program does not need libnccl.so.2"; exit 1; }
LD_LIBRARY_PATH=$compat "$work/dropin"
echo "-lnccl against the drop-in: ok"

mkdir "$work/consumer"
cp "$example" "$work/consumer/main.c"
cat >"$work/consumer/CMakeLists.txt" <<TXT
cmake_minimum_required(VERSION 3.22)
project(consumer C)
find_package(Tutti REQUIRED)
add_executable(consumer main.c)
target_link_libraries(consumer Tutti::tutti)
TXT
"$cmake" -S "$work/consumer" -B "$work/consumer/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS="$flags" >"$work/consumer.log"
"$cmake" --build "$work/consumer/build" >>"$work/consumer.log" || { cat "$work/consumer.log"; exit 1; }
"$work/consumer/build/consumer"
echo "find_package(Tutti): ok"

plugins=$(pkg --variable=plugindir)
[ -f "$plugins/libtutti-net-socket.so" ] || { echo "$plugins has no libtutti-net-socket.so"; exit 1; }
[ -f "$plugins/libtutti-tuner.so" ] || { echo "$plugins has no libtutti-tuner.so"; exit 1; }
[ ! -f "$build/lib/tutti/libtutti-device-cuda.so" ] || [ -f "$plugins/libtutti-device-cuda.so" ] ||
  { echo "$plugins has no libtutti-device-cuda.so, which was built"; exit 1; }
[ -x "$prefix/bin/tutti-perf" ] && [ -x "$prefix/bin/tutti-info" ] && [ -x "$prefix/bin/tutti-run" ] &&
  [ -x "$prefix/bin/tutti-tune" ] && [ -x "$prefix/bin/tutti-topo" ] ||
  { echo "$prefix/bin lacks a tool"; ls "$prefix/bin"; exit 1; }
LD_LIBRARY_PATH=$lib "$prefix/bin/tutti-perf" all_reduce --device host -n 2 -b 1K -e 1K >"$work/perf.log" || { cat "$work/perf.log"; exit 1; }
NCCL_DEBUG=INFO NCCL_SHM_DISABLE=1 LD_LIBRARY_PATH=$compat "$work/dropin" | grep "NET/Socket" >/dev/null ||
  { echo "the drop-in does not find the plugins beside it"; exit 1; }
echo "tools and plugins: ok"
