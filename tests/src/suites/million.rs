//! A million queue pairs and completion queues: the server's memory comes back.

use hca_vm::server::Binary;

use super::{Case, Outcome};
use crate::million::{Plan, run};

/// Over a socket, to a server of its own.
pub fn cases() -> Vec<Case> {
    const NAME: &str = "memory comes back";
    let server = match Binary::find() {
        Ok(server) => server,
        Err(error) => return vec![Case::check(NAME, format!("{error:#}"))],
    };
    vec![match run(server.path(), Plan::MILLION) {
        Ok(report) => {
            let outcome = if report.passed() { Outcome::Passed } else { Outcome::Failed };
            Case::new(NAME, outcome, report.time.as_secs_f64(), report.to_json().to_string())
        }
        Err(error) => Case::check(NAME, error.to_string()),
    }]
}
