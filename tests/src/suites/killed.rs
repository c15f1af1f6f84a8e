//! Applications that are killed in the middle of traffic.

use std::time::Duration;

use hca_vm::run::{Report, Run};

use super::covered::covered;
use super::guest::complaints;
use super::{Case, diagnosed};
use crate::guests::{self, turn};

/// How often.
const TIMES: u32 = 20;
const ALL: Duration = Duration::from_secs(1800);

/// Two guests: an application in `b` writes to one in `a`, which is killed; `b` has to hear of it.
pub fn cases(kernel: &str) -> Vec<Case> {
    // RC with its usual timeout and retries: the peer's completion is "transport retry counter exceeded" (12).
    let victim = format!(
        ". /root/cases.sh
        for i in $(seq {TIMES}); do
            ib_write_bw -F -p 18516 -D 60 >/tmp/log 2>&1 & pid=$!
            until grep -q ':4854 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $pid || break; sleep 0.05; done
            tell b; hear 100; sleep 0.$((i % 9 + 1)); kill -9 $pid && echo killed $i; wait $pid; hear 100
        done
        modprobe -r mlx5_ib mlx5_core && modprobe mlx5_ib && echo reloaded"
    );
    let peer = format!(
        ". /root/cases.sh
        for i in $(seq {TIMES}); do
            hear 100
            timeout -k 5 120 ib_write_bw -F -p 18516 -D 60 a >/tmp/log 2>&1 & pid=$!
            sleep 2; tell a; wait $pid
            grep -h 'Failed status' /tmp/log
            # Whoever waits for the end of the connection instead of a completion would hang, or end without a status.
            grep -q 'Failed status 12:' /tmp/log && echo heard $i
            tell a
        done
        modprobe -r mlx5_ib mlx5_core && modprobe mlx5_ib && echo reloaded"
    );
    let report = {
        let _turn = turn(2);
        match covered(Run::new("two-hosts"))
            .kernel(kernel)
            .timeout(ALL)
            .copy(guests::copy("guest/post.sh"))
            .copy(guests::copy("guest/cases.sh"))
            .host("a", victim)
            .host("b", peer)
            .run()
        {
            Ok(report) => report,
            Err(error) => return vec![Case::check("set up", format!("{error:#}"))],
        }
    };
    let mut cases: Vec<Case> = (1..=TIMES)
        .flat_map(|time| {
            [said(&report, "a", &format!("killed {time}")), said(&report, "b", &format!("heard {time}"))]
        })
        .collect();
    cases.push(said(&report, "a", "reloaded"));
    cases.push(said(&report, "b", "reloaded"));
    for adapter in ["a/hca0", "b/hca0"] {
        cases.push(Case::check(format!("nothing left by the driver of {adapter}"), left(&report, adapter)));
    }
    cases.push(diagnosed::all(Case::check("kernel logs", complaints(&report)), &report));
    cases
}

fn said(report: &Report, host: &str, word: &str) -> Case {
    let output = report.host(host).map_or("", |host| host.output.as_str());
    let complaint = if output.lines().any(|line| line == word) { "" } else { output };
    Case::check(format!("{host}: {word}"), complaint)
}

/// What an adapter still held when its driver had gone.
fn left(report: &Report, adapter: &str) -> String {
    let counts = match guests::counts(report, adapter, "last_teardown") {
        Ok(counts) => counts,
        Err(why) => return why,
    };
    let left = counts.into_iter().filter(|(_, count)| *count != 0);
    let left: Vec<String> = left.map(|(kind, count)| format!("{kind}: {count}")).collect();
    left.join(", ")
}
