//! Errors as Python exceptions, with the texts of the programs.

use cli::embedded::Failure;
use pyo3::prelude::*;

/// Returns the exception `specconv.Error` for a failure.
pub(crate) fn raise(py: Python<'_>, failure: Failure) -> PyErr {
    let exception = || {
        let class = py.import("specconv._errors")?.getattr("Error")?;
        class.call1((failure.message, failure.hint))
    };
    exception().map_or_else(|error| error, PyErr::from_value)
}

/// Returns the exception for an error of a library.
pub(crate) fn raise_library(
    py: Python<'_>,
    error: impl std::error::Error + Send + Sync + 'static,
) -> PyErr {
    raise(py, Failure::of(error))
}

/// Returns the exception for invalid arguments.
pub(crate) fn raise_text(py: Python<'_>, message: String) -> PyErr {
    let failure = Failure {
        message,
        hint: None,
        is_interrupted: false,
    };
    raise(py, failure)
}
