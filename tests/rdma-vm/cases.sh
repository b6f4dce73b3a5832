#!/bin/sh
# Runs inside of the virtual machine (machine.py): net-ib on real verbs, and what sockets count. Prints a line for each case, PASS or FAIL with the
# end of what it printed, and what the tools said.
#   cases.sh FOLDER_OF_PROGRAMS FOLDER_OF_PLUGINS
bin=$1
plugin=$2/libtutti-net-ib.so
log=/run/case.log
failed=0

# Half of the ranks have rxe0, on a host by that name, and half have rxe1. So there is traffic over the cable, and between
# ranks of a host, which share no memory, within a device. A time-out of 2^18 * 4 us is as short as an emulated machine
# allows.
export NCCL_NET=IB NCCL_NET_PLUGIN="$plugin" NCCL_SHM_DISABLE=1 NCCL_IB_TIMEOUT=18
perf() { # ranks argument...: fails if a rank does
  ranks=$1
  shift
  started=
  for rank in $(seq 0 $((ranks - 1))); do
    half=$((2 * rank / ranks))
    NCCL_HOSTID=host$half NCCL_IB_HCA="=rxe$half" NCCL_SOCKET_IFNAME="=veth$half" timeout 120 "$bin/tutti-perf" "$@" \
      --rank "$rank" --nranks "$ranks" --root-addr 127.0.0.1:29600 >"$log.$rank" 2>&1 &
    started="$started $!"
  done
  worst=0
  for process in $started; do wait "$process" || worst=$?; done
  cat $log.[0-9] >$log
  rm $log.[0-9]
  return $worst
}

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
  perf 4 all_reduce -b 64K -e 64K -w 1 --iters 4
  status=$?
  repair
  grown=$(($(counter "$which") - before))
  right && [ $status = 0 ] && { [ $grown -gt 0 ] || [ "$which" = sent_pkts ]; }
  verdict $? "$name" "4 ranks, 64 KiB, netem $*; $which grew by $grown"
}

echo "== tests/netabi"
: >$log
status=0
# All clauses, or those named: each takes seconds here.
for clause in ${RDMA_VM_CLAUSES:-all}; do
  if [ "$clause" = all ]; then only=; else only="--only $clause"; fi
  # shellcheck disable=SC2086 # two words or none
  timeout 300 "$bin/netabi" "$plugin" --deadline 60 $only >>$log 2>&1 || status=1
done
cat $log
verdict $status netabi 'the rules of tutti/net.h'

echo "== tutti-perf"
packets=$(counter sent_pkts)
perf 4 all_reduce --sizes 8,4K,256K -w 1 --iters 2 --stats
status=$?
cat $log
right && [ $status = 0 ] && [ $(($(counter sent_pkts) - packets)) -gt 0 ]
verdict $? all_reduce "4 ranks over $(($(counter sent_pkts) - packets)) packets"

impaired loss rcvd_seq_err loss 3%
impaired delay sent_pkts delay 2ms
impaired reordering out_of_seq_request delay 10ms reorder 30%

# What the kernel sends again on sockets is counted; they talk over lo, since both addresses are this machine's.
echo "== sockets"
tc qdisc replace dev lo root netem loss 3%
(
  export NCCL_NET=Socket NCCL_NET_PLUGIN=none
  perf 2 sendrecv --sizes 256K -w 1 --iters 5 --stats
)
status=$?
tc qdisc delete dev lo root
grep '^# Network' $log
right && [ $status = 0 ] && grep -q '^# Network, sent .*, [1-9][0-9]* retries' $log
verdict $? socket-retries '2 ranks over sockets, netem loss 3%'

# Waits until ranks that run in the background have exchanged so many packets more, so that they are connected.
moving() {
  enough=$(($(counter sent_pkts) + $1))
  tries=0
  while [ "$(counter sent_pkts)" -lt $enough ] && [ $tries -lt 300 ]; do
    sleep 0.2
    tries=$((tries + 1))
  done
}

# A cable that comes back before the queue pairs have tried often enough. The link stays up: rxe fails queue pairs at once
# whose own interface is down.
echo "== outage"
perf 4 all_reduce -b 64K -e 64K -w 1 --iters 40 &
run=$!
moving 1000
impair loss 100%
sleep 2
repair
wait $run
status=$?
right && [ $status = 0 ]
verdict $? outage '4 ranks, all packets lost for 2 s'

# A link that goes down: an error on the ranks, which names where, and an end. When it is up again all is well.
echo "== link down and up"
(
  export NCCL_IB_TIMEOUT=14 NCCL_IB_RETRY_CNT=2
  perf 4 all_reduce -b 64K -e 64K -w 1 --iters 5000
) &
run=$!
moving 1000
/run/link down 1
wait $run
status=$?
/run/link up 1
grep -v '^#' $log
[ $status != 0 ] && [ $status != 124 ] && grep -q 'rxe[01]' $log
verdict $? link-down "tutti-perf ended with status $status"
perf 2 all_reduce -b 4K -e 4K -w 1 --iters 1
status=$?
right && [ $status = 0 ]
verdict $? link-up '2 ranks, veth1 up again'
exit $failed
