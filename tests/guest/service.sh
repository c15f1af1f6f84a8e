# Words for cases that want systemd: it is process 1 of namespaces of its own, as in a container, with this guest's files.

# begin_systemd: boots it, as far as its basic target.
begin_systemd() {
	mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup || return
	setsid unshare --pid --mount --cgroup --ipc --uts --fork --propagation private sh -c '
		mount -t proc proc /proc
		mount -t tmpfs -o mode=755 tmpfs /run
		exec env -i container=softhca PATH=/usr/sbin:/usr/bin:/sbin:/bin \
			/usr/lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
	' </dev/null >/tmp/systemd.log 2>&1 &
	until inside systemctl is-active basic.target; do
		sleep 0.5
		kill -0 $! || { cat /tmp/systemd.log; return 1; }
	done
}

# first: the process that is 1 in those namespaces.
first() {
	pgrep -xo systemd
}

# inside COMMAND...: runs it there.
inside() {
	nsenter -t "$(first)" -p -m -C -i -u "$@" </dev/null
}

# inside_pid: the service's process, as it is numbered here.
inside_pid() {
	pgrep -xo softhca
}

# served: the service has made its sockets, of mode 0600 in a folder of mode 0700.
served() {
	until inside systemctl is-active softhca@pair && inside test -S /run/softhca/pair/b-hca0.sock; do
		sleep 0.5
	done
	inside stat -c '%a %U %n' /run/softhca/pair /run/softhca/pair/*.sock
	[ "$(inside stat -c %a /run/softhca/pair)" = 700 ] &&
		[ "$(inside sh -c 'stat -c %a /run/softhca/pair/*.sock' | sort -u)" = 600 ]
}

# attach: a driver brings both adapters up, and messages pass.
attach() {
	inside /root/pingpong /run/softhca/pair/a-hca0.sock /run/softhca/pair/b-hca0.sock
}

# scrape: what the service says to Prometheus.
scrape() {
	ip link set lo up
	bash -c 'exec 3<>/dev/tcp/127.0.0.1/9108
		printf "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n" >&3
		cat <&3'
}

# files: all that there are, but those of the kernel, of this test, and what other programs keep: backups, locks, logs, caches.
files() {
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /root \
		-o -path /var/log -o -path /var/cache -o -path /var/tmp -o -path /var/lib/systemd \) -prune -o -print |
		grep -Ev '^/etc/(passwd|group|shadow|gshadow|subuid|subgid)-$|^/etc/\.pwd\.lock$|^/var/lib/dpkg/triggers/Lock$|^/var/lib/dpkg/[a-z]+-old$' | sort
}
