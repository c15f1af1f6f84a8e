//! Every kernel that the archives in reach have, of all flavours: the driver comes up, data passes, and the driver goes and comes again.

use std::time::{Duration, Instant};

use anyhow::ensure;
use hca_vm::apt::{Candidate, Incomplete};
use hca_vm::cache::Cache;
use hca_vm::image::kernel::{self, Lacks};
use hca_vm::image::series;
use hca_vm::run::Run;

use super::covered::covered;
use super::guest::{complaints, is_chosen};
use super::{Case, Outcome};
use crate::guests::{Job, printed, turn};

/// Longest time for a kernel, in a slow guest on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);

/// A case for each kernel, by the name of its package; those without the driver are skipped, and those of which the
/// archives have only a part.
pub fn cases() -> Vec<Case> {
    let found = Cache::open().and_then(|cache| series::all(&cache).map(|all| (cache, all)));
    match found {
        Ok((_, all)) if all.is_empty() => vec![Case::check("kernels", "the archives have none")],
        Ok((cache, all)) => {
            let chosen = all.iter().filter(|package| is_chosen(&name(package)));
            chosen.map(|package| case(&cache, package)).collect()
        }
        Err(error) => vec![Case::check("kernels", format!("{error:#}"))],
    }
}

/// Name of the case of a kernel: its package and version.
fn name(package: &Candidate) -> String {
    format!("{} {}", package.name, package.version)
}

fn case(cache: &Cache, package: &Candidate) -> Case {
    let started = Instant::now();
    let (outcome, detail) = match comes_up(cache, &package.name) {
        Ok(()) => (Outcome::Passed, String::new()),
        Err(error)
            if error.downcast_ref::<Lacks>().is_some() || error.downcast_ref::<Incomplete>().is_some() =>
        {
            (Outcome::Skipped, format!("{error:#}"))
        }
        Err(error) => (Outcome::Failed, format!("{error:#}")),
    };
    Case::new(name(package), outcome, started.elapsed().as_secs_f64(), detail)
}

fn comes_up(cache: &Cache, package: &str) -> anyhow::Result<()> {
    let release = kernel::get(cache, package)?.release;
    let job = Job::new()
        .step("release", "uname -r")
        .step("port", "ibv_devinfo | grep PORT_ACTIVE")
        .step("pingpong", "pair ibv_rc_pingpong -n 200")
        .step("reload", "reload && for i in $(seq 100); do ibv_devinfo | grep PORT_ACTIVE && return; sleep 0.2; done; false")
        .step("again", "pair ibv_rc_pingpong -n 200");
    let report = {
        let _turn = turn(1);
        covered(Run::new("loopback")).kernel(package).timeout(LIMIT).host("a", job.text()).run()?
    };
    let complaints = complaints(&report);
    ensure!(complaints.is_empty(), "{complaints}");
    let said = report.host("a").map_or("", |host| host.output.as_str());
    ensure!(printed(said, "release").trim() == release, "another kernel than {release}: {said}");
    ensure!(printed(said, "again").contains("200 iters"), "{said}");
    Ok(())
}
