# Put before the commands of every system test.

# step NAME COMMAND...: runs the command between two marks, by which the test finds what it printed.
# The first step that fails ends the job.
step() {
	name=$1
	shift
	echo "@@ $name"
	"$@" || {
		status=$?
		echo "@@ $name failed with status $status"
		exit $status
	}
}

# Waits until process $2 listens on TCP port $1.
listening() {
	hex=$(printf ':%04X .* 0A ' "$1")
	until grep -q "$hex" /proc/net/tcp /proc/net/tcp6; do
		kill -0 "$2" 2>/dev/null || return 1
		sleep 0.05
	done
}

# pair COMMAND...: runs the command, which is to listen on the port in $PORT (18515, the usual one, unless set), and
# once more with "localhost" behind it; both must succeed.
pair() {
	"$@" >/tmp/pair.log 2>&1 &
	first=$!
	listening "${PORT:-18515}" $first && "$@" localhost
	second=$?
	[ $second = 0 ] || kill $first
	wait $first
	first=$?
	echo "the other side:"
	cat /tmp/pair.log
	return $((first ? first : second))
}

# offer HOST COMMAND...: as `pair`, with the other side in another host, which runs `accept`.
offer() {
	host=$1
	shift
	"$@" &
	first=$!
	listening "${PORT:-18515}" $first || return
	tell "$host"
	wait $first
}

# accept COMMAND...: waits for the other host's `offer`, then runs the command.
accept() {
	hear
	"$@"
}

# reload: takes the drivers out and puts them back.
reload() {
	modprobe -r mlx5_ib mlx5_core && modprobe mlx5_ib
}

device=$(echo /sys/bus/pci/drivers/mlx5_core/0000:*)
slot=${device##*/}
device=/sys/bus/pci/devices/$slot
