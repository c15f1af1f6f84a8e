# Words for storage over RDMA, with the kernel's own targets and initiators: no program is in the way of the data.

# Bytes that a disk or file has to bring back unchanged, in MiB; disks have twice as many.
MIB=8

# with_ipoib: whether the hosts' addresses are those of IPoIB. Otherwise they are those of the first Ethernet port.
with_ipoib() {
	grep -q " ib-" /etc/hosts
}
# address HOST: its address there.
address() {
	with_ipoib && name=ib-$1 || name=$1-hca0
	sed -n "s/[[:space:]]$name\$//p" /etc/hosts
}
# port_guid HOST: the GUID of its port, as 16 hex digits.
port_guid() {
	saquery -N "softhca $1/hca0" | sed -n 's/.*port_guid.*0x//p'
}
configfs() {
	mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
}
# fresh: other data from now on, all of it at once for whoever writes it meanwhile.
fresh() {
	dd if=/dev/urandom of=/tmp/fresh bs=1M count=$MIB && mv /tmp/fresh /tmp/data
}
# brings_back DEVICE: what is written to a disk is read again, in pieces of some sizes, and past all caches.
brings_back() {
	for piece in 4096 65536 1048576; do
		fresh && dd if=/tmp/data of="$1" bs=$piece oflag=direct || return
		dd if="$1" of=/tmp/back bs=$piece count=$((MIB * 1048576 / piece)) iflag=direct && cmp /tmp/data /tmp/back || return
	done
}
# writes_on DEVICE: what fresh made, again and again until told that it is enough; ends early if a write fails.
writes_on() {
	until [ -e /tmp/enough ]; do
		dd if=/tmp/data of="$1" bs=64k oflag=direct || return
		echo >>/tmp/rounds
	done
}
# rounds: how often it has written everything.
rounds() {
	wc -l </tmp/rounds
}

# NVMe over Fabrics. nvme_target: gives a disk to whoever asks.
nvme_target() {
	modprobe nvmet_rdma && configfs || return
	truncate -s $((MIB * 2))M /tmp/disk
	subsystem=/sys/kernel/config/nvmet/subsystems/softhca
	mkdir $subsystem && echo 1 >$subsystem/attr_allow_any_host && mkdir $subsystem/namespaces/1 || return
	echo 1 >$subsystem/namespaces/1/buffered_io
	printf /tmp/disk >$subsystem/namespaces/1/device_path
	echo 1 >$subsystem/namespaces/1/enable || return
	port=/sys/kernel/config/nvmet/ports/1
	mkdir $port && echo rdma >$port/addr_trtype && echo ipv4 >$port/addr_adrfam || return
	address "$(hostname)" >$port/addr_traddr && echo 4420 >$port/addr_trsvcid || return
	ln -s $subsystem $port/subsystems/softhca
}
# nvme_connect HOST: the disk is /dev/nvme0n1 afterwards.
nvme_connect() {
	modprobe nvme_rdma || return
	echo "transport=rdma,traddr=$(address "$1"),trsvcid=4420,nqn=softhca" >/dev/nvme-fabrics || return
	until_true 20 test -b /dev/nvme0n1
}
nvme_is() {
	grep "$1" /sys/class/nvme/nvme0/state
}

# ram_disk NUMBER: makes a disk for targets in $disk.
ram_disk() {
	disk=/sys/kernel/config/target/core/rd_mcp_$1/disk
	mkdir -p "$disk" && echo rd_pages=$((MIB * 2 * 256)) >"$disk/control" && echo 1 >"$disk/enable"
}

# SRP, which meets by the subnet's manager, or by addresses: at this TCP port, and with this GUID of the target.
SRP_PORT=7174
SRP_GUID=50f7ca0000000001
# srp_target HOST: gives a disk to that host.
srp_target() {
	options=
	with_ipoib || options=srpt_service_guid=0x$SRP_GUID
	modprobe ib_srpt $options && configfs && ram_disk 0 || return
	port=/sys/kernel/config/target/srpt/$(cut -d: -f5-8 /sys/class/infiniband/mlx5_0/ports/1/gids/0)
	mkdir /sys/kernel/config/target/srpt
	with_ipoib || echo $SRP_PORT >/sys/kernel/config/target/srpt/discovery_auth/rdma_cm_port || return
	mkdir "$port" && mkdir "$port/tpg" && mkdir "$port/tpg/lun/lun_0" || return
	ln -s $disk "$port/tpg/lun/lun_0/disk"
	# As many work requests as a queue pair of this adapter holds with room for lists of pieces in each.
	echo 512 >"$port/tpg/attrib/srp_sq_size"
	# By addresses the kernel's target calls an initiator after the address of its own that he came to (srpt_rdma_cm_req_recv).
	with_ipoib && initiator=$(port_guid "$1" | sed 's/..../&:/g; s/:$//') || initiator=$(address "$(hostname)")
	initiator=$port/tpg/acls/$initiator
	mkdir "$initiator" && mkdir "$initiator/lun_0" && ln -s "$port/tpg/lun/lun_0" "$initiator/lun_0/disk" || return
	echo 1 >"$port/tpg/enable"
}
# srp_connect HOST: to the only target of the subnet, or of that host; the disk is /dev/sda afterwards.
srp_connect() {
	modprobe ib_srp && modprobe sd_mod || return
	if with_ipoib; then
		ibsrpdm -c -d /dev/infiniband/umad0
	else
		echo "id_ext=$SRP_GUID,ioc_guid=$SRP_GUID,dest=$(address "$1"):$SRP_PORT"
	fi | tee /tmp/targets
	cat /tmp/targets >/sys/class/infiniband_srp/srp-mlx5_0-1/add_target || return
	until_true 20 test -b /dev/sda
}
srp_disconnect() {
	for port in /sys/class/srp_remote_ports/*; do
		echo 1 >"$port/delete"
	done
	until_true 20 fails test -b /dev/sda
}

# iSER. The target's name.
ISER=iqn.2026-11.softhca:disk
# iser_target: gives a disk to whoever logs in.
iser_target() {
	modprobe ib_isert && configfs && ram_disk 1 || return
	group=/sys/kernel/config/target/iscsi/$ISER/tpgt_1
	mkdir /sys/kernel/config/target/iscsi && mkdir -p "$group" && mkdir "$group/lun/lun_0" || return
	ln -s $disk "$group/lun/lun_0/disk"
	portal=$group/np/$(address "$(hostname)"):3260
	mkdir "$portal" && echo 1 >"$portal/iser" || return
	echo 0 >"$group/attrib/authentication" && echo 0 >"$group/attrib/demo_mode_write_protect" || return
	echo 1 >"$group/attrib/generate_node_acls" && echo 1 >"$group/enable"
}
# iser_connect HOST: the disk is /dev/sda afterwards.
iser_connect() {
	modprobe ib_iser && modprobe sd_mod || return
	echo "InitiatorName=iqn.2026-11.softhca:$(hostname)" >/etc/iscsi/initiatorname.iscsi
	iscsid && iscsiadm -m node -o new -T $ISER -p "$(address "$1"):3260" -I iser || return
	iscsiadm -m node -T $ISER --login && until_true 20 test -b /dev/sda
}
iser_disconnect() {
	iscsiadm -m node -T $ISER --logout && iscsiadm -k 0
	until_true 20 fails test -b /dev/sda
}

# NFS. nfs_server HOST: a folder for that host. What rpc.mountd would answer is in the kernel's caches before it asks.
nfs_server() {
	modprobe nfsd && modprobe rpcrdma || return
	mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd || return
	mkdir -p /srv/nfs /var/lib/nfs/v4recovery && mount -t tmpfs tmpfs /srv/nfs || return
	for time in nfsv4gracetime nfsv4leasetime; do
		echo 10 >/proc/fs/nfsd/$time
	done
	forever=2147483647
	# Any port (2), no check of subtrees (0x400), an fsid (0x2000): the root of what NFS 4 shows has number 0.
	flags=$((0x2402))
	echo "nfsd $(address "$1") $forever softhca" >/proc/net/rpc/auth.unix.ip/channel &&
		printf 'softhca 1 \\x00000000 %s /srv/nfs\n' $forever >/proc/net/rpc/nfsd.fh/channel &&
		echo "softhca /srv/nfs $forever $flags 65534 65534 0" >/proc/net/rpc/nfsd.export/channel || return
	echo "-2 -3 +4 +4.1 +4.2" >/proc/fs/nfsd/versions
	# Threads want a socket before they start, and RDMA wants threads.
	echo "tcp 2049" >/proc/fs/nfsd/portlist && echo 2 >/proc/fs/nfsd/threads && echo "rdma 20049" >/proc/fs/nfsd/portlist
}
nfs_mount() {
	modprobe nfsv4 && modprobe rpcrdma && mkdir -p /mnt/nfs || return
	mount -i -t nfs4 "$(address "$1"):/" /mnt/nfs \
		-o "addr=$(address "$1"),clientaddr=$(address "$(hostname)"),proto=rdma,port=20049,vers=4.2,sec=sys"
}
nfs_brings_back() {
	fresh && cp /tmp/data /mnt/nfs/data || return
	dd if=/mnt/nfs/data of=/tmp/back bs=256k iflag=direct && cmp /tmp/data /tmp/back || return
	grep 'xprt:.*rdma' /proc/self/mountstats
}
