//! The functions of an MPI library that is opened at run time: the only `unsafe` code of this
//! crate.
//!
//! Handles are passed as `usize`. An interface whose handles are ints reads the lower half of the
//! register, and writes the lower half of a pointer's target, on the little-endian machines that
//! this runs on. **Invariant:** memory that MPI reads or writes is neither moved nor freed before
//! MPI is done with it; if that never happens, it is leaked.

#![expect(unsafe_code, reason = "functions of a library that is opened at run time")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use moeflux::{Error, Result};

use crate::abi::{Abi, AbiConstants, names, of_name};
use crate::launcher::Kind;

unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Ends the process immediately with status 1. Exit handlers are skipped, because a library's
/// handler could wait for ranks that are gone.
pub fn end_process() -> ! {
    // SAFETY: it does not return, and reads nothing of this process.
    unsafe { _exit(1) }
}

/// Upper bound on the size of a status in any interface.
const STATUS_BYTES: usize = 128;

/// Upper bound on the length of a name or version.
const TEXT_BYTES: usize = 16 << 10;

type InitThreadFn = unsafe extern "C" fn(*const c_void, *const c_void, c_int, *mut c_int) -> c_int;
type CommIntFn = unsafe extern "C" fn(usize, *mut c_int) -> c_int;
type SetHandlerFn = unsafe extern "C" fn(usize, usize) -> c_int;
type TextFn = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type SendFn =
    unsafe extern "C" fn(*const c_void, c_int, usize, c_int, c_int, usize, *mut usize) -> c_int;
type ReceiveFn =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, usize, *mut usize) -> c_int;
type ProbeFn = unsafe extern "C" fn(c_int, c_int, usize, *mut c_int, *mut MpiStatus) -> c_int;
type CountFn = unsafe extern "C" fn(*const MpiStatus, usize, *mut c_int) -> c_int;
type TestFn = unsafe extern "C" fn(*mut usize, *mut c_int, *mut MpiStatus) -> c_int;
type AbortFn = unsafe extern "C" fn(usize, c_int) -> c_int;
type FinalizeFn = unsafe extern "C" fn() -> c_int;

/// A call's information on a message; opaque, only MPI reads it.
#[repr(C, align(16))]
struct MpiStatus([u8; STATUS_BYTES]);

#[derive(Clone, Copy, Debug)]
struct Functions {
    init_thread: InitThreadFn,
    comm_rank: CommIntFn,
    comm_size: CommIntFn,
    set_handler: SetHandlerFn,
    version: TextFn,
    processor_name: TextFn,
    isend: SendFn,
    irecv: ReceiveFn,
    iprobe: ProbeFn,
    get_count: CountFn,
    test: TestFn,
    abort: AbortFn,
    finalize: FinalizeFn,
}

/// An initialised MPI library.
#[derive(Debug)]
pub(crate) struct Mpi {
    functions: Functions,
    constants: AbiConstants,
    path: PathBuf,
    /// Never closed: its threads may still run.
    _library: ManuallyDrop<Library>,
}

/// A message in transit.
#[derive(Debug)]
pub(crate) struct Transfer {
    request: usize,
    /// The bytes that MPI reads, if this is sent.
    sent: Option<Arc<Vec<u8>>>,
    /// The bytes that MPI writes, if this is received.
    received: Vec<u8>,
    is_done: bool,
}

impl Transfer {
    /// Returns the received bytes; empty if the transfer is not done.
    pub(crate) fn into_received(mut self) -> Vec<u8> {
        if self.is_done { std::mem::take(&mut self.received) } else { Vec::new() }
    }
}

impl Drop for Transfer {
    /// Leaks the buffers of an unfinished transfer: MPI may still read or write them.
    fn drop(&mut self) {
        if !self.is_done {
            let _kept_by_mpi = ManuallyDrop::new(self.sent.take());
            let _kept_by_mpi = ManuallyDrop::new(std::mem::take(&mut self.received));
        }
    }
}

impl Mpi {
    /// Opens the library named by the user, or else the launcher's: first from `folders`, then from
    /// the system's search path.
    pub(crate) fn open(named: Option<&Path>, kind: Kind, folders: &[PathBuf]) -> Result<Self> {
        if let Some(path) = named {
            let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Self::load(path, of_name(&file_name), kind);
        }
        let mut first = None;
        for (path, abi) in candidates(kind, folders) {
            match Self::load(&path, abi, kind) {
                Ok(mpi) => return Ok(mpi),
                Err(error) => drop(first.get_or_insert(error.to_string())),
            }
        }
        let first = first.unwrap_or_default();
        let searched: Vec<String> = folders.iter().map(|it| it.display().to_string()).collect();
        let searched = if searched.is_empty() {
            String::new()
        } else {
            format!(" in {} or", searched.join(", "))
        };
        Err(Error::Machine(format!(
            "a launcher started this process, but its MPI library was not found{searched} in the \
             system's library path: set MOEFLUX_MPI to its path ({first})"
        )))
    }

    fn load(path: &Path, abi: Abi, kind: Kind) -> Result<Self> {
        let cannot =
            |error: libloading::Error| Error::Machine(format!("{}: {error}", path.display()));
        // SAFETY: loading MPI libraries has the same effects as in every program that links to
        // them; parts that they load themselves need their names to be global.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let library = ManuallyDrop::new(library.map_err(cannot)?);
        let address = |name: &str| {
            // SAFETY: the address is used only as a number.
            let found = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
            found.ok().map(|it| it.into_raw() as usize)
        };
        let constants = abi.constants(&address).ok_or_else(|| {
            Error::Machine(format!(
                "{}: is not an MPI library with the {abi:?} interface",
                path.display()
            ))
        })?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the standard defines the parameters of the function, up to handles: see
                // the head of this file.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(cannot)?
            };
        }
        let functions = Functions {
            init_thread: function!("MPI_Init_thread"),
            comm_rank: function!("MPI_Comm_rank"),
            comm_size: function!("MPI_Comm_size"),
            set_handler: function!("MPI_Comm_set_errhandler"),
            version: function!("MPI_Get_library_version"),
            processor_name: function!("MPI_Get_processor_name"),
            isend: function!("MPI_Isend"),
            irecv: function!("MPI_Irecv"),
            iprobe: function!("MPI_Iprobe"),
            get_count: function!("MPI_Get_count"),
            test: function!("MPI_Test"),
            abort: function!("MPI_Abort"),
            finalize: function!("MPI_Finalize"),
        };
        let mpi = Self { functions, constants, path: path.to_owned(), _library: library };
        // The version may be queried before initialisation. Some libraries end the process during
        // initialisation if the launcher is not theirs.
        let version = mpi.version();
        if !kind.may_launch(&version) {
            return Err(mpi.wrong_library_error(&format!("{kind} started this process")));
        }
        mpi.init()?;
        Ok(mpi)
    }

    /// Creates the error for a library that belongs to another launcher.
    pub(crate) fn wrong_library_error(&self, why: &str) -> Error {
        Error::Machine(format!(
            "{why}; {} ({}) belongs to another MPI: set MOEFLUX_MPI to the library of the launcher",
            self.path.display(),
            self.version()
        ))
    }

    fn init(&self) -> Result<()> {
        let AbiConstants { world, errors_return, serialized, .. } = self.constants;
        let mut provided = 0;
        let none = ptr::null();
        // SAFETY: no command-line arguments are passed; the level is written to an int.
        let code =
            unsafe { (self.functions.init_thread)(none, none, serialized, &raw mut provided) };
        self.check("MPI_Init_thread", code)?;
        // SAFETY: both handles are constants of this interface.
        let code = unsafe { (self.functions.set_handler)(world, errors_return) };
        self.check("MPI_Comm_set_errhandler", code)?;
        if provided < serialized {
            return Err(Error::Machine(format!(
                "{} supports calls from one thread only",
                self.path.display()
            )));
        }
        Ok(())
    }

    fn check(&self, function: &str, code: c_int) -> Result<()> {
        match code {
            0 => Ok(()),
            code => {
                let path = self.path.display();
                Err(Error::Machine(format!("{function} of {path} failed with code {code}")))
            }
        }
    }

    /// Returns the version text of the library.
    pub(crate) fn version(&self) -> String {
        self.text(self.functions.version)
    }

    /// Returns the name of this process's host.
    pub(crate) fn host(&self) -> String {
        self.text(self.functions.processor_name)
    }

    fn text(&self, function: TextFn) -> String {
        let mut bytes = vec![0_u8; TEXT_BYTES];
        let mut n_bytes = 0;
        // SAFETY: the buffer is larger than any interface's limit for these texts, and the text
        // ends with 0.
        let code = unsafe { function(bytes.as_mut_ptr().cast(), &raw mut n_bytes) };
        let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
        let text = text.unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // Packages and dates follow the comma.
        let short = line.split(',').next().unwrap_or_default();
        if code == 0 { short.to_owned() } else { String::new() }
    }

    /// Returns the rank of this process and the number of ranks.
    pub(crate) fn rank_and_size(&self) -> Result<(usize, usize)> {
        let number = |function: CommIntFn, name: &str| {
            let mut number = 0;
            // SAFETY: the handle is a constant of this interface; the result is an int.
            let code = unsafe { function(self.constants.world, &raw mut number) };
            self.check(name, code)?;
            Ok::<_, Error>(usize::try_from(number).unwrap_or(0))
        };
        let rank = number(self.functions.comm_rank, "MPI_Comm_rank")?;
        Ok((rank, number(self.functions.comm_size, "MPI_Comm_size")?))
    }

    /// Starts sending a message.
    pub(crate) fn send(&self, bytes: Arc<Vec<u8>>, (to, tag): (usize, c_int)) -> Result<Transfer> {
        let (n_bytes, to) = (int(bytes.len())?, int(to)?);
        let AbiConstants { world, byte, .. } = self.constants;
        let data = bytes.as_ptr();
        let (sent, received) = (Some(bytes), Vec::new());
        let mut transfer = Transfer { request: 0, sent, received, is_done: false };
        let request = &raw mut transfer.request;
        // SAFETY: the transfer keeps the bytes until MPI has read them.
        let code =
            unsafe { (self.functions.isend)(data.cast(), n_bytes, byte, to, tag, world, request) };
        self.check("MPI_Isend", code)?;
        Ok(transfer)
    }

    /// Returns the length of the next message from a rank, if one has arrived.
    pub(crate) fn probe(&self, (from, tag): (usize, c_int)) -> Result<Option<usize>> {
        let AbiConstants { world, byte, .. } = self.constants;
        let mut status = MpiStatus([0; STATUS_BYTES]);
        let (from, mut has_come) = (int(from)?, 0);
        let status = &raw mut status;
        // SAFETY: the status is larger than any interface writes.
        let code = unsafe { (self.functions.iprobe)(from, tag, world, &raw mut has_come, status) };
        self.check("MPI_Iprobe", code)?;
        if has_come == 0 {
            return Ok(None);
        }
        let mut n_bytes = 0;
        // SAFETY: the status has just been written.
        let code = unsafe { (self.functions.get_count)(status, byte, &raw mut n_bytes) };
        self.check("MPI_Get_count", code)?;
        Ok(usize::try_from(n_bytes).ok())
    }

    /// Starts receiving a message of `n_bytes` bytes into `buffer`.
    pub(crate) fn receive(
        &self,
        mut buffer: Vec<u8>,
        n_bytes: usize,
        (from, tag): (usize, c_int),
    ) -> Result<Transfer> {
        buffer.clear();
        buffer.resize(n_bytes, 0);
        let (n_bytes, from) = (int(n_bytes)?, int(from)?);
        let AbiConstants { world, byte, .. } = self.constants;
        let data = buffer.as_mut_ptr();
        let (sent, received) = (None, buffer);
        let mut transfer = Transfer { request: 0, sent, received, is_done: false };
        let request = &raw mut transfer.request;
        // SAFETY: the transfer keeps the bytes, and nothing accesses them until MPI has written
        // them.
        let code = unsafe {
            (self.functions.irecv)(data.cast(), n_bytes, byte, from, tag, world, request)
        };
        self.check("MPI_Irecv", code)?;
        Ok(transfer)
    }

    /// Returns whether a message has been received or sent.
    pub(crate) fn is_done(&self, transfer: &mut Transfer) -> Result<bool> {
        if transfer.is_done {
            return Ok(true);
        }
        let (mut is_done, mut status) = (0, MpiStatus([0; STATUS_BYTES]));
        let request = &raw mut transfer.request;
        // SAFETY: MPI created the request, and it is not done.
        let code = unsafe { (self.functions.test)(request, &raw mut is_done, &raw mut status) };
        self.check("MPI_Test", code)?;
        transfer.is_done = is_done != 0;
        Ok(transfer.is_done)
    }

    /// Ends the job on all ranks.
    pub(crate) fn abort(&self) {
        // SAFETY: the handle is a constant of this interface.
        let _ = unsafe { (self.functions.abort)(self.constants.world, 1) };
    }

    /// Ends MPI on this rank; waits for the others.
    pub(crate) fn finalize(&self) {
        // SAFETY: no call follows.
        let _ = unsafe { (self.functions.finalize)() };
    }
}

/// Returns the libraries to try: every one that exists in a folder, before the names that only the
/// system may find. A library next to the launcher belongs to it.
fn candidates(kind: Kind, folders: &[PathBuf]) -> Vec<(PathBuf, Abi)> {
    let names = names(kind);
    let beside = folders.iter().flat_map(|folder| names.iter().map(|it| (folder.join(it.0), it.1)));
    let beside = beside.filter(|(path, _)| path.exists());
    beside.chain(names.iter().map(|it| (PathBuf::from(it.0), it.1))).collect()
}

fn int(number: usize) -> Result<c_int> {
    c_int::try_from(number)
        .map_err(|_| Error::Machine(format!("a message of {number} bytes is too large for MPI")))
}

#[cfg(test)]
mod tests {

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn the_library_beside_the_launcher_is_tried_first() {
        let temp = TempDir::new();
        let root = temp.path().to_owned();
        let folders = ["one", "two", "none"].map(|it| root.join(it));
        for (folder, name) in [(0, "libmpi.so.12"), (1, "libmpi_abi.so.1"), (1, "libmpi.so.40")] {
            std::fs::create_dir_all(&folders[folder]).unwrap();
            std::fs::write(folders[folder].join(name), "").unwrap();
        }
        let found = candidates(Kind::Hydra, &folders);
        let beside = [
            (folders[0].join("libmpi.so.12"), Abi::Mpich),
            (folders[1].join("libmpi_abi.so.1"), Abi::Standard),
        ];
        assert_eq!(found[..2], beside);
        assert_eq!(found[2], (PathBuf::from("libmpi_abi.so.1"), Abi::Standard));
        assert_eq!(found.len(), 2 + names(Kind::Hydra).len());
        // These files are empty.
        let message = Mpi::open(None, Kind::OpenMpi, &folders[1..2]).unwrap_err().to_string();
        let words =
            format!("was not found in {} or in the system's library path", folders[1].display());
        assert!(message.contains(&words) && message.contains("set MOEFLUX_MPI"), "{message}");
    }
}
