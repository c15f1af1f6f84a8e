//! Curves as SVG: what was published as points, what the model says as lines.

use std::collections::BTreeMap;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::Error;
use crate::compare::{Comparison, Point};

/// Size of a picture in pixels.
const SIZE: (u32, u32) = (1000, 480);
/// A range this wide is drawn by its logarithm.
const WIDE: f64 = 20.0;
/// Of these, width of the column with the names of the curves.
const NAMES: u32 = 280;
/// Where the names begin, and how far apart they are.
const NAMES_TOP: i32 = 50;
const NAME_HEIGHT: i32 = 20;
/// Labels of an axis that have room beside each other.
const MOST_LABELS: usize = 12;
/// Room above the highest point.
const ABOVE: f64 = 1.08;

/// One picture: a file name without its ending, and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Name of the file, without `.svg`.
    pub file: String,
    /// Its text.
    pub svg: String,
}

/// A picture for each figure of the comparison, in the order of their names.
///
/// # Errors
/// Drawing failed.
pub fn pictures(comparison: &Comparison) -> Result<Vec<Picture>, Error> {
    let mut figures: BTreeMap<&str, Vec<&Point>> = BTreeMap::new();
    for point in &comparison.points {
        if let Some(figure) = &point.figure {
            figures.entry(figure.file.as_str()).or_default().push(point);
        }
    }
    figures
        .into_iter()
        .map(|(file, points)| Ok(Picture { file: file.into(), svg: picture(&points)? }))
        .collect()
}

fn picture(points: &[&Point]) -> Result<String, Error> {
    let mut svg = String::new();
    let xs = || points.iter().filter_map(|p| p.x);
    let (low, high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
    let top = points.iter().flat_map(|p| [p.measured, p.modelled]).fold(0.0, f64::max) * ABOVE;
    if low.is_finite() && high > 0.0 && top > 0.0 {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let scale = if low > 0.0 && high / low > WIDE { Scale::Doubling } else { Scale::Even };
        draw(&area, points, scale, (low, high), top)
            .map_err(|why| Error::new(format!("drawing failed: {why}")))?;
    }
    Ok(svg)
}

/// What a step along the horizontal axis is.
#[derive(Clone, Copy)]
enum Scale {
    /// So much more.
    Even,
    /// Twice as much.
    Doubling,
}

impl Scale {
    /// Position of a value on the axis.
    fn place(self, x: f64) -> f64 {
        match self {
            Scale::Even => x,
            Scale::Doubling => x.log2(),
        }
    }

    /// The value at a place.
    fn value(self, place: f64) -> f64 {
        match self {
            Scale::Even => place,
            Scale::Doubling => place.exp2(),
        }
    }

    /// At most so many labels: where steps are doublings, none between two of them.
    fn labels(self, range: &std::ops::Range<f64>) -> usize {
        match self {
            Scale::Even => MOST_LABELS,
            Scale::Doubling => MOST_LABELS.min((range.end - range.start) as usize),
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(
    area: &Area<'_>,
    points: &[&Point],
    scale: Scale,
    (low, high): (f64, f64),
    top: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let Some((first, figure)) = points.first().and_then(|p| Some((p, p.figure.as_ref()?))) else {
        return Ok(());
    };
    area.fill(&WHITE)?;
    let (plot, names) = area.split_horizontally(SIZE.0 - NAMES);
    let (left, right) = (scale.place(low), scale.place(high));
    // A single place still needs a range around it.
    let margin = ((right - left) * 0.04).max(right.abs() * 0.01);
    let range = left - margin..right + margin;
    let mut chart = ChartBuilder::on(&plot)
        .caption(&figure.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(range.clone(), 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(figure.x.as_str())
        .y_desc(first.unit.as_str())
        .x_labels(scale.labels(&range))
        .x_label_formatter(&|x| short(scale.value(*x)))
        .y_label_formatter(&|y| short(*y))
        .light_line_style(WHITE)
        .draw()?;
    for (i, (name, curve)) in curves(points).into_iter().enumerate() {
        let colour = Palette99::pick(i).to_rgba();
        let line = curve.iter().filter_map(|p| Some((scale.place(p.x?), p.modelled)));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
        let dots = curve
            .iter()
            .filter_map(|p| Some(Circle::new((scale.place(p.x?), p.measured), 4, colour.filled())));
        chart.draw_series(dots)?;
        // Beside the plot, where a name hides no point.
        let y = NAMES_TOP + NAME_HEIGHT * i as i32;
        names.draw(&PathElement::new([(0, y), (18, y)], colour.stroke_width(2)))?;
        names.draw(&Text::new(name, (24, y - NAME_HEIGHT / 3), ("sans-serif", 13)))?;
    }
    area.present()?;
    Ok(())
}

/// The curves of a figure in the order of their first points, each from left to right.
fn curves<'a>(points: &[&'a Point]) -> Vec<(String, Vec<&'a Point>)> {
    let mut all: Vec<(String, Vec<&Point>)> = Vec::new();
    for point in points {
        let Some(name) = &point.curve else { continue };
        match all.iter_mut().find(|(n, _)| n == name) {
            Some((_, curve)) => curve.push(point),
            None => all.push((name.clone(), vec![point])),
        }
    }
    for (_, curve) in &mut all {
        curve.sort_by(|a, b| a.x.unwrap_or(0.0).total_cmp(&b.x.unwrap_or(0.0)));
    }
    all
}

/// A number for an axis: `64K`, `8M`, `2.5`.
fn short(value: f64) -> String {
    const KI: f64 = 1024.0;
    let whole = value.fract() == 0.0;
    match value {
        v if whole && v >= KI * KI && v % (KI * KI) == 0.0 => format!("{}M", v / KI / KI),
        v if whole && v >= KI && v % KI == 0.0 => format!("{}K", v / KI),
        v if whole || v >= 100.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_ranges_go_by_doublings() {
        let scale = Scale::Doubling;
        assert_eq!([1.0, 8.0, 1024.0].map(|x| scale.place(x)), [0.0, 3.0, 10.0]);
        assert_eq!(scale.labels(&(-0.4..11.9)), 12);
        assert_eq!(short(scale.value(12.0)), "4K");
    }

    #[test]
    fn numbers_on_axes_are_short() {
        let all = [2.0, 4096.0, 8388608.0, 0.5, 123.4, 1000.0].map(short);
        assert_eq!(all, ["2", "4K", "8M", "0.5", "123", "1000"]);
    }
}
