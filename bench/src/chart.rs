//! The table as bars: how many times as fast, or as small, each line is, and its target.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use crate::report::{Measured, Report};

const WIDTH: u32 = 1_000;
const ROW: i32 = 24;
/// Where bars begin, their maximum length, and the length that represents 1 if all bars fit.
const LEFT: i32 = 470;
const LONGEST: f64 = 470.0;
const ONE: f64 = 80.0;

const MET: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const NOT_MET: RGBColor = RGBColor(0xf2, 0xa9, 0xa0);
const OTHER: RGBColor = RGBColor(0xbb, 0xbb, 0xbb);
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);

pub fn draw(report: &Report, file: &Path) -> Result<(), Box<dyn Error>> {
    let rows = i32::try_from(report.lines.len())?;
    let height = u32::try_from((rows + 3) * ROW)?;
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let most = report.lines.iter().map(|line| line.other.ratio().times.max(line.target.unwrap_or_default()));
    let one = ONE.min(LONGEST / most.fold(1.0, f64::max));
    let text = |size| ("sans-serif", size, &INK).into_text_style(&area);
    let at = |times: f64| LEFT + (times * one).round() as i32;
    area.draw_text("how many times as fast, or as small; a black mark is a target", &text(15), (LEFT, 8))?;
    for (place, (colour, meaning)) in (0..).zip([(MET, "met"), (NOT_MET, "not met"), (OTHER, "no target")]) {
        let left = 12 + place * 100;
        area.draw(&Rectangle::new([(left, 8), (left + 12, 20)], colour.filled()))?;
        area.draw_text(meaning, &text(13), (left + 18, 8))?;
    }
    for (row, line) in (0..).zip(&report.lines) {
        let top = (row + 2) * ROW;
        let Measured { ours, against, unit, target, .. } = line;
        let times = line.other.ratio().times;
        let label = if unit.starts_with("ns") { String::new() } else { format!(" ({unit})") };
        area.draw_text(&format!("{ours} vs {against}{label}"), &text(13), (12, top + 4))?;
        let colour = target.map_or(OTHER, |target| if times >= target { MET } else { NOT_MET });
        area.draw(&Rectangle::new([(LEFT, top), (at(times), top + ROW - 7)], colour.filled()))?;
        if let Some(target) = *target {
            area.draw(&PathElement::new(
                [(at(target), top - 3), (at(target), top + ROW - 4)],
                INK.stroke_width(2),
            ))?;
        }
        let end = at(times).max(target.map_or(0, at)) + 6;
        area.draw_text(&format!("{times:.2}"), &text(13), (end, top + 4))?;
    }
    area.present()?;
    Ok(())
}
