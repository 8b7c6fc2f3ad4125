//! Names of `general.file_type`.

use schemas::arch::keys;
use schemas::gguf::Metadata;

/// Returns the name of a file's type; `None` if the key is absent or its value is unknown.
pub(crate) fn of(metadata: &Metadata) -> Option<String> {
    let id = metadata.u32(keys::FILE_TYPE).ok()??;
    quantize::file_type_name(id).map(str::to_owned)
}
