//! Sockets to listen on.
//!
//! **Invariant:** an address that other machines can reach requires a key. A Unix socket is
//! accessible only to its user from the first moment, and is removed at the end. This module knows
//! no HTTP.

use std::io;
use std::net::{SocketAddr, TcpListener};
#[cfg(unix)]
use std::path::{Path, PathBuf};

use moeflux::{Error, Result};
use socket2::SockRef;

use crate::http::config::ServerConfig;

/// Size of a connection's send buffer. Linux usually grows it to 4 MiB: whole answers would lie
/// there unread, outside this process's memory, before their jobs are told to pause.
const SEND_BUFFER_BYTES: usize = 128 << 10;

/// Number of names to try for a directory: a killed server may have left one behind.
#[cfg(unix)]
const N_FOLDERS_MAX: usize = 16;

/// All sockets that a server listens on.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// TCP listeners with their addresses.
    pub(crate) tcp: Vec<(TcpListener, SocketAddr)>,
    /// The Unix socket.
    #[cfg(unix)]
    pub(crate) unix: Option<UnixSocket>,
}

impl Listeners {
    /// Binds the sockets of a config.
    pub(crate) fn bind(config: &ServerConfig) -> Result<Self> {
        if config.addresses.is_empty() && config.unix.is_none() {
            let problem = "there is no address to listen on: name one";
            return Err(Error::Input(problem.to_owned()));
        }
        let is_open = |address: &&SocketAddr| !is_loopback(**address);
        if let Some(address) =
            config.addresses.iter().find(is_open).filter(|_| config.keys.is_empty())
        {
            return Err(Error::Input(format!(
                "{address} can be reached from other machines, and there is no API key: give one, \
                 or listen on 127.0.0.1"
            )));
        }
        let tcp = config.addresses.iter().map(|address| bind_tcp(*address));
        let tcp = tcp.collect::<Result<_>>()?;
        #[cfg(unix)]
        let unix = config.unix.as_deref().map(UnixSocket::bind).transpose()?;
        #[cfg(not(unix))]
        if let Some(path) = &config.unix {
            return Err(Error::Unsupported(format!(
                "{}: this system has no sockets in the file system: listen on an address",
                path.display()
            )));
        }
        Ok(Self {
            tcp,
            #[cfg(unix)]
            unix,
        })
    }
}

/// Whether an address can be reached only from this machine.
pub(crate) fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn bind_tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        // Accepted connections inherit it.
        SockRef::from(&listener).set_send_buffer_size(SEND_BUFFER_BYTES)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bind().map_err(|error: io::Error| {
        // Systems word this error differently.
        let error = match error.kind() {
            io::ErrorKind::AddrInUse => "the address is in use".to_owned(),
            _ => error.to_string(),
        };
        let problem =
            format!("cannot listen on {address}: {error}: choose another address or port");
        Error::Machine(problem)
    })
}

/// A Unix socket. Dropping it removes its file.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct UnixSocket {
    pub(crate) listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    /// Device and inode of its file: another server may have put its own at this path.
    identity: (u64, u64),
}

#[cfg(unix)]
impl UnixSocket {
    fn bind(path: &Path) -> Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        use std::os::unix::net::UnixStream;
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                let problem = "exists and is not a socket: name another path, or remove it";
                return Err(Error::malformed(path, problem));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                let problem = "another server is listening there: stop it, or name another path";
                return Err(Error::Machine(format!("{}: {problem}", path.display())));
            }
            _ => {}
        }
        bind_private(path).map_err(Error::io("listen on", path))
    }
}

/// Binds in a directory that only this user may enter, and then moves the socket to its path.
/// Otherwise others could connect between binding and setting its mode.
#[cfg(unix)]
fn bind_private(path: &Path) -> io::Result<UnixSocket> {
    use std::fs;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    // The path of a socket is limited to about a hundred bytes, so the name is short.
    let folder = |n: usize| path.with_file_name(format!(".mf{}-{n}", std::process::id()));
    let create = |folder: &PathBuf| fs::DirBuilder::new().mode(0o700).create(folder);
    let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    let mut folders = (0..N_FOLDERS_MAX).map(folder).map(|it| create(&it).map(|()| it));
    let folder = folders
        .find(|created| !created.as_ref().is_err_and(is_there))
        .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
    let inner = folder.join("s");
    let bind = || {
        let listener = std::os::unix::net::UnixListener::bind(&inner)?;
        listener.set_nonblocking(true)?;
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o600))?;
        let found = fs::symlink_metadata(&inner)?;
        fs::rename(&inner, path)?;
        let identity = (found.dev(), found.ino());
        Ok(UnixSocket { listener, path: path.to_owned(), identity })
    };
    let bound = bind();
    fs::remove_file(&inner).ok();
    fs::remove_dir(&folder).ok();
    bound
}

#[cfg(unix)]
impl Drop for UnixSocket {
    fn drop(&mut self) {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            std::fs::remove_file(&self.path).ok();
        }
    }
}
