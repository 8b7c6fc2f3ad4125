//! The HTML page of a report: questions with their answers, failures, tables and plots. Every report is
//! turned into a [`Page`]; one template lays it out.

use minijinja::context;
use minijinja::value::{Serde, Value};
use schemas::report::{InputFile, Provenance};
use serde::Serialize;

use super::render;
use crate::output::bytes;

const TEMPLATE: &str = include_str!("page.html.jinja");
const STYLE: &str = include_str!("page.css");

/// Color and sign of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tone {
    Pass,
    Fail,
    /// Neither passed nor failed: a warning, or nothing to check.
    Odd,
    Plain,
}

/// A page that shows one report.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    /// Command that made the report.
    pub(crate) command: &'static str,
    /// Model or server that the report is about.
    pub(crate) subject: String,
    pub(crate) verdict: Option<(Tone, String)>,
    pub(crate) answers: Vec<Answer>,
    /// Names and values of the origin.
    pub(crate) facts: Vec<(&'static str, String)>,
    pub(crate) sections: Vec<Section>,
}

/// A question that the reader has, with its answer.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) question: &'static str,
    pub(crate) tone: Tone,
    pub(crate) answer: String,
    pub(crate) detail: String,
}

/// A part of a page. Empty parts are left out.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// Explanation after the title.
    pub(crate) note: String,
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
    /// True if the section is folded until it is clicked.
    pub(crate) is_folded: bool,
}

/// A table that turns into cards on narrow screens.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Debug, Serialize)]
pub(crate) struct Cell {
    text: String,
    tone: Option<Tone>,
    is_number: bool,
    /// Further lines.
    more: Vec<String>,
}

/// A plot with its title and explanation.
#[derive(Debug, Serialize)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) svg: String,
    pub(crate) note: String,
}

impl Table {
    pub(crate) fn new(columns: &[&'static str], rows: Vec<Vec<Cell>>) -> Table {
        Table {
            columns: columns.to_vec(),
            rows,
        }
    }
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            tone: None,
            is_number: false,
            more: Vec::new(),
        }
    }

    pub(crate) fn number(text: impl Into<String>) -> Cell {
        Cell {
            is_number: true,
            ..Cell::text(text)
        }
    }

    pub(crate) fn of(tone: Tone, text: impl Into<String>) -> Cell {
        Cell {
            tone: Some(tone),
            ..Cell::text(text)
        }
    }

    /// Adds lines after the first.
    pub(crate) fn with_lines(self, more: Vec<String>) -> Cell {
        Cell { more, ..self }
    }
}

impl Page {
    /// Renders the page: one file that needs no other.
    ///
    /// # Errors
    /// The template has a bug.
    pub(crate) fn html(mut self) -> anyhow::Result<String> {
        for section in &mut self.sections {
            section.tables.retain(|table| !table.rows.is_empty());
        }
        self.sections
            .retain(|section| !(section.tables.is_empty() && section.plots.is_empty()));
        let shown =
            context! { page => Serde(&self), style => Value::from_safe_string(STYLE.to_owned()) };
        render("page.html", TEMPLATE, shown)
    }
}

/// Lists date, program and machine.
pub(crate) fn program(provenance: Option<&Provenance>) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(p) = provenance {
        let commit = p.tool_commit.get(..10).unwrap_or(&p.tool_commit);
        facts.push(("Date", p.date.replace('T', " ").replace('Z', " UTC")));
        facts.push(("Program", format!("specrun {} ({commit})", p.tool_version)));
        facts.push(("Machine", p.cpu.name.clone()));
    }
    facts
}

/// Lists date, program, machine and backend.
pub(crate) fn origin(
    provenance: Option<&Provenance>,
    backend: &str,
    n_threads: u64,
) -> Vec<(&'static str, String)> {
    let mut facts = program(provenance);
    facts.push(match n_threads {
        // A server reports none.
        0 => ("Backend", backend.to_owned()),
        1 => ("Backend", format!("{backend}, 1 thread")),
        n => ("Backend", format!("{backend}, {n} threads")),
    });
    facts
}

/// Lists the model files, with their hashes.
pub(crate) fn files(provenance: Option<&Provenance>) -> Section {
    let row = |file: &InputFile| {
        vec![
            Cell::text(&file.name),
            Cell::text(file.file_type.as_deref().unwrap_or("unknown")),
            Cell::number(bytes(file.size_bytes)),
            Cell::text(&file.sha256),
        ]
    };
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    if let Some(provenance) = provenance {
        rows.extend(provenance.files.iter().map(row));
        rows.extend(provenance.prompts_sha256.as_ref().map(|sha256| {
            let prompts = [Cell::text("prompts"), Cell::text("-"), Cell::number("-")];
            prompts.into_iter().chain([Cell::text(sha256)]).collect()
        }));
    }
    Section {
        title: "Inputs".to_owned(),
        tables: vec![Table::new(&["file", "type", "size", "SHA-256"], rows)],
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names come from files, and from servers.
    #[test]
    fn hostile_names_are_escaped() {
        let hostile = "</title><script>alert(\"1\")</script>' onload='x";
        let page = Page {
            command: "specrun verify",
            subject: hostile.to_owned(),
            verdict: Some((Tone::Fail, hostile.to_owned())),
            answers: vec![Answer {
                question: "Is it safe to use?",
                tone: Tone::Pass,
                answer: hostile.to_owned(),
                detail: hostile.to_owned(),
            }],
            facts: vec![("Model", hostile.to_owned())],
            sections: vec![Section {
                title: hostile.to_owned(),
                note: hostile.to_owned(),
                tables: vec![Table::new(
                    &["name"],
                    vec![vec![
                        Cell::text(hostile).with_lines(vec![hostile.to_owned()]),
                    ]],
                )],
                plots: vec![Plot {
                    title: hostile.to_owned(),
                    svg: "<svg></svg>".to_owned(),
                    note: hostile.to_owned(),
                }],
                is_folded: true,
            }],
        };
        let html = page.html().unwrap();
        assert!(
            !html.contains("<script") && !html.contains("' onload"),
            "{html}"
        );
        assert_eq!(html.matches("&lt;script&gt;").count(), 12, "{html}");
    }

    #[test]
    fn empty_sections_are_left_out() {
        let page = Page {
            command: "specrun bench",
            subject: "m.gguf".to_owned(),
            verdict: None,
            answers: Vec::new(),
            facts: Vec::new(),
            sections: vec![Section {
                title: "Failed checks".to_owned(),
                tables: vec![Table::new(&["check"], Vec::new())],
                ..Section::default()
            }],
        };
        let html = page.html().unwrap();
        assert!(!html.contains("Failed checks"), "{html}");
    }
}
