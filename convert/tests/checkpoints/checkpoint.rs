//! A reference checkpoint that tests modify: a folder of links, in which each test replaces the files it
//! changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use convert::{ConvertConfig, Converted, Error, MtpMode, OutType, plan};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use schemas::gguf::{Output, WriteConfig, write};
use serde_json::Value;
use tempfile::TempDir;

/// The reference checkpoints.
pub(crate) const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference");

/// A modifiable copy of a reference checkpoint, in a folder of the same name.
pub(crate) struct Checkpoint {
    folder: PathBuf,
    /// Folder of a draft's target.
    pub(crate) target: Option<PathBuf>,
    /// Removes the folder when dropped.
    _parent: TempDir,
}

/// A tensor of a safetensors file.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Checkpoint {
    pub(crate) fn of(name: &str) -> Checkpoint {
        let parent = TempDir::new().expect("a temporary folder");
        let folder = parent.path().join(name);
        fs::create_dir(&folder).expect("a new folder");
        for entry in fs::read_dir(Path::new(REFERENCE).join(name)).expect("a reference") {
            let entry = entry.expect("a readable folder");
            symlink(entry.path(), folder.join(entry.file_name())).expect("a new link");
        }
        let golden = fs::read(folder.join("golden.json")).expect("a reference has one");
        let golden: Value = serde_json::from_slice(&golden).expect("references are valid");
        let target = golden["target"].as_str();
        Checkpoint {
            folder,
            target: target.map(|target| Path::new(REFERENCE).join(target)),
            _parent: parent,
        }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).expect("the file is there");
    }

    /// Replaces a file. The reference file behind the link is unchanged.
    pub(crate) fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(file);
        if path.exists() {
            self.remove(file);
        }
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        fs::write(path, bytes).expect("the disk has room");
    }

    pub(crate) fn edit_json(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        let bytes = fs::read(self.path(file)).expect("the file is there");
        let mut json = serde_json::from_slice(&bytes).expect("references are valid");
        edit(&mut json);
        self.write(file, json.to_string());
    }

    /// Rewrites the weights as a single file without an index.
    pub(crate) fn edit_weights(&self, edit: impl FnOnce(&mut Vec<Stored>)) {
        let mut tensors = Vec::new();
        for entry in fs::read_dir(&self.folder).expect("a folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".safetensors") {
                let bytes = fs::read(entry.path()).expect("a file");
                let file = SafeTensors::deserialize(&bytes).expect("references are valid");
                tensors.extend(file.iter().map(|(name, view)| Stored {
                    name: name.to_owned(),
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    bytes: view.data().to_vec(),
                }));
                self.remove(&name);
            }
        }
        if self.path("model.safetensors.index.json").exists() {
            self.remove("model.safetensors.index.json");
        }
        edit(&mut tensors);
        let views = tensors.iter().map(|t| {
            let view = TensorView::new(t.dtype, t.shape.clone(), &t.bytes);
            (t.name.clone(), view.expect("bytes fit the shape"))
        });
        let bytes = safetensors::serialize(views, None).expect("names are unique");
        self.write("model.safetensors", bytes);
    }

    pub(crate) fn convert(&self, outtype: OutType, mtp: MtpMode) -> Result<Converted, Error> {
        plan(&ConvertConfig {
            clusters: true,
            ..self.config(outtype, mtp)
        })
    }

    /// Converts without the clusters of an assistant's tokens.
    pub(crate) fn convert_without_clusters(&self) -> Result<Converted, Error> {
        plan(&self.config(OutType::F32, MtpMode::Inline))
    }

    fn config(&self, outtype: OutType, mtp: MtpMode) -> ConvertConfig {
        ConvertConfig {
            checkpoint: self.folder.clone(),
            remote: None,
            outtype,
            mtp,
            clusters: false,
            tokenizer_from: None,
            target: self.target.clone(),
        }
    }

    /// Removes the folder's path from a text.
    pub(crate) fn relative(&self, text: &str) -> String {
        let folder = self.folder.to_string_lossy().into_owned();
        text.replace(&format!("{folder}/"), "")
            .replace(&folder, ".")
    }

    /// Returns the error message of a conversion that must fail.
    pub(crate) fn refusal(&self, mtp: MtpMode) -> String {
        match self.convert(OutType::BF16, mtp) {
            Ok(_) => panic!("the checkpoint was converted"),
            Err(error) => self.relative(&error.to_string()),
        }
    }

    /// Returns the notes of a conversion that must succeed.
    pub(crate) fn notes(&self, outtype: OutType) -> Vec<String> {
        let converted = self.convert(outtype, MtpMode::Inline);
        let converted = converted.unwrap_or_else(|e| panic!("{e}"));
        converted.notes.iter().map(ToString::to_string).collect()
    }
}

/// A weight file that changes after its header was read would give a file with parts of both.
#[test]
fn a_checkpoint_that_changes_while_it_is_read_is_rejected() {
    let checkpoint = Checkpoint::of("qwen3");
    let name = "model.safetensors";
    checkpoint.edit_weights(|_| {});
    let converted = checkpoint
        .convert(OutType::BF16, MtpMode::Inline)
        .unwrap_or_else(|e| panic!("{e}"));
    let out = checkpoint.path("out.gguf");
    let output = Output {
        plan: &converted.plan,
        path: &out,
    };
    let file = fs::File::options()
        .write(true)
        .open(checkpoint.path(name))
        .unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let error = write(&[output], &WriteConfig::new())
        .unwrap_err()
        .to_string();
    let expected = format!(
        "{}: the file changed while it was being read: found another modification time",
        checkpoint.path(name).display()
    );
    assert!(error.starts_with(&expected), "{error}");
    assert!(!out.exists());
}
