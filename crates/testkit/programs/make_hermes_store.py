"""Builds a Hermes Agent store with the package's own API (`hermes_state.SessionDB`), for tests of imports.

    make_hermes_store.py PATH SESSIONS MESSAGES SEED [--more N] [--hold]

PATH is the state.db to be made. The same seed makes the same content but for times that the package itself takes.
`--more N` opens a store that is there and appends N messages to its sessions instead. `--hold` leaves the store open
after the work is done, with what was written last still in its log, until a line comes on stdin.
Prints one JSON object: path, sessions, messages, and how many rows carry what.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

WORDS = (
    "gateway store message session worker schedule answer table query index lock lease token prompt model the and "
    "with from into after before never always deploy restart Zürich café naïve Łódź façade Straße coöperate"
).split()
CJK = ["東京の天気", "数据库恢复", "会話を続ける", "한국어 대화", "漢字かな交じり文", "备份与恢复计划", "京都"]
EMOJI = ["🦀", "🚀", "👩‍👩‍👧‍👦", "❤️", "🏳️‍🌈", "👍🏽", "🇯🇵"]
SOURCES = ["cli", "telegram", "discord", "cron", "api_server", "subagent", "slack"]
REASONS = ["session_reset", "compression", "idle", "new_session", "cli_close"]
PROMPT = "You are a careful assistant. Answer briefly. " * 40


def text(rng):
    words = rng.choices(WORDS, k=rng.randint(1, 60))
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words) + 1), rng.choice(CJK))
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words) + 1), rng.choice(EMOJI))
    return rng.choice([" ", " ", " ", "\n"]).join(words)


def messages(rng, count, start):
    """A transcript of exactly `count` messages that begins at `start`."""
    out = []
    at = start
    while len(out) < count:
        at += rng.choice([0.25, 1.5, 7.0, 61.125])
        kind = rng.random()
        if kind < 0.08:
            parts = [{"type": "text", "text": text(rng)}]
            parts.append({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}})
            if rng.random() < 0.2:
                parts.append({"type": "text", "text": "half a pair \ud83e here"})
            out.append({"role": "user", "content": parts, "timestamp": at})
        elif kind < 0.30 and count - len(out) >= 2:
            call = f"call_{rng.getrandbits(48):012x}"
            arguments = json.dumps({"command": text(rng), "path": rng.choice(CJK)}, ensure_ascii=rng.random() < 0.5)
            out.append({
                "role": "assistant",
                "content": rng.choice([None, "", text(rng)]),
                "tool_calls": [{"id": call, "type": "function", "function": {"name": "terminal", "arguments": arguments}}],
                "finish_reason": "tool_calls",
                "reasoning": text(rng),
                "reasoning_details": [{"type": "reasoning.text", "text": text(rng)}],
                "timestamp": at,
            })
            out.append({"role": "tool", "content": text(rng), "tool_call_id": call, "tool_name": "terminal", "timestamp": at})
        elif kind < 0.33:
            out.append({"role": "system", "content": text(rng), "timestamp": at})
        elif kind < 0.65:
            out.append({"role": "user", "content": rng.choice(["yes", "continue", text(rng)]), "timestamp": at})
        else:
            out.append({"role": "assistant", "content": text(rng), "finish_reason": "stop", "token_count": 7, "timestamp": at})
    return out


def build(db, rng, sessions, total):
    made = []
    for n in range(sessions):
        sid = f"2026{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}_{n:06d}_{rng.getrandbits(24):06x}"
        parent = rng.choice(made) if made and rng.random() < 0.2 else None
        db.create_session(
            sid,
            rng.choice(SOURCES),
            model=rng.choice(["gpt-large", "local-7b"]),
            model_config={"temperature": 0.5, "n": n},
            system_prompt=PROMPT if rng.random() < 0.5 else None,
            user_id="u1",
            chat_id=str(n),
            parent_session_id=parent,
            cwd="/home/me/проект",
        )
        made.append(sid)
    shares = [0] * sessions
    for _ in range(total):
        # A few sessions are long and many are short; some have nothing.
        shares[min(int(rng.paretovariate(0.6)) - 1, sessions - 1) if rng.random() < 0.5 else rng.randrange(sessions)] += 1
    start = 1_760_000_000.0
    for n, (sid, count) in enumerate(zip(made, shares)):
        written = messages(rng, count, start + n * 3600.0)
        one_by_one = min(count, 2)
        # Whole transcripts as the package writes them after a rewrite, the last ones as it appends while talking.
        if count > one_by_one:
            db.replace_messages(sid, written[: count - one_by_one])
        for m in written[count - one_by_one :]:
            append(db, sid, m)
        if rng.random() < 0.5:
            db.set_session_title(sid, f"{rng.choice(CJK)} {rng.choice(EMOJI)} {n}")
        if rng.random() < 0.3:
            db.update_token_counts(
                sid, input_tokens=1000 + n, output_tokens=n, cache_read_tokens=5, model="gpt-large",
                billing_provider="provider", estimated_cost_usd=0.125, api_call_count=3,
            )
        if rng.random() < 0.1:
            db.set_session_archived(sid, True)
        if rng.random() < 0.4:
            db.end_session(sid, rng.choice(REASONS))
    if shares[0] > 4:
        # Compaction in place: what was said stays as inactive rows, and a shorter set follows.
        live = [{"role": "user", "content": "summary of what was said", "timestamp": start + 9e5}]
        db.archive_and_compact(made[0], live)


def append(db, sid, m):
    keep = dict(m)
    role = keep.pop("role")
    db.append_message(sid, role, **keep)


def count(db):
    one = lambda sql: db._conn.execute(sql).fetchone()[0]
    return {
        "sessions": one("SELECT count(*) FROM sessions"),
        "messages": one("SELECT count(*) FROM messages"),
        "tool_calls": one("SELECT count(*) FROM messages WHERE tool_calls IS NOT NULL"),
        "structured": one("SELECT count(*) FROM messages WHERE substr(CAST(content AS BLOB), 1, 6) = x'006a736f6e3a'"),
        "titles": one("SELECT count(*) FROM sessions WHERE title IS NOT NULL"),
        "ended": one("SELECT count(*) FROM sessions WHERE ended_at IS NOT NULL"),
        "children": one("SELECT count(*) FROM sessions WHERE parent_session_id IS NOT NULL"),
        "archived": one("SELECT count(*) FROM sessions WHERE archived"),
        "inactive": one("SELECT count(*) FROM messages WHERE NOT active"),
        "schema": one("SELECT version FROM schema_version"),
    }


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("path", type=Path)
    arguments.add_argument("sessions", type=int)
    arguments.add_argument("messages", type=int)
    arguments.add_argument("seed", type=int)
    arguments.add_argument("--more", type=int)
    arguments.add_argument("--hold", action="store_true")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as home:
        # The package makes directories in its home when it is imported; not in the developer's own.
        os.environ["HERMES_HOME"] = home
        from hermes_state import SessionDB

        rng = random.Random(given.seed)
        db = SessionDB(db_path=given.path)
        if given.more is None:
            build(db, rng, given.sessions, given.messages)
        else:
            ids = [row[0] for row in db._conn.execute("SELECT id FROM sessions ORDER BY rowid")]
            for m in messages(rng, given.more, 1_770_000_000.0):
                append(db, rng.choice(ids), m)
        print(json.dumps({"path": str(given.path), **count(db)}), flush=True)
        if given.hold:
            sys.stdin.readline()
        db.close()


if __name__ == "__main__":
    main()
