//! Measurements of this machine, kept in the cache folder: rates by `moeflux doctor` for `moeflux
//! plan`, the faster way of reading for each model, and the results of GPU checks.
//!
//! **Invariant:** a file that is missing, damaged or of another version is not an error: it counts
//! as empty. Figures are kept per machine, and for drives per file system.

use std::fs;
use std::path::{Path, PathBuf};

use moeflux::provider::format::read_file;
use moeflux::{Error, ReadWay, Result};
use serde_json::{Map, Value, json};

use crate::system::cache;
use crate::system::clock;
use crate::system::compute_profile::ComputeProfile;
use crate::system::machine::Machine;
use crate::system::out_file::OutFile;

/// A later format uses another name.
const FILE_NAME: &str = "measured-1.json";

/// A larger file was not written by this program.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A rate and when it was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeasuredRate {
    /// As measured.
    pub(crate) bytes_per_s: f64,
    /// The file system; empty for memory.
    pub(crate) of: String,
    /// Age in seconds.
    pub(crate) age_s: i64,
    /// Whether other programs used the machine meanwhile, so that the rate may be too low.
    pub(crate) is_doubtful: bool,
}

/// The measured speed of a computing device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeasuredDevice {
    pub(crate) profile: ComputeProfile,
    /// The kernels of the CPU, or the name of the GPU.
    pub(crate) name: String,
    /// Age in seconds.
    pub(crate) age_s: i64,
    /// Whether other programs used the machine meanwhile, so that the rates may be too low.
    pub(crate) is_doubtful: bool,
}

impl MeasuredRate {
    /// Returns the text that follows `measured by`.
    pub(crate) fn when(&self) -> String {
        when(self.age_s, self.is_doubtful)
    }
}

impl MeasuredDevice {
    /// Returns the text that follows `measured by`.
    pub(crate) fn when(&self) -> String {
        when(self.age_s, self.is_doubtful)
    }
}

fn when(age_s: i64, is_doubtful: bool) -> String {
    let busy = if is_doubtful { " on a busy machine" } else { "" };
    format!("`moeflux doctor` {}{busy}", ago(age_s))
}

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeasuredCard {
    pub(crate) computing: MeasuredDevice,
    /// Bytes that a model may use there.
    pub(crate) room_bytes: u64,
    /// Whether its kernels can read host memory.
    pub(crate) sees_host: bool,
    /// Whether commands use it automatically for models that fit.
    pub(crate) is_for_auto: bool,
}

/// All measurements of this machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurements {
    file: PathBuf,
    machine: String,
    root: Map<String, Value>,
    /// Whether new entries are measured while other programs use the machine.
    is_doubtful: bool,
}

impl Measurements {
    /// Loads the kept measurements.
    pub(crate) fn load() -> Self {
        Self::load_from(cache::folder().join(FILE_NAME), Machine::here().key())
    }

    fn load_from(file: PathBuf, machine: String) -> Self {
        let text = read_file(&file, FILE_BYTES_MAX).unwrap_or_default();
        let root = match serde_json::from_slice(&text) {
            Ok(Value::Object(root)) => root,
            _ => Map::new(),
        };
        Self { file, machine, root, is_doubtful: false }
    }

    /// Returns the rate of memory.
    pub(crate) fn memory(&self) -> Option<MeasuredRate> {
        rate("", self.root.get(&self.machine)?.get("memory")?)
    }

    /// Returns the rate of a file system's drive, or, without a key, of the drive measured last.
    pub(crate) fn drive(&self, key: Option<&str>) -> Option<MeasuredRate> {
        let drives = self.root.get(&self.machine)?.get("drives")?.as_object()?;
        if let Some(exact) = key.and_then(|key| rate(key, drives.get(key)?)) {
            return Some(exact);
        }
        let all = drives.iter().filter_map(|(key, entry)| rate(key, entry));
        // Another drive's rate says nothing about a given drive.
        all.filter(|_| key.is_none()).min_by_key(|it| it.age_s)
    }

    /// Returns the speed of the CPU with these kernels.
    pub(crate) fn cpu(&self, kernels: &str) -> Option<MeasuredDevice> {
        computing_of(self.root.get(&self.machine)?.get("cpu")?).filter(|it| it.name == kernels)
    }

    /// Returns the GPU that was measured last.
    pub(crate) fn card(&self) -> Option<MeasuredCard> {
        let entry = self.root.get(&self.machine)?.get("gpu")?;
        Some(MeasuredCard {
            computing: computing_of(entry)?,
            room_bytes: entry.get("room_bytes")?.as_u64()?,
            sees_host: entry.get("sees_host")?.as_bool()?,
            is_for_auto: entry.get("is_for_auto")?.as_bool()?,
        })
    }

    /// Returns the differences that a check of a GPU found, one line each, if it was checked.
    pub(crate) fn gpu_check(&self, key: &str) -> Option<Vec<String>> {
        let found = self.root.get(&self.machine)?.get("gpu_checks")?.get(key)?.as_array()?;
        found.iter().map(|line| line.as_str().map(str::to_owned)).collect()
    }

    /// Sets the result of a check.
    pub(crate) fn set_gpu_check(&mut self, key: &str, differences: &[String]) {
        self.machine_entry()["gpu_checks"][key] = json!(differences);
    }

    /// Marks all later entries as measured on a busy machine.
    pub(crate) fn mark_doubtful(&mut self) {
        self.is_doubtful = true;
    }

    /// Returns the path of the file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Removes all entries of this machine. Returns a line about each.
    pub(crate) fn forget(&mut self) -> Vec<String> {
        let gbps = |rate: &MeasuredRate| {
            format!("{:.2} GB/s, {}", rate.bytes_per_s / 1e9, ago(rate.age_s))
        };
        let computing = |it: &MeasuredDevice| {
            let MeasuredDevice { profile, name, age_s, .. } = it;
            let answers = profile.answer_bytes_per_s / 1e9;
            let prompts = profile.prompt_operations_per_s / 1e9;
            format!(
                "{name}: answers read {answers:.1} GB/s, prompts take {prompts:.0} GOP/s, {}",
                ago(*age_s)
            )
        };
        let Some(entry) = self.root.shift_remove(&self.machine) else { return Vec::new() };
        let of = |key: &str| entry.get(key);
        let mut lines = Vec::new();
        lines.extend(
            of("memory").and_then(|it| rate("", it)).map(|it| format!("memory {}", gbps(&it))),
        );
        let drives = of("drives").and_then(Value::as_object).into_iter().flatten();
        let drives = drives.filter_map(|(key, entry)| rate(key, entry));
        lines.extend(drives.map(|it| format!("drive {}: {}", it.of, gbps(&it))));
        for (what, key) in [("CPU", "cpu"), ("GPU", "gpu")] {
            let it = of(key).and_then(computing_of);
            lines.extend(it.map(|it| format!("{what} {}", computing(&it))));
        }
        let n_ways = of("ways").and_then(Value::as_object).map_or(0, Map::len);
        if n_ways > 0 {
            let models = if n_ways == 1 { "model" } else { "models" };
            lines.push(format!("the faster way of reading for {n_ways} {models}"));
        }
        let n_checks = of("gpu_checks").and_then(Value::as_object).map_or(0, Map::len);
        if n_checks > 0 {
            lines.push(format!("the results of {n_checks} GPU checks"));
        }
        lines
    }

    /// Sets the speed of the CPU with these kernels.
    pub(crate) fn set_cpu(&mut self, kernels: &str, profile: &ComputeProfile) {
        let entry = self.computing_entry(kernels, profile);
        self.machine_entry()["cpu"] = entry;
    }

    /// Sets the GPU.
    pub(crate) fn set_card(&mut self, card: &MeasuredCard) {
        let mut entry = self.computing_entry(&card.computing.name, &card.computing.profile);
        entry["room_bytes"] = json!(card.room_bytes);
        entry["sees_host"] = json!(card.sees_host);
        entry["is_for_auto"] = json!(card.is_for_auto);
        self.machine_entry()["gpu"] = entry;
    }

    /// Sets the rate of memory.
    pub(crate) fn set_memory(&mut self, bytes_per_s: f64) {
        let entry = self.entry(json!({"bytes_per_s": bytes_per_s}));
        self.machine_entry()["memory"] = entry;
    }

    /// Sets a drive's rate.
    pub(crate) fn set_drive(&mut self, key: &str, bytes_per_s: f64) {
        let entry = self.entry(json!({"bytes_per_s": bytes_per_s}));
        let machine = self.machine_entry();
        if !machine["drives"].is_object() {
            machine["drives"] = json!({});
        }
        machine["drives"][key] = entry;
    }

    /// Returns the faster way of reading for a model's folder.
    pub(crate) fn way(&self, model: &str) -> Option<ReadWay> {
        let way = self.root.get(&self.machine)?.get("ways")?.get(model)?.as_str()?;
        [ReadWay::Direct, ReadWay::PageCache].into_iter().find(|it| way_name(*it) == way)
    }

    /// Sets the faster way of reading for a model's folder.
    pub(crate) fn set_way(&mut self, model: &str, way: ReadWay) {
        let machine = self.machine_entry();
        if !machine["ways"].is_object() {
            machine["ways"] = json!({});
        }
        machine["ways"][model] = json!(way_name(way));
    }

    fn computing_entry(&self, name: &str, profile: &ComputeProfile) -> Value {
        self.entry(json!({"name": name, "pace": profile.json()}))
    }

    /// Adds the time and the circumstances of the measurement.
    fn entry(&self, mut entry: Value) -> Value {
        entry["measured_s"] = json!(clock::seconds_since_1970());
        if self.is_doubtful {
            entry["is_doubtful"] = json!(true);
        }
        entry
    }

    fn machine_entry(&mut self) -> &mut Value {
        let entry = self.root.entry(self.machine.clone()).or_insert_with(|| json!({}));
        if !entry.is_object() {
            *entry = json!({});
        }
        entry
    }

    /// Writes the file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file or its folder cannot be written.
    pub(crate) fn save(&self) -> Result<()> {
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        let out = OutFile::new(&self.file)?;
        let text = format!("{:#}\n", Value::Object(self.root.clone()));
        fs::write(out.path(), text).map_err(Error::io("write", out.path()))?;
        out.finish()
    }
}

fn way_name(way: ReadWay) -> &'static str {
    match way {
        ReadWay::Direct => "direct",
        _ => "page-cache",
    }
}

fn computing_of(entry: &Value) -> Option<MeasuredDevice> {
    let (age_s, is_doubtful) = measured_at(entry)?;
    Some(MeasuredDevice {
        profile: ComputeProfile::of_json(entry.get("pace")?)?,
        name: entry.get("name")?.as_str()?.to_owned(),
        age_s,
        is_doubtful,
    })
}

fn rate(of: &str, entry: &Value) -> Option<MeasuredRate> {
    let bytes_per_s = entry.get("bytes_per_s")?.as_f64()?;
    let is_rate = bytes_per_s.is_finite() && bytes_per_s >= 1.0;
    let (age_s, is_doubtful) = measured_at(entry)?;
    is_rate.then(|| MeasuredRate { bytes_per_s, of: of.to_owned(), age_s, is_doubtful })
}

/// Returns the age, and whether the machine was busy.
fn measured_at(entry: &Value) -> Option<(i64, bool)> {
    let measured_s = entry.get("measured_s")?.as_i64()?;
    let age_s = clock::seconds_since_1970().saturating_sub(measured_s).max(0);
    let is_doubtful = entry.get("is_doubtful").and_then(Value::as_bool).unwrap_or(false);
    Some((age_s, is_doubtful))
}

/// Formats an age as `3 hours ago`.
pub(crate) fn ago(age_s: i64) -> String {
    let (n, unit) = match age_s {
        ..120 => return "just now".to_owned(),
        120..7200 => (age_s / 60, "minutes"),
        7200..172_800 => (age_s / 3600, "hours"),
        172_800.. => (age_s / 86_400, "days"),
    };
    format!("{n} {unit} ago")
}

#[cfg(test)]
mod tests {
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn measurements_load_only_on_the_same_machine() {
        let dir = TempDir::new();
        let file = dir.path().join("new/measured.json");
        let load = |machine: &str| Measurements::load_from(file.clone(), machine.to_owned());
        let mut measured = load("this");
        assert!(measured.memory().is_none() && measured.drive(None).is_none());
        measured.set_memory(2.5e10);
        measured.set_drive("/dev/a ext4", 1e9);
        measured.set_drive("/dev/a ext4", 2e9);
        measured.set_drive("/dev/b xfs", 3e9);
        measured.set_gpu_check("X 100", &["layer 1".to_owned()]);
        measured.set_gpu_check("Y 100", &[]);
        measured.save().unwrap();
        let found = load("this");
        assert_eq!(found.gpu_check("X 100"), Some(vec!["layer 1".to_owned()]));
        assert_eq!(found.gpu_check("Y 100"), Some(Vec::new()));
        assert_eq!((found.gpu_check("Z 100"), load("another").gpu_check("Y 100")), (None, None));
        assert!((found.memory().unwrap().bytes_per_s - 2.5e10).abs() < 1.0);
        let exact = found.drive(Some("/dev/a ext4")).unwrap();
        assert!((exact.bytes_per_s - 2e9).abs() < 1.0 && exact.of == "/dev/a ext4");
        assert!(found.drive(Some("/dev/c")).is_none());
        assert!(found.drive(None).is_some());
        assert!(load("another").drive(None).is_none());
    }

    #[test]
    fn doubtful_rates_are_marked_and_all_can_be_removed() {
        let dir = TempDir::new();
        let file = dir.path().join("measured.json");
        let load = |machine: &str| Measurements::load_from(file.clone(), machine.to_owned());
        let mut measured = load("other");
        measured.set_memory(1e9);
        measured.save().unwrap();
        let mut measured = load("this");
        assert_eq!(measured.forget(), [""; 0]);
        measured.set_memory(6e10);
        measured.mark_doubtful();
        measured.set_drive("/dev/a ext4", 2e9);
        measured.set_way("/models/a", ReadWay::Direct);
        assert_eq!(measured.memory().unwrap().when(), "`moeflux doctor` just now");
        let busy = "`moeflux doctor` just now on a busy machine";
        assert_eq!(measured.drive(None).unwrap().when(), busy);
        measured.save().unwrap();
        let mut measured = load("this");
        let expected = [
            "memory 60.00 GB/s, just now",
            "drive /dev/a ext4: 2.00 GB/s, just now",
            "the faster way of reading for 1 model",
        ];
        assert_eq!(measured.forget(), expected);
        measured.save().unwrap();
        assert!(load("this").memory().is_none() && load("other").memory().is_some());
    }

    #[test]
    fn an_invalid_file_counts_as_missing() {
        let dir = TempDir::new();
        let file = dir.path().join("measured.json");
        let rates = |entry: &str| format!("{{\"this\": {{\"memory\": {entry}, \"drives\": 7}}}}");
        for text in [
            String::new(),
            "[]".to_owned(),
            "{\"this\": 5}".to_owned(),
            rates("{\"bytes_per_s\": -1, \"measured_s\": 0}"),
            rates("{\"bytes_per_s\": 1e9}"),
            rates("\"fast\""),
        ] {
            fs::write(&file, &text).unwrap();
            let mut measured = Measurements::load_from(file.clone(), "this".to_owned());
            assert!(measured.memory().is_none() && measured.drive(None).is_none(), "{text}");
            measured.set_memory(1e9);
            measured.set_drive("d", 1e9);
            assert!(measured.drive(Some("d")).is_some(), "{text}");
        }
    }

    #[test]
    fn ages_are_rounded_down() {
        for (age_s, text) in [
            (0, "just now"),
            (119, "just now"),
            (150, "2 minutes ago"),
            (7200, "2 hours ago"),
            (200_000, "2 days ago"),
        ] {
            assert_eq!(ago(age_s), text);
        }
    }
}
