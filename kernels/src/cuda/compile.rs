//! Kernels from their sources, by NVRTC: CUDA's compiler as a library, looked for when it is needed.
//!
//! What was compiled is kept in a folder, under a name that holds the hash of everything it depends
//! on: sources, options, architecture and the compiler's version. The compiler is asked for its
//! version only, then, and a new program, driver or compiler never finds an old build.

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use super::device::{DeviceError, Unit};
use super::source;

/// What a device's instructions are: compute capability 9.0 is `sm_90`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch {
    /// Before the point.
    pub major: i32,
    /// Behind it.
    pub minor: i32,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// What is compiled with, besides the architecture. Nothing is contracted or flushed to zero.
const OPTIONS: [&str; 5] = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
];

/// The library, known to be there.
pub struct Compiler {
    version: (i32, i32),
}

/// A build, and what the compiler says of it.
pub struct Build {
    /// For the driver.
    pub image: Vec<u8>,
    /// Warnings, and with `--ptxas-options=-v` registers and memory of each kernel.
    pub log: String,
}

impl Compiler {
    /// Looks for the library.
    ///
    /// # Errors
    /// There is none.
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

    /// Its version: 13.0, for example.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// The version of CUDA that it belongs to, before the point.
    pub(super) fn major(&self) -> i32 {
        self.version.0
    }

    /// Compiles for an architecture.
    ///
    /// # Errors
    /// The compiler does not know the architecture, or refuses the source.
    pub fn compile(&self, unit: Unit, arch: Arch, more: &[&str]) -> Result<Build, DeviceError> {
        let more = more.iter().map(|&option| option.to_owned());
        let options = options(unit, &arch.to_string()).into_iter().chain(more);
        let program = Program::compiled(unit, options)?;
        Ok(Build {
            image: program.image(),
            log: program.log(),
        })
    }

    /// Compiles for an architecture and all later ones, as far as that goes without knowing which.
    ///
    /// # Errors
    /// The compiler refuses the source, or does not know the architecture.
    pub fn ptx(&self, unit: Unit, arch: Arch) -> Result<Vec<u8>, DeviceError> {
        let options = options(unit, &of_ptx(arch)).into_iter();
        Ok(Program::compiled(unit, options)?.ptx())
    }

    /// Whether it compiles for an architecture.
    pub(super) fn knows(&self, arch: Arch) -> bool {
        let number = 10 * arch.major + arch.minor;
        self.architectures().contains(&number)
    }

    /// Every architecture that it compiles for, as numbers: 90 for `sm_90`.
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

/// What PTX for an architecture is compiled for.
fn of_ptx(arch: Arch) -> String {
    format!("compute_{}{}", arch.major, arch.minor)
}

/// A hash of everything that PTX for an architecture is made of, but for the compiler.
pub(super) fn sources_hash(arch: Arch) -> [u8; 32] {
    let texts = source::HEADERS.iter().map(|header| header.text.to_owned());
    let units = source::units().flat_map(|unit| {
        let text = unit.text().to_owned();
        options(unit, &of_ptx(arch)).into_iter().chain([text])
    });
    hash(texts.chain(units))
}

/// A hash of texts one after another.
fn hash(texts: impl Iterator<Item = String>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

/// All options.
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

/// A string for the library.
fn text(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).expect("sources and options have no zero bytes")
}

/// A source that the library has taken in.
struct Program {
    program: sys::nvrtcProgram,
    /// What it refers to.
    _source: Vec<CString>,
}

impl Program {
    fn new(unit: Unit) -> Program {
        let headers = source::HEADERS.iter().map(|header| text(header.text));
        let names = source::HEADERS.iter().map(|header| text(header.name));
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

    /// A source that has been compiled.
    fn compiled(unit: Unit, options: impl Iterator<Item = String>) -> Result<Program, DeviceError> {
        let options: Vec<CString> = options.map(text).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let program = Program::new(unit);
        // SAFETY: the program is there, and so are the options.
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

    /// The text for a driver, without the zero at its end.
    fn ptx(&self) -> Vec<u8> {
        let mut len = 0;
        // SAFETY: the program has been compiled, and the buffer is as long as it says.
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
        // SAFETY: the program is there, and the buffer as long as it says.
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
        // SAFETY: the program has been compiled, and the buffer is as long as it says.
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
        // SAFETY: made by `new`, and nothing uses it any more.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.program) };
    }
}

/// A folder of builds.
pub(super) struct Cache(pub(super) Option<PathBuf>);

impl Cache {
    /// Where a build is kept.
    fn path(&self, compiler: &Compiler, unit: Unit, arch: Arch) -> Option<PathBuf> {
        let headers = source::HEADERS.iter().map(|header| header.text);
        let texts = headers.chain([unit.text()]).map(str::to_owned);
        let options = options(unit, &arch.to_string());
        let hash: String = hash(texts.chain(options).chain([compiler.version()]))[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let folder = self.0.as_ref()?;
        Some(folder.join(format!("{}-{arch}-{hash}.cubin", unit.file)))
    }

    /// What was kept of an earlier run.
    pub(super) fn look_up(&self, compiler: &Compiler, unit: Unit, arch: Arch) -> Option<Vec<u8>> {
        fs::read(self.path(compiler, unit, arch)?).ok()
    }

    /// Keeps a build: written beside its place, then renamed. Without room the next run compiles again.
    pub(super) fn keep(&self, compiler: &Compiler, unit: Unit, arch: Arch, image: &[u8]) {
        if let Some(path) = self.path(compiler, unit, arch) {
            let _ = write_beside(&path, image);
        }
    }
}

fn write_beside(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&beside, bytes)?;
    fs::rename(&beside, path).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}
