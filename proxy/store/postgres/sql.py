"""The statements of postgres.py. Every value is a parameter."""

from __future__ import annotations

from wellspoken.proxy.store.rows import Query

READ_ONLY = "25006"
"""The SQLSTATE of a write to a server that takes none, as after a failover."""

# Statistics lag behind a table that grows by thousands of rows a second, and what the planner makes
# of old ones reads a whole table for a page. So it is left one way: along the indexes, in order. A
# proxy that is gone without a word holds its locks no longer than this.
_PLAN = (
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
    "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; "
    "SET LOCAL enable_sort = off; SET LOCAL jit = off; "
    "SET LOCAL statement_timeout = 25000; SET LOCAL idle_in_transaction_session_timeout = 60000"
)
READ = f"BEGIN READ ONLY; {_PLAN}"
WRITE = f"BEGIN; {_PLAN}"

HAS_MIGRATIONS = "SELECT to_regclass('wellspoken_migration') IS NOT NULL"
MIGRATIONS = (
    "CREATE TABLE IF NOT EXISTS wellspoken_migration "
    "(number integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())"
)
VERSION = "SELECT coalesce(max(number), 0) FROM wellspoken_migration"
MIGRATED = "INSERT INTO wellspoken_migration (number) VALUES ($1)"
LOCK = "SELECT pg_advisory_xact_lock($1::integer, $2::integer)"

_KEPT = "key, marks, owner, id, model, request_id, metadata, answer, parameters, messages"
_BRIEF = (
    "c.id, c.owner, c.created, c.model, c.request_id, c.metadata, c.answer, c.parameters, c.seq"
)
_WHOLE = f"{_BRIEF}, c.messages"
_BYTES = "octet_length(answer) + octet_length(parameters) + octet_length(messages)"
_NAMED = "c.key = $1 AND c.owner = $2 AND c.id = $3"

GET = f"SELECT {_WHOLE} FROM wellspoken_completion c WHERE {_NAMED}"
POSITION = f"SELECT c.created, c.seq FROM wellspoken_completion c WHERE {_NAMED}"
SIZE = (
    "SELECT coalesce(sum(completions), 0)::bigint AS completions, "
    "coalesce(sum(bytes), 0)::bigint AS bytes FROM wellspoken_total"
)


def _count_into_total(rows: str, sign: str) -> str:
    return f"""counted AS (
    INSERT INTO wellspoken_total AS t
    SELECT pg_backend_pid() % 16, {sign}count(*), {sign}coalesce(sum(size), 0)::bigint FROM {rows}
    ON CONFLICT (slot) DO UPDATE SET
        completions = t.completions + excluded.completions, bytes = t.bytes + excluded.bytes
)"""


INSERT = f"""
WITH given AS (
    SELECT * FROM unnest(
        $1::bigint[], $2::uuid[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bytea[],
        $8::bytea[], $9::bytea[], $10::bytea[], $11::bytea[]
    ) WITH ORDINALITY AS g (
        created, key, marks, owner, id, model, request_id, metadata, answer, parameters, messages, n
    )
), added AS (
    INSERT INTO wellspoken_completion (created, {_KEPT})
    SELECT created, key, marks::uuid[], owner, id, model, request_id, metadata, answer, parameters,
        messages
    FROM given ORDER BY n
    ON CONFLICT (key) DO NOTHING
    RETURNING created, seq, marks, {_BYTES} AS size
), marked AS (
    INSERT INTO wellspoken_mark SELECT unnest(marks), created, seq FROM added
), {_count_into_total("added", "")}
SELECT
"""

_GONE = f"""unmarked AS (
    DELETE FROM wellspoken_mark m
    USING (SELECT unnest(marks) AS mark, created, seq FROM gone) g
    WHERE m.mark = g.mark AND m.created = g.created AND m.seq = g.seq
), {_count_into_total("(SELECT " + _BYTES + " AS size FROM gone) g", "-")}
SELECT {_WHOLE} FROM gone c"""

# Rows are locked before the statement that deletes them begins: what it sees of their marks is then
# what `set_metadata` of another proxy has left, and none of them stays behind.
LOCKED = f"SELECT c.created, c.seq FROM wellspoken_completion c WHERE {_NAMED} FOR UPDATE"

OLDEST = f"""
SELECT created, seq, {_BYTES} AS size FROM wellspoken_completion
WHERE created < $1 OR $2::bigint > 0
ORDER BY created, seq LIMIT $3 FOR UPDATE SKIP LOCKED
"""

DELETE = f"""
WITH gone AS (
    DELETE FROM wellspoken_completion c
    USING unnest($1::bigint[], $2::bigint[]) AS g (created, seq)
    WHERE c.created = g.created AND c.seq = g.seq
    RETURNING c.*
), {_GONE} ORDER BY c.created, c.seq
"""

SET_METADATA = """
WITH unmarked AS (
    DELETE FROM wellspoken_mark WHERE mark = ANY($5::uuid[]) AND created = $1 AND seq = $2
), marked AS (
    INSERT INTO wellspoken_mark SELECT unnest($6::uuid[]), $1, $2
)
UPDATE wellspoken_completion SET metadata = $3, marks = $4::uuid[] WHERE created = $1 AND seq = $2
"""

OWNERS = """
WITH RECURSIVE owners AS (
    (SELECT owner FROM wellspoken_completion ORDER BY owner LIMIT 1)
    UNION ALL
    SELECT (
        SELECT c.owner FROM wellspoken_completion c WHERE c.owner > o.owner ORDER BY c.owner LIMIT 1
    ) FROM owners o WHERE o.owner IS NOT NULL
)
SELECT owner FROM owners WHERE owner IS NOT NULL
"""


def _between(name: str) -> str:
    position = f"({name}.created, {name}.seq)"
    return f"{position} > ($1::bigint, $2::bigint) AND {position} < ($3::bigint, $4::bigint)"


def _shown(query: Query) -> str:
    return _WHOLE if query.messages else f"{_BRIEF}, ''::bytea AS messages"


def _order(name: str, query: Query) -> str:
    way = "DESC" if query.descending else "ASC"
    return f"ORDER BY {name}.created {way}, {name}.seq {way}"


def _end(way: str) -> str:
    return f"""LEFT JOIN LATERAL (
    SELECT m.created, m.seq FROM wellspoken_mark m WHERE m.mark = w.mark AND {_between("m")}
    ORDER BY m.created {way}, m.seq {way} LIMIT 1
)"""


def spread(query: Query) -> str:
    """Return the statement of where marks are: bounds, how many rows to look at, marks.

    Of each mark the first and the last position between the bounds, null where it has none; how
    many rows, no more than are looked at; and of how many seconds these are.
    """
    return f"""
SELECT first.created AS since, first.seq AS first, last.created AS until, last.seq AS last,
    few.rows, few.seconds
FROM unnest($6::uuid[]) WITH ORDINALITY AS w (mark, n)
CROSS JOIN LATERAL (
    SELECT count(*) AS rows, max(created)::numeric - min(created) AS seconds FROM (
        SELECT m.created FROM wellspoken_mark m WHERE m.mark = w.mark AND {_between("m")}
        {_order("m", query)} LIMIT $5
    ) m
) few
{_end("ASC")} first ON true
{_end("DESC")} last ON true
ORDER BY n
"""


def everybody(query: Query) -> str:
    """Return the statement of a page of everybody's rows: bounds, limit."""
    return (
        f"SELECT {_shown(query)} FROM wellspoken_completion c WHERE {_between('c')} "
        f"{_order('c', query)} LIMIT $5"
    )


def page(query: Query) -> str:
    """Return the statement of a page of an owner's rows: bounds, limit, owner."""
    return (
        f"SELECT {_shown(query)} FROM wellspoken_completion c "
        f"WHERE c.owner = $6 AND {_between('c')} {_order('c', query)} LIMIT $5"
    )


def marked(query: Query) -> str:
    """Return the statement of a page by marks: bounds, limit, one mark of each owner, the others
    of all owners in that order, how many others an owner has, owners."""
    # The others are an array, and looked up one by one: a join the planner may begin with another,
    # and then it has to sort; of NOT EXISTS it may make a hash of the whole table.
    return f"""
SELECT {_shown(query)} FROM (
    SELECT p.created, p.seq
    FROM unnest($6::uuid[]) WITH ORDINALITY AS d (mark, n)
    CROSS JOIN LATERAL (
        SELECT m.created, m.seq FROM wellspoken_mark m
        WHERE m.mark = d.mark AND {_between("m")} AND (
            SELECT true
            FROM unnest(($7::uuid[])[(d.n - 1) * $8::bigint + 1 : d.n * $8::bigint]) w (mark)
            WHERE (
                SELECT true FROM wellspoken_mark o
                WHERE o.mark = w.mark AND o.created = m.created AND o.seq = m.seq
            ) IS NULL
            LIMIT 1
        ) IS NULL
        {_order("m", query)} LIMIT $5
    ) p
    {_order("p", query)} LIMIT $5
) p JOIN wellspoken_completion c
    ON c.created = p.created AND c.seq = p.seq AND c.owner = ANY ($9::bytea[])
{_order("p", query)}
"""
