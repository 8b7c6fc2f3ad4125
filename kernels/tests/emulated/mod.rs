//! An emulated CUDA device: the kernels' sources, compiled by the system's C++ compiler against
//! `emulated.h` and run one thread after another.
//!
//! It verifies what kernels compute: indices, shapes, barriers that all threads reach, and every bit. It
//! does not verify timing, races on memory shared without a barrier, or the code that NVRTC generates.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use kernels::cuda::device::{Address, Device, DeviceError, Graph, Launch, Unit};
use kernels::cuda::source;
use libloading::{Library, Symbol};

const HEADER: &str = include_str!("emulated.h");

/// Execution order of blocks, warps and lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Ascending order.
    Rising,
    /// Descending order.
    Falling,
}

/// The emulated device.
pub(crate) struct Emulated {
    order: Order,
    /// Allocations by address, each between two guards.
    memory: Mutex<HashMap<u64, Vec<Word>>>,
    graphs: Mutex<Graphs>,
    n_launched: AtomicUsize,
}

/// Graphs created so far.
#[derive(Default)]
struct Graphs {
    kept: HashMap<Graph, Vec<Launch>>,
    n_made: u64,
    n_changed: usize,
    n_run: usize,
}

/// Alignment of device allocations.
#[derive(Clone, Copy)]
#[repr(align(256))]
struct Word([u8; 256]);

/// Guard before and after each allocation.
const GUARD: Word = Word([0xa5; 256]);

/// The build of a unit, made when its first kernel is launched. It is locked while a kernel runs: threads and shared
/// memory are static variables of the build.
type Build = Arc<Mutex<Option<Library>>>;

/// Builds of all units.
static BUILDS: Mutex<Option<HashMap<Unit, Build>>> = Mutex::new(None);

/// Returns the compiler and its version; `None` if none is installed.
fn compiler() -> Option<&'static (String, String)> {
    static FOUND: OnceLock<Option<(String, String)>> = OnceLock::new();
    let find = || {
        let named = std::env::var("CXX").ok();
        let names = named
            .into_iter()
            .chain(["c++", "g++", "clang++"].map(String::from));
        names.into_iter().find_map(|name| {
            let output = Command::new(&name).arg("--version").output().ok()?;
            let version = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success().then_some((name, version))
        })
    };
    FOUND.get_or_init(find).as_ref()
}

impl Emulated {
    /// Creates the device; returns `None` and prints the reason if no compiler is installed.
    #[expect(clippy::print_stdout, reason = "a test that proves nothing says so")]
    pub(crate) fn new(order: Order) -> Option<Emulated> {
        if compiler().is_none() {
            println!("skipped: no C++ compiler, so the CUDA kernels cannot be emulated");
            return None;
        }
        Some(Emulated {
            order,
            memory: Mutex::default(),
            graphs: Mutex::default(),
            n_launched: AtomicUsize::new(0),
        })
    }

    /// Returns the number of allocated bytes.
    #[allow(dead_code, reason = "only some of the tests that emulate ask")]
    pub(crate) fn allocated(&self) -> usize {
        let memory = self.memory.lock().expect("no panic while it is locked");
        let inner = |words: &Vec<Word>| (words.len() - 2) * size_of::<Word>();
        memory.values().map(inner).sum()
    }

    /// Returns the number of graph launches, and of kernels in graphs whose arguments were replaced.
    #[allow(dead_code, reason = "only some of the tests that emulate ask")]
    pub(crate) fn graphs_run(&self) -> (usize, usize) {
        let graphs = self.graphs();
        (graphs.n_run, graphs.n_changed)
    }

    /// Returns the number of kernels launched.
    #[allow(dead_code, reason = "only some of the tests that emulate ask")]
    pub(crate) fn launched(&self) -> usize {
        self.n_launched.load(Ordering::Relaxed)
    }

    fn graphs(&self) -> MutexGuard<'_, Graphs> {
        self.graphs.lock().expect("no panic while it is locked")
    }

    fn build(unit: Unit) -> PathBuf {
        let (name, version) = compiler().expect("there is one, or there were no device");
        let mut args: Vec<String> = [
            "-std=c++17",
            "-O2",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
        ]
        .map(String::from)
        .to_vec();
        args.extend(["-w", "-fPIC", "-shared", "-x", "c++"].map(String::from));
        for (name, value) in unit.definitions() {
            args.push(format!("-D{name}={value}"));
        }
        let mut hasher = DefaultHasher::new();
        (version, &args, HEADER, unit.text()).hash(&mut hasher);
        source::headers().for_each(|header| header.text.hash(&mut hasher));
        let hash = hasher.finish();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        let library = folder.join(format!("{}-{hash:016x}.so", unit.file));
        if library.exists() {
            return library;
        }
        let work = folder.join(format!("{hash:016x}-{}", std::process::id()));
        fs::create_dir_all(&work).expect("a folder for builds");
        for header in source::headers() {
            fs::write(work.join(&*header.name), header.text).expect("a header");
        }
        let text = format!("{HEADER}\n{}", unit.text());
        fs::write(work.join("unit.cpp"), text).expect("a source");
        let output = Command::new(name)
            .current_dir(&work)
            .args(args)
            .args(["unit.cpp", "-o", "unit.so"])
            .output()
            .expect("the compiler ran before");
        assert!(
            output.status.success(),
            "{unit}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        fs::rename(work.join("unit.so"), &library).expect("a build to its place");
        fs::remove_dir_all(&work).expect("a folder of our own");
        library
    }
}

type Begin = unsafe extern "C" fn(*const c_void, u64, *const u32, u32, u32, u32) -> *const c_char;

impl Device for Emulated {
    fn name(&self) -> String {
        format!("cuda (emulated, {:?} order)", self.order)
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let mut words = vec![GUARD; bytes.div_ceil(size_of::<Word>()) + 2];
        let address = words[1..].as_mut_ptr() as u64;
        self.memory
            .lock()
            .expect("no panic while it is locked")
            .insert(address, words);
        Ok(Address(address))
    }

    unsafe fn free(&self, address: Address) {
        let mut memory = self.memory.lock().expect("no panic while it is locked");
        let words = memory.remove(&address.0).expect("it was allocated here");
        let intact = [words.first(), words.last()]
            .iter()
            .all(|guard| guard.is_some_and(|guard| guard.0 == GUARD.0));
        assert!(
            intact || std::thread::panicking(),
            "a kernel wrote outside of its memory"
        );
    }

    unsafe fn write(&self, src: &[u8], to: Address) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), to.0 as *mut u8, src.len()) };
        Ok(())
    }

    unsafe fn read(&self, from: Address, dst: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    unsafe fn fill(&self, to: Address, word: u32, n_words: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; allocations are aligned.
        unsafe { std::slice::from_raw_parts_mut(to.0 as *mut u32, n_words) }.fill(word);
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        let Launch { kernel, grid, args } = *launch;
        self.n_launched.fetch_add(1, Ordering::Relaxed);
        let build = {
            let mut builds = BUILDS.lock().expect("no panic while it is locked");
            let builds = builds.get_or_insert_default();
            Arc::clone(builds.entry(kernel.unit).or_default())
        };
        let mut library = build.lock().expect("no panic while it is locked");
        let library = library.get_or_insert_with(|| {
            let path = Emulated::build(kernel.unit);
            // SAFETY: built from our sources, without harmful initialisers.
            unsafe { Library::new(path) }.expect("a build that loads")
        });
        let symbol = format!("{}_launch", kernel.name);
        // SAFETY: the signature that the header gives every kernel; the rest is the caller's promise.
        let wrong = unsafe {
            let begin: Symbol<'_, Begin> = library
                .get(symbol.as_bytes())
                .unwrap_or_else(|_| panic!("{} has no {}", kernel.unit, kernel.name));
            let falling = u32::from(self.order == Order::Falling);
            begin(
                args.data(),
                args.size() as u64,
                grid.blocks.as_ptr(),
                grid.threads,
                kernel.unit.shared_bytes(kernel.name),
                falling,
            )
        };
        if wrong.is_null() {
            return Ok(());
        }
        // SAFETY: a constant string.
        let text = unsafe { CStr::from_ptr(wrong) }
            .to_string_lossy()
            .into_owned();
        Err(DeviceError::Failed {
            call: kernel.name,
            code: 0,
            text,
        })
    }
    unsafe fn graph(&self, launches: &[Launch]) -> Result<Graph, DeviceError> {
        let mut graphs = self.graphs();
        let graph = Graph(graphs.n_made);
        graphs.n_made += 1;
        graphs.kept.insert(graph, launches.to_vec());
        Ok(graph)
    }

    unsafe fn change(
        &self,
        graph: Graph,
        index: usize,
        launch: &Launch,
    ) -> Result<(), DeviceError> {
        let mut graphs = self.graphs();
        graphs.n_changed += 1;
        let kept = graphs.kept.get_mut(&graph).expect("a graph that is kept");
        assert!(kept[index].kernel == launch.kernel && kept[index].grid == launch.grid);
        kept[index] = *launch;
        Ok(())
    }

    unsafe fn run(&self, graph: Graph) -> Result<(), DeviceError> {
        let mut graphs = self.graphs();
        graphs.n_run += 1;
        let launches = graphs.kept.get(&graph).expect("a graph that is kept");
        let mut launches = launches.iter();
        // SAFETY: the caller's promise.
        launches.try_for_each(|launch| unsafe { self.launch(launch) })
    }

    fn forget(&self, graph: Graph) {
        let gone = self.graphs().kept.remove(&graph);
        assert!(gone.is_some(), "a graph that is kept");
    }
}
