//! rdma-core's own tests on both link layers, judged against a list of those that must be ok.
//!
//! A test skips itself when the adapter does not report a capability. So that a capability left out can't turn
//! a failure into a skip, `tests/suites/must-be-ok.txt` names every test that has to run and pass, and each skip has
//! to be explained in `tests/suites/skips.txt`. Both lists have sections for what holds on one link layer only.

use std::collections::BTreeSet;
use std::time::Duration;

use hca_vm::run::{Report, Run};
use serde::Deserialize;

use super::diagnosed::of_host;
use super::guest::complaints;
use super::{Case, Outcome};
use crate::guests::{self, turn};

const MUST_BE_OK: &str = include_str!("../../suites/must-be-ok.txt");
const SKIPS: &str = include_str!("../../suites/skips.txt");
const ALL: Duration = Duration::from_secs(1800);
/// Different tests that are ok on at least one link layer: what is left of 321 without those of other adapters and of later ones.
const DISTINCT: usize = 262;

/// What the ports of a boot's adapter are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkLayer {
    InfiniBand,
    Ethernet,
}

impl LinkLayer {
    /// Sections of the lists that are about it.
    fn has(self, section: &str) -> bool {
        match section {
            "both" => true,
            "InfiniBand" => self == LinkLayer::InfiniBand,
            "Ethernet" => self == LinkLayer::Ethernet,
            _ => panic!("there is no section [{section}]"),
        }
    }

    /// How the names of its cases begin.
    fn tag(self) -> &'static str {
        match self {
            LinkLayer::InfiniBand => "",
            LinkLayer::Ethernet => "Ethernet: ",
        }
    }
}

/// One line of `rdma_core_tests.py`.
#[derive(Deserialize)]
struct Line {
    test: String,
    result: String,
    seconds: f64,
    reason: String,
}

/// A skip that is expected: words of the test's name, words of its reason, and why that is so. With `error`, the test takes
/// what it misses for an error.
struct Skip {
    test: &'static str,
    reason: &'static str,
    why: &'static str,
    error: bool,
}

/// A boot: a topology and what is run there.
struct Boot {
    link_layer: LinkLayer,
    topology: &'static str,
    /// Regular expression of the tests.
    only: &'static str,
    /// What is done before, and further options.
    before: &'static str,
    options: &'static str,
    /// Debian's packages that what is done before needs.
    packages: &'static [&'static str],
}

/// Tests of the connection manager want IP addresses on the fabric, and so somebody who manages the subnet; those that drive the adapter from user space want it behind an IOMMU and without its kernel driver; those of UAR pages
/// an adapter with BlueFlame; those of device memory and tag matching a ConnectX-5; those of encryption a ConnectX-6 Dx for keys in plain, or one for wrapped keys; those of flow tables that change packets, of software steering, and of what else came with it, a ConnectX-6 Dx; two of them one whose driver leaves RoCE alone. A port of Ethernet has its addresses by itself.
const BOOTS: [Boot; 10] = [
    Boot {
        link_layer: LinkLayer::InfiniBand,
        topology: "loopback",
        only: "",
        before: HUGE_PAGES,
        options: "--but 'mlx5_vfio|mlx5_uar|rdmacm|DMTest|DeviceMemory|dm_ops|mlx5_crypto|tag_matching'",
        packages: &[],
    },
    Boot {
        link_layer: LinkLayer::InfiniBand,
        topology: "connectx5.toml",
        only: "DMTest|DeviceMemory|dm_ops|tag_matching",
        before: "true",
        options: "",
        packages: &[],
    },
    Boot {
        link_layer: LinkLayer::InfiniBand,
        topology: "connectx6dx.toml",
        only: "mlx5_crypto.*plaintext",
        before: KEYS,
        options: "",
        packages: &[],
    },
    Boot {
        link_layer: LinkLayer::InfiniBand,
        topology: "connectx6dx-wrapped.toml",
        only: "mlx5_crypto",
        before: WRAPPED_KEYS,
        options: "--but plaintext",
        packages: &["mstflint"],
    },
    Boot {
        link_layer: LinkLayer::InfiniBand,
        topology: "cable",
        only: "rdmacm",
        before: ". /root/cases.sh; manage && ipoib",
        options: "",
        packages: &[],
    },
    Boot {
        link_layer: LinkLayer::InfiniBand,
        topology: "iommu",
        only: "mlx5_vfio",
        before: "slot=$(hca-vfio-bind)",
        options: "--pci $slot",
        packages: &[],
    },
    Boot {
        link_layer: LinkLayer::InfiniBand,
        topology: "blueflame",
        only: "mlx5_uar",
        before: "true",
        options: "",
        packages: &[],
    },
    Boot {
        link_layer: LinkLayer::Ethernet,
        topology: "eth",
        only: "",
        before: HUGE_PAGES,
        options: "--but 'mlx5_vfio|mlx5_uar|mlx5_dr|mlx5_flow|mlx5_pp|mlx5_dm_ops|mlx5_sched|_stream|ah_to_qp|doorbell_less|mlx5_crypto'",
        packages: &[],
    },
    Boot {
        link_layer: LinkLayer::Ethernet,
        topology: "connectx6dx-eth.toml",
        only: "mlx5_dr|mlx5_flow|mlx5_pp|mlx5_dm_ops|mlx5_sched|_stream|ah_to_qp|doorbell_less",
        before: QUIET,
        // The one of meters fails unless Python alone sends 30 MB/s, which an emulated guest does not.
        options: "--but 'roce_bth|test_flow_meter'",
        packages: &[],
    },
    Boot {
        link_layer: LinkLayer::Ethernet,
        topology: "connectx6dx-eth.toml",
        only: "roce_bth",
        before: NO_ROCE,
        options: "",
        packages: &[],
    },
];

/// The guest's own network device asks for routers for as long as none answers. Rules that take every frame take these questions, too,
/// which come back by the cable.
const QUIET: &str = "sysctl -qw net.ipv6.conf.hca0.router_solicitations=0";
/// The driver is told to leave RoCE alone, starts anew, and its network device is as quiet.
const NO_ROCE: &str = "slot=$(basename $(readlink -f /sys/class/infiniband/mlx5_0/device)); \
                       devlink dev param set pci/$slot name enable_roce value false cmode driverinit; \
                       devlink dev reload pci/$slot; port=$(ls /sys/bus/pci/devices/$slot/net); \
                       sysctl -qw net.ipv6.conf.$port.router_solicitations=0; ip link set $port up; sleep 1";
/// Keys for the tests of encryption.
const KEYS: &str = "export MLX5_CRYPTO_TEST_INFO=/root/crypto.json";
/// The same; and the adapter gets the credential and the key of keys by which that file's keys are wrapped.
const WRAPPED_KEYS: &str = "export MLX5_CRYPTO_TEST_INFO=/root/crypto.json; \
    slot=$(basename $(readlink -f /sys/class/infiniband/mlx5_0/device)); \
    mstreg -y -d $slot --reg_name CRYPTO_OPERATIONAL --set \
    credential[0]=0x40414243,credential[1]=0x44454647,credential[2]=0x48494a4b,credential[3]=0x4c4d4e4f,\
credential[4]=0x50515253,credential[5]=0x54555657,credential[6]=0x58595a5b,credential[7]=0x5c5d5e5f,\
credential[8]=0x60616263,credential[9]=0x64656667,kek[0]=0x10111213,kek[1]=0x14151617,kek[2]=0x18191a1b,kek[3]=0x1c1d1e1f";
const HUGE_PAGES: &str = "echo 64 > /proc/sys/vm/nr_hugepages";

/// All of them, each boot in one guest whose adapter is looped back.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut cases = boot(&BOOTS, kernel, "");
    let ok: BTreeSet<&str> = cases
        .iter()
        .filter(|case| case.outcome == Outcome::Passed && case.name.contains("test_"))
        .map(|case| case.name.trim_start_matches(LinkLayer::Ethernet.tag()))
        .collect();
    let count = ok.len();
    eprintln!("  {count} tests are ok on at least one link layer");
    let complaint = if count < DISTINCT { format!("{count}") } else { String::new() };
    cases.push(Case::check(format!("{DISTINCT} tests are ok on at least one link layer"), complaint));
    cases
}

/// Those of one boot whose names have one of these words, which `|` separates.
pub fn some(kernel: &str, words: &'static str) -> Vec<Case> {
    let link_layer = LinkLayer::InfiniBand;
    let boots =
        [Boot { link_layer, topology: "loopback", only: words, before: "true", options: "", packages: &[] }];
    boot(&boots, kernel, words)
}

/// Runs boots. Of the tests that must be ok, those count whose names have one of these words.
fn boot(boots: &[Boot], kernel: &str, words: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut logs = Vec::new();
    for link_layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let boots: Vec<&Boot> = boots.iter().filter(|boot| boot.link_layer == link_layer).collect();
        if boots.is_empty() {
            continue;
        }
        let (mut lines, mut said) = (Vec::new(), Vec::new());
        for boot in boots {
            match boot.run(kernel) {
                Ok(report) => {
                    let before = lines.len();
                    let output = report.host("a").map_or("", |host| host.output.as_str());
                    lines.extend(parsed(output));
                    for (printed, text) in of_host(&report, "a") {
                        // The one that was run then: it prints when it has ended.
                        let ended = parsed(output.get(..printed).unwrap_or(output)).count();
                        said.push(((before + ended).min(lines.len().saturating_sub(1)), text.to_owned()));
                    }
                    logs.push(Case::check(format!("kernel log: {}", boot.topology), complaints(&report)));
                }
                Err(error) => {
                    logs.push(Case::check(format!("set up: {}", boot.topology), format!("{error:#}")))
                }
            }
        }
        let must_be_ok = must_be_ok(link_layer)
            .into_iter()
            .filter(|name| words.split('|').any(|word| name.contains(word)))
            .collect();
        let mut judged = judge(link_layer.tag(), &lines, &must_be_ok, &skips(link_layer));
        for (place, text) in said {
            if let Some(case) = judged.get_mut(place) {
                case.diagnoses.push(text);
            }
        }
        cases.extend(judged);
    }
    cases.extend(logs);
    cases
}

impl Boot {
    fn run(&self, kernel: &str) -> anyhow::Result<Report> {
        let Self { link_layer: _, topology, only, before, options, packages } = self;
        let job = format!(
            "{before}; python3 rdma_core_tests.py --only '{only}' {options}; modprobe -r mlx5_ib mlx5_core"
        );
        let _turn = turn(1);
        let run = Run::new(guests::topology(topology));
        packages
            .iter()
            .fold(run, |run, package| run.package(*package))
            .kernel(kernel)
            .timeout(ALL)
            .copy(guests::copy("guest/rdma_core_tests.py"))
            .copy(guests::copy("guest/post.sh"))
            .copy(guests::copy("guest/cases.sh"))
            .copy(guests::copy("guest/crypto.json"))
            .host("a", job)
            .watch(|_, line| {
                if let Ok(Line { test, result, .. }) = serde_json::from_str(line) {
                    eprintln!("  {result}: {test}");
                }
            })
            .run()
    }
}

/// What the tests printed: a line each.
fn parsed(output: &str) -> impl Iterator<Item = Line> {
    output.lines().filter_map(|line| serde_json::from_str(line).ok())
}

fn must_be_ok(link_layer: LinkLayer) -> BTreeSet<&'static str> {
    words(MUST_BE_OK, link_layer).collect()
}

fn skips(link_layer: LinkLayer) -> Vec<Skip> {
    words(SKIPS, link_layer)
        .map(|line| {
            let mut parts = line.splitn(3, '|').map(str::trim);
            let mut next = || parts.next().unwrap_or_else(|| panic!("skips.txt: three parts, not '{line}'"));
            let (test, reason, why) = (next(), next(), next());
            let (reason, error) = match reason.strip_prefix("error:") {
                Some(reason) => (reason.trim(), true),
                None => (reason, false),
            };
            Skip { test, reason, why, error }
        })
        .collect()
}

/// Lines about a link layer that are neither empty nor remarks. `[both]`, `[InfiniBand]` and `[Ethernet]` begin sections.
fn words(text: &'static str, link_layer: LinkLayer) -> impl Iterator<Item = &'static str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut wanted = false;
    lines.filter(move |line| match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
        Some(section) => {
            wanted = link_layer.has(section);
            false
        }
        None => wanted,
    })
}

fn judge(tag: &str, lines: &[Line], must_be_ok: &BTreeSet<&str>, skips: &[Skip]) -> Vec<Case> {
    let mut cases: Vec<Case> = lines
        .iter()
        .map(|line| {
            let must_be_ok = must_be_ok.contains(line.test.as_str());
            let (outcome, detail) = match (line.result.as_str(), explanation(line, skips)) {
                ("ok", _) => (Outcome::Passed, String::new()),
                ("skipped", _) if must_be_ok => {
                    (Outcome::Failed, format!("must be ok, but was skipped: {}", line.reason))
                }
                ("skipped", None) => {
                    (Outcome::Failed, format!("a skip that nobody has explained: {}", line.reason))
                }
                ("skipped" | "error", Some(why)) if !must_be_ok => {
                    (Outcome::Skipped, format!("{} ({why})", line.reason))
                }
                (other, _) => (Outcome::Failed, format!("{other}: {}", line.reason)),
            };
            Case::new(format!("{tag}{}", line.test), outcome, line.seconds, detail)
        })
        .collect();
    for missing in must_be_ok.iter().filter(|name| lines.iter().all(|line| line.test != **name)) {
        cases.push(Case::check(format!("{tag}{missing}"), "must be ok, but was not run"));
    }
    cases
}

fn explanation(line: &Line, skips: &[Skip]) -> Option<&'static str> {
    let error = line.result == "error";
    skips
        .iter()
        .find(|skip| {
            skip.error == error && line.test.contains(skip.test) && line.reason.contains(skip.reason)
        })
        .map(|skip| skip.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(test: &str, result: &str, reason: &str) -> Line {
        Line { test: test.into(), result: result.into(), seconds: 0.0, reason: reason.into() }
    }

    #[test]
    fn a_skip_is_a_failure_unless_explained() {
        let must = BTreeSet::from(["m.ok", "m.gone"]);
        let skips = [
            Skip { test: "t.", reason: "no dice", why: "because", error: false },
            Skip { test: "t.", reason: "no cards", why: "because", error: true },
        ];
        let lines = [
            line("m.ok", "skipped", "no dice"),
            line("t.a", "skipped", "no dice here"),
            line("t.b", "skipped", "no luck"),
            line("t.c", "crashed", "SIGSEGV"),
            line("t.d", "ok", ""),
            line("t.e", "error", "no cards here"),
            line("t.f", "error", "no dice here"),
            line("t.g", "skipped", "no cards here"),
        ];
        let outcomes: Vec<_> =
            judge("", &lines, &must, &skips).into_iter().map(|case| (case.name, case.outcome)).collect();
        let expected = [
            ("m.ok", Outcome::Failed),
            ("t.a", Outcome::Skipped),
            ("t.b", Outcome::Failed),
            ("t.c", Outcome::Failed),
            ("t.d", Outcome::Passed),
            ("t.e", Outcome::Skipped),
            ("t.f", Outcome::Failed),
            ("t.g", Outcome::Failed),
            ("m.gone", Outcome::Failed),
        ];
        assert_eq!(outcomes, expected.map(|(name, outcome)| (name.to_owned(), outcome)));
    }

    #[test]
    fn the_lists_can_be_read() {
        let mut distinct = BTreeSet::new();
        for link_layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            let must_be_ok = must_be_ok(link_layer);
            assert!(must_be_ok.len() >= 150, "{link_layer:?}: {}", must_be_ok.len());
            distinct.extend(must_be_ok);
            assert!(!skips(link_layer).is_empty());
            for Skip { test, reason, why, error: _ } in skips(link_layer) {
                assert!(!why.is_empty());
                assert!(!(test.is_empty() && reason.is_empty()), "explains everything: {why}");
            }
        }
        assert!(distinct.len() >= DISTINCT, "{}", distinct.len());
        let of = |link_layer| words("[both]\na\n\n# b\n[Ethernet]\nc\n[InfiniBand]\nd", link_layer).collect();
        let [infiniband, ethernet]: [Vec<&str>; 2] = [LinkLayer::InfiniBand, LinkLayer::Ethernet].map(of);
        assert_eq!((infiniband, ethernet), (vec!["a", "d"], vec!["a", "c"]));
    }
}
