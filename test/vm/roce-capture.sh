#!/bin/sh
# Runs in the VM: captures what foreign tools, and we, put on the wire between rxe0 (on v0) and rxe1 (on v1). $OUT gets
# small.pcap, large.pcap, lossy.pcapng and own.pcap, each in two parts, .v0 and .v1, to be merged by time; and any.pcap.
# What the tools said goes to standard error if they fail.
# $NODE runs our own traffic, from the package in $ROOT. The fixtures roce-small.pcap and roce-lossy.pcapng come from here,
# the latter with fewer messages and more losses.
cd "$(mktemp -d)" || exit 1

# Starts tcpdump and sets $sniffers. Only what leaves an interface: a veth hands a packet over with the stamp of another
# clock. The ring has a slot of the whole snapshot length for each packet: else tcpdump drops packets.
sniff() { # sniff FILE INTERFACE
  tcpdump -Z root --immediate-mode -U -s 2048 -B 16384 -Q out -i "$2" -w "$1" udp port 4791 2>"$1.tcpdump" &
  sniffers="$sniffers $!"
  until grep -q listening "$1.tcpdump"; do sleep 0.05; done
}

# Ends them. The kernel has queued the last packets by now, but tcpdump reads them late.
settle() { # settle FILE...
  written=none
  until [ "$written" = "$(stat -c %s "$@")" ]; do
    written=$(stat -c %s "$@")
    sleep 0.2
  done
  kill -INT $sniffers
  wait $sniffers
  sniffers=
}

capture() { # capture FILE COMMAND: what COMMAND puts on the wire, by the interface that it leaves
  file=$1
  sniff "$file.v0" v0
  sniff "$file.v1" v1
  $2
  settle "$file.v0" "$file.v1"
  cp "$file.v0" "$file.v1" "$OUT"
}

pair() { # pair LOG TOOL OPTIONS...: the tool as a server on rxe1 and as a client on rxe0
  log=$1
  shift
  timeout 60 "$@" -d rxe1 >"$log.server" 2>&1 &
  server=$!
  # The client is refused until the server listens.
  until timeout 60 "$@" -d rxe0 10.78.0.2 >"$log.client" 2>&1; do
    kill -0 $server 2>/dev/null || break
    sleep 0.1
  done
  wait $server || cat "$log.client" "$log.server" >&2
}

ping_over_cm() {
  timeout 60 rping -s -a 10.78.0.2 -C 5 -S 1500 >rping.server 2>&1 &
  server=$!
  until timeout 60 rping -c -a 10.78.0.2 -I 10.78.0.1 -C 5 -S 1500 >rping.client 2>&1; do sleep 0.1; done
  wait $server
}

small() {
  pair rc ibv_rc_pingpong -g 1 -s 3001 -n 10
  pair uc ibv_uc_pingpong -g 1 -s 2100 -n 5
  pair ud ibv_ud_pingpong -g 1 -s 203 -n 10
  pair rc6 ibv_rc_pingpong -g 0 -s 1030 -n 5
  pair write ib_write_bw -x 1 -s 2051 -n 5
  pair read ib_read_bw -x 1 -s 4001 -n 5
  pair send ib_send_bw -x 1 -s 77 -n 10 --tclass=106
  pair swap ib_atomic_bw -x 1 -A CMP_AND_SWAP -n 5
  pair add ib_atomic_bw -x 1 -A FETCH_AND_ADD -n 5
  ping_over_cm
}

large() {
  pair write-large ib_write_bw -x 1 -s 16384 -n 60
  pair read-large ib_read_bw -x 1 -s 16384 -n 30
  pair send-large ib_send_bw -x 1 -s 8192 -n 100 -r 5
  pair uc-large ib_write_bw -c UC -x 1 -s 4096 -n 60
  pair ud-large ib_send_bw -c UD -x 1 -s 1000 -n 60
}

lossy() {
  tc qdisc add dev v0 root netem loss 1% ecn
  tc qdisc add dev v1 root netem loss 1%
  pair write-lossy ib_write_bw -x 1 -s 16384 -n 60
  pair read-lossy ib_read_bw -x 1 -s 16384 -n 30
  # ECT(0), so that netem marks where it would drop.
  pair marked ib_write_bw -x 1 -s 16384 -n 60 --tclass=106
  tc qdisc del dev v0 root
  tc qdisc del dev v1 root
}

own() {
  pair own "$NODE" "$ROOT/examples/pingpong.mjs" -e -c -n 50 -s 8190 -r 2
}

capture small.pcap small
capture large.pcap large
capture lossy.pcapng lossy
capture own.pcap own
# The Linux cooked header.
sniff any.pcap any
pair any ibv_rc_pingpong -g 1 -s 3001 -n 5
settle any.pcap
cp any.pcap "$OUT"
# The test reads how many packets tcpdump has seen and dropped.
cat ./*.tcpdump >"$OUT/tcpdump"
