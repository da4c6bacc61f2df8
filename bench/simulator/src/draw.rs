//! The pictures of `docs/scaling.md`: a line for each way to share the limit, over requests per second.

use std::error::Error;
use std::path::Path;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use crate::measure::{Outcome, count};

const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);

/// The width of a README in pixels.
const WIDTH: u32 = 830;
/// Text sizes in plotters' unit, of which 1.24 are a pixel: 13 and 15 pixels.
const TEXT: f64 = 13.0 * 1.24;
const TITLE: f64 = 15.0 * 1.24;

/// A color for each way, which colour-blind readers can also tell apart (Okabe and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x33, 0x33, 0x33),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
];

/// A measure, drawn in its own picture.
struct Picture {
    /// The file is `scaling-NAME.svg`.
    name: &'static str,
    caption: &'static str,
    value: fn(&Outcome) -> f64,
    scale: Scale,
}

/// The vertical scale of a picture.
enum Scale {
    /// Logarithmic between two numbers. Zero is not shown.
    Powers(f64, f64),
    /// Linear from zero to a number.
    Even(f64),
}

const PICTURES: [Picture; 3] = [
    Picture {
        name: "calls",
        caption: "Calls a second at the busiest server",
        value: |outcome| outcome.busiest,
        scale: Scale::Powers(10.0, 2e7),
    },
    Picture {
        name: "unused",
        caption: "The part of the limit that went unused, in percent",
        value: |outcome| outcome.unused * 100.0,
        scale: Scale::Even(70.0),
    },
    Picture {
        name: "fairness",
        caption: "Fairness among the gateways: 1 is equal",
        value: |outcome| outcome.fairness,
        scale: Scale::Even(1.05),
    },
];

/// Draws all pictures into a folder.
pub fn all<const N: usize>(
    folder: &Path,
    demands: &[f64; N],
    series: &[(&str, [(String, Outcome); N])],
) -> Result<(), Box<dyn Error>> {
    for picture in PICTURES {
        let file = folder.join(format!("scaling-{}.svg", picture.name));
        let lines: Vec<(&str, Vec<(f64, f64)>)> = series
            .iter()
            .map(|(name, rows)| {
                let values = rows.iter().map(|(_, outcome)| (picture.value)(outcome));
                (*name, demands.iter().copied().zip(values).collect())
            })
            .collect();
        let most = lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(0.0, f64::max);
        let (least, most) = match picture.scale {
            Scale::Powers(least, most) => (least, most),
            // Numbers that differ from the page's may need more room.
            Scale::Even(usual) => (0.0, usual.max(most * 1.05)),
        };
        draw(&file, &picture, (demands[0], demands[N - 1]), (least, most), &lines)?;
    }
    Ok(())
}

fn draw(
    file: &Path,
    picture: &Picture,
    demands: (f64, f64),
    (least, most): (f64, f64),
    lines: &[(&str, Vec<(f64, f64)>)],
) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(file, (WIDTH, 340)).into_drawing_area();
    area.fill(&WHITE)?;
    // The right side is only for the names of the lines.
    let (left, right) = area.split_horizontally(620);
    let mut builder = ChartBuilder::on(&left);
    builder.caption(picture.caption, ("sans-serif", TITLE, &INK)).margin(10);
    builder.x_label_area_size(46).y_label_area_size(88);
    let x = (demands.0..demands.1).log_scale();
    match picture.scale {
        Scale::Powers(..) => fill(builder.build_cartesian_2d(x, (least..most).log_scale())?, lines, least)?,
        Scale::Even(_) => fill(builder.build_cartesian_2d(x, least..most)?, lines, least)?,
    }
    for (place, (name, _)) in lines.iter().enumerate() {
        let y = 60 + 22 * i32::try_from(place)?;
        right.draw(&PathElement::new([(4, y), (24, y)], color(place).stroke_width(2)))?;
        right.draw(&Circle::new((14, y), 3, color(place)))?;
        right.draw_text(name, &("sans-serif", TEXT, &INK).into_text_style(&right), (30, y - 8))?;
    }
    area.present()?;
    Ok(())
}

/// Draws the grid and the lines.
fn fill<Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
    mut chart: ChartContext<'_, SVGBackend<'_>, Cartesian2d<LogCoord<f64>, Y>>,
    lines: &[(&str, Vec<(f64, f64)>)],
    least: f64,
) -> Result<(), Box<dyn Error>> {
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.6))
        .label_style(("sans-serif", TEXT, &INK))
        .x_desc("requests a second")
        .x_label_formatter(&|number| label(*number))
        .y_label_formatter(&|number| label(*number))
        .draw()?;
    for (place, (_, points)) in lines.iter().enumerate() {
        let points: Vec<_> = points.iter().copied().filter(|point| point.1 >= least).collect();
        chart.draw_series(LineSeries::new(points, color(place).stroke_width(2)).point_size(3))?;
    }
    Ok(())
}

/// Formats a number of an axis as short as possible.
fn label(number: f64) -> String {
    if number.abs() < 10.0 && number.fract() != 0.0 { format!("{number:.1}") } else { count(number) }
}

fn color(place: usize) -> RGBColor {
    COLORS[place % COLORS.len()]
}
