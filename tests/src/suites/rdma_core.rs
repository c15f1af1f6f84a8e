//! rdma-core's own tests on both link layers, judged against a list of those that must be ok.
//!
//! A test skips itself when the adapter does not report a capability. So that a capability left out can't turn
//! a failure into a skip, `tests/suites/must-be-ok.txt` names every test that has to run and pass, and each skip has
//! to be explained in `tests/suites/skips.txt`. Both lists have sections for what holds on one link layer only, or of one adapter.

use std::collections::BTreeSet;
use std::time::Duration;

use hca_vm::run::{Report, Run};
use serde::Deserialize;

use super::covered::covered;
use super::diagnosed::of_host;
use super::guest::{complaints, is_chosen};
use super::{Case, Outcome};
use crate::guests::{self, turn};

const MUST_BE_OK: &str = include_str!("../../suites/must-be-ok.txt");
const SKIPS: &str = include_str!("../../suites/skips.txt");
const ALL: Duration = Duration::from_secs(3600);
/// Different tests that are ok on at least one link layer: what is left of 321 without those of other adapters and of later ones.
const DISTINCT: usize = 262;
/// The same of those of the boots with a ConnectX-6 Dx alone.
const DISTINCT_CONNECTX6DX: usize = 250;

/// What the ports of a boot's adapter are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkLayer {
    InfiniBand,
    Ethernet,
}

/// The kind of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// And a ConnectX-5 for what came with that.
    ConnectX4,
    ConnectX6Dx,
}

/// What the lists tell apart: boots of a group are judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    kind: Kind,
    link_layer: LinkLayer,
}

/// All of them, in the order of their cases.
const GROUPS: [Group; 4] = [
    Group { kind: Kind::ConnectX4, link_layer: LinkLayer::InfiniBand },
    Group { kind: Kind::ConnectX4, link_layer: LinkLayer::Ethernet },
    Group { kind: Kind::ConnectX6Dx, link_layer: LinkLayer::InfiniBand },
    Group { kind: Kind::ConnectX6Dx, link_layer: LinkLayer::Ethernet },
];

impl Group {
    /// Is a section of the lists about it? `[both]` is about all, `[A, B]` about those that are A and B, `[A or B]` about those that
    /// are one of them.
    fn has(self, section: &str) -> bool {
        let is = |word: &str| match word {
            "both" => true,
            "InfiniBand" => self.link_layer == LinkLayer::InfiniBand,
            "Ethernet" => self.link_layer == LinkLayer::Ethernet,
            "ConnectX-4" => self.kind == Kind::ConnectX4,
            "ConnectX-6 Dx" => self.kind == Kind::ConnectX6Dx,
            _ => panic!("there is no section [{section}]"),
        };
        let all = |words: &str| words.split(", ").map(is).fold(true, |all, is| all & is);
        section.split(" or ").map(all).fold(false, |any, all| any | all)
    }

    /// How the names of its cases begin.
    fn tag(self) -> &'static str {
        match (self.kind, self.link_layer) {
            (Kind::ConnectX4, LinkLayer::InfiniBand) => "",
            (Kind::ConnectX4, LinkLayer::Ethernet) => "Ethernet: ",
            (Kind::ConnectX6Dx, LinkLayer::InfiniBand) => "ConnectX-6 Dx: ",
            (Kind::ConnectX6Dx, LinkLayer::Ethernet) => "ConnectX-6 Dx, Ethernet: ",
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
    group: Group,
    topology: &'static str,
    /// Regular expression of the tests.
    only: &'static str,
    /// What is done before, and further options.
    before: &'static str,
    options: &'static str,
    /// Debian's packages that what is done before needs.
    packages: &'static [&'static str],
}

/// All tests run with a ConnectX-4 and with a ConnectX-6 Dx, over both link layers, but for these. Tests of the connection manager want IP addresses
/// on the fabric, and so somebody who manages the subnet: those over InfiniBand have a ConnectX-6 Dx with a cable, whose BlueFlame those of UAR pages want (the suite `cm` is about a
/// ConnectX-4). Those that drive the adapter from user space want it behind an IOMMU and without its kernel driver: a ConnectX-4. Those of device memory and tag
/// matching have a ConnectX-5 instead of a ConnectX-4; those of wrapped keys a ConnectX-6 Dx that was made for such. Those of flow tables that change packets, of
/// software steering, and of what else came with a ConnectX-6 Dx, run with that alone; two of them want one whose driver leaves RoCE alone. A port of Ethernet has its addresses by itself.
const BOOTS: [Boot; 9] = [
    Boot {
        group: GROUPS[0],
        topology: "loopback",
        only: "",
        before: HUGE_PAGES,
        options: "--but 'mlx5_vfio|mlx5_uar|rdmacm|DMTest|DeviceMemory|dm_ops|mlx5_crypto|tag_matching'",
        packages: &[],
    },
    Boot {
        group: GROUPS[0],
        topology: "connectx5.toml",
        only: "DMTest|DeviceMemory|dm_ops|tag_matching",
        before: "true",
        options: "",
        packages: &[],
    },
    Boot {
        group: GROUPS[0],
        topology: "iommu",
        only: "mlx5_vfio",
        before: "slot=$(hca-vfio-bind)",
        options: "--pci $slot",
        packages: &[],
    },
    Boot {
        group: GROUPS[1],
        topology: "eth",
        only: "",
        before: HUGE_PAGES,
        options: "--but 'mlx5_vfio|mlx5_uar|mlx5_dr|mlx5_flow|mlx5_pp|mlx5_dm_ops|mlx5_sched|_stream|ah_to_qp|doorbell_less|mlx5_crypto'",
        packages: &[],
    },
    Boot {
        group: GROUPS[2],
        topology: "connectx6dx.toml",
        only: "",
        before: HUGE_PAGES_AND_KEYS,
        options: "--but 'mlx5_vfio|mlx5_uar|rdmacm|mlx5_crypto(?!.*plaintext)'",
        packages: &[],
    },
    Boot {
        group: GROUPS[2],
        topology: "connectx6dx-wrapped.toml",
        only: "mlx5_crypto",
        before: WRAPPED_KEYS,
        options: "--but plaintext",
        packages: &["mstflint"],
    },
    Boot {
        group: GROUPS[2],
        topology: "connectx6dx-cable.toml",
        only: "rdmacm|mlx5_uar",
        before: ". /root/cases.sh; manage && ipoib",
        options: "",
        packages: &[],
    },
    Boot {
        group: GROUPS[3],
        topology: "connectx6dx-eth.toml",
        only: "",
        before: QUIET,
        // The one of meters fails unless Python alone sends 30 MB/s, which an emulated guest does not.
        options: "--but 'mlx5_vfio|mlx5_uar|mlx5_crypto(?!.*plaintext)|roce_bth|test_flow_meter'",
        packages: &[],
    },
    Boot {
        group: GROUPS[3],
        topology: "connectx6dx-eth.toml",
        only: "roce_bth",
        before: NO_ROCE,
        options: "",
        packages: &[],
    },
];

/// The guest's own network device asks for routers for as long as none answers. Rules that take every frame take these questions, too,
/// which come back by the cable. And what [`HUGE_PAGES_AND_KEYS`] does.
const QUIET: &str = "sysctl -qw net.ipv6.conf.hca0.router_solicitations=0; echo 64 > /proc/sys/vm/nr_hugepages; \
                     export MLX5_CRYPTO_TEST_INFO=/root/crypto.json";
/// The driver is told to leave RoCE alone, starts anew, and its network device is as quiet.
const NO_ROCE: &str = "slot=$(basename $(readlink -f /sys/class/infiniband/mlx5_0/device)); \
                       devlink dev param set pci/$slot name enable_roce value false cmode driverinit; \
                       devlink dev reload pci/$slot; port=$(ls /sys/bus/pci/devices/$slot/net); \
                       sysctl -qw net.ipv6.conf.$port.router_solicitations=0; ip link set $port up; sleep 1";
/// Keys for the tests of encryption; and the adapter gets the credential and the key of keys by which that file's keys are wrapped.
const WRAPPED_KEYS: &str = "export MLX5_CRYPTO_TEST_INFO=/root/crypto.json; \
    slot=$(basename $(readlink -f /sys/class/infiniband/mlx5_0/device)); \
    mstreg -y -d $slot --reg_name CRYPTO_OPERATIONAL --set \
    credential[0]=0x40414243,credential[1]=0x44454647,credential[2]=0x48494a4b,credential[3]=0x4c4d4e4f,\
credential[4]=0x50515253,credential[5]=0x54555657,credential[6]=0x58595a5b,credential[7]=0x5c5d5e5f,\
credential[8]=0x60616263,credential[9]=0x64656667,kek[0]=0x10111213,kek[1]=0x14151617,kek[2]=0x18191a1b,kek[3]=0x1c1d1e1f";
const HUGE_PAGES: &str = "echo 64 > /proc/sys/vm/nr_hugepages";
/// Those, and keys for the tests of encryption.
const HUGE_PAGES_AND_KEYS: &str =
    "echo 64 > /proc/sys/vm/nr_hugepages; export MLX5_CRYPTO_TEST_INFO=/root/crypto.json";

/// All of them, each boot in one guest whose adapter is looped back; of those only the ones chosen by their tag and topology.
pub fn cases(kernel: &str) -> Vec<Case> {
    let boots: Vec<&Boot> = BOOTS.iter().filter(|boot| boot.is_chosen()).collect();
    let mut cases = boot(&boots, kernel, "");
    // Some of the boots can't show how many of all tests are ok.
    let is_whole =
        |groups: &[Group]| BOOTS.iter().filter(|boot| groups.contains(&boot.group)).all(Boot::is_chosen);
    let counted: Vec<Case> =
        [("", &GROUPS[..], DISTINCT), ("ConnectX-6 Dx: ", &GROUPS[2..], DISTINCT_CONNECTX6DX)]
            .into_iter()
            .filter(|(_, groups, _)| is_whole(groups))
            .map(|(whose, groups, least)| count(whose, groups, least, &cases))
            .collect();
    cases.extend(counted);
    cases
}

/// The case that says how many different tests are ok in at least one of these groups, and fails if they are fewer than `least`.
fn count(whose: &str, groups: &[Group], least: usize, cases: &[Case]) -> Case {
    let ok = |group: Group| {
        let test = move |case: &&Case| {
            let test = case.name.strip_prefix(group.tag())?;
            (case.outcome == Outcome::Passed && test.starts_with("test_")).then(|| test.to_owned())
        };
        cases.iter().filter_map(move |case| test(&case)).collect::<BTreeSet<String>>()
    };
    let by_group: Vec<(Group, BTreeSet<String>)> = groups.iter().map(|group| (*group, ok(*group))).collect();
    let each: Vec<String> = by_group
        .iter()
        .map(|(group, ok)| format!("{:?} with {:?}: {}", group.link_layer, group.kind, ok.len()))
        .collect();
    let count = by_group.into_iter().flat_map(|(_, ok)| ok).collect::<BTreeSet<String>>().len();
    let detail = format!("{count} ({})", each.join(", "));
    eprintln!("  {whose}{detail} tests are ok on at least one link layer");
    let outcome = if count < least { Outcome::Failed } else { Outcome::Passed };
    Case::new(format!("{whose}{least} tests are ok on at least one link layer"), outcome, 0.0, detail)
}

/// Those of one boot whose names have one of these words, which `|` separates.
pub fn some(kernel: &str, words: &'static str) -> Vec<Case> {
    let boots = [&Boot {
        group: GROUPS[0],
        topology: "loopback",
        only: words,
        before: "true",
        options: "",
        packages: &[],
    }];
    boot(&boots, kernel, words)
}

/// Runs boots. Of the tests that must be ok, those count whose names have one of these words; and if a group lacks boots, those that were run.
fn boot(boots: &[&Boot], kernel: &str, words: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut logs = Vec::new();
    for group in GROUPS {
        let of_group = |boot: &&&Boot| boot.group == group;
        let boots: Vec<&&Boot> = boots.iter().filter(of_group).collect();
        if boots.is_empty() {
            continue;
        }
        let (mut lines, mut said) = (Vec::new(), Vec::new());
        for boot in &boots {
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
                    logs.push(Case::check(boot.named("kernel log"), complaints(&report)));
                }
                Err(error) => logs.push(Case::check(boot.named("set up"), format!("{error:#}"))),
            }
        }
        let is_whole =
            !words.is_empty() || boots.len() == BOOTS.iter().filter(|boot| of_group(&boot)).count();
        let was_run = |name: &str| lines.iter().any(|line| line.test == name);
        let must_be_ok = must_be_ok(group)
            .into_iter()
            .filter(|name| words.split('|').any(|word| name.contains(word)))
            .filter(|name| is_whole || was_run(name))
            .collect();
        let mut judged = judge(group.tag(), &lines, &must_be_ok, &skips(group));
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
    /// The name of a case that is about the whole of it.
    fn named(&self, what: &str) -> String {
        let tag = self.group.tag();
        let (colon, only) = if self.only.is_empty() { ("", "") } else { (": ", self.only) };
        format!("{tag}{what}: {}{colon}{only}", self.topology)
    }

    /// Has the user chosen it, by words of the name of that case?
    fn is_chosen(&self) -> bool {
        is_chosen(&self.named("kernel log"))
    }

    fn run(&self, kernel: &str) -> anyhow::Result<Report> {
        let Self { group: _, topology, only, before, options, packages } = self;
        let job = format!(
            "{before}; python3 rdma_core_tests.py --only '{only}' {options}; modprobe -r mlx5_ib mlx5_core"
        );
        let _turn = turn(1);
        let run = covered(Run::new(guests::topology(topology)));
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

fn must_be_ok(group: Group) -> BTreeSet<&'static str> {
    words(MUST_BE_OK, group).collect()
}

fn skips(group: Group) -> Vec<Skip> {
    words(SKIPS, group)
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

/// Lines about a group that are neither empty nor remarks. [`Group::has`] says what the heads of sections mean.
fn words(text: &'static str, group: Group) -> impl Iterator<Item = &'static str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut wanted = false;
    lines.filter(move |line| match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
        Some(section) => {
            wanted = group.has(section);
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
        let [mut distinct, mut of_connectx6dx] = [BTreeSet::new(), BTreeSet::new()];
        for group in GROUPS {
            let must_be_ok = must_be_ok(group);
            assert!(must_be_ok.len() >= 150, "{group:?}: {}", must_be_ok.len());
            if group.kind == Kind::ConnectX6Dx {
                of_connectx6dx.extend(must_be_ok.iter().copied());
            }
            distinct.extend(must_be_ok);
            assert!(!skips(group).is_empty());
            for Skip { test, reason, why, error: _ } in skips(group) {
                assert!(!why.is_empty());
                assert!(!(test.is_empty() && reason.is_empty()), "explains everything: {why}");
            }
        }
        assert!(distinct.len() >= DISTINCT, "{}", distinct.len());
        assert!(of_connectx6dx.len() >= DISTINCT_CONNECTX6DX, "{}", of_connectx6dx.len());
    }

    #[test]
    fn sections_are_about_groups() {
        let of = |group| {
            words("[both]\na\n\n# b\n[Ethernet]\nc\n[InfiniBand]\nd\n[ConnectX-6 Dx, Ethernet]\ne\n[InfiniBand or ConnectX-6 Dx]\nf", group)
                .collect::<String>()
        };
        assert_eq!(GROUPS.map(of), ["adf", "ac", "adf", "acef"]);
    }

    #[test]
    fn distinct_tests_are_counted_over_link_layers() {
        let passed = |name: &str| Case::check(name, "");
        let cases = [
            passed("test_a.A.test_1"),
            passed("ConnectX-6 Dx: test_a.A.test_1"),
            passed("ConnectX-6 Dx, Ethernet: test_a.A.test_1"),
            passed("ConnectX-6 Dx, Ethernet: test_a.A.test_2"),
            Case::check("ConnectX-6 Dx: test_a.A.test_3", "failed"),
            Case::new("ConnectX-6 Dx: test_a.A.test_4", Outcome::Skipped, 0.0, "no dice"),
            passed("ConnectX-6 Dx: kernel log: connectx6dx.toml"),
            passed("Ethernet: test_a.A.test_5"),
        ];
        let counted = |groups, least| count("", groups, least, &cases);
        assert_eq!(counted(&GROUPS[2..], 2).outcome, Outcome::Passed, "{}", counted(&GROUPS[2..], 2).detail);
        assert_eq!(counted(&GROUPS[2..], 3).outcome, Outcome::Failed);
        assert_eq!(counted(&GROUPS, 3).outcome, Outcome::Passed);
        assert_eq!(counted(&GROUPS, 4).outcome, Outcome::Failed);
    }

    #[test]
    fn boots_have_names_of_their_own() {
        let names: BTreeSet<String> = BOOTS.iter().map(|boot| boot.named("kernel log")).collect();
        assert_eq!(names.len(), BOOTS.len());
        let of_connectx6dx = |boot: &&Boot| boot.named("kernel log").starts_with("ConnectX-6 Dx");
        assert_eq!(BOOTS.iter().filter(of_connectx6dx).count(), 5, "what `--only 'ConnectX-6 Dx'` chooses");
    }
}
