#!/bin/sh
# Inside of the virtual machine: one message stream from rxe1 to rxe0, both ways at once, and the latency of 8 bytes; by
# perftest, then by two ranks.
#   inside.sh FOLDER_OF_PROGRAMS FOLDER_OF_PLUGINS
bin=$1
plugin=$2/libtutti-net-ib.so

best() { # -n or -nr: the largest or smallest value of three runs, since what else the machine does only slows them down
  order=$1
  shift
  for _ in 1 2 3; do "$@"; done | sort "$order" | tail -n 1
}

# perftest's own defaults but for the GID, the number of messages, and a time-out that an emulated machine keeps.
verbs() { # program column argument...
  program=$1 column=$2
  shift 2
  "$program" -d rxe0 -x 1 -u 18 -F "$@" >/run/server.log 2>&1 &
  server=$!
  sleep 1
  "$program" -d rxe1 -x 1 -u 18 -F "$@" 10.77.0.1 >/run/client.log 2>&1 || cat /run/client.log >&2
  wait $server
  awk -v column="$column" '/^ *[0-9]+ +[0-9]/ { value = $column } END { print value }' /run/client.log
}

ranks() { # collective bytes iterations: microseconds of an operation, out of place
  for rank in 0 1; do
    NCCL_HOSTID=host$rank NCCL_IB_HCA="=rxe$rank" NCCL_SOCKET_IFNAME="=veth$rank" NCCL_NET=IB NCCL_IB_TIMEOUT=18 \
      NCCL_NET_PLUGIN="$plugin" timeout 300 "$bin/tutti-perf" "$1" --sizes "$2" -w 2 --iters "$3" -c 0 --form out \
      --rank $rank --nranks 2 --root-addr 127.0.0.1:29600 >/run/rank$rank.log 2>&1 &
  done
  wait
  awk '/^ +[0-9]+ +[0-9]+ +[a-z]/ { value = $6 } END { print value }' /run/rank0.log
}

line() { # what, of perftest, of the ranks, unit, ratio
  printf '%-34s %12s %12s %-6s %6s\n' "$@"
}

line '' perftest tutti-perf '' ratio
for bytes in 1048576 16777216; do
  count=$((32 * 1048576 / bytes))
  size=$((bytes / 1048576))M
  [ $bytes -gt 8388608 ] && largest=8388608 || largest=$bytes # a message of rxe is at most 8 MiB
  one=$(best -n verbs ib_write_bw 4 -s "$largest" -n $((64 * 1048576 / largest)))
  both=$(best -n verbs ib_write_bw 4 -b -s "$largest" -n $((64 * 1048576 / largest)))
  way=$(best -nr ranks broadcast $bytes $count)
  pair=$(best -nr ranks sendrecv $bytes $count)
  awk -v a="$one" -v b="$way" -v n=$bytes 'BEGIN { printf "%.4f %.4f\n", n / b / 1.048576, n / b / 1.048576 / a }' |
    { read -r rate ratio; line "$size one way (broadcast)" "$one" "$rate" MiB/s "$ratio"; }
  awk -v a="$both" -v b="$pair" -v n=$bytes 'BEGIN { printf "%.4f %.4f\n", 2 * n / b / 1.048576, 2 * n / b / 1.048576 / a }' |
    { read -r rate ratio; line "$size both ways (sendrecv)" "$both" "$rate" MiB/s "$ratio"; }
done
latency=$(best -nr verbs ib_write_lat 6 -s 8 -n 1000)
hop=$(best -nr ranks sendrecv 8 200)
awk -v a="$latency" -v b="$hop" 'BEGIN { printf "%.2f\n", b / a }' |
  { read -r ratio; line '8 bytes (sendrecv)' "$latency" "$hop" us "$ratio"; }
