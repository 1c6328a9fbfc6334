"""The tables of the server's database, as numbered steps.

A step that was released never changes: what is new is a step at the end.
"""

from __future__ import annotations

from typing import Final

MIGRATIONS: Final[tuple[str, ...]] = (
    # 1: pipelines and their jobs, connections, functions, messages and the audit log.
    """
    CREATE TABLE pipelines (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        kind TEXT NOT NULL,
        query TEXT NOT NULL,
        files TEXT NOT NULL,
        udfs TEXT NOT NULL,
        parallelism INTEGER NOT NULL,
        checkpoint_interval_micros INTEGER NOT NULL,
        state_url TEXT,
        tags TEXT NOT NULL,
        env_vars TEXT NOT NULL,
        scheduler_config TEXT NOT NULL,
        stop TEXT NOT NULL,
        preview INTEGER NOT NULL,
        enable_sinks INTEGER NOT NULL,
        expires_at INTEGER,
        graph TEXT NOT NULL,
        version INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        created_by TEXT NOT NULL
    );
    CREATE TABLE pipeline_versions (
        pipeline_id TEXT NOT NULL REFERENCES pipelines (id) ON DELETE CASCADE,
        version INTEGER NOT NULL,
        query TEXT NOT NULL,
        files TEXT NOT NULL,
        udfs TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        created_by TEXT NOT NULL,
        PRIMARY KEY (pipeline_id, version)
    );
    CREATE TABLE jobs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        pipeline_id TEXT NOT NULL UNIQUE REFERENCES pipelines (id) ON DELETE CASCADE,
        state TEXT NOT NULL,
        run_id INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        start_time INTEGER,
        finish_time INTEGER,
        tasks INTEGER,
        failure TEXT,
        process_run INTEGER NOT NULL,
        process_over INTEGER NOT NULL,
        running_parallelism INTEGER,
        running_version INTEGER,
        restart TEXT,
        state_number INTEGER NOT NULL,
        allow_drop INTEGER NOT NULL,
        failures INTEGER NOT NULL,
        retry_at INTEGER,
        healthy_since INTEGER,
        stopping_epoch INTEGER
    );
    CREATE TABLE messages (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        process_run INTEGER,
        process_number INTEGER,
        created_at INTEGER NOT NULL,
        operator_id TEXT,
        task_index INTEGER,
        level TEXT NOT NULL,
        message TEXT NOT NULL,
        details TEXT NOT NULL,
        error_domain TEXT,
        UNIQUE (job_id, process_run, process_number)
    );
    CREATE INDEX messages_of_jobs ON messages (job_id, number);
    CREATE TABLE connection_profiles (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL UNIQUE,
        connector TEXT NOT NULL,
        config TEXT NOT NULL,
        secrets TEXT NOT NULL,
        created_at INTEGER NOT NULL
    );
    CREATE TABLE connection_tables (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL UNIQUE,
        connector TEXT NOT NULL,
        profile_id TEXT REFERENCES connection_profiles (id),
        table_type TEXT NOT NULL,
        config TEXT NOT NULL,
        secrets TEXT NOT NULL,
        schema TEXT,
        columns TEXT NOT NULL,
        created_at INTEGER NOT NULL
    );
    CREATE TABLE udfs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        prefix TEXT NOT NULL,
        name TEXT NOT NULL UNIQUE,
        language TEXT NOT NULL,
        definition TEXT NOT NULL,
        description TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        time INTEGER NOT NULL,
        user TEXT NOT NULL,
        address TEXT NOT NULL,
        method TEXT NOT NULL,
        path TEXT NOT NULL,
        status INTEGER NOT NULL
    );
    """,
    # 2: what a user has said about a connection profile.
    "ALTER TABLE connection_profiles ADD COLUMN description TEXT",
    # 3: the checkpoint that the next process goes back to.
    "ALTER TABLE jobs ADD COLUMN from_epoch INTEGER",
    # 4: the last hour of each job, for charts over a restart of the server.
    """
    CREATE TABLE samples (
        job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        time INTEGER NOT NULL,
        status TEXT NOT NULL,
        PRIMARY KEY (job_id, time)
    ) WITHOUT ROWID
    """,
)
