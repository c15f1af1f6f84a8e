//! A work request's life as a picture (SVG): a lane for each unit it passed, a bar for what takes time, a line that
//! follows it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::explain::{Life, Step};

/// Sizes in pixels.
const LEFT: f64 = 190.0;
const RIGHT: f64 = 150.0;
const WIDTH: f64 = 1100.0;
const TOP: f64 = 56.0;
const LANE: f64 = 26.0;
const BAR: f64 = 14.0;
/// Width of a step that takes no time.
const LEAST: f64 = 2.5;
/// Width of a letter of a name, about, and room before a name.
const LETTER: f64 = 6.2;
const SPACE: f64 = 7.0;
/// A gap between adapters.
const GAP: f64 = 14.0;
/// Ticks of the axis, about.
const TICKS: f64 = 10.0;
/// Colours of units, by their place; chosen to differ in lightness, too.
const COLOURS: [&str; 7] = ["#4878a8", "#e0894c", "#5aa469", "#c05555", "#8a6db0", "#9c755f", "#6b8ba4"];

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// 1, 2 or 5 times a power of ten, so that about [`TICKS`] fit into `span`.
fn tick(span: f64) -> f64 {
    let rough = (span / TICKS).max(1e-3);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|t| *t >= rough).unwrap_or(rough)
}

/// Where a name of that width goes in a lane with these bars, in order of their beginnings: behind the last if it fits,
/// else where there is most room between two or before the first.
fn beside(bars: &[(f64, f64)], width: f64) -> f64 {
    let mut end = LEFT - SPACE;
    let mut widest = (end + SPACE, 0.0);
    for (left, right) in bars {
        if left - end > widest.1 {
            widest = (end + SPACE, left - end);
        }
        end = end.max(*right);
    }
    let last = end + SPACE;
    if last + width <= WIDTH || WIDTH - end >= widest.1 { last } else { widest.0 }
}

/// The picture, as the text of an SVG file.
pub fn svg(life: &Life) -> String {
    let begin = life.steps.iter().map(|s| s.at).min().unwrap_or(0);
    let end = life.steps.iter().map(|s| s.at + s.took).max().unwrap_or(begin);
    let span = ((end - begin) as f64 / 1e3).max(1.0);
    // Lanes in the order of adapters and units.
    let mut lanes: BTreeMap<(u64, u64), (f64, &Step)> = BTreeMap::new();
    for step in &life.steps {
        lanes.entry(step.order).or_insert((0.0, step));
    }
    let (mut y, mut adapter) = (TOP, None);
    for ((pid, _), (at, _)) in &mut lanes {
        if adapter.replace(*pid).is_some_and(|before| before != *pid) {
            y += GAP;
        }
        *at = y;
        y += LANE;
    }
    let height = y + 30.0;
    let x = |ps: u64| LEFT + ((ps - begin) as f64 / 1e3) / span * (WIDTH - LEFT - RIGHT);
    let centre = |step: &Step| lanes.get(&step.order).map_or(TOP, |l| l.0) + LANE / 2.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let title = format!(
        "work request {:#x}:{} of {}: {:.1} ns from doorbell to end",
        life.qpn,
        life.index,
        life.adapter,
        life.duration() as f64 / 1e3
    );
    _ = writeln!(out, "<text x=\"12\" y=\"22\" font-size=\"15\" fill=\"#222\">{}</text>", escape(&title));
    let every = tick(span);
    let mut at = 0.0;
    while at <= span {
        let px = LEFT + at / span * (WIDTH - LEFT - RIGHT);
        _ = writeln!(
            out,
            "<line x1=\"{px:.1}\" y1=\"{TOP}\" x2=\"{px:.1}\" y2=\"{y:.1}\" stroke=\"#e4e4e4\"/>"
        );
        let text = y + 16.0;
        _ = writeln!(
            out,
            "<text x=\"{px:.1}\" y=\"{text:.1}\" text-anchor=\"middle\" fill=\"#555\">{at} ns</text>"
        );
        at += every;
    }
    for (top, step) in lanes.values() {
        let text = top + LANE / 2.0 + 4.0;
        let name = escape(&format!("{}  {}", step.adapter, step.unit));
        let right = LEFT - 10.0;
        _ = writeln!(
            out,
            "<text x=\"{right}\" y=\"{text:.1}\" text-anchor=\"end\" fill=\"#222\">{name}</text>"
        );
    }
    let along = life.steps.iter().filter(|s| !s.aside);
    let path: Vec<String> = along.map(|s| format!("{:.1},{:.1}", x(s.at), centre(s))).collect();
    _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#999\" stroke-width=\"1\" stroke-dasharray=\"3 2\"/>",
        path.join(" ")
    );
    for step in &life.steps {
        let (left, middle) = (x(step.at), centre(step));
        let width = (x(step.at + step.took) - left).max(LEAST);
        let colour = COLOURS[(step.order.1 / 1000) as usize % COLOURS.len()];
        let tip = format!(
            "{} at {:.3} ns, {:.3} ns",
            step.name,
            (step.at - begin) as f64 / 1e3,
            step.took as f64 / 1e3
        );
        let top = middle - BAR / 2.0;
        _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{colour}\">\
             <title>{}</title></rect>",
            escape(&tip)
        );
    }
    // Names beside the things of each lane, so that they cover no bar, and with a white rim, so that no line runs through them.
    for (key, (top, _)) in &lanes {
        let here: Vec<&Step> = life.steps.iter().filter(|s| s.order == *key).collect();
        let mut names: Vec<String> = here.iter().map(|s| s.label()).collect();
        names.dedup();
        let shown = if here.len() > names.len() {
            format!("{} x{}", names.join(", "), here.len())
        } else {
            names.join(", ")
        };
        let bars: Vec<(f64, f64)> =
            here.iter().map(|s| (x(s.at), x(s.at + s.took).max(x(s.at) + LEAST))).collect();
        let left = beside(&bars, shown.chars().count() as f64 * LETTER);
        let text = top + LANE / 2.0 + 4.0;
        _ = writeln!(
            out,
            "<text x=\"{left:.1}\" y=\"{text:.1}\" fill=\"#444\" font-size=\"11\" stroke=\"#fff\" stroke-width=\"3\" \
             paint-order=\"stroke\">{}</text>",
            escape(&shown)
        );
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::{LEFT, SPACE, WIDTH, beside, tick};

    #[test]
    fn names_stay_in_the_picture() {
        let late = (WIDTH - 60.0, WIDTH - 10.0);
        assert_eq!(beside(&[(300.0, 400.0)], 100.0), 400.0 + SPACE, "behind the last");
        assert_eq!(beside(&[(300.0, 400.0), late], 100.0), 400.0 + SPACE, "between two");
        assert_eq!(beside(&[late], 100.0), LEFT, "before the first");
        assert_eq!(beside(&[(LEFT, late.1), (300.0, 310.0)], 5.0), late.1 + SPACE, "a bar that lasts longer");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!([900.0, 1000.0, 1001.0, 4000.0, 20.0].map(tick), [100.0, 100.0, 200.0, 500.0, 2.0]);
    }
}
