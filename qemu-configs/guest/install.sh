# Job of the guest that installs packages: dpkg, with all that their maintainer scripts do, on the root file system of every
# guest. What that changes becomes an image of its own, on the disk `out`.
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8
disk() {
	for disk in /sys/block/vd*; do
		[ "$(cat "$disk/serial")" = "$1" ] && echo "/dev/${disk##*/}"
	done
}
# Packages of this kernel's headers write there, where the disk with its modules is in the way.
umount "/usr/lib/modules/$(uname -r)"
mkdir -p /run/debs
mount -t erofs -o ro "$(disk debs)" /run/debs || exit 97
# No service starts in a guest that is being made.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
dpkg --force-unsafe-io --force-depends --configure --pending 2>&1
# Programs of systemd that stand alone conflict with systemd.
for deb in /run/debs/systemd_*.deb; do
	[ -e "$deb" ] && dpkg --force-unsafe-io --force-depends --purge $(dpkg-query -W -f '${Package} ' 'systemd-standalone-*') 2>&1
done
# What they depend on and a guest has no use for (systemd, udev) is not there.
dpkg --force-unsafe-io --force-depends --force-confnew --install /run/debs/*.deb 2>&1
status=$?
rm -f /usr/sbin/policy-rc.d
# Written into each guest when it boots.
cd /run/upper/upper || exit 98
rm -rf root run usr/local/bin etc/hosts etc/hostname var/lib/dpkg/status-old var/lib/dpkg/triggers/Lock var/log/dpkg.log
mkfs.erofs --quiet -T0 -U 00000000-0000-0000-0000-000000000000 "$(disk out)" . || exit 99
sync
exit $status
