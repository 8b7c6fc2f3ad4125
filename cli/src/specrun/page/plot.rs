//! Plots as SVG: axes with ticks, bars with ranges, reference lines. Text in them is escaped.

use std::fmt::Write;

use minijinja::HtmlEscape;

/// Width of every plot, in units of its coordinates.
const WIDTH: f64 = 360.0;
/// Mean width of a character of the labels.
const CHARACTER: f64 = 6.1;

/// Names of the axes of a plot, and a line that values are compared with.
pub(crate) struct Axes<'a> {
    /// Name of the axis of categories, or of x.
    pub(crate) across: &'a str,
    /// Name of the axis of values, or of y.
    pub(crate) up: &'a str,
    /// Smallest end of the axis of values; `None` to end at the largest value.
    pub(crate) top: Option<f64>,
    /// Value and name of a reference line.
    pub(crate) line: Option<(f64, String)>,
}

/// A value of a category.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// Value as text.
    pub(crate) text: String,
    /// Smallest and largest value.
    pub(crate) range: Option<(f64, f64)>,
    /// Number of observations, or another remark.
    pub(crate) note: String,
    /// True for a value that is not to be trusted: its bar is drawn in the color of failures.
    pub(crate) is_failed: bool,
}

/// A named point of a curve's plot.
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) label: String,
    pub(crate) is_failed: bool,
}

/// Positions on an axis of values.
struct Scale {
    top: f64,
    step: f64,
    digits: usize,
}

impl Scale {
    /// An axis from 0 to at least `largest`, with about four steps of 1, 2 or 5 times a power of ten.
    fn new(largest: f64) -> Scale {
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let power = 10f64.powf((largest / 4.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = steps.into_iter().find(|step| largest / step <= 5.0);
        let step = step.unwrap_or(largest);
        Scale {
            top: (largest / step - 1e-9).ceil() * step,
            step,
            digits: (-(step.log10() + 1e-9).floor()).max(0.0) as usize,
        }
    }

    /// Values of the ticks, with their labels.
    fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let n = (self.top / self.step).round() as usize;
        let value = |i: usize| i as f64 * self.step;
        (0..=n).map(move |i| (value(i), format!("{:.*}", self.digits, value(i))))
    }
}

/// Draws upright bars, for ordered categories.
pub(crate) fn columns(axes: &Axes<'_>, bars: &[Bar]) -> String {
    // The name of the line is above all bars.
    let top = if axes.line.is_some() { 32.0 } else { 18.0 };
    let (left, right, bottom) = (46.0, WIDTH - 4.0, 150.0);
    let scale = Scale::new(largest(axes, bars));
    let y = |value: f64| bottom - (bottom - top) * value / scale.top;
    let slot = (right - left) / bars.len().max(1) as f64;
    let mut svg = Svg::new(200.0, axes);
    svg.ticks_up(&scale, (left, right), y);
    let widest =
        |text: fn(&Bar) -> &str| bars.iter().map(|bar| width(text(bar))).fold(0.0, f64::max);
    let every = (widest(|bar| &bar.label) / slot + 0.3).ceil().max(1.0) as usize;
    let has_text = widest(|bar| &bar.text) < slot;
    let has_notes = widest(|bar| &bar.note) < slot;
    for (i, bar) in bars.iter().enumerate() {
        let x = left + slot * (i as f64 + 0.5);
        let half = (slot * 0.36).min(22.0);
        let tip = format!("{}: {} {}", bar.label, bar.text, bar.note);
        let size = (2.0 * half, y(0.0) - y(bar.value));
        svg.bar(
            (x - half, y(bar.value)),
            size,
            bar.is_failed,
            tip.trim_end(),
        );
        if let Some((low, high)) = bar.range.filter(|_| slot > 12.0) {
            svg.line("range", (x, y(low)), (x, y(high)));
            for end in [low, high] {
                svg.line("range", (x - 3.0, y(end)), (x + 3.0, y(end)));
            }
        }
        if has_text {
            let highest = bar.range.map_or(bar.value, |(_, high)| high.max(bar.value));
            svg.text("value", (x, y(highest) - 5.0), "middle", &bar.text);
        }
        if i % every == 0 {
            svg.text("tick", (x, bottom + 14.0), "middle", &bar.label);
        }
        if has_notes {
            svg.text("tick", (x, bottom + 27.0), "middle", &bar.note);
        }
    }
    svg.line("axis", (left, bottom), (right, bottom));
    if let Some((value, name)) = &axes.line {
        svg.line("reference", (left, y(*value)), (right, y(*value)));
        svg.text("reference", (right, 11.0), "end", name);
    }
    svg.text("name", ((left + right) / 2.0, 194.0), "middle", axes.across);
    svg.upright_name(axes.up, (top + bottom) / 2.0);
    svg.end()
}

/// Draws one bar per line, for categories with long names.
pub(crate) fn rows(axes: &Axes<'_>, bars: &[Bar]) -> String {
    let labels = bars.iter().map(|bar| width(&bar.label)).fold(0.0, f64::max);
    let (left, right, top, row) = (labels.min(150.0) + 8.0, WIDTH - 40.0, 18.0, 24.0);
    let bottom = top + row * bars.len() as f64;
    let scale = Scale::new(largest(axes, bars));
    let x = |value: f64| left + (right - left) * value / scale.top;
    let mut svg = Svg::new(bottom + 36.0, axes);
    for (value, label) in scale.ticks() {
        svg.line("grid", (x(value), top), (x(value), bottom));
        svg.text("tick", (x(value), bottom + 14.0), "middle", &label);
    }
    let middle = |i: usize| top + row * (i as f64 + 0.5);
    for (i, bar) in bars.iter().enumerate() {
        let middle = middle(i);
        let tip = format!("{}: {} {}", bar.label, bar.text, bar.note);
        let corner = (left, middle - row * 0.3);
        svg.bar(
            corner,
            (x(bar.value) - left, row * 0.6),
            bar.is_failed,
            tip.trim_end(),
        );
        svg.text(
            "label",
            (left - 6.0, middle + 4.0),
            "end",
            &shortened(&bar.label, 150.0),
        );
        if let Some((low, high)) = bar.range {
            svg.line("range", (x(low), middle), (x(high), middle));
            for end in [low, high] {
                svg.line("range", (x(end), middle - 3.0), (x(end), middle + 3.0));
            }
        }
    }
    svg.line("axis", (left, top), (left, bottom));
    if let Some((value, name)) = &axes.line {
        svg.line("reference", (x(*value), top - 2.0), (x(*value), bottom));
        let half = width(name) / 2.0;
        let at = x(*value).clamp(half, WIDTH - half);
        svg.text("reference", (at, top - 6.0), "middle", name);
    }
    // Over the reference line, which would strike them through.
    for (i, bar) in bars.iter().enumerate() {
        let end = bar.range.map_or(bar.value, |(_, high)| high.max(bar.value));
        let at = (x(end) + 5.0, middle(i) + 4.0);
        svg.text("value", at, "start", &bar.text);
    }
    svg.text(
        "name",
        ((left + right) / 2.0, bottom + 30.0),
        "middle",
        axes.up,
    );
    svg.end()
}

/// Draws a curve over whole numbers from 1, the area under it, and named points.
pub(crate) fn curve(axes: &Axes<'_>, values: &[f64], points: &[Point]) -> String {
    let (left, right, top, bottom) = (46.0, WIDTH - 12.0, 12.0, 170.0);
    let highest = points.iter().map(|point| point.y);
    let scale = Scale::new(values.iter().copied().chain(highest).fold(1.0, f64::max));
    let last = values.len().max(2) as f64;
    let x = |n: f64| left + (right - left) * (n - 1.0) / (last - 1.0);
    let y = |value: f64| bottom - (bottom - top) * value / scale.top;
    let mut svg = Svg::new(206.0, axes);
    svg.ticks_up(&scale, (left, right), y);
    let every = (values.len() / 10 + 1).next_power_of_two();
    let line: Vec<String> = (1..=values.len())
        .zip(values)
        .map(|(n, &value)| format!("{:.1},{:.1}", x(n as f64), y(value)))
        .collect();
    let line = line.join(" ");
    svg.add(&format!(
        r#"<polygon points="{:.1},{bottom:.1} {line} {:.1},{bottom:.1}"/><polyline points="{line}"/>"#,
        x(1.0),
        x(values.len() as f64)
    ));
    for (n, &value) in (1..=values.len()).zip(values) {
        let tip = format!("{n}: {value:.2}");
        svg.dot("dot", (x(n as f64), y(value)), 2.5, &tip);
        if n == 1 || n % every == 0 {
            svg.text(
                "tick",
                (x(n as f64), bottom + 14.0),
                "middle",
                &n.to_string(),
            );
        }
    }
    svg.line("axis", (left, bottom), (right, bottom));
    if let Some((value, name)) = &axes.line {
        svg.line("reference", (left, y(*value)), (right, y(*value)));
        svg.text("reference", (right, y(*value) - 4.0), "end", name);
    }
    let mut sorted: Vec<&Point> = points.iter().collect();
    sorted.sort_by(|a, b| b.y.total_cmp(&a.y));
    let mut lowest = 0.0;
    for point in sorted {
        let class = if point.is_failed {
            "point failed"
        } else {
            "point"
        };
        let at = (x(point.x.clamp(1.0, last)), y(point.y));
        svg.dot(class, at, 5.0, &format!("{}: {:.2}", point.label, point.y));
        let (shift, anchor) = match at.0 > (left + right) / 2.0 {
            true => (-9.0, "end"),
            false => (9.0, "start"),
        };
        // Labels of points with equal values are written one below the other.
        let line = f64::max(at.1 + 4.0, lowest + 12.0);
        lowest = line;
        let label = shortened(&point.label, 200.0);
        svg.text("value", (at.0 + shift, line), anchor, &label);
    }
    svg.text("name", ((left + right) / 2.0, 202.0), "middle", axes.across);
    svg.upright_name(axes.up, (top + bottom) / 2.0);
    svg.end()
}

/// A field of a heat map.
pub(crate) struct Field {
    /// Value as text.
    pub(crate) text: String,
    /// Strength of the color, from 0 to 1.
    pub(crate) heat: f64,
    /// Class of the color: `bar`, `gain` or `loss`.
    pub(crate) class: &'static str,
    /// Explanation.
    pub(crate) note: String,
}

/// Draws values of two categories as colored fields: a row for each name in `rows`, a column for each in `columns`.
pub(crate) fn heat_map(
    axes: &Axes<'_>,
    columns: &[String],
    rows: &[String],
    field: impl Fn(usize, usize) -> Option<Field>,
) -> String {
    const HEIGHT: f64 = 30.0;
    let names = rows.iter().map(|row| width(row)).fold(0.0, f64::max);
    let (left, right, top) = (names.min(110.0) + 8.0, WIDTH - 4.0, 4.0);
    let slot = (right - left) / columns.len().max(1) as f64;
    let bottom = top + HEIGHT * rows.len() as f64;
    let mut svg = Svg::new(bottom + 34.0, axes);
    for (j, row) in rows.iter().enumerate() {
        let y = top + HEIGHT * j as f64;
        let name = shortened(row, 110.0);
        svg.text("tick", (left - 6.0, y + HEIGHT / 2.0 + 4.0), "end", &name);
        for (i, column) in columns.iter().enumerate() {
            let x = left + slot * i as f64;
            let Some(found) = field(i, j) else { continue };
            let tip = format!("{row}, {column}: {} {}", found.text, found.note);
            let (heat, class) = (0.08 + 0.72 * found.heat.clamp(0.0, 1.0), found.class);
            svg.add(&format!(
                r#"<rect class="{class}" fill-opacity="{heat:.2}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" rx="2"><title>{}</title></rect>"#,
                x + 1.0,
                y + 1.0,
                slot - 2.0,
                HEIGHT - 2.0,
                HtmlEscape(tip.trim_end())
            ));
            if width(&found.text) < slot {
                let middle = (x + slot / 2.0, y + HEIGHT / 2.0 + 4.0);
                svg.text("value", middle, "middle", &found.text);
            }
        }
    }
    let widest = columns
        .iter()
        .map(|column| width(column))
        .fold(0.0, f64::max);
    let every = (widest / slot + 0.2).ceil().max(1.0) as usize;
    for (i, column) in columns.iter().enumerate().filter(|(i, _)| i % every == 0) {
        let x = left + slot * (i as f64 + 0.5);
        svg.text("tick", (x, bottom + 14.0), "middle", column);
    }
    svg.text(
        "name",
        ((left + right) / 2.0, bottom + 28.0),
        "middle",
        axes.across,
    );
    svg.end()
}

fn largest(axes: &Axes<'_>, bars: &[Bar]) -> f64 {
    let ends = bars
        .iter()
        .map(|bar| bar.range.map_or(bar.value, |(_, high)| high.max(bar.value)));
    let line = axes.line.iter().map(|&(value, _)| value);
    ends.chain(line).chain(axes.top).fold(0.0, f64::max)
}

fn width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// Cuts text to a width.
fn shortened(text: &str, limit: f64) -> String {
    if width(text) <= limit {
        return text.to_owned();
    }
    let n = (limit / CHARACTER) as usize - 1;
    text.chars().take(n).chain(['…']).collect()
}

/// An image under construction.
struct Svg(String);

impl Svg {
    fn new(height: f64, axes: &Axes<'_>) -> Svg {
        let name = format!("{} by {}", axes.up, axes.across);
        let name = HtmlEscape(&name);
        Svg(format!(
            r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">"#
        ))
    }

    fn add(&mut self, element: &str) {
        self.0.push_str(element);
    }

    fn bar(&mut self, (x, y): (f64, f64), (w, h): (f64, f64), is_failed: bool, tip: &str) {
        let class = if is_failed { "bar failed" } else { "bar" };
        let _ = write!(
            self.0,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" rx="1.5"><title>{}</title></rect>"#,
            HtmlEscape(tip)
        );
    }

    fn dot(&mut self, class: &str, (x, y): (f64, f64), r: f64, tip: &str) {
        let _ = write!(
            self.0,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{r}"><title>{}</title></circle>"#,
            HtmlEscape(tip)
        );
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = write!(
            self.0,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
        let _ = write!(
            self.0,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            HtmlEscape(text)
        );
    }

    /// Writes ticks and grid lines of a vertical axis.
    fn ticks_up(&mut self, scale: &Scale, (left, right): (f64, f64), y: impl Fn(f64) -> f64) {
        for (value, label) in scale.ticks() {
            self.line("grid", (left, y(value)), (right, y(value)));
            self.text("tick", (left - 5.0, y(value) + 3.5), "end", &label);
        }
    }

    fn upright_name(&mut self, name: &str, y: f64) {
        let _ = write!(
            self.0,
            r#"<text class="name" transform="translate(9 {y:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
            HtmlEscape(name)
        );
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>");
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        let ticks = |largest| {
            let scale = Scale::new(largest);
            let ticks = scale.ticks().map(|(_, label)| label);
            ticks.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ticks(1.0), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(ticks(273.0), "0 100 200 300");
        assert_eq!(ticks(3.26), "0 1 2 3 4");
        assert_eq!(ticks(0.0), ticks(1.0));
        assert_eq!(ticks(1500.0), "0 500 1000 1500");
    }

    #[test]
    fn labels_are_escaped() {
        let bar = |label: &str| Bar {
            label: label.to_owned(),
            value: 1.0,
            text: label.to_owned(),
            range: Some((0.5, 2.0)),
            note: label.to_owned(),
            is_failed: true,
        };
        let hostile = "<i>\"&'";
        let axes = Axes {
            across: hostile,
            up: hostile,
            top: None,
            line: Some((1.0, hostile.to_owned())),
        };
        let points = [Point {
            x: 1.0,
            y: 1.0,
            label: hostile.to_owned(),
            is_failed: false,
        }];
        for svg in [
            columns(&axes, &[bar(hostile)]),
            rows(&axes, &[bar(hostile)]),
            curve(&axes, &[1.0, 2.0], &points),
            heat_map(
                &axes,
                &[hostile.to_owned()],
                &[hostile.to_owned()],
                |_, _| {
                    Some(Field {
                        text: hostile.to_owned(),
                        heat: 2.0,
                        class: "gain",
                        note: hostile.to_owned(),
                    })
                },
            ),
        ] {
            assert!(!svg.contains("<i>"), "{svg}");
            assert!(svg.contains("&lt;i&gt;&quot;&amp;&#x27;"), "{svg}");
        }
    }
}
