//! The public API of the crates that other programs use. Every `pub` item is reachable (the lint `unreachable_pub`), so
//! the sources list the API. A changed list is a change for the users of the crate.

use std::fs;
use std::path::Path;

use crate::tidy::files;
use crate::util::{assert_golden, root};

/// Folders of the crates. Reports are described by schemas/json, which another test compares.
const CRATES: [&str; 2] = ["schemas", "runner"];

/// Returns the declaration that begins at the first line: everything before its body or value.
fn declaration(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(line.trim());
        if line.ends_with(['{', ';', ',', '}'])
            && text.matches('(').count() == text.matches(')').count()
        {
            break;
        }
        text.push(' ');
    }
    // The `=` of a type can belong to a bound.
    let has_value = text.starts_with("pub const ") || text.starts_with("pub type ");
    let ends = [" {", ";", " = "]
        .iter()
        .take(if has_value { 3 } else { 2 });
    let end = ends.filter_map(|end| text.find(end)).min();
    let text = &text[..end.unwrap_or(text.len())];
    let text = text.replace("( ", "(").replace(", )", ")");
    text.trim_end_matches([',', ' ']).to_owned()
}

/// Lists the public items of a file: a line for each declaration, those of a type below it.
fn items(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let (mut owner, mut is_open) = (String::new(), false);
    for (i, line) in lines.iter().enumerate() {
        let is_public = line.trim_start().starts_with("pub ");
        match line.find(|c| c != ' ') {
            Some(0) => {
                let item = declaration(&lines[i..]);
                // Variants and methods of a trait have no `pub` of their own.
                is_open = line.starts_with("pub enum ") || line.starts_with("pub trait ");
                if line.starts_with("impl") {
                    owner = item;
                } else if is_public {
                    found.push(item);
                    owner.clear();
                }
            }
            Some(4)
                if is_public
                    || is_open
                        && line[4..].starts_with(|c: char| c.is_ascii_uppercase() || c == 'f') =>
            {
                let item = declaration(&lines[i..]);
                match owner.is_empty() {
                    true => found.push(format!("    {item}")),
                    false => found.push(format!("    {owner}: {item}")),
                }
            }
            _ => {}
        }
    }
    found
}

#[test]
fn the_public_api_is_the_listed_one() {
    for folder in CRATES {
        let mut list = String::new();
        for path in files(&root().join(folder).join("src"), "rs") {
            if path.components().any(|part| part.as_os_str() == "report") {
                continue;
            }
            let items = items(&fs::read_to_string(&path).unwrap());
            if !items.is_empty() {
                let path: &Path = path.strip_prefix(root()).unwrap();
                list += &format!("{}\n", path.display());
                list.extend(items.iter().map(|item| format!("    {item}\n")));
            }
        }
        assert_golden(&format!("api/{folder}.txt"), &list);
    }
}
