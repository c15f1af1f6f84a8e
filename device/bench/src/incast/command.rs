//! `softhca bench incast`: runs with different things that hold senders back, as a table and a picture.

use std::path::PathBuf;

use clap::Args;
use hca_model::Ps;

use super::picture::{self, SIGCOMM_2015};
use super::{CONTROLS, Conditions, Control, Curves, Incast, run};
use crate::Error;

/// Many hosts write to one, with and without PFC and DCQCN
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    softhca bench incast --senders 8 --svg incast-8.svg\n\n\
    Messages of 64 KiB, 16 of each sender under way, packets of 1024 bytes; all begin at once. Of the second half: goodput,\n\
    fairness (Jain's index), and the queue at the receiver's link.")]
pub struct Options {
    /// How many write: 1 to 60
    #[arg(long, value_name = "N", default_value_t = 8)]
    senders: usize,
    /// 1: all at one switch; 2: two switches with senders and one with the receiver, joined by two more
    #[arg(long, value_name = "N", default_value_t = 1)]
    tiers: u8,
    /// Rates, marks and parameters as in a paper: sigcomm2015 (DCQCN), sigcomm2019 (HPCC) or sigcomm2019-paper-timers
    #[arg(long, value_name = "NAME", default_value = "sigcomm2015")]
    conditions: String,
    /// Switches mark from that many bytes on
    #[arg(long, value_name = "BYTES")]
    kmin: Option<usize>,
    /// From that many bytes on they mark all packets
    #[arg(long, value_name = "BYTES")]
    kmax: Option<usize>,
    /// Additive increase of a rate, Mb/s
    #[arg(long, value_name = "N")]
    additive: Option<u32>,
    /// What holds senders back: pfc,dcqcn  dcqcn  pfc  none; more than once [each]
    #[arg(long, value_name = "WHAT")]
    control: Vec<String>,
    /// How long they write, in ms of the model
    #[arg(long, value_name = "MS", default_value_t = 100)]
    time: u32,
    /// Print JSON: all curves
    #[arg(long)]
    json: bool,
    /// Draw the runs into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Control {
    fn named(text: &str) -> Option<Self> {
        match text {
            "pfc,dcqcn" | "dcqcn,pfc" => Some(Self { pfc: true, dcqcn: true }),
            "dcqcn" => Some(Self { pfc: false, dcqcn: true }),
            "pfc" => Some(Self { pfc: true, dcqcn: false }),
            "none" => Some(Self { pfc: false, dcqcn: false }),
            _ => None,
        }
    }
}

impl Options {
    fn runs(&self) -> Result<Vec<Incast>, Error> {
        let wrong = |option: &str, must: &str| Error::new(format!("{option} must be {must}"));
        let mut conditions =
            Conditions::named(&self.conditions).ok_or(wrong("--conditions", Conditions::NAMES))?;
        let red = &mut conditions.red;
        (red.kmin, red.kmax) = (self.kmin.unwrap_or(red.kmin), self.kmax.unwrap_or(red.kmax));
        let [additive, _] = &mut conditions.increases;
        *additive = self.additive.unwrap_or(*additive);
        let named = |text: &String| {
            Control::named(text).ok_or(wrong("--control", "pfc,dcqcn or dcqcn or pfc or none"))
        };
        let controls = match self.control.is_empty() {
            true => CONTROLS.to_vec(),
            false => self.control.iter().map(named).collect::<Result<_, _>>()?,
        };
        let time = Ps::from_ms(self.time.max(1).into());
        let (senders, tiers) = (self.senders, self.tiers);
        Ok(controls.into_iter().map(|control| Incast { senders, tiers, conditions, control, time }).collect())
    }
}

/// Runs the command and returns what it prints.
///
/// # Errors
/// The options are wrong, a run failed, or a file can't be written.
pub fn execute(options: &Options) -> Result<String, Error> {
    let runs = options.runs()?;
    let curves: Vec<Curves> = runs.iter().map(run).collect::<Result<_, _>>()?;
    if let (Some(path), Some(first)) = (&options.svg, runs.first()) {
        let gbits = first.conditions.link.bits_per_s() as f64 / 1e9;
        let title = format!(
            "{} senders, {} tier{}, {gbits:.0} Gb/s, {}",
            options.senders,
            options.tiers,
            if options.tiers == 1 { "" } else { "s" },
            options.conditions
        );
        let marks = if options.conditions == "sigcomm2015" { &SIGCOMM_2015[..] } else { &[] };
        let named: Vec<_> = curves.iter().map(|c| (c.control.name().to_string(), c.clone())).collect();
        let svg = picture::picture(&title, first.conditions.most_payload(), &named, marks)?;
        std::fs::write(path, svg).map_err(|why| Error::new(format!("{}: {why}", path.display())))?;
    }
    match options.json {
        true => serde_json::to_string_pretty(&curves).map_err(|why| Error::new(why.to_string())),
        false => Ok(table(&curves)),
    }
}

fn table(runs: &[Curves]) -> String {
    let mut out = format!(
        "{:<14} {:>7} {:>7} {:>13} {:>5} {:>22} {:>8} {:>6} {:>8} {:>6} {:>8} {:>7}\n",
        "",
        "Gb/s",
        "late",
        "each",
        "fair",
        "queue 50/90/99 %, KB",
        "most, KB",
        "paused",
        "dropped",
        "again",
        "marked",
        "CNPs"
    );
    for c in runs {
        let rates = c.rates();
        let (least, most) = rates.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), r| (l.min(*r), m.max(*r)));
        let [all, late] = c.goodput();
        let kb = |bytes: usize| bytes as f64 / 1e3;
        let queue = [500, 900, 990].map(|part| format!("{:.0}", kb(c.queue_at(part)))).join(" / ");
        out += &format!(
            "{:<14} {all:>7.2} {late:>7.2} {:>13} {:>5.2} {queue:>22} {:>8.0} {:>5.1}% {:>8} {:>5.1}% {:>8} {:>7}\n",
            c.control.name(),
            format!("{least:.2} to {most:.2}"),
            c.fairness(),
            kb(c.longest),
            c.paused * 100.0,
            c.lost,
            c.sent_again() * 100.0,
            c.marked,
            c.cnps
        );
        if c.broken > 0 {
            out += &format!("{:<14} {} connections broke: retries ran out\n", "", c.broken);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(conditions: &str, control: &[&str]) -> Options {
        Options {
            senders: 2,
            tiers: 1,
            conditions: conditions.into(),
            kmin: Some(1),
            kmax: None,
            additive: Some(3),
            control: control.iter().map(ToString::to_string).collect(),
            time: 1,
            json: false,
            svg: None,
        }
    }

    #[test]
    fn options_say_what_runs() {
        let runs = options("sigcomm2015", &[]).runs().unwrap();
        assert_eq!(runs.iter().map(|run| run.control).collect::<Vec<_>>(), CONTROLS);
        assert_eq!((runs[0].conditions.red.kmin, runs[0].conditions.red.kmax), (1, 200_000));
        assert_eq!(runs[0].conditions.increases, [3, 200]);
        assert_eq!(options("sigcomm2019", &["none", "dcqcn"]).runs().unwrap().len(), 2);
        assert!(options("x", &[]).runs().is_err() && options("sigcomm2019", &["x"]).runs().is_err());
    }

    #[test]
    fn a_table_has_a_line_for_each_run() {
        let text = execute(&options("sigcomm2015", &["pfc,dcqcn", "pfc"])).unwrap();
        assert!(
            text.lines().count() == 3 && text.contains("PFC and DCQCN") && text.contains("PFC alone"),
            "{text}"
        );
        assert!(execute(&Options { senders: 99, ..options("sigcomm2015", &["pfc"]) }).is_err());
    }
}
