//! Finds folders that may contain the launcher's MPI library, next to the launcher itself.
//!
//! If MPI was installed in a folder of its own (a Python environment, a module of a cluster), the
//! system does not search that folder for libraries, and the launcher need not name it. The
//! launcher is an ancestor of this process, perhaps with shells and the like in between.
//! **Invariant:** only executables with a launcher's name count as launchers.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

/// Programs that start ranks: those that users type, and those that run on each machine.
const LAUNCHERS: [&str; 13] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "mpiexec.gforker",
    "mpiexec.mpich",
    "mpiexec.openmpi",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "orterun",
    "orted",
    "prterun",
    "prte",
    "prted",
];

/// Variables in which launchers name their installation folder.
const ROOTS: [&str; 3] = ["OPAL_PREFIX", "PMIX_PREFIX", "I_MPI_ROOT"];

/// Variable in which launchers name the folder of their libraries.
const LIBRARIES: &str = "OMPI_LIBDIR_LOC";

/// Folders of libraries within an installation folder.
const BELOW: [&str; 3] = ["lib", "lib64", "lib/release"];

/// Upper bound on the processes between a launcher and this process: shells, `numactl`, `time`. A
/// longer chain is a cycle.
const N_PARENTS_MAX: usize = 32;

/// Information about the launcher.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The library named by the user.
    pub library: Option<&'a Path>,
    /// The system's folder of processes, such as `/proc`; it need not exist.
    pub processes: &'a Path,
    /// Reads an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl fmt::Debug for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { library, processes, .. } = self;
        let mut known = f.debug_struct("Known");
        known.field("library", library).field("processes", processes).finish_non_exhaustive()
    }
}

impl Known<'_> {
    /// Returns the folders, the most reliable first.
    pub(crate) fn folders(self) -> Vec<PathBuf> {
        let mut launchers = self.parents(std::process::id());
        launchers.retain(|it| is_launcher(it));
        let path = (self.variable)("PATH").unwrap_or_default();
        let searched = std::env::split_paths(&path)
            .flat_map(|folder| ["mpirun", "mpiexec"].map(|name| folder.join(name)));
        let root = |program: PathBuf| {
            let real = program.canonicalize().ok()?;
            Some(real.parent()?.parent()?.to_owned())
        };
        let folder = |name: &str| (self.variable)(name).filter(|it| !it.is_empty());
        let named = ROOTS.iter().filter_map(|name| folder(name).map(PathBuf::from));
        let roots = launchers.into_iter().filter_map(root).chain(named);
        let roots = roots.chain(searched.filter_map(root));
        let below = roots.flat_map(|root| BELOW.map(|name| root.join(name)));
        let mut folders: Vec<PathBuf> = Vec::new();
        for found in folder(LIBRARIES).map(PathBuf::from).into_iter().chain(below) {
            if found.is_dir() && !folders.contains(&found) {
                folders.push(found);
            }
        }
        folders
    }

    /// Returns the programs of this process's ancestors, the nearest first.
    fn parents(self, own: u32) -> Vec<PathBuf> {
        let of = |process: u32| self.processes.join(process.to_string());
        let parent = |process: &u32| {
            let stat = std::fs::read(of(*process).join("stat")).ok()?;
            parent_of(&String::from_utf8_lossy(&stat))
        };
        let processes = std::iter::successors(Some(own), parent).skip(1).take(N_PARENTS_MAX);
        processes.filter_map(|it| std::fs::read_link(of(it).join("exe")).ok()).collect()
    }
}

/// Reads the parent's id from `NUMBER (NAME) STATE PARENT ..`, where the name may contain brackets.
fn parent_of(stat: &str) -> Option<u32> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(1)?.parse().ok().filter(|it| *it > 0)
}

fn is_launcher(program: &Path) -> bool {
    program.file_name().and_then(OsStr::to_str).is_some_and(|it| LAUNCHERS.contains(&it))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    /// A temporary folder with programs, libraries and processes for a test.
    struct TestMachine {
        root: PathBuf,
        _temp: TempDir,
    }

    impl TestMachine {
        fn new() -> Self {
            let temp = TempDir::new();
            // Temporary folders may be links.
            Self { root: temp.path().canonicalize().unwrap(), _temp: temp }
        }

        /// Creates a program, and a folder for libraries next to it.
        fn install(&self, prefix: &str, program: &str, libraries: &str) -> PathBuf {
            let program = self.root.join(prefix).join("bin").join(program);
            fs::create_dir_all(program.parent().unwrap()).unwrap();
            fs::create_dir_all(self.root.join(prefix).join(libraries)).unwrap();
            fs::write(&program, "").unwrap();
            program
        }

        fn process(&self, number: u32, parent: u32, program: &Path) {
            let dir = self.root.join("proc").join(number.to_string());
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("stat"), format!("{number} (a) b) R 1) S {parent} 1 1\n")).unwrap();
            symlink(program, dir.join("exe")).unwrap();
        }

        fn folders(&self, variables: &[(&str, &str)]) -> Vec<String> {
            let variable = |name: &str| {
                let found = variables.iter().find(|(it, _)| *it == name)?;
                Some(found.1.replace('@', self.root.to_str().unwrap()).into())
            };
            let processes = self.root.join("proc");
            let known = Known { library: None, processes: &processes, variable: &variable };
            let found = known.folders();
            let below =
                found.iter().map(|it| it.strip_prefix(&self.root).unwrap().to_str().unwrap());
            below.map(str::to_owned).collect()
        }
    }

    #[test]
    fn the_launcher_is_found_above_shells() {
        let machine = TestMachine::new();
        let own = std::process::id();
        let shell = machine.install("usr", "bash", "lib");
        let proxy = machine.install("env", "hydra_pmi_proxy", "lib");
        let typed = machine.install("other", "mpiexec", "lib64");
        machine.process(own, own + 1, &shell);
        machine.process(own + 1, own + 2, &shell);
        machine.process(own + 2, own + 3, &proxy);
        machine.process(own + 3, own + 4, &typed);
        // The shell that the command was typed into is not a launcher. A process that cannot be
        // read ends the search.
        machine.process(own + 4, own + 5, &shell);
        assert_eq!(machine.folders(&[]), ["env/lib", "other/lib64"]);
        // The search path may lead to another installation, so it comes last.
        machine.install("more", "mpirun", "lib/release");
        let found = machine.folders(&[("PATH", "@/usr/bin:@/more/bin:@/env/bin")]);
        assert_eq!(found, ["env/lib", "other/lib64", "more/lib", "more/lib/release"]);
    }

    #[test]
    fn variables_of_launchers_give_their_folders() {
        let machine = TestMachine::new();
        machine.install("open", "prterun", "lib");
        machine.install("intel", "x", "lib/release");
        let variables = [("OPAL_PREFIX", "@/open"), ("I_MPI_ROOT", "@/intel"), ("PMIX_PREFIX", "")];
        assert_eq!(machine.folders(&variables), ["open/lib", "intel/lib", "intel/lib/release"]);
        let variables = [("OMPI_LIBDIR_LOC", "@/intel/lib"), ("OPAL_PREFIX", "@/open")];
        assert_eq!(machine.folders(&variables), ["intel/lib", "open/lib"]);
        assert!(machine.folders(&[("OPAL_PREFIX", "@/none")]).is_empty());
    }

    #[test]
    fn odd_processes_end_the_search() {
        let machine = TestMachine::new();
        let own = std::process::id();
        let launcher = machine.install("env", "mpirun", "lib");
        // A process that is its own parent: the limit ends the search.
        machine.process(own, own, &launcher);
        let known =
            Known { library: None, processes: &machine.root.join("proc"), variable: &|_| None };
        assert_eq!(known.parents(own).len(), N_PARENTS_MAX);
        assert_eq!(machine.folders(&[]), ["env/lib"]);
        fs::remove_file(&launcher).unwrap();
        assert!(machine.folders(&[]).is_empty(), "it was removed");
        for stat in ["", "1 (a", "1 (a) S", "1 (a) S x", "1 (a) S 0 1", "1 (a) S -1"] {
            assert_eq!(parent_of(stat), None, "{stat}");
        }
        assert_eq!(parent_of("12 (a) (b)) S 7 12 12"), Some(7));
        // Links to a launcher are resolved to its real location.
        fs::write(&launcher, "").unwrap();
        fs::create_dir_all(machine.root.join("links")).unwrap();
        symlink(&launcher, machine.root.join("links/mpiexec")).unwrap();
        fs::remove_dir_all(machine.root.join("proc")).unwrap();
        assert_eq!(machine.folders(&[("PATH", "@/links")]), ["env/lib"]);
    }
}
