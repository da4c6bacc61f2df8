//! Draws the recorded replies: admitted and refused calls over time.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::record::{Answered, recorded};
use crate::{LIMITERS, Limiter};

/// The picture's time axis in milliseconds, and the width of a bar.
const END: f64 = 7_000.0;
const BAR: f64 = 100.0;
/// The traffic has at most ten calls in a bar.
const TOP: f64 = 11.0;

const ADMITTED: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const REFUSED: RGBColor = RGBColor(0xf2, 0xa9, 0xa0);
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub fn draw(folder: &Path) -> Result<(), Box<dyn Error>> {
    for limiter in &LIMITERS {
        let file = folder.join(format!("{}.svg", limiter.name));
        let area = SVGBackend::new(&file, (760, 240)).into_drawing_area();
        area.fill(&WHITE)?;
        panel(&area, limiter, &recorded(folder, limiter.name)?)?;
        area.present()?;
    }
    let file = folder.join("all.svg");
    let area = SVGBackend::new(&file, (1140, 600)).into_drawing_area();
    area.fill(&WHITE)?;
    for (area, limiter) in area.split_evenly((3, 3)).iter().zip(&LIMITERS) {
        panel(area, limiter, &recorded(folder, limiter.name)?)?;
    }
    area.present()?;
    Ok(())
}

/// One limiter: a bar for each tenth of a second, admitted calls below, refused ones on top.
fn panel(area: &Area, limiter: &Limiter, calls: &[Answered]) -> Result<(), Box<dyn Error>> {
    let admitted = calls.iter().filter(|call| !call.limited).count();
    let title = format!("{}, {admitted} of {} admitted", limiter.title, calls.len());
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15, &INK))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(34)
        .build_cartesian_2d(0.0..END / 1e3, 0.0..TOP)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.6))
        .label_style(("sans-serif", 11, &INK))
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|seconds| format!("{seconds:.0} s"))
        .y_label_formatter(&|calls| format!("{calls:.0}"))
        .draw()?;
    let mut left = 0.0;
    while left < END {
        let within = |at: f64| at >= left && at < left + BAR;
        // A reservation is drawn at the end of its wait, a refusal at the instant of its call.
        let admitted = count(calls, |call| !call.limited && within(call.at + call.wait));
        let refused = count(calls, |call| call.limited && within(call.at));
        let (from, to) = ((left + 8.0) / 1e3, (left + BAR - 8.0) / 1e3);
        chart.draw_series([
            Rectangle::new([(from, 0.0), (to, admitted)], ADMITTED.filled()),
            Rectangle::new([(from, admitted), (to, admitted + refused)], REFUSED.filled()),
        ])?;
        left += BAR;
    }
    Ok(())
}

fn count(calls: &[Answered], which: impl Fn(&Answered) -> bool) -> f64 {
    calls.iter().filter(|call| which(call)).map(|_| 1.0).sum()
}
