# The second program of the virtual machine, still process 1: sets up the network and both devices, runs the command, and
# switches the machine off. See machine.py.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
job=/run/job
off() { /run/modules/busybox poweroff -f; sleep 60; }
stop() { echo "guest: $*" >/dev/console; off; }

/run/modules/busybox hostname rdma-vm
for module in $(cat $job/modules); do
  /run/modules/busybox insmod "/run/modules/$module.ko" || stop "cannot load $module"
done

# Both ends of the cable are in one namespace, so the kernel would hand packets for its own addresses to itself, over lo,
# where rxe does not listen. Rules that go by the interface, before the table of own addresses, put them on the cable.
net=/proc/sys/net
echo 0 >$net/ipv6/conf/default/accept_dad
echo 0 >$net/ipv4/conf/all/rp_filter
ip -batch - >/dev/console 2>&1 <<END || stop 'cannot set up the network'
link set lo up
link add veth0 mtu 4200 address 02:00:00:00:77:01 type veth peer name veth1 mtu 4200 address 02:00:00:00:77:02
link set veth0 up
link set veth1 up
address add 10.77.0.1/24 dev veth0
address add 10.77.0.2/24 dev veth1
rule add pref 10 oif veth0 lookup 10
rule add pref 11 oif veth1 lookup 11
rule add pref 100 lookup local
rule delete pref 0
END
# What a link that goes down forgets. /run/link up N, down N: by hand, as the tests do.
cat >/run/link <<'END'
#!/bin/sh
end=$2
other=$((1 - end))
ip link set "veth$end" "$1"
[ "$1" = up ] || exit 0
ip neigh replace "10.77.0.$((other + 1))" lladdr "02:00:00:00:77:0$((other + 1))" dev "veth$end" nud permanent
ip route replace "10.77.0.$((other + 1))" dev "veth$end" table "1$end"
END
chmod 755 /run/link
for end in 0 1; do
  echo 1 >$net/ipv4/conf/veth$end/accept_local
  echo 0 >$net/ipv4/conf/veth$end/rp_filter
  echo 1 >$net/ipv4/conf/veth$end/arp_ignore
  /run/link up $end
  rdma link add rxe$end type rxe netdev veth$end >/dev/console 2>&1 || stop "cannot make rxe$end"
done

# Through cat, since a port can be opened but once, and a command may open /dev/stdout.
mkfifo /run/out
cat /run/out >/dev/vport0p1 &
relay=$!
exec 9>/run/out
(. $job/command) </dev/null >&9 2>&9 9>&-
status=$?
exec 9>&-
for process in /proc/[0-9]*; do # what it left running, which would hold the pipe open
  case ${process#/proc/} in 1 | $relay) ;; *) kill -9 "${process#/proc/}" 2>/dev/null ;; esac
done
wait $relay
echo $status >$job/status.new
mv $job/status.new $job/status
off
