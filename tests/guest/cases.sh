# Words for the guests' side of a suite. Every case runs to its end or its time limit, whatever the others did; what it
# printed stands between two marks:
#
#   @@ begin NAME
#   @@ end NAME STATUS SECONDS
#
# and between them `@@ outside NAME` when something is to be done on the machine of the guests.

. /root/post.sh

# alone NAME LIMIT SCRIPT: a case in this host. It passes if the script does.
alone() {
	began "$1"
	limited "$2" "$3"
	ended "$1" $?
}

# both NAME LIMIT READY STAYS SERVER CLIENT: a case with both sides in this host. READY is how to see that the server is
# ready for its client; with STAYS it does not end by itself, otherwise its exit status counts too.
both() {
	began "$1"
	start_server "$2" "$3" "$5"
	limited "$2" "$6"
	client=$?
	end_server "$4"
	ended "$1" $((client ? client : server_status))
}

# serve NAME LIMIT READY STAYS SERVER PEER and use NAME LIMIT CLIENT PEER: the two sides of a case, in two hosts.
serve() {
	began "$1"
	start_server "$2" "$3" "$5"
	tell "$6"
	hear "$2" "$6"
	end_server "$4"
	ended "$1" $server_status
}
use() {
	began "$1"
	hear "$2" "$4"
	limited "$2" "$3"
	status=$?
	tell "$4"
	ended "$1" $status
}

# outside: in the script of a case (of the client, where there are two sides), the moment for what the case wants done on
# the machine of the guests. It is done some time after that, and at the latest when the case has ended.
outside() {
	echo "@@ outside $CASE"
}

began() {
	export CASE="$1"
	echo "@@ begin $1"
	since=$(date +%s.%N)
}
ended() {
	# What was printed before may lack the end of its line.
	echo
	echo "@@ end $1 $2 $(echo "$since $(date +%s.%N)" | gawk '{ printf "%.1f", $2 - $1 }')"
}

limited() {
	timeout -k 5 "$1" sh -c ". /root/cases.sh; $2" 2>&1
}

# Starts a server, and waits until it is ready or has ended. READY is a TCP port where it listens, `cm` for a listener of
# the RDMA connection manager, a word after `:` that it prints, or `now`.
start_server() {
	# A process of its own, not a shell that waits for one: a signal to it reaches all that it has started.
	(exec timeout -k 5 "$1" sh -c ". /root/cases.sh; $3" >/tmp/server.log 2>&1) &
	server=$!
	until is_ready "$2"; do
		kill -0 $server 2>/dev/null || break
		sleep 0.05
	done
}
is_ready() {
	case $1 in
	now) ;;
	cm) rdma resource show cm_id | grep -q LISTEN ;;
	:*) grep -q "${1#:}" /tmp/server.log ;;
	*) grep -q "$(printf ':%04X .* 0A ' "$1")" /proc/net/tcp /proc/net/tcp6 ;;
	esac
}

# The client has ended: so does the server, at once or by force.
end_server() {
	server_status=0
	if [ "$1" = stays ]; then
		kill $server
		wait $server
	else
		for _ in $(seq 100); do
			kill -0 $server 2>/dev/null || break
			sleep 0.1
		done
		kill $server 2>/dev/null
		wait $server
		server_status=$?
	fi
	echo "the server's side, status $server_status:"
	cat /tmp/server.log
}

# meet first HOST... in one host, and meet FIRST in each of the others: nobody goes on before all are there.
meet() {
	if [ "$1" = first ]; then
		shift
		for host; do hear 300 "$host"; done
		for host; do tell "$host"; done
	else
		tell "$1"
		hear 300 "$1"
	fi
}

# A subnet with a manager of its own, and IPoIB in it. Every host has the address 10.77.0.N, where N is 1 for host a, and is
# known to the others as ib-a and so on.
SUBNET=10.77.0

# manage [OPTION...]: starts OpenSM, and waits until it has configured the port of this host.
manage() {
	opensm -B "$@" >/tmp/opensm.out || return
	active
}
# active: waits until this host's port can send data.
active() {
	until_true 60 grep -q ACTIVE /sys/class/infiniband/mlx5_0/ports/1/state
}
# ipoib: gives this host its address, when somebody manages the subnet.
ipoib() {
	active || return
	modprobe ib_ipoib || return
	number=$(($(printf %d "'$(hostname)") - 96))
	for host in a b c d; do
		echo "$SUBNET.$(($(printf %d "'$host") - 96)) ib-$host"
	done >>/etc/hosts
	ip address add "$SUBNET.$number/24" dev ib0
	ip link set ib0 up || return
	until_true 60 grep -q 1 /sys/class/net/ib0/carrier
	ip address show ib0
}
# until_true SECONDS COMMAND...: runs the command until it succeeds.
until_true() {
	seconds=$1
	shift
	for _ in $(seq $((seconds * 5))); do
		"$@" && return
		sleep 0.2
	done
	echo "not in $seconds s: $*"
	return 1
}
# shows TEXT COMMAND...: prints what the command prints, and succeeds if that has a line with this regular expression.
shows() {
	text=$1
	shift
	"$@" >/tmp/shown 2>&1
	shown=$?
	cat /tmp/shown
	[ $shown = 0 ] || return $shown
	grep -Eq -- "$text" /tmp/shown || { echo "no line '$text'"; return 1; }
}
# lid HOST: the LID of a host, as the subnet's manager knows it.
lid() {
	saquery -L "softhca $1/hca0"
}
# listed HOST: succeeds if the subnet's manager knows the host.
listed() {
	saquery | grep "softhca $1/hca0"
}
# sent: the data that this host's port has sent, in words of 4 bytes.
sent() {
	cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data
}
# in_host HOST COMMAND...: what only one of all hosts does.
in_host() {
	[ "$1" != "$(hostname)" ] || { shift && "$@"; }
}
# no_errors: ib0 has neither errors nor carrier losses.
no_errors() {
	for counter in rx_errors tx_errors rx_dropped; do
		[ "$(cat /sys/class/net/ib0/statistics/$counter)" = 0 ] || { echo "$counter"; return 1; }
	done
}
# fails COMMAND...: succeeds if the command does not.
fails() {
	! "$@"
}
# measured COMMAND...: succeeds if the command prints a line of results. For `ib_send_lat -g`, which leaves its multicast
# groups after it has closed its device and then ends with status 1.
measured() {
	"$@" >/tmp/measured.$$ 2>&1
	cat /tmp/measured.$$
	grep -Eq '^ [0-9]+ +[0-9]+ +[0-9.]+ ' /tmp/measured.$$
}
# gid VERSION PATTERN: the index of the first GID of the adapter (or of soft-RoCE) of this RoCE version (1 or 2) that the
# regular expression matches, such as ffff:0a01 for the IPv4 addresses 10.1.0.0/16.
gid() {
	for port in /sys/class/infiniband/*/ports/1; do
		for index in $(seq 0 31); do
			grep -Eqs "v$1" "$port/gid_attrs/types/$index" && grep -q "$2" "$port/gids/$index" && echo "$index" && return
		done
	done
	return 1
}
# counting SECONDS COMMAND...: the command, for so long. If it fails, what the RDMA device of this host counted meanwhile is shown:
# "soft-RoCE: NAME +N", or "adapter: NAME +N".
counting() {
	seconds=$1
	shift
	counts >/tmp/before.$$
	timeout "$seconds" "$@"
	result=$?
	[ $result = 0 ] && return
	counts | diff /tmp/before.$$ - | gawk '/^</ { was[$2 $3] = $4 } /^>/ { print $2, $3, "+" $4 - was[$2 $3] }'
	return $result
}
counts() {
	for port in /sys/class/infiniband/*/ports/1; do
		case $port in */rxe*) device=soft-RoCE: ;; *) device=adapter: ;; esac
		for counter in "$port"/hw_counters/*; do
			case $counter in */lifespan) ;; *) echo "$device ${counter##*/} $(cat "$counter")" ;; esac
		done
	done
}
