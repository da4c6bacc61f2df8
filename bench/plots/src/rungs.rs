//! The ways to fewer calls: decisions per second of the server's core, by keys, refusals and callers.

use std::error::Error;
use std::fs;
use std::path::Path;

use plotters::prelude::*;

use crate::draw::{INK, TEXT, TITLE, WIDTH};

const WAYS: [(&str, RGBColor); 4] = [
    ("direct calls", RGBColor(0x88, 0x88, 0x88)),
    ("remembered refusals", RGBColor(0xd5, 0x3e, 0x00)),
    ("merged calls", RGBColor(0x00, 0x72, 0xb2)),
    ("leases", RGBColor(0x00, 0x9e, 0x73)),
];
const CALLERS: [&str; 3] = ["1", "8", "64"];
const DECADES: std::ops::Range<f64> = 4.0..8.5;

/// Draws `scaling-rungs.svg` from the rows of the measurement.
pub fn draw(rows: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(rows)?;
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    let file = folder.join("scaling-rungs.svg");
    let area = SVGBackend::new(&file, (WIDTH, 520)).into_drawing_area();
    area.fill(&WHITE)?;
    let (head, panels) = area.split_vertically(30);
    for (place, (name, color)) in (0..).zip(WAYS) {
        let left = 60 + 190 * place;
        head.draw(&Rectangle::new([(left, 10), (left + 12, 22)], color.filled()))?;
        head.draw(&Text::new(name, (left + 18, 9), ("sans-serif", TEXT).into_font().color(&INK)))?;
    }
    let cases = ["1", "10000"].into_iter().flat_map(|keys| ["0", "50", "99"].map(|refused| (keys, refused)));
    for (panel, (keys, refused)) in panels.split_evenly((2, 3)).iter().zip(cases) {
        let keys_text = if keys == "1" { "1 key" } else { "10,000 keys" };
        let mut chart = ChartBuilder::on(panel)
            .margin(8)
            .caption(format!("{keys_text}, {refused} % refused"), ("sans-serif", TITLE, &INK))
            .x_label_area_size(22)
            .y_label_area_size(40)
            .build_cartesian_2d(0.0..15.0, DECADES)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(0)
            .y_labels(5)
            .y_label_formatter(&|decade| format!("10^{decade:.0}"))
            .label_style(("sans-serif", TEXT, &INK))
            .draw()?;
        for (group, callers) in (0..).zip(CALLERS) {
            let left = f64::from(group) * 5.0 + 0.5;
            for (place, (way, color)) in (0..).zip(WAYS) {
                let row = rows.iter().find(|row| row[..4] == [keys, refused, callers, way]);
                let per_core: f64 = row.ok_or("a row is missing")?[5].parse()?;
                let (x, top) = (left + f64::from(place), per_core.max(1.0).log10());
                chart.draw_series([Rectangle::new([(x, DECADES.start), (x + 0.9, top)], color.filled())])?;
            }
            let (x, y) = chart.backend_coord(&(left + 1.5, DECADES.start));
            let (left, top) = panel.get_base_pixel();
            let text = if callers == "1" { "1 caller".to_owned() } else { format!("{callers} callers") };
            let style = ("sans-serif", TEXT).into_font().color(&INK);
            panel.draw(&Text::new(text, (x - left - 22, y - top + 5), style))?;
        }
    }
    area.present()?;
    Ok(())
}
