//! A link that loses packets: what is reliable arrives whole.

use super::Case;
use super::guest::{Command, run};

const PINGPONG: u16 = 18515;
const PERFTEST: u16 = 18516;

/// Between two guests whose link loses one packet in twenty.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut commands: Vec<Command> =
        ["ibv_rc_pingpong -c -s 65536 -n 100", "ibv_rc_pingpong -c -e -g 0 -s 4096 -n 200"]
            .map(|command| Command::pair(command, PINGPONG))
            .into();
    for command in
        ["ib_send_bw -s 65536 -n 200", "ib_write_bw -n 100", "ib_read_bw -n 100", "ib_atomic_bw -n 200"]
    {
        commands.push(Command::pair(format!("{command} -F -p {PERFTEST}"), PERFTEST).named(command));
    }
    run("", "lossy.toml", kernel, &commands)
}
