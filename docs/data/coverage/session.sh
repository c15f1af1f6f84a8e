# In the guest: a ping-pong on each adapter, a look at the Ethernet device, and the drivers are unloaded.
for device in $(ls /sys/class/infiniband); do
    ibv_devinfo -d "$device" | grep -E 'hca_id|state|link_layer'
    ibv_rc_pingpong -d "$device" -g 0 -n 200 > /dev/null &
    sleep 3
    ibv_rc_pingpong -d "$device" -g 0 -n 200 127.0.0.1
    wait
done
for device in $(ls -d /sys/class/net/*/device/infiniband 2>/dev/null | cut -d/ -f5); do
    ip link set "$device" up
    ethtool "$device" | grep -E 'Speed|Link detected'
    ethtool -S "$device" | wc -l
done
modprobe -r mlx5_ib && modprobe -r mlx5_core && echo unloaded
