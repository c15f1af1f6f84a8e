//! Subnets that OpenSM in host `a` manages, looked at with infiniband-diags and ibdiagnet.

use super::Case;
use super::guest::{Command, HOST, Ready, run};
use super::ipoib::{log_of_opensm, opensm_ends, ping, set_up};

/// TCP port of perftest.
const PERFTEST: u16 = 18516;

/// In each topology.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut cable = set_up();
    cable.extend(queries("b"));
    cable.extend(conversations());
    cable.push(shape(CABLE));
    cable.extend(diagnosis());
    cable.push(own_link());
    cable.extend(afterwards());
    cable.extend(succession());
    let mut switch = set_up();
    switch.extend(queries("c"));
    switch.extend(switches());
    switch.extend(conversations());
    switch.push(shape(SWITCH));
    switch.extend(diagnosis());
    switch.push(Command::meeting("before the link of a switch goes"));
    switch.push(link_of_a_switch());
    switch.extend(cable_of_a_host());
    switch.extend(afterwards());
    switch.extend(succession());
    let mut two = set_up();
    two.extend(switches());
    two.extend(conversations());
    two.push(shape(TWO_SWITCHES));
    two.extend(diagnosis());
    two.push(Command::meeting("before cables go"));
    two.extend(cables_of_a_trunk());
    two.push(trunk());
    two.extend(afterwards());
    two.push(opensm_ends());
    let mut cases = run("cable: ", "cable", kernel, &cable);
    cases.extend(run("switch: ", "switch", kernel, &switch));
    cases.extend(run("two-switches: ", "two-switches", kernel, &two));
    cases
}

/// What `ibnetdiscover -p` prints of the topology `cable`, without LIDs and GUIDs: type, port, width and speed, then type,
/// port and names of the peer.
pub const CABLE: &str = "\
    CA 1 4x EDR - CA 1 ( 'softhca a/hca0' - 'softhca b/hca0' )
    CA 1 4x EDR - CA 1 ( 'softhca b/hca0' - 'softhca a/hca0' )";
/// The same of `switch`.
pub const SWITCH: &str = "\
    CA 1 4x EDR - SW 1 ( 'softhca a/hca0' - 'softhca s1' )
    CA 1 4x EDR - SW 2 ( 'softhca b/hca0' - 'softhca s1' )
    CA 1 4x EDR - SW 3 ( 'softhca c/hca0' - 'softhca s1' )
    SW 1 4x EDR - CA 1 ( 'softhca s1' - 'softhca a/hca0' )
    SW 2 4x EDR - CA 1 ( 'softhca s1' - 'softhca b/hca0' )
    SW 3 4x EDR - CA 1 ( 'softhca s1' - 'softhca c/hca0' )";
/// The same of `two-switches`.
const TWO_SWITCHES: &str = "\
    CA 1 4x EDR - SW 1 ( 'softhca a/hca0' - 'softhca s1' )
    CA 1 4x EDR - SW 2 ( 'softhca b/hca0' - 'softhca s1' )
    CA 1 4x EDR - SW 1 ( 'softhca c/hca0' - 'softhca s2' )
    SW 1 4x EDR - CA 1 ( 'softhca s1' - 'softhca a/hca0' )
    SW 2 4x EDR - CA 1 ( 'softhca s1' - 'softhca b/hca0' )
    SW 1 4x EDR - CA 1 ( 'softhca s2' - 'softhca c/hca0' )
    SW 7 4x EDR - SW 7 ( 'softhca s1' - 'softhca s2' )
    SW 7 4x EDR - SW 7 ( 'softhca s2' - 'softhca s1' )
    SW 8 1x QDR - SW 8 ( 'softhca s1' - 'softhca s2' )
    SW 8 1x QDR - SW 8 ( 'softhca s2' - 'softhca s1' )";

/// Looks at the subnet from host `a`, and at another host in it.
fn queries(other: &str) -> Vec<Command> {
    [
        ("sminfo", "shows 'SMINFO_MASTER' sminfo".to_owned()),
        ("ibstat", "shows 'State: Active' ibstat".to_owned()),
        ("ibhosts", format!("shows ' ports 1 \"softhca {other}/hca0\"' ibhosts")),
        ("ibnodes", format!("shows ' ports 1 \"softhca {other}/hca0\"' ibnodes")),
        ("saquery", format!("shows 'NodeDescription.*softhca {other}/hca0' saquery")),
        ("saquery -c", "shows 'Capability mask' saquery -c".to_owned()),
        ("saquery -s", "shows \"EndPortLid.*[.]$(lid a)\\$\" saquery -s".to_owned()),
        ("saquery PIR", format!("shows 'LinkState:.*Active' saquery PIR $(lid {other})")),
        ("saquery PKTR", format!("shows '0xFFFF|0xffff' saquery PKTR --smkey 1 $(lid {other})")),
        ("saquery GIR", format!("shows 'GUID' saquery GIR $(lid {other})")),
        ("saquery VLAR", format!("shows 'VL' saquery VLAR $(lid {other})")),
        ("saquery SL2VL", format!("shows 'SL' saquery SL2VL $(lid {other})")),
        ("saquery -x", "shows 'ToLID' saquery -x".to_owned()),
        ("saquery --src-to-dst", format!("shows \"dlid.*[.]$(lid {other})\\$\" saquery --src-to-dst $(lid a):$(lid {other})")),
        ("saquery -g", "shows 'MGID.*ff12:401b:ffff::ffff:ffff' saquery -g".to_owned()),
        ("saquery -m", format!("shows 'NodeDescription.*softhca {other}/hca0' saquery -m --smkey 1")),
        ("smpquery nodeinfo", format!("shows 'NodeType:.*Channel Adapter' smpquery nodeinfo $(lid {other})")),
        ("smpquery nodedesc", format!("shows 'softhca {other}/hca0' smpquery nodedesc $(lid {other})")),
        ("smpquery portinfo", format!("shows 'LinkState:.*Active' smpquery portinfo $(lid {other}) 1")),
        ("smpquery pkeys", format!("shows '0xffff' smpquery pkeys $(lid {other}) 1")),
        ("smpquery guidinfo", format!("smpquery guidinfo $(lid {other}) 1")),
        ("smpquery vlarb", format!("shows 'VL' smpquery vlarb $(lid {other}) 1")),
        ("smpquery sl2vl", format!("shows 'SL' smpquery sl2vl $(lid {other}) 1")),
        ("smpquery -D", "shows 'NodeType' smpquery -D nodeinfo 0,1".to_owned()),
        ("ibaddr", format!("shows 'LID start' ibaddr $(lid {other})")),
        ("ibportstate", format!("shows 'LinkState:.*Active' ibportstate $(lid {other}) 1")),
        ("ibtracert", format!("shows 'To ca.*softhca {other}/hca0' ibtracert $(lid a) $(lid {other})")),
        ("iblinkinfo", format!("shows '4X +25.78125 Gbps Active/ +LinkUp' iblinkinfo && shows 'softhca {other}/hca0' iblinkinfo")),
        (
            "perfquery counts",
            format!(
                "packets() {{ perfquery -x $(lid {other}) 1 | tee /dev/stderr | sed -n 's/^PortRcvPkts:[.]*//p'; }}
                before=$(packets); after=$(packets); [ \"$after\" -gt \"$before\" ]"
            ),
        ),
        (
            "perfquery resets",
            format!(
                "data() {{ perfquery -x $(lid {other}) 1 | sed -n 's/^PortRcvData:[.]*//p'; }}
                before=$(data); perfquery -x -R $(lid {other}) 1; after=$(data); echo \"$before, then $after\"
                [ \"$before\" -gt \"$after\" ]"
            ),
        ),
        // The first of these has nothing to compare with; both must find every node.
        ("ibnetdiscover --cache", "ibnetdiscover --cache /tmp/subnet && ibnetdiscover --diff /tmp/subnet".to_owned()),
    ]
    .into_iter()
    .map(|(name, script)| Command::alone(name, script))
    .collect()
}

/// Programs with a side in each of two hosts.
fn conversations() -> Vec<Command> {
    let once_it_answers = |program: &str| format!("until_true 20 {program} && {program}");
    vec![
        ibping("ibping"),
        Command::sides("ibsysstat -S", Ready::Started, &once_it_answers(&format!("ibsysstat $(lid {HOST})")))
            .that_stays()
            .named("ibsysstat"),
        Command::pair("ibv_rc_pingpong -c", 18515),
        Command::pair("ibv_ud_pingpong -c", 18515),
        ping("ping", ""),
    ]
}

/// Pings over management datagrams.
fn ibping(name: &str) -> Command {
    let client = format!(
        "until_true 20 ibping -c 1 $(lid {HOST}); shows '10 received, 0% packet loss' ibping -c 10 -f $(lid {HOST})"
    );
    Command::sides("ibping -S", Ready::Started, &client).that_stays().named(name)
}

/// The subnet has the shape of the topology's file, which `lines` says.
pub fn shape(lines: &str) -> Command {
    let lines: Vec<_> = lines.lines().map(str::trim).collect();
    // What is left of a port's line is type, port, width and speed, and the same of its peer without them; LIDs and GUIDs
    // are not in the file.
    let script = format!(
        r"ibnetdiscover -p | tee /dev/stderr | grep ' - ' | sed -E 's/^(CA|SW) +[0-9]+ +([0-9]+) +0x[0-9a-f]+ +/\1 \2 /
            s/ - (CA|SW) +[0-9]+ +([0-9]+) +0x[0-9a-f]+ / - \1 \2 /' | sort >/tmp/found
        sort >/tmp/expected <<'END'
{}
END
        diff /tmp/expected /tmp/found",
        lines.join("\n")
    );
    Command::alone("ibnetdiscover", script)
}

/// Programs that look for trouble, and must not find any.
fn diagnosis() -> Vec<Command> {
    [
        // Links have gone down when the hosts booted; that is cleared first.
        ("ibqueryerrors", "ibqueryerrors -k; shows ' 0 ports have errors beyond threshold' ibqueryerrors"),
        ("ibdiagnet", "ibdiagnet >/tmp/ibdiagnet; cat /tmp/ibdiagnet; grep 'Done[.]' /tmp/ibdiagnet && ! grep -e -E- /tmp/ibdiagnet"),
    ]
    .into_iter()
    .map(|(name, script)| Command::alone(name, script))
    .chain([log_of_opensm()])
    .collect()
}

/// Looks at the switch `s1`.
fn switches() -> Vec<Command> {
    [
        ("ibswitches", "shows 'ports 8 \"softhca s1\"' ibswitches"),
        ("smpquery switchinfo", "shows 'LinearFdbCap' smpquery switchinfo $(saquery -L 'softhca s1')"),
        (
            "smpquery of a switch's port",
            "shows 'LinkState:.*Active' smpquery portinfo $(saquery -L 'softhca s1') 1",
        ),
        (
            "ibroute",
            "shows \"Channel Adapter portguid.*'softhca b/hca0'\" ibroute $(saquery -L 'softhca s1')",
        ),
        ("ibroute -M", "shows '^0x[cC]000' ibroute -M $(saquery -L 'softhca s1')"),
        ("dump_fts", "shows 'softhca b/hca0' dump_fts"),
        ("saquery LFTR", "shows 'LFT' saquery LFTR $(saquery -L 'softhca s1')"),
        ("saquery SWIR", "shows 'SwitchInfo' saquery SWIR"),
        (
            "perfquery of a switch's port",
            "shows '^PortRcvPkts:[.]*[1-9]' perfquery -x $(saquery -L 'softhca s1') 1",
        ),
        ("perfquery of all ports", "shows '^PortSelect:[.]*255' perfquery -a $(saquery -L 'softhca s1')"),
    ]
    .into_iter()
    .map(|(name, script)| Command::alone(name, script))
    .collect()
}

/// The link of the host with the subnet manager goes down and comes back; a sweep repairs what that did.
fn own_link() -> Command {
    Command::alone("own link goes and comes", "ibportstate -D 0 1 reset; until_true 60 active")
}

/// The link of another host is switched off and on again, at the switch. A Set that takes a port down is no change that a
/// switch reports (IBTA vol 1 14.2.5.4, PortStateChange); that the port trains again is, and a sweep brings it up.
fn link_of_a_switch() -> Command {
    Command::alone(
        "link of a switch goes and comes",
        "s1=$(saquery -L 'softhca s1'); b=$(lid b)
        ibportstate $s1 2 disable; until_true 60 shows 'PhysLinkState:.*Disabled' ibportstate $s1 2 query
        fails ibping -c 1 $b
        ibportstate $s1 2 enable; until_true 60 shows 'LinkState:.*Active' ibportstate $s1 2 query
        until_true 60 smpquery nodeinfo $b",
    )
}

/// The cable of host `b` is pulled out while `c` writes to `b`, and put in again.
fn cable_of_a_host() -> Vec<Command> {
    let write = format!("ib_write_bw -F -p {PERFTEST} -D 60");
    vec![
        // Its asynchronous events, from now on.
        Command::everywhere("watch", "in_host b eval 'setsid stdbuf -oL ibv_asyncwatch >/tmp/events 2>&1 & until_true 20 grep FD /tmp/events'"),
        // The writer's completion is "transport retry counter exceeded" (12).
        Command::sides(
            &write,
            Ready::Tcp(PERFTEST),
            &format!(
                "before=$(sent); {write} {HOST} >/tmp/log 2>&1 & writer=$!
                until_true 60 eval '[ $(sent) -gt $((before + 1000000)) ]'; outside
                wait $writer; cat /tmp/log; grep 'Failed status 12:' /tmp/log"
            ),
        )
        .that_stays()
        .with_outside("softhca ctl link down b:1")
        .named("cable goes under ib_write_bw"),
        Command::everywhere(
            "no cable",
            "state=/sys/class/infiniband/mlx5_0/ports/1/state; carrier=/sys/class/net/ib0/carrier
            case $(hostname) in
            a) s1=$(saquery -L 'softhca s1')
                until_true 60 shows 'PhysLinkState:.*Polling' ibportstate $s1 2 query && until_true 60 fails listed b ;;
            b) until_true 60 grep DOWN $state && until_true 60 grep 0 $carrier && shows PORT_ERR cat /tmp/events ;;
            c) fails ping -c 2 -W 2 ib-b && shows ' 2 received, 0% packet loss' ping -c 2 ib-a ;;
            esac",
        ),
        Command::alone("cable comes", "outside; until_true 60 listed b")
            .with_outside("softhca ctl link up b:1"),
        Command::everywhere(
            "port is active",
            "active && in_host b eval 'until_true 60 grep PORT_ACTIVE /tmp/events && pkill -x ibv_asyncwatch'",
        ),
        ibping("ibping after that"),
        Command::pair(format!("ib_write_bw -F -p {PERFTEST} -n 100"), PERFTEST).named("ib_write_bw after that"),
    ]
}

/// Each of two cables between switches is pulled out, with the other one in: what went through it takes the other one.
fn cables_of_a_trunk() -> Vec<Command> {
    let change = |port: u16, to: &str, what: &str, script: String| {
        Command::alone(
            format!("cable {port} {what}"),
            format!("s1=$(saquery -L 'softhca s1'); outside; {script}"),
        )
        .with_outside(format!("softhca ctl link {to} s1:{port}"))
    };
    let goes = |port: u16, other: u16| {
        let script = format!(
            "until_true 60 shows 'LinkState:.*Down' ibportstate $s1 {port} query
            until_true 60 shows '^0x.* 00{other} .*c/hca0' ibroute $s1 && until_true 20 ping -c 1 -W 2 ib-c"
        );
        change(port, "down", "goes", script)
    };
    let comes = |port: u16| {
        let script = format!("until_true 60 shows 'LinkState:.*Active' ibportstate $s1 {port} query");
        change(port, "up", "comes", script)
    };
    vec![goes(7, 8), comes(7), goes(8, 7), comes(8)]
}

/// One of two cables between switches is taken away: what went through it has to find another way.
fn trunk() -> Command {
    Command::alone(
        "trunk goes",
        "s1=$(saquery -L 'softhca s1'); ibportstate $s1 7 disable
        until_true 60 shows '^0x.* 008 .*c/hca0' ibroute $s1",
    )
}

/// Everything works again, and nothing was an error for the subnet manager.
fn afterwards() -> Vec<Command> {
    vec![
        Command::everywhere("active again", "active && until_true 60 grep -q 1 /sys/class/net/ib0/carrier"),
        ping("ping after that", ""),
        // A datagram that was on its way through the link that went is lost, which the subnet manager tells as a timeout.
        Command::alone(
            "opensm.log after that",
            "cat /var/log/opensm.log; ! grep ERR /var/log/opensm.log | grep -v -e IB_TIMEOUT -e 'Timeout while getting'",
        ),
    ]
}

/// A second subnet manager waits, and takes over when the first is gone.
fn succession() -> Vec<Command> {
    let heir = "b";
    vec![
        // Its log is read while it runs: -d 2 writes each line at once.
        Command::everywhere("second opensm", format!("in_host {heir} manage -d 2")),
        Command::alone(
            "standby",
            format!(
                "until_true 60 shows SMINFO_STANDBY sminfo $(lid {heir}) && shows SMINFO_MASTER sminfo $(lid a)"
            ),
        ),
        Command::alone("first opensm ends", "kill $(pgrep -x opensm)"),
        Command::everywhere(
            "master",
            format!("in_host {heir} until_true 90 shows SMINFO_MASTER sminfo -D 0"),
        ),
        // As master it sweeps first, and answers nobody until that is done.
        Command::everywhere(
            "subnet is up",
            format!("in_host {heir} until_true 60 shows 'SUBNET UP' cat /var/log/opensm.log"),
        ),
        ping("ping under the second", ""),
        Command::everywhere(
            "saquery under the second",
            format!("until_true 60 shows 'softhca {heir}/hca0' saquery"),
        ),
        opensm_ends(),
    ]
}
