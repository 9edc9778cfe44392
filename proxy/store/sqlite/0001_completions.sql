-- The large columns come last, so that what stands before them is read without them. No seq comes
-- twice, so that a page that goes on behind a deleted row misses none.
CREATE TABLE completion (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    created INTEGER NOT NULL,
    size INTEGER NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    request_id TEXT NOT NULL,
    metadata TEXT NOT NULL,
    answer BLOB NOT NULL,
    parameters BLOB NOT NULL,
    messages BLOB NOT NULL
);

CREATE UNIQUE INDEX completion_id ON completion (owner, id);

-- The lists that a row stands in, each in the order of its pages: all rows (an empty digest), its
-- owner's, those of its owner and model, and those of its owner and each pair of its metadata.
-- Digests, because owner, key and value take up to 600 bytes as they are, sixteen times a row.
CREATE TABLE listed (
    digest BLOB NOT NULL,
    created INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (digest, created, seq)
) WITHOUT ROWID;

-- How many rows there are and what they take, kept with every change: a sum over all is too slow.
CREATE TABLE total (
    completions INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);

INSERT INTO total VALUES (0, 0);
