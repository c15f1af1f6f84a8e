//! A guest that writes rubbish to its adapter, as its kernel and as a user's program. The adapter answers, the server
//! lives, a guest on the same cable notices nothing, and after a reset everything works as on the first day.

use hca_tests::guests::{Job, Session, number};

#[test]
fn rubbish_disturbs_nobody_else() {
    // Both hosts work together before and after; in between `b` is busy with itself until `a` is done.
    let together = |side: &str| format!("{side} ibv_rc_pingpong -c -g 0 -s 4096 -n 50");
    let a = Job::new()
        .step("before", together("offer b"))
        .step(
            "program",
            "lid=$((3 - $(cat /sys/class/infiniband/mlx5_0/ports/1/lid)))
            for seed in 1 2; do
                python3 rubbish_verbs.py $seed $lid || return
            done
            pair ibv_rc_pingpong -c -g 0 -n 20",
        )
        .step("still well", "pair ibv_rc_pingpong -c -e -g 0 -n 20 && reload")
        .step("kernel", "modprobe -r mlx5_ib mlx5_core && python3 rubbish_bar.py $slot 1 && modprobe mlx5_ib")
        .step("well again", "pair ibv_rc_pingpong -c -g 0 -n 20 && reload && ibv_devinfo")
        .step("done", "tell b && echo told")
        .step("after", together("offer b"));
    let b = Job::new()
        .step("before", format!("{} a", together("accept")))
        .step(
            "meanwhile",
            "hear &
            hearing=$!
            count=0
            while kill -0 $hearing; do
                pair ibv_rc_pingpong -c -g 0 -s 4096 -n 20 >/tmp/out || { cat /tmp/out; return 1; }
                count=$((count + 1))
            done 2>/dev/null
            echo \"pingpongs: $count\"",
        )
        .step("after", format!("{} a", together("accept")));
    let done = Session::new("two-hosts")
        .copy("guest/rubbish_bar.py")
        .copy("guest/rubbish_verbs.py")
        .host("a", &a)
        .host("b", &b)
        .jobs_pass();

    assert!(done.host("b").bad_kernel_lines.is_empty(), "{}", done.0);
    assert!(number(done.printed("b", "meanwhile"), "pingpongs") >= 2);
    // Both kinds of rubbish got to where it is refused, and past that.
    let commands = done.printed("a", "kernel");
    assert!(number(commands, "refused") > 50 && number(commands, "done") > 20, "{commands}");
    const ERROR: &str = "state 6";
    assert!(number(done.printed("a", "program"), ERROR) > 50);
    done.nothing_was_left("a/hca0");
}
