//! Sweeps as SVG: lines over the values of one option, a heat map over those of two.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Error;
use crate::file::Sweep;
use crate::outcome::Outcome;
use crate::scenario::{Metric, Scenario};

/// Size of a picture in pixels.
const SIZE: (u32, u32) = (1000, 560);
/// Room of a heat map for its title and for the values at its left, at its right and below, in pixels.
const TOP: i32 = 50;
const LEFT: i32 = 110;
const RIGHT: i32 = 20;
const BOTTOM: i32 = 60;
/// Room above the highest point.
const ABOVE: f64 = 1.08;
/// Colours of the least and of the largest value of a heat map.
const COLD: (u8, u8, u8) = (247, 251, 255);
const HOT: (u8, u8, u8) = (8, 69, 148);
/// Above that share of the largest, text is white.
const DARK: f64 = 0.55;
/// Cells at the most in a direction: more are no picture.
const MANY: usize = 64;

/// What a run answered, and in what unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Name of its scenario; runs of one name are a line.
    pub name: String,
    /// Median latency in microseconds, rate in millions per second, or bandwidth in Gb/s.
    pub value: f64,
}

impl Answer {
    /// What is measured of `scenario`.
    pub fn of(scenario: &Scenario, outcome: &Outcome) -> Self {
        let value = match (scenario.metric, &outcome.latency) {
            (_, Some(latency)) => latency.p50 / 1e3,
            (Metric::Bandwidth, _) => outcome.bandwidth * 8.0 / 1e9,
            _ => outcome.rate / 1e6,
        };
        Self { name: scenario.name.clone(), value }
    }
}

/// The unit of an answer.
pub fn unit(metric: Metric) -> &'static str {
    match metric {
        Metric::Latency => "us, half of all",
        Metric::Rate => "M/s",
        Metric::Bandwidth => "Gb/s",
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A picture of the answers of one sweep or two, in the order of their runs: the second goes through its values for each of the first.
///
/// # Errors
/// There is nothing to draw, or too much, or drawing failed.
pub fn picture(title: &str, unit: &str, sweeps: &[Sweep], answers: &[Answer]) -> Result<String, Error> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let drawn = match sweeps {
        _ if sweeps.iter().any(|sweep| sweep.values.len() > MANY) => {
            return Err(Error::new(format!("a picture has {MANY} values of an option at most")));
        }
        [across] if !answers.is_empty() => lines(&area, (title, unit), across, answers),
        [across, up] if answers.len() == across.values.len() * up.values.len() => {
            heat(&area, (title, unit), (across, up), answers)
        }
        [_, _] => return Err(Error::new("a heat map is of one scenario")),
        _ => return Err(Error::new("--plot draws sweeps: give --sweep once or twice")),
    };
    drawn.map_err(|why| Error::new(format!("drawing failed: {why}")))?;
    drop(area);
    Ok(svg)
}

fn lines(area: &Area<'_>, (title, unit): (&str, &str), across: &Sweep, answers: &[Answer]) -> Drawn {
    area.fill(&WHITE)?;
    let places = across.values.len();
    let top = answers.iter().map(|a| a.value).fold(0.0, f64::max) * ABOVE;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.3..places as f64 - 0.7, 0.0..top.max(f64::MIN_POSITIVE))?;
    let value = |x: &f64| match (x - x.round()).abs() < 0.01 && x.round() >= 0.0 {
        true => across.values.get(x.round() as usize).cloned().unwrap_or_default(),
        false => String::new(),
    };
    chart
        .configure_mesh()
        .x_desc(across.option.as_str())
        .y_desc(unit)
        .x_labels(places.max(2))
        .x_label_formatter(&value)
        .light_line_style(WHITE)
        .draw()?;
    for (i, run) in answers.chunks(places.max(1)).enumerate() {
        let colour = Palette99::pick(i).to_rgba();
        let points = || run.iter().enumerate().map(|(x, a)| (x as f64, a.value));
        let name = run.first().map(|a| a.name.clone()).unwrap_or_default();
        let line = chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
        if !name.is_empty() {
            line.label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart.draw_series(points().map(|p| Circle::new(p, 3, colour.filled())))?;
    }
    if answers.iter().any(|a| !a.name.is_empty()) {
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    }
    area.present()?;
    Ok(())
}

/// A cell for each pair of values: the darker, the larger. The second option goes upwards.
fn heat(
    area: &Area<'_>,
    (title, unit): (&str, &str),
    (across, up): (&Sweep, &Sweep),
    answers: &[Answer],
) -> Drawn {
    area.fill(&WHITE)?;
    let (columns, rows) = (across.values.len().max(1) as i32, up.values.len().max(1) as i32);
    let (width, height) = (SIZE.0 as i32 - LEFT - RIGHT, SIZE.1 as i32 - TOP - BOTTOM);
    let most = answers.iter().map(|a| a.value).fold(f64::MIN_POSITIVE, f64::max);
    let style = |size: i32, colour: &RGBColor| ("sans-serif", size).into_font().color(colour);
    let centred =
        |size: i32, colour: &RGBColor| style(size, colour).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw(&Text::new(format!("{title} ({unit})"), (SIZE.0 as i32 / 2, TOP / 2), centred(18, &BLACK)))?;
    let begin = |column: i32, row: i32| (LEFT + width * column / columns, TOP + height * (rows - row) / rows);
    for (i, answer) in answers.iter().enumerate() {
        let (column, row) = (i as i32 / rows, i as i32 % rows);
        let ((left, bottom), (right, top)) = (begin(column, row), begin(column + 1, row + 1));
        let share = answer.value / most;
        area.draw(&Rectangle::new([(left, top), (right, bottom)], blend(share).filled()))?;
        let middle = ((left + right) / 2, (top + bottom) / 2);
        let ink = if share > DARK { WHITE } else { BLACK };
        area.draw(&Text::new(short(answer.value), middle, centred(13, &ink)))?;
    }
    for (value, column) in across.values.iter().zip(0..) {
        let (left, right) = (begin(column, 0).0, begin(column + 1, 0).0);
        area.draw(&Text::new(
            value.clone(),
            ((left + right) / 2, SIZE.1 as i32 - BOTTOM + 14),
            centred(13, &BLACK),
        ))?;
    }
    for (value, row) in up.values.iter().zip(0..) {
        let (low, high) = (begin(0, row).1, begin(0, row + 1).1);
        area.draw(&Text::new(value.clone(), (LEFT - 26, (low + high) / 2), centred(13, &BLACK)))?;
    }
    let below = (LEFT + width / 2, SIZE.1 as i32 - 16);
    area.draw(&Text::new(across.option.clone(), below, centred(15, &BLACK)))?;
    area.draw(&Text::new(up.option.clone(), (LEFT / 3, TOP - 12), centred(15, &BLACK)))?;
    area.present()?;
    Ok(())
}

/// The colour of a share of the largest value.
fn blend(share: f64) -> RGBColor {
    let between = |low: u8, high: u8| {
        (f64::from(low) + (f64::from(high) - f64::from(low)) * share.clamp(0.0, 1.0)).round() as u8
    };
    RGBColor(between(COLD.0, HOT.0), between(COLD.1, HOT.1), between(COLD.2, HOT.2))
}

/// A number for a cell.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(text: &str) -> Sweep {
        Sweep::parse(text).expect("a sweep")
    }

    fn answers(count: usize) -> Vec<Answer> {
        (0..count).map(|i| Answer { name: String::new(), value: i as f64 + 0.5 }).collect()
    }

    #[test]
    fn one_option_gives_a_line_and_two_a_cell_for_each_pair() {
        let one = picture("reads", "M/s", &[sweep("window=1..8")], &answers(4)).expect("drawn");
        assert!(one.starts_with("<svg") && one.matches("<circle").count() == 4, "{one}");
        let two =
            picture("reads", "M/s", &[sweep("window=1..8"), sweep("qps=1,4")], &answers(8)).expect("drawn");
        // The background is one, too.
        assert_eq!(two.matches("<rect").count(), 9, "{two}");
        assert!(two.contains("window") && two.contains("qps") && two.contains("7.50"), "{two}");
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        let refused =
            |sweeps: &[Sweep], count| picture("x", "us", sweeps, &answers(count)).unwrap_err().to_string();
        assert!(refused(&[], 1).contains("--sweep"));
        assert!(refused(&[sweep("qps=1,2"), sweep("window=1,2")], 8).contains("one scenario"));
        let many = Sweep { option: "window".into(), values: (0..100).map(|v| v.to_string()).collect() };
        assert!(refused(&[many], 100).contains("64"));
    }

    #[test]
    fn the_largest_is_the_darkest() {
        assert_eq!(blend(0.0), RGBColor(COLD.0, COLD.1, COLD.2));
        assert_eq!(blend(1.0), RGBColor(HOT.0, HOT.1, HOT.2));
        assert_eq!([0.123, 12.34, 123.4].map(short), ["0.12", "12.3", "123"]);
    }
}
