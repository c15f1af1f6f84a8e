# Words for MPI, UCX and libfabric.

# quiet COMMAND...: prints what the command prints; succeeds if it does, and none of its lines is an error of UCX.
quiet() {
	"$@" >/tmp/quiet 2>&1
	said=$?
	cat /tmp/quiet
	[ $said = 0 ] && ! grep -E 'ERROR|Assertion|unreachable' /tmp/quiet
}
# Settings of UCX for what follows, NAME=VALUE.
settings=
# matching COMMAND...: with tags matched by the adapter, of all messages that have some bytes.
matching() {
	settings="UCX_RC_MLX5_TM_ENABLE=y UCX_DC_MLX5_TM_ENABLE=y UCX_TM_THRESH=1"
	"$@"
}
# openmpi TRANSPORT HOSTS COMMAND...: a process in each of the hosts, over this transport of UCX and nothing else.
openmpi() {
	tls=$1 hosts=$2
	shift 2
	quiet mpirun --allow-run-as-root --host "$hosts" -n 2 --mca pml ucx --mca osc ucx --mca btl self \
		-x UCX_TLS="$tls,self" -x UCX_NET_DEVICES=mlx5_0:1 ${settings:+$(printf -- '-x %s ' $settings)} "$@"
}
# mpich TRANSPORT HOSTS COMMAND...: the same with MPICH.
mpich() {
	tls=$1 hosts=$2
	shift 2
	quiet mpirun.mpich -launcher ssh -hosts "$hosts" -n 2 -genv UCX_TLS "$tls,self" \
		-genv UCX_NET_DEVICES mlx5_0:1 ${settings:+$(printf -- '-genv %s ' $settings | tr = ' ')} "$@"
}
# ssh_works: root of each host may log in to the other. All guests have the image's host key, which is root's, too.
ssh_works() {
	mkdir -p /root/.ssh /run/sshd
	cp /etc/ssh/ssh_host_ed25519_key /root/.ssh/id_ed25519
	cp /etc/ssh/ssh_host_ed25519_key.pub /root/.ssh/authorized_keys
	printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' >/root/.ssh/config
	chmod -R go= /root/.ssh
	/usr/sbin/sshd || return
	for host in a b; do
		until_true 60 ssh "$host" hostname
	done
}
