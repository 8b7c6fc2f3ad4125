//! Rules of the module tree: layers without cycles, and the files that an architecture consists of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::util::root;

/// Crates whose modules use each other in one direction only.
const LAYERED: [&str; 4] = ["convert", "graft", "hub", "quantize"];

/// Returns the Rust files in a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the module of a file, such as `["arch", "keys"]`; empty for the crate's root.
fn module_of(source: &Path, file: &Path) -> Vec<String> {
    let path = file.strip_prefix(source).unwrap().with_extension("");
    let names = path.components().map(|c| c.as_os_str().to_str().unwrap());
    let names = names.filter(|name| !["lib", "main", "mod"].contains(name));
    names.map(str::to_owned).collect()
}

/// Returns the paths of a use tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.trim().to_owned()];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut item, mut paths) = (0, String::new(), Vec::new());
    for c in inner.chars().chain([',']) {
        match c {
            ',' if depth == 0 => {
                let item = std::mem::take(&mut item);
                let nested = expand(item.trim()).into_iter();
                paths.extend(nested.map(|path| format!("{}{path}", prefix.trim())));
            }
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                item.push(c);
            }
        }
    }
    paths
}

/// Returns the modules that a file uses: those it imports, and its submodules.
fn used_modules(
    module: &[String],
    text: &str,
    modules: &BTreeSet<Vec<String>>,
) -> BTreeSet<Vec<String>> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    let mut paths: Vec<Vec<String>> = Vec::new();
    for line in code.lines() {
        let declared = line
            .strip_prefix("pub(crate) ")
            .or(line.strip_prefix("pub "));
        let declared = declared.unwrap_or(line).strip_prefix("mod ");
        if let Some(name) = declared.and_then(|name| name.strip_suffix(';')) {
            paths.push([module, &[name.to_owned()]].concat());
        }
    }
    let statements = code.split("use ").skip(1);
    let trees = statements.filter_map(|rest| rest.split_once(';'));
    for path in trees.flat_map(|(tree, _)| expand(tree)) {
        let mut segments: Vec<String> = path.split("::").map(|s| s.trim().to_owned()).collect();
        match segments[0].as_str() {
            "crate" => drop(segments.remove(0)),
            "super" => {
                let parent = &module[..module.len().saturating_sub(1)];
                segments.splice(0..1, parent.iter().cloned());
            }
            _ => continue,
        }
        paths.push(segments);
    }
    let resolve = |path: Vec<String>| {
        let prefixes = (1..=path.len()).rev().map(|n| path[..n].to_vec());
        prefixes.into_iter().find(|prefix| modules.contains(prefix))
    };
    let used = paths.into_iter().filter_map(resolve);
    used.filter(|used| used != module).collect()
}

#[test]
fn modules_form_layers() {
    for name in LAYERED {
        let source = root().join(name).join("src");
        let files = rust_files(&source);
        let modules: BTreeSet<_> = files.iter().map(|file| module_of(&source, file)).collect();
        let mut uses: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
        for file in &files {
            let module = module_of(&source, file);
            let text = fs::read_to_string(file).unwrap();
            let used = used_modules(&module, &text, &modules);
            uses.insert(module, used);
        }
        uses.remove(&Vec::new());
        assert!(uses.values().map(BTreeSet::len).sum::<usize>() > uses.len());
        // Remove modules that use none of the others, until only cycles are left.
        loop {
            let known: BTreeSet<Vec<String>> = uses.keys().cloned().collect();
            let n = uses.len();
            uses.retain(|_, used| used.iter().any(|used| known.contains(used)));
            if uses.len() == n {
                break;
            }
        }
        let names = |modules: &BTreeSet<Vec<String>>| -> Vec<String> {
            let left = modules.iter().filter(|module| uses.contains_key(*module));
            left.map(|module| module.join("::")).collect()
        };
        let cycles = uses.iter().map(|(module, used)| {
            let module = module.join("::");
            format!("{name}: {module} uses {}", names(used).join(", "))
        });
        let cycles: Vec<String> = cycles.collect();
        assert!(
            cycles.is_empty(),
            "modules in cycles:\n{}",
            cycles.join("\n")
        );
    }
}

/// Returns the text of a section of docs/adding.md.
fn section(title: &str) -> String {
    let text = fs::read_to_string(root().join("docs/adding.md")).unwrap();
    let (_, rest) = text.split_once(&format!("## {title}\n")).unwrap();
    rest.split("\n## ").next().unwrap().to_owned()
}

/// Returns the paths in a numbered list, with a name in place of `NAME`.
fn listed_paths(section: &str, name: &str) -> BTreeSet<String> {
    let list = section.split("\n1. ").nth(1).unwrap();
    let list = list.split("\n\n").next().unwrap();
    let quoted = list.split('`').skip(1).step_by(2);
    let paths = quoted.filter(|text| text.ends_with(".rs"));
    paths.map(|path| path.replace("NAME", name)).collect()
}

/// The sources that name an architecture are those that docs/adding.md lists.
#[test]
fn an_architecture_is_named_where_the_documents_say() {
    const SAMPLE: &str = "qwen3next";
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(root()).unwrap() {
        let source = entry.unwrap().path().join("src");
        let files = if source.is_dir() {
            rust_files(&source)
        } else {
            Vec::new()
        };
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let mut words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            let is_own = file.file_stem().is_some_and(|stem| stem == SAMPLE);
            if is_own || words.any(|word| word == SAMPLE) {
                let path = file.strip_prefix(root()).unwrap();
                found.insert(path.to_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(found, listed_paths(&section("An architecture"), SAMPLE));
}
