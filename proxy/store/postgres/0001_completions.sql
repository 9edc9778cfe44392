-- What is text in a completion is UTF-8 in a bytea: PostgreSQL's text takes no NUL, which JSON has,
-- and no character that the database's encoding lacks. To read it: convert_from(id, 'UTF8').
CREATE TABLE wellspoken_completion (
    created bigint NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    -- A digest of owner and id: it bounds the index, whatever length an imported id has.
    key uuid NOT NULL UNIQUE,
    marks uuid[] NOT NULL,
    owner bytea NOT NULL,
    id bytea NOT NULL,
    model bytea NOT NULL,
    request_id bytea NOT NULL,
    metadata bytea NOT NULL,
    answer bytea NOT NULL,
    parameters bytea NOT NULL,
    messages bytea NOT NULL,
    PRIMARY KEY (created, seq)
);

CREATE INDEX wellspoken_completion_page ON wellspoken_completion (owner, created, seq);

-- They come compressed where that helps.
ALTER TABLE wellspoken_completion
    ALTER COLUMN answer SET STORAGE EXTERNAL,
    ALTER COLUMN parameters SET STORAGE EXTERNAL,
    ALTER COLUMN messages SET STORAGE EXTERNAL;

-- What rows can be filtered by: a digest of owner, key and value, or of owner and model. A table
-- and no GIN index, since only this one gives the rows in the order of a page.
CREATE TABLE wellspoken_mark (
    mark uuid NOT NULL,
    created bigint NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (mark, created, seq)
);

-- What the rows are and take, kept with every change: a sum over all of them would be too slow. The
-- total is that of all slots; there are several so that proxies seldom wait for each other.
CREATE TABLE wellspoken_total (
    slot integer PRIMARY KEY,
    completions bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 20);
