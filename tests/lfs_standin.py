"""A stand-in for Lustre's ``lfs``: its words, its order of answers, and an archive in a folder.

It shows that our calls are right, that nothing is called done too early, and what happens when a request is refused or
forgotten. It shows nothing of Lustre: no restore by a read, no locks, no stripes, no speed, no real S3.

LFS_STANDIN names a folder with ``lustre/`` (the file system), ``s3/`` (the archive), ``known.json`` (flags and open
requests of each file) and ``plan.json``: {"looks": questions until a request is done, "forget": {file: how many requests
are lost}, "refuse": {file: words}, "busy": open requests stay, "most": filled with the most open requests seen}.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys

EXISTS, DIRTY, RELEASED, ARCHIVED = 0x1, 0x2, 0x4, 0x8
NEVER_RELEASE, NEVER_ARCHIVE, LOST = 0x10, 0x20, 0x40
# As lfs prints them, in its order.
WORDS = (
    (RELEASED, "released"), (EXISTS, "exists"), (DIRTY, "dirty"), (ARCHIVED, "archived"),
    (NEVER_RELEASE, "never_release"), (NEVER_ARCHIVE, "never_archive"), (LOST, "lost_from_hsm"),
)  # fmt: skip
ROOT = os.environ["LFS_STANDIN"]


def path_of(*parts: str) -> str:
    return os.path.join(ROOT, *parts)


def load(name: str) -> dict:
    with open(path_of(name)) as file:
        return json.load(file)


def save(name: str, content: dict) -> None:
    with open(path_of(name), "w") as file:
        json.dump(content, file)


def fail(text: str, code: int) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr)
    raise SystemExit(code)


def entry(known: dict, path: str) -> dict:
    """What is known of a file. A content that was written since its archive is dirty."""
    inside = os.path.relpath(path, path_of("lustre"))
    found = known.setdefault(inside, {"flags": 0, "open": None, "left": 0, "stamp": None})
    stamp = os.stat(path).st_mtime_ns
    if found["flags"] & ARCHIVED and stamp != found["stamp"] and not found["flags"] & RELEASED:
        found["flags"] |= DIRTY
    return found


def finish(path: str, found: dict) -> None:
    """Carry the open request of a file out."""
    copy = path_of("s3", os.path.relpath(path, path_of("lustre")))
    if found["open"] == "ARCHIVE":
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copyfile(path, copy)
        found["flags"], found["stamp"] = EXISTS | ARCHIVED, os.stat(path).st_mtime_ns
    elif found["open"] == "RESTORE":
        shutil.copyfile(copy, path)
        os.utime(path, ns=(found["stamp"], found["stamp"]))
        found["flags"] &= ~RELEASED
    found["open"] = None


def check(path: str, verb: str) -> None:
    if not os.path.lexists(path):
        words = f"can't get hsm state for {path}" if verb == "hsm_state" else f"Cannot stat {path}"
        fail(f"{words}: No such file or directory", 2)
    if os.path.relpath(path, path_of("lustre")).startswith(".."):
        fail(f"can't get hsm state for {path}: Inappropriate ioctl for device", 25)


def state(known: dict, plan: dict, path: str) -> None:
    check(path, "hsm_state")
    found = entry(known, path)
    if found["open"] and not plan.get("busy"):
        found["left"] -= 1
        if found["left"] <= 0:
            finish(path, found)
    words = "".join(f" {word}" for bit, word in WORDS if found["flags"] & bit)
    number = ", archive_id:1" if found["flags"] & EXISTS else ""
    print(f"{path}: (0x{found['flags']:08x}){words}{number}")


def action(known: dict, path: str) -> None:
    check(path, "hsm_state")
    doing = entry(known, path)["open"]
    print(f"{path}: {doing} running (0 bytes moved)" if doing else f"{path}: NOOP")


def request(known: dict, plan: dict, verb: str, paths: list[str]) -> None:
    for path in paths:  # all or none, as lfs does
        check(path, verb)
        name = os.path.basename(path)
        if name in plan.get("refuse", {}):
            fail(f"Cannot send HSM request (use of {path}): {plan['refuse'][name]}", 1)
        found = entry(known, path)
        if verb == "hsm_release" and (found["flags"] & DIRTY or not found["flags"] & ARCHIVED):
            fail(f"Cannot send HSM request (use of {path}): Operation not permitted", 1)
    for path in paths:
        name, found = os.path.basename(path), entry(known, path)
        if plan.get("forget", {}).get(name, 0) > 0:
            plan["forget"][name] -= 1
        elif verb == "hsm_release":
            size = os.stat(path).st_size
            os.truncate(path, 0)
            os.truncate(path, size)
            os.utime(path, ns=(found["stamp"], found["stamp"]))
            found["flags"] |= RELEASED
        else:
            found["open"], found["left"] = verb.removeprefix("hsm_").upper(), plan.get("looks", 1)
    plan["most"] = max(plan.get("most", 0), sum(1 for one in known.values() if one["open"]))
    plan["requests"] = plan.get("requests", 0) + len(paths)


def main(verb: str, paths: list[str]) -> None:
    with open(path_of("lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known, plan = load("known.json"), load("plan.json")
        try:
            if verb == "hsm_state":
                for path in paths:
                    state(known, plan, path)
            elif verb == "hsm_action":
                for path in paths:
                    action(known, path)
            elif verb in ("hsm_archive", "hsm_restore", "hsm_release") and paths:
                request(known, plan, verb, paths)
            else:
                fail(f"lfs: {verb} is not an lfs command. See 'lfs --list-commands'.", 22)
        finally:
            save("known.json", known)
            save("plan.json", plan)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
