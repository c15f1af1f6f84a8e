# How the scripts of several hosts wait for each other, over the network beside the fabric.

# tell HOST: goes on when HOST has heard it: ends a `hear` of this host that runs there, or that will.
tell() {
	for _ in $(seq 3000); do
		[ "$(echo told | nc -N -w 20 "$1" "$(ear "$(hostname)")" 2>/dev/null)" = heard ] && return
		sleep 0.1
	done
	echo "nobody hears in $1"
	return 1
}

# hear [SECONDS [HOST]]: waits for a `tell` of HOST, for some 160 s unless told otherwise; of two hosts, the other.
#
# Each host that tells has an ear of its own: what another one says is never taken for it. Both sides say a word, so that
# each knows that the other was there. A listener that has heard nothing for a while is replaced.
hear() {
	if [ "$(hostname)" = a ]; then other=b; else other=a; fi
	for _ in $(seq $(((${1:-100} + 60) / 15))); do
		[ "$(echo heard | timeout 15 nc -N -w 5 -l "$(ear "${2:-$other}")")" = told ] && return
	done
	echo "nothing heard from ${2:-$other}"
	return 1
}

# ear HOST: the port on which others hear that host.
ear() {
	echo $((7000 + $(printf %d "'$1")))
}
