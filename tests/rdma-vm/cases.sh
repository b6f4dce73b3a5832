#!/bin/sh
# Runs inside of the virtual machine (machine.py): net-ib on real verbs. Prints a line for each case, PASS or FAIL with the
# end of what it printed, and what the tools said.
#   cases.sh FOLDER_OF_PROGRAMS FOLDER_OF_PLUGINS
bin=$1
plugin=$2/libtutti-net-ib.so
log=/run/case.log
failed=0

# Ranks of one host that use nothing but the network. A time of 2^18 * 4 us is as short as an emulated machine allows.
export NCCL_NET=IB NCCL_NET_PLUGIN="$plugin" NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=veth NCCL_IB_TIMEOUT=18
perf() { timeout 120 "$bin/tutti-perf" "$@" >$log 2>&1; }

verdict() { # passed? name what
  if [ "$1" = 0 ]; then
    echo "PASS $2: $3"
  else
    echo "FAIL $2: $3"
    tail -n 40 $log
    failed=1
  fi
}

counter() { # of rxe0 and rxe1 together
  cat /sys/class/infiniband/rxe[01]/ports/1/hw_counters/"$1" | { read -r a; read -r b; echo $((a + b)); }
}

impair() { for end in 0 1; do tc qdisc replace dev veth$end root netem "$@"; done; }
repair() { for end in 0 1; do tc qdisc delete dev veth$end root; done; }

right() { grep -q 'Out of bounds values : 0 OK' $log; }

# What netem does has to be seen: $3 is a counter of rxe that must grow.
impaired() { # name counter netem...
  name=$1 which=$2
  shift 2
  before=$(counter "$which")
  impair "$@"
  perf all_reduce -n 4 -b 256K -e 256K -w 1 --iters 5
  status=$?
  repair
  grown=$(($(counter "$which") - before))
  right && [ $status = 0 ] && { [ $grown -gt 0 ] || [ "$which" = sent_pkts ]; }
  verdict $? "$name" "4 ranks, 256 KiB, netem $*; $which grew by $grown"
}

echo "== tests/netabi"
timeout 200 "$bin/netabi" "$plugin" --deadline 60 >$log 2>&1
status=$?
cat $log
verdict $status netabi 'the rules of tutti/net.h'

echo "== tutti-perf"
packets=$(counter sent_pkts)
perf all_reduce -n 4 -b 8 -e 1M -f 512 -w 1 --iters 3
status=$?
cat $log
right && [ $status = 0 ] && [ $(($(counter sent_pkts) - packets)) -gt 0 ]
verdict $? all_reduce "4 ranks over $(($(counter sent_pkts) - packets)) packets"

impaired loss rcvd_seq_err loss 1%
impaired delay sent_pkts delay 2ms
impaired reordering out_of_seq_request delay 5ms reorder 75% gap 3

# Waits until ranks that run in the background have exchanged so many packets more, so that they are connected.
moving() {
  until=$(($(counter sent_pkts) + $1))
  tries=0
  while [ "$(counter sent_pkts)" -lt $until ] && [ $tries -lt 300 ]; do
    sleep 0.2
    tries=$((tries + 1))
  done
}

# A link that comes back before the queue pairs have tried often enough.
echo "== link down and up"
perf all_reduce -n 4 -b 256K -e 256K -w 1 --iters 30 &
ranks=$!
moving 2000
/run/link down 1
sleep 2
/run/link up 1
wait $ranks
status=$?
right && [ $status = 0 ]
verdict $? link-back '4 ranks, veth1 down for 2 s'

# One that does not: an error on the ranks, which names where, and an end.
echo "== link down for good"
NCCL_IB_TIMEOUT=14 NCCL_IB_RETRY_CNT=2 perf all_reduce -n 4 -b 256K -e 256K -w 1 --iters 5000 &
ranks=$!
moving 2000
/run/link down 1
wait $ranks
status=$?
/run/link up 1
grep -v '^#' $log
[ $status != 0 ] && [ $status != 124 ] && grep -q 'rxe[01]' $log
verdict $? link-gone "tutti-perf ended with status $status"
exit $failed
