#!/bin/sh
# Runs inside of the virtual machine (machine.py): net-ib on real verbs, and what sockets count. Prints a line for each
# case, PASS or FAIL with the end of what it printed, and what the tools said. Seconds count here: operations are out of
# place alone, since networks do not know the difference, and no more of them than show what a case is about.
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

counter() { # sets $count: of rxe0 and rxe1 together
  read -r count <"/sys/class/infiniband/rxe0/ports/1/hw_counters/$1"
  read -r other <"/sys/class/infiniband/rxe1/ports/1/hw_counters/$1"
  count=$((count + other))
}

# Both ends at once: ranks get far while a program starts.
impair() { printf 'qdisc replace dev veth%s root netem '"$*"'\n' 0 1 | tc -batch -; }
repair() { printf 'qdisc delete dev veth%s root\n' 0 1 | tc -batch -; }

right() { grep -q 'Out of bounds values : 0 OK' $log; }

# Waits until a counter has grown by so many; fails if the run in the background is over before.
grown() { # counter least
  counter "$1"
  until_count=$((count + $2))
  tries=0
  while kill -0 $run 2>/dev/null && [ $tries -lt 1200 ]; do
    counter "$1"
    [ $count -lt $until_count ] || return 0
    sleep 0.05
    tries=$((tries + 1))
  done
  return 1
}

# What netem does to a run in the background has to be seen: a counter of rxe must grow meanwhile. The run itself is
# judged when it is over.
weather() { # name counter least netem...
  name=$1 which=$2 least=$3
  shift 3
  impair "$@"
  grown "$which" "$least"
  seen=$?
  seen_all="$seen_all$seen:$name:netem $*; $which grew by $((count + least - until_count))
"
}

echo "== tests/netabi"
# All clauses, or those named: each takes seconds here.
netabi() {
  : >$log
  status=0
  for clause in ${RDMA_VM_CLAUSES:-all}; do
    if [ "$clause" = all ]; then only=; else only="--only $clause"; fi
    # shellcheck disable=SC2086 # two words or none
    timeout 300 "$bin/netabi" "$plugin" --deadline 60 $only >>$log 2>&1 || status=1
  done
  cat $log
  verdict $status netabi 'the rules of tutti/net.h'
}
if [ -x "$bin/netabi" ]; then
  netabi
else
  echo "SKIP netabi: it is not in $bin, where a build with -DBUILD_TESTING=ON has it, as scripts/test makes one"
fi

echo "== tutti-perf"
counter sent_pkts
before=$count
perf 4 all_reduce --sizes 8,4K,256K -w 1 --iters 2 --form out --stats
status=$?
counter sent_pkts
cat $log
right && [ $status = 0 ] && [ $count -gt "$before" ]
verdict $? all_reduce "4 ranks over $((count - before)) packets"

# Weather: one run, since starting takes seconds here, that checks each of its operations. At its end all packets are
# lost for a while: a cable that comes back before the queue pairs have tried often enough. The link stays up: rxe fails
# queue pairs at once whose own interface is down.
echo "== weather"
perf 4 all_reduce --sizes 64K -w 0 --iters 1 -c 150 --form out &
run=$!
seen_all=
grown sent_pkts 300
weather loss rcvd_seq_err 4 loss 3%
weather delay sent_pkts 600 delay 2ms
weather reordering out_of_seq_request 10 delay 4ms reorder 30%
impair loss 100%
sleep 2
kill -0 $run # else it was over before
seen=$?
repair
seen_all="$seen_all$seen:outage:all packets lost for 2 s
"
wait $run
status=$?
right
sound=$?
while IFS=: read -r seen name what; do
  [ -z "$name" ] && continue
  [ "$seen" = 0 ] && [ $sound = 0 ] && [ $status = 0 ]
  verdict $? "$name" "4 ranks, 64 KiB, $what"
done <<END
$seen_all
END

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

# A link that goes down: an error on the ranks, which names where, and an end. When it is up again all is well.
echo "== link down and up"
(
  export NCCL_IB_TIMEOUT=16 NCCL_IB_RETRY_CNT=2
  perf 4 all_reduce -b 64K -e 64K -w 1 --iters 5000
) &
run=$!
grown sent_pkts 1000
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
