//! A session as one page of HTML to send to a colleague: checklist, commands, diagnoses, objects, links, latencies, the life of
//! a work request.
//!
//! The page has everything in it, and nothing that runs: no script, no font, no address but places of its own. Its policy
//! (Content-Security-Policy) forbids the browser to fetch anything. What guests chose is escaped, or is a number. It is
//! made for narrow and for wide screens, for light and dark ones, and for those who listen to it: headings, captions, labels.
//!
//! `session` reads the trace, `sections` writes the page's parts, `html` is how elements are written.

mod html;
mod sections;
mod session;

use anyhow::Context;

use crate::coverage::Coverage;
use crate::explain::{File, Life, WorkRequest};
use html::Page;
use session::Session;

/// What the page is to show beside what every page has.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The work request whose life is told; without one, the one that took longest.
    pub wr: Option<WorkRequest>,
    /// Its adapter, if several have one of that name.
    pub adapter: Option<String>,
}

/// The page of a trace. `name`: what the page calls it.
///
/// # Errors
/// It is no trace, or has no such work request.
pub fn page(text: &str, name: &str, options: &Options) -> anyhow::Result<String> {
    let coverage = Coverage::of_trace(text).context("not a trace of softhca")?;
    let file = File::parse(text).context("not a trace of softhca")?;
    let session = Session::read(text)?;
    let life = match options.wr {
        Some(wr) => Some(file.find(wr, options.adapter.as_deref(), 1)?),
        None => file.lives().max_by_key(Life::duration),
    };
    let lives: Vec<Life> = file.lives().collect();
    let mut page = Page::new(&format!("softhca: {name}"));
    sections::overview(&mut page, name, &session, &coverage, &lives);
    sections::checklist(&mut page, &coverage);
    sections::diagnoses(&mut page, &session);
    sections::commands(&mut page, &session);
    sections::objects(&mut page, &session);
    sections::links(&mut page, &session);
    sections::latencies(&mut page, &session, &lives);
    sections::life(&mut page, life.as_ref());
    sections::reached(&mut page, &coverage);
    Ok(page.finish())
}
