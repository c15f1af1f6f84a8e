//! SimBricks' own orchestration, from the index that pip is configured for, runs our package's experiments.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::peers::Ended;
use super::{Case, Outcome, guest};

/// An experiment of the package.
#[derive(Clone, Copy)]
struct Experiment {
    name: &'static str,
    title: &'static str,
    /// Its hosts, and the messages that they send.
    hosts: u64,
    messages: u64,
    /// Processes that write a trace.
    traces: usize,
    /// Hosts that are not in the processes of their adapters.
    elsewhere: &'static [&'static str],
}

const EXPERIMENTS: [Experiment; 3] = [
    Experiment {
        name: "two-hosts",
        title: "softhca-two-hosts",
        hosts: 2,
        messages: 16,
        traces: 2,
        elsewhere: &[],
    },
    Experiment {
        name: "fat-tree",
        title: "softhca-fat-tree",
        hosts: 16,
        messages: 480,
        traces: 2,
        elsewhere: &[],
    },
    Experiment {
        name: "far-hosts",
        title: "softhca-far-hosts",
        hosts: 2,
        messages: 16,
        traces: 0,
        elsewhere: &["left", "right"],
    },
];
const HASHES: [&str; 3] = ["events", "packets", "completions"];
/// What is of others in it.
const THEIRS: [&str; 2] = ["simbricks-local>=0.5", "simbricks-orchestration>=0.5"];

fn said(output: &Output) -> String {
    let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    text.concat().trim().to_owned()
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|why| format!("{command:?}: {why}"))?;
    if output.status.success() { Ok(said(&output)) } else { Err(format!("{command:?}: {}", said(&output))) }
}

/// The files of that ending in a folder.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let text = |why: std::io::Error| format!("{}: {why}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(text)? {
        let path = entry.map_err(text)?.path();
        if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    Ok(found)
}

fn json(path: &Path) -> Result<Value, String> {
    let text = std::fs::read(path).map_err(|why| format!("{}: {why}", path.display()))?;
    serde_json::from_slice(&text).map_err(|why| format!("{}: {why}", path.display()))
}

/// A number that was printed behind its name.
fn printed(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.split_whitespace().next()?.to_owned()))
}

/// A virtual environment with the package and what it is for; `Err(Ok)`: there is no index to have that from.
fn install(folder: &Path) -> Result<PathBuf, Result<String, String>> {
    run(Command::new("python3").args(["-m", "venv"]).arg(folder)).map_err(Ok)?;
    let bin = folder.join("bin");
    let pip = |more: &[&str]| {
        let mut pip = Command::new(bin.join("python"));
        pip.args(["-m", "pip", "--disable-pip-version-check", "--quiet"]).args(more);
        pip
    };
    let wheels = folder.join("wheels");
    let wheels = wheels.to_string_lossy();
    let reach = run(pip(&["download", "--dest", &wheels]).args(THEIRS));
    reach.map_err(|why| Ok(why.lines().last().unwrap_or_default().to_owned()))?;
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../simbricks-softhca");
    run(pip(&["install"]).arg(format!("{}[local]", package.display()))).map_err(Err)?;
    Ok(bin)
}

/// The hashes that were printed, each a sum of all that happened.
fn hashes(text: &str) -> Result<[u64; 3], String> {
    let mut found = [0; 3];
    for (hash, name) in found.iter_mut().zip(HASHES) {
        let printed = printed(text, name).ok_or_else(|| format!("no hash of {name}: {text}"))?;
        *hash = u64::from_str_radix(&printed, 16).map_err(|why| format!("{name} {printed}: {why}"))?;
    }
    Ok(found)
}

/// The same with as few processes as can be: all adapters in one, and hosts that are not with them in another.
fn whole(program: &Path, output: &Path, workload: &str, elsewhere: &[&str]) -> Result<[u64; 3], String> {
    let sim = |options: &[&str]| {
        let mut command = Command::new(program);
        command.args(["sim", "--topology"]).arg(output.join("topology.toml"));
        command.arg("--run-dir").arg(output.join("whole")).args(options).args(workload.split_whitespace());
        command
    };
    let text = |why: std::io::Error| why.to_string();
    let adapters = sim(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(text)?;
    let options: Vec<&str> = elsewhere.iter().flat_map(|host| ["--host", host]).collect();
    let hosts = match options.is_empty() {
        true => Ok([0; 3]),
        false => run(&mut sim(&options)).and_then(|printed| hashes(&printed)),
    };
    let mut sums = match hosts {
        Ok(sums) => sums,
        Err(why) => {
            drop(Ended(adapters));
            return Err(why);
        }
    };
    let output = adapters.wait_with_output().map_err(text)?;
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, said(&output)));
    }
    let own = hashes(&said(&output))?;
    sums.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.wrapping_add(own));
    Ok(sums)
}

/// One experiment, driven to its end by `simbricks-run`; and what it simulated once more, by as few processes as can be.
fn experiment(
    Experiment { name, title, hosts, messages, traces: traced, elsewhere }: Experiment,
    program: &Path,
    bin: &Path,
    folder: &Path,
) -> Result<String, String> {
    let text = |why: std::io::Error| why.to_string();
    std::fs::create_dir_all(folder).map_err(text)?;
    let here = |tool: &str| {
        let mut command = Command::new(bin.join(tool));
        let own = program.parent().unwrap_or(Path::new("."));
        let path = std::env::var("PATH").unwrap_or_default();
        command.current_dir(folder).env("PATH", format!("{}:{path}", own.display()));
        command
    };
    let file = run(here("python").args(["-m", "simbricks_softhca", "experiment", name]))?;
    let shown = run(here("simbricks-run").args(["--verbose", &file]))?;
    if !shown.contains("exited with code 0") || !shown.contains("softhca: simulates to") {
        return Err(format!("simbricks-run showed no progress: {shown}"));
    }
    let runs = files(&folder.join("out").join(title), "")?;
    let [output] = &runs[..] else { return Err(format!("{} runs left something", runs.len())) };
    let output = output.join("output");
    let results = output.join("out.json");
    let sums = run(here("python").args(["-m", "simbricks_softhca", "results"]).arg(&results))?;
    if (printed(&sums, "hosts"), printed(&sums, "messages"))
        != (Some(hosts.to_string()), Some(messages.to_string()))
    {
        return Err(format!("not all came: {sums}"));
    }
    let traces = files(&output, ".trace.json")?;
    for trace in &traces {
        if json(trace)?.as_array().is_none_or(Vec::is_empty) {
            return Err(format!("{}: nothing is in it", trace.display()));
        }
    }
    if traces.len() != traced {
        return Err(format!("{} traces of {traced} processes", traces.len()));
    }
    // As few processes as can be do what the run's did: the command of any of them says what hosts did.
    let all = json(&results)?;
    let commands = all.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("softhca."));
    let command =
        commands.filter_map(|(_, of)| of["output"][0]["cmd"].as_str()).next().ok_or("no command")?;
    let (_, workload) = command.split_once(" --json ").ok_or("no workload")?;
    let workload = workload.split(" --trace ").next().unwrap_or_default();
    let workload = workload.split(" --pcap ").next().unwrap_or_default();
    let (apart, whole) = (hashes(&sums)?, whole(program, &output, workload, elsewhere)?);
    if apart != whole {
        return Err(format!(
            "{HASHES:?} differ: {apart:x?} of the run, {whole:x?} of as few processes as can be"
        ));
    }
    Ok(format!("{hosts} hosts, {messages} messages; hashes as of as few processes as can be"))
}

/// The package is installed, its tests are run, and its experiments.
pub fn cases(program: &Path, folder: &Path) -> Vec<Case> {
    let experiments = EXPERIMENTS.map(|experiment| format!("simbricks-run {}", experiment.name));
    let unit = "the package for SimBricks, its own tests";
    let all = std::iter::once(unit.to_owned()).chain(experiments.clone());
    let names = || all.clone().filter(|name| guest::is_chosen(name));
    if names().next().is_none() {
        return Vec::new();
    }
    let bin = match install(&folder.join("venv")) {
        Ok(bin) => bin,
        Err(Ok(why)) => {
            let why = format!("pip reaches no index that has SimBricks' packages: {why}");
            return names().map(|name| Case::new(name, Outcome::Skipped, 0.0, why.clone())).collect();
        }
        Err(Err(why)) => return names().map(|name| Case::check(name, why.clone())).collect(),
    };
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../simbricks-softhca/tests");
    let versions = versions(&bin);
    let case = |name: String, act: &dyn Fn() -> Result<String, String>| {
        guest::is_chosen(&name).then(|| case(name, &versions, act))
    };
    let mut cases: Vec<Case> = case(unit.into(), &|| {
        run(Command::new(bin.join("python")).args(["-m", "unittest", "discover", "-s"]).arg(&tests))
    })
    .into_iter()
    .collect();
    for (of, name) in EXPERIMENTS.into_iter().zip(experiments.clone()) {
        cases.extend(case(name, &|| experiment(of, program, &bin, &folder.join(of.name))));
    }
    cases
}

/// Which SimBricks and which Python it is.
fn versions(bin: &Path) -> String {
    let ask = "import platform, importlib.metadata as m; \
        print('SimBricks', m.version('simbricks-orchestration') + ', Python', platform.python_version())";
    run(Command::new(bin.join("python")).args(["-c", ask])).unwrap_or_else(|why| why)
}

fn case(name: String, versions: &str, act: &dyn Fn() -> Result<String, String>) -> Case {
    let began = Instant::now();
    let done =
        act().map(|detail| format!("{detail} ({versions})")).map_err(|why| format!("{versions}: {why}"));
    let seconds = began.elapsed().as_secs_f64();
    println!("{name}: {}", done.as_ref().map_or("failed", String::as_str));
    match done {
        Ok(detail) => Case::new(name, Outcome::Passed, seconds, detail),
        Err(why) => Case::new(name, Outcome::Failed, seconds, why),
    }
}
