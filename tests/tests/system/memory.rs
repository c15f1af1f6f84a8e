//! Memory of a stock guest: regions of more than 4 GiB, of small pages and of huge ones.

use hca_tests::guests::{Job, Session, number};

#[test]
fn regions_larger_than_memory() {
    // With 4 KiB pages the driver loads the first by work requests and the second by command. 5 GiB of them take a
    // minute, so the largest is of huge pages.
    let script = "echo 16 >/proc/sys/vm/nr_hugepages && python3 large_regions.py 200 300 5120h";
    let job = Job::new().step("regions", script).step("reload", "reload");
    let done = Session::new("loopback").copy("guest/large_regions.py").host("a", &job).jobs_pass();
    assert!(done.host("a").bad_kernel_lines.is_empty(), "{}", done.0);
    assert_eq!(number(done.printed("a", "regions"), "regions"), 3);
    done.nothing_was_left("a/hca0");
}
