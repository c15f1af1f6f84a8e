# Words for the guests' side of a suite. Every case runs to its end or its time limit, whatever the others did; what it
# printed stands between two marks:
#
#   @@ begin NAME
#   @@ end NAME STATUS SECONDS

# alone NAME LIMIT SCRIPT: a case in this host. It passes if the script does.
alone() {
	began "$1"
	limited "$2" "$3"
	ended "$1" $?
}

# both NAME LIMIT PORT STAYS SERVER CLIENT: a case with both sides in this host. The server listens on a TCP port; with
# STAYS it does not end by itself, otherwise its exit status counts too.
both() {
	began "$1"
	start_server "$2" "$3" "$5"
	limited "$2" "$6"
	client=$?
	end_server "$4"
	ended "$1" $((client ? client : server_status))
}

# serve NAME LIMIT PORT STAYS SERVER PEER and use NAME LIMIT CLIENT PEER: the two sides of a case, in two hosts.
serve() {
	began "$1"
	start_server "$2" "$3" "$5"
	tell "$6"
	hear "$2"
	end_server "$4"
	ended "$1" $server_status
}
use() {
	began "$1"
	hear "$2"
	limited "$2" "$3"
	status=$?
	tell "$4"
	ended "$1" $status
}

began() {
	echo "@@ begin $1"
	since=$(date +%s.%N)
}
ended() {
	echo "@@ end $1 $2 $(echo "$since $(date +%s.%N)" | gawk '{ printf "%.1f", $2 - $1 }')"
}

limited() {
	timeout -k 5 "$1" sh -c ". /root/cases.sh; $2" 2>&1
}

# Starts a server, and waits until it listens or has ended.
start_server() {
	limited "$1" "$3" >/tmp/server.log &
	server=$!
	port=$(printf ':%04X .* 0A ' "$2")
	until grep -q "$port" /proc/net/tcp /proc/net/tcp6; do
		kill -0 $server 2>/dev/null || break
		sleep 0.05
	done
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

# tell HOST ends a `hear LIMIT` that runs there, or that will.
tell() {
	for _ in $(seq 1000); do
		nc -z "$1" 7000 && return
		sleep 0.1
	done
	echo "nobody hears in $1"
}
hear() {
	timeout $(($1 + 60)) nc -l 7000 >/dev/null
}
