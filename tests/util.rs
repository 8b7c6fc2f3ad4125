//! Test helpers: a temporary folder, commands that run the real binaries, reference files.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use schemas::gguf::{Output, Plan, WriteConfig};
use sha2::{Digest, Sha256};

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("the package is in the repository").to_owned()
}

/// Returns the path of a checkpoint in tests/reference.
pub(crate) fn reference(name: &str) -> PathBuf {
    root().join("tests/reference").join(name)
}

/// Returns the path of a bundled checkpoint.
pub(crate) fn bundled(name: &str) -> PathBuf {
    root().join("models").join(name)
}

/// Parses a JSON file.
pub(crate) fn read_json(path: &Path) -> serde_json::Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the SHA-256 in hexadecimal, as in golden files.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A temporary folder, removed at the end of the test.
pub(crate) struct Dir(tempfile::TempDir);

impl Dir {
    pub(crate) fn new() -> Dir {
        Dir(tempfile::tempdir().expect("the system has room for a temporary folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes a plan with our own writer and returns its path.
    pub(crate) fn gguf(&self, name: &str, plan: &Plan) -> PathBuf {
        let path = self.join(name);
        schemas::gguf::write(&[Output { plan, path: &path }], &WriteConfig::new()).unwrap();
        path
    }

    /// Runs `specconv convert` on a checkpoint and returns the path of the output.
    pub(crate) fn convert(&self, checkpoint: &Path, name: &str, flags: &[&str]) -> PathBuf {
        let path = self.join(name);
        let convert = specconv("convert").arg(checkpoint).arg("-o").arg(&path);
        convert.arg("--overwrite").args(flags).ok();
        path
    }

    /// Returns the sorted names in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }
}

/// A command that is about to run.
pub(crate) struct Cmd(Command);

/// Exit code and output of a command.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// `specconv` with that subcommand.
pub(crate) fn specconv(subcommand: &str) -> Cmd {
    Cmd(Command::new(env!("CARGO_BIN_EXE_specconv"))).arg(subcommand)
}

/// `specrun` with that subcommand.
pub(crate) fn specrun(subcommand: &str) -> Cmd {
    Cmd(Command::new(env!("CARGO_BIN_EXE_specrun"))).arg(subcommand)
}

impl Cmd {
    /// Another program.
    pub(crate) fn of(program: impl AsRef<OsStr>) -> Cmd {
        Cmd(Command::new(program))
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Cmd {
        self.0.arg(arg);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Cmd {
        self.0.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Cmd {
        self.0.env(name, value);
        self
    }

    pub(crate) fn current_dir(mut self, folder: &Path) -> Cmd {
        self.0.current_dir(folder);
        self
    }

    /// Returns the underlying command, for custom execution.
    pub(crate) fn into_command(self) -> Command {
        self.0
    }

    /// Returns the underlying command with the default action of every signal. The caller of the tests may have
    /// ignored some, as `nohup` does, and a program keeps ignored signals ignored.
    pub(crate) fn with_default_signals(self) -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT,TERM");
        command.arg(self.0.get_program()).args(self.0.get_args());
        for (name, value) in self.0.get_envs() {
            command.env(name, value.expect("tests only set variables"));
        }
        command
    }

    /// Runs the command and accepts any exit code.
    pub(crate) fn run(mut self) -> Ran {
        let output = self.0.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        Ran {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Runs the command, expects success and returns stdout.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        let ran = self.run();
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Runs the command, expects success and returns its JSON.
    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.arg("--json").ok()).expect("stdout is JSON")
    }

    /// Runs the command and expects exit code 2. Returns the only line on stderr that is neither a note
    /// nor a hint, without the `error: ` prefix.
    #[track_caller]
    pub(crate) fn error(self) -> String {
        let ran = self.run();
        assert_eq!(ran.code, Some(2), "{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.stdout, "");
        let lines = ran.stderr.lines();
        let lines: Vec<&str> = lines.filter(|line| !is_advice(line)).collect();
        match lines.as_slice() {
            [line] => line.strip_prefix("error: ").expect(line).to_owned(),
            lines => panic!("expected one line, found {lines:#?}"),
        }
    }
}

fn is_advice(line: &str) -> bool {
    line.starts_with("note: ") || line.starts_with("hint: ")
}

/// Compares text with a file in tests/golden; UPDATE_GOLDEN=1 rewrites the file.
#[track_caller]
pub(crate) fn assert_golden(name: &str, found: &str) {
    let path = root().join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().expect("golden files are in a folder")).unwrap();
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{} differs; UPDATE_GOLDEN=1 rewrites it. Found:\n{found}",
        path.display()
    );
}

/// Sends a signal to a program.
pub(crate) fn send(child: &Child, signal: &str) {
    let mut kill = Command::new("kill");
    let kill = kill.args(["-s", signal, &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
}

/// Waits for the end of a program. Returns its status and what it printed to stderr.
pub(crate) fn status(mut child: Child) -> (ExitStatus, String) {
    let mut stderr = String::new();
    let mut pipe = child.stderr.take().unwrap();
    pipe.read_to_string(&mut stderr).unwrap();
    (child.wait().unwrap(), stderr)
}
