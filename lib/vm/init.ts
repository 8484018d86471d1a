/**
 * The guest's init, run by a static busybox whose shell finds its applets by itself (Debian and Ubuntu build it so).
 *
 * Stage 1 runs in the initrd: modules, then the host's root over 9p with a tmpfs laid over it, then switch_root.
 * Stage 2 is process 1 on the host's file system: wire, devices, the command, its exit code.
 *
 * The ports of the virtio serial device, as numbered in qemu.ts:
 * 1 control (both ways, lines), 2 the request (a shell script, to its end), 3 stdin, 4 stdout, 5 stderr, hvc0 the tty.
 */
export const initScript = String.raw`#!/bin/busybox sh
# A guest without its host is of no use: this also ends it when QEMU lost the process that started it.
say() { echo "$*" >&3; }
fail() { say "fail $*"; sleep 1000000; }

if [ "$1" != stage2 ]; then
  /bin/busybox mount -t proc proc /proc
  mount -t sysfs sysfs /sys
  mount -t devtmpfs devtmpfs /dev
  lacks=
  while read -r module; do insmod "/modules/$module" || lacks=$module; done </modules/first
  until [ -c /dev/vport0p5 ]; do sleep 0.01; done
  exec 3<>/dev/vport0p1
  say hello
  [ -z "$lacks" ] || fail "insmod $lacks"
  while read -r module; do insmod "/modules/$module" || fail "insmod $module"; done </modules/order
  mkdir -p /host /over /root
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro hostroot /host || fail 'mount of the host root over 9p'
  mount -t tmpfs -o mode=755 over /over
  mkdir /over/upper /over/work
  mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /root || fail 'mount of the overlay'
  mkdir -p /root/proc /root/sys /root/dev /root/run
  mount -t tmpfs -o mode=755 run /root/run
  mkdir -p /root/run/node-rdma /root/run/lock
  cp /bin/busybox /init /root/run/node-rdma
  # /proc last: the shell finds its applets through it.
  for dir in dev sys proc; do mount --move /$dir /root/$dir; done
  exec /bin/busybox switch_root /root /run/node-rdma/busybox sh /run/node-rdma/init stage2
fi

export PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd /run/node-rdma
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
ln -sfn /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
chmod 1777 /tmp

cat /dev/vport0p2 >request
. ./request

hostname "$hostname"
if [ -n "$modules" ]; then
  mkdir -p "/lib/modules/$(uname -r)"
  mount --bind "$modules" "/lib/modules/$(uname -r)"
fi
if [ -n "$out" ]; then
  mkdir -p "$out"
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=mmap out "$out" || fail "mount of $out"
fi

# The wire: two devices on the two ends of a veth pair. The policy rules keep the kernel from short-cutting packets
# between two of its own addresses through lo, so they cross, and tcpdump and netem see them.
for if in all default; do
  cd /proc/sys/net/ipv4/conf/$if
  echo 1 >accept_local; echo 0 >rp_filter; echo 1 >arp_ignore; echo 2 >arp_announce
  echo 0 >/proc/sys/net/ipv6/conf/$if/accept_dad
done
cd /run/node-rdma
/sbin/ip -batch - <<'END' || fail 'ip: setting up the veth pair'
link set lo up
link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:02
addr add 10.78.0.1/24 dev v0
addr add 10.78.0.2/24 dev v1
link set v0 up
link set v1 up
rule add pref 100 iif v0 lookup local
rule add pref 101 iif v1 lookup local
rule add pref 110 to 10.78.0.2 oif v0 lookup 100
rule add pref 111 to 10.78.0.1 oif v1 lookup 101
route add 10.78.0.2 dev v0 table 100
route add 10.78.0.1 dev v1 table 101
rule add pref 200 lookup local
rule del pref 0
END
devices='rxe0 rxe1'
printf 'link add rxe0 type rxe netdev v0\nlink add rxe1 type rxe netdev v1\n' >rdma
# Software iWARP has a wire of its own: of two devices on one interface the connection manager would take the first. Its
# packets are those of sockets of the kernel, which choose their way by their address and not by an interface.
if [ -d /sys/module/siw ]; then
  /sbin/ip -batch - <<'END' || fail 'ip: setting up the veth pair of siw'
link add w0 address 02:00:00:00:01:01 type veth peer name w1 address 02:00:00:00:01:02
addr add 10.79.0.1/24 dev w0
addr add 10.79.0.2/24 dev w1
link set w0 up
link set w1 up
rule add pref 102 iif w0 lookup local
rule add pref 103 iif w1 lookup local
rule add pref 112 from 10.79.0.1 to 10.79.0.2 lookup 102
rule add pref 113 from 10.79.0.2 to 10.79.0.1 lookup 103
route add 10.79.0.2 dev w0 table 102
route add 10.79.0.1 dev w1 table 103
END
  devices="$devices siw0 siw1"
  printf 'link add siw0 type siw netdev w0\nlink add siw1 type siw netdev w1\n' >>rdma
fi
rdma -b rdma || fail 'rdma link add'
for device in $devices; do
  tries=0
  until read -r state </sys/class/infiniband/$device/ports/1/state && [ "$state" = '4: ACTIVE' ]; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || fail "$device is $state"
    sleep 0.05
  done
done

ulimit -l unlimited
ulimit -Hn 1048576
[ -d "$cwd" ] || fail "the directory $cwd is not visible in the guest"

# Host to guest: the size of the terminal. The end of the stream means that the host has gone.
{
  while read -r _ rows columns; do stty rows "$rows" cols "$columns" </dev/hvc0; done <&3
  echo o >/proc/sysrq-trigger
} &

# The command gets plain pipes, or the tty; a background job would inherit an ignored SIGINT, so it runs in front.
# The token tells the host where a stream ends. Its own cgroup lets what it leaves behind be killed and waited for.
d=/run/node-rdma
group=/sys/fs/cgroup/command
mkdir $group
start() { echo 0 >$group/cgroup.procs; cd "$cwd"; run "$@"; }
if [ -n "$tty" ]; then
  say ready
  ( stty $tty; start setsid -c ) </dev/hvc0 >/dev/hvc0 2>&1 3>&-
  code=$?
else
  mkfifo $d/in $d/out $d/err
  # dd, since cat moves 4 KiB at a time, and each write to a port is a round trip to QEMU.
  pump() { dd bs=32k 2>/dev/null; printf '\036%s' "$token"; }
  pump <$d/out >/dev/vport0p4 3>&- &
  pumps=$!
  pump <$d/err >/dev/vport0p5 3>&- &
  pumps="$pumps $!"
  dd bs=32k </dev/vport0p3 >$d/in 2>/dev/null 3>&- &
  say ready
  ( start setsid ) <$d/in >$d/out 2>$d/err 3>&-
  code=$?
fi

# A process that cannot be killed hangs in the kernel: show where.
echo 1 >$group/cgroup.kill
tries=0
while grep -q 'populated 1' $group/cgroup.events; do
  tries=$((tries + 1))
  if [ $tries = 200 ]; then
    echo 8 >/proc/sys/kernel/printk
    echo w >/proc/sysrq-trigger
    fail 'a process that cannot be killed'
  fi
  sleep 0.05
done
if [ -n "$tty" ]; then printf '\036%s' "$token" >/dev/hvc0; else wait $pumps; fi
if [ -n "$out" ]; then umount "$out" || fail "umount of $out"; fi
# The host reads the kernel log up to this line.
echo "$token" >/dev/kmsg
say "exit $code"
sleep 1000000
`;
