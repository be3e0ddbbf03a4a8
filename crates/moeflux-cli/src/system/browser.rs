//! Opens an address in the user's browser, with the program that the system has for that.
//!
//! Crates for this do the same, and bring a parser of addresses, or `xdg-open` itself.
//! **Invariant:** nothing waits for the browser, which goes on when this process ends.

use std::process::{Child, Command, Stdio};

use crate::system::cache;

/// A program that was started to open an address.
#[derive(Debug)]
pub(crate) struct BrowserLauncher {
    program: &'static str,
    child: Child,
}

impl BrowserLauncher {
    /// Starts the program.
    ///
    /// # Errors
    /// The reason why no browser can be opened.
    pub(crate) fn start(address: &str) -> Result<Self, String> {
        let needs_display = cfg!(all(unix, not(target_os = "macos")));
        if let Some(obstacle) = obstacle(needs_display, |name| cache::variable(name).is_some()) {
            return Err(obstacle.to_owned());
        }
        // `start` takes a first argument in quotes for a title.
        let (program, before): (_, &[&str]) = if cfg!(windows) {
            ("cmd", &["/C", "start", ""])
        } else if cfg!(target_os = "macos") {
            ("open", &[])
        } else {
            ("xdg-open", &[])
        };
        let mut command = Command::new(program);
        command.args(before).arg(address);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C in the terminal of the server does not end a browser that began here.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        match command.spawn() {
            Ok(child) => Ok(Self { program, child }),
            Err(error) => Err(format!("cannot run `{program}`: {error}")),
        }
    }

    /// Returns what went wrong, if the program has failed by now.
    pub(crate) fn failure(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        let program = self.program;
        (!status.success()).then(|| format!("`{program}` found no browser ({status})"))
    }
}

/// Returns the reason why a browser cannot open on the screen of the user, if there is one.
fn obstacle(needs_display: bool, is_set: impl Fn(&str) -> bool) -> Option<&'static str> {
    // Editors that are connected over SSH name a program here that opens the browser at the other
    // end.
    if needs_display && is_set("BROWSER") {
        return None;
    }
    if is_set("SSH_CONNECTION") {
        return Some("this is a session over SSH (forward the port)");
    }
    let has_display = is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    (needs_display && !has_display).then_some("there is no display")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_opens_on_the_screen_of_the_user() {
        let found = |needs_display, names: &[&str]| {
            obstacle(needs_display, |name| names.contains(&name)).map(|it| &it[..14])
        };
        let (ssh, none) = (Some("this is a sess"), Some("there is no di"));
        for (names, with_display, without) in [
            (&[][..], none, None),
            (&["DISPLAY"], None, None),
            (&["WAYLAND_DISPLAY"], None, None),
            (&["DISPLAY", "SSH_CONNECTION"], ssh, ssh),
            (&["BROWSER", "SSH_CONNECTION"], None, ssh),
            (&["BROWSER"], None, None),
        ] {
            assert_eq!(found(true, names), with_display, "{names:?}");
            assert_eq!(found(false, names), without, "{names:?}");
        }
    }
}
