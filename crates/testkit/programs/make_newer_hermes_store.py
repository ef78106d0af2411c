"""Builds a store in a layout of Hermes Agent that is newer than the released package, with what such stores hold at
worst: salvaged rows, unknown columns, half-finished conversations. Python's own sqlite3 is all it needs.

    make_newer_hermes_store.py PATH VERSION

VERSION is 23 to 32; columns come with the version that brought them. Prints one JSON object with what was made.
"""

import json
import sqlite3
import sys

SESSIONS = """
    id TEXT PRIMARY KEY, source TEXT NOT NULL, created_source TEXT, user_id TEXT, session_key TEXT, chat_id TEXT,
    chat_type TEXT, thread_id TEXT, display_name TEXT, origin_json TEXT, expiry_finalized INTEGER DEFAULT 0, model TEXT,
    model_config TEXT, system_prompt TEXT, system_prompt_hash TEXT REFERENCES system_prompts(hash),
    parent_session_id TEXT REFERENCES sessions(id), started_at REAL NOT NULL, ended_at REAL, end_reason TEXT,
    message_count INTEGER DEFAULT 0, tool_call_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0, cache_read_tokens INTEGER DEFAULT 0, cache_write_tokens INTEGER DEFAULT 0,
    reasoning_tokens INTEGER DEFAULT 0, cwd TEXT, billing_provider TEXT, billing_base_url TEXT, billing_mode TEXT,
    title TEXT, title_source TEXT, last_activity_at REAL, api_call_count INTEGER DEFAULT 0, profile_name TEXT,
    rewind_count INTEGER NOT NULL DEFAULT 0, archived INTEGER NOT NULL DEFAULT 0, pinned INTEGER NOT NULL DEFAULT 0,
    hidden INTEGER NOT NULL DEFAULT 0, last_read_at REAL, tool_names TEXT"""

MESSAGES = """
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL,
    content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, effect_disposition TEXT, timestamp REAL NOT NULL,
    token_count INTEGER, finish_reason TEXT, reasoning TEXT, reasoning_content TEXT, reasoning_details TEXT,
    codex_reasoning_items TEXT, codex_message_items TEXT, platform_message_id TEXT, observed INTEGER DEFAULT 0,
    _compressed_summary INTEGER NOT NULL DEFAULT 0, active INTEGER NOT NULL DEFAULT 1,
    compacted INTEGER NOT NULL DEFAULT 0, api_content TEXT, display_kind TEXT, display_metadata TEXT,
    display_identity BLOB, display_order INTEGER"""

T = 1_765_000_000.0


def main():
    path, version = sys.argv[1], int(sys.argv[2])
    sessions, messages = SESSIONS, MESSAGES
    if version >= 31:
        sessions += ", auto_archived INTEGER NOT NULL DEFAULT 0"
        messages += ", message_uid TEXT, absorbed_message_uids TEXT, tool_call_uids TEXT, tool_call_uid TEXT"
    if version >= 32:
        # What no one knows yet.
        sessions += ", mood BLOB"
        messages += ", future_column, \"odd name\" TEXT"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("BEGIN")
    db.execute("CREATE TABLE schema_version(version INTEGER NOT NULL)")
    db.execute("INSERT INTO schema_version VALUES (?)", (version,))
    db.execute("CREATE TABLE system_prompts(hash TEXT PRIMARY KEY, prompt TEXT NOT NULL)")
    db.execute(f"CREATE TABLE sessions({sessions})")
    db.execute(f"CREATE TABLE messages({messages})")
    db.execute("CREATE TABLE state_meta(key TEXT PRIMARY KEY, value TEXT)")
    db.execute("CREATE TABLE delivery_obligations(obligation_id TEXT PRIMARY KEY, content TEXT)")
    db.execute("""CREATE TABLE session_model_usage(
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, model TEXT NOT NULL,
        billing_provider TEXT NOT NULL DEFAULT '', billing_base_url TEXT NOT NULL DEFAULT '',
        billing_mode TEXT NOT NULL DEFAULT '', task TEXT NOT NULL DEFAULT '', api_call_count INTEGER NOT NULL DEFAULT 0,
        input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
        estimated_cost_usd REAL NOT NULL DEFAULT 0, first_seen REAL,
        PRIMARY KEY (session_id, model, billing_provider, billing_base_url, billing_mode, task))""")
    db.execute("""CREATE VIRTUAL TABLE messages_fts USING fts5(
        content, tool_name, tool_calls, content='messages', content_rowid='id')""")
    db.execute("""CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
        INSERT INTO messages_fts(rowid, content, tool_name, tool_calls)
        VALUES (new.id, new.content, new.tool_name, new.tool_calls); END""")

    db.execute("INSERT INTO system_prompts VALUES ('aa', 'Be brief.'), ('bb', '[\"terminal\"]')")
    session(db, "child", parent_session_id="parent", title="東京 🦀", system_prompt_hash="aa", tool_names="bb", pinned=1)
    session(db, "parent", title="the parent", hidden=1, archived=1, ended_at=T + 5, end_reason="compression")
    session(db, "lost parent", parent_session_id="never seen", started_at=1e300, source="recovered")
    session(db, "no messages", input_tokens=7, model="m", billing_provider="p", api_call_count=2)
    db.execute("INSERT INTO session_model_usage(session_id, model, billing_base_url, input_tokens, estimated_cost_usd)"
               " VALUES ('child', 'm', 'http://a', 5, 0.25), ('child', 'm', 'http://b', 6, 0.5)")

    call = '[{"id":"c1","function":{"name":"terminal","arguments":"{\\"command\\": \\"ls \\\\u6771\\"}"}}]'
    message(db, "child", "user", "plain")
    message(db, "child", "user", "\0json:" + json.dumps([{"type": "text", "text": "café \ud83e"}, {"type": "image_url"}]))
    message(db, "child", "user", "\0json:[NaN, broken")
    message(db, "child", "assistant", None, tool_calls=call, reasoning="hm", display_identity=b"\x00\xff" * 16)
    message(db, "child", "tool", "", tool_call_id="c1", tool_name="terminal")
    message(db, "child", "assistant", "archived", active=0, compacted=1)
    message(db, "child", "assistant", "rewound", active=0)
    message(db, "child", "assistant", "calls that are no JSON", tool_calls="[oops")
    message(db, "child", "user", "same", timestamp=T + 1)
    message(db, "child", "user", "same", timestamp=T + 1)
    message(db, "parent", "session_meta", "a role of its own")
    message(db, "parent", "developer", "another")
    message(db, "parent", "user", "at no time", timestamp=float("inf"))
    message(db, "parent", "user", "in seconds that were milliseconds", timestamp=T * 1000)
    message(db, "parent", "user", "a NUL \0 inside")
    message(db, "parent", "user", b"bytes \xff")
    message(db, "lost parent", "user", "salvaged", timestamp=-4.5e-300)
    message(db, "nobody", "user", "an orphan")
    message(db, "nobody", "assistant", "and its answer", timestamp=T + 2)
    db.execute("INSERT INTO messages(session_id, role, content, timestamp) VALUES ('parent', 'user', CAST(x'c3284100' AS TEXT), ?)", (T,))
    if version >= 31:
        db.execute("UPDATE messages SET message_uid = 'uid-' || id, absorbed_message_uids = '[\"x\"]' WHERE id > 2")
    if version >= 32:
        db.execute("UPDATE messages SET future_column = x'00', \"odd name\" = 'kept' WHERE id = 1")
        db.execute("UPDATE sessions SET mood = x'beef' WHERE id = 'child'")
    db.execute("COMMIT")
    one = lambda sql: db.execute(sql).fetchone()[0]
    made = {"sessions": one("SELECT count(*) FROM sessions"), "messages": one("SELECT count(*) FROM messages"), "orphaned": 1}
    db.close()
    print(json.dumps(made))


def session(db, sid, **columns):
    columns = {"id": sid, "source": "cli", "started_at": T, **columns}
    names, holes = ", ".join(columns), ", ".join("?" * len(columns))
    db.execute(f"INSERT INTO sessions({names}) VALUES ({holes})", list(columns.values()))


def message(db, sid, role, content, **columns):
    columns = {"session_id": sid, "role": role, "content": content, "timestamp": T, **columns}
    names, holes = ", ".join(columns), ", ".join("?" * len(columns))
    db.execute(f"INSERT INTO messages({names}) VALUES ({holes})", list(columns.values()))


if __name__ == "__main__":
    main()
