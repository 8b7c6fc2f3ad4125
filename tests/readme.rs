//! The commands of the documents run as written, in a fresh clone.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use crate::util::{Dir, root, specconv, specrun};

/// Returns the command lines of the `sh` blocks of a document, without comments.
fn commands(document: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let blocks = text.split("```sh\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap().to_owned());
    let lines: Vec<String> = blocks
        .flat_map(|b| b.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let lines = lines
        .iter()
        .map(|line| line.split('#').next().unwrap().trim());
    lines
        .filter(|line| line.starts_with("spec") || line.starts_with("mkdir "))
        .map(str::to_owned)
        .collect()
}

/// Splits a command line at spaces outside of single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Runs the commands of documents, one after another in one folder.
fn run(documents: &[&str]) -> Dir {
    let dir = Dir::new();
    symlink(root().join("models"), dir.join("models")).unwrap();
    for document in documents {
        let commands = commands(document);
        assert!(commands.len() >= 3, "{document}: {commands:?}");
        for line in commands {
            let mut words = words(&line);
            if words[0] == "mkdir" {
                fs::create_dir(dir.join(&words[1])).unwrap();
                continue;
            }
            let redirected = words.iter().position(|word| word == ">");
            let redirected = redirected.map(|at| words.split_off(at)[1].clone());
            let words: Vec<String> = words.iter().flat_map(|word| expanded(&dir, word)).collect();
            let program = match words[0].as_str() {
                "specconv" => specconv,
                "specrun" => specrun,
                other => panic!("{document}: {other}"),
            };
            let mut command = program(&words[1]).args(&words[2..]);
            if words[1] == "verify" && !words.iter().any(|word| word == "--check") {
                // Without speed, whose measurement takes longest.
                command = command.args(["--check", "fit,identity,acceptance"]);
            }
            let ran = command.current_dir(dir.path()).run();
            assert_eq!(
                ran.code,
                Some(0),
                "{document}: {line}: {}{}",
                ran.stdout,
                ran.stderr
            );
            if let Some(name) = redirected {
                fs::write(dir.join(&name), &ran.stdout).unwrap();
            }
        }
    }
    dir
}

/// Replaces `FOLDER/*.EXTENSION` by the files.
fn expanded(dir: &Dir, word: &str) -> Vec<String> {
    let Some((folder, extension)) = word.split_once("/*.") else {
        return vec![word.to_owned()];
    };
    let names = fs::read_dir(dir.join(folder)).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| name.ends_with(extension));
    let mut paths: Vec<String> = names.map(|name| format!("{folder}/{name}")).collect();
    paths.sort();
    paths
}

#[test]
fn the_first_hour_runs_as_written() {
    let dir = run(&["README.md", "docs/getting-started.md"]);
    let page = fs::read_to_string(dir.join("verify.html")).unwrap();
    assert!(page.contains("draft-mtp"));
}

#[test]
fn tutorials_run_as_written() {
    let folder = root().join("docs/tutorials");
    let mut n = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        run(&[&format!("docs/tutorials/{name}")]);
        n += 1;
    }
    assert!(n >= 4, "only {n} tutorials were found");
    let dir = run(&["docs/publishing.md"]);
    let card = fs::read_to_string(dir.join("tiny-GGUF/README.md")).unwrap();
    assert_eq!(card.matches("| tiny-").count(), 8, "{card}");
    assert!(card.contains("llama-server -m tiny-Q4_K_M.gguf --spec-type draft-mtp"));
    let dir = run(&["docs/pipelines.md"]);
    assert!(dir.join("verify.sarif").exists());
    let dir = run(&["docs/scale.md"]);
    assert!(dir.join("small.gguf").exists());
}

/// The site has every page, no page that does not exist, and no link to a page that it lacks.
#[test]
fn the_summary_of_the_site_is_complete() {
    let docs = root().join("docs");
    let links = |page: &str| -> BTreeSet<String> {
        let text = fs::read_to_string(docs.join(page)).unwrap();
        let links = text.split("](").skip(1);
        let links = links.map(|link| link.split([')', '#']).next().unwrap());
        let links = links.filter(|link| link.ends_with(".md") && !link.contains("://"));
        links.map(str::to_owned).collect()
    };
    let mut pages = BTreeSet::new();
    for folder in ["", "tutorials/", "bench/"] {
        for entry in fs::read_dir(docs.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") && name != "SUMMARY.md" {
                pages.insert(format!("{folder}{name}"));
            }
        }
    }
    assert_eq!(links("SUMMARY.md"), pages);
    for page in &pages {
        let folder = docs.join(page).parent().unwrap().to_owned();
        for link in links(page) {
            let target = folder.join(&link).canonicalize().unwrap();
            let is_page = target.strip_prefix(docs.canonicalize().unwrap());
            let is_page = is_page.is_ok_and(|target| pages.contains(target.to_str().unwrap()));
            assert!(is_page, "{page}: {link}: not a page of the site");
        }
    }
}
