//! The report of a session: every link and fold works, nothing is fetched, it is readable on a phone, and what guests chose
//! is text.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use hca_driver::SendRequest;
use hca_tests::browser::{self, Browser};
use hca_tests::in_process::Simulation;
use hca_tests::pair::{Options, Pair};
use hca_tests::{rig, worlds};
use hca_trace::report;
use serde_json::Value;

/// A phone.
const PHONE: (u32, u32) = (360, 640);
/// A desk.
const DESK: (u32, u32) = (1280, 800);

/// What is wrong with the page that is shown, as a list of sentences. It opens every fold and follows every link.
const FAULTS: &str = r##"(() => {
  const faults = [], all = (what) => Array.from(document.querySelectorAll(what));
  const wide = (when) => {
    const has = document.documentElement.scrollWidth, room = document.documentElement.clientWidth;
    if (has > room) faults.push(`${when}: ${has} pixels wide, and there are ${room}`);
  };
  wide("closed");
  for (const details of all("details")) {
    const summary = details.querySelector("summary"), before = details.open;
    if (!summary || !summary.textContent.trim()) { faults.push("a fold without a name"); continue; }
    summary.click();
    if (details.open === before) faults.push(`the fold ${summary.textContent} does not move`);
    details.open = true;
  }
  for (const details of all("details")) {
    const summary = details.querySelector("summary");
    if (!summary) continue;
    if (!Array.from(details.children).slice(1).some((child) => child.offsetHeight > 0))
      faults.push(`the fold ${summary.textContent} has nothing in it`);
  }
  wide("with all folds open");
  if (!all("nav a").length) faults.push("there are no links");
  for (const link of all("a")) {
    const to = link.getAttribute("href") || "";
    if (!to.startsWith("#") || !document.getElementById(to.slice(1))) { faults.push(`the link ${to} leads nowhere here`); continue; }
    link.click();
    if (location.hash !== to) faults.push(`the link ${to} is not followed`);
    const top = document.getElementById(to.slice(1)).getBoundingClientRect().top;
    if (top < -2 || top > innerHeight) faults.push(`the link ${to} does not show its place (${top})`);
  }
  for (const what of ["script", "img", "link", "iframe", "object", "embed", "form", "video", "audio", "base"])
    if (all(what).length) faults.push(`there is a ${what}`);
  for (const element of all("*")) for (const attribute of element.attributes)
    if (attribute.name.startsWith("on")) faults.push(`${element.tagName} has ${attribute.name}`);
  if (document.documentElement.lang !== "en") faults.push("no language");
  if (all("h1").length !== 1) faults.push("not one main heading");
  let level = 0;
  for (const heading of all("h1, h2, h3, h4")) {
    const now = Number(heading.tagName[1]);
    if (now > level + 1) faults.push(`the heading ${heading.textContent} is of level ${now} behind ${level}`);
    level = now;
  }
  for (const table of all("table")) {
    if (!table.caption || !table.caption.textContent.trim()) faults.push("a table without a caption");
    for (const row of table.tBodies[0].rows)
      if (row.cells.length !== table.tHead.rows[0].cells.length) faults.push("a row of another length");
  }
  for (const picture of all("svg"))
    if (!picture.matches("[aria-labelledby]") && !picture.parentElement.matches("figure[aria-label]")) faults.push("a picture without a name");
  const ids = all("[id]").map((element) => element.id);
  if (new Set(ids).size !== ids.length) faults.push("two places of one name");
  return faults;
})()"##;

/// Light of a colour as CSS has it, 0 to 1 (WCAG 2, relative luminance), and the contrast of text and paper.
const CONTRAST: &str = r##"(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\d.]+/g).map(Number).map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const against = (element, on) => {
    const [a, b] = [light(getComputedStyle(element).color), light(on)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const soft = getComputedStyle(document.querySelector("details") || document.body).backgroundColor;
  return [light(paper), Math.min(against(document.body, paper), against(document.body, soft),
    ...Array.from(document.querySelectorAll("a, tr.bad td, tr.good td")).map((e) => against(e, paper)))];
})()"##;

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("hca-tests-browser-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The trace of two hosts, from bring-up to teardown, with work requests and a command that is refused.
fn trace(scratch: &Path) -> String {
    let simulation = Simulation::new(worlds::two(0.0, 1));
    let path = scratch.join("trace.json");
    let options = hca_trace::Options { trace: Some(path.clone()), ..hca_trace::Options::default() };
    simulation.observe(&options).expect("a trace");
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let mut pair = Pair::connect(hcas, &Options::default()).expect("the queue pairs connect");
    let far = pair.ends[1].mr;
    for number in 0..5 {
        let sge = [pair.ends[0].sge(0, 100 * number as usize)];
        pair.send(0, &SendRequest::write(number, &sge, far.address, far.key));
        pair.sent_ok(0, number);
    }
    let refused = pair.hcas[0].execute(hca_spec::command::Opcode::DestroyCq, 0, vec![0; 16], 16);
    assert!(refused.is_err(), "there is no such queue");
    rig::close(pair);
    simulation.end_observing().expect("the trace ends");
    std::fs::read_to_string(path).expect("the trace")
}

/// What a hostile guest, or a hostile trace, would like to have on the page.
fn hostile(trace: &str, port: u16) -> String {
    let evil = format!(
        "</title><script>alert(1)</script><img src='http://127.0.0.1:{port}/x' onerror=alert(1)>\u{202e}"
    );
    let text = Value::from(evil.as_str());
    let long = Value::from("W".repeat(400));
    let trace = trace.trim_end().trim_end_matches(']').trim_end();
    format!(
        "{trace},\n\
         {{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":9,\"tid\":0,\"args\":{{\"name\":{text}}}}},\n\
         {{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"note\",\"name\":\"diagnosis\",\"pid\":9,\"tid\":1,\"ts\":5,\"args\":{{\"text\":{text},\"object\":{text},\
         \"found\":{long},\"rule\":{{\"name\":{text},\"says\":{long},\"page\":{text}}}}}}},\n\
         {{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"note\",\"name\":\"links\",\"pid\":9,\"tid\":1,\"ts\":5,\"args\":{{\"links\":[{{\"between\":[{text},{long}],\"rate\":{text}}}]}}}},\n\
         {{\"ph\":\"X\",\"cat\":\"unit\",\"name\":\"QP state\",\"pid\":9,\"tid\":1,\"ts\":6,\"dur\":0,\"args\":{{\"qpn\":1,\"from\":{text},\"to\":{long}}}}},\n\
         {{\"ph\":\"X\",\"cat\":\"unit\",\"name\":\"port state\",\"pid\":9,\"tid\":1,\"ts\":6,\"dur\":0,\"args\":{{\"state\":99}}}}\n]\n"
    )
}

fn faults(browser: &mut Browser, page: &Path, size: (u32, u32)) -> Vec<String> {
    let asked = browser.show(page, size, "light").expect("it is shown");
    let own = format!("file://{}", page.display());
    let mut faults: Vec<String> = asked
        .into_iter()
        .filter(|address| *address != own)
        .map(|address| format!("asked for {address}"))
        .collect();
    let found = browser.value(FAULTS).expect("the page is looked at");
    faults.extend(
        found.as_array().expect("a list").iter().map(|fault| fault.as_str().unwrap_or("?").to_owned()),
    );
    faults
}

#[test]
fn a_report_in_a_browser() {
    if let Err(why) = browser::command() {
        eprintln!("skipped: a_report_in_a_browser: chromium can't be installed: {why:#}");
        return;
    }
    let scratch = Scratch::new();
    let mut browser = Browser::start(&scratch.0).expect("the browser starts");
    let trace = trace(&scratch.0);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("its address").port();
    let good = report::page(&trace, "trace.json", &report::Options::default()).expect("a page");
    let evil = report::page(&hostile(&trace, port), "<b>evil</b>.json", &report::Options::default())
        .expect("a page");
    for (name, page) in [("good.html", &good), ("evil.html", &evil)] {
        let file = scratch.file(name, page);
        for size in [PHONE, DESK] {
            assert_eq!(faults(&mut browser, &file, size), Vec::<String>::new(), "{name} at {size:?}");
        }
        for (scheme, dark) in [("light", false), ("dark", true)] {
            browser.show(&file, PHONE, scheme).expect("it is shown");
            let seen = browser.value(CONTRAST).expect("colours");
            let (paper, contrast) = (seen[0].as_f64().expect("light"), seen[1].as_f64().expect("contrast"));
            assert_eq!(paper < 0.2, dark, "{name}, {scheme}: {seen}");
            assert!(contrast >= 4.5, "{name}, {scheme}: {contrast}");
        }
        let text = browser.value("document.body.textContent").expect("text");
        let text = text.as_str().expect("text");
        for part in ["ENABLE_HCA", "CREATE_QP", "RdmaWrite", "DESTROY_CQ", "BadResource", "EQ of hca0"] {
            assert!(text.contains(part), "{name}: {part} is missing");
        }
    }
    assert!(listener.accept().is_err(), "the page has asked for something");
    drop(listener);
    // What these checks are for, they find.
    let spoilt = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1)
    };
    let free = spoilt("default-src 'none'; ", "");
    let image = format!("<main><img alt=\"\" src=\"http://127.0.0.1:{port}/x\">");
    for (what, page) in [
        ("wide", spoilt("<main>", "<main><p style=\"width: 400px\">wide</p>")),
        ("leads nowhere", spoilt("href=\"#objects\"", "href=\"#nothing\"")),
        ("asked for", free.replacen("<main>", &image, 1)),
        ("there is a script", spoilt("<main>", "<main><script>0</script>")),
        ("has nothing in it", spoilt("<main>", "<main><details><summary>empty</summary></details>")),
        ("without a caption", spoilt("<caption>", "<caption hidden></caption><caption>")),
        ("two places", spoilt("<main>", "<main><p id=\"objects\"></p>")),
    ] {
        let file = scratch.file("spoilt.html", &page);
        let found = faults(&mut browser, &file, PHONE);
        assert!(found.iter().any(|fault| fault.contains(what)), "{what}: {found:?}");
    }
}
