//! Three stock guests behind a switch, whose subnet OpenSM in the first manages: a little of the suites `fabric`, `ipoib`
//! and `cm`.

use hca_tests::suites::guest::{Command, HOST, run};
use hca_tests::suites::{Case, Outcome, cm, fabric, ipoib};

#[test]
fn a_switch_and_a_subnet_manager() {
    let mut commands = ipoib::set_up();
    commands.push(fabric::shape(fabric::SWITCH));
    commands.push(ipoib::ping("ping", ""));
    commands.push(cm::pair("rping -s -C 10 -V", &format!("rping -c -C 10 -V -a {HOST}")));
    commands.push(Command::pair("ibv_rc_pingpong -c -n 100", 18515));
    commands.push(Command::alone("opensm.log", "cat /var/log/opensm.log; ! grep ERR /var/log/opensm.log"));
    let cases = run("", "switch", "6.12", &commands);
    let failed: Vec<&Case> = cases.iter().filter(|case| case.outcome == Outcome::Failed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(cases.len(), commands.len() + 1, "each command is a case, and the kernel logs are one");
}
