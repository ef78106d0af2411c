-- The first schema. Times are microseconds since 1970 UTC, ids are 16-byte UUIDs (version 7 where this program made
-- them), so that `sqlite3` shows them with hex(id). JSON is kept as the text that arrived.

CREATE TABLE meta(
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Which migrations ran here, and which program ran them.
CREATE TABLE migration(
  step INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  program TEXT NOT NULL,
  applied_at INTEGER NOT NULL
) STRICT;

-- One row a role, rewritten by each proof that the store takes writes.
CREATE TABLE canary(
  role TEXT PRIMARY KEY,
  token TEXT NOT NULL,
  written_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Instructions are long and the same for many sessions: each text once, by its BLAKE3 hash.
CREATE TABLE prompt(
  hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
  text TEXT NOT NULL
) STRICT;

-- Narrow on purpose: every append rewrites its session's counters, so what is wide lives in session_extra and prompt.
-- parent_id is no foreign key: an import may bring the child before its parent, or without it.
-- updated_at is about what a person or program sets (title, end, flags), not about the counters.
CREATE TABLE session(
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  parent_id BLOB CHECK (length(parent_id) = 16),
  origin_system TEXT,
  origin_id TEXT,
  title TEXT,
  source TEXT NOT NULL,
  prompt_hash BLOB REFERENCES prompt(hash),
  started_at INTEGER NOT NULL,
  last_active_at INTEGER NOT NULL,
  ended_at INTEGER,
  end_reason TEXT,
  messages INTEGER NOT NULL DEFAULT 0,
  last_seq INTEGER NOT NULL DEFAULT 0,
  archived INTEGER NOT NULL DEFAULT 0 CHECK (archived IN (0, 1)),
  hidden INTEGER NOT NULL DEFAULT 0 CHECK (hidden IN (0, 1)),
  pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX session_origin ON session(origin_id, origin_system) WHERE origin_id IS NOT NULL;

-- What an import kept of a session beyond the columns above.
CREATE TABLE session_extra(
  session_id BLOB PRIMARY KEY REFERENCES session(id),
  extra TEXT NOT NULL,
  -- Equal to the session's updated_at as long as only imports have written it: then a later import may refresh it.
  imported_at INTEGER NOT NULL
) STRICT;

-- n is the order of arrival in this file and never used again after a deletion: a search index follows it.
CREATE TABLE message(
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
  session_id BLOB NOT NULL REFERENCES session(id),
  seq INTEGER NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'system', 'tool')),
  created_at INTEGER NOT NULL,
  text TEXT NOT NULL,
  parts TEXT,
  tool_calls TEXT,
  tool_call_id TEXT,
  tool_name TEXT,
  extra TEXT,
  UNIQUE (session_id, seq)
) STRICT;

-- The session that a conversation of a channel goes to.
CREATE TABLE route(
  channel TEXT NOT NULL,
  conversation TEXT NOT NULL,
  session_id BLOB NOT NULL REFERENCES session(id),
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (channel, conversation)
) STRICT, WITHOUT ROWID;

-- n is the order in which the messages came in; turns of one conversation are answered in it.
CREATE TABLE turn(
  n INTEGER PRIMARY KEY,
  id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
  session_id BLOB NOT NULL REFERENCES session(id),
  message_id BLOB NOT NULL REFERENCES message(id),
  channel TEXT NOT NULL,
  conversation TEXT NOT NULL,
  client_id TEXT,
  state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed')),
  reply_id BLOB REFERENCES message(id),
  error TEXT,
  attempts INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX turn_client ON turn(channel, conversation, client_id) WHERE client_id IS NOT NULL;
CREATE INDEX turn_open ON turn(n) WHERE state IN ('queued', 'running');

-- A conversation is answered by one process at a time: the key makes it so.
CREATE TABLE lease(
  session_id BLOB PRIMARY KEY REFERENCES session(id),
  turn_id BLOB NOT NULL REFERENCES turn(id),
  holder TEXT NOT NULL,
  acquired_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE delivery(
  turn_id BLOB PRIMARY KEY REFERENCES turn(id),
  delivered_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What the model calls of a session cost, in sums.
CREATE TABLE usage(
  session_id BLOB NOT NULL REFERENCES session(id),
  provider TEXT NOT NULL,
  endpoint TEXT NOT NULL DEFAULT '',
  mode TEXT NOT NULL DEFAULT '',
  model TEXT NOT NULL,
  task TEXT NOT NULL DEFAULT '',
  calls INTEGER NOT NULL DEFAULT 0,
  input_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0,
  cache_read_tokens INTEGER NOT NULL DEFAULT 0,
  cache_write_tokens INTEGER NOT NULL DEFAULT 0,
  reasoning_tokens INTEGER NOT NULL DEFAULT 0,
  extra TEXT,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (session_id, provider, endpoint, mode, model, task)
) STRICT, WITHOUT ROWID;

CREATE TABLE job(
  id BLOB PRIMARY KEY CHECK (length(id) = 16),
  name TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  every_seconds INTEGER NOT NULL CHECK (every_seconds > 0),
  next_due_at INTEGER NOT NULL,
  paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A due time is claimed by inserting it, so two processes cannot both have it.
CREATE TABLE occurrence(
  job_id BLOB NOT NULL REFERENCES job(id),
  due_at INTEGER NOT NULL,
  holder TEXT NOT NULL,
  claimed_at INTEGER NOT NULL,
  finished_at INTEGER,
  error TEXT,
  PRIMARY KEY (job_id, due_at)
) STRICT, WITHOUT ROWID;
