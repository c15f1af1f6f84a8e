#!/bin/busybox sh
# Runs from the initramfs: puts the guest's root file system together and hands over to it.
# User space, further packages, and the kernel's modules are read-only disks under an overlay in memory.
b=/bin/busybox
fail() { echo "hca-vm: initramfs: $1" >/dev/kmsg; $b sleep 1; $b poweroff -f; }
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
for m in /modules/*.ko; do
	$b insmod $m || echo "hca-vm: initramfs: insmod $m failed" >/dev/kmsg
done
# The device of the disk with this serial number.
disk() {
	for d in /sys/block/vd*; do
		[ "$($b cat $d/serial 2>/dev/null)" = "$1" ] && echo /dev/${d##*/} && return
	done
	return 1
}
n=0
for serial in $($b cat /disks); do
	until disk $serial >/dev/null; do
		n=$((n + 1))
		[ $n -gt 100 ] && fail "no disk $serial"
		$b usleep 50000
	done
done
$b mount -t erofs -o ro $(disk root) /lower || fail "cannot mount the root image"
lower=/lower
if disk packages >/dev/null; then
	$b mount -t erofs -o ro $(disk packages) /packages || fail "cannot mount the packages"
	lower=/packages:/lower
fi
$b mount -t tmpfs -o mode=755 tmpfs /rw || fail "no tmpfs"
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=$lower,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "no overlay"
$b mkdir -p /new/usr/lib/modules/$($b uname -r)
$b mount -t erofs -o ro $(disk modules) /new/usr/lib/modules/$($b uname -r) || fail "cannot mount the modules"
$b mount -t tmpfs -o mode=755 tmpfs /new/run
$b cp -a /hca /new/run/hca
# A guest that makes an image of what it changes finds that there.
[ -e /hca/keeps ] && $b mkdir /new/run/upper && $b mount --move /rw /new/run/upper
[ -d /copy ] && $b cp -a /copy/. /new/
for d in dev proc sys; do $b mount --move /$d /new/$d; done
exec $b switch_root /new /run/hca/init
