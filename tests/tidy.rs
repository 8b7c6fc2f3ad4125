//! The rules of this repository that a program can check.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::util::root;

/// Workspace crates, by their folders, that each crate may use, in tests and benches too.
const MAY_USE: [(&str, &[&str]); 13] = [
    ("schemas", &[]),
    ("kernels", &["schemas"]),
    ("convert", &["fixtures", "kernels", "schemas"]),
    ("quantize", &["fixtures", "kernels", "schemas"]),
    ("graft", &["fixtures", "kernels", "schemas"]),
    ("hub", &[]),
    ("runner", &["fixtures", "kernels", "schemas"]),
    ("verify", &["fixtures", "kernels", "runner", "schemas"]),
    ("serve", &["kernels", "runner", "schemas"]),
    (
        "cli",
        &[
            "convert", "fixtures", "graft", "hub", "kernels", "quantize", "runner", "schemas",
            "serve", "verify",
        ],
    ),
    ("python", &["cli", "kernels", "runner", "schemas", "verify"]),
    (
        "fuzz",
        &[
            "cli", "convert", "fixtures", "hub", "kernels", "quantize", "runner", "schemas",
            "verify",
        ],
    ),
    ("fixtures", &["schemas"]),
];

/// Maximum length of a source file, in lines.
const MAX_LINES: usize = 800;

/// Returns the files in a folder with an extension, except build output and data.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["target", ".git", "reference", "models", "shared"].contains(&name.as_str()) {
                found.extend(files(&path, extension));
            }
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the path relative to the repository root, with `/` as separator.
fn name(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap();
    path.to_string_lossy().replace('\\', "/")
}

#[track_caller]
fn assert_none(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn crates_use_what_they_may() {
    let ours: Vec<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    let mut checked = BTreeSet::new();
    let mut found = Vec::new();
    for path in files(&root(), "toml") {
        if path.file_name().is_none_or(|name| name != "Cargo.toml")
            || path == root().join("Cargo.toml")
        {
            continue;
        }
        let text = read(&path);
        // A library has the name of its folder; packages are `specconv` and `specconv-*`.
        let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
        let folder = folder.to_string_lossy();
        let listed = MAY_USE.iter().find(|(name, _)| *name == folder);
        let (_, may_use) = listed.unwrap_or_else(|| panic!("{folder} is not listed"));
        assert!(text.contains("name = \"specconv"), "{}", name(&path));
        checked.insert(folder.into_owned());
        let mut section = "";
        for line in text.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let word = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if section.contains("dependencies") && ours.contains(&word) && !may_use.contains(&word)
            {
                found.push(format!("{}: {word}", name(&path)));
            }
        }
    }
    assert_none("dependencies against docs/architecture.md", found);
    assert!(checked.len() >= 7, "only {checked:?} were found");
}

#[test]
fn files_are_short() {
    let long = files(&root(), "rs").into_iter().filter_map(|path| {
        let n_lines = read(&path).lines().count();
        (n_lines > MAX_LINES).then(|| format!("{}: {n_lines} lines", name(&path)))
    });
    assert_none("longer than 800 lines", long.collect());
}

/// Largest file of the bundled models and of everything else, in bytes: a build product that is added by mistake
/// would stay in every clone.
const MAX_BYTES: [(&str, u64); 2] = [("models/", 9 << 20), ("", 4 << 20)];

#[test]
fn tracked_files_are_small() {
    let listed = Command::new("git")
        .arg("-C")
        .arg(root())
        .args(["ls-files", "-z"])
        .output();
    // An archive of the sources has no list of its files.
    let Some(listed) = listed.ok().filter(|output| output.status.success()) else {
        return;
    };
    let listed = String::from_utf8(listed.stdout).expect("names in UTF-8");
    let mut found = Vec::new();
    let mut n_checked = 0;
    for name in listed.split_terminator('\0') {
        // A file may have been deleted since.
        let Ok(metadata) = fs::metadata(root().join(name)) else {
            continue;
        };
        let max = MAX_BYTES
            .iter()
            .find(|(folder, _)| name.starts_with(folder));
        let (_, max) = max.expect("the last entry is for all");
        n_checked += 1;
        if metadata.len() > *max {
            found.push(format!("{name}: {} bytes", metadata.len()));
        }
    }
    assert_none("too large for the repository", found);
    assert!(n_checked > 500, "only {n_checked} files were found");
}

#[test]
fn only_one_module_prints() {
    let macros = [
        "println!",
        "print!",
        "eprintln!",
        "eprint!",
        "stdout()",
        "stderr()",
    ];
    let mut found = Vec::new();
    for path in files(&root(), "rs") {
        let name = name(&path);
        let is_program = name.contains("/src/") && name != "cli/src/output.rs";
        if is_program && macros.iter().any(|m| read(&path).contains(m)) {
            found.push(name);
        }
    }
    assert_none("printing outside cli/src/output.rs", found);
}

#[test]
fn unsafe_code_stays_where_it_is() {
    let mut found = Vec::new();
    for path in files(&root(), "rs") {
        let name = name(&path);
        let text = read(&path);
        let may = name.starts_with("kernels/") || name == "schemas/src/gguf/map.rs";
        let has = ["unsafe {", "unsafe fn", "unsafe impl"].iter();
        // This file contains the words itself.
        if !may && name != "tests/tidy.rs" && has.into_iter().any(|word| text.contains(word)) {
            found.push(name.clone());
        }
        let crate_root = name.ends_with("src/lib.rs") && name.matches('/').count() <= 3;
        let exempt = name.starts_with("kernels/") || name.starts_with("schemas/");
        if crate_root && !exempt && !text.contains("#![forbid(unsafe_code)]") {
            found.push(format!("{name}: forbids none"));
        }
    }
    assert_none("unsafe code", found);
}

/// Top-level folders: text in documents that begins with one is checked as a path.
const FOLDERS: [&str; 17] = [
    ".ci/",
    "cli/",
    "conformance/",
    "convert/",
    "docs/",
    "fuzz/",
    "graft/",
    "hub/",
    "kernels/",
    "models/",
    "quantize/",
    "runner/",
    "schemas/",
    "serve/",
    "tests/",
    "verify/",
    "Cargo.",
];

#[test]
fn documents_name_real_paths() {
    let mut missing = Vec::new();
    let mut n_checked = 0;
    let in_code = files(&root(), "rs").into_iter();
    for path in files(&root(), "md").into_iter().chain(in_code) {
        let text = read(&path);
        let is_code = path.extension().is_some_and(|e| e == "rs");
        // In code, only comments are checked.
        let lines = text
            .lines()
            .filter(|line| !is_code || line.trim_start().starts_with("//"));
        for word in lines.flat_map(|line| {
            line.split(|c: char| !(c.is_alphanumeric() || "._-/{},*$".contains(c)))
        }) {
            let word = word.trim_end_matches(['.', ',']);
            let pattern = word.contains(['{', '}', '*', '$', ',']) || word.contains("NAME");
            if pattern || !FOLDERS.iter().any(|folder| word.starts_with(folder)) {
                continue;
            }
            n_checked += 1;
            if !root().join(word).exists() {
                missing.push(format!("{}: {word}", name(&path)));
            }
        }
    }
    assert_none("paths that do not exist", missing);
    assert!(n_checked > 20, "only {n_checked} paths were found");
}

/// Returns the anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' | '-' => Some('-'),
        c if c.is_alphanumeric() || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

#[test]
fn links_between_documents_resolve() {
    let mut broken = Vec::new();
    let mut n_checked = 0;
    for path in files(&root(), "md") {
        let text = read(&path);
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'));
        for (link, _) in links.filter(|(link, _)| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a file is in a folder").join(file),
            };
            n_checked += 1;
            let is_heading = |line: &str| {
                let title = line
                    .strip_prefix('#')
                    .map(|line| line.trim_start_matches('#'));
                title.is_some_and(|title| anchor(title) == heading)
            };
            let resolves =
                target.exists() && (heading.is_empty() || read(&target).lines().any(is_heading));
            if !resolves {
                broken.push(format!("{}: {link}", name(&path)));
            }
        }
    }
    assert_none("links without a target", broken);
    assert!(n_checked > 50, "only {n_checked} links were found");
}

/// Returns the text between two marks.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).expect(start);
    rest.split_once(end).expect(end).0
}

#[test]
fn a_speculator_is_the_files_that_the_document_lists() {
    let folder = root().join("runner/src/speculate/drafters");
    let list = read(&folder.join("mod.rs"));
    let entries = between(&list, "\nspeculators! {", "\n}");
    let entries = entries.lines().filter_map(|line| {
        let (variant, module) = line.trim().trim_end_matches(',').split_once(" => ")?;
        Some((variant.to_owned(), module.to_owned()))
    });
    let entries: Vec<(String, String)> = entries.collect();
    // Each file is in the list, and is named as users name the speculator.
    let mut modules: Vec<&str> = entries.iter().map(|(_, module)| &module[..]).collect();
    modules.sort_unstable();
    let mut in_folder = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("mod.rs") {
            in_folder.push(path.file_stem().unwrap().to_string_lossy().into_owned());
            let text = read(&path);
            let (_, spec) = text.split_once("const SPEC: Spec =").expect("SPEC");
            let spec = between(spec, "\"", "\"");
            assert_eq!(spec.replace('-', "_"), in_folder[in_folder.len() - 1]);
        }
    }
    in_folder.sort_unstable();
    assert_eq!(in_folder, modules);
    // No other file of the libraries knows a speculator by name.
    let mut found = Vec::new();
    for path in ["runner/src", "verify/src"].map(|folder| files(&root().join(folder), "rs")) {
        for path in path.iter().filter(|path| !path.starts_with(&folder)) {
            let text = read(path);
            let code = text.split("#[cfg(test)]").next().unwrap();
            let code: String = code
                .split_inclusive('\n')
                .filter(|line| !line.trim_start().starts_with("//"))
                .collect();
            let known = |(variant, _): &&(String, String)| {
                let name = format!("SpecType::{variant}");
                code.match_indices(&name).any(|(at, _)| {
                    let next = code[at + name.len()..].chars().next();
                    !next.is_some_and(char::is_alphanumeric)
                })
            };
            let names = entries.iter().filter(known);
            found.extend(names.map(|(variant, _)| format!("{}: {variant}", name(path))));
        }
    }
    assert_none("speculators named outside their list", found);
    // The document lists the file, the list and the test.
    let document = read(&root().join("docs/adding.md"));
    let section = between(&document, "## A speculator", "Files, loading,");
    let paths = section.split('`').filter(|word| word.ends_with(".rs"));
    let expected = [
        "runner/src/speculate/drafters/NAME.rs",
        "runner/src/speculate/drafters/mod.rs",
        "runner/tests/speculators/setup.rs",
    ];
    assert_eq!(paths.collect::<Vec<_>>(), expected);
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    let mut found = Vec::new();
    let all = ["rs", "md", "toml", "sh", "json", "txt", "py"].map(|e| files(&root(), e));
    for path in all.into_iter().flatten() {
        // The list of the API names the folder of the module `work`.
        if ["tests/tidy.rs", "tests/golden/api/schemas.txt"].contains(&&*name(&path)) {
            continue;
        }
        for line in read(&path).lines() {
            if ["/home/", "/root/", "/work/", "/tmp/", "/Users/"]
                .iter()
                .any(|p| line.contains(p))
            {
                found.push(format!("{}: {line}", name(&path)));
            }
        }
    }
    assert_none("absolute paths", found);
}

#[test]
fn tests_are_never_skipped() {
    let ignore = concat!("#[", "ignore");
    let found = files(&root(), "rs")
        .into_iter()
        .filter(|path| read(path).contains(ignore));
    assert_none("ignored tests", found.map(|path| name(&path)).collect());
}

/// Words that begin a relative clause: a doc comment that starts with one is not a sentence.
const RELATIVE: [&str; 10] = [
    "What", "Whether", "How", "Of", "Those", "That", "Where", "Who", "Which", "Whose",
];

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let mut found = Vec::new();
    let mut n_checked = 0;
    for path in files(&root(), "rs") {
        let text = read(&path);
        let mut is_continued = false;
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim_start();
            let comment = line
                .strip_prefix("///")
                .or_else(|| line.strip_prefix("//!"));
            let Some(comment) = comment.map(str::trim) else {
                is_continued = false;
                continue;
            };
            // A paragraph begins after a line without text.
            let is_first = !is_continued && !comment.is_empty();
            is_continued = !comment.is_empty();
            n_checked += usize::from(is_first);
            let word = comment.split(|c: char| !c.is_alphanumeric()).next();
            if is_first && word.is_some_and(|word| RELATIVE.contains(&word)) {
                found.push(format!("{}:{number}: {comment}", name(&path)));
            }
        }
    }
    assert!(n_checked > 5000, "only {n_checked} doc comments were found");
    assert_none("relative clauses instead of sentences", found);
}

/// Files and folders whose language is checked.
const IN_PLAIN_ENGLISH: [&str; 5] = ["CHANGELOG.md", "README.md", "cli", "docs", "models"];

/// Exceptions: dated records, which are not rewritten.
const EXEMPT: [&str; 1] = ["docs/bench"];

/// Generated tables, which quote messages of the programs.
const GENERATED: (&str, &str) = ("<!-- table of damage -->", "<!-- end of the table -->");

/// Phrases that the field does not use, and the term to use instead. A name counts as its words:
/// `let_go` contains "let go".
const AVOIDED: [(&str, &str); 46] = [
    ("all the same", "anyway"),
    ("anew", "again"),
    ("are no whole", "are not a multiple of"),
    ("as they stand", "unmodified"),
    ("astray", "the wrong value, and the expected one"),
    ("at hand", "the content, such as scratch buffers"),
    ("behind", "after, following"),
    ("for good", "persistent"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("gone on", "continued"),
    ("hardly", "a number"),
    ("has no place for", "is not part of"),
    ("in common", "shared"),
    ("in front of", "before"),
    ("in turn", "alternately, one after another"),
    ("is no multiple", "is not a multiple"),
    ("is no number", "is not a number"),
    ("is there twice", "is given twice, is a duplicate"),
    ("left standing", "accepted, kept"),
    ("let go", "release"),
    ("lets go", "releases"),
    ("lie", "are stored"),
    ("lies", "is stored"),
    ("lying", "stored"),
    ("mend", "repair"),
    ("mended", "repaired"),
    ("mends", "repairs"),
    ("no whole", "not a multiple of, partial"),
    ("nobody", "the caller, another thread"),
    ("processors", "CPUs, cores"),
    ("runs wild", "is arbitrary"),
    ("side by side", "interleaved"),
    ("somebody", "the caller, another thread"),
    ("stands", "is kept, is written"),
    ("take back", "roll back"),
    ("taken back", "rolled back"),
    ("takes back", "rolls back"),
    ("tell", "report, print"),
    ("tells", "reports, prints"),
    ("the processor", "the CPU, the core"),
    ("to be had", "available"),
    ("told", "reported, printed"),
    ("went on", "continued"),
    ("what comes of", "result"),
    ("whoever", "the caller"),
];

/// Splits text into lower-case words with their line numbers. Punctuation that ends a phrase becomes
/// an empty word; quotes, comment marks and line ends do not, so that phrases are found across lines.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim_start().trim_start_matches(['/', '!', '*', '>']);
        let mut word = String::new();
        for c in line.chars().chain([' ']) {
            if c.is_alphanumeric() {
                word.extend(c.to_lowercase());
                continue;
            }
            if !word.is_empty() {
                words.push((number, std::mem::take(&mut word)));
            }
            if ".,;:!?()[]{}|`".contains(c) {
                words.push((number, String::new()));
            }
        }
    }
    words
}

/// Returns the line and index of each avoided phrase.
fn avoided_phrases(text: &str) -> Vec<(usize, usize)> {
    let words = words(text);
    let mut found = Vec::new();
    for (index, (phrase, _)) in AVOIDED.iter().enumerate() {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        let matches = words.windows(phrase.len()).filter(|window| {
            let mut pairs = window.iter().zip(&phrase);
            pairs.all(|((_, word), expected)| word == expected)
        });
        found.extend(matches.map(|window| (window[0].0, index)));
    }
    found.sort_unstable();
    found
}

#[test]
fn avoided_phrases_are_found() {
    let lines = |text: &str| -> Vec<usize> {
        let found = avoided_phrases(text);
        found.into_iter().map(|(line, _)| line).collect()
    };
    assert_eq!(lines("/// Pages that are\n/// taken\n/// back."), [2]);
    assert_eq!(lines("fn let_go() {}\n// It Lies here."), [1, 2]);
    assert!(lines("// What is taken. Back to it; a layer, relied on.").is_empty());
}

#[test]
fn texts_use_the_words_of_the_field() {
    let mut found = Vec::new();
    let mut n_checked = 0;
    let is_in = |name: &str, paths: &[&str]| {
        let mut paths = paths.iter();
        paths.any(|path| {
            let rest = name.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let all = ["md", "rs", "jinja"].map(|extension| files(&root(), extension));
    for path in all.into_iter().flatten() {
        let name = name(&path);
        if !is_in(&name, &IN_PLAIN_ENGLISH) || is_in(&name, &EXEMPT) {
            continue;
        }
        let mut text = read(&path);
        n_checked += 1;
        if let (Some(start), Some(end)) = (text.find(GENERATED.0), text.find(GENERATED.1)) {
            let n_lines = text[start..end].matches('\n').count();
            text.replace_range(start..end, &"\n".repeat(n_lines));
        }
        for (line, index) in avoided_phrases(&text) {
            let (phrase, better) = AVOIDED[index];
            found.push(format!("{name}:{line}: \"{phrase}\", better: {better}"));
        }
    }
    assert!(n_checked > 60, "only {n_checked} files were found");
    assert_none("words that the field does not use", found);
}
