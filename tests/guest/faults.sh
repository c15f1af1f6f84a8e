# Words for cases in which an adapter fails on script, after those of cases.sh and ethernet.sh.

# traffic: pings to the other end, all of which are answered within a minute.
traffic() {
	until_true 60 ping -q -c 1 -W 1 10.1.0.2 >/dev/null && ping -q -c 5 -i 0.2 10.1.0.2 | grep ' 0% packet loss'
}
# provoke: some frames both ways, whatever becomes of them.
provoke() {
	ping -q -c 10 -i 0.2 -W 1 10.1.0.2 >/dev/null
	true
}
# fault: asks for the fault of this case, and gives it time.
fault() {
	dmesg -C
	outside
	sleep 3
}
# heard REPORTER: that health reporter was told of an error.
heard() {
	devlink health show | grep -A1 "reporter $1\$" | grep -q 'error [1-9]'
}
# said TEXT: waits until the kernel has said so.
said() {
	until_true 80 sh -c "dmesg | grep -q '$1'"
}
# counted REPORTER: that health reporter has seen an error and recovered, and is healthy.
counted() {
	until_true 60 sh -c "devlink health show | grep -A1 'reporter $1\$' | grep -q 'state healthy error [1-9][0-9]* recover [1-9]'"
}
# told COUNTER: the network device counts such events.
told() {
	ethtool -S hca0 | grep -q " $1: [1-9]"
}
# unhurt: the kernel has said nothing of a bug of its own.
unhurt() {
	if dmesg | grep -E 'BUG|Oops|WARNING|Call Trace|use-after-free'; then return 1; fi
}
# reopen: the network device is taken down and up; fails as the second does.
reopen() {
	ip link set hca0 down && ip link set hca0 up
}
# speed MBPS: the network device has this speed.
speed() {
	[ "$(cat /sys/class/net/hca0/speed)" = "$1" ]
}
# slot SPEED LANES: how the slot of the adapter is trained, in GT/s.
slot() {
	grep -q "^$1 GT/s" "/sys/bus/pci/devices/$(pci)/current_link_speed" &&
		[ "$(cat "/sys/bus/pci/devices/$(pci)/current_link_width")" = "$2" ]
}
# errors REGISTER ERROR: the capability of advanced error reporting has this error.
errors() {
	shows "$1:.* $2+" lspci -vvs "$(pci)"
}
# port ENTRY TEXT: that entry of the InfiniBand port in sysfs begins so.
port() {
	grep -q "^$2" "/sys/class/infiniband/mlx5_0/ports/1/$1"
}
# present: the adapter is in its slot, as far as the kernel knows.
present() {
	grep -q 0x15b3 /sys/bus/pci/devices/*/vendor
}
# reset: a function level reset of the adapter, which has no driver.
reset() {
	echo 1 >"/sys/bus/pci/devices/$(pci)/reset"
}
