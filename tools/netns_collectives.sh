#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures collectives between two nodes that are network namespaces of this
# machine, joined by a link of limited rate (veth, tc tbf). It needs root, ip and
# tc, and leaves nothing behind.
#
#   go build -o cohort ./cmd/cohort
#   tools/netns_collectives.sh ./cohort            # a link of 1000 Mbit/s
#   tools/netns_collectives.sh ./cohort 200        # of 200 Mbit/s
#
# It fails unless
#   - an all-reduce of 64 MiB between one rank on each node carries its bytes at
#     90 % of the link's rate or more (each rank sends and receives as many bytes
#     as the tensor has, both ways at once);
#   - an all-reduce, and a broadcast, of 16 MiB between two ranks on each node
#     moves each byte over the link once per node, as the link's own counters have
#     it: within 8 %, for the headers of the packets and the barriers around.

set -euo pipefail

cohort=${1:?usage: $0 COHORT [MBIT]}
mbit=${2:-1000}
if [ "$(id -u)" != 0 ]; then
	echo "netns_collectives: network namespaces need root" >&2
	exit 2
fi
for tool in ip tc timeout awk; do
	if ! command -v "$tool" >/dev/null; then
		echo "netns_collectives: there is no $tool (Debian: apt-get install iproute2)" >&2
		exit 2
	fi
done

nodes=(cohort-$$-a cohort-$$-b)
addrs=(10.213.7.1 10.213.7.2)
scratch=$(mktemp -d)
token=$("$cohort" token)
pids=()
failed=0

cleanup() {
	local pid node
	for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
	wait 2>/dev/null || true
	for node in "${nodes[@]}"; do ip netns del "$node" 2>/dev/null || true; done
	rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

for node in "${nodes[@]}"; do ip netns add "$node"; done
# The names of both ends are the same: each is in a namespace of its own.
ip link add link0 netns "${nodes[0]}" type veth peer name link0 netns "${nodes[1]}"
for i in 0 1; do
	ip -n "${nodes[i]}" addr add "${addrs[i]}/24" dev link0
	ip -n "${nodes[i]}" link set lo up
	ip -n "${nodes[i]}" link set link0 up
	# The burst is what passes in 4 ms, and 64 KiB at least: a packet before it
	# is cut into segments.
	burst=$((mbit * 500))
	tc -n "${nodes[i]}" qdisc add dev link0 root tbf rate "${mbit}mbit" burst "$((burst > 65536 ? burst : 65536))" latency 50ms
done

# bench RANKS_A_NODE ARGS... runs `cohort bench collectives` on ranks of both
# nodes; what rank 0 prints is in $scratch/0.out.
bench() {
	local per_node=$1 rank node world started=() status=0
	shift
	world=$((2 * per_node))
	for ((rank = 0; rank < world; rank++)); do
		node=$((rank / per_node))
		ip netns exec "${nodes[node]}" env RANK=$rank WORLD_SIZE=$world \
			LOCAL_RANK=$((rank % per_node)) LOCAL_WORLD_SIZE=$per_node GROUP_RANK=$node GROUP_WORLD_SIZE=2 \
			MASTER_ADDR=${addrs[0]} MASTER_PORT=29411 COHORT_TOKEN="$token" COHORT_NODE_ID="node-$node" \
			timeout 120 "$cohort" bench collectives --json "$@" >"$scratch/$rank.out" 2>"$scratch/$rank.err" &
		started+=($!)
		pids+=($!)
	done
	for pid in "${started[@]}"; do wait "$pid" || status=1; done
	if [ $status != 0 ]; then
		echo "netns_collectives: a rank failed:" >&2
		cat "$scratch"/*.err >&2
		exit 1
	fi
}

# sent NODE prints how many bytes the node has put on the link.
sent() { ip netns exec "${nodes[$1]}" cat /sys/class/net/link0/statistics/tx_bytes; }

# field CASE NAME prints a figure of a case that rank 0 printed.
field() { awk -v c="\"case\":\"$1\"" -v n="\"$2\":" 'index($0, c) { s = substr($0, index($0, n) + length(n)); sub(/[,}].*/, "", s); print s; exit }' "$scratch/0.out"; }

# check WHAT VALUE LEAST MOST UNIT prints a line and remembers a miss.
check() {
	if awk -v v="$2" -v lo="$3" -v hi="$4" 'BEGIN { exit !(v >= lo && v <= hi) }'; then
		printf '%-62s %9.3f %s   ok  want %s to %s\n' "$1" "$2" "$5" "$3" "$4"
	else
		printf '%-62s %9.3f %s  MISS want %s to %s\n' "$1" "$2" "$5" "$3" "$4"
		failed=1
	fi
}

# share MICROS BYTES prints the rate of so many bytes as a share of the link's.
share() { awk -v us="$1" -v n="$2" -v mbit="$mbit" 'BEGIN { print n * 8 / us / mbit }'; }

# Any figure above the link's rate would say that the limit is not in force.
size=$((64 << 20))
bench 1 --ops raw_socket,all_reduce --bytes $size --memory shared --reps 2
# What can be had at best on this machine, as busy as it is.
check "raw_socket 64 MiB, 1+1 ranks, share of $mbit Mbit/s" "$(share "$(field raw_socket median_us)" $size)" 0 1.01 ""
check "all_reduce 64 MiB, 1+1 ranks, share of $mbit Mbit/s" "$(share "$(field all_reduce median_us)" $size)" 0.90 1.01 ""

size=$((16 << 20)) reps=2
calls=$((1 + 4 * reps)) # one to begin with, three loops, and one that times each call
for op in all_reduce broadcast; do
	before=("$(sent 0)" "$(sent 1)")
	bench 2 --ops $op --bytes $size --memory shared --reps $reps
	for node in 0 1; do
		want="0.99 1.08"
		if [ $op = broadcast ] && [ $node = 1 ]; then
			want="0 0.08" # acknowledgements: the root is on the other node
		fi
		times=$(awk -v n="$(($(sent $node) - before[node]))" -v calls=$calls -v size=$size 'BEGIN { print n / calls / size }')
		# shellcheck disable=SC2086 # two words
		check "$op 16 MiB, 2x2 ranks, sent by node $node, times its bytes" "$times" $want ""
	done
	check "$op 16 MiB, 2x2 ranks, share of $mbit Mbit/s" "$(share "$(field $op median_us)" $size)" 0.90 1.01 ""
done
exit $failed
