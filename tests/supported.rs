//! The tables of "What is supported" in README.md list what the code has, no more and no less.

use std::collections::BTreeSet;
use std::fs;

use kernels::types::codecs;
use quantize::FType;
use runner::speculate::SpecType;
use schemas::arch::heads::{self, Drafting};
use schemas::arch::{ArchSpec, Numbering, all};

use crate::util::root;

/// Returns the section of the README.
fn section() -> String {
    section_of("README.md", "What is supported")
}

fn section_of(document: &str, title: &str) -> String {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let (_, rest) = text.split_once(&format!("\n## {title}\n")).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

/// Returns the rows of the README's table whose header begins with this cell.
fn table(header: &str) -> Vec<Vec<String>> {
    table_in(&section(), header)
}

fn table_in(section: &str, header: &str) -> Vec<Vec<String>> {
    let start = format!("| {header} |");
    let lines = section.lines().skip_while(|line| !line.starts_with(&start));
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    let rows = rows.map(|line| {
        let line = line.strip_prefix('|').unwrap().strip_suffix('|').unwrap();
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    assert!(!rows.is_empty(), "no table {header}");
    rows
}

/// Returns the names in backticks.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// True if the heads of an architecture are several, one for each token of a draft.
fn has_chained_heads(arch: &ArchSpec) -> bool {
    let head = arch.mtp.as_ref();
    head.is_some_and(|head| head.numbering == Numbering::Zero && head.own_ends.is_empty())
        || arch.blocks.head_counts && !arch.blocks.single_part
}

#[test]
fn architectures_are_those_of_the_code() {
    let rows = table("architecture");
    let mut found = BTreeSet::new();
    for row in &rows {
        let [arch, classes, convert, surgery, run] = row.as_slice() else {
            panic!("{row:?}");
        };
        let [arch] = names(arch)[..] else {
            panic!("{row:?}");
        };
        assert!(found.insert(arch.to_owned()), "{arch} twice");
        let Some(spec) = all().find(|spec| spec.name == arch) else {
            let head = heads::find(arch).unwrap_or_else(|| panic!("{arch} is in no table"));
            assert_ne!(head.drafting, Drafting::Here);
            assert_eq!(
                [classes, convert, surgery, run].map(String::as_str),
                ["", "no", "MTP", "no"],
                "{arch}"
            );
            continue;
        };
        let classes: BTreeSet<&str> = classes
            .split(", ")
            .map(|class| class.trim_end_matches(" (text)"))
            .collect();
        let expected: BTreeSet<&str> = spec.hf_classes.iter().copied().collect();
        assert_eq!(classes, expected, "{arch}");
        assert_eq!(convert, "yes", "{arch}");
        let expected = match &spec.mtp {
            None => "no head",
            Some(_) if has_chained_heads(spec) => "MTP, chained",
            Some(_) => "MTP",
        };
        assert_eq!(surgery, expected, "{arch}");
        let expected = match (spec.is_draft(), &spec.mtp) {
            (true, _) => "as a draft",
            (false, Some(_)) => "yes, with MTP",
            (false, None) => "yes",
        };
        let described = run.split(';').next().unwrap_or_default();
        assert_eq!(described, expected, "{arch}");
    }
    let with_heads = heads::heads().map(|head| head.arch);
    let expected = all().map(|spec| spec.name).chain(with_heads);
    let expected: BTreeSet<String> = expected.map(str::to_owned).collect();
    assert_eq!(found, expected);
}

/// The table of heads in docs/heads.md names the same architectures and the programs that draft with them.
#[test]
fn heads_are_those_of_the_code() {
    let section = section_of("docs/heads.md", "Architectures with heads");
    let mut found = BTreeSet::new();
    for row in table_in(&section, "architecture") {
        for arch in names(&row[0]) {
            let head = heads::find(arch).unwrap_or_else(|| panic!("{arch} is in no table"));
            let drafting = match head.drafting {
                Drafting::Here => "specconv, llama.cpp",
                Drafting::LlamaCpp => "llama.cpp",
                Drafting::Nothing => "none",
            };
            assert_eq!(row[2], drafting, "{arch}");
            let limit = head
                .max_heads
                .map_or("any".to_owned(), |max| max.to_string());
            let is_one = head.drafting == Drafting::Here && row[1] == "1";
            assert!(row[1] == limit || is_one, "{arch}: {limit}");
            assert!(found.insert(arch.to_owned()), "{arch} twice");
        }
    }
    let expected: BTreeSet<String> = heads::heads().map(|head| head.arch.to_owned()).collect();
    assert_eq!(found, expected);
    for (arch, _) in heads::LEFT_OUT {
        assert!(section.contains(&format!("`{arch}`")), "{arch}");
    }
}

#[test]
fn element_types_are_those_of_the_code() {
    let rows = table("element types");
    let mut found = Vec::new();
    for row in &rows {
        if row[0].starts_with("written and run") {
            found.extend(row[1].split_whitespace());
        }
    }
    found.sort_unstable();
    let mut expected: Vec<String> = codecs().map(|codec| codec.dtype().to_string()).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn file_types_are_those_of_the_code() {
    let section = section();
    let (_, list) = section.split_once("\nFile types: ").unwrap();
    let (list, _) = list.split_once(", with ").unwrap();
    let mut found = BTreeSet::new();
    for item in list.split(',').map(str::trim) {
        // Q4_K_S/M is Q4_K_S and Q4_K_M.
        let mut parts = item.split('/');
        let first = parts.next().unwrap();
        let (stem, _) = first.rsplit_once('_').unwrap_or_default();
        found.insert(first.to_owned());
        found.extend(parts.map(|part| format!("{stem}_{part}")));
    }
    for name in &found {
        let parsed: FType = name.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(parsed.name(), *name);
    }
    let expected: BTreeSet<String> = FType::all().map(|ftype| ftype.name().to_owned()).collect();
    assert_eq!(found, expected);
}

#[test]
fn speculators_are_those_of_the_code() {
    let rows = table("speculator");
    let mut found: Vec<&str> = rows.iter().flat_map(|row| names(&row[0])).collect();
    found.sort_unstable();
    let mut expected = SpecType::ALL.map(|kind| kind.name());
    expected.sort_unstable();
    assert_eq!(found, expected);
}
