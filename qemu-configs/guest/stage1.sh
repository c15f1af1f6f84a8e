#!/bin/busybox sh
# Runs from the initramfs: puts the guest's root file system together and hands over to it.
# vda is user space, vdb the kernel's modules; both read-only, under an overlay in memory.
b=/bin/busybox
fail() { echo "hca-vm: initramfs: $1" >/dev/kmsg; $b sleep 1; $b poweroff -f; }
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
for m in /modules/*.ko; do
	$b insmod $m || echo "hca-vm: initramfs: insmod $m failed" >/dev/kmsg
done
n=0
while [ ! -b /dev/vda ] || [ ! -b /dev/vdb ]; do
	n=$((n + 1))
	[ $n -gt 100 ] && fail "no disks"
	$b usleep 50000
done
$b mount -t erofs -o ro /dev/vda /lower || fail "cannot mount the root image"
$b mount -t tmpfs -o mode=755 tmpfs /rw || fail "no tmpfs"
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "no overlay"
$b mkdir -p /new/usr/lib/modules/$($b uname -r)
$b mount -t erofs -o ro /dev/vdb /new/usr/lib/modules/$($b uname -r) || fail "cannot mount the modules"
$b mount -t tmpfs -o mode=755 tmpfs /new/run
$b cp -a /hca /new/run/hca
[ -d /copy ] && $b cp -a /copy/. /new/
for d in dev proc sys; do $b mount --move /$d /new/$d; done
exec $b switch_root /new /run/hca/init
