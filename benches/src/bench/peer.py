"""The peer's side of a measurement: the unmodified hermes-agent, driven through its own API.

seed STORE COUNT TEXTS        create a store with COUNT messages in sessions of 100 (one transaction a session)
append STORE NAME TEXTS SECONDS THREADS
                              append to one session until SECONDS are over, each thread waiting for its own append;
                              prints "ready", waits for a line, then prints the latencies in microseconds
open STORE                    open, read one row, print the microseconds
TEXTS is a file with one message a line.
"""

import json
import sys
import threading
import time
from pathlib import Path

from hermes_state import SessionDB


def texts(path):
    return Path(path).read_text(encoding="utf-8").splitlines()


def seed(store, count, lines):
    database = SessionDB(db_path=Path(store))
    for first in range(0, count, 100):
        session = f"seed-{first}"
        database.create_session(session, "cli")
        database.replace_messages(
            session,
            [
                {"role": "user" if n % 2 == 0 else "assistant", "content": lines[n % len(lines)]}
                for n in range(first, min(first + 100, count))
            ],
        )
    database.close()


def append(store, name, lines, seconds, threads):
    database = SessionDB(db_path=Path(store))
    database.create_session(name, "cli")
    print("ready", flush=True)
    sys.stdin.readline()
    latencies, failures, lock = [], [], threading.Lock()
    end = time.monotonic() + seconds

    def work(number):
        mine, n = [], number
        while time.monotonic() < end:
            begun = time.perf_counter()
            try:
                database.append_message(name, "user", lines[n % len(lines)])
            except Exception as error:
                with lock:
                    failures.append(repr(error))
                continue
            mine.append(int((time.perf_counter() - begun) * 1e6))
            n += threads
        with lock:
            latencies.extend(mine)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps({"latencies": latencies, "failures": failures}), flush=True)
    database.close()


def open_once(store):
    begun = time.perf_counter()
    database = SessionDB(db_path=Path(store))
    database.session_count()
    print(json.dumps(int((time.perf_counter() - begun) * 1e6)), flush=True)
    database.close()


command, store, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
if command == "seed":
    seed(store, int(rest[0]), texts(rest[1]))
elif command == "append":
    append(store, rest[0], texts(rest[1]), float(rest[2]), int(rest[3]))
else:
    open_once(store)
