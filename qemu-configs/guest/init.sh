#!/bin/sh
# First process of a guest. Channels to the launcher, all virtio-serial:
#   hvc0      what the job prints (or the interactive shell)
#   control   "ready", "problem TEXT", "exit N" to the launcher; "go" and "off" from it
#   kernel    the kernel's log
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
. /run/hca/env
mkdir -p /dev/pts /dev/shm /run/lock /tmp
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
if grep -q '[1-9]' /proc/sys/vm/nr_hugepages; then
	mkdir -p /dev/hugepages
	mount -t hugetlbfs hugetlbfs /dev/hugepages
fi
ln -sfn /proc/self/fd /dev/fd
ln -sfn fd/0 /dev/stdin
ln -sfn fd/1 /dev/stdout
ln -sfn fd/2 /dev/stderr
ulimit -l unlimited
ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -H -n)"
ulimit -c 0
hostname "$HCA_HOST"
echo "$HCA_HOST" >/etc/hostname
cat /run/hca/hosts >/etc/hosts
# The ports' device names depend on how many virtio devices there are; their own names don't.
control= kernel= n=0
while [ -z "$control" ] || [ -z "$kernel" ] || [ ! -c /dev/hvc0 ]; do
	for port in /sys/class/virtio-ports/*; do
		read -r name <"$port/name" || continue
		case $name in
		control) control=/dev/${port##*/} ;;
		kernel) kernel=/dev/${port##*/} ;;
		esac
	done 2>/dev/null
	n=$((n + 1))
	[ $n -gt 200 ] && echo "hca-vm: init: no channels to the launcher" >/dev/console && exec /run/hca/busybox poweroff -f
	[ $n -gt 1 ] && sleep 0.05
done
exec 3<>"$control"
# /dev/kmsg gives each record once per reader; cat ends when it was overrun, and the launcher drops repeats.
(while :; do cat /dev/kmsg; sleep 0.1; done >"$kernel" 2>/dev/null) &
# Held open: a terminal forgets its settings when the last one closes it.
exec 4<>/dev/hvc0
stty raw -echo <&4
mount -t configfs configfs /sys/kernel/config 2>/dev/null
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
ip link set lo up
if [ -n "$HCA_ADDRESS" ] && modprobe virtio_net; then
	for link in /sys/class/net/*; do
		[ "$(cat "$link/address")" = "$HCA_MAC" ] || continue
		ip address add "$HCA_ADDRESS" dev "${link##*/}"
		ip link set "${link##*/}" up
	done
fi
grep -q '^mac' /run/hca/net && modprobe virtio_net && hca-net
if [ -n "$HCA_MODPROBE" ]; then
	for device in /sys/bus/pci/devices/*; do
		[ "$(cat "$device/vendor")" = 0x15b3 ] || continue
		for module in mlx5_ib ib_uverbs ib_umad rdma_ucm; do
			modprobe "$module" >/run/hca/modprobe.log 2>&1 ||
				echo "problem modprobe $module failed: $(cat /run/hca/modprobe.log)" >&3
		done
		break
	done
	hca-net
fi
echo ready >&3
while read -r word <&3; do
	case $word in
	go) break ;;
	off) exec /run/hca/busybox poweroff -f ;;
	esac
done
cd /root
case $HCA_MODE in
job)
	[ -z "$HCA_TERM" ] || export TERM="$HCA_TERM"
	setsid sh /run/hca/job </dev/null >/dev/hvc0 2>&1 3>&- 4>&-
	status=$?
	;;
shell)
	stty sane rows "$HCA_ROWS" cols "$HCA_COLUMNS" <&4
	export TERM="$HCA_TERM"
	setsid -c bash -i </dev/hvc0 >/dev/hvc0 2>&1 3>&- 4>&-
	status=$?
	;;
*)
	status=none
	;;
esac
[ $status = none ] || {
	if [ "$HCA_MODE" = job ]; then
		exec 4<>/dev/hvc0
		stty raw <&4
		printf '\000hca-vm: end of output\n' >&4
	fi
	echo "hca-vm: end of job" >/dev/kmsg
	echo "exit $status" >&3
}
# Stay up for the other guests until the launcher says so.
while read -r word <&3; do
	[ "$word" = off ] && break
done
exec /run/hca/busybox poweroff -f
