//! The picture of `docs/scaling.md`.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use crate::measure::Outcome;

const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);

/// Calls a second at the busiest server over requests a second, both in powers of ten: a line for each way.
pub fn demand<const N: usize>(
    file: &Path,
    demands: &[f64; N],
    series: &[(&str, [(String, Outcome); N])],
) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(file, (760, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(
            "Calls a second at the busiest server: one key, 10,000 a second allowed",
            ("sans-serif", 15, &INK),
        )
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((demands[0]..demands[N - 1]).log_scale(), (10.0..2e7_f64).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.6))
        .label_style(("sans-serif", 11, &INK))
        .x_desc("requests a second")
        .draw()?;
    for (place, (name, rows)) in series.iter().enumerate() {
        let color = Palette99::pick(place).to_rgba();
        // Local shares make no calls, and zero has no place on this scale.
        let points: Vec<_> = demands
            .iter()
            .zip(rows)
            .map(|(&demand, (_, outcome))| (demand, outcome.busiest))
            .filter(|&(_, calls)| calls > 0.0)
            .collect();
        if points.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 11, &INK))
        .background_style(WHITE)
        .border_style(INK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
