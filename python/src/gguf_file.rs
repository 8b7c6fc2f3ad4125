//! Open GGUF files: metadata as Python values, tensors by position.

use std::borrow::Cow;
use std::path::PathBuf;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyString};
use schemas::gguf::{self, Array, Plan, Tensor, Value};

use crate::arrays;
use crate::error::{raise_library, raise_text};

/// An open file, or all shards of a split model.
#[pyclass(frozen)]
pub(crate) struct File {
    path: PathBuf,
    plan: Plan,
}

/// Name, shape with the contiguous dimension last, type, file, offset and size of a tensor.
type Entry = (String, Vec<u64>, String, PathBuf, u64, u64);

#[pymethods]
impl File {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<File> {
        let plan = py.detach(|| gguf::open(&path));
        match plan {
            Ok(plan) => Ok(File { path, plan }),
            Err(error) => Err(raise_library(py, error)),
        }
    }

    /// The version of the format.
    #[getter]
    fn version(&self) -> u32 {
        self.plan.version
    }

    /// Returns all keys with their values, in file order.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (key, value) in self.plan.metadata.iter() {
            dict.set_item(key, python_value(py, value)?)?;
        }
        Ok(dict)
    }

    /// Returns the entries of all tensors, in file order.
    fn tensors(&self) -> Vec<Entry> {
        let entry = |tensor: &Tensor| {
            let origin = tensor.source.origin();
            let (path, offset) = origin.map_or((self.path.clone(), 0), |origin| {
                (origin.path.to_owned(), origin.offset)
            });
            let shape = tensor.shape.iter().rev().copied().collect();
            let dtype = tensor.dtype.to_string();
            let name = tensor.name.clone();
            (name, shape, dtype, path, offset, tensor.size_bytes)
        };
        self.plan.tensors.iter().map(entry).collect()
    }

    /// Returns the values of a tensor as little-endian `f32`.
    fn dequantize<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyByteArray>> {
        let tensors = &self.plan.tensors;
        let tensor = tensors
            .get(index)
            .ok_or_else(|| PyIndexError::new_err(index))?;
        if let Err(error) = tensor.source.check_unchanged() {
            return Err(raise_library(py, error));
        }
        let data = match tensor.source.bytes() {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(tensor.read_all().map_err(|error| {
                let (path, name) = (self.path.display(), &tensor.name);
                raise_text(py, format!("{path}: tensor {name}: {error}"))
            })?),
        };
        arrays::dequantize(py, tensor.dtype, tensor.ne0(), &data).unwrap_or_else(|| {
            let (path, name, dtype) = (self.path.display(), &tensor.name, tensor.dtype);
            let message = format!("{path}: tensor {name}: type {dtype} cannot be dequantized");
            Err(raise_text(py, message))
        })
    }
}

/// Converts a value of the metadata. A string that is not UTF-8 becomes `bytes`.
fn python_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::U8(x) => x.into_pyobject(py)?.into_any(),
        Value::I8(x) => x.into_pyobject(py)?.into_any(),
        Value::U16(x) => x.into_pyobject(py)?.into_any(),
        Value::I16(x) => x.into_pyobject(py)?.into_any(),
        Value::U32(x) => x.into_pyobject(py)?.into_any(),
        Value::I32(x) => x.into_pyobject(py)?.into_any(),
        Value::U64(x) => x.into_pyobject(py)?.into_any(),
        Value::I64(x) => x.into_pyobject(py)?.into_any(),
        Value::F32(x) => x.into_pyobject(py)?.into_any(),
        Value::F64(x) => x.into_pyobject(py)?.into_any(),
        Value::Bool(x) => x.into_pyobject(py)?.to_owned().into_any(),
        Value::String(text) => python_string(py, text),
        Value::Array(array) => python_list(py, array)?.into_any(),
    })
}

fn python_string<'py>(py: Python<'py>, text: &[u8]) -> Bound<'py, PyAny> {
    match std::str::from_utf8(text) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, text).into_any(),
    }
}

fn python_list<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyList>> {
    match array {
        // A list, like those of other types; `Vec<u8>` would become `bytes`.
        Array::U8(x) => PyList::new(py, x.iter().map(|&x| u32::from(x))),
        Array::I8(x) => PyList::new(py, x),
        Array::U16(x) => PyList::new(py, x),
        Array::I16(x) => PyList::new(py, x),
        Array::U32(x) => PyList::new(py, x),
        Array::I32(x) => PyList::new(py, x),
        Array::F32(x) => PyList::new(py, x),
        Array::Bool(x) => PyList::new(py, x),
        Array::U64(x) => PyList::new(py, x),
        Array::I64(x) => PyList::new(py, x),
        Array::F64(x) => PyList::new(py, x),
        Array::String(x) => {
            let texts: Vec<_> = x.iter().map(|text| python_string(py, text)).collect();
            PyList::new(py, texts)
        }
    }
}
