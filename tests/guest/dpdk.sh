# Words for DPDK's testpmd, which runs beside the cases and is told what to do.

# slot DEVICE: the place of a network device's adapter, such as 0000:01:00.0.
slot() {
	basename "$(readlink "/sys/class/net/$1/device")"
}
# testpmd OPTION...: starts it with both adapters, flows of UDP spread by their ports; what is told (tell_testpmd) it does. One processor forwards.
testpmd() {
	rm -f /tmp/testpmd && mkfifo /tmp/testpmd || return
	# Somebody has to hold the other end, or it would take the first command for the last.
	setsid sleep 100000 >/tmp/testpmd &
	echo $! >/tmp/holder
	setsid stdbuf -oL dpdk-testpmd -l 0-1 -a "$(slot hca0)" -a "$(slot hca1)" -- -i --total-num-mbufs=16384 --rss-udp "$@" \
		</tmp/testpmd >/tmp/testpmd.log 2>&1 &
	echo $! >/tmp/testpmd.pid
	until_true 60 grep -q 'testpmd>' /tmp/testpmd.log || { cat /tmp/testpmd.log; false; }
}
# tell_testpmd COMMAND...: prints what it answers, when it is ready for the next one.
tell_testpmd() {
	before=$(stat -c %s /tmp/testpmd.log)
	echo "$*" >/tmp/testpmd
	until_true 30 answered $((before + 1)) && tail -c +$((before + 1)) /tmp/testpmd.log
}
answered() {
	tail -c +"$1" /tmp/testpmd.log | grep -q 'testpmd> *$'
}
# testpmd_ends: by itself, when it is told to.
testpmd_ends() {
	echo quit >/tmp/testpmd
	until_true 30 fails kill -0 "$(cat /tmp/testpmd.pid)"
	status=$?
	kill "$(cat /tmp/holder)"
	tail -n 5 /tmp/testpmd.log
	return $status
}
# counted PORT KEY: one of testpmd's extended statistics.
counted() {
	tell_testpmd show port xstats "$1" | tr -d '\r' | sed -n "s/^$2: //p"
}
