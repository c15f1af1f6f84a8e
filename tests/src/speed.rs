//! How fast stock guests are with the adapter's Ethernet port, beside what they do over QEMU's own network card: TCP by mlx5e and
//! by virtio-net, RDMA by the adapter and by soft-RoCE over virtio-net. All of it between the same two guests in one run, each
//! measure in turn and several times, so that a machine that becomes busy slows all of them.

use std::fmt;

use anyhow::{Result, bail};

use crate::suites::guest::{Command, HOST, Network, Ready, complaints, printed, report};

/// Two guests with two processors each.
const TOPOLOGY: &str = "eth-channels.toml";
/// Ports of iperf3 and perftest.
const IPERF: u16 = 5201;
const PERFTEST: u16 = 18516;

/// A thing that is measured in several ways.
struct Measure {
    name: &'static str,
    unit: &'static str,
    /// Column of perftest's results; `None`: what iperf3's receiver says.
    column: Option<usize>,
    /// The ways: what each is called, and how it is run.
    ways: Vec<(&'static str, Command)>,
}

/// One line of the table: a way, its results in the order of the rounds.
struct Row {
    measure: &'static str,
    unit: &'static str,
    way: &'static str,
    results: Vec<f64>,
}

/// What was measured.
pub struct Table(Vec<Row>);

/// Measures everything so many times.
///
/// # Errors
/// The guests could not be set up, or did not do what they were told; the message says what they printed.
pub fn measure(kernel: &str, rounds: usize) -> Result<Table> {
    let mut commands = vec![set_up()];
    let mut names = Vec::new();
    for round in 1..=rounds {
        for Measure { name, unit, column, ways } in measures() {
            for (way, command) in ways {
                let title = format!("{round}: {name}, {way}");
                commands.push(command.named(title.clone()));
                names.push((title, name, unit, way, column));
            }
        }
    }
    let report = report(&["guest/ethernet.sh"], &[], &[], TOPOLOGY, kernel, &commands)?;
    let complaints = complaints(&report);
    if !complaints.is_empty() {
        bail!("{complaints}");
    }
    let mut rows: Vec<Row> = Vec::new();
    for (title, measure, unit, way, column) in names {
        let text = printed(&report, "b", &title);
        let Some(result) = result(&text, column) else {
            bail!("{title}: no result in\n{text}\n{}", printed(&report, "a", &title));
        };
        match rows.iter_mut().find(|row| (row.measure, row.way) == (measure, way)) {
            Some(row) => row.results.push(result),
            None => rows.push(Row { measure, unit, way, results: vec![result] }),
        }
    }
    Ok(Table(rows))
}

/// Soft-RoCE over the card of the network beside, in both guests.
fn set_up() -> Command {
    Command::everywhere(
        "set up",
        "until_true 60 grep -q 1 /sys/class/net/hca0/carrier
        card=$(ip -o -4 address | sed -n 's/^[0-9]*: \\([^ ]*\\) .* 10[.]0[.]0[.].*/\\1/p')
        modprobe rdma_rxe && rdma link add rxe0 type rxe netdev $card && until_true 60 gid 2 ffff:0a00
        ethtool -k $card | grep -E 'segmentation-offload|checksumming'; rdma link",
    )
}

fn measures() -> Vec<Measure> {
    let iperf = |before: &str, to: &str| {
        Command::sides("iperf3 -s -1", Ready::Tcp(IPERF), &format!("{before}iperf3 -c {to} -t 5 -f m"))
            .over(if to == HOST { Network::Side } else { Network::Ethernet })
    };
    let perftest = |line: &str, few: u32, many: u32| {
        let way = |device: &str, pattern: &str, count: u32| {
            Command::pair(
                format!("{line} -n {count} -d {device} -x $(gid 2 {pattern}) -F -p {PERFTEST}"),
                PERFTEST,
            )
        };
        vec![
            ("the adapter", way("mlx5_0", "ffff:0a01", many)),
            ("soft-RoCE over virtio-net", way("rxe0", "ffff:0a00", few)),
        ]
    };
    vec![
        Measure {
            name: "TCP",
            unit: "Mb/s",
            column: None,
            ways: vec![
                ("mlx5e", iperf("ethtool -K hca0 tso on; ", "10.1.0.1")),
                ("mlx5e without TSO", iperf("ethtool -K hca0 tso off; ", "10.1.0.1")),
                ("virtio-net (QEMU's sockets have no TSO)", iperf("ethtool -K hca0 tso on; ", HOST)),
            ],
        },
        Measure {
            name: "ib_write_bw -s 65536",
            unit: "MiB/s",
            column: Some(3),
            ways: perftest("ib_write_bw -s 65536", 200, 10_000),
        },
        Measure {
            name: "ib_write_bw -s 64",
            unit: "M/s",
            column: Some(4),
            ways: perftest("ib_write_bw -s 64", 5000, 200_000),
        },
        Measure {
            name: "ib_send_lat -s 2",
            unit: "us",
            column: Some(4),
            ways: perftest("ib_send_lat -s 2", 1000, 5000),
        },
    ]
}

/// Of what a program printed, the number that is looked for.
fn result(text: &str, column: Option<usize>) -> Option<f64> {
    match column {
        None => {
            let line = text.lines().rfind(|line| line.trim_end().ends_with("receiver"))?;
            let words: Vec<&str> = line.split_whitespace().collect();
            let unit = words.iter().position(|word| *word == "Mbits/sec")?;
            words.get(unit.checked_sub(1)?)?.parse().ok()
        }
        Some(column) => {
            let numbers = |line: &str| -> Option<Vec<f64>> {
                line.split_whitespace().map(|word| word.parse().ok()).collect()
            };
            text.lines().filter_map(numbers).rfind(|numbers| numbers.len() >= 5)?.get(column).copied()
        }
    }
}

/// The middle one.
fn median(results: &[f64]) -> f64 {
    let mut sorted = results.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | how | median | all | compared with the last |\n|---|---|---|---|---|")?;
        for Row { measure, unit, way, results } in &self.0 {
            let last = self
                .0
                .iter()
                .rfind(|row| row.measure == *measure)
                .map_or(f64::NAN, |row| median(&row.results));
            let all: Vec<String> = results.iter().map(|result| format!("{result:.3}")).collect();
            let middle = median(results);
            writeln!(
                f,
                "| {measure} | {way} | {middle:.3} {unit} | {} | {:.2} |",
                all.join(", "),
                middle / last
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let iperf = "[  5]   0.00-5.00   sec   745 MBytes  1250 Mbits/sec    0             sender\n\
                     [  5]   0.00-5.01   sec   744 MBytes  1246 Mbits/sec                  receiver\n\niperf Done.\n";
        assert_eq!(result(iperf, None), Some(1246.0));
        let bandwidth = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n\
                         65536      5000             1420.10            1417.20\t\t     0.022675\n---\n";
        assert_eq!((result(bandwidth, Some(3)), result(bandwidth, Some(4))), (Some(1417.2), Some(0.022675)));
        assert_eq!((result("", None), result("none\n1 2 3", Some(3))), (None, None));
        let row = |way, results: &[f64]| Row { measure: "TCP", unit: "Mb/s", way, results: results.to_vec() };
        let table = Table(vec![row("one", &[10.0, 30.0, 20.0]), row("other", &[10.0])]);
        assert!(
            table.to_string().contains("| TCP | one | 20.000 Mb/s | 10.000, 30.000, 20.000 | 2.00 |"),
            "{table}"
        );
    }
}
