# Words for cases about Ethernet devices, after those of cases.sh.

# pci: the place of the adapter, such as 0000:01:00.0.
pci() {
	basename "$(dirname "$(grep -l 0x15b3 /sys/bus/pci/devices/*/vendor)")"
}
# up: waits until the device has its name, its addresses, and a carrier.
up() {
	until_true 60 hca-net && until_true 60 grep -q 1 /sys/class/net/hca0/carrier
}
# load: the drivers, and the device as it was when the guest came up; unload: the opposite.
load() {
	modprobe mlx5_ib && modprobe ib_uverbs && modprobe rdma_ucm && up
}
unload() {
	modprobe -r mlx5_ib mlx5_core && fails [ -e /sys/class/net/hca0 ]
}
# number: 1 in host a, 2 in host b ...
number() {
	echo $(($(printf %d "'$(hostname)") - 96))
}
# peer: the MAC of the device at the other end of the cable.
peer() {
	there=10.1.0.$((3 - $(number)))
	until_true 30 ping -c 1 -W 1 "$there" >/dev/null && ip neigh show to "$there" dev hca0 | sed -n 's/.*lladdr \([^ ]*\).*/\1/p'
}
# answers ADDRESS [OPTION...]: waits until the address answers a ping; then none of several is lost.
answers() {
	there=$1
	shift
	until_true 30 ping -c 1 -W 1 "$@" "$there" >/dev/null && shows ' 0% packet loss' ping -c 5 -i 0.2 "$@" "$there" ||
		{ ip -s link show hca0; false; }
}
# hears COMMAND...: a frame comes that tcpdump, with these options, takes; it says "listening" first. missed: none comes.
hears() {
	timeout 20 tcpdump -Z root -i hca0 -nn -e -c 1 "$@"
}
missed() {
	timeout 4 tcpdump -Z root -i hca0 -nn -e -c 1 "$@"
	[ $? = 124 ]
}
# counted KEY: that counter of `ethtool -S`.
counted() {
	ethtool -S hca0 | sed -n "s/^ *$1: //p"
}
# features WORD...: switches offloads, and they are as they were told.
features() {
	ethtool -K hca0 "$@" || return
	while [ $# -gt 1 ]; do
		case $1 in
		tx) name=tx-checksumming ;;
		rx) name=rx-checksumming ;;
		sg) name=scatter-gather ;;
		tso) name=tcp-segmentation-offload ;;
		gso) name=generic-segmentation-offload ;;
		gro) name=generic-receive-offload ;;
		rxhash) name=receive-hashing ;;
		rxvlan) name=rx-vlan-offload ;;
		txvlan) name=tx-vlan-offload ;;
		ntuple) name=ntuple-filters ;;
		*) name=$1 ;;
		esac
		ethtool -k hca0 | grep -q "^ *$name: $2" || { ethtool -k hca0 | grep "^ *$name"; return 1; }
		shift 2
	done
}
