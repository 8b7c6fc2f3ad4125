//! The one writer. Sizes come before data: the header and every offset are final before a source
//! is asked for a byte, so workers write their rows at their places in any order, memory stays
//! bounded by one chunk a worker, and the result does not depend on how many there are.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::dtype::DType;
use super::plan::{Plan, PlanError, SourceError, Tensor};
use super::read::MAGIC;
use super::value::{Array, Value};

/// Bytes that a worker produces at a time: large enough to hide system calls, small enough for
/// many workers. A row longer than this is still one chunk.
const CHUNK_BYTES: u64 = 4 << 20;

/// How to write.
pub struct WriteConfig<'a> {
    /// Workers; 0 for one a core.
    pub threads: usize,
    /// Called with the bytes just written, from any worker.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// A plan could not be written, and why. No file is left behind.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The output, or the folder it goes to.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A source could not produce its bytes.
    #[error("tensor {tensor}: {source}")]
    Source {
        /// The name.
        tensor: String,
        /// Why.
        source: SourceError,
    },
    /// The plan is one that no reader would take.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Where everything of a plan goes.
#[derive(Clone, Debug, PartialEq)]
pub struct FileLayout {
    /// All bytes before the data, padding included.
    pub header: Vec<u8>,
    /// Place of each tensor's data, in bytes from the start of the file.
    pub offsets: Vec<u64>,
    /// Bytes of the whole file.
    pub size_bytes: u64,
}

/// Lays a plan out: the header's bytes, and the place of every tensor.
///
/// # Errors
/// The plan is one that no reader would take.
pub fn layout(plan: &Plan) -> Result<FileLayout, PlanError> {
    plan.check()?;
    let alignment = plan.alignment()?;
    let mut header = MAGIC.to_vec();
    put_u32(&mut header, plan.version);
    put_u64(&mut header, plan.tensors.len() as u64);
    put_u64(&mut header, plan.metadata.len() as u64);
    for (key, value) in plan.metadata.iter() {
        put_string(&mut header, key.as_bytes());
        put_u32(&mut header, value.value_type() as u32);
        put_value(&mut header, value);
    }
    let mut offsets = Vec::with_capacity(plan.tensors.len());
    let mut end = 0u64;
    for tensor in &plan.tensors {
        put_string(&mut header, tensor.name.as_bytes());
        put_u32(&mut header, tensor.shape.len() as u32);
        tensor.shape.iter().for_each(|&ne| put_u64(&mut header, ne));
        let DType(id) = tensor.dtype;
        put_u32(&mut header, id);
        put_u64(&mut header, end);
        offsets.push(end);
        end = (end + tensor.size_bytes).next_multiple_of(alignment);
    }
    header.resize(header.len().next_multiple_of(alignment as usize), 0);
    let data_start = header.len() as u64;
    offsets.iter_mut().for_each(|offset| *offset += data_start);
    Ok(FileLayout {
        header,
        offsets,
        size_bytes: data_start + end,
    })
}

/// Writes a plan to `path` and returns the size of the file in bytes.
///
/// The file appears under its name only when it is whole and on disk; until then it grows beside
/// it under another name, which is removed if anything fails.
///
/// # Errors
/// A source fails, or the operating system refuses.
pub fn write(plan: &Plan, path: &Path, config: &WriteConfig<'_>) -> Result<u64, WriteError> {
    let FileLayout {
        header,
        offsets,
        size_bytes,
    } = layout(plan)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let io_error = |source| WriteError::Io {
        path: path.to_path_buf(),
        source,
    };
    let name = path.file_name().ok_or_else(|| {
        io_error(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a file name",
        ))
    })?;
    let partial = tempfile::Builder::new()
        .prefix(&format!(".{}.", name.to_string_lossy()))
        .suffix(".partial")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(|e| WriteError::Io {
            path: folder.to_path_buf(),
            // Without the name of the partial file, which tells a user nothing.
            source: e.raw_os_error().map_or(e, io::Error::from_raw_os_error),
        })?;
    partial.as_file().set_len(size_bytes).map_err(io_error)?;
    partial
        .as_file()
        .write_all_at(&header, 0)
        .map_err(io_error)?;
    (config.progress)(header.len() as u64);
    write_data(plan, &offsets, partial.as_file(), path, config)?;
    partial.as_file().sync_all().map_err(io_error)?;
    partial.persist(path).map_err(|e| io_error(e.error))?;
    // The rename itself must reach the disk, or a crash could leave the old name.
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io_error)?;
    Ok(size_bytes)
}

/// Some rows of one tensor: what a worker takes at a time.
struct Chunk<'a> {
    tensor: &'a Tensor,
    rows: std::ops::Range<u64>,
    /// Place in the file.
    offset: u64,
}

fn chunks<'a>(plan: &'a Plan, offsets: &[u64]) -> Vec<Chunk<'a>> {
    let mut chunks = Vec::new();
    for (tensor, &start) in plan.tensors.iter().zip(offsets) {
        let row_bytes = tensor.row_bytes();
        let step = (CHUNK_BYTES / row_bytes).max(1);
        let n_rows = tensor.n_rows();
        let mut row = 0;
        while row < n_rows {
            let rows = row..(row + step).min(n_rows);
            row = rows.end;
            chunks.push(Chunk {
                tensor,
                offset: start + rows.start * row_bytes,
                rows,
            });
        }
    }
    chunks
}

fn write_data(
    plan: &Plan,
    offsets: &[u64],
    file: &File,
    path: &Path,
    config: &WriteConfig<'_>,
) -> Result<(), WriteError> {
    let chunks = chunks(plan, offsets);
    let threads = match config.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    let next = AtomicUsize::new(0);
    // The failure of the earliest chunk wins, so that the message does not depend on timing
    // when one tensor is bad throughout.
    let failure: Mutex<Option<(usize, WriteError)>> = Mutex::new(None);
    let work = || {
        let mut buffer = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunks.get(i) else { return };
            if let Err(error) = write_chunk(chunk, file, path, &mut buffer) {
                next.store(chunks.len(), Ordering::Relaxed);
                let mut failure = failure
                    .lock()
                    .expect("no worker panics while it holds this");
                if failure.as_ref().is_none_or(|&(first, _)| i < first) {
                    *failure = Some((i, error));
                }
                return;
            }
            (config.progress)((chunk.rows.end - chunk.rows.start) * chunk.tensor.row_bytes());
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(chunks.len()) {
            scope.spawn(work);
        }
        work();
    });
    match failure
        .into_inner()
        .expect("no worker panics while it holds this")
    {
        None => Ok(()),
        Some((_, error)) => Err(error),
    }
}

fn write_chunk(
    chunk: &Chunk<'_>,
    file: &File,
    path: &Path,
    buffer: &mut Vec<u8>,
) -> Result<(), WriteError> {
    let Chunk {
        tensor,
        rows,
        offset,
    } = chunk;
    let row_bytes = tensor.row_bytes();
    let io_error = |source| WriteError::Io {
        path: path.to_path_buf(),
        source,
    };
    if let Some(bytes) = tensor.source.bytes() {
        let place = (rows.start * row_bytes) as usize..(rows.end * row_bytes) as usize;
        return file.write_all_at(&bytes[place], *offset).map_err(io_error);
    }
    buffer.resize(((rows.end - rows.start) * row_bytes) as usize, 0);
    tensor
        .source
        .read(rows.clone(), buffer)
        .map_err(|source| WriteError::Source {
            tensor: tensor.name.clone(),
            source,
        })?;
    file.write_all_at(buffer, *offset).map_err(io_error)
}

fn put_u32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    put_u64(out, text.len() as u64);
    out.extend_from_slice(text);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => put_u32(out, *v),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_string(out, v),
        Value::U64(v) => put_u64(out, *v),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Array(array) => {
            put_u32(out, array.item_type() as u32);
            put_u64(out, array.len() as u64);
            match array {
                Array::Bool(items) => out.extend(items.iter().map(|&v| u8::from(v))),
                Array::String(items) => items.iter().for_each(|text| put_string(out, text)),
                Array::U8(items) => out.extend_from_slice(items),
                Array::I8(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::U16(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::I16(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::U32(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::I32(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::F32(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::U64(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::I64(items) => put_numbers(out, items, |v| v.to_le_bytes()),
                Array::F64(items) => put_numbers(out, items, |v| v.to_le_bytes()),
            }
        }
    }
}

fn put_numbers<T: Copy, const N: usize>(
    out: &mut Vec<u8>,
    items: &[T],
    le_bytes: impl Fn(T) -> [u8; N],
) {
    items
        .iter()
        .for_each(|&v| out.extend_from_slice(&le_bytes(v)));
}
