//! Pictures of what was measured: drawn from files of `docs/data`, which say when and on which machine.
//!
//! A file has a line of names, and then one for each point: the curve, the place on the horizontal axis, the value, the date, the machine.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Size of a picture in pixels.
const SIZE: (u32, u32) = (1000, 420);
/// Of these, width of the column with the names of the curves; where they begin, and how far apart they are.
const NAMES: u32 = 330;
const NAMES_TOP: i32 = 50;
const NAME_HEIGHT: i32 = 20;
/// Room above the highest point.
const ABOVE: f64 = 1.08;

/// A picture.
struct Chart {
    /// Where it is, from the root, and what it is made of.
    picture: &'static str,
    data: &'static str,
    title: &'static str,
    /// What the axes are.
    axes: [&'static str; 2],
    /// What was to be: the first value of the last curve, so many times.
    goal: Option<(f64, &'static str)>,
}

const CHARTS: [Chart; 2] = [
    Chart {
        picture: "docs/src/scale/adapters.svg",
        data: "docs/data/scale/adapters.csv",
        title: "what an adapter costs",
        axes: ["adapters in one process", "ms of the processor for each"],
        goal: Some((1.5, "the goal: at most 1.5 times one of 64")),
    },
    Chart {
        picture: "docs/src/scale/processes.svg",
        data: "docs/data/scale/processes.csv",
        title: "how fast model time goes",
        axes: ["processes", "us of model time in a second, in thousands"],
        goal: None,
    },
];

/// Points from left to right, as they stand in the file.
#[derive(Debug, PartialEq)]
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// The fields of a line; a comma between quotes is none that separates.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields.last_mut().into_iter().for_each(|field| field.push(c)),
        }
    }
    fields
}

/// The curves of a file, each with the day on which it was measured.
fn curves(text: &str) -> Result<Vec<Curve>> {
    let mut curves: Vec<Curve> = Vec::new();
    for (n, line) in text.lines().enumerate().skip(1) {
        let fields = fields(line);
        let [name, x, y, date, machine] = &fields[..] else {
            bail!("line {} has {} fields", n + 1, fields.len())
        };
        if date.is_empty() || machine.is_empty() {
            bail!("line {} does not say when and where", n + 1);
        }
        let number = |text: &String| text.parse::<f64>().with_context(|| format!("line {}: {text:?}", n + 1));
        let (name, point) = (format!("{name} ({date})"), (number(x)?, number(y)?));
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name, points: vec![point] }),
        }
    }
    Ok(curves)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(area: &Area<'_>, chart: &Chart, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let (low, high) = all().fold((f64::MAX, 1.0f64), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
    let goal = chart.goal.and_then(|(times, name)| Some((curves.last()?.points.first()?.1 * times, name)));
    let top = all().map(|(_, y)| *y).chain(goal.map(|(y, _)| y)).fold(0.0, f64::max) * ABOVE;
    area.fill(&WHITE)?;
    let (plot, names) = area.split_horizontally(SIZE.0 - NAMES);
    // Steps along it are doublings.
    let range = low.log2() - 0.2..high.log2() + 0.2;
    let mut drawn = ChartBuilder::on(&plot)
        .caption(chart.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(range.clone(), 0.0..top)?;
    let [x, y] = chart.axes;
    drawn
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_labels((range.end - range.start) as usize + 1)
        .x_label_formatter(&|x| if x.fract() == 0.0 { format!("{:.0}", x.exp2()) } else { String::new() })
        .light_line_style(WHITE)
        .draw()?;
    for (i, curve) in curves.iter().enumerate() {
        let colour = Palette99::pick(i).to_rgba();
        let points = || curve.points.iter().map(|(x, y)| (x.log2(), *y));
        drawn.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
        drawn.draw_series(points().map(|at| Circle::new(at, 4, colour.filled())))?;
        name(&names, i, &curve.name, colour)?;
    }
    if let Some((y, text)) = goal {
        let (ends, colour) = ([range.start, range.end].map(|x| (x, y)), BLACK.mix(0.6));
        drawn.draw_series(DashedLineSeries::new(ends, 6, 4, colour.stroke_width(2)))?;
        name(&names, curves.len(), text, colour)?;
    }
    area.present()?;
    Ok(())
}

/// The name of a curve, beside the plot.
fn name(
    names: &Area<'_>,
    place: usize,
    name: &str,
    colour: RGBAColor,
) -> Result<(), Box<dyn std::error::Error>> {
    let y = NAMES_TOP + NAME_HEIGHT * i32::try_from(place)?;
    names.draw(&PathElement::new([(0, y), (18, y)], colour.stroke_width(2)))?;
    names.draw(&Text::new(name.to_owned(), (24, y - NAME_HEIGHT / 3), ("sans-serif", 13)))?;
    Ok(())
}

/// All pictures: where each is, from the root, and its text.
///
/// # Errors
/// Data that can't be read.
pub fn pictures(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let picture = |chart: &Chart| {
        let text = std::fs::read_to_string(root.join(chart.data)).context(chart.data)?;
        let (curves, mut svg) = (curves(&text).context(chart.data)?, String::new());
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&area, chart, &curves).map_err(|why| anyhow!("{}: {why}", chart.data))?;
        drop(area);
        Ok((chart.picture, svg))
    };
    CHARTS.iter().map(picture).collect()
}

/// Pictures that are not what the data says, a line of explanation each.
///
/// # Errors
/// Data that can't be read.
pub fn stale(root: &Path) -> Result<Vec<String>> {
    let all = pictures(root)?.into_iter();
    let old =
        all.filter(|(picture, svg)| std::fs::read_to_string(root.join(picture)).ok().as_ref() != Some(svg));
    Ok(old
        .map(|(picture, _)| format!("{picture}: not what the data says: cargo run -p hca-docs -- update"))
        .collect())
}

/// Draws them; returns the names of those that changed.
///
/// # Errors
/// Data that can't be read, or a file that can't be written.
pub fn update(root: &Path) -> Result<Vec<String>> {
    let mut changed = Vec::new();
    for (picture, svg) in pictures(root)? {
        let path = root.join(picture);
        if std::fs::read_to_string(&path).ok().as_ref() != Some(&svg) {
            std::fs::write(&path, svg).context(picture)?;
            changed.push(picture.to_owned());
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_points_of_one_name_and_day() {
        let text =
            "measured,x,y,date,machine\n\"a, b\",1,2,day,here\nc,1,3,day,here\n\"a, b\",2,4,day,here\n";
        let curve = |name: &str, points: &[(f64, f64)]| Curve { name: name.into(), points: points.into() };
        assert_eq!(
            curves(text).unwrap(),
            [curve("a, b (day)", &[(1.0, 2.0), (2.0, 4.0)]), curve("c (day)", &[(1.0, 3.0)])]
        );
        for wrong in ["h\na,1,2,day\n", "h\na,x,2,day,here\n", "h\na,1,2,,here\n"] {
            assert!(curves(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pictures_say_what_the_data_says() {
        assert_eq!(stale(&crate::root()).unwrap(), Vec::<String>::new());
    }
}
