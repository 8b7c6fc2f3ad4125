//! llama-perplexity's file of logits (`--save-all-logits`): the tokens of a text, and the base's distribution at
//! each scored position in 16 bits per token of the vocabulary.
//!
//! `_logits_`, then `n_ctx`, `n_vocab`, `n_chunks` and the tokens as `i32`; then the rows in the order of the
//! positions. A row has a scale and the least log-probability as `f32`, and for each token a code as `u16`:
//! `log p = scale * code + least`. A row of an odd vocabulary ends with an unused code.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use schemas::input;
use schemas::outfile::{self, Partial};

use crate::error::Error;

use super::row::BaseRow;
use super::{first_scored, for_each_row, logits_error};

const MAGIC: &[u8; 8] = b"_logits_";
/// Log-probabilities more than this below the largest share the code 0.
const REACH: f32 = 16.0;
const MAX_CODE: f32 = 65535.0;
/// Limits that no model exceeds: products of these fit 64 bits.
const MAX_CTX: u32 = 1 << 24;
const MAX_VOCAB: u32 = 1 << 24;
const MAX_TOKENS: u64 = 1 << 32;

/// The beginning of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Chunk length in tokens.
    pub n_ctx: usize,
    /// Codes per row.
    pub n_vocab: usize,
    /// The text: complete chunks.
    pub tokens: Vec<u32>,
}

impl Header {
    /// Bytes of one row.
    fn row_bytes(&self) -> usize {
        8 + 2 * self.n_vocab.next_multiple_of(2)
    }

    /// Rows of one chunk.
    fn n_chunk_rows(&self) -> usize {
        self.n_ctx - 1 - first_scored(self.n_ctx)
    }
}

/// Reads the rows of a file in order.
pub struct LogitsReader {
    /// Path of the file.
    pub path: PathBuf,
    /// The beginning of the file.
    pub header: Header,
    file: BufReader<File>,
}

impl LogitsReader {
    /// Opens a file and reads its tokens.
    ///
    /// # Errors
    /// The file cannot be read, is no file of logits, or is shorter or longer than its header says.
    pub fn open(path: &Path) -> Result<LogitsReader, Error> {
        let error = |message: String| logits_error(path, message);
        let file = input::open(path).map_err(|e| logits_error(path, e))?;
        let found = file.metadata().map_err(|e| logits_error(path, e))?.len();
        let mut file = BufReader::new(file);
        let mut start = [0; 20];
        file.read_exact(&mut start)
            .map_err(|_| error(format!("{found} bytes, expected at least {}", start.len())))?;
        if start[..8] != MAGIC[..] {
            return Err(error(
                "not a file of logits, which begins with _logits_".to_owned(),
            ));
        }
        let number = |at: usize| u32::from_le_bytes(start[at..at + 4].try_into().expect("4 bytes"));
        let [n_ctx, n_vocab, n_chunks] = [8, 12, 16].map(number);
        let n_tokens = u64::from(n_ctx) * u64::from(n_chunks);
        let is_plausible = (4..=MAX_CTX).contains(&n_ctx)
            && (1..=MAX_VOCAB).contains(&n_vocab)
            && (1..=MAX_TOKENS).contains(&n_tokens);
        if !is_plausible {
            return Err(error(format!(
                "{n_chunks} chunks of {n_ctx} tokens and a vocabulary of {n_vocab}, expected numbers of a model"
            )));
        }
        let mut header = Header {
            n_ctx: n_ctx as usize,
            n_vocab: n_vocab as usize,
            tokens: Vec::new(),
        };
        let n_rows = u64::from(n_chunks) * header.n_chunk_rows() as u64;
        // All factors are limited: at most 2^32 rows of 2^25 bytes.
        let expected = start.len() as u64 + 4 * n_tokens + n_rows * header.row_bytes() as u64;
        if found != expected {
            return Err(error(format!("{found} bytes, expected {expected}")));
        }
        let mut bytes = vec![0; 4 * n_tokens as usize];
        file.read_exact(&mut bytes)
            .map_err(|e| logits_error(path, e))?;
        let (words, _) = bytes.as_chunks();
        header.tokens = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        if let Some(token) = header.tokens.iter().find(|&&token| token >= n_vocab) {
            return Err(error(format!(
                "token {token}, expected one below {n_vocab}"
            )));
        }
        Ok(LogitsReader {
            path: path.to_path_buf(),
            header,
            file,
        })
    }

    /// Skips the rows of chunks.
    pub(super) fn skip_chunks(&mut self, n: usize) -> Result<(), Error> {
        // The size of the file, which was checked, is the limit.
        let n_bytes = n * self.header.n_chunk_rows() * self.header.row_bytes();
        let skipped = self.file.seek_relative(n_bytes as i64);
        skipped.map_err(|e| logits_error(&self.path, e))
    }

    /// Reads the next rows.
    pub(super) fn rows(&mut self, n: usize) -> Result<Vec<BaseRow>, Error> {
        let (n_vocab, row_bytes) = (self.header.n_vocab, self.header.row_bytes());
        let mut bytes = vec![0; n * row_bytes];
        let read = self.file.read_exact(&mut bytes);
        read.map_err(|e| logits_error(&self.path, e))?;
        Ok(for_each_row(n, |i| {
            let row = &bytes[i * row_bytes..][..row_bytes];
            let number =
                |at: usize| f32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes"));
            let (scale, least) = (number(0), number(4));
            let (codes, _) = row[8..].as_chunks();
            let log = |code: &[u8; 2]| scale * f32::from(u16::from_le_bytes(*code)) + least;
            BaseRow::of_logs(codes[..n_vocab].iter().map(log).collect())
        }))
    }
}

/// Writes a file of logits.
pub(super) struct LogitsWriter {
    partial: Partial,
    /// A buffer of bytes that were not written yet.
    file: BufWriter<File>,
    path: PathBuf,
}

impl LogitsWriter {
    /// Begins a file with a text of complete chunks.
    ///
    /// # Errors
    /// The folder is not writable, or the disk is full.
    pub(super) fn create(
        path: &Path,
        n_ctx: usize,
        n_vocab: usize,
        tokens: &[u32],
    ) -> Result<LogitsWriter, Error> {
        let partial = Partial::create_one(path).map_err(|e| logits_error(path, e))?;
        let file = partial
            .file()
            .try_clone()
            .map_err(|e| logits_error(path, e))?;
        let mut writer = LogitsWriter {
            partial,
            file: BufWriter::new(file),
            path: path.to_path_buf(),
        };
        writer.write(MAGIC)?;
        for number in [n_ctx, n_vocab, tokens.len() / n_ctx] {
            writer.write(&(number as u32).to_le_bytes())?;
        }
        for token in tokens {
            writer.write(&token.to_le_bytes())?;
        }
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file
            .write_all(bytes)
            .map_err(|e| logits_error(&self.path, e))
    }

    /// Appends the distribution of a row of logits.
    pub(super) fn push(&mut self, logits: &[f32]) -> Result<(), Error> {
        self.write(&encode(logits))
    }

    /// Publishes the file.
    pub(super) fn publish(mut self) -> Result<(), Error> {
        self.file.flush().map_err(|e| logits_error(&self.path, e))?;
        outfile::publish(vec![self.partial]).map_err(|e| logits_error(&self.path, e))
    }
}

/// Encodes the distribution of a row of logits.
fn encode(logits: &[f32]) -> Vec<u8> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let smallest = logits.iter().copied().fold(f32::INFINITY, f32::min);
    let least = smallest.max(largest - REACH);
    let sum: f64 = logits.iter().map(|x| f64::from((x - largest).exp())).sum();
    let scale = (largest - least) / MAX_CODE;
    let mut bytes = Vec::with_capacity(8 + 2 * logits.len() + 2);
    bytes.extend(scale.to_le_bytes());
    bytes.extend((least - largest - sum.ln() as f32).to_le_bytes());
    let inverse = 1.0 / scale;
    for &logit in logits {
        let code = match logit > least {
            true => (inverse * (logit - least)).round_ties_even() as u16,
            false => 0,
        };
        bytes.extend(code.to_le_bytes());
    }
    bytes.resize(8 + 2 * logits.len().next_multiple_of(2), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::divergence::row::score_rows;

    /// A file of two chunks of 8 with three rows each, and a vocabulary of 5.
    fn written(path: &Path) -> Vec<Vec<f32>> {
        let tokens: Vec<u32> = (0..16).map(|i| i % 5).collect();
        let row = |i: usize| {
            (0..5)
                .map(|t| ((i * 7 + t * 3) % 11) as f32 - 4.0)
                .collect()
        };
        let rows: Vec<Vec<f32>> = (0..6).map(row).collect();
        let mut writer = LogitsWriter::create(path, 8, 5, &tokens).unwrap();
        rows.iter().for_each(|row| writer.push(row).unwrap());
        writer.publish().unwrap();
        rows
    }

    #[test]
    fn rows_are_read_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let rows = written(&path);
        let mut reader = LogitsReader::open(&path).unwrap();
        assert_eq!(reader.header.tokens.len(), 16);
        let base = reader.rows(6).unwrap();
        let scores = score_rows(&base, &rows.concat(), 5, &[0, 1, 2, 3, 4, 0]);
        for score in scores {
            assert!(score.kld.abs() < 1e-4 && score.same_top, "{score:?}");
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        written(&path);
        let whole = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            LogitsReader::open(&path).map(drop).unwrap_err().to_string()
        };
        let cut = refused(&whole[..whole.len() - 1]);
        assert!(cut.ends_with(&format!("expected {}", whole.len())), "{cut}");
        assert!(refused(b"_logits").ends_with("expected at least 20"));
        assert!(refused(&[0; 40]).contains("not a file of logits"));
        let changed = |at: usize, value: u32| {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        assert!(refused(&changed(8, u32::MAX)).contains("expected numbers of a model"));
        assert!(refused(&changed(16, 1 << 20)).contains("bytes, expected"));
        assert!(refused(&changed(20, 5)).contains("expected one below 5"));
    }
}
