"""A process in a control group, and the most memory that it had, without the page cache."""

import os
import subprocess
import threading
import time
from pathlib import Path

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class Group:
    """Starts a command in a group of its own. The group has a limit, so that a leak ends the
    process instead of the machine."""

    def __init__(self, command, limit_bytes, **streams):
        self.is_v1 = (V1 / "memory.limit_in_bytes").exists()
        root = V1 if self.is_v1 else V2
        if not self.is_v1 and "memory" not in (V2 / "cgroup.subtree_control").read_text():
            (V2 / "cgroup.subtree_control").write_text("+memory")
        self.dir = root / f"moeflux-memory-{os.getpid()}-{time.monotonic_ns()}"
        self.dir.mkdir()
        name = "memory.limit_in_bytes" if self.is_v1 else "memory.max"
        (self.dir / name).write_text(str(limit_bytes))
        join = lambda: (self.dir / "cgroup.procs").write_text(str(os.getpid()))
        self.process = subprocess.Popen(command, preexec_fn=join, **streams)
        self.sampled = 0
        self.is_over = False
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def now(self):
        wanted = "total_rss" if self.is_v1 else "anon"
        for line in (self.dir / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name == wanted:
                return int(value)
        return 0

    def watch(self):
        while not self.is_over:
            self.sampled = max(self.sampled, self.now())
            self.sampled = max(self.sampled, self.counted())
            time.sleep(0.02)

    def counted(self):
        """What the system itself counted, less what is mapped from files: no sample misses it."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        numbers = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}
        if "VmHWM" not in numbers:
            return 0
        return (int(numbers["VmHWM"]) - int(numbers["RssFile"])) << 10

    def begin(self):
        """Forgets the peak so far."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        self.sampled = self.now()

    def peak(self):
        """The most since it began."""
        return max(self.sampled, self.counted())

    def end(self):
        self.process.kill()
        self.process.wait()
        self.is_over = True
        self.watcher.join()
        for _ in range(100):
            try:
                return self.dir.rmdir()
            except OSError:
                time.sleep(0.05)
