# Job of a guest that builds a module outside of the kernel's tree, in /root/module, and loads it. HCA_HEADERS is the kernel's own
# build folder, if it does not come from Debian.
release=$(uname -r)
headers=${HCA_HEADERS:-/usr/src/linux-headers-$release}
[ -e "$headers/Makefile" ] || { echo "module: no headers of kernel $release in $headers" >&2; exit 2; }
cd /root/module || exit
make -C "$headers" M="$PWD" modules || exit
[ -s modules.order ] || { echo "module: the Makefile names no module (obj-m)" >&2; exit 2; }
# Names of objects from 6.2 on, of modules before.
for module in $(sed 's/\.k\?o$/.ko/' modules.order); do
	for needed in $(modinfo -F depends "$module" | tr , ' '); do
		grep -q "^${needed} " /proc/modules || modprobe "$needed" 2>/dev/null || true
	done
	echo "module: loading ${module##*/}"
	insmod "$module" || { status=$?; dmesg | tail -n 20; exit $status; }
done
cd /root
