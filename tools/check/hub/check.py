"""Pulls a repository with moeflux and with huggingface_hub, and compares the caches.

    check.py MOEFLUX HUB

HUB is the example of that name of crates/moeflux-hub, which serves folders as a hub. Each program
works in processes of its own, with HF_HOME and HF_ENDPOINT alone.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ID = "owner/model"
MOEFLUX, HUB = sys.argv[1:]

# What is fetched by moeflux by default, of the repository below.
SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], allow_patterns=sys.argv[2:] or None))
"""
SCAN = """
from huggingface_hub import scan_cache_dir
found = scan_cache_dir()
assert not found.warnings, found.warnings
for repo in found.repos:
    for revision in repo.revisions:
        print(repo.repo_id, sorted(revision.refs), len(revision.files), revision.size_on_disk)
"""


def make_repository(folder):
    """Small files, large ones, one twice, one in a folder, one without bytes."""
    (folder / "additional_chat_templates").mkdir(parents=True)
    small = {
        "README.md": b"# A model\n",
        "additional_chat_templates/tool use.jinja": b"{{ tools }}",
        "chat_template.jinja": b"",
        "config.json": b'{"model_type": "qwen3_moe"}',
        "generation_config.json": b'{"model_type": "qwen3_moe"}',
    }
    for name, contents in small.items():
        (folder / name).write_bytes(contents)
    weight_map = {}
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        (folder / name).write_bytes(bytes((i * number) % 251 for i in range(40_000_000 // 20)) * 20)
        weight_map[f"t{number}"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "tokenizer.json").write_bytes(bytes(range(256)) * 200)


def run(command, home, url, **more):
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env |= {"HF_HOME": str(home), "HF_ENDPOINT": url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | more
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[:3]}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def by_us(home, url, *more, **env):
    return run([MOEFLUX, "pull", ID, "--yes", *more], home, url, **env)


def by_them(home, url, *patterns, **env):
    return run([sys.executable, "-c", SNAPSHOT, ID, *patterns], home, url, **env)


def tree(home):
    """Every file and link of a cache, with its contents, its target, and its permissions.

    Of the tag of backup programs only the first line is fixed; the permissions of listings are those
    that Python gives temporary files. In .moeflux are marks of our own, which huggingface_hub never
    looks at: the scans and downloads below say whether it minds them.
    """
    found = {}
    for path in sorted((home / "hub").rglob("*")):
        name = str(path.relative_to(home))
        if ".moeflux" in path.parts:
            continue
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_dir():
            found[name] = "folder"
        else:
            mode = "" if path.parent.name == "trees" else oct(path.stat().st_mode & 0o777)
            contents = path.read_bytes()
            if path.name == "CACHEDIR.TAG":
                contents = contents.splitlines()[0]
            found[name] = f"{mode} {hash(contents)}"
    return found


def check_same(what, one, other):
    """What only one of them has besides is printed."""
    wrong = [
        f"{name}: {one.get(name)} | {other.get(name)}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
    if wrong:
        sys.exit(f"{what}: ours | theirs\n  " + "\n  ".join(wrong))
    print(f"ok      {what}: {len(one)} names")


def main(work):
    repository = work / "repository"
    make_repository(repository)
    hub = subprocess.Popen(
        [HUB, f"{ID}={repository}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    url = hub.stdout.readline().strip()
    try:
        check(work, url)
    finally:
        hub.stdin.close()
        hub.wait()


def check(work, url):
    ours, theirs = work / "ours", work / "theirs"
    by_us(ours, url, "--file", "*")
    by_them(theirs, url)
    check_same("the whole repository", tree(ours), tree(theirs))
    scans = [run([sys.executable, "-c", SCAN], home, url) for home in (ours, theirs)]
    assert scans[0] == scans[1] and ID in scans[0], scans
    print(f"ok      a scan of both: {scans[0].strip()}")

    # Each takes the other's: with the hub there, and without.
    said = by_us(theirs, url, "--file", "*")
    assert "all was there" in said, said
    said = by_us(theirs, url)
    assert "all was there" in said, said
    before = tree(ours)
    nowhere = "http://127.0.0.1:1"
    by_them(ours, url)
    by_them(ours, nowhere, HF_HUB_OFFLINE="1")
    check_same("our cache after they looked at it", tree(ours), before)
    for home in (ours, theirs):
        listed = json.loads(run([MOEFLUX, "list", "--json"], home, nowhere))
        states = [it["state"] for it in listed["models"][0]["revisions"]]
        assert states == ["whole"], listed
    print("ok      each takes the other's cache")

    # Some files by one, the rest by the other, both ways.
    for first, second, name in ((by_us, by_them, "we begin"), (by_them, by_us, "they begin")):
        home = work / name.replace(" ", "-")
        begin = ("--file", "*.json") if first is by_us else ("*.json",)
        first(home, url, *begin)
        second(home, url, *(("--file", "*") if second is by_us else ()))
        check_same(name, tree(home), tree(theirs))

    # What they downloaded and has a bit flipped since is mended; what is theirs stays as it was.
    home = work / "damaged"
    by_them(home, url)
    weights = next((home / "hub").rglob("model-00001*")).resolve()
    contents = bytearray(weights.read_bytes())
    contents[len(contents) // 2] ^= 1
    weights.write_bytes(contents)
    said = by_us(home, url, "--file", "*")
    assert "downloaded" in said, said
    check_same("a file of theirs that was damaged", tree(home), tree(theirs))
    said = by_us(home, url, "--file", "*", "--check")
    assert "all was there" in said, said
    again = run([sys.executable, "-c", SCAN], home, url)
    assert again == scans[0].replace(str(ours), str(home)), again
    print("ok      what is damaged is mended")

    # A branch of it is removed by us, and a scan of theirs finds nothing wrong.
    run([MOEFLUX, "rm", ID, "--yes"], theirs, nowhere)
    left = run([sys.executable, "-c", SCAN], theirs, url)
    assert left == "", left
    print("ok      nothing is left after rm")


if __name__ == "__main__":
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        main(folder)
    finally:
        shutil.rmtree(folder)
