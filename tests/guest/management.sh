# Words for cases about the management of an adapter, after those of cases.sh.

# Where the kernel looks for firmware.
mkdir -p /lib/firmware

# pci: the place of the adapter, such as 0000:01:00.0.
pci() {
	basename "$(dirname "$(grep -l 0x15b3 /sys/bus/pci/devices/*/vendor)")"
}
# ran COMMAND...: prints what it prints; it may fail, but not crash.
ran() {
	"$@"
	status=$?
	[ $status -lt 128 ] || echo "crashed: $status"
	return $status
}
# traces: from now on the firmware's messages are in the kernel's buffer of traces.
tracing=/sys/kernel/debug/tracing
traces() {
	mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
	echo 1 >$tracing/events/mlx5/mlx5_fw/enable
}
# start_anew: a reset of the adapter's bus, behind which the kernel looks for it anew, and the driver loaded again. The
# bridge is told directly: what is behind it may be another device then, which the kernel's own reset would not look for.
start_anew() {
	place=$(pci)
	bridge=$(basename "$(dirname "$(readlink -f "/sys/bus/pci/devices/$place")")")
	modprobe -r mlx5_ib mlx5_core
	echo 1 >"/sys/bus/pci/devices/$place/remove" && setpci -s "$bridge" BRIDGE_CONTROL=40:40 && sleep 0.1 &&
		setpci -s "$bridge" BRIDGE_CONTROL=0:40 && sleep 1 && echo 1 >"/sys/bus/pci/devices/$bridge/rescan" &&
		until_true 30 pci && modprobe mlx5_ib && until_true 30 link_layer
}
# active: whether the port is.
active() {
	ibv_devinfo | grep -q PORT_ACTIVE
}
# ill: the driver's reporter of fatal errors has one that was not recovered from.
ill() {
	devlink health show "pci/$(pci)" reporter fw_fatal | grep -q 'state error'
}
# pong: data passes between two queue pairs of the adapter.
pong() {
	ibv_rc_pingpong -n 100 >/dev/null &
	until_true 10 sh -c 'ss -ltn | grep -q :18515' && ibv_rc_pingpong -n 100 localhost && wait $!
}
# class: that of the adapter: 0x020700 is InfiniBand, 0x020000 Ethernet.
class() {
	cat "/sys/bus/pci/devices/$(pci)/class"
}
# link_layer: that of the RDMA device.
link_layer() {
	cat /sys/class/infiniband/*/ports/1/link_layer
}
# interface: the network device, with an address of its own.
interface() {
	name=$(ls "/sys/bus/pci/devices/$(pci)/net") &&
		ip address replace "10.9.0.$(printf %d "'$(hostname)")/24" dev "$name" && ip link set "$name" up &&
		until_true 60 grep -q 1 "/sys/class/net/$name/carrier"
}
