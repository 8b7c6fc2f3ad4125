//! Findings and failed checks by file, for code scanning services and job logs: SARIF 2.1.0, and GitHub's
//! workflow commands.

use std::fmt::Write;

use schemas::report::{Check, FailedCheck, FitFinding, Severity, VerifyReport};
use serde::Serialize;
use serde_json::{Value, json};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// A problem of one file.
struct Finding {
    /// Kind of damage, or the check that failed.
    rule: String,
    /// `error` or `warning`, in both formats.
    level: &'static str,
    file: String,
    /// Tensor, key or speculator; `None` for the whole file.
    subject: Option<String>,
    text: String,
}

/// Returns the findings of the preflight, then the other checks that failed.
fn findings(report: &VerifyReport) -> Vec<Finding> {
    let found = report.fit.iter().flat_map(|fit| &fit.findings);
    // Failed preflight checks repeat its findings.
    let failed = report.failed.iter().filter(|f| f.check != Check::Fit);
    let failed = failed.map(|failed| Finding::of_check(failed, &report.model));
    found.map(Finding::of_preflight).chain(failed).collect()
}

impl Finding {
    fn of_preflight(finding: &FitFinding) -> Finding {
        Finding {
            rule: name(&finding.cause),
            level: match finding.severity {
                Severity::Certain => "error",
                Severity::Odd => "warning",
            },
            file: finding.file.clone(),
            subject: Some(finding.subject.clone()),
            text: format!("{}: {}", finding.subject, finding.message),
        }
    }

    fn of_check(failed: &FailedCheck, model: &str) -> Finding {
        let mut text = String::new();
        for part in [&failed.speculator, &failed.prompt_id]
            .into_iter()
            .flatten()
        {
            text += part;
            text += ": ";
        }
        Finding {
            rule: name(&failed.check),
            level: "error",
            file: model.to_owned(),
            subject: failed.speculator.clone(),
            text: text + &failed.message,
        }
    }

    fn sarif(&self) -> Value {
        let mut location = json!({
            "physicalLocation": {
                "artifactLocation": { "uri": uri(&self.file) },
                // Services require a line; files of weights have none.
                "region": { "startLine": 1 },
            },
        });
        if let Some(subject) = &self.subject {
            location["logicalLocations"] = json!([{ "name": subject }]);
        }
        json!({
            "ruleId": self.rule,
            "level": self.level,
            "message": { "text": self.text },
            "locations": [location],
        })
    }
}

/// Renders SARIF.
///
/// # Errors
/// The report cannot be converted to JSON.
pub(super) fn sarif(report: &VerifyReport) -> anyhow::Result<String> {
    let findings = findings(report);
    let mut rules: Vec<&str> = findings.iter().map(|f| f.rule.as_str()).collect();
    rules.sort_unstable();
    rules.dedup();
    let rules: Vec<Value> = rules.into_iter().map(|id| json!({ "id": id })).collect();
    let results: Vec<Value> = findings.iter().map(Finding::sarif).collect();
    let sarif = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "specrun verify",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            "results": results,
        }],
    });
    Ok(serde_json::to_string_pretty(&sarif)? + "\n")
}

/// Renders workflow commands, which a job on GitHub shows as annotations of files.
///
/// # Errors
/// Never; the signature is that of all formats.
pub(super) fn github(report: &VerifyReport) -> anyhow::Result<String> {
    let mut commands = String::new();
    for finding in findings(report) {
        let Finding { rule, level, .. } = &finding;
        let (file, text) = (property(&finding.file), data(&finding.text));
        writeln!(commands, "::{level} file={file},title={rule}::{text}")?;
    }
    Ok(commands)
}

/// Escapes the text of a workflow command.
fn data(text: &str) -> String {
    let text = text.replace('%', "%25");
    text.replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Returns the name of a variant in reports.
fn name(variant: &impl Serialize) -> String {
    let value = serde_json::to_value(variant).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns the URI of a path: relative for a relative path.
fn uri(path: &str) -> String {
    let mut uri = String::new();
    if path.starts_with('/') {
        uri += "file://";
    }
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                uri.push(byte.into());
            }
            _ => uri += &format!("%{byte:02X}"),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_uris() {
        assert_eq!(uri("models/a b.gguf"), "models/a%20b.gguf");
        assert_eq!(uri("/m/ü.gguf"), "file:///m/%C3%BC.gguf");
    }

    #[test]
    fn workflow_commands_are_escaped() {
        assert_eq!(data("50 %\nof a:b"), "50 %25%0Aof a:b");
        assert_eq!(property("c:\\a,b"), "c%3A\\a%2Cb");
    }
}
