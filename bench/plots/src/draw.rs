//! Draws the recorded replies: admitted and refused calls over time.
//!
//! Admitted calls are filled and refused ones hollow, so that the two differ without their colours, which are
//! nearly the same as in the playground.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::record::{Answered, recorded};
use crate::{LIMITERS, Limiter};

/// The picture's time axis and the width of a bar, in milliseconds.
const END: f64 = 7_000.0;
const BAR: f64 = 100.0;
/// The empty space on each side of a bar, in milliseconds.
const GAP: f64 = 8.0;
/// The traffic has at most ten calls in a bar.
const TOP: f64 = 11.0;

/// The width of a README in pixels.
pub const WIDTH: u32 = 830;
/// Sizes of text in plotters' unit, of which 1.24 are a pixel: 13 and 15 pixels.
pub const TEXT: f64 = 13.0 * 1.24;
pub const TITLE: f64 = 15.0 * 1.24;

const ADMITTED: RGBColor = RGBColor(0x00, 0x9e, 0x73);
const REFUSED: RGBColor = RGBColor(0xd5, 0x3e, 0x00);
pub const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the limiters that differ side by side, `all.svg`, and each of the others by itself, `<name>.svg`.
pub fn draw(answers: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    for limiter in LIMITERS.iter().filter(|limiter| !limiter.beside) {
        let file = folder.join(format!("{}.svg", limiter.name));
        let area = SVGBackend::new(&file, (WIDTH, 240)).into_drawing_area();
        area.fill(&WHITE)?;
        panel(&area, limiter, &recorded(answers, limiter.name)?)?;
        legend(&area)?;
        area.present()?;
    }
    let file = folder.join("all.svg");
    let area = SVGBackend::new(&file, (WIDTH, 690)).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, panels) = area.split_vertically(30);
    legend(&head)?;
    let shown = LIMITERS.iter().filter(|limiter| limiter.beside);
    for (area, limiter) in panels.split_evenly((3, 2)).iter().zip(shown) {
        panel(area, limiter, &recorded(answers, limiter.name)?)?;
    }
    area.present()?;
    Ok(())
}

/// One limiter: a bar for each tenth of a second, admitted calls below, refused ones on top.
fn panel(area: &Area, limiter: &Limiter, calls: &[Answered]) -> Result<(), Box<dyn Error>> {
    let admitted = calls.iter().filter(|call| !call.limited).count();
    let title = format!("{}, {admitted} of {} admitted", limiter.title, calls.len());
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", TITLE, &INK))
        .margin(8)
        .margin_right(14)
        .x_label_area_size(28)
        .y_label_area_size(34)
        .build_cartesian_2d(-BAR / 1e3..END / 1e3, 0.0..TOP)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.6))
        .label_style(("sans-serif", TEXT, &INK))
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|seconds| format!("{seconds:.0} s"))
        .y_label_formatter(&|calls| format!("{calls:.0}"))
        .draw()?;
    // A bar is centred on its tenth of a second, so that a call which comes a little late is in the same bar.
    let mut left = -BAR / 2.0;
    while left < END {
        let within = |at: f64| at >= left && at < left + BAR;
        // A reservation is drawn at the end of its wait, a refusal at the instant of its call.
        let admitted = count(calls, |call| !call.limited && within(call.at + call.wait));
        let refused = count(calls, |call| call.limited && within(call.at));
        let (from, to) = ((left + GAP) / 1e3, (left + BAR - GAP) / 1e3);
        let stack = [(from, admitted), (to, admitted + refused)];
        if admitted > 0.0 {
            chart.draw_series([Rectangle::new([(from, 0.0), (to, admitted)], ADMITTED.filled())])?;
        }
        if refused > 0.0 {
            chart.draw_series([Rectangle::new(stack, REFUSED.mix(0.2).filled())])?;
            chart.draw_series([Rectangle::new(stack, REFUSED.stroke_width(1))])?;
        }
        left += BAR;
    }
    Ok(())
}

/// The legend, in the upper right corner.
fn legend(area: &Area) -> Result<(), Box<dyn Error>> {
    const SIDE: i32 = 11;
    let (width, _) = area.dim_in_pixel();
    let place = |from_the_right: i32| (i32::try_from(width).unwrap_or(0) - from_the_right, 12);
    let square = |(x, y): (i32, i32)| [(x, y), (x + SIDE, y + SIDE)];
    let text = ("sans-serif", TEXT, &INK).into_text_style(area);
    area.draw(&Rectangle::new(square(place(196)), ADMITTED.filled()))?;
    area.draw_text("admitted", &text, place(179))?;
    area.draw(&Rectangle::new(square(place(93)), REFUSED.mix(0.2).filled()))?;
    area.draw(&Rectangle::new(square(place(93)), REFUSED.stroke_width(1)))?;
    area.draw_text("refused", &text, place(76))?;
    Ok(())
}

fn count(calls: &[Answered], which: impl Fn(&Answered) -> bool) -> f64 {
    calls.iter().filter(|call| which(call)).map(|_| 1.0).sum()
}
