//! An incast as SVG: goodput and queue over time, senders one by one, and how long the queue is how often; what was published as
//! points and dashed lines.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Curves;
use crate::Error;

/// Size of a picture in pixels.
const SIZE: (u32, u32) = (1100, 860);
/// Points of a curve at most.
const MOST: usize = 250;
/// Bytes of a KB, as papers count them.
const KB: f64 = 1000.0;
/// The least queue that is drawn, KB.
const LEAST: f64 = 1.0;

/// Something that was published of such a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Published {
    /// All senders together, Gb/s.
    Goodput(f64),
    /// The queue is never longer, KB.
    Longest(f64),
    /// So much of the time, 0 to 1, the queue is no longer than that, KB.
    Queue(f64, f64),
}

/// Something that was published, and where.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// What.
    pub what: Published,
    /// Where.
    pub source: &'static str,
}

/// What SIGCOMM 2015 has of incasts of long flows into a link of 40 Gb/s: of 2 to 20 senders, and of 20 the queue.
pub const SIGCOMM_2015: [Mark; 3] = [
    Mark { what: Published::Goodput(39.0), source: "SIGCOMM 2015, with headers: at least" },
    Mark { what: Published::Longest(100.0), source: "SIGCOMM 2015: at most" },
    Mark { what: Published::Queue(0.9, 76.6), source: "SIGCOMM 2015, 20 senders" },
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;
type Points = Vec<(f64, f64)>;

/// A line, or points.
struct Line {
    name: String,
    points: Points,
    colour: RGBAColor,
    kind: Kind,
}

/// What a line looks like.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Solid,
    Dashed,
    Dots,
}

/// A direction of a panel.
struct Axis {
    name: &'static str,
    from: f64,
    to: f64,
    /// Values are logarithms.
    log: bool,
}

/// A quarter of a picture.
struct Panel {
    title: &'static str,
    axes: [Axis; 2],
    lines: Vec<Line>,
}

/// Runs under the same conditions, over links that take so many Gb/s of payload, in one picture.
///
/// # Errors
/// Drawing failed.
pub fn picture(title: &str, link: f64, runs: &[(String, Curves)], marks: &[Mark]) -> Result<String, Error> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let panels = [goodput(link, runs, marks), senders(runs), queue(runs, marks), shares(runs, marks)];
    draw(&area, title, &panels).map_err(|why| Error::new(format!("drawing failed: {why}")))?;
    drop(area);
    Ok(svg)
}

fn draw(area: &Area<'_>, title: &str, panels: &[Panel]) -> Drawn {
    area.fill(&WHITE)?;
    let area = area.titled(title, ("sans-serif", 18))?;
    for (part, panel) in area.split_evenly((2, 2)).iter().zip(panels) {
        draw_panel(part, panel)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel) -> Drawn {
    let [x, y] = &panel.axes;
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(38)
        .y_label_area_size(52)
        .build_cartesian_2d(x.from..x.to, y.from..y.to)?;
    let label = |log: bool, value: f64| match log {
        true if value >= KB.log10() => format!("{:.0}M", 10f64.powf(value) / KB),
        true => format!("{:.0}K", 10f64.powf(value)),
        false if value.fract() == 0.0 => format!("{value:.0}"),
        false => format!("{value:.1}"),
    };
    chart
        .configure_mesh()
        .x_desc(x.name)
        .y_desc(y.name)
        .x_labels(if x.log { 5 } else { 10 })
        .y_labels(if y.log { 5 } else { 8 })
        .x_label_formatter(&|value| label(x.log, *value))
        .y_label_formatter(&|value| label(y.log, *value))
        .light_line_style(WHITE)
        .draw()?;
    // The first is on top.
    for Line { name, points, colour, kind } in panel.lines.iter().rev() {
        let (colour, style) = (*colour, colour.stroke_width(2));
        let series = match kind {
            Kind::Solid => chart.draw_series(LineSeries::new(points.iter().copied(), style))?,
            Kind::Dashed => chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, style))?,
            Kind::Dots => chart.draw_series(points.iter().map(|at| Circle::new(*at, 4, colour.filled())))?,
        };
        if !name.is_empty() {
            series
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
    }
    if panel.lines.iter().all(|line| line.name.is_empty()) {
        return Ok(());
    }
    chart
        .configure_series_labels()
        .position(if panel.axes[0].log {
            SeriesLabelPosition::UpperLeft
        } else {
            SeriesLabelPosition::UpperRight
        })
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 11))
        .draw()?;
    Ok(())
}

fn colour(n: usize) -> RGBAColor {
    Palette99::pick(n).to_rgba()
}

fn time(runs: &[(String, Curves)]) -> Axis {
    let ends = runs.iter().filter_map(|(_, curves)| curves.samples.last());
    Axis { name: "ms", from: 0.0, to: ends.map(|s| s.at_ms).fold(0.0, f64::max).max(0.1), log: false }
}

/// Bytes as the logarithm of KB.
fn kilobytes(bytes: usize) -> f64 {
    (bytes as f64 / KB).max(LEAST).log10()
}

fn queue_axis(runs: &[(String, Curves)]) -> Axis {
    let most = runs.iter().map(|(_, curves)| curves.longest).max().unwrap_or(0);
    Axis { name: "bytes", from: LEAST.log10(), to: kilobytes(most) + 0.4, log: true }
}

/// At most so many points: each stands for those up to it, by what `of` makes of them.
fn thin(points: &Points, of: fn(&[(f64, f64)]) -> f64) -> Points {
    let every = points.len().div_ceil(MOST).max(1);
    points.chunks(every).filter_map(|some| Some((some.last()?.0, of(some)))).collect()
}

fn mean(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(_, y)| y).sum::<f64>() / points.len().max(1) as f64
}

fn most(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(_, y)| *y).fold(0.0, f64::max)
}

/// A dashed line of its own colour across the panel.
fn across(mark: &Mark, at: [(f64, f64); 2], value: &str) -> Line {
    let name = format!("{} {value}", mark.source);
    Line { name, points: at.to_vec(), colour: BLACK.mix(0.6), kind: Kind::Dashed }
}

/// A run's line, whose name is in the first panel.
fn run_line(n: usize, points: Points) -> Line {
    Line { name: String::new(), points, colour: colour(n), kind: Kind::Solid }
}

fn goodput(link: f64, runs: &[(String, Curves)], marks: &[Mark]) -> Panel {
    let time = time(runs);
    let mut lines = Vec::new();
    for (n, (name, curves)) in runs.iter().enumerate() {
        let all = curves.samples.iter().map(|s| (s.at_ms, s.goodput.iter().sum())).collect();
        lines.push(Line {
            name: name.clone(),
            points: thin(&all, mean),
            colour: colour(n),
            kind: Kind::Solid,
        });
    }
    let full = Mark { what: Published::Goodput(link), source: "all that the link takes:" };
    for mark in marks.iter().chain([&full]) {
        if let Published::Goodput(rate) = mark.what {
            lines.push(across(mark, [(0.0, rate), (time.to, rate)], &format!("{rate:.1} Gb/s")));
        }
    }
    let y = Axis { name: "Gb/s", from: 0.0, to: link * 1.65, log: false };
    Panel { title: "payload that the receiver takes, each byte once", axes: [time, y], lines }
}

fn senders(runs: &[(String, Curves)]) -> Panel {
    let some = runs.get(..1).unwrap_or_default();
    let (mut lines, mut high) = (Vec::new(), 0.1_f64);
    for (_, curves) in some {
        let count = curves.samples.first().map_or(0, |sample| sample.goodput.len());
        for n in 0..count {
            let rates = curves.samples.iter().filter_map(|s| Some((s.at_ms, *s.goodput.get(n)?)));
            let points = thin(&rates.collect(), mean);
            high = points.iter().map(|(_, y)| *y).fold(high, f64::max);
            lines.push(run_line(n, points));
        }
    }
    let y = Axis { name: "Gb/s", from: 0.0, to: high * 1.05, log: false };
    Panel { title: "the same of each sender, under the first of the names", axes: [time(some), y], lines }
}

fn queue(runs: &[(String, Curves)], marks: &[Mark]) -> Panel {
    let time = time(runs);
    let mut lines = Vec::new();
    for (n, (_, curves)) in runs.iter().enumerate() {
        let all = curves.samples.iter().map(|s| (s.at_ms, kilobytes(s.queue))).collect();
        lines.push(run_line(n, thin(&all, most)));
    }
    for mark in marks {
        if let Published::Longest(kb) = mark.what {
            lines.push(across(mark, [(0.0, kb.log10()), (time.to, kb.log10())], &format!("{kb} KB")));
        }
    }
    Panel { title: "longest queue at the receiver's link", axes: [time, queue_axis(runs)], lines }
}

fn shares(runs: &[(String, Curves)], marks: &[Mark]) -> Panel {
    let mut lines = Vec::new();
    for (n, (_, curves)) in runs.iter().enumerate() {
        let points = (0..=1000).step_by(5).map(|part| (kilobytes(curves.queue_at(part)), part as f64 / 1e3));
        lines.push(run_line(n, points.collect()));
    }
    for mark in marks {
        if let Published::Queue(share, kb) = mark.what {
            let name = format!("{} {kb} KB", mark.source);
            lines.push(Line {
                name,
                points: vec![(kb.log10(), share)],
                colour: BLACK.into(),
                kind: Kind::Dots,
            });
        }
    }
    let y = Axis { name: "part of the looks", from: 0.0, to: 1.05, log: false };
    Panel { title: "the queue is no longer than that, second half", axes: [queue_axis(runs), y], lines }
}

#[cfg(test)]
mod tests {
    use super::super::{Control, Sample};
    use super::*;

    #[test]
    fn curves_are_thinned_by_what_counts() {
        let points: Points = (0..1000).map(|n| (f64::from(n), f64::from(n % 4))).collect();
        let (means, peaks) = (thin(&points, mean), thin(&points, most));
        assert!(means.len() == MOST && means.iter().all(|(_, y)| *y == 1.5));
        assert!(peaks.iter().all(|(_, y)| *y == 3.0) && peaks.last() == Some(&(999.0, 3.0)));
        assert_eq!((kilobytes(0), kilobytes(100_000)), (0.0, 2.0));
    }

    #[test]
    fn a_picture_names_its_runs_and_what_was_published() {
        let sample = |n: u32| Sample { at_ms: n.into(), queue: 1 << n, goodput: vec![1.0, f64::from(n)] };
        let run = Curves {
            control: Control { pfc: true, dcqcn: true },
            samples: (0..20).map(sample).collect(),
            queue: vec![1000, 2000, 30_000],
            longest: 1 << 19,
            lost: 0,
            packets: [2, 2],
            marked: 0,
            cnps: 0,
            pauses: 0,
            paused: 0.0,
            broken: 0,
        };
        let svg = picture("two", 40.0, &[("PFC and DCQCN".into(), run)], &SIGCOMM_2015).unwrap();
        for text in ["PFC and DCQCN", "39.0 Gb/s", "100 KB", "76.6 KB", "two"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(picture("none", 40.0, &[], &[]).is_ok());
    }
}
