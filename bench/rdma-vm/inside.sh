#!/bin/sh
# Inside of the virtual machine: perftest, then two ranks, from rxe1 to rxe0, one way and both ways at once; the processor
# time of that; and where the time of 8 bytes goes.
#   inside.sh FOLDER_OF_PROGRAMS FOLDER_OF_PLUGINS PINGPONG
bin=$1
plugins=$2
pingpong=$3

# All numbers are the best of several runs, since what else the machine does only slows them down.
best() { # -n or -nr: the largest or smallest value
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
  until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done # it listens on port 18515
  "$program" -d rxe1 -x 1 -u 18 -F "$@" 10.77.0.1 >/run/client.log 2>&1 || cat /run/client.log >&2
  wait $server
  awk -v column="$column" '/^ *[0-9]+ +[0-9]/ { value = $column } END { print value }' /run/client.log
}

# Each host has one device, and sockets go over lo: both addresses are this machine's.
ranks() { # network collective sizes iterations: microseconds of an operation, out of place, of the best size
  network=$1
  for rank in 0 1; do
    NCCL_HOSTID=host$rank NCCL_IB_HCA="=rxe$rank" NCCL_SOCKET_IFNAME="=veth$rank" NCCL_NET=$network NCCL_IB_TIMEOUT=18 \
      NCCL_NET_PLUGIN="$plugins/libtutti-net-ib.so" timeout 300 "$bin/tutti-perf" "$2" --sizes "$3" -w 2 --iters "$4" \
      -c 0 --form out --rank $rank --nranks 2 --root-addr 127.0.0.1:29600 >/run/rank$rank.log 2>&1 &
  done
  wait
  awk '/^ +[0-9]+ +[0-9]+ +[a-z]/ { if (!value || $6 < value) value = $6 } END { print value }' /run/rank0.log
}

# A plugin without library and proxy: microseconds of the best tenth of the rounds, of the best run.
alone() { # plugin argument...
  plugin=$1
  shift
  for _ in 1 2 3 4 5; do
    NCCL_IB_TIMEOUT=18 "$pingpong" "$plugins/libtutti-net-$plugin.so" 8 200 "$@" --env0 NCCL_IB_HCA==rxe0 \
      --env1 NCCL_IB_HCA==rxe1 --env0 NCCL_SOCKET_IFNAME==veth0 --env1 NCCL_SOCKET_IFNAME==veth1
  done | awk '!value || $2 < value { value = $2 } END { print value }'
}

line() { # what, of perftest, of the ranks, unit, ratio
  printf '%-36s %12s %12s %-6s %6s\n' "$@"
}

line '' perftest tutti-perf '' ratio
for bytes in 1048576 16777216; do
  count=$((32 * 1048576 / bytes))
  size=$((bytes / 1048576))M
  [ $bytes -gt 8388608 ] && largest=8388608 || largest=$bytes # a message of rxe is at most 8 MiB
  one=$(best -n verbs ib_write_bw 4 -s "$largest" -n $((64 * 1048576 / largest)))
  both=$(best -n verbs ib_write_bw 4 -b -s "$largest" -n $((64 * 1048576 / largest)))
  way=$(best -nr ranks IB broadcast $bytes $count)
  pair=$(best -nr ranks IB sendrecv $bytes $count)
  awk -v a="$one" -v b="$way" -v n=$bytes 'BEGIN { printf "%.4f %.4f\n", n / b / 1.048576, n / b / 1.048576 / a }' |
    { read -r rate ratio; line "$size one way (broadcast)" "$one" "$rate" MiB/s "$ratio"; }
  awk -v a="$both" -v b="$pair" -v n=$bytes 'BEGIN { printf "%.4f %.4f\n", 2 * n / b / 1.048576, 2 * n / b / 1.048576 / a }' |
    { read -r rate ratio; line "$size both ways (sendrecv)" "$both" "$rate" MiB/s "$ratio"; }
done

# Processor seconds of both ends for each 10^9 bytes, polling included: of a long run less those of a short one, since
# starting takes its time too.
spent() { # command: its seconds, and its children's
  (
    "$@" >/dev/null
    times
  ) | awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum += 60 * t[1] + t[2] } print sum }'
}
per_gigabyte() { # bytes of the difference, seconds of the long run and the short
  awk -v n="$1" -v a="$2" -v b="$3" 'BEGIN { printf "%.1f\n", (a - b) / n * 1e9 }'
}
moved=$((28 * 8388608))
long=$(spent verbs ib_write_bw 4 -s 8388608 -n 33)
short=$(spent verbs ib_write_bw 4 -s 8388608 -n 5)
echo
echo "processor seconds for 10^9 bytes one way, in messages of 8 MiB"
printf '  %-34s %8s\n' ib_write_bw "$(per_gigabyte $moved "$long" "$short")"
for network in IB Socket; do
  long=$(spent ranks $network broadcast 8388608 29)
  short=$(spent ranks $network broadcast 8388608 1)
  printf '  %-34s %8s\n' "broadcast, $network" "$(per_gigabyte $moved "$long" "$short")"
done

# 8 bytes. A message of net-ib is two writes, its clear-to-send and itself, but where many receives are posted before, and
# here the processors that wait for them also carry them; what ib_write_lat does is one.
echo
latency=$(best -nr verbs ib_write_lat 5 -s 8 -n 500)
times8=8,8,8,8,8,8,8,8
row() { # what, microseconds
  awk -v what="$1" -v value="$2" -v of="$latency" 'BEGIN { printf "  %-58s %9.1f %7.2f\n", what, value, value / of }'
}
printf '  %-58s %9s %7s\n' '8 bytes' us ratio
row 'ib_write_lat, there and back' "$latency"
row 'ib_send_lat, there and back' "$(best -nr verbs ib_send_lat 5 -s 8 -n 500)"
row 'net-ib alone, there and back, two receives posted before' "$(alone ib --ahead 2)"
row 'net-ib alone, there and back, eight posted before' "$(alone ib --ahead 8)"
row 'net-ib alone, both ways at once, receives posted with them' "$(alone ib --both --ahead 0)"
row 'sendrecv over net-ib' "$(best -nr ranks IB sendrecv $times8 30)"
row 'net-socket alone, both ways at once' "$(alone socket --both --ahead 0)"
row 'sendrecv over net-socket' "$(best -nr ranks Socket sendrecv $times8 30)"
