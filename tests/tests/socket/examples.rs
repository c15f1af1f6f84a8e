//! The driver's examples run against a server, as its pages say.

use hca_tests::served::Served;
use hca_tests::worlds::TWO_HOSTS;

#[allow(unreachable_pub, reason = "a program of its own")]
#[path = "../../../guest-driver/examples/bringup.rs"]
mod bringup;
#[allow(unreachable_pub, reason = "a program of its own")]
#[path = "../../../guest-driver/examples/pingpong.rs"]
mod pingpong;

#[test]
fn bring_up_by_hand() {
    let served = Served::start(TWO_HOSTS);
    // Twice: what the first one left would stop the second.
    for _ in 0..2 {
        bringup::run(&served.socket("a")).expect("up and down");
    }
}

#[test]
fn ping_pong_on_one_adapter_and_between_two() {
    let served = Served::start(TWO_HOSTS);
    pingpong::run(&[served.socket("a"), served.socket("b")]).expect("between two");
    let alone = Served::start("[[host]]\nname = \"a\"\n[[host.hca]]\n");
    pingpong::run(&[alone.socket("a")]).expect("on one");
}
