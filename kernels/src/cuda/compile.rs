//! Compiles kernels with NVRTC, CUDA's compiler library, which is loaded when needed.
//!
//! Builds are cached in a folder. File names contain a hash of everything the build depends on: sources,
//! options, architecture and the compiler's version. A cached build needs only the version from the
//! compiler, and a new program or compiler never finds a stale build.

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use super::device::{DeviceError, Unit};
use super::source;

/// Architecture of a device: compute capability 9.0 is `sm_90`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch {
    /// Major version.
    pub major: i32,
    /// Minor version.
    pub minor: i32,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// Compiler options other than the architecture. Multiplications and additions are not contracted, and
/// subnormal numbers are kept.
const OPTIONS: [&str; 5] = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
];

/// Proof that the library is available.
pub struct Compiler {
    version: (i32, i32),
}

/// A build and the compiler's log.
pub struct Build {
    /// The image to load.
    pub image: Vec<u8>,
    /// Warnings; with `--ptxas-options=-v` also the registers and memory of each kernel.
    pub log: String,
}

impl Compiler {
    /// Loads the library.
    ///
    /// # Errors
    /// The library is not installed.
    pub fn find() -> Result<Compiler, DeviceError> {
        // SAFETY: loads the library, if there is one, as every call below would.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoCompiler {
                looked_for: "libnvrtc.so, libnvrtc.so.13, libnvrtc.so.12".to_owned(),
            });
        }
        let mut version = (0, 0);
        // SAFETY: two integers to write to.
        let _ = unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) };
        Ok(Compiler { version })
    }

    /// Returns the version, for example 13.0.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// The major version of its CUDA release.
    pub(crate) fn major(&self) -> i32 {
        self.version.0
    }

    /// Compiles for an architecture.
    ///
    /// # Errors
    /// The compiler does not know the architecture, or rejects the source.
    pub fn compile(&self, unit: Unit, arch: Arch, more: &[&str]) -> Result<Build, DeviceError> {
        let more = more.iter().map(|&option| option.to_owned());
        let options = options(unit, &arch.to_string()).into_iter().chain(more);
        let program = Program::compiled(unit, options)?;
        Ok(Build {
            image: program.image(),
            log: program.log(),
        })
    }

    /// Compiles to PTX for an architecture and all later ones.
    ///
    /// # Errors
    /// The compiler rejects the source, or does not know the architecture.
    pub fn ptx(&self, unit: Unit, arch: Arch) -> Result<Vec<u8>, DeviceError> {
        let options = options(unit, &of_ptx(arch)).into_iter();
        Ok(Program::compiled(unit, options)?.ptx())
    }

    /// Returns true if it compiles for an architecture.
    pub(crate) fn knows(&self, arch: Arch) -> bool {
        let number = 10 * arch.major + arch.minor;
        self.architectures().contains(&number)
    }

    /// Returns all architectures that it compiles for, as numbers: 90 for `sm_90`.
    fn architectures(&self) -> Vec<c_int> {
        let mut n = 0;
        // SAFETY: an integer to write to.
        let _ = unsafe { sys::nvrtcGetNumSupportedArchs(&mut n) };
        let mut found = vec![0; n.max(0) as usize];
        // SAFETY: as many integers to write to as there are.
        let _ = unsafe { sys::nvrtcGetSupportedArchs(found.as_mut_ptr()) };
        found
    }
}

/// Returns the virtual architecture that PTX is compiled for.
fn of_ptx(arch: Arch) -> String {
    format!("compute_{}{}", arch.major, arch.minor)
}

/// Returns a hash of all inputs of PTX for an architecture, except the compiler.
pub(crate) fn sources_hash(arch: Arch) -> [u8; 32] {
    let texts = source::headers().map(|header| header.text.to_owned());
    let units = source::units().flat_map(|unit| {
        let text = unit.text();
        options(unit, &of_ptx(arch)).into_iter().chain([text])
    });
    hash(texts.chain(units))
}

/// Hashes a sequence of texts.
fn hash(texts: impl Iterator<Item = String>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

/// Returns all options.
fn options(unit: Unit, arch: &str) -> Vec<String> {
    let definitions = unit.definitions().into_iter();
    let definitions = definitions.map(|(name, value)| format!("-D{name}={value}"));
    let fixed = OPTIONS.iter().map(|&option| option.to_owned());
    [format!("--gpu-architecture={arch}")]
        .into_iter()
        .chain(fixed)
        .chain(definitions)
        .collect()
}

/// Converts to a C string.
fn text(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).expect("sources and options have no zero bytes")
}

/// A source that the library has parsed.
struct Program {
    program: sys::nvrtcProgram,
    /// Strings that the library refers to.
    _source: Vec<CString>,
}

impl Program {
    fn new(unit: Unit) -> Program {
        let headers = source::headers().map(|header| text(header.text));
        let names = source::headers().map(|header| text(header.name.into_owned()));
        let (headers, names): (Vec<CString>, Vec<CString>) = (headers.collect(), names.collect());
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|string| string.as_ptr()).collect()
        };
        let (source, name) = (text(unit.text()), text(format!("{}.cu", unit.file)));
        let mut program = ptr::null_mut();
        // SAFETY: strings that live as long as the program.
        let _ = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                pointers(&headers).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        let _source = headers.into_iter().chain(names).chain([source, name]);
        Program {
            program,
            _source: _source.collect(),
        }
    }

    /// Compiles a source.
    fn compiled(unit: Unit, options: impl Iterator<Item = String>) -> Result<Program, DeviceError> {
        let options: Vec<CString> = options.map(text).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let program = Program::new(unit);
        // SAFETY: the program and the options are valid.
        let done = unsafe {
            sys::nvrtcCompileProgram(program.program, options.len() as c_int, options.as_ptr())
        };
        match done {
            sys::nvrtcResult::NVRTC_SUCCESS => Ok(program),
            _ => Err(DeviceError::Compile {
                unit: unit.to_string(),
                log: format!("{done:?}: {}", program.log().trim()),
            }),
        }
    }

    /// Returns the PTX without its terminating zero.
    fn ptx(&self) -> Vec<u8> {
        let mut len = 0;
        // SAFETY: the program has been compiled, and the buffer has the length that the library reported.
        let mut ptx = unsafe {
            let _ = sys::nvrtcGetPTXSize(self.program, &mut len);
            let mut ptx = vec![0u8; len];
            let _ = sys::nvrtcGetPTX(self.program, ptx.as_mut_ptr().cast());
            ptx
        };
        ptx.truncate(ptx.iter().position(|&byte| byte == 0).unwrap_or(len));
        ptx
    }

    fn log(&self) -> String {
        let mut len = 0;
        // SAFETY: the program exists, and the buffer has the length that the library reported.
        let log = unsafe {
            let _ = sys::nvrtcGetProgramLogSize(self.program, &mut len);
            let mut log = vec![0u8; len];
            let _ = sys::nvrtcGetProgramLog(self.program, log.as_mut_ptr().cast());
            log
        };
        String::from_utf8_lossy(&log)
            .trim_end_matches('\0')
            .to_owned()
    }

    fn image(&self) -> Vec<u8> {
        let mut len = 0;
        // SAFETY: the program has been compiled, and the buffer has the length that the library reported.
        unsafe {
            let _ = sys::nvrtcGetCUBINSize(self.program, &mut len);
            let mut image = vec![0u8; len];
            let _ = sys::nvrtcGetCUBIN(self.program, image.as_mut_ptr().cast());
            image
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and not used any more.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.program) };
    }
}

/// A folder of cached builds; `None` for no cache.
pub(crate) struct Cache(pub(crate) Option<PathBuf>);

impl Cache {
    /// Returns the path of a build.
    fn path(&self, compiler: &Compiler, unit: Unit, arch: Arch) -> Option<PathBuf> {
        let headers = source::headers().map(|header| header.text.to_owned());
        let texts = headers.chain([unit.text()]);
        let options = options(unit, &arch.to_string());
        let hash: String = hash(texts.chain(options).chain([compiler.version()]))[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let folder = self.0.as_ref()?;
        Some(folder.join(format!("{}-{arch}-{hash}.cubin", unit.file)))
    }

    /// Returns a build that an earlier run stored.
    pub(crate) fn look_up(&self, compiler: &Compiler, unit: Unit, arch: Arch) -> Option<Vec<u8>> {
        fs::read(self.path(compiler, unit, arch)?).ok()
    }

    /// Stores a build, atomically by renaming. If that fails, the next run compiles again.
    pub(crate) fn keep(&self, compiler: &Compiler, unit: Unit, arch: Arch, image: &[u8]) {
        if let Some(path) = self.path(compiler, unit, arch) {
            let _ = write_renamed(&path, image);
        }
    }
}

fn write_renamed(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let part = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&part, bytes)?;
    fs::rename(&part, path).inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })
}
