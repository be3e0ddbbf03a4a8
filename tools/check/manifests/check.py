"""Compares what installers are told of a release with its archives.

    check.py DIST PACKAGES

DIST has the archives; PACKAGES has SHA256SUMS, moeflux.rb (Homebrew), moeflux.json (scoop) and
moeflux.moeflux*.yaml (winget). Runs at the root of the tree. Every check yields lines that say what
is wrong. At the end each file of PACKAGES is damaged in turn, and the damage must be found.
"""

import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile

import jsonschema
import rules
import yaml

HERE = pathlib.Path(__file__).parent
WORKSPACE = tomllib.loads(pathlib.Path("Cargo.toml").read_text())["workspace"]["package"]
PROGRAM = tomllib.loads(pathlib.Path("crates/moeflux-cli/Cargo.toml").read_text())["package"]
VERSION, REPOSITORY, LICENSE = (WORKSPACE[key] for key in ["version", "repository", "license"])
PACKAGE = "moeflux.moeflux"
WINGET = {"": "version", ".installer": "installer", ".locale.en-US": "defaultLocale"}


class Archive:
    """An archive of a release: its line of targets.txt, and what is in the file."""

    def __init__(self, dist, line):
        self.target = line["target"]
        self.program = line["program"]
        self.installers = {name: line[name] for name in ["brew", "scoop", "winget"]}
        self.stem = f"moeflux-{VERSION}-{self.target}"
        self.name = f"{self.stem}.{line['archive']}"
        self.url = f"{REPOSITORY}/releases/download/v{VERSION}/{self.name}"
        self.path = dist / self.name
        self.sum = hashlib.sha256(self.path.read_bytes()).hexdigest()
        # Names with their rights, times and owners.
        if self.name.endswith(".zip"):
            with zipfile.ZipFile(self.path) as file:
                entries = file.infolist()
            self.entries = [(it.filename, it.external_attr >> 16 & 0o777) for it in entries]
            self.times = {it.date_time for it in entries}
            self.owners = {(0, 0)}
        else:
            with tarfile.open(self.path) as file:
                entries = file.getmembers()
            self.entries = [(it.name, it.mode) for it in entries]
            self.times = {it.mtime for it in entries}
            self.owners = {(it.uid, it.gid) for it in entries}
        self.files = [name for name, _ in self.entries]


def main(dist, packages):
    lines = pathlib.Path("tools/release/targets.txt").read_text().splitlines()
    names = next(line.split()[1:] for line in lines if line.startswith("# target "))
    table = [dict(zip(names, line.split(), strict=True)) for line in lines if line[0] != "#"]
    archives = [Archive(dist, line) for line in table]

    problems = list(check_archives(dist, archives)) + list(check_binstall(archives))
    problems += check_names(packages)
    for check in [check_sums, check_formula, check_scoop, check_winget]:
        problems += check(packages, archives)
    if problems:
        sys.exit("\n".join(f"manifests: {it}" for it in problems))
    print(f"ok      {len(archives)} archives, and what cargo binstall, Homebrew, scoop and winget")
    print("        are told of them")
    n_damages = 0
    for path in sorted(packages.iterdir()):
        n_damages += check_damages(path, packages, archives)
    print(f"ok      each of {n_damages} damages was found")


def check_archives(dist, archives):
    known = {it.name for it in archives} | {f"{it.name}.sha256" for it in archives}
    for path in dist.iterdir():
        if path.name not in known:
            yield f"{path.name} is in no line of targets.txt"
    for it in archives:
        wanted = {it.program, "README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"}
        wanted |= {f"completions/moeflux.{x}" for x in ["bash", "zsh", "fish", "powershell"]}
        if "linux" in it.target:
            wanted.add("moeflux.service")
        if set(it.files) != {f"{it.stem}/{name}" for name in wanted}:
            yield f"{it.name} has {it.files}"
        if it.files != sorted(it.files):
            yield f"{it.name} is not in order"
        if len(it.times) != 1 or it.owners != {(0, 0)}:
            yield f"{it.name} has times {it.times} and owners {it.owners}"
        for name, mode in it.entries:
            if mode != (0o755 if name == f"{it.stem}/{it.program}" else 0o644):
                yield f"{it.name} has rights {mode:o} for {name}"


def check_binstall(archives):
    """The patterns in Cargo.toml lead to the archives of all targets."""
    general = PROGRAM["metadata"]["binstall"]
    for it in archives:
        said = general | general.get("overrides", {}).get(it.target, {})
        known = {"repo": REPOSITORY, "version": VERSION, "target": it.target, "bin": "moeflux"}
        known["binary-ext"] = ".exe" if "windows" in it.target else ""

        def filled(text):
            for name, value in known.items():
                text = text.replace(f"{{ {name} }}", value)
            return text

        if filled(said["pkg-url"]) != it.url:
            yield f"binstall fetches {filled(said['pkg-url'])}, not {it.url}"
        if filled(said["bin-dir"]) not in it.files:
            yield f"binstall looks for {filled(said['bin-dir'])} in {it.name}"
        if not it.name.endswith({"tgz": ".tar.gz", "zip": ".zip"}[said["pkg-fmt"]]):
            yield f"binstall takes {it.name} for {said['pkg-fmt']}"


def check_of(path):
    """The check of a file of PACKAGES."""
    checks = {"SHA256SUMS": check_sums, "moeflux.rb": check_formula, "moeflux.json": check_scoop}
    return checks.get(path.name, check_winget)


def check_names(packages):
    wanted = {"SHA256SUMS", "moeflux.rb", "moeflux.json"}
    wanted |= {f"{PACKAGE}{kind}.yaml" for kind in WINGET}
    found = {path.name for path in packages.iterdir()}
    if found != wanted:
        yield f"{packages} has {sorted(found)}, not {sorted(wanted)}"


def check_sums(packages, archives):
    wanted = sorted(f"{it.sum}  {it.name}" for it in archives)
    if sorted((packages / "SHA256SUMS").read_text().splitlines()) != wanted:
        yield f"SHA256SUMS is not {wanted}"


def check_formula(packages, archives):
    command = ["ruby", "-w", HERE / "formula.rb", packages / "moeflux.rb"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0 or ran.stderr:
        yield f"moeflux.rb: ruby says {ran.stderr.strip()}"
        return
    said = json.loads(ran.stdout)
    wanted = {
        it.installers["brew"]: {"url": it.url, "sha256": it.sum}
        for it in archives
        if it.installers["brew"] != "-"
    }
    yield from differences("moeflux.rb: archives", said["parts"], wanted)
    for it in archives:
        if it.installers["brew"] != "-" and f"{it.stem}/{it.program}" not in it.files:
            yield f"moeflux.rb installs {it.program}, which {it.name} lacks"
    wanted = {
        "desc": description(),
        "homepage": REPOSITORY,
        "version": VERSION,
        "license": {"any_of": LICENSE.split(" OR ")},
        "installed": ["moeflux"],
        "completions": ["bin/moeflux", "completions"],
        "service": {
            "run": ["opt_bin/moeflux", "serve"],
            "keep_alive": True,
            "log_path": "var/log/moeflux.log",
            "error_log_path": "var/log/moeflux.log",
        },
        "test": "bin/moeflux generate --chat 'What does Vec::push do?'",
        "match": "Appends an element",
    }
    yield from differences("moeflux.rb", {key: said.get(key) for key in wanted}, wanted)


def check_scoop(packages, archives):
    try:
        said = json.loads((packages / "moeflux.json").read_text())
    except json.JSONDecodeError as error:
        yield f"moeflux.json: {error}"
        return
    broken = list(breaches("moeflux.json", said, rules.SCOOP))
    yield from broken
    if broken:
        return
    ours = [it for it in archives if it.installers["scoop"] != "-"]
    wanted = {
        it.installers["scoop"]: {"url": it.url, "hash": it.sum, "extract_dir": it.stem}
        for it in ours
    }
    yield from differences("moeflux.json: archives", said["architecture"], wanted)
    for it in ours:
        if f"{it.stem}/{said['bin']}" not in it.files:
            yield f"moeflux.json runs {said['bin']}, which {it.name} lacks"
    # With this version in its place, the pattern of later ones is what this one says.
    later = json.loads(json.dumps(said["autoupdate"]).replace("$version", VERSION))
    wanted = {
        name: {"url": it["url"], "extract_dir": it["extract_dir"]} for name, it in wanted.items()
    }
    yield from differences("moeflux.json: autoupdate", later["architecture"], wanted)
    for name, pattern in said["autoupdate"]["architecture"].items():
        if pattern["url"].count("$version") != 2 or pattern["extract_dir"].count("$version") != 1:
            yield f"moeflux.json: autoupdate of {name} does not say where the version is"
    if later["hash"]["url"] != "$baseurl/SHA256SUMS":
        yield f"moeflux.json: a release has no {later['hash']['url']}"
    wanted = {"version": VERSION, "homepage": REPOSITORY, "description": description()}
    # A pipe stands between licences of which one can choose.
    wanted["license"] = LICENSE.replace(" OR ", "|")
    yield from differences("moeflux.json", {key: said[key] for key in wanted}, wanted)


def check_winget(packages, archives):
    said = {}
    for name, kind in WINGET.items():
        file = f"{PACKAGE}{name}.yaml"
        text = (packages / file).read_text()
        schema = f"https://aka.ms/winget-manifest.{kind}.1.12.0.schema.json"
        if text.splitlines()[0] != f"# yaml-language-server: $schema={schema}":
            yield f"{file} does not name its schema in its first line"
        try:
            said[kind] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            yield f"{file}: {error}"
            return
        broken = list(breaches(file, said[kind], rules.WINGET[kind]))
        yield from broken
        if broken:
            return
        wanted = {"PackageIdentifier": PACKAGE, "PackageVersion": VERSION}
        yield from differences(file, {key: said[kind][key] for key in wanted}, wanted)
    if said["version"]["DefaultLocale"] != said["defaultLocale"]["PackageLocale"]:
        yield f"{PACKAGE}.yaml names another locale than {PACKAGE}.locale.en-US.yaml"

    wanted = [
        {
            "Architecture": it.installers["winget"],
            "InstallerUrl": it.url,
            "InstallerSha256": it.sum.upper(),
            "NestedInstallerFiles": [
                {
                    "RelativeFilePath": f"{it.stem}\\{it.program}",
                    "PortableCommandAlias": "moeflux",
                }
            ],
        }
        for it in archives
        if it.installers["winget"] != "-"
    ]
    if said["installer"]["Installers"] != wanted:
        yield f"{PACKAGE}.installer.yaml has {said['installer']['Installers']}, not {wanted}"
    wanted = {
        "Publisher": REPOSITORY.split("/")[-2],
        "PublisherUrl": REPOSITORY.rsplit("/", 1)[0],
        "PublisherSupportUrl": f"{REPOSITORY}/issues",
        "PackageName": "moeflux",
        "PackageUrl": REPOSITORY,
        "Moniker": "moeflux",
        "License": LICENSE,
        "ShortDescription": description(),
        "Tags": WORKSPACE["keywords"],
        "ReleaseNotesUrl": f"{REPOSITORY}/releases/tag/v{VERSION}",
    }
    locale = {key: said["defaultLocale"][key] for key in wanted}
    yield from differences(f"{PACKAGE}.locale.en-US.yaml", locale, wanted)


def description():
    """That of the command, without its name: installers write the name before it."""
    text = PROGRAM["description"].split(": ")[1]
    return text[0].upper() + text[1:]


def breaches(name, said, schema):
    jsonschema.Draft7Validator.check_schema(schema)
    for error in jsonschema.Draft7Validator(schema).iter_errors(said):
        yield f"{name}: {error.json_path}: {error.message}"


def differences(name, said, wanted):
    for key in sorted(said.keys() | wanted.keys()):
        if said.get(key) != wanted.get(key):
            yield f"{name}: {key} is {said.get(key)}, not {wanted.get(key)}"


def check_damages(path, packages, archives):
    """Loses each line of a file, and changes each word of it; returns how often that was found."""
    check = check_of(path)
    lines = path.read_text().splitlines()
    n_damages = 0
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / "packages"
        shutil.copytree(packages, folder)
        for at, line in enumerate(lines):
            for damaged in damages(line):
                text = "\n".join(lines[:at] + damaged + lines[at + 1 :]) + "\n"
                (folder / path.name).write_text(text)
                n_damages += 1
                if not list(check(folder, archives)):
                    sys.exit(f"manifests: {damaged} for {line!r} in {path.name} was not found")
    return n_damages


def damages(line):
    """What can stand in the place of a line, as lists of lines."""
    if line.strip():
        yield []
    for word in re.finditer(r"[A-Za-z0-9]+", line):
        # A digit of a checksum stays one.
        last = line[word.end() - 1]
        other = str((int(last) + 1) % 10) if last.isdigit() else "b" if last in "aA" else "a"
        yield [line[: word.end() - 1] + other + line[word.end() :]]


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
